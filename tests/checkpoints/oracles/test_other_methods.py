"""The other methods of merging against their formulas on whole tensors in float64, rounded once, and their laws."""

import itertools

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import consilience as cs
from tests.checkpoints.some_checkpoints import read, same_bits, tensors

pytestmark = pytest.mark.covering(2)

DTYPES = [torch.float32, torch.bfloat16]
both = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
BITS = {torch.float32: 24, torch.bfloat16: 8}
CONVOLUTION = "model.conv.weight"


# Checkpoints: a base and fine-tunes of it, some entries of which no or not every model has changed.


def base_state(dtype):
    """Return a base: the tensors of some_checkpoints and a convolution."""
    draw = torch.Generator().manual_seed(100)
    kernel = torch.randn((6, 4, 3, 3), generator=draw, dtype=torch.float64) * 0.5
    return tensors(0, dtype, scale=0.5) | {CONVOLUTION: kernel.to(dtype)}


def fine_tunes(base, dtype, count, spread=0.1, shared=0.7, kept=0.85):
    """Return models: base + spread (shared change + own change) where a model has changed an entry."""
    found = [{} for _ in range(count)]
    for number, (name, start) in enumerate(base.items()):
        draw = np.random.default_rng([7, number])
        values = start.double().numpy()
        together = shared * draw.standard_normal(values.shape)
        anywhere = draw.random(values.shape) < 0.95
        for model in found:
            change = spread * 0.5 * (together + draw.standard_normal(values.shape))
            own = anywhere & (draw.random(values.shape) < kept)
            model[name] = torch.from_numpy(np.where(own, values + change, values)).to(dtype)
    return found


def saved(path, state):
    """Write a state as a single file."""
    save_file(state, path)
    return path


def merged(folder, models, method, base=None, name="out", **options):
    """Write a base and models, merge them, and return the tensors."""
    paths = [saved(folder / f"{name} of {number}.safetensors", model) for number, model in enumerate(models)]
    start = None if base is None else saved(folder / f"{name} from.safetensors", base)
    return read(cs.merge(paths, folder / f"{name}.safetensors", method, base=start, **options).output)


def arrays(state):
    """Return a state as float64 arrays."""
    return {name: values.double().numpy() for name, values in state.items()}


def nearest(values, bits):
    """Return float64 values rounded once to a number of bits, ties to even, and one last place of each."""
    fraction, exponent = np.frexp(values)
    return np.ldexp(np.rint(np.ldexp(fraction, bits)), exponent - bits), np.ldexp(1.0, exponent - bits)


def agree(found, wanted, dtype, flips=None, near=2.0**-44):
    """Assert that tensors are the wanted values rounded once, but where those are as good as halfway between two.

    With `flips`, what entries are where a method chooses otherwise, a share of 1e-4 of all may be so.
    """
    assert found.keys() == wanted.keys()
    flipped = count = 0
    for name, values in found.items():
        assert values.dtype == dtype
        one, exact = values.double().numpy(), wanted[name]
        assert one.shape == exact.shape
        right, place = nearest(exact, BITS[dtype])
        differs = one != right
        if flips is not None:
            other = differs & (one == nearest(flips[name], BITS[dtype])[0])
            flipped += int(other.sum())
            differs &= ~other
        size = np.abs(exact).mean() + np.abs(exact)
        halfway = np.abs((one + right) / 2 - exact) <= near * size
        wrong = differs & ~(halfway & (np.abs(one - right) <= place + near * size))
        assert not wrong.any(), (name, int(wrong.sum()), one[wrong][:3], exact[wrong][:3])
        count += values.numel()
    assert flipped <= 1e-4 * count, (flipped, count)


def by_tensor(formula, base, models, *extra):
    """Apply a formula (base, models) to every tensor."""
    start, states = arrays(base), [arrays(model) for model in models]
    return {name: formula(start[name], [state[name] for state in states], *extra) for name in start}


