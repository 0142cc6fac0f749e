"""What SPAHM must keep: invariances, who may share an atom, and what atoms are."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import adjusted_rand_score

import consilience as cs
from consilience import families as f
from tests import tolerances
from tests.copies import COPIES
from tests.matching.log_posterior import fused, law_of
from tests.posteriors import planted

pytestmark = pytest.mark.covering(2)

EXACT = tolerances.KL_MATRIX_PRODUCT
FIXED = {"optimize": False, "within_variance": 0.09, "between_variance": 9.0}
LAWS = {"estimated": {}, "given": FIXED, "scalar": {"variances": "scalar"}, "plug-in": {**FIXED, "marginal": False}}
LAWS = {name: {**law, "restarts": 2} for name, law in LAWS.items()}
every_law = pytest.mark.parametrize("law", LAWS)


def sites_of(seed, sizes=(3, 5, 2, 4), count=6, noise=0.3, dim=2):
    """Sites that hold some of a few atoms, near enough for doubt."""
    rng = np.random.default_rng([seed, 41])
    atoms = rng.normal(2.0, 3.0, (count, dim))
    return [atoms[rng.permutation(count)[:size]] + noise * rng.normal(size=(size, dim)) for size in sizes]


def same_partition(a, b):
    """Whether two labellings have the same groups."""
    return adjusted_rand_score(a, b) == 1.0


def labels_by_site(fusion, n_sites):
    return [fusion.matching.of_site(site) for site in range(n_sites)]


def described(name, seed=0, **options):
    return planted.topics(seed) if name == "dirichlet" else planted.mixtures(name, seed, **options)


# -- Names, order, origin and unit are without meaning.


@every_law
@pytest.mark.parametrize("seed", range(3))
def test_neither_the_order_of_components_nor_that_of_sites_changes_anything_but_labels(law, seed):
    sites, rng = sites_of(seed), np.random.default_rng(seed)
    plain = fused(sites, **LAWS[law])
    orders, turn = [rng.permutation(len(v)) for v in sites], rng.permutation(len(sites))
    other = fused([sites[j][orders[j]] for j in turn], **LAWS[law])
    assert_array_equal(other.posterior.natural, plain.posterior.natural)
    assert_array_equal(other.atoms.natural, plain.atoms.natural)
    assert_array_equal(other.history, plain.history)
    for place, site in enumerate(turn):
        assert_array_equal(other.matching.of_site(place), plain.matching.of_site(site)[orders[site]])


@every_law
@pytest.mark.parametrize("offset", [-3.0, 1e6])
def test_a_shift_moves_the_answer_and_changes_no_match(law, offset):
    for seed in range(3):
        sites = sites_of(seed)
        plain, moved = fused(sites, **LAWS[law]), fused([v + offset for v in sites], **LAWS[law])
        assert same_partition(plain.matching.labels, moved.matching.labels)
        blur = 10 * np.finfo(float).eps * abs(offset)  # of the shifted points themselves
        place = EXACT if "optimize" in LAWS[law] else tolerances.FLAT_MINIMUM  # estimates stop when they hardly move
        back = moved.posterior.natural[moved.matching.labels] - offset
        assert_allclose(back, plain.posterior.natural[plain.matching.labels], rtol=place, atol=blur)
        if law != "plug-in":  # whose objective, without its constants, knows where zero is
            assert_allclose(moved.objective, plain.objective, rtol=EXACT, atol=1e3 * blur)
            assert_allclose(law_of(moved).mean - offset, law_of(plain).mean, rtol=place, atol=blur)


@pytest.mark.parametrize("seed", range(4))
def test_units_of_dimensions_change_no_match(seed):
    """With a law that is estimated; the log posterior changes by the density's own unit."""
    sites, unit = sites_of(seed), np.array([1e-3, 250.0])
    plain, scaled = fused(sites), fused([v * unit for v in sites])
    assert same_partition(plain.matching.labels, scaled.matching.labels)
    points = sum(len(v) for v in sites)
    assert_allclose(scaled.objective, plain.objective + points * np.log(unit).sum(), rtol=EXACT)
    assert_allclose(law_of(scaled).within, law_of(plain).within * unit**2, rtol=tolerances.FLAT_MINIMUM)
    assert_allclose(law_of(scaled).between, law_of(plain).between * unit**2, rtol=tolerances.FLAT_MINIMUM)


def test_units_that_go_with_the_given_variances_change_no_match():
    unit, given = np.array([0.01, 30.0]), {"optimize": False, "between_variance": (9.0, 4.0)}
    for seed in range(4):
        sites = sites_of(seed)
        plain = fused(sites, within_variance=(0.09, 0.2), **given)
        given_scaled = {
            "within_variance": tuple([0.09, 0.2] * unit**2),
            "between_variance": tuple([9.0, 4.0] * unit**2),
        }
        scaled = fused([v * unit for v in sites], optimize=False, **given_scaled)
        assert same_partition(plain.matching.labels, scaled.matching.labels)


