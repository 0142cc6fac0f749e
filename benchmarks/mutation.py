"""What tests notice: small faults put into the mathematics of every room, and the share that no test of the room sees.

    nice python benchmarks/mutation.py [--rooms families matching ...] [--sample 30] [--seed 0]
    nice python benchmarks/mutation.py --survivors      # judge recorded survivors again, after tests were added
    nice python benchmarks/mutation.py --over-all 60 --seed 44 [--tests CHECKOUT --label after]

A mutant is a room's source with one change at one place: an operator, a comparison, a number, a condition, a returned
value. A sample is drawn with a seed from all changes of all files of the room. Each mutant is judged in a process of
its own, on a copy of the tree, by the doctests of its file and the tests of its room, as far as the first failure; what
survives them, by tests of rooms that use it. A test that fails kills it, and so does one that takes four times as long
as all tests without a fault. Survivors that were read have a "why" in the result, written by hand: "equivalent: ..."
where no result changes, "choice: ..." where another result is as right (of equal values, or under another bound or
tolerance that was chosen by hand). All others are open: a test is missing.

``--over-all`` draws one sample from all files of the library instead. Each mutant is judged by the doctests of its file
and the default tests of its room, tests/ROOM: first the files that name the module or what it defines, then those that
name its package, then the others, until one fails or `BOUND` processor seconds are over, after which the mutant counts
as survived. A test kills only if it passes without the fault and fails with it again, alone. The result is
written after every mutant, and a call goes on where the last one ended; ``--tests`` judges the same mutants by the
tests of another checkout of the repository, under a label of its own, and asks first what killed them before.

Neither mutmut nor cosmic-ray is used. They change annotations (``int | None``), which nothing evaluates, and texts of
messages, and start Python and its libraries anew for each mutant, which takes as long as the tests do. Here
annotations, docstrings, decorators, assertions, what is raised and texts are left alone, and a mutant's process is
forked from one that has imported the libraries, but nothing of consilience.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULT = Path(__file__).with_suffix(".json")
SAMPLE_RESULT = Path(__file__).with_name("mutation_sample.json")
LIBRARIES = ("numpy", "pytest", "_pytest", "scipy.stats", "scipy.optimize", "scipy.integrate", "scipy.special",
             "scipy.sparse", "sklearn.mixture", "sklearn.decomposition", "sklearn.cluster", "torch",
             "mpmath", "matplotlib", "pydantic", "safetensors.numpy", "safetensors.torch", "pyarrow.parquet",
             "cvxpy", "ot", "hmmlearn.hmm")  # fmt: skip
"""Imported once, before any mutant; those that are not installed are left to the tests that need them."""
TIMEOUT_RATIO = 4.0
"""A mutant is killed by time after so many times what all tests take without a fault, and `MIN_TIMEOUT` seconds."""
MIN_TIMEOUT = 60.0
MAX_SECONDS = 600.0
"""Where there is no time to compare with; a bound against hanging only."""
BOUND = 150.0
"""Processor seconds of tests for one mutant of a sample over all files: the largest rooms take some 400."""
TEST_BOUND = 60.0
"""A test that takes so many processor seconds kills by time; the slowest default test takes about ten."""
HANGING = 1800.0
"""Seconds by the clock after which a process that uses no processor time is ended."""

KINDS = ("equivalent", "choice", "open")
"""What survivors are, as their "why" says: no result changes, another result is as right, or a test is missing."""


@dataclass(frozen=True)
class Room:
    """Sources in which faults are put (patterns), their tests, and tests of other rooms that use them.

    What the room's own tests let pass is judged by those of its callers as well.
    """

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    callers: tuple[str, ...]


SRC = "src/consilience"
ROOMS = {
    "families": Room(
        (f"{SRC}/families/*.py",),
        ("tests/families",),
        ("tests/posteriors/oracles/test_kl_fusion.py", "tests/posteriors/test_divergences.py"),
    ),
    "matching": Room(
        (f"{SRC}/matching/*.py",),
        ("tests/matching",),
        ("tests/matching/oracles/test_gromov.py", "tests/networks/test_gromov_laws.py",
         "tests/networks/oracles/test_fusion.py", "tests/posteriors/oracles/test_spahm_fusion.py",
         "tests/posteriors/oracles/test_amps.py", "tests/matching/oracles/test_evidence_search.py",
         "tests/posteriors/oracles/test_kl_fusion.py", "tests/posteriors/test_kernels.py"),
    ),
    "posteriors": Room(
        tuple(f"{SRC}/posteriors/{name}.py" for name in ("average", "ensemble")),
        ("tests/posteriors/test_attached_average.py", "tests/posteriors/test_product_law.py",
         "tests/posteriors/test_every_method.py", "tests/posteriors/oracles/test_robust.py",
         "tests/posteriors/test_ensemble_model.py", "tests/posteriors/oracles/test_amps.py"),
        ("tests/posteriors/test_methods.py", "tests/posteriors/test_robust.py",
         "tests/posteriors/oracles/test_kl_steps.py", "tests/posteriors/oracles/test_sharded.py"),
    ),
    "posteriors: kl": Room(
        (f"{SRC}/posteriors/methods/kl/*.py", f"{SRC}/posteriors/evidence/*.py",),
        ("tests/posteriors/oracles/test_kl_steps.py", "tests/posteriors/oracles/test_kl_fusion.py",
         "tests/matching/oracles/test_evidence_search.py", "tests/posteriors/oracles/test_heterogeneity.py",
         "tests/posteriors/oracles/test_evidence.py", "tests/posteriors/test_divergences.py",
         "tests/posteriors/test_outliers.py", "tests/posteriors/test_choose_number.py"),
        ("tests/posteriors/test_methods.py", "tests/posteriors/oracles/test_sharded.py"),
    ),
    "posteriors: spahm": Room(
        (f"{SRC}/posteriors/methods/spahm/*.py",),
        ("tests/posteriors/oracles/test_atom_law.py", "tests/posteriors/test_spahm_laws.py",
         "tests/posteriors/oracles/test_spahm_fusion.py"),
        ("tests/posteriors/test_methods.py", "tests/posteriors/test_every_method.py"),
    ),
    "networks: symmetry": Room(
        (f"{SRC}/networks/symmetry/*.py",),
        ("tests/networks/oracles/test_axis_moves.py", "tests/networks/test_tracing.py", "tests/networks/test_widths.py",
         "tests/networks/test_files.py", "tests/networks/test_proof.py", "tests/networks/test_products.py"),
        ("tests/networks/test_mixed_widths.py", "tests/networks/test_every_method.py"),
    ),
    "networks: weight matching": Room(
        (f"{SRC}/networks/methods/weight_matching/*.py",),
        ("tests/networks/oracles/test_recurrent_matrices.py", "tests/networks/oracles/test_weight_matching.py",
         "tests/networks/oracles/test_lazy_matching.py", "tests/networks/oracles/test_fusion.py",
         "tests/networks/test_recurrence.py"),
        ("tests/networks/test_methods.py", "tests/networks/test_every_method.py",
         "tests/networks/test_gromov_laws.py"),
    ),
    "networks: fisher": Room(
        (f"{SRC}/networks/methods/fisher/*.py",),
        ("tests/networks/oracles/test_fisher_solvers.py", "tests/networks/oracles/test_fisher.py",
         "tests/networks/test_fisher_merging.py"),
        ("tests/networks/test_fisher_refusals.py", "tests/networks/test_every_method.py"),
    ),
    "bayesian": Room(
        (f"{SRC}/bayesian/methods/*.py",),
        ("tests/networks/gaussian/oracles/test_kl_steps.py", "tests/networks/gaussian/oracles/test_networks.py",
         "tests/networks/gaussian/test_every_method.py", "tests/networks/gaussian/test_fusion.py"),
        ("tests/networks/gaussian/test_posterior_paths.py", "tests/networks/gaussian/test_refusals.py"),
    ),
    "checkpoints": Room(
        (f"{SRC}/checkpoints/methods/*.py",),
        ("tests/checkpoints/oracles", "tests/checkpoints/test_laws.py", "tests/checkpoints/test_refusals.py"),
        ("tests/cli/test_merge.py",),
    ),
    "files": Room(
        tuple(f"{SRC}/files/{name}.py" for name in ("safetensors_file", "safetensors_header", "document")),
        ("tests/files", "tests/posteriors/test_format_one.py", "tests/posteriors/test_shards.py",
         "tests/networks/test_files.py", "tests/fuzz/test_readers.py"),
        ("tests/checkpoints", "tests/cli/test_pack.py", "tests/files/test_limits.py"),
    ),
    "core": Room(
        (f"{SRC}/core/*.py",),
        ("tests/core", "tests/api", "tests/posteriors/oracles/test_evaluation.py", "tests/cli/test_commands.py"),
        ("tests/posteriors/test_every_method.py", "tests/networks/test_every_method.py", "tests/cli/test_evaluate.py"),
    ),
}  # fmt: skip
"""The core of every room, and its tests; golden fusions are left out, which notice that numbers change, not why."""


# -- Mutants.

BINARY = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
          ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd}  # fmt: skip
COMPARISONS = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}  # fmt: skip
OPPOSITES = {"min": "max", "argmin": "argmax", "minimum": "maximum", "any": "all", "floor": "ceil"}
NAMES = OPPOSITES | {opposite: name for name, opposite in OPPOSITES.items()}


@dataclass(frozen=True)
class Mutant:
    """A change of one place of a file.

    Parameters
    ----------
    file : str
        The file, relative to the repository.
    number : int
        The mutant's number in the file.
    line : int
        The line of the place.
    place : str
        The text of that line, from the place on: it tells the place apart after the file has changed.
    change : str
        The place before and after, as code.
    """

    file: str
    number: int
    line: int
    place: str
    change: str


def _replacements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what a node is replaced by, one after the other."""
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in BINARY:
        yield _with(node, op=BINARY[type(node.op)]())
    elif isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            for other in COMPARISONS[type(operator)]:
                yield _with(node, ops=[*node.ops[:place], other(), *node.ops[place + 1 :]])
    elif isinstance(node, ast.BoolOp):
        yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Constant) and isinstance(node.value, float):
        yield ast.Constant(2.0 * node.value if node.value else 1.0)
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield _with(node, value=ast.Constant(None))
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in NAMES:
        yield _with(node, id=NAMES[node.id])
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        yield _with(node, attr=NAMES[node.attr])
    elif isinstance(node, ast.Break):
        yield ast.Continue()
    elif isinstance(node, ast.Continue):
        yield ast.Break()
    if isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(node.test, ast.Compare | ast.UnaryOp):
        yield _with(node, test=ast.UnaryOp(ast.Not(), node.test))