def shares(weights, count):
    """Return weights that sum to 1."""
    weights = np.ones(count) if weights is None else np.asarray(weights, dtype=np.float64)
    return weights / weights.sum()


def length(values):
    return np.sqrt(np.sum(np.square(values)))


# The formulas.


def chordal_mean(vectors, weights, normalize=True):
    """Return the chordal mean of directions, as long as the weighted mean of the lengths."""
    weights = shares(weights, len(vectors)) if normalize else np.asarray(weights, dtype=np.float64)
    lengths = [length(vector) for vector in vectors]
    mean = sum(w * vector / size for w, vector, size in zip(weights, vectors, lengths, strict=True))
    return weights @ lengths * mean / length(mean)


def karcher_mean(vectors, weights, iterations=10, tolerance=1e-5):
    """Return the mean direction on the sphere, as long as the weighted mean of the lengths."""
    weights = shares(weights, len(vectors))
    lengths = [length(vector) for vector in vectors]
    units = [vector / size for vector, size in zip(vectors, lengths, strict=True)]
    mean = sum(w * unit for w, unit in zip(weights, units, strict=True))
    mean = mean / length(mean)
    for _ in range(iterations):
        step = np.zeros_like(mean)
        for w, unit in zip(weights, units, strict=True):
            across = unit - np.sum(unit * mean) * mean
            sine, cosine = length(across), np.sum(unit * mean)
            if sine > 0:
                step += w * np.arctan2(sine, cosine) * across / sine
        size = length(step)
        if size > 0:
            mean = np.cos(size) * mean + np.sin(size) * step / size
            mean = mean / length(mean)
        if size < tolerance:
            break
    return weights @ lengths * mean


def arc(one, two, t):
    """Return Shoemake's formula for vectors along the last axis."""
    size = [np.sqrt(np.sum(np.square(values), axis=-1, keepdims=True)) for values in (one, two)]
    units = one / size[0], two / size[1]
    chords = [np.sqrt(np.sum(np.square(units[0] + s * units[1]), axis=-1, keepdims=True)) for s in (-1, 1)]
    angle = 2 * np.arctan2(*chords)
    return (np.sin((1 - t) * angle) * one + np.sin(t * angle) * two) / np.sin(angle)


def arcs(one, two, t, axis):
    """Return arcs of whole tensors, or of the rows or columns of matrices (out, everything else)."""
    shape = one.shape
    if axis is None or one.ndim == 1:
        return arc(one.reshape(-1), two.reshape(-1), t).reshape(shape)
    one, two = (values.reshape(shape[0], -1) for values in (one, two))
    return (arc(one, two, t) if axis == "rows" else arc(one.T, two.T, t).T).reshape(shape)


def stock(start, models, axis=None):
    """Return model stock: t = J c / (1 + (J - 1) c) of the mean cosine c, between 0 and 1."""
    shape = start.shape
    rows = (shape[0], -1) if axis == "rows" and start.ndim > 1 else (1, -1)
    changes = [(model - start).reshape(rows) for model in models]
    count = len(changes)
    cosines = []
    for one, two in itertools.combinations(changes, 2):
        sizes = np.sqrt(np.sum(one * one, axis=1) * np.sum(two * two, axis=1))
        cosines.append(np.where(sizes > 0, np.sum(one * two, axis=1) / np.where(sizes > 0, sizes, 1.0), 0.0))
    cosine = np.mean(cosines, axis=0)
    below = 1 + (count - 1) * cosine
    t = np.where(below > 1e-12, count * cosine / np.where(below > 1e-12, below, 1.0), 0.0)
    return start + (np.clip(t, 0.0, 1.0)[:, None] * sum(changes) / count).reshape(shape)


def signed_mean(changes, weights, normalize):
    """Return the sum of w_k delta_k of the elected sign, over the sum of |w_k| of those if told."""
    own = [w * change for w, change in zip(weights, changes, strict=True)]
    mass = sum(own)
    agreeing = [values * mass > 0 for values in own]
    total = sum(np.where(yes, values, 0.0) for yes, values in zip(agreeing, own, strict=True))
    if not normalize:
        return total
    below = sum(np.where(yes, abs(w), 0.0) for yes, w in zip(agreeing, weights, strict=True))
    return np.where(below > 0, total / np.where(below > 0, below, 1.0), 0.0)


