"""Fisher and self-supervised Fisher merging: the laws of multiplying Gaussians, whichever way they are solved."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import consilience as cs
from consilience.networks.methods.fisher.masked_objective import LowRankGaussian, MaskedObjective, draw_masks
from consilience.networks.methods.fisher.precision import conjugate_gradients
from tests.copies import COPIES
from tests.networks.fusable_nets import deviation, outputs, proved, shuffled
from tests.networks.informed_nets import dense, informed, observations, perceptron, vector
from tests.tolerances import DIFFERENCES, ROUNDING, SINGLE_PRECISION

pytestmark = pytest.mark.covering(2)

SOLVED = {"tolerance": 1e-13, "max_iterations": 5000}
EVERY = {
    "isotropic": cs.methods.FisherMerging(structure="isotropic"),
    "diagonal": cs.methods.FisherMerging(structure="diagonal"),
    "diagonal, normalised": cs.methods.FisherMerging(structure="diagonal", normalize=True),
    "low rank": cs.methods.FisherMerging(**SOLVED),
    "full": cs.methods.FisherMerging(structure="full"),
    "ssf": cs.methods.SelfSupervisedFisher(**SOLVED),
    "ssf, windows": cs.methods.SelfSupervisedFisher(window=20, masks=60, shrinkage=0.9, **SOLVED),
}
SLOWER = ("ssf, windows",)  # the same objective, with masks drawn by windows
every_method = pytest.mark.parametrize(
    "method",
    [pytest.param(made, id=name, marks=pytest.mark.slow if name in SLOWER else ()) for name, made in EVERY.items()],
)
LAST_BIT = ("isotropic", "diagonal", "diagonal, normalised")


def merged(models, method, fishers, **options):
    return vector(cs.fuse(models, method, fishers=fishers, **options).model)


# -- What any merge by information must do.


@COPIES
@pytest.mark.parametrize("name", EVERY)
def test_equal_models_are_returned(name):
    _, infos = informed(prior_precision=0.0)
    twins = [perceptron() for _ in range(3)]
    infos = [replace(info, digest=None) for info in infos]
    theta = merged(twins, EVERY[name], infos)
    expected = vector(twins[0])
    assert (theta - expected).abs().max() <= (0.0 if name in LAST_BIT else ROUNDING)


@every_method
def test_the_order_of_the_models_changes_nothing(method):
    models, infos = informed()
    one = merged(models, method, infos, weights=[1.0, 2.0, 3.0])
    other = merged(models[::-1], method, infos[::-1], weights=[3.0, 2.0, 1.0])
    assert torch.equal(one, other)


@COPIES
@pytest.mark.parametrize("name", ["isotropic", "diagonal", "low rank", "full"])
def test_a_model_counted_twice_is_two_models(name):
    models, infos = informed()
    method = replace(EVERY[name], prior="ignored")
    twice = merged([*models, models[0]], method, [*infos, infos[0]])
    weighted = merged(models, method, infos, weights=[2.0, 1.0, 1.0])
    assert torch.allclose(weighted, twice, atol=1e-7)


@every_method
def test_units_in_another_order_are_matched_first(method):
    models, x = informed()[0], observations(9)
    symmetry = cs.symmetry(models[0], x)
    others = [models[0], *(shuffled(model, symmetry, seed) for seed, model in enumerate(models[1:], 1))]
    infos, moved = (
        [cs.fisher(model, observations(seed), "factors", rank=None, minimum=1) for seed, model in enumerate(nets)]
        for nets in (models, others)
    )
    plain = cs.fuse(models, replace(method, prior="kept"), fishers=infos, example=x, reference=0)
    fusion = cs.fuse(others, replace(method, prior="kept"), fishers=moved, example=x, reference=0)
    assert fusion.details["aligned"]
    # Masks and windows are drawn by the place of a parameter, which is the reference's.
    assert deviation(fusion.model, plain.model, x) < 1e-6


def test_signs_of_units_are_matched_too():
    models, x = informed()[0], observations(9)
    turned = perceptron()
    turned.load_state_dict(models[1].state_dict())
    with torch.no_grad():
        turned[0].weight[1] *= -1
        turned[0].bias[1] *= -1
        turned[2].weight[:, 1] *= -1
    infos = [cs.fisher(model, x, "factors", rank=None, minimum=1) for model in (models[0], models[1], turned)]
    plain = cs.fuse([models[0], models[1]], "fisher", fishers=infos[:2], example=x)
    fusion = cs.fuse([models[0], turned], "fisher", fishers=[infos[0], infos[2]], example=x)
    assert deviation(fusion.model, plain.model, x) < 1e-9


def test_networks_of_different_starts_are_told_to_be_aligned():
    models = [perceptron(seed) for seed in (0, 1)]
    fusion = cs.fuse(models, "fisher", structure="isotropic")
    assert not fusion.details["aligned"]
    assert "example=" in fusion.details["notes"][0]
    assert not cs.fuse(models, "fisher", structure="isotropic", example=observations(0)).details["notes"]


@pytest.mark.parametrize("factored", [(), (0,), (2,), (0, 1, 2)], ids=str)
def test_what_any_site_knows_of_pairs_of_parameters_is_used(factored):
    """Also where the other sites have diagonals: a diagonal is a matrix, which is solved with the others."""
    models, infos = informed()
    diagonals = informed("diagonal")[1]
    mixed = [infos[site] if site in factored else diagonals[site] for site in range(3)]
    fusion = cs.fuse(models, "fisher", fishers=mixed, prior="kept", shrinkage=0.0, **SOLVED)
    assert fusion.details["structure"] == ("low_rank" if factored else "diagonal")
    precisions = [torch.as_tensor(dense(info)) + info.prior_precision * torch.eye(len(dense(info))) for info in mixed]
    parameters = [vector(model) for model in models]
    expected = torch.linalg.solve(sum(precisions), sum(p @ t for p, t in zip(precisions, parameters, strict=True)))
    assert torch.allclose(vector(fusion.model), expected, atol=1e-7)


# -- The diagonal merge.


def test_equal_information_gives_the_mean_and_scales_cancel():
    models, infos = informed("diagonal")
    mean = merged(models, EVERY["isotropic"], None)
    constant = [{key: np.full(values.shape, 0.3) for key, values in infos[0].residual.items()}] * 3
    assert torch.allclose(merged(models, "fisher", constant), mean, atol=ROUNDING)
    same = [replace(infos[0], digest=None)] * 3
    assert torch.allclose(merged(models, "fisher", same), mean, atol=ROUNDING)
    scaled = [replace(info, residual={k: 1e-9 * v for k, v in info.residual.items()}) for info in infos]
    assert torch.allclose(merged(models, "fisher", scaled), merged(models, "fisher", infos), atol=1e-10)


def test_where_nobody_knows_anything_the_mean_or_the_target_is_taken():
    models, infos = informed("diagonal")
    blind = [{key: values.clone() for key, values in info.residual.items()} for info in infos]
    for one in blind:
        one["0.weight"][0] = 0.0
    found = cs.fuse(models, "fisher", fishers=blind).model[0].weight[0]
    assert torch.allclose(found, sum(model[0].weight[0] for model in models) / 3)
    target = cs.fuse(models, "fisher", fishers=blind, favor_target=1).model[0].weight[0]
    assert torch.allclose(target, models[1][0].weight[0])


def test_the_prior_is_counted_as_told():
    models, infos = informed("diagonal", 0.7)
    diagonals = [torch.cat([values.ravel() for values in info.residual.values()]) for info in infos]
    thetas = [vector(model) for model in models]
    above = sum((f + 0.7) * theta for f, theta in zip(diagonals, thetas, strict=True))
    for prior, below in (("removed", sum(diagonals) + 0.7), ("kept", sum(diagonals) + 3 * 0.7)):
        assert torch.allclose(merged(models, "fisher", infos, prior=prior), above / below)
    own = merged(models, "fisher", infos, prior="removed", prior_precision=2.0)
    assert torch.allclose(own, above / (sum(diagonals) + 2.0))


def test_sites_of_one_weight_decay_keep_their_priors():
    models, infos = informed()
    products = [0.7 * (1 + 1e-9), 0.7, 0.7 * (1 - 1e-9)]
    rounded = [replace(info, prior_precision=alpha) for info, alpha in zip(infos, products, strict=True)]
    assert cs.fuse(models, "fisher", fishers=rounded).details["prior"] == "removed"
    mixed = [replace(info, prior_precision=alpha) for info, alpha in zip(infos, (0.5, 1.0, 2.0), strict=True)]
    fusion = cs.fuse(models, "fisher", fishers=mixed)
    assert fusion.details["prior"] == "kept"
    assert "priors differ" in fusion.details["notes"][0]
    assert torch.equal(vector(fusion.model), merged(models, "fisher", mixed, prior="kept"))


def test_a_site_whose_information_is_larger_need_not_count_more():
    models, infos = informed()

    def enlarged(one):
        residual = {key: 7.0 * values for key, values in one.residual.items()}
        return replace(one, residual=residual, factors={key: 7.0**0.5 * values for key, values in one.factors.items()})

    scaled = [infos[0], *map(enlarged, infos[1:])]
    for method in ("fisher", "ssf"):
        options = {"prior": "ignored", "normalize": True, **SOLVED}
        one, other = (merged(models, method, given, **options) for given in (scaled, infos))
        assert torch.allclose(one, other, atol=1e-6)


def test_dynamic_ranges_of_any_size_are_weighed():
    models, infos = informed("diagonal")
    tiny = {key: np.full(values.shape, 1e-15, np.float32) for key, values in infos[0].residual.items()}
    huge = {key: np.full(values.shape, 1e15, np.float32) for key, values in infos[0].residual.items()}
    assert torch.allclose(merged(models[:2], "fisher", [tiny, huge]), vector(models[1]), atol=ROUNDING)


# -- The whole matrix.


def linear(weight):
    module = nn.Linear(weight.shape[1], weight.shape[0], bias=False).double()
    module.weight = nn.Parameter(weight.clone())
    return module


def ridge(x, y, prior, noise):
    """Return the mode of a linear regression's posterior."""
    return torch.linalg.solve(x.T @ x / noise**2 + prior * torch.eye(x.shape[1]), x.T @ y / noise**2).T