def _with(node: ast.AST, **fields: Any) -> ast.AST:
    """Return a copy of a node with other fields."""
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _is_left_alone(node: ast.AST) -> bool:
    """Whether nothing in a node is changed: what is raised, asserted or only imported for types, and texts."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return True
    return isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom)


def _places(tree: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """Yield every node that may be changed with its parent, and the field and index that it has there."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_params", "type_ignores"):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST) and not _is_left_alone(child):
                yield tree, name, index, child
                yield from _places(child)


def mutants_of(file: str) -> list[Mutant]:
    """Return all mutants of a file, in order."""
    found: list[Mutant] = []
    source = (ROOT / file).read_text()
    lines = source.encode().splitlines()  # columns count bytes
    for _, _, _, node in _places(ast.parse(source)):
        for other in _replacements(node):
            line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
            place, change = lines[line - 1][column:].decode(), f"{_first_line(node)}  ->  {_first_line(other)}"
            found.append(Mutant(file, len(found), line, place, change))
    return found


def _first_line(node: ast.AST) -> str:
    return ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).partition("\n")[0][:160]


def source_of(mutant: Mutant) -> str:
    """Return the text of a file with the change of a mutant."""
    tree = ast.parse((ROOT / mutant.file).read_text())
    number = 0
    for parent, name, index, node in list(_places(tree)):
        for other in _replacements(node):
            if number == mutant.number:
                replaced = ast.copy_location(other, node) if hasattr(node, "lineno") else other
                if index is None:
                    setattr(parent, name, replaced)
                else:
                    getattr(parent, name)[index] = replaced
                return ast.unparse(ast.fix_missing_locations(tree)) + "\n"
            number += 1
    raise ValueError(f"{mutant.file} has no mutant {mutant.number}")


