"""Methods of merging that see whole matrices, against their formulas in float64, rounded once, and their laws."""

import re

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import consilience as cs
from tests.checkpoints.oracles.test_other_methods import agree, arrays, base_state, fine_tunes, merged, saved
from tests.checkpoints.some_checkpoints import read, same_bits, write

pytestmark = pytest.mark.covering(2)

both = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
NEAR = 2.0**-34  # as good as halfway, of values that decompositions have made
WEIGHTS = [1.0, 0.5, 2.0, 0.75]

MEANS = ("embed", "wte", "wpe", "position", "lm_head", "classifier", "score", "shared", "text_projection", "token_type")
FUSED = re.compile(r"(^|\.)(in_proj_weight|(qkv|c_attn|Wqkv)\.weight)$")

SHAPES = {
    "in_proj_weight": (12, 4),  # three matrices
    "model.embed_tokens.weight": (10, 6),
    "model.layers.0.attn.qkv.weight": (18, 6),  # three matrices
    "model.layers.0.attn.qkv.bias": (18,),
    "model.layers.0.attn.out.weight": (6, 6),
    "model.layers.1.attn.Wqkv.weight": (14, 6),  # one: not three times as many outputs
    "model.layers.1.attn.myqkv.weight": (12, 4),  # one: another name
    "model.layers.1.mlp.up.weight": (24, 16),
    "model.layers.1.mlp.down.weight": (16, 24),
    "model.layers.1.mlp.gate": (8, 6),  # a mean: no weight by name
    "model.layers.1.norm.weight": (16,),
    "model.relative_Positions.weight": (8, 6),
    "model.Shared.weight": (7, 5),
    "model.conv.weight": (6, 4, 3, 3),
    "model.conv.bias": (6,),
    "model.line.weight": (5, 3, 4),
    "model.few.weight": (3, 2),
    "lm_head.weight": (10, 6),
}

INPUTS_FIRST = {
    "h.0.attn.c_attn.weight": (6, 18),  # three matrices, stored side by side
    "h.0.attn.c_attn.bias": (18,),
    "h.0.attn.c_proj.weight": (6, 6),
    "h.0.attn.c_proj.bias": (6,),
    "h.0.mlp.c_fc.weight": (6, 20),
    "h.0.mlp.c_fc.bias": (20,),
    "h.0.mlp.side.weight": (9, 6),  # without a bias: as it is
    "h.0.ln_1.weight": (6,),
    "h.0.ln_1.bias": (6,),
    "wte.weight": (11, 6),
    "wpe.weight": (8, 6),
}


def small_state(dtype, shapes=SHAPES, seed=300):
    """Return a base of small tensors."""
    draw = torch.Generator().manual_seed(seed)
    return {
        name: (0.5 * torch.randn(shape, generator=draw, dtype=torch.float64)).to(dtype)
        for name, shape in shapes.items()
    }


# The formulas, on changes as matrices (outputs, inputs).


