"""Laws of robust fusion: what honest sites lose by it, and what hostile ones can do against it, on every family."""

from contextlib import nullcontext

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import consilience as cs
from consilience import families as f
from consilience.core.robust import MIN_DISTANCE, geometric_median, weighted_median
from consilience.core.robust_estimator import RobustEstimator
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.robust.average import symmetric_divergence
from consilience.posteriors.robust.minority import match_supported_first, minority_components
from tests import tolerances
from tests.families.zoo import NAMES, ZOO
from tests.posteriors import planted

pytestmark = pytest.mark.covering(2)

HOWS = ("trim", "median")
FIRST = ("normal-wishart", "dirichlet", "product", "point")  # one of each kind; the others among the slow tests
every_family = pytest.mark.parametrize(
    "family", [name if name in FIRST else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
every_how = pytest.mark.parametrize("how", HOWS)
SCALES = (1e-9, 1e3, 1e9)


def sites_of(family, n_sites, size=3, seed=0):
    """Sites that hold near copies of the same components, in the same order, with all that a site may send."""
    kind, rng = ZOO[family], np.random.default_rng([len(family), seed])
    centres = kind.draw(rng, size)
    sites = []
    for _ in range(n_sites):
        attached = {
            "moves": cs.Attached(rng.gamma(1.0, size=(size, size)), ("component", "component"), "sum"),
            "level": cs.Attached(rng.normal(size=(size, 2)), ("component", "fixed"), "mean"),
            "spread": cs.Attached(np.eye(2) * rng.uniform(1, 2), ("fixed", "fixed"), "mean"),
            "kept": cs.Attached(rng.normal(size=size), ("component",), "keep"),
            "sure": cs.Attached(rng.normal(size=size), ("component",), "precision-mean", rng.uniform(1, 2, size)),
        }
        sites.append(
            cs.Posterior(
                kind.family,
                kind.near(rng, centres, 0.05),
                prior=kind.prior,
                counts=rng.uniform(20, 80, size),
                weights=rng.dirichlet(np.full(size, 5.0)),
                attached=attached,
            )
        )
    return sites


def hostile(site, family, seed=1, factor=1e12):
    """A site of other components with absurd counts, weights and attached arrays, all of them valid."""
    kind, rng = ZOO[family], np.random.default_rng([seed, 7])
    size = site.n_components
    attached = {
        name: cs.Attached(factor * (1.0 + np.abs(one.values)), one.axes, one.rule,
                          None if one.precision is None else factor * one.precision)
        for name, one in site.attached.items()
    }  # fmt: skip
    return cs.Posterior(
        kind.family, kind.draw(rng, size), prior=kind.prior, counts=np.full(size, factor),
        weights=np.eye(size)[0], attached=attached,
    )  # fmt: skip


def fused(sites, how, method="average", **options):
    chosen = {"average": cs.methods.Average, "kl": cs.methods.KLFusion, "kmeans": cs.methods.KMeans}[method](
        robust=how, **options
    )
    return chosen.fuse(Ensemble.of(sites), np.random.default_rng(0))


def record_sums_of_distances(monkeypatch):
    """Return a list to which every geometric median adds its sums of distances, step by step, and what it rounds."""
    histories = []

    def recorded(squares, votes, start=None):
        sums, roundings = [], []
        histories.append((sums, roundings))

        def seen(weights):
            distances = np.sqrt(np.maximum(squares(weights), 0.0))
            sums.append((votes * distances).sum(axis=0))
            roundings.append((votes * MIN_DISTANCE * weighted_median(distances, votes)).sum(axis=0))
            return distances**2

        return geometric_median(seen, votes, start)

    for module in ("core.robust", "networks.robust", "posteriors.robust.average"):
        monkeypatch.setattr(f"consilience.{module}.geometric_median", recorded)
    return histories


def assert_never_rises(sums, roundings):
    for before, after, rounding in zip(sums[:-1], sums[1:], roundings, strict=False):
        assert np.all(after <= before * (1 + tolerances.ROUNDING) + rounding)


def everything(posterior):
    attached = [posterior.attached[name].values for name in sorted(posterior.attached)]
    return [posterior.natural, posterior.counts, posterior.weights, *attached]


# -- Honest sites.


@every_family
@every_how
def test_copies_are_a_fixed_point(family, how):
    site = sites_of(family, 1)[0]
    posterior = fused([site] * 5, how).posterior
    assert_allclose(posterior.natural, site.natural, rtol=tolerances.ROUNDING, atol=tolerances.ROUNDING)
    assert_allclose(posterior.counts, 5 * site.counts, rtol=tolerances.ROUNDING)
    for name, rule in (("moves", 5), ("level", 1), ("spread", 1), ("kept", 1), ("sure", 1)):
        expected = rule * site.attached[name].values
        assert_allclose(posterior.attached[name].values, expected, rtol=tolerances.ROUNDING, atol=tolerances.ROUNDING)


@every_family
@every_how
def test_the_order_of_sites_changes_nothing(family, how):
    sites = [*sites_of(family, 5), hostile(sites_of(family, 1)[0], family)]
    for one, other in zip(
        everything(fused(sites, how).posterior), everything(fused(sites[::-1], how).posterior), strict=True
    ):
        assert_array_equal(one, other)


@pytest.mark.parametrize("family", ["normal-wishart", "dirichlet", "product"])
@every_how
def test_relabelling_components_changes_only_labels(family, how):
    sites, rng = sites_of(family, 6), np.random.default_rng(3)
    plain = fused(sites, how, "kl", n_components=3, restarts=2)
    moved = fused([one.take(rng.permutation(3)) for one in sites], how, "kl", n_components=3, restarts=2)
    for one, other in zip(everything(plain.posterior), everything(moved.posterior), strict=True):
        assert_array_equal(one, other)


@every_family
@every_how
def test_the_average_stays_in_the_domain(family, how):
    bad = [hostile(sites_of(family, 1)[0], family, seed) for seed in (1, 2)]
    posterior = fused([*sites_of(family, 5), *bad], how).posterior
    assert ZOO[family].family.check(posterior.natural) == []


def test_a_product_of_copies_is_that_of_all_of_them():
    site = sites_of("normal-wishart", 1)[0]
    trimmed = fused([site] * 5, "trim", combine="product").posterior
    plain = fused([site] * 5, None, combine="product").posterior
    assert_allclose(trimmed.natural, plain.natural, rtol=tolerances.ROUNDING)


@pytest.mark.parametrize("name", ["normal-wishart", "gaussian"])
def test_the_objective_never_rises(name):
    sites = planted.mixtures(name).sites
    for how in HOWS:
        history = fused(sites, how, "kl", regularization=0.3, restarts=2).history
        assert np.all(np.diff(history) <= tolerances.DESCENT * np.abs(history[:-1]))


@every_family
@pytest.mark.parametrize("method", ["average", "kl"])
@pytest.mark.parametrize("how", ["median", True])
def test_the_sum_of_distances_from_a_geometric_median_never_rises(family, how, method, monkeypatch):
    histories = record_sums_of_distances(monkeypatch)
    fused([*sites_of(family, 7), hostile(sites_of(family, 1)[0], family)], how, method)
    assert histories
    for sums, roundings in histories:
        assert_never_rises(sums, roundings)


# -- Hostile sites.


@every_family
@every_how
def test_an_average_is_no_farther_from_what_it_is_judged_by_than_honest_copies_are(family, how):
    """The breakdown law: KL(m || average) is at most the largest divergence between honest copies, or four times it."""
    sites, kind = sites_of(family, 5), ZOO[family].family
    natural = np.stack([one.natural[0] for one in sites])
    honest = symmetric_divergence(kind)(natural, natural).max()
    for seed in range(4):
        for scale in SCALES:
            bad = [hostile(sites[0], family, seed).natural[:1]] * 2
            if not kind.check(scale * bad[0]):
                bad = [scale * bad[0], bad[0]]
            rows = np.concatenate([natural, *bad])
            ensemble = Ensemble.of([cs.Posterior(kind, row[None]) for row in rows])
            labels = np.zeros(len(rows), dtype=np.int64)
            robust = RobustEstimator(how, 0.25)
            kept, (medoid,) = robust.inliers(symmetric_divergence(kind), rows, labels, np.ones(len(rows)), 1)
            average = kind.barycenter(rows[kept > 0])
            bound = honest if how == "trim" else 4.0 * honest
            assert kind.kl(rows[medoid][None], average[None])[0, 0] <= bound * (1 + tolerances.KL_PAIRWISE) + 1e-9
            assert np.isfinite(
                cs.methods.Average(robust=how, trim=0.25).fuse(ensemble, np.random.default_rng(0)).posterior.natural
            ).all()


@every_family
@every_how
def test_hostile_counts_weights_and_arrays_decide_nothing(family, how):
    honest = sites_of(family, 6)
    before, after = (
        fused([*honest, *bad], how).posterior for bad in ([], [hostile(honest[0], family, seed) for seed in (1, 2)])
    )
    largest = max(one.counts.max() for one in honest)
    assert np.all(after.counts <= 8 * largest * (1 + tolerances.ROUNDING))
    assert np.abs(after.weights - before.weights).max() < 0.3
    for name in honest[0].attached:
        most = max(np.abs(one.attached[name].values).max() for one in honest)
        assert np.abs(after.attached[name].values).max() <= 8 * 3 * most


def test_a_hostile_count_decides_the_weights_of_a_plain_fusion():
    honest = sites_of("normal-wishart", 6)
    bad = hostile(honest[0], "normal-wishart")
    assert fused([*honest, bad], None).posterior.weights[0] > 0.999


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("rounding", [-1e-15, 0.0, 1e-15])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 3, 2)])
def test_rounding_does_not_decide_which_of_two_neighbours_of_one_radius_is_the_medoid(how, rounding, order):
    # Of rows 0 and 1 each has half of the votes within the divergence of the other; row 1 is nearer to all together.
    divergences = np.array([[0, 2, 1, 5], [2, 0, 3, 1.5], [1, 3, 0, 6], [5, 1.5, 6, 0]], dtype=float)
    divergences[0, 1] *= 1.0 + rounding
    rows = np.array(order)[:, None]
    _, medoids = RobustEstimator(how, 0.25).inliers(
        lambda a, b: divergences[a[:, 0]][:, b[:, 0]], rows, np.zeros(4, dtype=np.int64), np.ones(4), 1
    )
    assert order[medoids[0]] == 1