def kept_between(change, density, gamma):
    """Return a change without the largest and the smallest magnitudes."""
    magnitude = np.abs(change).astype(np.float32)
    order = np.sort(magnitude, axis=None)[::-1]
    top, count = round(gamma * change.size), max(1, round(density * change.size))
    most, least = order[min(top, change.size - 1)], order[min(top + count, change.size) - 1]
    return np.where((magnitude >= least) & (magnitude <= most), change, 0.0)


def breadcrumbs(start, models, weights, density=0.9, gamma=0.01, combine="linear", normalize=False, scaling=1.0):
    changes = [kept_between(model - start, density, gamma) for model in models]
    weights = np.ones(len(models)) if weights is None else np.asarray(weights, dtype=np.float64)
    if combine == "ties":
        return start + scaling * signed_mean(changes, weights, normalize)
    total = sum(w * change for w, change in zip(weights, changes, strict=True))
    return start + scaling * (total / weights.sum() if normalize else total)


def ties(start, models, weights, density=1.0, scaling=1.0):
    changes = [kept_between(model - start, density, 0.0) for model in models]
    return start + scaling * signed_mean(changes, np.asarray(weights, dtype=np.float64), True)


def sce(start, models, select=1.0, scaling=1.0):
    """Return SCE: entries of the largest variances, weights by mean squares, the sign of the plain sum."""
    changes = np.stack([model - start for model in models])
    if select < 1:
        variance = np.var(changes, axis=0).astype(np.float32)
        count = max(1, round(select * np.count_nonzero(variance)))
        changes = np.where(variance >= np.sort(variance, axis=None)[-count], changes, 0.0)
    squares = np.sum(np.square(changes).reshape(len(models), -1), axis=1)
    parts = squares / squares.sum() if squares.sum() > 0 else np.full(len(models), 1 / len(models))
    agreeing = changes * np.sum(changes, axis=0) > 0
    parts = parts.reshape((-1,) + (1,) * start.ndim)
    below = np.sum(np.where(agreeing, parts, 0.0), axis=0)
    total = np.sum(np.where(agreeing, parts * changes, 0.0), axis=0)
    return start + scaling * np.where(below > 0, total / np.where(below > 0, below, 1.0), 0.0)


def ram(start, models, weights, epsilon=1e-5, boost=0.0, limit=0.2, scaling=1.0):
    """Return the weighted mean over the models that have an entry; entries of one model may be larger."""
    weights = [1.0] * len(models) if weights is None else weights
    changes = np.stack([model - start for model in models])
    has = np.abs(changes) > epsilon
    owners = has.sum(axis=0)
    total, below = np.zeros_like(start), np.zeros_like(start)
    for w, change, own in zip(weights, changes, has, strict=True):
        unique, shared = int((own & (owners == 1)).sum()), int((own & (owners > 1)).sum())
        factor = 1 + boost * min(shared / unique, limit) if unique else 1.0
        total += np.where(own, w * np.where(owners == 1, factor, 1.0) * change, 0.0)
        below += np.where(own, w, 0.0)
    return start + scaling * total / np.where(owners > 0, below, 1.0)


def arcee_fusion(start, model):
    """Return the fusion, and what it would be with the other choice at each entry."""
    rows = (1 if start.ndim == 1 else start.shape[0], -1)

    def chances(values):
        powers = np.exp(values - values.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True) + 1e-8

    p, q = chances(model.reshape(rows)), chances(start.reshape(rows))
    divergence = np.sum(p * (np.log(p) - np.log(q)), axis=1, keepdims=True)
    importance = (np.abs(model - start).reshape(rows) * divergence).astype(np.float32).reshape(start.shape)
    order = np.sort(importance, axis=None)
    first, median, third = (float(order[int(part * (start.size - 1))]) for part in (0.25, 0.5, 0.75))
    chosen = importance >= np.float32(median + 1.5 * (third - first))
    return np.where(chosen, model, start), np.where(chosen, start, model)