def files_of(room: Room) -> list[str]:
    """Return the sources of a room, sorted; packages that only import have no place to change."""
    found = {path for pattern in room.sources for path in ROOT.glob(pattern)}
    return sorted(str(path.relative_to(ROOT)) for path in found)


def tests_of(tree: Path, file: str) -> list[str]:
    """Return the test files of a source's room, those that reach the source first.

    In order: those that import the module, that name what it defines, that name its package, and the others; within
    these, those whose names have more words of its path. A file outside all rooms, or in a room without tests, has the
    tests of all rooms.
    """
    source = Path(file).relative_to("src")
    module, package = ".".join(source.with_suffix("").parts), ".".join(source.parent.parts)
    names = [one.name for one in ast.parse((tree / file).read_text()).body if hasattr(one, "name")]
    near = re.compile(rf"{re.escape(module)}\b|from {re.escape(package)} import [^\n]*\b{source.stem}\b")
    named = re.compile(rf"\b({'|'.join(names)})\b" if names else "(?!)")
    room = tree / "tests" / source.parts[1]
    folders = [room] if room.is_dir() else [tree / "tests" / path.name for path in (tree / SRC).iterdir()]
    words = {word.rstrip("s") for word in re.split("[/_.]", "/".join(source.parts[2:])) if len(word) > 3}
    found = []
    for path in (one for folder in folders for one in folder.rglob("test_*.py")):
        text = path.read_text()
        rank = 0 if near.search(text) else 1 if named.search(text) else 2 if package in text else 3
        found.append((rank, -sum(word in path.stem for word in words), str(path.relative_to(tree))))
    return [path for _, _, path in sorted(found)]