def test_a_site_with_many_copies_in_a_group_has_one_vote():
    family = f.Point(1)
    honest = [cs.Posterior(family, np.array([[0.1 * n]])) for n in range(4)]
    flood = cs.Posterior(family, np.linspace(0.5, 0.6, 50)[:, None])
    found = fused([*honest, flood], "trim", "kmeans", n_components=1)
    assert 0.0 <= found.posterior.natural[0, 0] <= 0.3


@pytest.mark.slow
@every_how
def test_far_copies_do_not_disturb_the_matching_of_the_others(how):
    planted_sites = planted.mixtures("normal-wishart").sites
    clean = cs.fuse(planted_sites, method="kl", rng=0, robust=how)
    family = planted_sites[0].family
    wild = family.from_natural(planted_sites[0].natural)
    wild["mean"] = 50.0 + 20.0 * np.asarray(wild["mean"])
    bad = cs.Posterior(family, family.to_natural(**wild), prior=planted_sites[0].prior, counts=planted_sites[0].counts)
    found = cs.fuse([*planted_sites, bad], method="kl", rng=0, robust=how)
    here = found.matching.owner < len(planted_sites)
    assert_array_equal(
        np.unique(np.stack([clean.matching.labels, found.matching.labels[here]]), axis=1).shape[1], clean.n_components
    )