# Methods on spheres.

WEIGHTS = [None, [0.5, 0.3, 0.2], [3.0, 1.0, 2.0]]


@both
@pytest.mark.parametrize("spread", [0.1, 0.01, 3.0])
@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
@pytest.mark.parametrize("based", [False, True])
@pytest.mark.parametrize("settings", [{}, {"normalize": False}], ids=str)
def test_multislerp_is_the_chordal_mean(tmp_path, dtype, spread, weights, based, settings):
    base = base_state(dtype)
    models = fine_tunes(base, dtype, 3, spread)
    weights = [1.0, 1.0, 1.0] if weights is None and settings else weights
    found = merged(tmp_path, models, "multislerp", base if based else None, weights=weights, **settings)

    def formula(start, own):
        origin = start if based else np.zeros_like(start)
        return origin + chordal_mean([one - origin for one in own], weights, **settings)

    agree(found, by_tensor(formula, base, models), dtype)


@both
@pytest.mark.parametrize("spread", [0.1, 3.0])
@pytest.mark.parametrize("based", [False, True])
@pytest.mark.parametrize("weights", WEIGHTS[:2], ids=str)
@pytest.mark.parametrize("settings", [{}, {"max_iterations": 2, "tolerance": 1e-12}, {"max_iterations": 60}], ids=str)
def test_karcher_is_the_mean_on_the_sphere(tmp_path, dtype, spread, based, weights, settings):
    base = base_state(dtype)
    models = fine_tunes(base, dtype, 3, spread)
    found = merged(tmp_path, models, "karcher", base if based else None, weights=weights, **settings)
    told = settings.get("max_iterations", 10), settings.get("tolerance", 1e-5)

    def formula(start, own):
        origin = start if based else np.zeros_like(start)
        return origin + karcher_mean([one - origin for one in own], weights, *told)

    agree(found, by_tensor(formula, base, models), dtype)


@both
def test_karcher_of_two_models_is_halfway_on_the_arc_of_directions(tmp_path, dtype):
    base = base_state(dtype)
    models = fine_tunes(base, dtype, 2, 1.0)
    found = merged(tmp_path, models, "karcher", tolerance=1e-12)

    def formula(_, own):
        sizes = [length(one) for one in own]
        between = arc(own[0].reshape(-1) / sizes[0], own[1].reshape(-1) / sizes[1], 0.5)
        return np.mean(sizes) * between.reshape(own[0].shape)

    agree(found, by_tensor(formula, base, models), dtype)


@both
@pytest.mark.parametrize("axis", [None, "rows", "columns"])
@pytest.mark.parametrize("based", [False, True])
@pytest.mark.parametrize(("weights", "spread"), [(None, 0.1), ([3.0, 1.0], 0.01), ([0.2, 0.6], 3.0)], ids=str)
def test_nuslerp_is_the_arc_of_tensors_rows_or_columns(tmp_path, dtype, axis, based, weights, spread):
    base = base_state(dtype)
    models = fine_tunes(base, dtype, 2, spread)
    options = {} if axis is None else {"axis": axis}
    found = merged(tmp_path, models, "nuslerp", base if based else None, weights=weights, **options)
    t = float(shares(weights, 2)[1])

    def formula(start, own):
        origin = start if based else np.zeros_like(start)
        return origin + arcs(own[0] - origin, own[1] - origin, t, axis)

    agree(found, by_tensor(formula, base, models), dtype)


