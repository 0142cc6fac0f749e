"""Laws that every fusion method keeps, on every family: numbering, order, copies, weights, and the descent."""

import functools
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import consilience as cs
from consilience.posteriors.ensemble import Ensemble
from tests import tolerances
from tests.families.zoo import NAMES, ZOO

pytestmark = pytest.mark.covering(2)

METHODS = {
    "kl integral": cs.methods.KLFusion(regularization=0.3, restarts=2),
    "kl relaxed": cs.methods.KLFusion(regularization=0.3, assignment="relaxed", restarts=1, gap=1e-3),
    "kl reverse": cs.methods.KLFusion(regularization=0.3, direction="reverse", restarts=2),
    "kl fixed": cs.methods.KLFusion(n_components=5, restarts=2),
    "kl auto": cs.methods.KLFusion(restarts=2, max_components=6),
    "kl renyi": cs.methods.KLFusion(n_components=5, restarts=1, divergence="renyi", order=0.3, max_iterations=10),
    "kl hellinger": cs.methods.KLFusion(regularization=0.3, restarts=1, divergence="hellinger", max_iterations=10),
    "kmeans": cs.methods.KMeans(n_components=4, restarts=2),
    "kmeans reverse": cs.methods.KMeans(n_components=4, restarts=2, direction="reverse"),
    "dp mixture": cs.methods.DirichletProcess(concentration=1.0, restarts=1),
    "dp means": cs.methods.DirichletProcess(assignment="means", penalty=0.3, restarts=2),
    "dp means reverse": cs.methods.DirichletProcess(assignment="means", penalty=0.3, restarts=1, direction="reverse"),
    "average": cs.methods.Average(),
    "concatenate": cs.methods.Concatenate(),
    "ensemble": cs.methods.PredictionEnsemble(),
}
MATCHING = [name for name, method in METHODS.items() if method.relabels]
DESCENDING = [name for name in METHODS if name not in ("average", "concatenate", "ensemble")]
CLUSTERING = ("kmeans", "dp")  # what the names of methods begin with that may join components of one model
# The slowest: normal-wisharts of diagonal and of spherical precisions, of which the one of full precisions stays.
SLOWER_FAMILIES = ("normal-gamma", "spherical-normal-gamma")
every_family = pytest.mark.parametrize(
    "family", [pytest.param(name, marks=pytest.mark.slow) if name in SLOWER_FAMILIES else name for name in NAMES]
)
# What a method does before it looks at parameters, such as drawing starts, is the same of every family.
some_families = pytest.mark.parametrize("family", ["normal-wishart", "dirichlet"])
# Averages without a closed form, iterated; the other direction of what is asked anyway, which copies and oracles are
# asked of at every commit; and one of several ways to match: slow, and of one mechanism with the others.
SLOWER = ("kl hellinger", "kl renyi", "kl reverse", "kl relaxed", "kmeans reverse", "dp means reverse")