# -- Who holds what.


def test_components_of_a_minority_are_told_with_their_holders():
    labels, owner = np.array([0, 1, 0, 0, 2, 2]), np.array([0, 0, 1, 2, 2, 3])
    found = minority_components(owner, labels, ["a", "b", "c", "d"], np.arange(6.0), 3)
    assert found == [{"component": 1, "sites": 1, "names": ["a"], "counts": 1.0}]


def test_half_of_the_sites_is_no_minority():
    assert minority_components(np.array([0, 1, 2, 3]), np.array([0, 0, 1, 1]), list("abcd"), None, 2) == []


def invented(seed=0):
    """Six sites that share three components, and one that made up a fourth."""
    sites = sites_of("normal-wishart", 6, seed=seed)
    family = sites[0].family
    odd = family.to_natural(mean=[[90.0, 90.0]], kappa=[3.0], scale=np.eye(2)[None], dof=[6.0])
    first = sites[0]
    made_up = cs.Posterior(
        family, np.concatenate([first.natural, odd]), prior=first.prior, counts=np.append(first.counts, 1e12),
        weights=np.append(first.weights, 1.0),
    )  # fmt: skip
    plain = [
        cs.Posterior(family, one.natural, prior=one.prior, counts=one.counts, weights=one.weights) for one in sites
    ]
    return [made_up, *plain[1:]]