@every_law
def test_the_same_seed_gives_the_same_answer(law):
    sites = sites_of(7)
    first, again = fused(sites, rng=3, **LAWS[law]), fused(sites, rng=3, **LAWS[law])
    assert_array_equal(first.posterior.natural, again.posterior.natural)
    assert_array_equal(first.matching.labels, again.matching.labels)


# -- Who shares an atom.


@COPIES
@pytest.mark.parametrize("options", [{}, {"within_variance": 1e-6, "optimize": False}], ids=["estimated", "given"])
@pytest.mark.parametrize("dim", [1, 3])
def test_equal_models_share_all_atoms(options, dim):
    rng = np.random.default_rng(dim)
    model = rng.normal(0.0, 4.0, (5, dim))
    orders = [rng.permutation(5) for _ in range(4)]
    fusion = fused([model[order] for order in orders], **options)
    assert fusion.n_components == 5
    assert_array_equal(fusion.matching.members, 4)
    for site, order in enumerate(orders):
        back = fusion.posterior.natural[fusion.matching.of_site(site)]
        assert_allclose(back, model[order], rtol=1e-5, atol=1e-5)  # shrunk by s / (4 s0), at most


@pytest.mark.parametrize("options", [FIXED, {"within_variance": 0.01}, {**FIXED, "marginal": False}], ids=str)
def test_models_far_from_one_another_share_nothing(options):
    for seed in range(5):
        rng = np.random.default_rng([seed, 42])
        centres = planted.centres_apart(rng, 9, 10.0)
        sites = [centres[own] for own in (slice(0, 4), slice(4, 6), slice(6, 9))]
        assert fused(sites, **options, mass=5.0).n_components == 9


@pytest.mark.parametrize("likelihood", ["gaussian", "conjugate"])
def test_a_larger_mass_gives_more_atoms_on_average(likelihood):
    """From one in a thousand, where all that may be shared is, to ten thousand."""
    counts = []
    for mass in (1e-3, 0.1, 1.0, 10.0, 1e4):
        if likelihood == "gaussian":
            found = [fused(sites_of(s, noise=1.0), mass=mass, restarts=2, **FIXED) for s in range(8)]
        else:
            options = {"likelihood": "conjugate", "mass": mass, "restarts": 2}
            found = [cs.fuse(planted.mixtures(seed=s, apart=2.0).sites, method="spahm", **options) for s in range(3)]
        counts.append(np.mean([fusion.n_components for fusion in found]))
    assert np.all(np.diff(counts) >= 0)
    assert counts[-1] > counts[0]


@every_law
@pytest.mark.parametrize("options", [{}, {"clip": 1}, {"mass": 50.0}, {"max_components": 5}], ids=str)
def test_every_component_is_one_of_an_atom_that_its_site_has_once(law, options):
    for seed in range(2):
        sites = sites_of(seed)
        fusion = fused(sites, **LAWS[law], **options)
        members = fusion.matching.members
        assert members.sum() == sum(map(len, sites))
        assert members.min() >= 1
        assert members.max() <= len(sites)
        assert max(map(len, sites)) <= fusion.n_components <= options.get("max_components", members.sum())
        for own, site in zip(labels_by_site(fusion, len(sites)), sites, strict=True):
            assert len(set(own.tolist())) == len(site)


@every_law
@pytest.mark.parametrize("options", [{}, {"clip": 2}, {"mass": 20.0}, {"max_components": 6}], ids=str)
def test_the_history_never_rises(law, options):
    for seed in range(2):
        fusion = fused(sites_of(seed, (3, 6, 2, 4, 5), count=8, noise=0.8), **LAWS[law], **options)
        assert np.all(np.diff(fusion.history) <= tolerances.DESCENT * np.abs(fusion.history[:-1]))
        assert_allclose(fusion.history[-1], fusion.objective, rtol=tolerances.DESCENT)


@every_law
def test_identical_atoms_of_one_model_are_kept_apart(law):
    point = np.array([[1.0, 2.0]])
    sites = [np.repeat(point, 3, axis=0), np.concatenate([point, point + 9.0]), point]
    fusion = fused(sites, **LAWS[law])
    assert fusion.n_components >= 3
    assert len(set(fusion.matching.of_site(0).tolist())) == 3


def test_models_of_very_different_sizes_are_fused():
    rng = np.random.default_rng(5)
    centres = planted.centres_apart(rng, 40, 8.0)
    held = [rng.permutation(40), np.array([7]), rng.permutation(40)[:2], rng.permutation(40)[:25]]
    fusion = fused([centres[own] + 0.1 * rng.normal(size=(len(own), 2)) for own in held])
    assert fusion.n_components == 40
    assert same_partition(fusion.matching.labels, np.concatenate(held))


