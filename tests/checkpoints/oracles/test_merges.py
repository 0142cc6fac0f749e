"""Streamed merges against the same formulas on whole tensors in float64, rounded once by torch."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import consilience as cs
from consilience.checkpoints.numbers import FLOAT_TYPES
from tests.checkpoints.some_checkpoints import read, same_bits, tensors, write
from tests.tolerances import ROUNDING

pytestmark = pytest.mark.covering(2)

TORCH = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
HALVES = [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]


def trio(folder, dtype):
    """Write a start and two models trained from it; return paths and states."""
    start = tensors(0, dtype, scale=0.5)
    states = [start, *(tensors(seed, dtype, start) for seed in (1, 2))]
    paths = [write(folder / name, state) for name, state in zip(("base", "a", "b"), states, strict=True)]
    return paths, states


def doubles(states, name):
    return [state[name].double() for state in states]


def rounded(values, dtype):
    """Return float64 values rounded once: torch goes through float32 to types of 8 bits, NumPy needs not to 16."""
    if dtype == torch.float64:
        return values
    return values.to(dtype)


def agree(found, wanted, dtype, models):
    """Compare with an oracle: equal but where it is as good as halfway between two neighbours.

    As good as: within what sums of such models in 32 bits (64, for models of 32) may err by.
    """
    differs = found.double() != rounded(wanted, dtype).double()
    near = 2.0**-50 if dtype == torch.float32 else 2.0**-22
    one, exact = found[differs].double(), wanted[differs]
    halfway = (one + rounded(exact, dtype).double()) / 2
    size = sum(model[differs].abs() for model in models)
    return bool(torch.all((exact - halfway).abs() <= near * size))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES], ids=str)
def test_the_average_is_the_mean_in_64_bits_rounded_once(tmp_path, dtype):
    paths, states = trio(tmp_path, dtype)
    found = read(cs.merge(paths, tmp_path / "out", weights=[5, 3, 2]).output)
    for name, values in found.items():
        mean = sum(w * one for w, one in zip((0.5, 0.3, 0.2), doubles(states, name), strict=True))
        if dtype == torch.float64:
            assert torch.allclose(values, mean, rtol=ROUNDING, atol=ROUNDING)
        else:
            assert agree(values, mean, dtype, doubles(states, name))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("density", [0.1, 0.5, 1.0])
def test_ties_is_the_papers_three_steps(tmp_path, dtype, density):
    paths, states = trio(tmp_path, dtype)
    options = {"density": density, "scaling": 0.8, "weights": [2, 1], "base": paths[0]}
    found = read(cs.merge(paths[1:], tmp_path / "out", "ties", **options).output)
    for name, values in found.items():
        start, *models = doubles(states, name)
        changes = []
        for model in models:
            change = (model - start).flatten()
            keep = max(1, round(density * len(change)))
            magnitude = change.float().abs()
            least = torch.sort(magnitude, descending=True).values[keep - 1]
            changes.append(torch.where(magnitude >= least, change, 0.0))
        merged = torch.zeros_like(changes[0])
        for entry in range(len(merged)):
            own = [(float(change[entry]), weight) for change, weight in zip(changes, (2.0, 1.0), strict=True)]
            mass = sum(value * weight for value, weight in own)
            agreeing = [(value, weight) for value, weight in own if value * mass > 0]
            if agreeing:
                merged[entry] = sum(v * w for v, w in agreeing) / sum(w for _, w in agreeing)
            if entry > 3000:
                break
        shown = slice(0, 3001)
        wanted = start.flatten()[shown] + 0.8 * merged[shown]
        assert torch.equal(values.flatten()[shown], rounded(wanted, dtype))


@pytest.mark.parametrize("density", [0.001, 0.2, 0.999])
def test_the_threshold_of_ties_is_the_magnitude_of_the_last_that_is_kept(tmp_path, density):
    draw = torch.Generator().manual_seed(0)
    change = torch.randn(150_000, generator=draw) * 10.0 ** torch.randint(-30, 4, (150_000,), generator=draw)
    change[:50] = change[50:100]  # some are equal
    zero = write(tmp_path / "base", {"w": torch.zeros_like(change)})
    model = write(tmp_path / "a", {"w": change})
    found = read(cs.merge([model], tmp_path / "out", "ties", base=zero, density=density).output)["w"]
    keep = round(density * len(change))
    least = torch.sort(change.abs(), descending=True).values[keep - 1]
    assert torch.equal(found, torch.where(change.abs() >= least, change, 0.0))
    assert keep <= int((found != 0).sum()) <= keep + 50


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_slerp_is_shoemakes_formula(tmp_path, dtype):
    states = [tensors(seed, dtype) for seed in (1, 2)]
    states[1]["lm_head.weight"] = (1.25 * states[0]["lm_head.weight"].double()).to(dtype)  # nearly parallel
    paths = [write(tmp_path / name, state) for name, state in zip("ab", states, strict=True)]
    found = read(cs.merge(paths, tmp_path / "out", "slerp", t=0.25).output)
    arcs = 0
    for name, values in found.items():
        one, two = doubles(states, name)
        cosine = float((one * two).sum() / (one.norm() * two.norm()))
        if cosine > 0.9995:
            wanted = 0.75 * one + 0.25 * two
        else:
            arcs += 1
            angle = np.arccos(cosine)
            wanted = (np.sin(0.75 * angle) * one + np.sin(0.25 * angle) * two) / np.sin(angle)
        assert agree(values, wanted, dtype, (one, two))
    assert arcs == len(found) - 1


def test_slerp_keeps_the_length_of_vectors_of_one_length(tmp_path):
    one, two = torch.zeros(50), torch.zeros(50)
    one[0] = two[1] = 3.0
    models = [write(tmp_path / name, {"w": values}) for name, values in (("a", one), ("b", two))]
    for t in (0.25, 0.5):
        out = cs.merge(models, tmp_path / str(t), "slerp", t=t).output
        assert float(read(out)["w"].norm()) == pytest.approx(3.0, rel=1e-6)


def test_task_arithmetic_adds_changes_up(tmp_path):
    paths, states = trio(tmp_path, torch.float32)
    done = cs.merge(paths[1:], tmp_path / "out", "task_arithmetic", base=paths[0], weights=[1, 0.5], scaling=0.6)
    for name, values in read(done.output).items():
        start, one, two = doubles(states, name)
        wanted = start + 0.6 * ((one - start) + 0.5 * (two - start))
        assert agree(values, wanted, torch.float32, (start, one, two))


@pytest.mark.parametrize("options", [{}, {"normalize": True}, {"favor_target": 1}, {"floor": 1e-3}])
def test_fisher_of_files_is_that_of_networks_in_memory(tmp_path, options):
    draw = torch.Generator().manual_seed(0)
    states = [tensors(seed, torch.float32) for seed in (1, 2)]
    informed = [name for name in states[0] if "lm_head" not in name]
    diagonals = [{name: torch.rand(states[0][name].shape, generator=draw) for name in informed} for _ in states]
    for diagonal in diagonals:
        diagonal["model.norm.weight"][:5] = 0.0
    paths, fishers = [], []
    for name, state, diagonal in zip("ab", states, diagonals, strict=True):
        paths.append(write(tmp_path / name, state))
        save_file(diagonal, tmp_path / f"{name}.fisher.safetensors")
        fishers.append(tmp_path / f"{name}.fisher.safetensors")
    done = cs.merge(paths, tmp_path / "out", "fisher", fishers=fishers, weights=[2, 1], **options)
    files = [path / "model.safetensors" for path in paths]
    network = cs.fuse(
        files, "fisher", fishers=diagonals, weights=[2, 1], structure="diagonal", aligned=False, **options
    ).model
    for name, values in read(done.output).items():
        assert torch.allclose(values, torch.as_tensor(network[name]), rtol=3e-6, atol=1e-8), name
    assert any("1 tensors without information (lm_head.weight) are averaged" in note for note in done.notes)


def test_fisher_files_of_this_library_are_bound_to_their_model(tmp_path):
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)) for _ in range(2)]
    infos = [cs.fisher(net, torch.randn(120, 5)) for net in nets]
    paths, fishers = [], []
    for name, net, info in zip("ab", nets, infos, strict=True):
        save_file(net.state_dict(), tmp_path / f"{name}.safetensors")
        cs.save(info, tmp_path / f"{name}.fisher.safetensors")
        paths.append(tmp_path / f"{name}.safetensors")
        fishers.append(tmp_path / f"{name}.fisher.safetensors")
    found = read(cs.merge(paths, tmp_path / "out.safetensors", "fisher", fishers=fishers).output)
    fused = cs.fuse(nets, "fisher", fishers=infos, aligned=False).model.state_dict()
    assert all(torch.allclose(values, fused[name], rtol=1e-5) for name, values in found.items())
    with pytest.raises(cs.errors.InputError, match=r"b\.fisher\.safetensors: was computed at other parameters"):
        cs.merge(paths, tmp_path / "wrong", "fisher", fishers=fishers[::-1])
    cs.save(cs.fisher(nets[0], torch.randn(120, 5), kind="factors"), fishers[0])
    with pytest.raises(cs.errors.InputError, match="kind='diagonal'"):
        cs.merge(paths, tmp_path / "wrong", "fisher", fishers=fishers)


class Block(nn.Module):
    """A residual block with attention, normalisation and an embedding: groups inside groups, streams, ties."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.up, self.down = nn.Linear(8, 20), nn.Linear(20, 8)
        self.head = nn.Linear(8, 7)

    def forward(self, tokens):
        x = self.embed(tokens)
        y = self.norm(x)
        x = x + self.attend(y, y, y, need_weights=False)[0]
        return self.head(x + self.down(torch.relu(self.up(x))))