@both
@pytest.mark.parametrize("axis", [None, "rows"])
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("spread", [0.1, 1e-3])
def test_model_stock_moves_by_the_mean_cosine(tmp_path, dtype, axis, count, spread):
    base = base_state(dtype)
    models = fine_tunes(base, dtype, count, spread)
    opposite = base["lm_head.weight"].double() + (base["lm_head.weight"].double() - models[0]["lm_head.weight"])
    models[1]["lm_head.weight"] = opposite.to(dtype)  # a negative cosine: stays at the base
    for name in ("model.layers.0.mlp.down_proj.weight", CONVOLUTION):
        models[1][name][3] = base[name][3]  # a row that one of the models left
    options = {} if axis is None else {"axis": axis}
    found = merged(tmp_path, models, "model_stock", base, **options)
    agree(found, by_tensor(stock, base, models, axis), dtype)
    if count == 2:
        assert torch.equal(found["lm_head.weight"], base["lm_head.weight"])


# Methods that choose entries.


@both
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"density": 0.3, "gamma": 0.05},
        {"density": 0.6, "gamma": 0.1, "combine": "ties", "scaling": 0.8},
        {"density": 0.5, "gamma": 0.02, "combine": "ties", "normalize": True},
        {"density": 0.5, "gamma": 0.5, "normalize": True, "scaling": 0.5},
        {"density": 1.0, "gamma": 0.0},
        {"density": 0.2, "gamma": 0.0, "combine": "ties"},
    ],
    ids=str,
)
@pytest.mark.parametrize("weights", [None, [0.5, 0.75, -0.25]], ids=str)
def test_breadcrumbs_keeps_neither_the_largest_nor_the_smallest(tmp_path, dtype, settings, weights):
    base = base_state(dtype)
    models = fine_tunes(base, dtype, 3)
    found = merged(tmp_path, models, "breadcrumbs", base, weights=weights, **settings)
    wanted = by_tensor(lambda b, own: breadcrumbs(b, own, weights, **settings), base, models)
    agree(found, wanted, dtype)


@both
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("settings", [{}, {"select": 0.3}, {"select": 0.05, "scaling": 0.7}], ids=str)
@pytest.mark.parametrize("spread", [0.1, 1e-4])
def test_sce_selects_weighs_and_elects(tmp_path, dtype, count, settings, spread):
    base = base_state(dtype)
    models = fine_tunes(base, dtype, count, spread)
    for name in base:  # sizes that differ, for weights that do
        models[1][name] = (base[name].double() + 2 * (models[1][name].double() - base[name].double())).to(dtype)
    found = merged(tmp_path, models, "sce", base, **settings)
    agree(found, by_tensor(lambda b, own: sce(b, own, **settings), base, models), dtype)


@both
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"scaling": 0.6},
        {"boost": 0.1},
        {"boost": 0.1, "limit": 5.0, "epsilon": 0.02},
        {"boost": 0.5, "limit": 0.1, "epsilon": 0.01, "scaling": 0.9},
    ],
    ids=str,
)
@pytest.mark.parametrize("kept", [0.85, 0.2])
@pytest.mark.parametrize("weights", [None, [0.5, 2.0, 1.0]], ids=str)
def test_ram_is_the_mean_over_those_that_changed_an_entry(tmp_path, dtype, settings, kept, weights):
    base = base_state(dtype)
    models = fine_tunes(base, dtype, 3, kept=kept)
    found = merged(tmp_path, models, "ram", base, weights=weights, **settings)
    agree(found, by_tensor(lambda b, own: ram(b, own, weights, **settings), base, models), dtype)


@both
@pytest.mark.parametrize("t", [0.0, 0.01, 0.05, 10.0])
def test_nearswap_moves_by_t_at_most(tmp_path, dtype, t):
    base = base_state(dtype)
    models = fine_tunes(base, dtype, 1)
    found = merged(tmp_path, models, "nearswap", base, t=t)
    agree(found, by_tensor(lambda b, own: b + np.clip(own[0] - b, -t, t), base, models), dtype)