@COPIES
@pytest.mark.parametrize("structure", ["low_rank", "full"])
@pytest.mark.parametrize("prior", [1e-3, 0.7])
def test_linear_regressions_on_disjoint_data_give_the_regression_on_all(structure, prior):
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(0)
        xs = [torch.randn(40, 5) + shift for shift in (-1.0, 0.0, 2.0)]
        ys = [x @ torch.randn(5, 2) + 0.3 * torch.randn(40, 2) for x in xs]
        models = [linear(ridge(x, y, prior, 0.3)) for x, y in zip(xs, ys, strict=True)]
        infos = [
            cs.fisher(model, x, "factors", "gaussian", noise=0.3, prior_precision=prior, minimum=1)
            for model, x in zip(models, xs, strict=True)
        ]
        fusion = cs.fuse(models, "fisher", fishers=infos, structure=structure, **SOLVED)
        pooled = ridge(torch.cat(xs), torch.cat(ys), prior, 0.3)
        assert (fusion.model.weight - pooled).abs().max() < 1e-10
        # With the first site twice, its data count twice.
        twice = cs.fuse([*models, models[0]], "fisher", fishers=[*infos, infos[0]], structure=structure, **SOLVED)
        doubled = ridge(torch.cat([*xs, xs[0]]), torch.cat([*ys, ys[0]]), prior, 0.3)
        assert (twice.model.weight - doubled).abs().max() < 1e-10
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("structure", ["low_rank", "full"])
def test_logistic_regressions_give_the_product_of_their_laplace_posteriors(structure):
    torch.manual_seed(1)
    models = [nn.Linear(4, 3).double() for _ in range(3)]
    infos = [
        cs.fisher(model, observations(seed, 60, 4), "factors", rank=None, prior_precision=0.5, minimum=1)
        for seed, model in enumerate(models)
    ]
    precisions = [dense(info) + 0.5 * torch.eye(15, dtype=torch.float64) for info in infos]
    total = sum(precisions) - 2 * 0.5 * torch.eye(15, dtype=torch.float64)
    expected = torch.linalg.solve(total, sum(p @ vector(one) for p, one in zip(precisions, models, strict=True)))
    fusion = cs.fuse(models, "fisher", fishers=infos, structure=structure, **SOLVED)
    assert fusion.details["shrinkage"] == 0.0
    assert torch.allclose(vector(fusion.model), expected, atol=1e-9)