@pytest.mark.parametrize("shape", ["mlp", "block"])
def test_a_network_and_its_renumbered_self_merge_into_the_network(tmp_path, shape):
    torch.manual_seed(0)
    if shape == "mlp":
        net = nn.Sequential(nn.Linear(6, 30), nn.ReLU(), nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 4)).eval()
        example = torch.randn(9, 6)
    else:
        net, example = Block().eval(), torch.randint(0, 11, (3, 5))
    symmetry = cs.symmetry(net, example)
    rng = np.random.default_rng(1)
    orders = {
        name: rng.permutation(size)
        for name, size in symmetry.groups.items()
        if symmetry.by_name[name].parent is None and not symmetry.children(name)
    }
    assert orders
    moved = cs.permute(net, symmetry, orders)
    for name, one in (("a", net), ("b", moved)):
        save_file(
            {key: value.contiguous() for key, value in one.state_dict().items()}, tmp_path / f"{name}.safetensors"
        )
    paths = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    plain = read(cs.merge(paths, tmp_path / "plain.safetensors").output)
    done = cs.merge(paths, tmp_path / "aligned.safetensors", symmetry=symmetry)
    state = net.state_dict()
    assert same_bits(read(done.output), {name: state[name] for name in read(done.output)})
    assert not same_bits(plain, read(done.output))
    assert done.provenance["details"]["aligned"]["units_moved"][1] > 0
    traced = cs.merge(paths, tmp_path / "traced.safetensors", module=net, example=example)
    assert same_bits(read(traced.output), read(done.output))


