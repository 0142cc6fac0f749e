"""Sphinx configuration; `make docs` builds with warnings as errors."""

import doctest
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from consilience import families
from consilience.api import evaluate, scores
from consilience.bayesian import predictive, predictive_scores
from consilience.core import evaluation

EVALUATION = (evaluate, scores, evaluation, predictive, predictive_scores)

project = "consilience"
author = "The consilience authors"
project_copyright = author
release = version = installed_version("consilience")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinxcontrib.bibtex",
]
exclude_patterns = ["_build"]

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say types together with shapes and units
napoleon_google_docstring = False
napoleon_numpy_docstring = True
napoleon_use_ivar = True
python_use_unqualified_type_names = True
# Words of types, such as "shape" in "ndarray of shape (n,)", are looked up, and are attributes of several classes too.
suppress_warnings = ["ref.python"]

bibtex_bibfiles = ["refs.bib"]
bibtex_default_style = "unsrt"
bibtex_reference_style = "author_year"

html_theme = "furo"
html_title = f"consilience {release}"


def document_once(app: Sphinx, what: str, name: str, obj: object, skip: bool, options: Any) -> bool | None:
    """Leave to their sections what families and evaluation give, though `import consilience` gives it too."""
    if what == "module" and app.env.temp_data.get("autodoc:module") == "consilience":
        elsewhere = [value for module in (families, *EVALUATION) for value in vars(module).values()]
        if any(obj is other for other in elsewhere):
            return True
    return None


def keep_bars(_app: Sphinx, _what: str, _name: str, _obj: object, _options: Any, lines: list[str]) -> None:
    """Escape the bars of norms and determinants, which reStructuredText would take for substitutions."""
    for number, line in enumerate(lines):
        parts = line.split("``")
        parts[::2] = [part.replace("|", "\\|") for part in parts[::2]]
        lines[number] = "``".join(parts)


def write_example_report(app: Sphinx, error: Exception | None) -> None:
    """Run the example of the page on two dimensions and put the report that it describes beside the page."""
    if error is None and app.builder.name == "html":
        text = (Path(app.srcdir) / "two_dimensions.md").read_text(encoding="utf-8")
        example = doctest.DocTestParser().get_doctest(text, {}, "two_dimensions", "two_dimensions.md", 0)
        options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
        if doctest.DocTestRunner(optionflags=options).run(example, clear_globs=False).failed:
            raise RuntimeError("two_dimensions.md: its example fails")
        example.globs["fusion"].report(Path(app.outdir) / "two_dimensions_report.html")


def setup(app: Sphinx) -> None:
    """Connect what autodoc asks at each member, and what is made beside the pages."""
    app.connect("build-finished", write_example_report)
    app.connect("autodoc-skip-member", document_once)
    app.connect("autodoc-process-docstring", keep_bars, priority=400)