def _named(names):
    """Return methods by name as parameters, the slower ones among the slow tests."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in SLOWER else name for name in names]


every_method = pytest.mark.parametrize("method", _named(METHODS))
PRICE = 1e-3
BARYCENTER = {"combine": "barycenter"}
COPIES = {
    "given": cs.methods.KLFusion(n_components=3, **BARYCENTER),
    "given, by divergence": cs.methods.KLFusion(n_components=3, regularization=0, **BARYCENTER),
    "priced": cs.methods.KLFusion(regularization=PRICE, **BARYCENTER),
    "relaxed": cs.methods.KLFusion(regularization=PRICE, assignment="relaxed", **BARYCENTER),
    "reverse": cs.methods.KLFusion(regularization=PRICE, direction="reverse", **BARYCENTER),
    "found": cs.methods.KLFusion(**BARYCENTER),
    "kmeans": cs.methods.KMeans(n_components=3, **BARYCENTER),
    "dp mixture": cs.methods.DirichletProcess(restarts=2, **BARYCENTER),
    "dp means": cs.methods.DirichletProcess(assignment="means", penalty=PRICE, **BARYCENTER),
}


def site(eta, kind, rng):
    """A posterior with everything that a site may send."""
    size = len(eta)
    attached = {
        "moves": cs.Attached(rng.gamma(1.0, size=(size, size)), ("component", "component"), "sum"),
        "level": cs.Attached(rng.normal(size=(size, 3)), ("component", "fixed"), "mean"),
    }
    counts, weights = rng.uniform(20, 80, size), rng.dirichlet(np.ones(size))
    return cs.Posterior(kind.family, eta, prior=kind.prior, counts=counts, weights=weights, attached=attached)


@functools.cache
def random_sites(family, sizes):
    """Sites of random components, nothing planted."""
    rng, kind = np.random.default_rng([len(family), *sizes]), ZOO[family]
    return tuple(site(kind.draw(rng, size), kind, rng) for size in sizes)


def sites_for(family, method):
    return random_sites(family, (3, 3, 3) if method == "average" else (3, 2, 4))


def run(sites, method, weights=(1.0, 2.0, 0.5)):
    ensemble = Ensemble.of(sites, weights[: len(sites)])
    return (METHODS[method] if isinstance(method, str) else method).fuse(ensemble, np.random.default_rng(0))


@functools.cache
def plain(family, method):
    return run(sites_for(family, method), method)


def contents(outcome):
    """Every bit of what a fusion gives, but for the labels."""
    p = outcome.posterior
    attached = [p.attached[name].values for name in sorted(p.attached)]
    arrays = [p.natural, p.prior, p.counts, p.weights, *attached, outcome.history, np.array(outcome.objective)]
    told = {
        key: len(value) if key in ("outliers", "minority") else value for key, value in outcome.details.items()
    }  # but for names
    return [np.ascontiguousarray(array).tobytes() for array in arrays], outcome.status, told


def assert_same_up_to_order(actual, expected, rtol):
    """Rows agree with the rows of `expected` in some order."""
    assert actual.shape == expected.shape
    order = np.abs(actual[:, None] - expected[None]).sum(axis=2).argmin(axis=1)
    assert sorted(order) == list(range(len(expected)))
    assert_allclose(actual, expected[order], rtol=rtol, atol=rtol * np.abs(expected).max())


# -- Names and order are without meaning.


@every_family
@pytest.mark.parametrize("method", _named(MATCHING))
def test_relabelling_components_changes_only_labels(family, method):
    sites, rng = sites_for(family, method), np.random.default_rng(1)
    orders = [rng.permutation(p.n_components) for p in sites]
    relabelled = run([p.take(order) for p, order in zip(sites, orders, strict=True)], method)
    assert contents(relabelled) == contents(plain(family, method))
    for number, order in enumerate(orders):
        assert_array_equal(relabelled.matching.of_site(number), plain(family, method).matching.of_site(number)[order])


@every_family
@every_method
def test_the_order_of_models_changes_only_the_order_of_labels(family, method):
    sites, order = sites_for(family, method), [2, 0, 1]
    weights = np.array([1.0, 2.0, 0.5])[order]
    permuted = run([sites[number] for number in order], method, tuple(weights))
    assert contents(permuted) == contents(plain(family, method))
    for place, number in enumerate(order):
        assert_array_equal(permuted.matching.of_site(place), plain(family, method).matching.of_site(number))


@some_families
@every_method
def test_the_same_seed_gives_the_same_bytes(family, method):
    again = run(sites_for(family, method), method)
    assert contents(again) == contents(plain(family, method))
    assert again.matching.labels.tobytes() == plain(family, method).matching.labels.tobytes()


@every_family
@every_method
def test_labels_say_who_became_what(family, method):
    """Every fused component has members, and no two of one site but where they are counted."""
    outcome = plain(family, method)
    kept = outcome.matching.labels >= 0
    assert np.all(kept) or (method == "kl auto" and {"outliers", "left_out"} & set(outcome.details))
    labels, owner = outcome.matching.labels[kept], outcome.matching.owner[kept]
    assert_array_equal(np.unique(labels), np.arange(outcome.posterior.n_components))
    assert_array_equal(outcome.matching.members, np.bincount(labels))
    pairs = {(o, g) for o, g in zip(owner.tolist(), labels.tolist(), strict=True)}
    assert len(labels) - len(pairs) == outcome.details.get("violations", 0)
    if not method.startswith((*CLUSTERING, "kl auto")):
        assert len(pairs) == len(labels)


@every_family
@every_method
def test_the_largest_component_comes_first(family, method):
    if METHODS[method].relabels:
        assert np.all(np.diff(plain(family, method).posterior.counts) <= 0)


# -- The descent.


@every_family
@pytest.mark.parametrize("method", _named(DESCENDING))
def test_the_objective_never_rises(family, method):
    rng, kind = np.random.default_rng(3), ZOO[family]
    sites = [site(kind.draw(rng, size), kind, rng) for size in (3, 2, 4, 3)]
    outcome = run(sites, method, (1.0, 2.0, 0.5, 1.0))
    history = outcome.history
    assert len(history) > 0
    assert np.all(np.isfinite(history))
    assert np.all(np.diff(history) <= tolerances.DESCENT * np.abs(history[:-1]))
    assert_allclose(outcome.objective, history[-1], rtol=tolerances.DESCENT)


# -- Copies.


@every_family
@pytest.mark.parametrize("method", COPIES)
def test_copies_fuse_to_the_model(family, method):
    """Whatever their order, at no divergence; a price is paid for each component once (DP-means: but for the first)."""
    rng, kind = np.random.default_rng(2), ZOO[family]
    model = site(kind.draw(rng, 3), kind, rng)
    orders = [rng.permutation(3) for _ in range(4)]
    outcome = run([model.take(order) for order in orders], COPIES[method], (1.0,) * 4)
    assert outcome.posterior.n_components == 3
    rtol = tolerances.ROOT_FINDING if method == "reverse" else tolerances.ROUNDING
    assert_same_up_to_order(outcome.posterior.natural, model.natural, rtol)
    for number, order in enumerate(orders):
        back = outcome.posterior.natural[outcome.matching.of_site(number)]
        assert_allclose(back, model.natural[order], rtol=rtol, atol=rtol * np.abs(model.natural).max())
    if method in ("given", "found", "dp mixture"):
        return  # its objective is an evidence, which has no zero
    price = PRICE * outcome.details.get("spread", 0.0)
    gap = COPIES[method].gap if method == "relaxed" else tolerances.ROUNDING
    typical = kind.family.kl(model.natural, model.natural).mean()
    expected = price * (2 if method == "dp means" else 3 * np.sqrt(4))
    assert_allclose(outcome.objective, expected, rtol=gap, atol=tolerances.KL_MATRIX_PRODUCT * typical)


@every_family
@pytest.mark.parametrize("method", _named(name for name in METHODS if name != "dp mixture"))
def test_one_model_comes_back(family, method):
    """But from a mixture over its components, which may find that some are alike."""
    model = sites_for(family, method)[0]
    options = {"n_components": None} if method in ("kl fixed", "kmeans", "kmeans reverse") else {}
    if method == "kl renyi":
        options = {"n_components": model.n_components}
    outcome = run([model], replace(METHODS[method], **options), (3.0,))
    labels, fused = outcome.matching.labels, outcome.posterior
    rtol = tolerances.ROOT_FINDING if "reverse" in method else 0
    assert_allclose(fused.natural[labels], model.natural, rtol=rtol, atol=rtol * np.abs(model.natural).max())
    assert_allclose(fused.counts[labels], model.counts)
    assert_allclose(fused.weights[labels], model.weights)
    assert_allclose(fused.attached["moves"].values[np.ix_(labels, labels)], model.attached["moves"].values)
    assert_allclose(fused.attached["level"].values[labels], model.attached["level"].values)


@every_family
@pytest.mark.parametrize("method", ["kl fixed", "kl integral", "kl relaxed", "kl auto"])
def test_duplicates_inside_one_model_are_kept_apart(family, method):
    """Two equal components of one model are two things to KL-fusion, however cheap it is to merge them.

    Topics are so on demand only: a site that was told too many splits some.
    """
    rng, kind = np.random.default_rng(4), ZOO[family]
    eta = kind.draw(rng, 3)
    twice = cs.Posterior(kind.family, eta[[0, 1, 0, 2]])
    options = {"exclusive": True} if family == "dirichlet" else {}
    outcome = run([twice, cs.Posterior(kind.family, eta), twice], replace(METHODS[method], **options), (1.0,) * 3)
    for number in range(3):
        own = outcome.matching.of_site(number)
        assert len(set(own)) == len(own)


# -- Weights of sites.


@every_family
@every_method
def test_only_ratios_of_site_weights_matter(family, method):
    scaled = run(sites_for(family, method), method, (8.0, 16.0, 4.0))
    assert contents(scaled) == contents(plain(family, method))


@pytest.mark.slow
@every_family
@pytest.mark.parametrize("combine", ["barycenter", "product"])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_a_weight_of_two_is_giving_the_model_twice(family, combine, direction):
    """Weights have mean 1, so that evidence adds up to J sites' worth: a product is compared per site."""
    if family == "point" and combine == "product":
        pytest.skip("a point has no width to multiply")
    rng, kind = np.random.default_rng(6), ZOO[family]
    eta = kind.draw(rng, 3)
    a, b = (site(kind.near(rng, eta, 0.05), kind, rng) for _ in range(2))
    method = cs.methods.KLFusion(n_components=3, regularization=0.0, combine=combine, direction=direction)
    weighted, twice = run([a, b], method, (2.0, 1.0)), run([a, a, b], method, (1.0,) * 3)
    share = np.array([1.0, 1.0]) if combine == "barycenter" else np.array([1 / 2, 1 / 3])
    rtol = tolerances.ROUNDING if (combine, direction) != ("barycenter", "reverse") else tolerances.ROOT_FINDING
    change, expected = (
        s * (out.posterior.natural - kind.prior) for s, out in zip(share, (weighted, twice), strict=True)
    )
    assert_allclose(change, expected, rtol=rtol, atol=rtol * np.abs(expected).max())
    assert_allclose(weighted.posterior.counts / 2, twice.posterior.counts / 3)
    assert_allclose(weighted.posterior.weights, twice.posterior.weights)
    assert_allclose(weighted.objective / 2, twice.objective / 3, rtol=tolerances.KL_MATRIX_PRODUCT)