def test_alignment_comes_as_close_as_weight_matching_in_memory(tmp_path):
    nets = []
    for seed in range(3):
        torch.manual_seed(seed)
        nets.append(nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 4)))
    symmetry = cs.symmetry(nets[0], torch.randn(5, 6))
    paths = []
    for number, net in enumerate(nets[:2]):
        save_file(net.state_dict(), tmp_path / f"{number}.safetensors")
        paths.append(tmp_path / f"{number}.safetensors")
    merged = read(cs.merge(paths, tmp_path / "out.safetensors", symmetry=symmetry).output)
    fused = cs.fuse(nets[:2], "rebasin", symmetry=symmetry).model.state_dict()

    def distance(middle):  # of the first to its merge with the other, moved: half of that between the two
        return sum(float(((middle[key] - value) ** 2).sum()) for key, value in nets[0].state_dict().items())

    plain = {key: (value + nets[1].state_dict()[key]) / 2 for key, value in nets[0].state_dict().items()}
    assert distance(merged) < distance(plain)
    assert distance(merged) < 1.05 * distance(fused)


@pytest.mark.parametrize("name", ["F16", "BF16", "F8_E4M3", "F8_E5M2"])
def test_numbers_are_read_and_rounded_as_torch_does(name):
    kind, dtype = FLOAT_TYPES[name], TORCH[name]
    patterns = np.arange(2 ** (8 * kind.itemsize)).astype(f"u{kind.itemsize}")
    values = torch.from_numpy(patterns.view(np.uint8).copy()).view(dtype).float().numpy()
    for wide in (np.float32, np.float64):
        decoded = np.empty(len(patterns), dtype=wide)
        kind.decode(patterns.view(np.uint8), decoded)
        assert np.array_equal(decoded, values, equal_nan=True)
    finite = np.sort(values[np.isfinite(values)].astype(np.float64))
    middles = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
    rng = np.random.default_rng(0)
    spread = rng.standard_normal(100_000) * 10.0 ** rng.uniform(-12, 4, 100_000)
    around = [np.nextafter(middles, np.float32(sign * np.inf)) for sign in (1, -1)]
    tried = np.concatenate([finite, middles, *around, spread]).astype(np.float32)
    tried = tried[np.abs(tried) <= torch.finfo(dtype).max]
    wanted = torch.from_numpy(tried).to(dtype).reshape(-1).view(torch.uint8).numpy()
    for wide in (np.float32, np.float64):
        stored = np.empty(len(tried) * kind.itemsize, dtype=np.uint8)
        kind.encode(tried.astype(wide), stored)
        assert np.array_equal(stored, wanted)
    beyond = np.array([1.5, -1.5]) * torch.finfo(dtype).max
    stored = np.empty(2 * kind.itemsize, dtype=np.uint8)
    kind.encode(beyond.copy(), stored)
    decoded = np.empty(2)
    kind.decode(stored, decoded)
    largest = torch.finfo(dtype).max if kind.saturates else np.inf
    assert decoded.tolist() == [largest, -largest]