def decomposed(matrix):
    """Return the thin singular value decomposition, the right vectors as columns."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    return left, values, right.T


def leading(matrix, count):
    """Return leading singular triples, but those of no size, which are any directions."""
    left, values, right = decomposed(matrix)
    count = min(count, int(np.sum(values > 1e-14 * values[0])))
    return left[:, :count], values[:count], right[:, :count]


def polar(stacked):
    """Return the partial isometry of a polar decomposition."""
    left, values, right = decomposed(stacked)
    kept = values > 1e-10 * values[0]
    return left[:, kept] @ right[:, kept].T


def joined(parts):
    """Return the triples of all parts, both sides made orthogonal."""
    left, right = (polar(np.hstack([part[side] for part in parts])) for side in (0, 2))
    return left, np.concatenate([part[1] for part in parts]), right


def tsv_m(changes, weights):
    """Return TSV-M: the leading triples of each task, both sides made orthogonal."""
    count = max(1, min(changes[0].shape) // len(changes))
    left, values, right = joined([leading(w * change, count) for w, change in zip(weights, changes, strict=True)])
    return left * values @ right.T


def iso(changes, weights, common=1.0):
    """Return Iso-CTS; where all directions are common, Iso-C: the sum with its mean singular value everywhere."""
    own = [w * change for w, change in zip(weights, changes, strict=True)]
    least = min(own[0].shape)
    each = round((least - int(common * least)) / len(own))
    first = leading(sum(own), least - len(own) * each)
    left, values, right = joined([first, *(leading(one - first[0] @ (first[0].T @ one), each) for one in own)])
    return np.mean(values) * left @ right.T


def knots(changes, weights, combine="ties", density=0.2):
    """Return KnOTS: the parts of each task in joint left directions, merged there."""
    left, values, right = decomposed(np.hstack(changes))
    kept = values > 1e-10 * values[0]
    parts = np.split((values[kept] * right[:, kept]).T, len(changes), axis=1)
    weights = np.asarray(weights, dtype=np.float64)[:, None, None]
    if combine == "linear":
        return left[:, kept] @ (np.sum(weights * parts, axis=0) / weights.sum())
    trimmed = []
    for part in parts:
        least = np.sort(np.abs(part), axis=None)[-max(1, round(density * part.size))]
        trimmed.append(np.where(np.abs(part) >= least, part, 0.0))
    own = weights * trimmed
    agreeing = own * np.sum(own, axis=0) > 0
    below = np.sum(np.where(agreeing, np.abs(weights), 0.0), axis=0)
    total = np.sum(np.where(agreeing, own, 0.0), axis=0)
    return left[:, kept] @ np.where(below > 0, total / np.where(below > 0, below, 1.0), 0.0)


def regression(matrices, weights, moments):
    """Return the matrix M that makes sum w_k tr((M - D_k) G_k (M - D_k)^T) least."""
    above = sum(w * matrix @ moment for w, matrix, moment in zip(weights, matrices, moments, strict=True))
    below = sum(w * moment for w, moment in zip(weights, moments, strict=True))
    return np.linalg.solve(below, above.T).T


def row_moments(changes, ridge=0.1, centered=False):
    """Return second moments of the rows of each change, of trace 1, with a ridge."""
    moments = []
    for change in changes:
        rows = change - change.mean(axis=0) if centered else change
        size = np.sum(rows * rows)
        moments.append(rows.T @ rows / (size if size > 0 else 1.0))
    inputs = changes[0].shape[1]
    return [moment + ridge * np.trace(sum(moments) / len(moments)) / inputs * np.eye(inputs) for moment in moments]


def wudi(changes, weights, ridge=0.1, centered=False):
    """Return the regression mean that takes rows of changes for inputs."""
    return regression(changes, weights, row_moments(changes, ridge, centered))


FORMULAS = {"tsv_m": tsv_m, "iso": iso, "knots": knots, "wudi": wudi}


# Whole checkpoints.


def is_matrix(name, values):
    """Return whether a tensor is merged as a matrix."""
    return values.ndim > 1 and name.endswith("weight") and not any(part in name.lower() for part in MEANS)


def combined(method, base, models, weights=None, scaling=1.0, inputs_first=False, **options):
    """Return base + scaling * change of every tensor: of matrices by the method's formula, else the weighted mean."""
    weights = [1.0] * len(models) if weights is None else weights
    start, states = arrays(base), [arrays(model) for model in models]
    found = {}
    for name, values in start.items():
        changes = [state[name] - values for state in states]
        if not is_matrix(name, values):
            change = sum(w * one for w, one in zip(weights, changes, strict=True)) / sum(weights)
        else:
            turned = inputs_first and name.removesuffix("weight") + "bias" in start
            rows = [one.T if turned else one.reshape(len(one), -1) for one in changes]
            parts = 3 if FUSED.search(name) and rows[0].shape[0] == 3 * rows[0].shape[1] else 1
            pieces = zip(*(np.split(one, parts) for one in rows), strict=True)
            change = np.vstack([FORMULAS[method](list(piece), weights, **options) for piece in pieces])
            change = change.T if turned else change.reshape(values.shape)
        found[name] = values + scaling * change
    return found


SETTINGS = [
    ("tsv_m", {}),
    ("iso", {}),
    ("iso", {"common": 0.8}),
    ("iso", {"common": 0.5}),
    ("knots", {"combine": "linear"}),
    ("knots", {}),
    ("knots", {"combine": "ties", "density": 0.5}),
    ("wudi", {}),
    ("wudi", {"ridge": 1e-3}),
    ("wudi", {"ridge": 3.0}),
    ("wudi", {"centered": True}),
]
every_setting = pytest.mark.parametrize(("method", "options"), SETTINGS, ids=str)
METHODS = [SETTINGS[place] for place in (0, 1, 2, 4, 5, 7, 10)]
every_method = pytest.mark.parametrize(("method", "options"), METHODS, ids=str)
some_methods = pytest.mark.parametrize(("method", "options"), [METHODS[place] for place in (0, 2, 4, 5)], ids=str)