@every_family
@pytest.mark.parametrize("method", _named(DESCENDING))
def test_a_site_of_no_weight_changes_nothing_for_the_others(family, method):
    """It is matched, and has no say: components that only it has do not count."""
    rng, kind = np.random.default_rng(7), ZOO[family]
    eta = kind.draw(rng, 4)
    sites = [cs.Posterior(kind.family, kind.near(rng, eta, 0.02)) for _ in range(3)]
    number = {"n_components": 4} if "fixed" in method or "kmeans" in method else {}
    chosen = replace(METHODS[method], restarts=1, **number)
    with_it, without = run(sites, chosen, (1.0, 1.0, 0.0)), run(sites[:2], chosen, (1.0, 1.0))
    assert with_it.posterior.n_components == without.posterior.n_components
    rtol = tolerances.ROOT_FINDING if "reverse" in method else tolerances.ROUNDING
    assert_same_up_to_order(with_it.posterior.natural, without.posterior.natural, rtol)


# -- Baselines.


@every_family
@pytest.mark.parametrize("n_copies", [2, 3])
def test_averaging_identical_models_returns_them(family, n_copies):
    """Bit for bit where the number of copies is a power of two, so that no division rounds."""
    model = random_sites(family, (3, 3, 3))[0]
    fused = run([model] * n_copies, "average", (1.0,) * n_copies).posterior
    if n_copies == 2:
        assert_array_equal(fused.natural, model.natural)
    assert_allclose(fused.natural, model.natural, rtol=tolerances.ROUNDING)


@every_family
def test_averaging_is_index_by_index(family):
    models = random_sites(family, (3, 3, 3))
    fused = run(models, "average", (1.0, 2.0, 1.0)).posterior
    expected = np.average([model.natural for model in models], axis=0, weights=[1, 2, 1])
    assert_allclose(fused.natural, expected, rtol=tolerances.ROUNDING, atol=tolerances.ROUNDING)


@every_family
def test_concatenation_keeps_everything(family):
    models = random_sites(family, (3, 2, 4))
    outcome = run(models, "concatenate", (1.0, 1.0, 1.0))
    assert outcome.posterior.n_components == 9
    stacked = np.concatenate([model.natural for model in models])
    assert_array_equal(outcome.posterior.natural[outcome.matching.labels], stacked)
