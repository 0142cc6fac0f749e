"""Examples of the gallery: short, those of Hugging Face libraries run, and their weights are those of the record."""

import ast
import hashlib
import io
import json
import os
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

GALLERY = Path(__file__).parents[1] / "docs" / "gallery"
EXAMPLES = sorted((GALLERY / "examples").glob("*.py"))
LIBRARIES = {"peft", "transformers"}
"""Which only development needs. Building the pages runs all examples; those of these libraries are slow tests too."""
MAX_LINES = 40
"""Lines of code without docstrings, comments and blank lines (docs/adr/0052)."""
MAX_BYTES = 1_500_000
"""Of all weights: a clone and a source distribution carry them."""
NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def lines_of_code(text):
    """Return the number of lines without docstrings, comments and blank ones.

    Examples
    --------
    >>> lines_of_code('\"\"\"A title.\"\"\"\\n\\n# a comment\\nx = 1\\n')
    1
    """
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, documented) and ast.get_docstring(node)]
    docstrings = {line for node in nodes for line in range(node.body[0].lineno, node.body[0].end_lineno + 1)}
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in NO_CODE]
    return len({line for token in tokens for line in range(token.start[0], token.end[0] + 1)} - docstrings)


def imported_libraries(path):
    """Return the names of the packages that an example imports."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return {name.partition(".")[0] for name in names}


def test_examples_have_at_most_forty_lines_of_code():
    lengths = {path.name: lines_of_code(path.read_text()) for path in EXAMPLES}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_weights_are_those_that_their_experiment_recorded():
    paths = list((GALLERY / "weights").iterdir())
    recorded = json.loads((GALLERY / "weights" / "weights.json").read_text())["files"]
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if path.suffix != ".json"}
    assert digests == {name: entry["sha256"] for name, entry in recorded.items()}
    assert sum(path.stat().st_size for path in paths) <= MAX_BYTES


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [path for path in EXAMPLES if imported_libraries(path) & LIBRARIES], ids=lambda path: path.stem
)
def test_examples_of_hugging_face_libraries_run(path):
    for library in sorted(imported_libraries(path) & LIBRARIES):
        pytest.importorskip(library)
    environment = os.environ | {"MPLBACKEND": "agg"}
    done = subprocess.run(
        [sys.executable, path.name], cwd=path.parent, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
