"""SPAHM against its log posterior written out with dense normals, and against every matching of a few components."""

import itertools
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import betaln

from consilience.matching.assignment import Openings
from consilience.matching.beta_bernoulli import AtomLaw, BetaBernoulliPrior, GaussianAtoms
from consilience.matching.groups import GroupSums
from consilience.matching.site_by_site import MatchedGroups, ascend, grow, subtraction_gains
from tests import tolerances
from tests.matching.log_posterior import LogPosterior, published
from tests.posteriors.matchings import matchings

pytestmark = pytest.mark.covering(2)

SIZES = [(2, 2, 2), (3, 2, 1), (1, 3), (2, 0, 2)]
PROCESSES = [(1.0, 1.0), (0.3, 6.0), (4.0, 0.2)]
every_size = pytest.mark.parametrize("sizes", SIZES, ids=str)
every_process = pytest.mark.parametrize(("alpha", "mass"), PROCESSES)
EXACT = tolerances.KL_MATRIX_PRODUCT


# -- The log posterior.


def instance(sizes, seed, alpha=1.0, mass=1.0, marginal=True, clip=None, dim=2):
    """Points so close that matchings are in doubt."""
    rng = np.random.default_rng([seed, *sizes])
    points = rng.normal(1.0, 1.5, (sum(sizes), dim))
    law = AtomLaw(rng.normal(size=dim), rng.uniform(0.2, 1.0, dim), rng.uniform(1.0, 3.0, dim))
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return GaussianAtoms(points, offsets, law, BetaBernoulliPrior(len(sizes), alpha, mass, clip), marginal=marginal)


def owner_of(atoms):
    return np.repeat(np.arange(len(atoms.offsets) - 1), np.diff(atoms.offsets))


@every_size
@every_process
def test_the_log_posterior_is_one_of_dense_normals_and_beta_functions(sizes, alpha, mass):
    atoms = instance(sizes, 0, alpha, mass)
    exact = LogPosterior.of(atoms, alpha, mass)
    for labels in matchings(sizes):
        assert_allclose(atoms.total(labels), exact(labels), rtol=EXACT)


@every_size
@pytest.mark.parametrize("marginal", [True, False])
@pytest.mark.parametrize("clip", [None, 1, 2])
def test_twice_the_log_posterior_is_the_published_sum_up_to_a_constant(sizes, marginal, clip):
    """With gamma / J for a new atom and m / (J - m) for each further holder, m no more than the clip."""
    atoms, n_sites = instance(sizes, 1, mass=0.7, marginal=marginal, clip=clip), len(sizes)
    gaps = []
    for labels in matchings(sizes):
        value = 0.0
        for g in np.unique(labels):
            v = atoms.pieces[labels == g]
            held = [min(m, clip or m) for m in range(1, len(v))]
            value += published(len(v), v.sum(axis=0), atoms.law, marginal) + 2 * math.log(0.7 / n_sites)
            value += sum(2 * math.log(m / (n_sites - m)) for m in held)
        gaps.append(2 * atoms.total(labels) - value)
    assert_allclose(gaps, gaps[0], rtol=EXACT, atol=EXACT * np.ptp(atoms.pieces))


# -- One site's step.


def without(atoms, labels, site):
    """Rows of a site, and the groups that the others form, by their number."""
    rows = np.flatnonzero(owner_of(atoms) == site)
    return rows, np.unique(np.delete(labels, rows))


def placed(labels, rows, choice):
    changed = labels.copy()
    changed[rows] = choice
    return changed


@every_size
@every_process
@pytest.mark.parametrize("marginal", [True, False])
def test_gains_are_those_of_the_value_of_the_log_posterior_and_of_the_published_matrix_form(
    sizes, alpha, mass, marginal
):
    """All as leads over a group of one's own, which leaves out what a member adds wherever it is."""
    atoms, n_sites, rng = instance(sizes, 2, alpha, mass, marginal), len(sizes), np.random.default_rng(0)
    exact, every = LogPosterior.of(atoms, alpha, mass), matchings(sizes)
    for labels, site in itertools.product(rng.choice(every, 3), range(n_sites)):
        rows, used = without(atoms, labels, site)
        if len(rows) == 0:
            continue
        v, law = atoms.pieces, atoms.law
        others = [[i for i in np.flatnonzero(labels == g) if i not in rows] for g in used]
        groups = GroupSums(np.array([v[m].sum(axis=0) for m in others]), np.array([float(len(m)) for m in others]))
        opening = atoms.opening(rows)
        leads = atoms.gains(rows, groups) - opening[:, None]
        assert_allclose(atoms.gains(rows, groups), subtraction_gains(atoms.value, v[rows], groups), rtol=EXACT)
        for (k, row), (g, members) in itertools.product(enumerate(rows), enumerate(others)):
            n, t = len(members), v[members].sum(axis=0)
            odds = 2 * math.log(n / (alpha + n_sites - 1 - n)) - 2 * math.log(alpha * mass / (alpha + n_sites - 1))
            gain = published(n + 1, t + v[row], law, marginal) - published(n, t, law, marginal)
            assert_allclose(2 * leads[k, g], gain - published(1, v[row], law, marginal) + odds, rtol=EXACT, atol=EXACT)
            if marginal:
                rest = np.setdiff1d(np.arange(len(labels)), np.setdiff1d(rows, [row]))
                joined, alone = (exact(placed(labels, [row], c), rest) for c in (used[g], labels.max() + 1))
                assert_allclose(leads[k, g], joined - alone, rtol=EXACT, atol=EXACT)


