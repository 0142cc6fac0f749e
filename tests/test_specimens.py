"""Every entry of a table of the library has its specimen, so that the laws run on it; no specimen is without an entry.

A table is what says of itself that a new one is one file and one line, or one entry.
"""

import ast
import itertools
import re
from pathlib import Path

import pytest

import consilience
from tests.api import kinds_zoo
from tests.checkpoints import methods_zoo as checkpoint_methods
from tests.draws import methods_zoo as draws_methods
from tests.estimators import estimators_zoo
from tests.families import zoo as families
from tests.federated import request_kinds_zoo as request_kinds
from tests.networks import methods_zoo as network_methods
from tests.networks.gaussian import methods_zoo as bayesian_methods
from tests.networks.gaussian import readers_zoo
from tests.posteriors import adapters_zoo
from tests.posteriors import methods_zoo as posterior_methods
from tests.specimens import Specimens

TABLES = {
    "families.FAMILIES": (families.NAMES, families.ZOO),
    "posteriors.methods.METHODS": (posterior_methods.NAMES, posterior_methods.SPECIMENS),
    "networks.methods.NETWORK_METHODS": (network_methods.NAMES, network_methods.SPECIMENS),
    "networks.gaussian.methods.BAYESIAN_METHODS": (bayesian_methods.NAMES, bayesian_methods.SPECIMENS),
    "draws.methods.DRAWS_METHODS": (draws_methods.NAMES, draws_methods.SPECIMENS),
    "checkpoints.methods.TENSOR_METHODS": (checkpoint_methods.NAMES, checkpoint_methods.SPECIMENS),
    "posteriors.adapters.table.ADAPTERS": (adapters_zoo.KINDS, adapters_zoo.SPECIMENS),
    "networks.gaussian.readers.table.BAYESIAN_ADAPTERS": (readers_zoo.KINDS, readers_zoo.SPECIMENS),
    "estimators.adapters.table.ESTIMATORS": (estimators_zoo.KINDS, estimators_zoo.SPECIMENS),
    "api.kinds.KINDS": (kinds_zoo.KIND_NAMES, kinds_zoo.OBJECTS),
    "api.kinds.FORMATS": (kinds_zoo.FORMAT_NAMES, kinds_zoo.FILES),
    "federated.requests.table.REQUEST_KINDS": (request_kinds.NAMES, request_kinds.SPECIMENS),
}
SOURCES = Path(consilience.__file__).parent
SAYS_SO = re.compile(r"\bnew (one|method|\w+) is one file and one (line|entry) here|^Every (kind|format of files)\b")

SAYS_SO_SOMEWHERE = re.compile(r"is one file and one|Every (kind|format of files)\b")
"""What a file says that may hold a table: only these are parsed."""


def tables_in(path):
    """Return the names that a module assigns and says to be tables."""
    text = path.read_text()
    body = ast.parse(text).body if SAYS_SO_SOMEWHERE.search(text) else []
    for statement, after in itertools.pairwise(body):
        said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and str(after.value.value)
        if isinstance(statement, ast.AnnAssign | ast.Assign) and said and SAYS_SO.search(said):
            target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
            yield target.id


@pytest.mark.parametrize("table", TABLES)
def test_every_entry_has_its_specimen_and_every_specimen_its_entry(table):
    entries, specimens = TABLES[table]
    assert specimens.problems(entries) == []


def test_every_table_is_looked_at():
    found = set()
    for path in sorted(SOURCES.rglob("*.py")):
        parts = [part for part in path.relative_to(SOURCES).with_suffix("").parts if part != "__init__"]
        found |= {".".join([*parts, name]) for name in tables_in(path)}
    assert found == set(TABLES), "say in TABLES of tests/test_specimens.py where the specimens of a new table are"


@pytest.mark.parametrize("table", TABLES)
def test_the_place_that_a_newcomer_is_sent_to_exists(table):
    mapping, _, path = TABLES[table][1].place.partition(" in ")
    assert f"{mapping}" in (Path(__file__).parents[1] / path).read_text()


def test_a_newcomer_is_asked_for_a_specimen():
    made = Specimens("ZOO in tests/zoo.py", {"lion": 1, "dodo": 2})
    assert made.problems(["lion", "tiger", "lion"]) == [
        "two entries are called 'lion'",
        "no specimen of 'tiger': add one to ZOO in tests/zoo.py, so that the laws run on it",
        "'dodo' in ZOO in tests/zoo.py: the table has no such entry",
    ]
    assert made.problems(["lion", "dodo"]) == []
    with pytest.raises(LookupError, match=r"no specimen of .tiger.: add one to ZOO in tests/zoo\.py"):
        made["tiger"]