@both
@pytest.mark.parametrize("spread", [0.1, 1e-3])
def test_arcee_fusion_takes_the_important_entries(tmp_path, dtype, spread):
    base = base_state(dtype)
    models = fine_tunes(base, dtype, 1, spread)
    found = merged(tmp_path, models, "arcee_fusion", base)
    both_ways = by_tensor(lambda b, own: arcee_fusion(b, own[0]), base, models)
    wanted, other = ({name: pair[which] for name, pair in both_ways.items()} for which in (0, 1))
    agree(found, wanted, dtype, flips=other)


@both
@pytest.mark.parametrize("settings", [{}, {"scale": 1.3}, {"scale": -0.1}, {"scale": 0.0}], ids=str)
def test_passthrough_scales_one_model(tmp_path, dtype, settings):
    model = base_state(dtype)
    found = merged(tmp_path, [model], "passthrough", **settings)
    agree(found, {name: settings.get("scale", 1.0) * values for name, values in arrays(model).items()}, dtype)


# Random masks of della: statistics.

SEEDS = 16
LINEAR = {"combine": "linear", "normalize": False}


def ranked(change, density, epsilon):
    """Return the keep probabilities of a change by the rank of magnitudes in its rows."""
    rows = np.abs(change).reshape((1, -1) if change.ndim == 1 else (change.shape[0], -1))
    rank = np.argsort(np.argsort(rows, axis=1), axis=1)
    return (density - epsilon + 2 * epsilon * rank / (rows.shape[1] - 1)).reshape(change.shape)


def della_draws(folder, dtype, base, changes, **options):
    """Return a base, changes as written, and what merges of several seeds have added to the base."""
    start = {name: torch.from_numpy(values).to(dtype) for name, values in base.items()}
    models = [
        {name: torch.from_numpy(base[name] + values).to(dtype) for name, values in change.items()} for change in changes
    ]
    paths = [saved(folder / f"model{number}.safetensors", model) for number, model in enumerate(models)]
    origin = saved(folder / "base.safetensors", start)
    added = {name: [] for name in base}
    for seed in range(SEEDS):
        found = read(
            cs.merge(paths, folder / f"{seed}.safetensors", "della", base=origin, rng=seed, **LINEAR, **options).output
        )
        for name, values in found.items():
            added[name].append(values.double().numpy() - start[name].double().numpy())
    own = [{name: model[name].double().numpy() - start[name].double().numpy() for name in base} for model in models]
    return own, {name: np.stack(values) for name, values in added.items()}


def della_changes(number):
    draw = np.random.default_rng(number)
    shapes = {"a.weight": (100, 60), "b.weight": (16, 4, 3, 3), "c.bias": (50,)}
    return {name: 0.1 * draw.standard_normal(shape) for name, shape in shapes.items()}


@pytest.mark.covering(1)
@both
@pytest.mark.parametrize(
    ("settings", "weights"), [({}, [1.0]), ({"density": 0.4, "epsilon": 0.3}, [1.0, -0.5])], ids=str
)
def test_della_is_unbiased(tmp_path, dtype, settings, weights):
    base = {name: 5 * values for name, values in della_changes(9).items()}
    changes = [della_changes(number) for number in range(len(weights))]
    own, added = della_draws(tmp_path, dtype, base, changes, weights=weights, **settings)
    density, epsilon = settings.get("density", 0.5), settings.get("epsilon", 0.15)
    for name, draws in added.items():
        wanted = sum(w * change[name] for w, change in zip(weights, own, strict=True))
        variance = 0.0
        for w, change in zip(weights, own, strict=True):
            if dtype == torch.bfloat16:  # equal magnitudes have no order: the least that a probability may be
                chance = np.full_like(change[name], density - epsilon)
            else:
                chance = ranked(change[name], density, epsilon)
            variance = variance + np.square(w * change[name]) * (1 - chance) / chance
        error = draws.mean(axis=0) - wanted
        for along in (np.ones_like(wanted), wanted, np.sign(wanted)):
            sigma = np.sqrt(np.sum(np.square(along) * variance) / SEEDS)
            assert abs(np.sum(along * error)) <= 5 * sigma, (name, np.sum(along * error) / sigma)