@every_setting
@both
@pytest.mark.parametrize("count", [3, 4])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("scaling", [None, 0.6])
def test_a_matrix_is_merged_by_its_formula_and_the_rest_by_the_mean(
    tmp_path, method, options, dtype, count, weighted, scaling
):
    base = small_state(dtype)
    models = fine_tunes(base, dtype, count)
    told = options | ({"weights": WEIGHTS[:count]} if weighted else {}) | ({"scaling": scaling} if scaling else {})
    found = merged(tmp_path, models, method, base, **told)
    agree(found, combined(method, base, models, **told), dtype, near=NEAR)


@pytest.mark.covering(1)
@some_methods
@both
def test_a_matrix_of_many_entries_is_merged_by_its_formula(tmp_path, method, options, dtype):
    base = base_state(dtype)
    models = fine_tunes(base, dtype, 2)
    found = merged(tmp_path, models, method, base, **options)
    agree(found, combined(method, base, models, **options), dtype, near=NEAR)


@pytest.mark.covering(1)
@every_method
@both
@pytest.mark.parametrize("count", [2, 3])
def test_matrices_that_are_stored_with_inputs_first_are_turned(tmp_path, method, options, dtype, count):
    base = small_state(dtype, INPUTS_FIRST)
    models = fine_tunes(base, dtype, count)
    found = merged(tmp_path, models, method, base, weights=WEIGHTS[:count], **options)
    wanted = combined(method, base, models, WEIGHTS[:count], inputs_first=True, **options)
    agree(found, wanted, dtype, near=NEAR)


@pytest.mark.parametrize(
    ("method", "options"), [("tsv_m", {}), ("iso", {}), ("iso", {"common": 0.8}), ("knots", {})], ids=str
)
@pytest.mark.parametrize("weights", [[1.5, -0.5, 0.75], [1.0, 0.0, 2.0]], ids=str)
def test_weights_may_be_negative_or_0(tmp_path, method, options, weights):
    base = small_state(torch.float32)
    models = fine_tunes(base, torch.float32, 3)
    found = merged(tmp_path, models, method, base, weights=weights, **options)
    agree(found, combined(method, base, models, weights, **options), torch.float32, near=NEAR)


@pytest.mark.covering(1)
@every_method
def test_square_matrices_alone_do_not_say_that_inputs_come_first(tmp_path, method, options):
    shapes = {"one.weight": (6, 6), "one.bias": (6,), "two.weight": (9, 6), "two.bias": (9,)}
    base = small_state(torch.float32, shapes)
    models = fine_tunes(base, torch.float32, 2)
    found = merged(tmp_path, models, method, base, **options)
    agree(found, combined(method, base, models, **options), torch.float32, near=NEAR)


@pytest.mark.covering(1)
@every_method
def test_the_type_of_the_output_is_rounded_to_once(tmp_path, method, options):
    base = small_state(torch.float32)
    models = fine_tunes(base, torch.float32, 3)
    found = merged(tmp_path, models, method, base, dtype="bfloat16", **options)
    agree(found, combined(method, base, models, **options), torch.bfloat16, near=NEAR)


# Laws of single methods, in float64.


def change_of(folder, changes, method, base=None, name="out", **options):
    """Return what a merge adds to a base, of changes of one matrix in float64."""
    start = np.zeros_like(changes[0]) if base is None else base
    models = [{"layer.weight": torch.from_numpy(start + change)} for change in changes]
    found = merged(folder, models, method, {"layer.weight": torch.from_numpy(start)}, name, **options)
    return found["layer.weight"].numpy() - start


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def assert_near(found, wanted, tolerance=1e-11):
    """Assert that a matrix is another to a part of its norm."""
    assert np.linalg.norm(found - wanted) <= tolerance * np.linalg.norm(wanted)


@pytest.mark.covering(1)
@pytest.mark.parametrize("shape", [(8, 5), (5, 8), (6, 6)], ids=str)
@pytest.mark.parametrize(
    ("method", "options"),
    [("tsv_m", {}), ("knots", {"combine": "linear"}), ("wudi", {}), ("wudi", {"centered": True})],
    ids=str,
)
@pytest.mark.parametrize("weights", [None, [0.5]], ids=str)
def test_one_model_is_returned(tmp_path, shape, method, options, weights):
    change = normal(*shape)
    found = change_of(tmp_path, [change], method, normal(*shape, seed=1), weights=weights, **options)
    assert_near(found, 0.5 * change if method == "tsv_m" and weights else change)