@pytest.mark.parametrize("shrinkage", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("prior", ["removed", "kept", "ignored"])
def test_conjugate_gradients_solve_what_a_full_matrix_solves(shrinkage, prior):
    models, infos = informed()
    options = {"shrinkage": shrinkage, "prior": prior, "weights": [1.0, 2.0, 0.5]}
    full = cs.fuse(models, "fisher", fishers=infos, structure="full", **options)
    fusion = cs.fuse(models, "fisher", fishers=infos, **SOLVED, **options)
    assert fusion.objective == pytest.approx(full.objective, rel=1e-7, abs=1e-10)
    assert torch.allclose(vector(fusion.model), vector(full.model), atol=1e-5)


def test_everything_shrunk_is_the_diagonal_merge():
    models, infos = informed()
    whole = merged(models, "fisher", infos, shrinkage=1.0, **SOLVED)
    assert torch.allclose(whole, merged(models, "fisher", infos, structure="diagonal", prior="removed"), atol=1e-10)


@pytest.mark.parametrize("name", ["low rank", "ssf", "ssf, windows"])
def test_the_objective_never_rises(name):
    models, infos = informed()
    fusion = cs.fuse(models, EVERY[name], fishers=infos)
    assert fusion.status is cs.results.Status.CONVERGED
    assert len(fusion.history) > 1
    assert np.all(np.diff(fusion.history) <= ROUNDING * np.abs(fusion.history[:-1]))
    assert fusion.objective == pytest.approx(fusion.history[-1], rel=1e-9)


def test_equations_that_are_not_solved_in_time_say_so():
    models, infos = informed()
    for method in ("fisher", "ssf"):
        assert cs.fuse(models, method, fishers=infos, max_iterations=1).status is cs.results.Status.UNSOLVED


def test_directions_of_which_nothing_is_known_stay_at_the_diagonal_merge():
    models, _ = informed()
    x = observations(0).clone()
    x[:, 0] = 0.0
    infos = [cs.fisher(model, x, "factors", rank=None, prior_precision=0.0, minimum=1) for model in models]
    fusion = cs.fuse(models, "fisher", fishers=infos, **SOLVED)
    assert fusion.details["ridge"] > 0
    expected = sum(model[0].weight[:, 0] for model in models) / 3
    assert torch.allclose(fusion.model[0].weight[:, 0], expected, atol=1e-6)


def test_directions_of_which_nothing_but_the_fused_prior_is_known_go_to_zero():
    models, _ = informed()
    x = observations(0).clone()
    x[:, 0] = 0.0
    infos = [cs.fisher(model, x, "factors", rank=None, prior_precision=0.0, minimum=1) for model in models]
    fusion = cs.fuse(models, "fisher", fishers=infos, prior="removed", prior_precision=0.5, **SOLVED)
    assert fusion.status is cs.results.Status.CONVERGED
    assert torch.allclose(fusion.model[0].weight[:, 0], torch.zeros(1, dtype=torch.float64), atol=1e-6)


def test_a_zero_gradient_needs_no_step():
    solution = conjugate_gradients(lambda v: v, np.zeros(3), np.ones(3), 1e-8, 10, lambda *_: None)
    assert solution.converged
    assert not solution.x.any()


# -- Masked parameters.


def random_sites(rng, size=9, rank=4, number=2):
    return [
        LowRankGaussian(rng.normal(size=size), rng.normal(size=(size, rank)), rng.uniform(0.5, 1.5, size), count)
        for count in rng.uniform(0.5, 1.5, number).tolist()
    ]


@pytest.mark.parametrize("masked", [1, 3, 7, 9])
@pytest.mark.parametrize("window", [None, 8])
def test_gradients_and_products_are_those_of_the_objective(masked, window):
    rng = np.random.default_rng(masked)
    masks = draw_masks(9, 5, min(masked, window or 9), window, rng)
    objective = MaskedObjective(random_sites(rng), masks, excess=0.1)
    theta = rng.normal(size=9)
    step = 1e-4 * np.eye(9)
    slopes = np.array([(objective.value(theta + h) - objective.value(theta - h)) / 2e-4 for h in step])
    assert np.allclose(objective.value_and_gradient(theta)[1], slopes, atol=DIFFERENCES)
    matrix = np.stack([objective.times(row) for row in np.eye(9)])
    assert np.allclose(matrix, matrix.T, atol=ROUNDING)
    assert np.allclose(np.diag(matrix), objective.diagonal, atol=ROUNDING)
    moved = objective.value_and_gradient(theta + 1.0)[1] - objective.value_and_gradient(theta)[1]
    assert np.allclose(matrix @ np.ones(9), moved, atol=1e-10)


@pytest.mark.parametrize("masked", [1, 2, 5])
def test_the_objective_is_that_of_conditional_gaussians(masked):
    """Log densities of masked entries given the rest, by the conditional mean and the diagonal of its precision."""
    rng = np.random.default_rng(masked)
    sites, masks = random_sites(rng, 5, 2), draw_masks(5, 4, masked, None, rng)
    objective = MaskedObjective(sites, masks, excess=0.3)

    def expected(theta):
        total = 0.0
        for mask in masks:
            m = mask.masked
            r = np.setdiff1d(np.arange(5), m)
            for site in sites:
                p = site.rows @ site.rows.T + np.diag(site.diagonal_part)
                mean = site.mean[m] - np.linalg.solve(p[np.ix_(m, m)], p[np.ix_(m, r)] @ (theta[r] - site.mean[r]))
                total += site.count * 0.5 * np.sum(np.diag(p)[m] * (theta[m] - mean) ** 2)
            total -= 0.5 * 0.3 * np.sum(theta[m] ** 2)
        return total / (len(masks) * masked)

    for theta in rng.normal(size=(3, 5)):
        assert objective.value(theta) == pytest.approx(expected(theta), rel=1e-10)


@pytest.mark.parametrize("window", [None, 7])
def test_all_parameters_are_masked_equally_often(window):
    masks = draw_masks(10, 15, 4, window, np.random.default_rng(0))
    counts = np.bincount(np.concatenate([mask.masked for mask in masks]), minlength=10)
    assert counts.max() - counts.min() <= 1
    assert all(len(np.unique(mask.masked)) == 4 for mask in masks)
    for mask in masks:
        if window is not None:
            assert len(np.unique(mask.window)) == window
            assert np.isin(mask.masked, mask.window).all()


def test_all_masked_is_the_diagonal_merge():
    models, infos = informed()
    diagonal = merged(models, "fisher", infos, structure="diagonal", prior="removed")
    assert torch.allclose(merged(models, "ssf", infos, mask_rate=1.0, **SOLVED), diagonal, atol=1e-10)


def test_diagonal_information_gives_the_diagonal_merge_for_every_mask():
    models, infos = informed("diagonal")
    diagonal = merged(models, "fisher", infos, prior="removed")
    for options in ({"mask_rate": 0.3}, {"mask_rate": 0.1, "window": 9, "masks": 80}):
        assert torch.allclose(merged(models, "ssf", infos, **options, **SOLVED), diagonal, atol=1e-8)


@pytest.mark.parametrize("prior", ["ignored", "kept"])
def test_parameters_that_no_mask_touches_stay_at_the_diagonal_merge(prior):
    models, infos = informed()
    fusion = cs.fuse(models, "ssf", fishers=infos, mask_rate=0.5, window=6, masks=2, prior=prior, shrinkage=0.9)
    start = merged(models, "fisher", infos, structure="diagonal", prior=prior)
    assert fusion.status is cs.results.Status.CONVERGED
    assert (torch.abs(vector(fusion.model) - start) < 1e-12).sum() >= len(start) - 12


def test_a_site_without_a_prior_is_held_by_a_ridge_of_its_own():
    models, infos = informed()
    mixed = [replace(info, prior_precision=float(number)) for number, info in enumerate(infos)]
    fusion = cs.fuse(models, "ssf", fishers=mixed, shrinkage=0.0, prior="kept")
    assert fusion.details["ridge"] > 0


def test_flat_priors_leave_the_mean_where_nobody_knows_anything():
    models, infos = informed("diagonal", 0.7)
    blind = [replace(info, residual={k: v.clone() for k, v in info.residual.items()}) for info in infos]
    for one in blind:
        one.residual["0.weight"][0] = 0.0
    found = cs.fuse(models, "fisher", fishers=blind, prior_precision=0.0).model[0].weight[0]
    assert torch.allclose(found, sum(model[0].weight[0] for model in models) / 3)


# -- Networks of all kinds.


def _known(models, inputs, kind):
    return [cs.fisher(model, inputs, kind, minimum=1) for model in models]


@pytest.mark.parametrize("kind", ["diagonal", "factors"])
def test_buffers_are_averaged_and_frozen_parameters_kept(kind):
    def make():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).eval()

    models = [make() for _ in range(2)]
    for number, model in enumerate(models):
        model[0].requires_grad_(False)
        model[1].running_mean += number
        with torch.no_grad():
            model[3].weight += number
    infos = _known(models, observations(0).float(), kind)
    assert list(infos[0].residual) == ["1.weight", "1.bias", "3.weight", "3.bias"]
    fusion = cs.fuse(models, "fisher", fishers=infos)
    assert torch.equal(fusion.model[0].weight, models[0][0].weight)
    assert torch.allclose(fusion.model[1].running_mean, torch.full((4,), 0.5))
    assert fusion.needs_repair


