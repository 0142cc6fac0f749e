"""Merges of files agree with fusions in memory: complex tensors, integers, constants, counters, names."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import consilience as cs
from consilience.checkpoints.output import partial_folder
from tests.checkpoints.some_checkpoints import write
from tests.networks.state_dicts import CONSTANTS, ENTRIES, INF, NAN, same_bits, state

BASED = {"ties": {"density": 0.5}, "dare": {"density": 0.5}, "task_arithmetic": {}}
PIECES = 2_000_000  # entries of a tensor that is read in more than one piece


def files(folder, states):
    """Write state dicts as files, and return their paths."""
    paths = [folder / f"{number}.safetensors" for number in range(len(states))]
    for path, one in zip(paths, states, strict=True):
        save_file(one, path)
    return paths


def merged(folder, states, method="average", **options):
    done = cs.merge(files(folder, states), folder / "out.safetensors", method, **options)
    return load_file(done.output), done


@pytest.mark.parametrize("kind", ENTRIES)
def test_a_merge_of_files_is_the_fusion_of_their_state_dicts(tmp_path, kind):
    states = [state(kind, seed) for seed in (0, 1)]
    found, _ = merged(tmp_path, states)
    fused = cs.fuse(states, "average").model
    assert found.keys() == fused.keys()
    for name, values in found.items():
        same = same_bits(values, torch.as_tensor(fused[name]))
        assert same or torch.allclose(values, torch.as_tensor(fused[name]), rtol=1e-3 if values.itemsize == 2 else 1e-6)


@pytest.mark.parametrize("kind", ENTRIES)
def test_copies_of_a_file_merge_to_it_to_the_bit(tmp_path, kind):
    one = state(kind, 0)
    found, _ = merged(tmp_path, [one, {name: values.clone() for name, values in one.items()}])
    assert all(same_bits(values, one[name]) for name, values in found.items())


@pytest.mark.parametrize("method", BASED)
def test_constants_pass_methods_that_look_at_a_base(tmp_path, method):
    states = [state("causal mask", seed) for seed in range(3)]
    base = files(tmp_path / "base", states[2:]) if (tmp_path / "base").mkdir() is None else []
    found, _ = merged(tmp_path, states[:2], method, base=base[0], **BASED[method])
    assert torch.equal(found["entry"], CONSTANTS["causal mask"])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_output_keeps_complex_types_and_infinities_in_another_type(tmp_path, dtype):
    states = [state("complex64", seed) | {"mask": CONSTANTS["causal mask"]} for seed in (0, 1)]
    found, _ = merged(tmp_path, states, dtype=dtype)
    assert found["entry"].dtype == torch.complex64
    assert torch.equal(found["mask"], CONSTANTS["causal mask"].to(getattr(torch, dtype)))


def test_complex_means_are_weighted(tmp_path):
    a, b = (state("complex64", seed)["entry"] for seed in (0, 1))
    found, _ = merged(tmp_path, [{"w": a}, {"w": b}], weights=[3, 1])
    torch.testing.assert_close(found["w"], 0.75 * a + 0.25 * b)


@pytest.mark.parametrize("name", ["truth values", "indices", "small integers"])
def test_integers_that_differ_are_refused_and_a_pattern_copies_them(tmp_path, name):
    states = [
        {"w": torch.ones(2), "entry": values.contiguous()} for values in (CONSTANTS[name], CONSTANTS[name].flip(-1))
    ]
    with pytest.raises(
        cs.errors.InputError, match=r"1\.safetensors: entry is not the same as in .*0\.safetensors.*pattern"
    ):
        merged(tmp_path, states)
    assert not (tmp_path / "out.safetensors").exists()
    assert not partial_folder(tmp_path / "out.safetensors").exists()
    found, _ = merged(tmp_path, states, patterns=[{"pattern": "entry", "method": "copy", "from": 1}])
    assert torch.equal(found["entry"], states[1]["entry"])


def test_integers_of_other_types_that_are_equal_pass(tmp_path):
    states = [{"ids": torch.arange(3, dtype=dtype), "w": torch.zeros(2)} for dtype in (torch.int64, torch.int32)]
    found, _ = merged(tmp_path, states)
    assert found["ids"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("counts", [(3, 9, 4), (9, 3, 4)])
def test_counters_take_the_largest(tmp_path, counts):
    states = [{"num_batches_tracked": torch.tensor(count), "w": torch.zeros(2)} for count in counts]
    found, _ = merged(tmp_path, states)
    assert int(found["num_batches_tracked"]) == 9


@pytest.mark.parametrize(
    "change", [lambda v: v.fill_(INF), lambda v: v.index_fill_(0, torch.tensor([0]), NAN)], ids=["all", "one"]
)
def test_infinities_that_differ_anywhere_are_refused(tmp_path, change):
    draw = np.random.default_rng(0)
    one = torch.from_numpy(draw.normal(size=PIECES).astype(np.float32))
    two = one.clone()
    change(one[-5:]), change(two[-5:])  # the last piece is the same in both, and not finite
    two[0] += 1  # the first is not
    with pytest.raises(cs.errors.InputError, match=r"mask has NaN or infinite values.*E-NUMBER"):
        merged(tmp_path, [{"mask": one}, {"mask": two}])
    assert same_bits(merged(tmp_path, [{"mask": one}, {"mask": one}])[0]["mask"], one)


def test_extra_state_is_the_first_models(tmp_path):
    states = [{"w": torch.ones(2), "l._extra_state": torch.ones(n, dtype=torch.uint8)} for n in (2, 4)]
    found, done = merged(tmp_path, states)
    assert torch.equal(found["l._extra_state"], states[0]["l._extra_state"])
    assert any("_extra_state: extra state has no mean" in note for note in done.notes)


@pytest.mark.parametrize("without", [0, 1])
def test_a_counter_that_one_lacks_does_not_keep_units_from_being_matched(tmp_path, without):
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    symmetry = cs.symmetry(net.eval(), torch.randn(5, 3))
    states = [net.state_dict(), cs.permute(net, symmetry, {"0": [2, 0, 3, 1]}).state_dict()]
    del states[without]["1.num_batches_tracked"]
    found, _ = merged(tmp_path, states, symmetry=symmetry)
    assert all(torch.allclose(values, net.state_dict()[name]) for name, values in found.items())


PREFIXES = ["module.", "_orig_mod.", "model.", "bert.", "transformer."]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("first", [True, False])
def test_folders_under_a_prefix_are_merged_under_the_plain_names(tmp_path, prefix, first):
    plain = {"a.weight": torch.ones(2, 3), "b.bias": torch.zeros(2)}
    wrapped = {f"{prefix}{name}": values + 2 for name, values in plain.items()}
    pair = [wrapped, plain] if first else [plain, wrapped]
    done = cs.merge([write(tmp_path / name, one) for name, one in zip("ab", pair, strict=True)], tmp_path / "out")
    found = load_file(done.output / "model.safetensors")
    assert {name: float(values.mean()) for name, values in found.items()} == {"a.weight": 2.0, "b.bias": 1.0}
    assert any(f"names without the prefix {prefix!r}" in note for note in done.notes)


def test_a_prefix_with_more_than_it_is_the_reason_of_the_refusal(tmp_path):
    plain = {"a.weight": torch.ones(2, 3), "b.bias": torch.zeros(2)}
    wrapped = {f"bert.{name}": values for name, values in plain.items()} | {"cls.weight": torch.ones(2)}
    with pytest.raises(cs.errors.InputError, match=r"prefix 'bert\.'.*cls\.weight would still differ") as caught:
        merged(tmp_path, [plain, wrapped])
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("bn.num_batches_tracked", torch.tensor(3)),
        ("embeddings.position_ids", torch.arange(4)),
        ("rotary.inv_freq", torch.rand(3)),
        ("h.0.attn.bias", torch.ones(1, 1, 4, 4, dtype=torch.bool)),
        ("h.0.attn.masked_bias", torch.tensor(-1e4)),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_bookkeeping_that_one_lacks_is_left_out_as_in_a_fusion(tmp_path, name, values, first):
    states = [{"w": torch.ones(2)}, {"w": torch.zeros(2)}]
    states[not first] |= {name: values}
    found, done = merged(tmp_path, states)
    fusion = cs.fuse(states, "average")
    assert set(found) == set(fusion.model) == {"w"}
    assert any(name in note and "left out" in note for note in done.notes)
    assert any(name in note and "left out" in note for note in fusion.notes)