@both
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("knots", {"combine": "linear"}),
        ("knots", {"combine": "ties", "density": 1.0}),
        ("wudi", {}),
        ("wudi", {"ridge": 1e-3}),
    ],
    ids=str,
)
def test_equal_models_are_returned(tmp_path, dtype, count, method, options):
    base = small_state(dtype)
    (model,) = fine_tunes(base, dtype, 1)
    assert same_bits(merged(tmp_path, [model] * count, method, base, weights=WEIGHTS[:count], **options), model)


@pytest.mark.covering(1)
@pytest.mark.parametrize("shape", [(8, 12), (12, 8)], ids=str)
@pytest.mark.parametrize("method", ["wudi", "tsv_m"])
@pytest.mark.parametrize("sizes", [(1.0, 1.0), (10.0, 1.0), (1.0, 0.01)], ids=str)
def test_orthogonal_tasks_are_added(tmp_path, shape, method, sizes):
    """Tasks of other inputs and other outputs; of any sizes, without that one takes from the other."""
    outer, inner = np.linalg.qr(normal(shape[0], shape[0]))[0], np.linalg.qr(normal(shape[1], shape[1], seed=1))[0]
    changes = [
        size * outer[:, 4 * task : 4 * task + 4] * [1.0, 0.9, 0.7, 0.6] @ inner[:, 4 * task : 4 * task + 4].T
        for task, size in enumerate(sizes)
    ]
    found = change_of(tmp_path, changes, method, **({"ridge": 1e-8} if method == "wudi" else {}))
    for change in changes:
        assert abs(np.sum(found * change) / np.sum(change * change) - 1) < 1e-6
    assert_near(found, sum(changes), 1e-6)


def test_wudi_of_tasks_with_orthogonal_inputs_is_the_sum(tmp_path):
    changes = [np.zeros((9, 12)) for _ in range(3)]
    for task, change in enumerate(changes):
        change[:, 4 * task : 4 * task + 4] = normal(9, 4, seed=task)
    assert_near(change_of(tmp_path, changes, "wudi", ridge=1e-11), sum(changes), 1e-8)


@pytest.mark.parametrize("weights", [None, [1.0, 0.5, 2.0]], ids=str)
@pytest.mark.parametrize("options", [{}, {"ridge": 1e-4}, {"centered": True}, {"ridge": 5.0}], ids=str)
@pytest.mark.parametrize("shape", [(9, 5), (5, 9)], ids=str)
def test_wudi_is_where_the_gradient_of_its_loss_is_zero(tmp_path, weights, options, shape):
    changes = [normal(*shape, seed=seed) for seed in range(3)]
    found = change_of(tmp_path, changes, "wudi", weights=weights, **options)
    pulls = [
        w * (found - change) @ moment
        for w, change, moment in zip(weights or [1.0] * 3, changes, row_moments(changes, **options), strict=True)
    ]
    assert np.linalg.norm(sum(pulls)) <= 1e-12 * sum(np.linalg.norm(pull) for pull in pulls)


def test_a_large_ridge_of_wudi_is_the_mean(tmp_path):
    changes = [normal(6, 5, seed=seed) for seed in range(3)]
    found = change_of(tmp_path, changes, "wudi", ridge=1e9, weights=[1.0, 2.0, 1.0])
    assert_near(found, (changes[0] + 2 * changes[1] + changes[2]) / 4, 1e-7)


@both
@pytest.mark.parametrize("weights", [None, [1.0, 0.5, 2.0]], ids=str)
@pytest.mark.parametrize("scaling", [1.0, 0.7])
def test_knots_of_a_linear_merge_is_the_mean(tmp_path, dtype, weights, scaling):
    base = small_state(dtype)
    models = fine_tunes(base, dtype, 3)
    models[1]["model.layers.1.mlp.up.weight"] = base["model.layers.1.mlp.up.weight"]  # a task that changes nothing
    for model in models:
        model["model.layers.1.mlp.down.weight"][5:] = base["model.layers.1.mlp.down.weight"][5:]  # of low rank
    found = merged(tmp_path, models, "knots", base, weights=weights, scaling=scaling, combine="linear")
    start, states = arrays(base), [arrays(model) for model in models]
    means = {name: np.average([state[name] for state in states], axis=0, weights=weights) for name in start}
    wanted = {name: start[name] + scaling * (means[name] - start[name]) for name in start}
    agree(found, wanted, dtype, near=NEAR)