# -- Judgement.


def judge(
    tree: Path,
    tests: Sequence[str],
    timeout: float,
    *,
    bound: float | None = None,
    options: Sequence[str] = (),
    only: str | None = None,
) -> tuple[str, float, str]:
    """Return "killed", "killed by time" or "survived", the seconds that it took, and the test that failed first.

    The tests run in a fork of this process, which has imported the libraries. With a bound, in processor seconds, they
    end after it, and a single test may take `TEST_BOUND` of them. With `only` that test alone runs.
    """
    report = tree / "first-failure.txt"
    report.unlink(missing_ok=True)
    started = time.perf_counter()
    child = os.fork()
    if child == 0:
        os.setsid()  # so that processes that tests start end with it
        _run_tests(tree, [*options, *tests], report, bound, only)
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        seconds = time.perf_counter() - started
        if done:
            first = report.read_text() if report.exists() else ""
            code = os.waitstatus_to_exitcode(status)
            return {0: "survived", -signal.SIGXCPU: "killed by time"}.get(code, "killed"), seconds, first
        if seconds > timeout:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "killed by time", seconds, ""
        time.sleep(0.02)


def _processor_seconds() -> float:
    """Return what this process and its children that have ended took."""
    return sum(os.times()[:4])


class Bound:
    """A plugin of pytest: tests end after a bound, in processor seconds, and so does one that takes too many alone."""

    def __init__(self, bound: float, report: Path) -> None:
        self.end = _processor_seconds() + bound
        self.report = report
        self.limit()

    def limit(self) -> None:
        """End this process after further `TEST_BOUND` processor seconds of its own."""
        own = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(own.ru_utime + own.ru_stime + TEST_BOUND)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))

    def pytest_runtest_protocol(self, item: Any) -> None:
        """Ask for the end, or write down which test begins and limit its time."""
        self.report.unlink(missing_ok=True)
        if _processor_seconds() > self.end:
            item.session.shouldstop = "the bound"
        self.limit()
        self.report.write_text(item.nodeid)

    def pytest_sessionfinish(self, session: Any) -> None:
        """Take back the name of the test that ran last, unless one has failed."""
        if not session.testsfailed:
            self.report.unlink(missing_ok=True)
            if session.shouldstop == "the bound":
                session.exitstatus = 0


