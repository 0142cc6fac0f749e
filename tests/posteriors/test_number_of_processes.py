"""AMPS, SPAHM and the Dirichlet process with the number, and the matching to begin with, of the greatest evidence."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

import consilience as cs
from tests import tolerances
from tests.posteriors import planted

pytestmark = pytest.mark.covering(2)

METHODS = {
    "spahm": cs.methods.SPAHM,
    "conjugate spahm": lambda **options: cs.methods.SPAHM(likelihood="conjugate", **options),
    "amps": lambda **options: cs.methods.AMPS(growth=True, **options),
    "dp means": lambda **options: cs.methods.DirichletProcess(assignment="means", **options),
}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
FAMILY = cs.families.NormalWishart(dim=3)


def sites_of_two(n_sites=20, n_true=12, seed=0):
    """Sites that know two of twelve components each, far apart, and the true ones."""
    rng = np.random.default_rng(seed)
    centres = 6.0 * rng.normal(size=(n_true, 3))
    prior = FAMILY.to_natural(mean=np.zeros((1, 3)), kappa=[0.01], dof=[4.0], inverse_scale=[np.eye(3)])[0]
    sites, truth = [], []
    for _ in range(n_sites):
        known = rng.choice(n_true, size=2, replace=False)
        data = centres[known] + rng.normal(size=(2, 3)) / 10.0
        natural = FAMILY.to_natural(
            mean=data, kappa=[100.01] * 2, dof=[104.0] * 2, inverse_scale=[101.0 * np.eye(3)] * 2
        )
        sites.append(cs.Posterior(FAMILY, natural, prior=prior, counts=np.full(2, 100.0)))
        truth.append(known)
    return sites, np.concatenate(truth)


@every_method
def test_the_number_is_that_of_the_evidence(method):
    sites, truth = sites_of_two()
    fusion = cs.fuse(sites, method(n_components="evidence"))
    assert fusion.n_components == len(np.unique(truth))
    assert adjusted_rand_score(truth, fusion.matching.labels) == 1.0


@every_method
@pytest.mark.parametrize("seed", range(2))
def test_the_number_stays_where_sites_are_hard_to_match(method, seed):
    sites = planted.mixtures(seed=seed, apart=2.0, n_sites=8, n=40).sites
    expected = cs.fuse(sites, exclusive=True).n_components
    fusion = cs.fuse(sites, method(n_components="evidence"))
    assert fusion.n_components == expected
    assert np.all(np.diff(fusion.history) <= tolerances.CONJUGATE_UPDATE * np.abs(fusion.history[:-1]))


def split_in_two(posterior):
    """The posterior with every component as two of half the observations: what a fit with too many would say."""
    halves = posterior.natural + 0.5 * (posterior.prior - posterior.natural)
    return cs.Posterior(FAMILY, np.repeat(halves, 2, axis=0), prior=posterior.prior, counts=np.full(4, 50.0))


@every_method
def test_components_that_a_fit_split_are_one(method):
    sites, truth = sites_of_two()
    sites[0] = split_in_two(sites[0])
    fusion = cs.fuse(sites, method(n_components="evidence"))
    assert fusion.n_components == len(np.unique(truth))
    assert np.all(fusion.matching.labels >= 0)
    assert adjusted_rand_score(np.concatenate([np.repeat(truth[:2], 2), truth[2:]]), fusion.matching.labels) == 1.0


@every_method
def test_no_seed_changes_where_it_begins(method):
    sites, _ = sites_of_two(seed=1)
    first, second = (cs.fuse(sites, method(n_components="evidence"), rng=seed) for seed in (0, 1))
    assert adjusted_rand_score(first.matching.labels, second.matching.labels) == 1.0


def test_the_truncation_of_the_mixture_is_the_number_of_the_evidence():
    sites, truth = sites_of_two()
    fusion = cs.fuse(sites, cs.methods.DirichletProcess(n_components="evidence", restarts=2))
    assert fusion.n_components <= len(np.unique(truth))
    assert fusion.status is not cs.results.Status.AT_CAPACITY


@pytest.mark.parametrize(
    "options",
    [
        lambda: cs.methods.SPAHM(n_components="evidence", max_components=9),
        lambda: cs.methods.SPAHM(n_components=12),
        lambda: cs.methods.AMPS(n_components="evidence"),
        lambda: cs.methods.DirichletProcess(n_components="evidence", max_components=9),
        lambda: cs.methods.DirichletProcess(assignment="means", n_components="evidence", penalty=1.0),
    ],
)
def test_options_that_say_the_number_twice_are_refused(options):
    with pytest.raises(cs.ConsilienceError):
        options()