@pytest.mark.parametrize("density", [0.1, 0.5, 1.0])
def test_knots_by_ties_of_tasks_that_change_other_outputs_trims_each(tmp_path, density):
    """Outputs of orthogonal changes that nobody else touches are their own directions: TIES of the entries."""
    changes = [np.zeros((6, 9)) for _ in range(3)]
    wanted = []
    for task, change in enumerate(changes):
        change[2 * task] = (1 + task) * normal(9, seed=task)
        least = np.sort(np.abs(change), axis=None)[-max(1, round(density * 27))]  # three directions of nine inputs
        wanted.append(np.where(np.abs(change) >= least, change, 0.0))
    assert_near(change_of(tmp_path, changes, "knots", combine="ties", density=density), sum(wanted))


@pytest.mark.covering(1)
@pytest.mark.parametrize("shape", [(8, 5), (5, 8), (6, 6)], ids=str)
@pytest.mark.parametrize("weights", [None, [1.0, 0.5, 2.0]], ids=str)
@pytest.mark.parametrize("options", [{}, {"common": 1.0}, {"common": 0.8}, {"common": 0.4}], ids=str)
def test_iso_gives_equal_singular_values(tmp_path, shape, weights, options):
    changes = [normal(*shape, seed=seed) for seed in range(3)]
    found = np.linalg.svd(change_of(tmp_path, changes, "iso", weights=weights, **options), compute_uv=False)
    assert_allclose(found, np.mean(found), rtol=1e-10)
    if options.get("common", 1.0) == 1.0:
        total = sum(w * change for w, change in zip(weights or [1.0] * 3, changes, strict=True))
        assert_allclose(np.mean(found), np.mean(np.linalg.svd(total, compute_uv=False)), rtol=1e-11)


@pytest.mark.parametrize(("alias", "common"), [("iso_c", 1.0), ("iso_cts", 0.8)])
def test_isos_of_other_tools_are_iso(tmp_path, alias, common):
    base = small_state(torch.float32)
    models = fine_tunes(base, torch.float32, 3)
    one = merged(tmp_path, models, alias, base, "one")
    assert same_bits(one, merged(tmp_path, models, "iso", base, "two", common=common))


@pytest.mark.parametrize("rank", [4, 3, 1])
@pytest.mark.parametrize("shape", [(24, 16), (16, 24), (16, 16)], ids=str)
def test_tsv_m_of_equal_tasks_of_low_rank_is_the_task(tmp_path, rank, shape):
    change = normal(shape[0], rank) @ normal(rank, shape[1], seed=1)
    assert_near(change_of(tmp_path, [change] * 4, "tsv_m"), change, 1e-10)


@pytest.mark.parametrize("shape", [(12, 9), (9, 12)], ids=str)
def test_iso_of_a_sum_of_low_rank_adds_no_directions(tmp_path, shape):
    changes = [normal(shape[0], 2) @ normal(2, shape[1], seed=seed) for seed in range(1, 3)]
    left, values, right = np.linalg.svd(sum(changes), full_matrices=False)
    wanted = np.mean(values[:2]) * left[:, :2] @ right[:2]  # with as large a sum of singular values
    assert_near(change_of(tmp_path, changes, "iso"), wanted)


def test_tsv_m_leaves_out_directions_of_no_size(tmp_path):
    """Of three tasks of rank 2 there are two directions each, where there would be room for four."""
    changes = [normal(12, 2, seed=seed) @ normal(2, 12, seed=seed + 9) for seed in range(3)]
    left, values, right = joined([[part[..., :2] for part in decomposed(change)] for change in changes])
    assert_near(change_of(tmp_path, changes, "tsv_m"), left * values @ right.T)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("scaling", [1.0, 0.5])
