"""What holds for every merge of checkpoints, whatever the method, the types and the files."""

import hashlib
import json
import tracemalloc

import pytest
import torch

import consilience as cs
from consilience.checkpoints.header import header_bytes, read_header
from consilience.checkpoints.methods import make_tensor_method
from consilience.checkpoints.methods.base import BLOCK_ENTRIES
from consilience.checkpoints.recipe import as_rules
from consilience.checkpoints.request import MergeRequest, prepare
from consilience.checkpoints.run import run
from consilience.core.progress import silent
from tests.checkpoints.methods_zoo import NAMES, SPECIMENS, factors, information
from tests.checkpoints.some_checkpoints import read, same_bits, tensors, write

pytestmark = pytest.mark.covering(2)

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


def three(folder, dtype=torch.bfloat16):
    """Write a start and two models trained from it."""
    start = tensors(0, dtype)
    write(folder / "base", start)
    for seed, name in ((1, "a"), (2, "b")):
        write(folder / name, tensors(seed, dtype, start))
    return folder / "base", [folder / "a", folder / "b"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weights", [None, [3, 1, 1]])
def test_the_average_of_copies_is_the_model_to_the_last_bit(tmp_path, dtype, weights):
    state = tensors(0, dtype)
    state["model.norm.weight"][:4] = torch.tensor([0.0, -0.0, 1.0, -1.0]).to(dtype)
    write(tmp_path / "a", state)
    done = cs.merge([tmp_path / "a"] * 3, tmp_path / "out", weights=weights)
    assert same_bits(read(done.output), state)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_model_of_all_the_weight_is_the_average(tmp_path, dtype):
    states = [tensors(seed, dtype) for seed in (0, 1)]
    paths = [write(tmp_path / name, state) for name, state in zip("ab", states, strict=True)]
    for number, weights in enumerate(([1, 0], [0, 1])):
        done = cs.merge(paths, tmp_path / f"out{number}", weights=weights)
        assert same_bits(read(done.output), states[number])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_ends_of_an_arc_are_the_models(tmp_path, dtype):
    states = [tensors(seed, dtype) for seed in (0, 1)]
    paths = [write(tmp_path / name, state) for name, state in zip("ab", states, strict=True)]
    for number, t in enumerate((0, 1)):
        assert same_bits(read(cs.merge(paths, tmp_path / f"out{number}", "slerp", t=t).output), states[number])


EVERY = [pytest.param(name, *case, id=case_id) for name in NAMES for case_id, case in SPECIMENS.get(name, {}).items()]


def given(base, models, extra):
    """Return keyword arguments; the base, and files of information beside each model, where they are asked for."""
    told = {key: value for key, value in extra.items() if key not in ("base", "fishers", "factors", "models")}
    if extra.get("base"):
        told["base"] = base
    for key, write_file in (("fishers", information), ("factors", factors)):
        if extra.get(key):
            told["fishers"] = [
                write_file(base.parent / f"{model.name}.fisher.safetensors", model.name) for model in models
            ]
    return told


@pytest.mark.parametrize(("method", "options", "extra"), EVERY)
def test_neither_files_nor_pieces_nor_threads_change_a_byte(tmp_path, method, options, extra):
    base, models = three(tmp_path)
    models = models[: extra.get("models", 2)]
    start, states = read(base), [read(model) for model in models]
    once = read(cs.merge(models, tmp_path / "once", method, **given(base, models, extra), **options).output)
    assert once["model.layers.0.mlp.up_proj.weight"].numel() > BLOCK_ENTRIES
    write(tmp_path / "split" / "base", start, shards=2)
    split = [tmp_path / "split" / model.name for model in models]
    for path, state, shards in zip(split, states, (3, 2), strict=False):
        write(path, state, shards=shards)
    arguments = given(tmp_path / "split" / "base", split, extra)
    done = cs.merge(split, tmp_path / "sharded", method, **arguments, **options, shard_bytes=2000, threads=3)
    assert len(done.plan.shards) > 2
    assert same_bits(read(done.output), once)
    chosen = make_tensor_method(method, options)
    start_of = base if extra.get("base") else None
    fishers = given(base, models, extra).get("fishers", ())
    request = MergeRequest(tuple(models), chosen, options, start_of, weights=extra.get("weights"), fishers=fishers)
    prepared = prepare(request, tmp_path / "pieces")
    run(prepared, tmp_path / "pieces", True, silent, threads=1, piece=BLOCK_ENTRIES)
    assert same_bits(read(tmp_path / "pieces"), once)
    one, two = (tmp_path / name / "model.safetensors" for name in ("once", "pieces"))
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("method", ["average", "ties", "task_arithmetic"])
def test_the_order_of_models_with_their_weights_changes_nothing_but_rounding(tmp_path, method):
    base, models = three(tmp_path, torch.float32)
    extra = {} if method == "average" else {"base": base}
    one = read(cs.merge(models, tmp_path / "one", method, weights=[2, 1], **extra).output)
    two = read(cs.merge(models[::-1], tmp_path / "two", method, weights=[1, 2], **extra).output)
    for name, values in one.items():
        assert torch.allclose(values, two[name], rtol=2**-23, atol=2**-40)


@pytest.mark.parametrize("method", ["ties", "task_arithmetic", "dare"])
def test_one_model_with_all_of_its_change_is_the_start_plus_that(tmp_path, method):
    base, models = three(tmp_path)
    options = {} if method == "task_arithmetic" else {"density": 1.0}
    start, state = read(base), read(models[0])
    whole = read(cs.merge(models[:1], tmp_path / "whole", method, base=base, **options).output)
    assert same_bits(whole, state)
    half = read(cs.merge(models[:1], tmp_path / "half", method, base=base, scaling=0.5, **options).output)
    for name, values in half.items():
        wanted = start[name].double() + 0.5 * (state[name].double() - start[name].double())
        assert torch.equal(values, wanted.to(torch.bfloat16))


def test_a_change_that_is_dropped_at_random_is_unbiased_and_the_same_for_the_same_seed(tmp_path):
    base, models = three(tmp_path, torch.float32)
    start, state = read(base), read(models[0])
    density, seeds = 0.25, 12
    total = dict.fromkeys(start, 0.0)
    for seed in range(seeds):
        done = cs.merge(models[:1], tmp_path / "out", "dare", base=base, density=density, rng=seed, overwrite=True)
        for name, values in read(done.output).items():
            total[name] = total[name] + (values.double() - start[name].double())
    pulls = []
    for name, sums in total.items():
        change = state[name].double() - start[name].double()
        deviation = change.abs() * ((1 - density) / density / seeds) ** 0.5
        pulls.append(((sums / seeds - change) / deviation.clamp(min=1e-12)).flatten())
    pull = torch.cat(pulls)
    assert abs(float(pull.mean())) < 5 / len(pull) ** 0.5
    assert abs(float(pull.std()) - 1) < 0.02  # of 142,000 draws
    again = cs.merge(models[:1], tmp_path / "again", "dare", base=base, density=density, rng=seeds - 1)
    assert same_bits(read(again.output), read(done.output))


def test_patterns_say_what_is_different_for_some_tensors(tmp_path):
    _, models = three(tmp_path)
    states = [read(model) for model in models]
    patterns = [
        {"pattern": "lm_head.*", "method": "copy", "from": 1},
        {"pattern": "*.mlp.up*", "weights": [1, 0]},
        {"pattern": "*.mlp.*", "method": "slerp", "options": {"t": 1.0}},
    ]
    found = read(cs.merge(models, tmp_path / "out", patterns=patterns).output)
    assert torch.equal(found["lm_head.weight"], states[1]["lm_head.weight"])
    assert torch.equal(found["model.layers.1.mlp.up_proj.weight"], states[0]["model.layers.1.mlp.up_proj.weight"])
    name = "model.layers.0.mlp.down_proj.weight"
    assert torch.equal(found[name], states[1][name])
    wide = read(cs.merge(models, tmp_path / "wide", patterns=patterns, dtype="float32").output)
    assert torch.equal(wide["lm_head.weight"], states[1]["lm_head.weight"].float())
    name = "model.norm.weight"
    assert torch.equal(found[name], ((states[0][name].double() + states[1][name].double()) / 2).to(torch.bfloat16))


@pytest.mark.parametrize("dtype", ["float32", "float16", "float8_e4m3fn"])
def test_the_type_of_the_output_can_be_chosen_and_the_configuration_says_it(tmp_path, dtype):
    _, models = three(tmp_path)
    states = [read(model) for model in models]
    out = cs.merge(models, tmp_path / "out", dtype=dtype).output
    for name, values in read(out).items():
        mean = (states[0][name].double() + states[1][name].double()) / 2
        assert torch.equal(values.float(), mean.float().to(getattr(torch, dtype)).float())
    assert json.loads((out / "config.json").read_text())["torch_dtype"] == dtype


def test_a_folder_comes_out_as_it_went_in_with_a_card_and_digests(tmp_path):
    _, models = three(tmp_path)
    (models[0] / "modeling_toy.py").write_text("raise SystemExit")
    (models[0] / "pytorch_model.bin").write_bytes(b"\x80pickle")
    done = cs.merge(models, tmp_path / "out", weights=[3, 1], shard_bytes="100kB")
    names = {path.name for path in done.output.iterdir()}
    shards = {shard.name for shard in done.plan.shards}
    assert names == shards | {
        "config.json", "tokenizer.json", "README.md", "merge.json", "model.safetensors.index.json"
    }  # fmt: skip
    index = json.loads((done.output / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == read(done.output).keys()
    card = (done.output / "README.md").read_text()
    for file in [*(model / "model.safetensors" for model in models), *(done.output / name for name in shards)]:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        assert digest in card
    assert done.digests == {name: hashlib.sha256((done.output / name).read_bytes()).hexdigest() for name in shards}
    assert json.loads((done.output / "merge.json").read_text()) == json.loads(json.dumps(done.provenance))
    assert str(tmp_path) not in card
    assert any("modeling_toy.py" in note for note in done.notes)
    assert (done.output / "config.json").read_bytes() == (models[0] / "config.json").read_bytes()


def test_the_same_merge_is_the_same_bytes_wherever_it_is_written(tmp_path):
    base, models = three(tmp_path)
    for name in ("one", "two"):
        cs.merge(models, tmp_path / name, "dare", base=base, shard_bytes="100kB", rng=7)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_transformers_style_readers_find_their_metadata(tmp_path):
    from safetensors import safe_open

    _, models = three(tmp_path)
    done = cs.merge(models, tmp_path / "out.safetensors")
    with safe_open(done.output, "np") as file:
        assert file.metadata() == {"format": "pt"}
    assert json.loads((tmp_path / "out.merge.json").read_text())["recipe"]["method"] == "average"


def test_a_dry_run_reads_headers_and_writes_nothing(tmp_path):
    _, models = three(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    plan = cs.merge(models, tmp_path / "out", dtype="float32", dry_run=True).plan
    assert sorted(tmp_path.rglob("*")) == before
    done = cs.merge(models, tmp_path / "out", dtype="float32")
    assert plan.bytes_out == sum(path.stat().st_size for path in done.output.glob("*.safetensors"))
    assert plan.bytes_in == 2 * sum(values.nbytes for values in read(models[0]).values())
    assert plan.tensors == len(read(models[0]))


def test_tensors_start_at_a_multiple_of_their_width(tmp_path):
    state = {
        "a": torch.tensor([True]), "b": torch.zeros(3, dtype=torch.bfloat16), "c": torch.zeros(2, dtype=torch.float64),
        "d": torch.zeros((), dtype=torch.int64), "e": torch.zeros(0, 4), "f": torch.zeros(5, dtype=torch.float32),
    }  # fmt: skip
    path = write(tmp_path / "a", state)
    found = cs.merge([path, path], tmp_path / "out").output
    assert same_bits(read(found), state)
    for stored in read_header(found / "model.safetensors").tensors.values():
        assert not stored.size or stored.start % (stored.nbytes // stored.size) == 0


def test_a_method_can_be_given_as_a_value(tmp_path):
    base, models = three(tmp_path)
    one = cs.merge(models, tmp_path / "one", cs.methods.TIES(density=0.4), base=base)
    two = cs.merge(models, tmp_path / "two", "ties", base=base, density=0.4)
    assert same_bits(read(one.output), read(two.output))
    assert one.provenance == two.provenance
    with pytest.raises(cs.errors.OptionError, match="belong inside TIES"):
        cs.merge(models, tmp_path / "three", cs.methods.TIES(), base=base, density=0.4)


def test_rules_are_checked_where_they_are_given():
    assert as_rules(None) == ()
    with pytest.raises(cs.errors.OptionError, match="number 1 is not valid"):
        as_rules([{"pattern": "*"}, {"patern": "*"}])


@pytest.mark.parametrize("method", ["average", pytest.param("slerp", marks=pytest.mark.slow)])
def test_memory_is_that_of_the_plan_and_not_of_the_models(tmp_path, method):
    size = 60_000_000
    paths = [tmp_path / f"{name}.safetensors" for name in "ab"]
    for path in paths:  # one tensor of 120 MB of zeros, which take no room on the disk
        with path.open("wb") as stream:
            stream.write(header_bytes([("w", "BF16", (size,), 2 * size)], {}))
            stream.truncate(stream.tell() + 2 * size)
    plan = cs.merge(paths, tmp_path / "out.safetensors", method, dry_run=True).plan
    assert plan.memory < 2 * size
    tracemalloc.start()
    try:
        cs.merge(paths, tmp_path / "out.safetensors", method)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < plan.memory