@COPIES
@pytest.mark.parametrize("aligned", [True, False])
def test_tied_weights_stay_tied(aligned):
    module, inputs, symmetry = proved("tied embedding")
    models = [module, shuffled(module, symmetry, 1)]
    infos = [cs.fisher(model, inputs, likelihood="gaussian", minimum=1) for model in models]
    options = {"example": inputs, "symmetry": symmetry} if aligned else {}
    fusion = cs.fuse(models, "fisher", fishers=infos, **options)
    assert fusion.details["aligned"] is aligned
    tied = [values for key, values in fusion.model.state_dict().items() if key in ("embed.weight", "out.weight")]
    assert all(torch.equal(values, tied[0]) for values in tied)
    if aligned:
        assert deviation(fusion.model, module, inputs) < 1e2 * SINGLE_PRECISION


@pytest.mark.parametrize("method", ["fisher", "ssf"])
def test_arrays_of_either_library_give_the_same(method):
    models, infos = informed()
    symmetry = cs.symmetry(models[0], observations(0))
    plain = cs.fuse(models, method, fishers=infos, symmetry=symmetry)
    networks = [cs.Network({k: v.numpy() for k, v in model.state_dict().items()}, symmetry) for model in models]
    fusion = cs.fuse(networks, method, fishers=infos)
    for key, values in plain.network.arrays.items():
        assert isinstance(fusion.network.arrays[key], np.ndarray)
        assert np.allclose(fusion.network.arrays[key], values.numpy(), atol=1e-9)


def test_the_average_needs_no_symmetry_either():
    models = informed()[0]
    assert np.allclose(outputs(cs.fuse(models, "average").model, observations(0)),
                       outputs(cs.fuse(models, "fisher", structure="isotropic").model, observations(0)))  # fmt: skip