@pytest.mark.parametrize("name", ["F16", "BF16", "F8_E4M3", "F8_E5M2"])
def test_numbers_of_64_bits_are_rounded_once_not_twice(name):
    float_type = FLOAT_TYPES[name]
    patterns = np.arange(2 ** (8 * float_type.itemsize - 1)).astype(f"u{float_type.itemsize}")  # of numbers from 0 on
    numbers = np.empty(len(patterns))
    float_type.decode(patterns.view(np.uint8), numbers)
    n_finite = int(np.isfinite(numbers).sum())
    lower, upper = patterns[: n_finite - 1], patterns[1:n_finite]
    middle = (numbers[: n_finite - 1] + numbers[1:n_finite]) / 2  # exact in 64 bits
    even = np.where(lower % 2 == 0, lower, upper)
    # By way of 32 bits the values beside the middle would be ties too.
    for values, expected in (
        (middle, even),
        (np.nextafter(middle, np.inf), upper),
        (np.nextafter(middle, 0), lower),
        (middle * (1 + 2.0**-30), upper),
        (middle * (1 - 2.0**-30), lower),
    ):
        for sign, sign_bit in ((1, 0), (-1, len(patterns))):
            stored = np.empty(len(values) * float_type.itemsize, dtype=np.uint8)
            float_type.encode(sign * values, stored)
            assert np.array_equal(stored.view(patterns.dtype), expected + patterns.dtype.type(sign_bit))


@pytest.mark.parametrize("name", ["F16", "BF16", "F8_E4M3", "F8_E5M2"])
@pytest.mark.parametrize("wide", [np.float32, np.float64])
def test_infinities_and_the_largest_values_become_the_largest_number_or_infinity(name, wide):
    float_type = FLOAT_TYPES[name]
    values = np.array([np.inf, -np.inf, np.finfo(wide).max, -np.finfo(wide).max], dtype=wide)
    stored = np.empty(4 * float_type.itemsize, dtype=np.uint8)
    float_type.encode(values, stored)
    decoded = np.empty(4)
    float_type.decode(stored, decoded)
    largest = float_type.largest if float_type.saturates else np.inf
    assert decoded.tolist() == [largest, -largest, largest, -largest]