def _run_tests(tree: Path, arguments: list[str], report: Path, bound: float | None, only: str | None) -> None:
    """Run tests in this process, write down the first that fails, and end."""
    code = 1
    try:
        os.chdir(tree)
        sys.dont_write_bytecode = True  # of two mutants within a second, the second would be taken for the first
        sys.path[:0] = [str(tree / "src"), str(tree)]
        os.environ["PYTHONPATH"] = str(tree / "src")  # for tests that start the command
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        import pytest

        class FirstFailure:
            @pytest.hookimpl
            def pytest_runtest_logreport(self, report: Any) -> None:
                if report.failed:
                    destination.write_text(report.nodeid)

            @pytest.hookimpl
            def pytest_collectreport(self, report: Any) -> None:
                if report.failed:
                    destination.write_text(f"collecting {report.nodeid}")

            @pytest.hookimpl(trylast=True)  # after markers have decided which tests are run
            def pytest_collection_modifyitems(self, items: list[Any]) -> None:
                items[:] = [item for item in items if only in (None, item.nodeid)]

        destination = report
        options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--basetemp", str(tree / "temporary")]
        plugins = [FirstFailure(), *([] if bound is None else [Bound(bound, report)])]
        code = int(pytest.main([*options, *arguments], plugins=plugins))
        if code == pytest.ExitCode.NO_TESTS_COLLECTED and only is None:
            code = 0  # a source without doctests
        import consilience

        if not Path(consilience.__file__).is_relative_to(tree.resolve()):
            report.write_text(f"another consilience was imported, {consilience.__file__}")
            code = 1
    except BaseException as error:
        report.write_text(f"ended by {error!r}")
    finally:
        os._exit(code)


def judge_mutant(
    tree: Path, mutant: Mutant, tests: Sequence[str], timeout: float, **bounds: Any
) -> tuple[str, float, str]:
    """Return the judgement of a mutant, and leave the copy of the tree as it was."""
    target = tree / mutant.file
    original = target.read_text()
    target.write_text(source_of(mutant))
    try:
        return judge(tree, tests, timeout, **bounds)
    finally:
        target.write_text(original)


def copy_of_tree(folder: Path, checkout: Path = ROOT) -> Path:
    """Return a copy of what tests need, with the tests and their settings from a checkout."""
    tree = folder / "tree"
    leave_out = shutil.ignore_patterns("__pycache__", ".git", "*.pyc")
    for name in ("src", "tests", "docs", "experiments", "benchmarks"):
        shutil.copytree((checkout if name == "tests" else ROOT) / name, tree / name, ignore=leave_out)
    for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"):
        shutil.copy((checkout if name == "pyproject.toml" else ROOT) / name, tree / name)
    return tree


def drawn(name: str, size: int, seed: int) -> tuple[int, list[Mutant]]:
    """Return how many mutants a room has, and a sample of them in random order."""
    everything = [mutant for file in files_of(ROOMS[name]) for mutant in mutants_of(file)]
    return len(everything), random.Random(f"{seed} {name}").sample(everything, min(size, len(everything)))  # noqa: S311


# -- Results.


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that the tests run with."""
    return {name: version(name) for name in ("numpy", "scipy", "scikit-learn", "torch", "pytest", "hypothesis")}


def judge_room(tree: Path, name: str, size: int, seed: int) -> dict[str, Any]:
    """Return the judgements of a sample of a room's mutants: by its own tests, then by those of its callers."""
    room = ROOMS[name]
    own, callers = ((*room.tests, *files_of(room)), room.callers)
    seconds = {}
    for tests in (own, callers):
        how, seconds[tests], first = judge(tree, tests, MAX_SECONDS)
        if how != "survived":
            raise SystemExit(f"{name}: tests fail without a fault: {first}")
    count, sample = drawn(name, size, seed)
    judged = []
    for mutant in sample:
        record = asdict(mutant)
        how, _, first = judge_mutant(tree, mutant, (*room.tests, mutant.file), _limit(seconds[own]))
        record |= {"own": how, "callers": how, "now": how, "killed_by": first}
        if how == "survived":
            how, _, first = judge_mutant(tree, mutant, callers, _limit(seconds[callers]))
            record |= {"callers": how, "now": how, "killed_by": first}
        _say(f"{name}: {record['own']}, {how}: {mutant.file}:{mutant.line}: {mutant.change} [{first}]")
        judged.append(record)
    return {"places": count, "tests": list(room.tests), "callers": list(room.callers), "judged": judged}


def _limit(seconds: float) -> float:
    """Return the seconds after which a mutant is killed by time, from those without a fault."""
    return max(MIN_TIMEOUT, TIMEOUT_RATIO * seconds)