@pytest.mark.parametrize("settings", [{}, {"density": 0.3, "epsilon": 0.2}], ids=str)
def test_della_keeps_by_rank_in_a_row_and_divides_by_the_probability(tmp_path, settings):
    change = della_changes(0)
    zero = {name: np.zeros_like(values) for name, values in change.items()}
    own, added = della_draws(tmp_path, torch.float32, zero, [change], **settings)
    density, epsilon = settings.get("density", 0.5), settings.get("epsilon", 0.15)
    for name, draws in added.items():
        chance = ranked(own[0][name], density, epsilon)
        kept = draws != 0
        wanted = np.broadcast_to(own[0][name] / chance, draws.shape)
        assert np.allclose(draws[kept], wanted[kept], rtol=2e-7, atol=1e-30), name
        order = np.round((chance - density + epsilon) / (2 * epsilon) * 5).astype(int)  # six groups of ranks
        for group in range(6):
            here = order == group
            count, mean = here.sum() * SEEDS, chance[here].mean()
            sigma = np.sqrt(np.sum(chance[here] * (1 - chance[here])) * SEEDS) / count
            assert abs(kept[:, here].mean() - mean) <= 5 * sigma, (name, group)
        apart = (kept.mean(axis=0) - chance) / np.sqrt(chance * (1 - chance) / SEEDS)
        assert np.abs(apart).max() < 6, name
        assert abs(np.mean(np.square(apart)) - 1) <= 5 * np.sqrt(2.5 / apart.size), name  # seeds are independent
        totals = kept.reshape(SEEDS, -1).sum(axis=1) - chance.sum()
        assert np.abs(totals).max() <= 5 * np.sqrt(np.sum(chance * (1 - chance))), name  # and so are entries


@both
def test_della_of_a_seed_is_the_same(tmp_path, dtype):
    base = base_state(dtype)
    models = fine_tunes(base, dtype, 3)
    one, two, other = (
        merged(tmp_path, models, "della", base, f"{number}", rng=seed, threads=threads, **LINEAR)
        for number, (seed, threads) in enumerate([(3, 1), (3, 2), (4, 1)])
    )
    assert same_bits(one, two)
    assert not same_bits(one, other)


@both
@pytest.mark.parametrize("combine", ["linear", "ties"])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [0.5, 1.0, -0.25]], ids=str)
def test_della_of_density_1_keeps_everything(tmp_path, dtype, combine, normalize, weights):
    base = base_state(dtype)
    models = fine_tunes(base, dtype, 3)
    settings = {"density": 1.0, "combine": combine, "normalize": normalize}
    found = merged(tmp_path, models, "della", base, weights=weights, **settings)
    wanted = by_tensor(lambda b, own: breadcrumbs(b, own, weights, gamma=0.0, **settings), base, models)
    agree(found, wanted, dtype)


# Negative weights of the older methods.

SIGNED = [[1.5, -0.5, 0.75], [1.0, -0.25, 1.0], [-1.0, 0.5, 0.25]]


@both
@pytest.mark.parametrize("weights", SIGNED, ids=str)
@pytest.mark.parametrize("settings", [{"density": 0.3}, {"density": 1.0, "scaling": 0.8}], ids=str)
def test_ties_divides_by_the_sizes_of_signed_weights(tmp_path, dtype, weights, settings):
    base = base_state(dtype)
    models = fine_tunes(base, dtype, 3)
    found = merged(tmp_path, models, "ties", base, weights=weights, **settings)
    agree(found, by_tensor(lambda b, own: ties(b, own, weights, **settings), base, models), dtype)


@both
@pytest.mark.parametrize("weights", SIGNED, ids=str)
def test_dare_that_drops_nothing_elects_with_signed_weights(tmp_path, dtype, weights):
    base = base_state(dtype)
    models = fine_tunes(base, dtype, 3)
    found = merged(tmp_path, models, "dare", base, weights=weights, combine="ties", density=1.0)
    agree(found, by_tensor(lambda b, own: ties(b, own, weights), base, models), dtype)


