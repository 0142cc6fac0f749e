"""Sphinx configuration; `make docs` builds with warnings as errors, and needs no network."""

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

from house_docs import write_inventories  # noqa: E402  (the folder is on the path only now)

project = "consilience"
author = "The consilience authors"
project_copyright = author
release = version = installed_version("consilience")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "sphinxcontrib.bibtex",
    "sphinxext.opengraph",
    "house_docs",
]
exclude_patterns = ["_build", "_ext", "_templates", "gallery/examples", "gallery/generated/*.ipynb"]
templates_path = ["_templates"]

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say types together with shapes and units
autosummary_imported_members = True  # the public modules take their names from the rooms
# A class and a function whose names differ in case alone, apart on file systems that know no case.
autosummary_filename_map = {
    f"consilience.{name}": f"consilience.{name}.class"
    for name in ("Symmetry", "draws.diagnostics.Overlap", "networks.landscape.Barrier", "networks.landscape.Plane")
}
napoleon_google_docstring = False
napoleon_numpy_docstring = True
napoleon_use_ivar = True
python_use_unqualified_type_names = True
# Words of types, such as "shape" in "ndarray of shape (n,)", are looked up, and are attributes of several classes too.
suppress_warnings = ["ref.python"]

sphinx_gallery_conf = {
    "examples_dirs": "gallery/examples",
    "gallery_dirs": "gallery/generated",
    "filename_pattern": r"\.py$",  # all of them run
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "min_reported_time": 15,
    "download_all_examples": False,
    "show_memory": False,
    "write_computation_times": False,
    "capture_repr": ("_repr_html_",),
    "show_signature": False,
    "remove_config_comments": True,
}

intersphinx_mapping = write_inventories(HERE / "intersphinx.txt", HERE / "_build" / "inventories")

bibtex_bibfiles = ["refs.bib"]
bibtex_default_style = "unsrt"
bibtex_reference_style = "author_year"

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = f"consilience {release}"
html_split_index = True
html_static_path = ["_static"]
html_css_files = ["consilience.css"]
html_js_files = ["scrolling.js"]
mathjax_path = "katex/render.js"  # formulas are drawn by KaTeX, which lies in _static
mathjax_options = {"defer": "defer"}
ogp_site_url = ""  # the address where the pages are published: none yet
ogp_social_cards = {"enable": False}