def judge_survivors(tree: Path, name: str, judged: list[dict[str, Any]]) -> None:
    """Judge the survivors of a room again, but those that are equivalent or a choice, by all tests of the room."""
    room = ROOMS[name]
    for record in judged:
        if kind_of(record) != "open":
            continue
        mutant = recorded(record)
        if mutant is None:
            continue
        how, _, first = judge_mutant(tree, mutant, (*room.tests, *room.callers, mutant.file), MAX_SECONDS)
        _say(f"{name}: {how}: {mutant.file}:{mutant.line}: {mutant.change} [{first}]")
        record |= {"number": mutant.number, "line": mutant.line, "now": how, "killed_by": first}


def recorded(record: dict[str, Any]) -> Mutant | None:
    """Return the mutant of a record as its file is now; None, and a line that says so, if its place has changed."""
    alike = [
        mutant
        for mutant in (mutants_of(record["file"]) if (ROOT / record["file"]).exists() else [])
        if (mutant.change, mutant.place) == (record["change"], record["place"])
    ]
    if not alike:
        _say(f"the place is written otherwise now: {record['file']}:{record['line']}: {record['change']}")
        return None
    return min(alike, key=lambda one: (abs(one.line - record["line"]), abs(one.number - record["number"])))


def judge_over_all(size: int, seed: int, checkout: Path, label: str, result: Path) -> None:
    """Judge a sample of all mutants of the library by the tests of a checkout, and write the result after each."""
    found: dict[str, Any] = json.loads(result.read_text()) if result.exists() else {}
    sample = found.setdefault(str(seed), {})
    if not sample:
        everything = [
            mutant for path in sorted((ROOT / SRC).rglob("*.py")) for mutant in mutants_of(str(path.relative_to(ROOT)))
        ]
        drawn_mutants = random.Random(f"{seed} all").sample(everything, size)  # noqa: S311
        sample |= {"changes": len(everything), "judged": [asdict(mutant) for mutant in drawn_mutants]}
    settings: dict[str, Any] = {
        "bound": BOUND,
        "test_bound": TEST_BOUND,
        "python": sys.version.split()[0],
        "versions": library_versions(),
    }
    commit = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=checkout, capture_output=True, text=True)  # noqa: S607
    settings |= {"tests": commit.stdout.strip()}
    settings |= {"unreliable": sample.setdefault("settings", {}).get(label, {}).get("unreliable", [])}
    sample["settings"][label] = settings
    passing: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_of_tree(Path(folder), checkout)

        def cost(record: dict[str, Any]) -> tuple[bool, int]:  # first what was killed before, and small rooms
            return not _killers(record), len(tests_of(tree, record["file"]))

        for record in sorted(sample["judged"], key=cost):
            mutant = None if label in record else recorded(record)
            if mutant is None:
                continue
            first = next((test for test in _killers(record) if _kills(tree, mutant, test, passing)), None)
            how, first = ("killed", first) if first else judge_by_room(tree, mutant, passing, settings["unreliable"])
            record[label] = {"how": how, "killed_by": first}
            _say(f"{how}: {mutant.file}:{mutant.line}: {mutant.change} [{first}]")
            sample["summary"] = {one: share_killed(sample["judged"], one) for one in sample["settings"]}
            result.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def judge_by_room(tree: Path, mutant: Mutant, passing: set[str], unreliable: list[str]) -> tuple[str, str]:
    """Return the judgement of a mutant by the tests of its room.

    Tests that fail without the fault, or pass with it when they run alone, as those do that depend on how much else
    the machine does, join `unreliable` and judge nothing.
    """
    tests, left = [mutant.file, *tests_of(tree, mutant.file)], BOUND
    while True:
        options = ["--hypothesis-seed=0", *(f"--deselect={test}" for test in unreliable)]
        before = os.times()
        how, _, first = judge_mutant(tree, mutant, tests, HANGING, bound=left, options=options)
        left -= sum(os.times()[2:4]) - sum(before[2:4])  # processor seconds of processes that have ended
        file = first.removeprefix("collecting ").partition("::")[0]
        if how == "survived" or file not in tests or _kills(tree, mutant, first, passing):
            return how, first
        _say(f"judges nothing: {first}")
        unreliable.append(first)
        tests = tests[tests.index(file) :]


def _killers(record: dict[str, Any]) -> list[str]:
    """Return the tests that killed a mutant before, under other labels."""
    return [made["killed_by"] for made in record.values() if isinstance(made, dict) and made["killed_by"]]


