# `make demo` and `make test` each work alone on a fresh machine that has Python 3.11 or later.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
LOWEST ?= .venv-lowest
WORKERS ?= 2
# Processor seconds of the tests that `make test` runs; collecting them in two workers takes about as much. The rest is slow.
BUDGET ?= 270

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -q -c constraints.txt
CORE := $(VENV)/.core-installed
DEV := $(VENV)/.dev-installed

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test times quick slow portable alone lowest lint types walls docs bom check clean

help:
	@echo "make demo    sites train, their files are fused, a picture shows the result (installs the library alone)"
	@echo "make test    the tests, without the slow ones"
	@echo "make times   the same, all of them, and how long each takes: what make test chooses by"
	@echo "make quick   the tests of rooms that changed and of those above, and first cases of the others"
	@echo "make slow    only the slow tests; PART=0/3 a third of them"
	@echo "make portable  the tests that compare numbers, under every kernel of linear algebra that the processor has"
	@echo "make alone   the slow tests with processes and deadlines of their own, on a machine that does nothing else"
	@echo "make lowest  the quick tests with the lowest versions that pyproject.toml allows, in an environment of their own"
	@echo "make lint    ruff: rules and format"
	@echo "make types   mypy, strict"
	@echo "make walls   import-linter: an import may only go down"
	@echo "make docs    the documentation, into docs/_build/html; its links, tables and search are checked"
	@echo "make bom     the bill of materials of a release and its requirements with hashes, into dist"
	@echo "make check   test, lint, types, walls, docs"
	@echo "make clean   remove everything that these commands made, .venv included"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(CORE): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e .
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[dev]"
	@touch $(CORE) $@

demo: $(CORE)
	$(BIN)/consilience demo demo-output
	@echo "The report: $(CURDIR)/demo-output/report.html, the comparison as a picture: $(CURDIR)/demo-output/demo.svg"

# Workers start with a half of the tests each, so that what a file trains once is trained by one of them, and then take
# from each other. One BLAS thread for each: the processes already fill the cores.
test times quick slow: export OMP_NUM_THREADS ?= 1
# Empty, Python keeps compiled modules: without them every process that a test starts compiles the library anew, and
# every worker the tests.
test times quick slow: export PYTHONDONTWRITEBYTECODE :=

test: $(DEV)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --budget $(BUDGET)

times: $(DEV)
	rm -f .pytest_cache/times
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --times .pytest_cache/times
	$(BIN)/python -m tests.budget .pytest_cache/times

quick: $(DEV)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --quick

slow: $(DEV)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --budget $(BUDGET) $(if $(PART),--part $(PART)) -m "slow and not alone"

portable: $(DEV)
	$(BIN)/python -m tests.portable -n $(WORKERS) --dist worksteal

alone: $(DEV)
	$(BIN)/python -m pytest -m alone tests/end_to_end

# The lowest versions that pyproject.toml allows instead of those of constraints.txt; of what these need, the newest.
lowest: export OMP_NUM_THREADS ?= 1
lowest:
	$(PYTHON) -m venv --clear $(LOWEST)
	$(PYTHON) tests/lowest_versions.py > $(LOWEST)/lowest.txt
	$(LOWEST)/bin/python -m pip install -q --prefer-binary -c $(LOWEST)/lowest.txt -e ".[dev]"
	$(LOWEST)/bin/python -m pytest -n $(WORKERS) --dist worksteal --quick

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -q tests/test_wording.py

types: $(DEV)
	$(BIN)/mypy

walls: $(DEV)
	$(BIN)/lint-imports

docs: $(DEV)
	$(BIN)/sphinx-build -q -W --keep-going -b html -j $(WORKERS) docs docs/_build/html
	$(BIN)/python docs/check_site.py docs/_build/html
	@echo "The documentation: $(CURDIR)/docs/_build/html/index.html"

# What pip would install on this machine, each archive with its SHA-256; nothing is installed.
bom: $(CORE)
	@mkdir -p dist
	$(BIN)/python -m pip install -q --dry-run --ignore-installed --report dist/report.json -c constraints.txt ".[all]"
	$(BIN)/python docs/bill_of_materials.py dist/report.json dist

check: test
	$(MAKE) lint types walls docs

clean:
	rm -rf .venv .venv-lowest build dist docs/_build docs/api/generated docs/gallery/generated demo-output
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache .coverage htmlcov
	find src tests docs -name __pycache__ -type d -prune -exec rm -rf {} +