def test_tsv_m_of_equal_tasks_is_what_they_keep(tmp_path, count, scaling):
    change = normal(12, 10)
    left, values, right = np.linalg.svd(change, full_matrices=False)
    kept = slice(10 // count)
    found = change_of(tmp_path, [change] * count, "tsv_m", scaling=scaling)
    assert_near(found, scaling * left[:, kept] * values[kept] @ right[kept])


# Laws of all of them.


@pytest.mark.covering(1)
@both
@every_method
@pytest.mark.parametrize("weighted", [False, True])
def test_a_scaling_of_0_is_the_base(tmp_path, dtype, method, options, weighted):
    base = small_state(dtype)
    told = options | ({"weights": WEIGHTS[:3]} if weighted else {})
    assert same_bits(merged(tmp_path, fine_tunes(base, dtype, 3), method, base, scaling=0.0, **told), base)


@pytest.mark.covering(1)
@both
@every_method
def test_models_that_changed_no_matrix_are_the_base_there(tmp_path, dtype, method, options):
    base = small_state(dtype)
    models = fine_tunes(base, dtype, 3)
    for model in models:
        model.update({name: values for name, values in base.items() if values.ndim > 1})
    found = merged(tmp_path, models, method, base, **options)
    vectors = [{name: model[name] for name in model if model[name].ndim == 1} for model in models]
    same = {name: values for name, values in arrays(base).items() if values.ndim > 1}
    agree(found, same | combined(method, {name: base[name] for name in vectors[0]}, vectors), dtype)
    assert all(torch.equal(found[name], values) for name, values in base.items() if values.ndim > 1)


@pytest.mark.covering(1)
@every_method
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(8, 5), (5, 8), (6, 4, 3, 3)], ids=str)
def test_the_order_of_models_changes_nothing(tmp_path, method, options, weighted, shape):
    changes = [normal(*shape, seed=seed) for seed in range(3)]
    first, other = (
        change_of(
            tmp_path,
            [changes[one] for one in order],
            method,
            name=str(order),
            weights=[WEIGHTS[one] for one in order] if weighted else None,
            **options,
        )
        for order in [(0, 1, 2), (2, 0, 1)]
    )
    assert_near(first.reshape(-1), other.reshape(-1), 1e-10)


@pytest.mark.covering(1)
@every_method
@pytest.mark.parametrize("factor", [4.0, 1e-3, 300.0])
@pytest.mark.parametrize("shape", [(8, 5), (5, 8), (12, 4)], ids=str)
def test_longer_changes_make_a_longer_change(tmp_path, method, options, factor, shape):
    changes = [normal(*shape, seed=seed) for seed in range(3)]
    one = change_of(tmp_path, changes, method, name="one", **options)
    other = change_of(tmp_path, [factor * change for change in changes], method, name="two", **options)
    assert_near(other, factor * one, 1e-10)


@every_method
def test_a_tensor_that_is_added_to_all_is_added_to_the_merge(tmp_path, method, options):
    changes = [normal(8, 5, seed=seed) for seed in range(3)]
    one = change_of(tmp_path, changes, method, name="one", **options)
    other = change_of(tmp_path, changes, method, normal(8, 5, seed=9), name="two", **options)
    assert_near(other, one, 1e-10)


@pytest.mark.covering(1)
@some_methods
@both
def test_threads_files_and_shards_do_not_change_a_byte(tmp_path, method, options, dtype):
    shapes = {"a.weight": (1100, 120), "b.weight": (24, 16), "c.qkv.weight": (18, 6), "d.bias": (9,)}
    base = small_state(dtype, shapes)  # the first is more than a block of entries
    models = fine_tunes(base, dtype, 2)
    one, more = (merged(tmp_path, models, method, base, str(n), threads=n, **options) for n in (1, 3))
    assert same_bits(one, more)
    start = write(tmp_path / "base", base, shards=2)
    folders = [write(tmp_path / str(n), model, shards=1 + 2 * n) for n, model in enumerate(models)]
    done = cs.merge(folders, tmp_path / "out", method, base=start, shard_bytes=4000, threads=2, **options)
    assert same_bits(read(done.output), one)


@pytest.mark.covering(1)
@every_method
def test_a_model_that_is_the_base_has_no_directions(tmp_path, method, options):
    base = small_state(torch.float32)
    models = [*fine_tunes(base, torch.float32, 2), base]
    found = merged(tmp_path, models, method, base, **options)
    agree(found, combined(method, base, models, **options), torch.float32, near=NEAR)


# The regression mean of second moments of inputs.


def plain_net(seed):
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(6, 5), torch.nn.LayerNorm(5), torch.nn.Tanh(), torch.nn.Linear(5, 3)]
    return torch.nn.Sequential(*layers), (6,)


