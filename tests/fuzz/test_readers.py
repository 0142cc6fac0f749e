"""Files of strangers: whatever they hold, a reader reads or refuses, in seconds, in memory in proportion to the file.

`benchmarks/fuzzing.py` is the same with a hundred thousand mutants, and with resident memory.
"""

import json
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import consilience as cs
from consilience.posteriors.files import read_posterior, write_posterior
from tests.fuzz import heavy, mutants, reading

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=20,
)
FIELDS = st.sampled_from(
    ["family", "source", "counts", "features", "attached", "provenance", "symmetry", "parameters", "aliases", "format"]
)
quickly = settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.fixture
def traced():
    tracemalloc.start()
    yield
    tracemalloc.stop()


def troubles(path, seed, content):
    """What readers did that they should not."""
    path = path.with_suffix(".json") if seed.endswith(".json") else path
    path.write_bytes(content)
    found = []
    for reader in reading.readers(seed):
        said, crash, seconds, peak = reading.outcome(path, reader)
        if said == "crashed" or reading.too_much(len(content), seconds, peak):
            found.append((seed, crash, seconds, peak, len(content)))
    return found


@pytest.mark.parametrize("seed", mutants.seeds())
def test_honest_files_are_read(tmp_path, seed, traced):
    path = tmp_path / seed
    path.write_bytes(mutants.seeds()[seed])
    for reader in reading.readers(seed)[seed == "checkpoint" :]:  # a checkpoint without symmetry is not loaded
        assert reading.outcome(path, reader)[0] == "read"


@pytest.mark.parametrize("start", range(0, 120, 40))
def test_mutants_are_read_or_refused(tmp_path, start, traced):
    assert [t for n in range(start, start + 40) for t in troubles(tmp_path / "m", *mutants.mutant(n))] == []


@pytest.mark.slow
def test_many_mutants_are_read_or_refused(tmp_path, traced):
    assert [t for n in range(100_000, 102_000) for t in troubles(tmp_path / "m", *mutants.mutant(n))] == []


@given(seed=st.sampled_from([name for name in mutants.seeds() if name != "checkpoint"]), field=FIELDS, value=VALUES)
@quickly
def test_any_value_in_any_field_is_read_or_refused(tmp_path_factory, seed, field, value):
    content = mutants.seeds()[seed]
    if seed.endswith(".json"):
        changed = json.dumps(json.loads(content) | {field: value}).encode()
    else:
        header, document, data = mutants.taken_apart(content)
        changed = mutants.put_together(header, document | {field: value}, data)
    tracemalloc.start()
    try:
        assert troubles(tmp_path_factory.mktemp("any") / "m", seed, changed) == []
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", [*heavy.DOCUMENTS, *heavy.HEADERS])
@pytest.mark.parametrize("taken", [True, False], ids=["padded", "bare"])
def test_small_things_in_great_number_cost_no_more_than_they_may(tmp_path, name, taken, traced):
    content = heavy.heavy(name, 600, taken=taken)
    assert troubles(tmp_path / "m", "wishart", content) == []


def test_a_fused_file_of_very_many_sites_is_padded_so_that_it_can_be_read(tmp_path):
    family = cs.families.Gamma()
    posterior = cs.Posterior(family, family.to_natural(shape=[2.0], rate=[1.0]))
    inputs = [{"name": f"site-{n}", "components": 1, "weight": 1.0, "labels": [0]} for n in range(7000)]
    made = {"method": "kl", "options": {}, "seed": 1, "inputs": inputs, "result": {}, "versions": {}}
    path = tmp_path / "fused.safetensors"
    write_posterior(path, posterior, made)
    assert read_posterior(path)[1]["inputs"] == inputs