@pytest.mark.parametrize("how", [*HOWS, None])
def test_an_invented_component_is_told_and_kept_unless_asked_otherwise(how):
    options = {} if how is None else {"minority": "keep"}
    with pytest.warns(cs.errors.RobustWarning) if how else nullcontext():
        kept = cs.fuse(invented(), method="kl", rng=0, robust=how, regularization=0.3, **options)
    told = kept.details["minority"]
    assert [one["names"] for one in told] == [["model 0"]]
    assert kept.n_components == 4
    dropped = cs.fuse(invented(), method="kl", rng=0, robust=how, regularization=0.3, minority="drop")
    assert (dropped.n_components, dropped.details["dropped"]) == (3, 1)
    assert "minority" not in dropped.details
    assert dropped.matching.labels[3] == -1


def test_nothing_left_is_refused():
    sites = [cs.Posterior(f.Point(1), np.array([[10.0 * n]])) for n in range(5)]
    with pytest.raises(cs.errors.InputError, match="none would be left"):
        cs.fuse(sites, method="kl", regularization=0.0, n_components=5, minority="drop")


def test_backed_components_are_matched_first():
    sites = invented()
    seen = []

    def match(part):
        seen.append(part.n_sites)
        return cs.methods.KLFusion(n_components=3).match(part, np.random.default_rng(0), lambda _a, _b: None)

    found = match_supported_first(Ensemble.of(sites), RobustEstimator("trim", 0.2), match, open_number=False)
    assert seen == [6]
    assert (found.labels[3], found.details["backed"]) == (-1, 18)


# -- Refusals.


def test_two_sites_are_too_few():
    with pytest.raises(cs.errors.InputError, match="at least 3 models"):
        cs.fuse(sites_of("gamma", 2), method="kl", robust="trim")


def test_a_median_is_no_product():
    with pytest.raises(cs.errors.InputError, match="use `robust='trim'`"):
        cs.fuse(sites_of("normal-wishart", 4), method="kl", robust="median", combine="product")


@pytest.mark.parametrize("method", ["concatenate", "ensemble"])
def test_what_matches_nothing_cannot_be_robust(method):
    with pytest.raises(cs.errors.OptionError, match="has no option robust; it has combine; methods with it: 'kl'"):
        cs.fuse(sites_of("normal-wishart", 4), method=method, robust="trim")


@pytest.mark.parametrize("options", [{"robust": "mean"}, {"trim": 0.5}, {"trim": 0.0}, {"minority": "some"}])
def test_odd_options_are_refused(options):
    with pytest.raises(cs.errors.OptionError, match=f"option {next(iter(options))} must be"):
        cs.methods.KLFusion(**options)


@every_how
def test_atoms_of_spahm_are_left_out_and_points_are_robust(how):
    rng = np.random.default_rng(0)
    sites = [
        cs.Posterior(f.Point(2), np.array([[0.0, 0.0], [9.0, 9.0]]) + 0.1 * rng.normal(size=(2, 2))) for _ in range(6)
    ]
    bad = cs.Posterior(f.Point(2), np.array([[0.9, 0.9], [9.0, 9.0]]))
    found = cs.fuse([*sites, bad], method="spahm", rng=0, robust=how)
    assert found.atoms is None
    assert np.abs(found.posterior.natural[:2] - np.round(found.posterior.natural[:2] / 9) * 9).max() < 0.3