def test_a_component_without_observations_is_left_out():
    sites = [cs.Posterior(f.Point(2), v, counts=np.full(len(v), 9.0)) for v in sites_of(1)]
    bare = cs.Posterior(f.Point(2), sites[0].natural, counts=np.array([9.0, 0.2, 9.0]))
    fusion = cs.fuse([bare, *sites[1:]], method="spahm", min_count=0)
    assert (fusion.matching.labels < 0).tolist() == [False, True, False] + [False] * (len(fusion.matching.labels) - 3)
    assert np.all(cs.fuse([bare, *sites[1:]], method="spahm", min_count=0, min_matching_count=0).matching.labels >= 0)


# -- What an atom is.


@every_law
def test_an_atom_is_what_its_copies_and_the_base_law_say(law):
    """Mean (mu0 s + s0 t) / (s + n s0) and variance s s0 / (s + n s0); the fused point is that mean."""
    sites = sites_of(2)
    fusion, points = fused(sites, **LAWS[law]), np.concatenate(sites)
    found, parameters = law_of(fusion), fusion.atoms.parameters()
    assert isinstance(fusion.atoms.family, f.DiagonalGaussian)
    for g in range(fusion.n_components):
        copies = points[fusion.matching.labels == g]
        scale = found.within + len(copies) * found.between
        mean = (found.mean * found.within + found.between * copies.sum(axis=0)) / scale
        assert_allclose(parameters["mean"][g], mean, rtol=EXACT)
        assert_allclose(parameters["variance"][g], found.within * found.between / scale, rtol=EXACT)
        assert_allclose(fusion.posterior.natural[g], mean, rtol=EXACT)
        lead = np.sign(copies.mean(axis=0) - found.mean)
        assert np.all(lead * (copies.mean(axis=0) - fusion.posterior.natural[g]) >= 0)
        assert np.all(lead * (fusion.posterior.natural[g] - found.mean) >= 0)


@every_law
def test_without_shrinkage_fused_points_are_plain_means(law):
    sites = sites_of(2)
    shrunk, plain = fused(sites, **LAWS[law]), fused(sites, **LAWS[law], shrink=False)
    assert same_partition(shrunk.matching.labels, plain.matching.labels)
    points = np.concatenate(sites)
    means = [points[plain.matching.labels == g].mean(axis=0) for g in range(plain.n_components)]
    assert_allclose(plain.posterior.natural, means, rtol=EXACT)


@pytest.mark.parametrize("shrink", [True, False])
def test_one_model_beside_one_of_no_weight_is_its_own_atoms(shrink):
    one, other = sites_of(4, (4, 3))
    models = [cs.Posterior(f.Point(2), v) for v in (one, other)]
    fusion = cs.fuse(models, method="spahm", weights=[1.0, 0.0], shrink=shrink, within_variance=0.1, optimize=False)
    assert fusion.n_components == 4
    law, back = law_of(fusion), fusion.posterior.natural[fusion.matching.of_site(0)]
    assert_allclose(law.mean, one.mean(axis=0), rtol=EXACT)
    pulled = (law.mean * law.within + law.between * one) / (law.within + law.between)
    assert_allclose(back, pulled if shrink else one, rtol=EXACT)
    own = fusion.matching.of_site(1)
    assert len(set(own.tolist())) == 3


# -- Families.


@pytest.mark.parametrize("name", ["point", "normal-wishart", "normal-gamma", "gaussian", "dirichlet"])
@pytest.mark.parametrize("seed", range(2))
def test_planted_components_are_found_in_any_family(name, seed):
    """The barycenter is the mean of what was matched, each atom a Gaussian over its points."""
    model = described(name, seed, **({} if name == "dirichlet" else {"apart": 12.0}))
    fusion = cs.fuse(model.sites, method="spahm", shrink=False, combine="barycenter")
    assert same_partition(fusion.matching.labels, model.all_truth)
    assert fusion.atoms.n_components == fusion.n_components == len(model.centres)
    natural = np.concatenate([site.natural for site in model.sites])
    groups = [natural[fusion.matching.labels == g].mean(axis=0) for g in range(fusion.n_components)]
    assert_allclose(fusion.posterior.natural, groups, rtol=EXACT, atol=EXACT * np.abs(natural).max())


@pytest.mark.parametrize("name", ["normal-wishart", "normal-gamma", "dirichlet"])
def test_sites_that_differ_by_chance_alone_are_matched_by_their_marginal_likelihood(name):
    model = planted.topics(0, between=1e-6) if name == "dirichlet" else planted.mixtures(name, 0, between=0.0)
    fusion = cs.fuse(model.sites, method="spahm", likelihood="conjugate")
    assert adjusted_rand_score(model.all_truth, fusion.matching.labels) > 0.9
    assert np.all(np.diff(fusion.history) <= tolerances.DESCENT * np.abs(fusion.history[:-1]))