def _kills(tree: Path, mutant: Mutant, test: str, passing: set[str]) -> bool:
    """Return whether a default test passes without the fault and fails with it, alone; `passing` keeps the former."""
    is_collection = test.startswith("collecting ")
    file = test.removeprefix("collecting ").partition("::")[0]
    options = ["--hypothesis-seed=0", *(["--collect-only"] if is_collection else [])]
    bounds: dict[str, Any] = {"bound": BOUND, "options": options, "only": None if is_collection else test}
    if not (tree / file).exists():
        return False
    if test not in passing and judge(tree, [file], HANGING, **bounds)[0] == "survived":
        passing.add(test)
    return test in passing and judge_mutant(tree, mutant, [file], HANGING, **bounds)[0] != "survived"


def share_killed(judged: list[dict[str, Any]], label: str) -> dict[str, Any]:
    """Return how many mutants were killed, and their share of all and of those that make a result worse.

    The others are equivalent, or another choice that is as right (`KINDS`).
    """
    done = [record for record in judged if label in record]
    killed = sum(record[label]["how"] != "survived" for record in done)
    harmless = sum(record[label]["how"] == "survived" and _why(record) in KINDS[:2] for record in done)
    return {
        "judged": len(done), "killed": killed, "harmless": harmless, "share": round(killed / len(done), 3),
        "share_without_harmless": round(killed / (len(done) - harmless), 3),
    }  # fmt: skip


def _why(record: dict[str, Any]) -> str:
    return str(record.get("why", "open")).partition(":")[0]


def kind_of(record: dict[str, Any]) -> str | None:
    """Return what a survivor is, see ``KINDS``; None for a mutant that tests kill."""
    return _why(record) if record["now"] == "survived" else None


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """Return how many mutants of each room were judged and survived: at first, and now."""
    rooms = {name: room["judged"] for name, room in found["rooms"].items()}
    rooms["all"] = [record for judged in rooms.values() for record in judged]
    return {
        name: {
            "judged": len(judged),
            "survived_own_tests": sum(record["own"] == "survived" for record in judged),
            "survived_callers_too": sum(record["callers"] == "survived" for record in judged),
            "survived_now": sum(record["now"] == "survived" for record in judged),
            **{kind: sum(kind_of(record) == kind for record in judged) for kind in KINDS},
        }
        for name, judged in rooms.items()
    }


def main() -> None:
    """Judge mutants as the options say."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=list(ROOMS))
    parser.add_argument("--sample", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--survivors", action="store_true")
    parser.add_argument("--over-all", type=int, metavar="SIZE", help="one sample of this size from all files")
    parser.add_argument("--tests", type=Path, default=ROOT, metavar="CHECKOUT")
    parser.add_argument("--label", default="before")
    parser.add_argument("--result", type=Path)
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    for library in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(library)
    if options.over_all:
        result = options.result or SAMPLE_RESULT
        judge_over_all(options.over_all, options.seed, options.tests.resolve(), options.label, result)
    else:
        judge_rooms(options, options.result or RESULT)


def judge_rooms(options: argparse.Namespace, result: Path) -> None:
    """Judge a sample of each room, or its recorded survivors, and write the result after every room."""
    found: dict[str, Any] = json.loads(result.read_text()) if result.exists() else {"rooms": {}}
    for name in options.rooms:
        with tempfile.TemporaryDirectory() as folder:
            tree = copy_of_tree(Path(folder))
            if options.survivors:
                judge_survivors(tree, name, found["rooms"][name]["judged"])
                found["rooms"][name]["tests_now"] = [*ROOMS[name].tests, *ROOMS[name].callers]
            else:
                found["rooms"][name] = judge_room(tree, name, options.sample, options.seed)
        found["settings"] = {
            "tool": "benchmarks/mutation.py", "seed": options.seed, "sample": options.sample,
            "timeout_ratio": TIMEOUT_RATIO, "python": sys.version.split()[0], "versions": library_versions(),
        }  # fmt: skip
        found["rooms"] = {room: found["rooms"][room] for room in ROOMS if room in found["rooms"]}
        found = {"settings": found["settings"], "summary": summary(found), "rooms": found["rooms"]}
        result.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