@both
@pytest.mark.parametrize("weights", SIGNED, ids=str)
@pytest.mark.parametrize("scaling", [1.0, 0.9])
def test_task_arithmetic_may_subtract_a_change(tmp_path, dtype, weights, scaling):
    base = base_state(dtype)
    models = fine_tunes(base, dtype, 3)
    found = merged(tmp_path, models, "task_arithmetic", base, weights=weights, scaling=scaling)

    def formula(start, own):
        return start + scaling * sum(w * (model - start) for w, model in zip(weights, own, strict=True))

    agree(found, by_tensor(formula, base, models), dtype)


@both
@pytest.mark.parametrize("weights", [[1.5, -0.5], [3.0, -1.0]], ids=str)
def test_the_average_may_lie_beyond_a_model(tmp_path, dtype, weights):
    base = base_state(dtype)
    models = fine_tunes(base, dtype, 2)
    found = merged(tmp_path, models, "average", weights=weights)
    agree(found, by_tensor(lambda _, own: 1.5 * own[0] - 0.5 * own[1], base, models), dtype)


# Laws.


@pytest.mark.covering(1)
@both
@pytest.mark.parametrize(
    ("method", "count", "based", "settings"),
    [
        ("average", 3, False, {"weights": [3, 2, 2]}),
        ("karcher", 3, False, {}),
        ("karcher", 3, True, {"weights": [3, 2, 2]}),
        ("multislerp", 3, False, {"weights": [3, 2, 2]}),
        ("multislerp", 3, True, {}),
        ("nuslerp", 2, False, {"weights": [3, 4]}),
        ("nuslerp", 2, True, {}),
        ("nuslerp", 2, False, {"axis": "rows"}),
        ("nuslerp", 2, True, {"axis": "rows", "weights": [3, 4]}),
        ("nuslerp", 2, True, {"axis": "columns"}),
        ("model_stock", 2, True, {}),
        ("model_stock", 3, True, {"axis": "rows"}),
        ("passthrough", 1, False, {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("spread", [0.1, 100.0])
def test_equal_models_are_returned(tmp_path, dtype, method, count, based, settings, spread):
    base = base_state(dtype)
    (model,) = fine_tunes(base, dtype, 1, spread)
    found = merged(tmp_path, [model] * count, method, base if based else None, **settings)
    assert same_bits(found, model)


@pytest.mark.covering(1)
@both
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("breadcrumbs", {}),
        ("breadcrumbs", {"combine": "ties", "weights": [1, -1, 2]}),
        ("sce", {}),
        ("sce", {"select": 0.2}),
        ("ram", {}),
        ("ram", {"boost": 0.1}),
        ("ties", {}),
    ],
    ids=str,
)
def test_a_scaling_of_0_is_the_base(tmp_path, dtype, method, settings):
    base = base_state(dtype)
    found = merged(tmp_path, fine_tunes(base, dtype, 3), method, base, scaling=0.0, **settings)
    assert same_bits(found, base)


@pytest.mark.covering(1)
@both
@pytest.mark.parametrize(
    ("method", "based", "settings"),
    [
        ("karcher", False, {}),
        ("karcher", True, {}),
        ("multislerp", False, {}),
        ("multislerp", True, {}),
        ("model_stock", True, {}),
        ("model_stock", True, {"axis": "rows"}),
        ("ram", True, {"boost": 0.1}),
        ("sce", True, {}),
        ("sce", True, {"select": 0.3}),
    ],
    ids=str,
)
def test_the_order_of_models_changes_nothing(tmp_path, dtype, method, based, settings):
    base = base_state(dtype)
    models = fine_tunes(base, dtype, 3)
    told = base if based else None
    first, other = (
        merged(tmp_path, [models[one] for one in order], method, told, str(order), **settings)
        for order in [(0, 1, 2), (2, 0, 1)]
    )
    for name, values in arrays(first).items():
        apart = np.abs(other[name].double().numpy() - values)
        assert np.all(apart <= nearest(values, BITS[dtype])[1]), name