def image_net(seed):
    torch.manual_seed(seed)
    layers = [torch.nn.Conv2d(2, 3, 3, padding=1), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(27, 3)]
    return torch.nn.Sequential(*layers), (2, 3, 3)


def trained(start, count, dtype):
    """Return networks that are perturbed from one start, and inputs of each, of other sizes and scales."""
    nets, inputs = [], []
    for number in range(count):
        net, shape = start(0)
        draw = torch.Generator().manual_seed(50 + number)
        with torch.no_grad():
            for values in net.parameters():
                values += 0.2 * torch.randn(values.shape, generator=draw)
        x = torch.randn((200 + 50 * number, *shape), generator=draw)
        tilt = 0.5 + torch.rand(shape, generator=draw)
        nets.append(net.to(dtype))
        inputs.append((tilt * x + 0.3 * number).to(dtype))
    return nets, inputs


def seen(net, x):
    """Return the mean second moments of what every linear layer and convolution reads, by the name of its weight."""
    found = {}

    def note(layer, given, _, name):
        values = given[0].detach()
        if isinstance(layer, torch.nn.Conv2d):
            values = torch.nn.functional.unfold(values, layer.kernel_size, padding=layer.padding).transpose(1, 2)
            values = values.reshape(-1, values.shape[-1])
        values = values.double().numpy()
        found[name + ".weight"] = values.T @ values / len(values)

    layers = (torch.nn.Linear, torch.nn.Conv2d)
    hooks = [
        layer.register_forward_hook(lambda *told, name=name: note(*told, name))
        for name, layer in net.named_modules()
        if isinstance(layer, layers)
    ]
    with torch.no_grad():
        net(x)
    for hook in hooks:
        hook.remove()
    return found


def regression_mean(nets, inputs, weights, off_diagonal=0.95):
    """Return the regression mean of weights by their layers' inputs, and the weighted mean of everything else."""
    moments = [seen(net, x) for net, x in zip(nets, inputs, strict=True)]
    states = [arrays(net.state_dict()) for net in nets]
    found = {}
    for name in states[0]:
        own = [state[name] for state in states]
        if name in moments[0]:
            shape = own[0].shape
            shrunk = [one[name] * (off_diagonal + (1 - off_diagonal) * np.eye(len(one[name]))) for one in moments]
            found[name] = regression([one.reshape(shape[0], -1) for one in own], weights, shrunk).reshape(shape)
        else:
            found[name] = sum(w * one for w, one in zip(weights, own, strict=True)) / sum(weights)
    return found


def regmean(folder, nets, inputs, name="out", weights=None, **options):
    """Write networks and what they know of their inputs, merge them, and return the tensors."""
    files = []
    for number, (net, x) in enumerate(zip(nets, inputs, strict=True)):
        files.append(folder / f"{name} fisher {number}.safetensors")
        cs.save(cs.fisher(net, x, kind="kronecker"), files[-1])
    models = [net.state_dict() for net in nets]
    return merged(folder, models, "regmean", None, name, weights=weights, fishers=files, **options)