def choices(used, count, fresh):
    """Every way to place `count` rows into different groups, new ones numbered from `fresh` in one order only."""
    new = fresh + np.arange(count)
    for chosen in itertools.product([*used, *new], repeat=count):
        opened = [c for c in chosen if c >= fresh]
        if len(set(chosen)) == count and opened == list(new[: len(opened)]):
            yield np.array(chosen), len(opened)


@pytest.mark.parametrize("sizes", [(3, 3, 2), (2, 3, 1, 2), (1, 3)], ids=str)
@every_process
@pytest.mark.parametrize("room", [None, 0, 1])
def test_a_sites_step_is_the_best_of_all(sizes, alpha, mass, room):
    """Also where few groups may be."""
    for seed in range(2):
        atoms, rng = instance(sizes, seed, alpha, mass), np.random.default_rng(seed)
        exact, labels = LogPosterior.of(atoms, alpha, mass), rng.choice(matchings(sizes))
        for site in range(len(sizes)):
            rows, used = without(atoms, labels, site)
            most = None if room is None else max(len(used), len(rows)) + room
            matched = MatchedGroups(atoms, labels)
            matched.remove(matched.rows(site))
            groups, gains, opening = matched.gains_of_choices(rows)
            openings = Openings(most)
            chosen = openings.assign(gains, opening)
            own = len(groups) + np.arange(len(rows))
            assert np.all((chosen < len(groups)) | (chosen == own))
            fresh = labels.max() + 1

            def worth(choice, labels=labels, rows=rows, exact=exact):
                return exact(placed(labels, rows, choice))

            ways = [way for way in choices(used, len(rows), fresh) if most is None or len(used) + way[1] <= most]
            ours = np.array([groups[c] if c < len(groups) else fresh + c for c in chosen])
            opened = int((chosen >= len(groups)).sum())
            assert most is None or len(used) + opened <= most
            best = max(worth(choice) for choice, _ in ways)
            assert_allclose(worth(ours), best, rtol=EXACT)
            apart = worth(ours) - worth(fresh + own)
            stated = openings.assigned_gain(gains, opening, chosen) - openings.assigned_gain(gains, opening, own)
            assert_allclose(stated, apart, rtol=EXACT, atol=EXACT)


def test_the_published_log_k_belongs_to_no_joint_distribution():
    """Two sites, of two components and one: each site's step sees all three matchings, so both must give one law.

    Numbers of atoms that one site alone, the other alone, or both hold are independent Poisson variables. Given the
    sizes, a shared atom is equally likely each of the first site's two components. The steps without log k agree with
    that, and with each other; with it they do not.
    """
    alpha, mass, n_sites = 1.5, 0.8, 2
    one, both = (alpha * mass * math.exp(betaln(n, n_sites - n + alpha)) for n in (1, 2))
    joint = np.array([both * one / 2, both * one / 2, one**2 / 2 * one])  # first shared, second shared, none
    joint /= joint.sum()
    new, match = alpha * mass / (alpha + n_sites - 1), 1 / (alpha + n_sites - 2)
    by_second = np.array([match, match, new]) / (2 * match + new)
    for factorial in (False, True):
        by_first = np.array([match * new, match * new, new * new / (2 if factorial else 1)])
        by_first /= by_first.sum()
        assert np.allclose(by_first, by_second, rtol=EXACT) is not factorial
        assert np.allclose(by_first, joint, rtol=EXACT) is not factorial
    assert_allclose(by_second, joint, rtol=EXACT)
    flat = AtomLaw(np.zeros(1), np.ones(1), np.full(1, 1e-12))  # points say nothing of who is who
    atoms = GaussianAtoms(np.zeros((3, 1)), np.array([0, 2, 3]), flat, BetaBernoulliPrior(n_sites, alpha, mass))
    ours = np.exp([atoms.total(np.array(labels)) for labels in ([0, 1, 0], [0, 1, 1], [0, 1, 2])])
    assert_allclose(ours / ours.sum(), joint, rtol=EXACT)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("room", [None, 0])
def test_ascent_ends_where_no_site_can_do_better(sizes, room):
    most = None if room is None else max(sizes) + room
    for seed in range(4):
        atoms, rng = instance(sizes, seed), np.random.default_rng(seed)
        start = grow(atoms, rng.permutation(len(sizes)), Openings(most))
        found, settled = ascend(atoms, start, rng, 50, Openings(most))
        exact = LogPosterior.of(atoms)
        value = exact(found)
        slack = EXACT * abs(value)
        assert settled
        assert most is None or found.max() < most
        assert value >= exact(start) - slack
        for site in range(len(sizes)):
            rows, used = without(atoms, found, site)
            for choice, opened in choices(used, len(rows), found.max() + 1):
                assert value >= exact(placed(found, rows, choice)) - slack or (
                    most is not None and len(used) + opened > most
                )
