"""Files of strangers: whatever they hold, a reader reads or refuses, in seconds, in memory in proportion to the file.

`benchmarks/fuzzing.py` is the same with 2,000 mutants of each format, and with resident memory.
"""

import json
import shutil
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import consilience as cs
from consilience.api.kinds import inspect_file
from consilience.files.limits import Limits, exceeded_limits
from consilience.networks.files import read_symmetry
from consilience.posteriors.files import read_posterior, write_posterior
from tests.fuzz import formats, heavy, mutants, reading

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


def troubles(folder, name, numbers):
    """Return what readers of a format did with changed copies that they should not."""
    found = []
    for number in numbers:
        place = folder / f"{number}"
        place.mkdir()
        found += [(name, number, *one) for one in formats.outcomes(name, number, place) if one[-1]]
        shutil.rmtree(place)
    return found


@pytest.mark.parametrize("name", formats.FORMATS)
def test_honest_files_are_read(tmp_path, name, traced):
    formats.write_honest(name, tmp_path)
    for reader in formats.FORMATS[name].readers[name == "checkpoint" :]:  # one without symmetry is not loaded
        assert reading.outcome(tmp_path, reader)[0] == "read"


@pytest.mark.parametrize("name", formats.FORMATS)
def test_mutants_are_read_or_refused(tmp_path, name, traced):
    assert troubles(tmp_path, name, range(8)) == []


ONCE_TOO_MUCH = [
    ("recipe", 100_067), ("npy", 10_317), ("draws", 10_613), ("draws", 10_668), ("fused draws", 10_600),
    ("fisher", 11_377), ("adapter config", 11_381), ("sums", 11_966), ("parquet", 11_655), ("parquet", 11_987),
]  # fmt: skip
"""Copies that crashed a reader, or took too much, in long runs of benchmarks/fuzzing.py."""


@pytest.mark.parametrize(("name", "number"), ONCE_TOO_MUCH)
def test_what_was_too_much_once_is_read_or_refused(tmp_path, name, number, traced):
    assert troubles(tmp_path, name, [number]) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", formats.FORMATS)
def test_many_mutants_are_read_or_refused(tmp_path, name, traced):
    assert troubles(tmp_path, name, range(100_000, 100_100)) == []


def loaded(path, content):
    """Return what loading and inspecting a file does that it should not."""
    path.write_bytes(content)
    inspect = [inspect_file, lambda path: exceeded_limits(path, Limits())]
    readers = [read_symmetry, inspect_file] if path.suffix == ".json" else [cs.load, *inspect]
    found = [reading.outcome(path, reader) for reader in readers]
    return [one for one in found if one[0] in ("crashed", "hung") or reading.too_much(len(content), *one[2:])]


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
        folder = tmp_path_factory.mktemp("any")
        assert loaded(folder / ("m.json" if seed.endswith(".json") else "m"), changed) == []
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", [*heavy.DOCUMENTS, *heavy.HEADERS])
@pytest.mark.parametrize("taken", [True, False], ids=["padded", "bare"])
def test_small_things_in_great_number_cost_no_more_than_they_may(tmp_path, name, taken, traced):
    content = heavy.heavy(name, 600, taken=taken)
    assert loaded(tmp_path / "m", content) == []


def test_a_fused_file_of_very_many_sites_is_padded_so_that_it_can_be_read(tmp_path):
    family = cs.families.Gamma()
    posterior = cs.Posterior(family, family.to_natural(shape=[2.0], rate=[1.0]))
    inputs = [{"name": f"site-{n}", "components": 1, "weight": 1.0, "labels": [0]} for n in range(7000)]
    made = {"method": "kl", "options": {}, "seed": 1, "inputs": inputs, "result": {}, "versions": {}}
    path = tmp_path / "fused.safetensors"
    write_posterior(path, posterior, made)
    assert read_posterior(path)[1]["inputs"] == inputs