@pytest.mark.covering(1)
@pytest.mark.parametrize("start", [plain_net, image_net])
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("options", [{}, {"off_diagonal": 1.0}, {"off_diagonal": 0.5}, {"off_diagonal": 0.0}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_regmean_is_the_regression_on_the_inputs_of_layers(tmp_path, start, count, weighted, options, dtype):
    nets, inputs = trained(start, count, dtype)
    weights = WEIGHTS[:count] if weighted else None
    found = regmean(tmp_path, nets, inputs, weights=weights, **options)
    wanted = regression_mean(nets, inputs, weights or [1.0] * count, **options)
    assert found.keys() == wanted.keys()
    for name, values in found.items():
        assert values.dtype == dtype
        assert_near(values.double().numpy(), wanted[name], 1e-6)  # files have second moments in float32


@pytest.mark.covering(1)
@pytest.mark.parametrize("start", [plain_net, image_net])
@pytest.mark.parametrize("options", [{}, {"off_diagonal": 0.5}], ids=str)
def test_regmean_of_equal_networks_is_the_network(tmp_path, start, options):
    nets, inputs = trained(start, 2, torch.float32)
    found = regmean(tmp_path, [nets[0]] * 3, [*inputs, inputs[0]], **options)
    assert same_bits(found, nets[0].state_dict())


def test_regmean_of_one_network_is_the_network(tmp_path):
    nets, inputs = trained(plain_net, 1, torch.float32)
    assert same_bits(regmean(tmp_path, nets, inputs), nets[0].state_dict())


def test_regmean_on_the_same_inputs_is_the_mean_in_the_first_layer(tmp_path):
    nets, inputs = trained(plain_net, 3, torch.float64)
    found = regmean(tmp_path, nets, [inputs[0]] * 3, weights=[1.0, 2.0, 1.0])
    one, two, three = (net.state_dict()["0.weight"].numpy() for net in nets)
    assert_near(found["0.weight"].numpy(), (one + 2 * two + three) / 4)


def test_regmean_of_other_orders_and_threads_is_the_same(tmp_path):
    nets, inputs = trained(image_net, 3, torch.float32)
    one, two = (regmean(tmp_path, nets, inputs, f"threads {n}", threads=n) for n in (1, 3))
    assert same_bits(one, two)
    other = regmean(tmp_path, nets[::-1], inputs[::-1], "other")
    for name, values in one.items():
        assert_near(other[name].numpy(), values.numpy(), 1e-6)


# Refusals.


@pytest.mark.covering(1)
@every_method
def test_a_base_is_needed(tmp_path, method, options):
    base = small_state(torch.float32)
    with pytest.raises(cs.errors.ConsilienceError, match="base"):
        merged(tmp_path, fine_tunes(base, torch.float32, 2), method, **options)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("wudi", {"ridge": -0.1}),
        ("wudi", {"ridge": np.nan}),
        ("iso", {"common": 0.0}),
        ("iso", {"common": -0.2}),
        ("iso", {"common": 1.1}),
        ("iso", {"common": np.nan}),
        ("knots", {"combine": "ties", "density": 0.0}),
        ("knots", {"combine": "ties", "density": 1.5}),
        ("knots", {"combine": "ties", "density": np.nan}),
        ("knots", {"combine": "median"}),
        ("tsv_m", {"scaling": np.nan}),
        ("tsv_m", {"density": 0.2}),
    ],
    ids=str,
)
def test_options_that_mean_nothing_are_refused(tmp_path, method, options):
    base = small_state(torch.float32)
    with pytest.raises(cs.errors.OptionError, match=[*options][-1]):
        merged(tmp_path, fine_tunes(base, torch.float32, 2), method, base, **options)


@pytest.mark.covering(1)
@every_method
@pytest.mark.parametrize("weights", [[1.0, np.nan], [np.inf, 1.0], [1.0], [1.0, 1.0, 1.0]], ids=str)
def test_weights_that_are_no_numbers_or_too_many_are_refused(tmp_path, method, options, weights):
    base = small_state(torch.float32)
    with pytest.raises(cs.errors.ConsilienceError, match="weight"):
        merged(tmp_path, fine_tunes(base, torch.float32, 2), method, base, weights=weights, **options)


@pytest.mark.parametrize("weights", [[1.0, -0.5], [0.0, 0.0]], ids=str)
def test_a_regression_takes_no_negative_weights(tmp_path, weights):
    base = small_state(torch.float32)
    with pytest.raises(cs.errors.OptionError, match="weights"):
        merged(tmp_path, fine_tunes(base, torch.float32, 2), "wudi", base, weights=weights)


@pytest.mark.covering(1)
@every_method
def test_a_matrix_with_a_nan_is_named(tmp_path, method, options):
    base = small_state(torch.float32)
    models = fine_tunes(base, torch.float32, 2)
    models[1]["model.layers.1.mlp.up.weight"][3, 4] = torch.nan
    with pytest.raises(cs.errors.ConsilienceError, match=r"mlp\.up"):
        merged(tmp_path, models, method, base, **options)


def test_regmean_needs_what_networks_know_of_their_inputs(tmp_path):
    nets, inputs = trained(plain_net, 2, torch.float32)
    models = [net.state_dict() for net in nets]
    with pytest.raises(cs.errors.ConsilienceError, match="fishers"):
        merged(tmp_path, models, "regmean")
    file = saved(tmp_path / "one.safetensors", models[0])
    with pytest.raises(cs.errors.ConsilienceError):
        merged(tmp_path, models, "regmean", fishers=[file, file])
    with pytest.raises(cs.errors.ConsilienceError):
        regmean(tmp_path, nets, inputs, off_diagonal=1.5)
