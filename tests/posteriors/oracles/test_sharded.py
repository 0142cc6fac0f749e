"""Fusions of shards beside loops that know nothing of shards: what the answer must satisfy, site by site.

A fusion is read from its result alone (labels, fused parameters, objective) and held beside divergences written from
textbooks, assignments by SciPy and sums in loops. No function of the engines, the shards or the passes is called here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.special import betaln, digamma, gammaln, multigammaln
from scipy.stats import multivariate_normal

import consilience as cs
from consilience.engines import Local
from consilience.posteriors.sharded import fuse, methods
from tests.families.zoo import ZOO
from tests.posteriors import hmmlearn_sites
from tests.tolerances import DESCENT, KL_MATRIX_PRODUCT, ROUNDING

pytestmark = pytest.mark.covering(2)

Floats = NDArray[np.float64]
Parameters = dict[str, Any]

GROUPS, SITES, PILOT = 5, 30, 8
NAMES = ("dirichlet", "normal-wishart", "gaussian", "gamma", "categorical", "point", "product")

# -- Divergences, from textbooks.


def _gaussian(p: Parameters, q: Parameters) -> float:
    gap, inside = p["mean"] - q["mean"], np.linalg.solve(q["covariance"], p["covariance"])
    quadratic = gap @ np.linalg.solve(q["covariance"], gap)
    return 0.5 * float(np.trace(inside) + quadratic - len(gap) - np.linalg.slogdet(inside)[1])


def _wishart(p: Parameters, q: Parameters) -> float:
    dim = len(p["scale"])
    logs = np.linalg.slogdet(q["scale"])[1] - np.linalg.slogdet(p["scale"])[1]
    trace = np.trace(np.linalg.solve(q["scale"], p["scale"])) - dim
    spread = digamma(0.5 * (p["dof"] - np.arange(dim))).sum()
    gammas = multigammaln(0.5 * q["dof"], dim) - multigammaln(0.5 * p["dof"], dim)
    return 0.5 * float(q["dof"] * logs + p["dof"] * trace + (p["dof"] - q["dof"]) * spread) + float(gammas)


def _normal_wishart(p: Parameters, q: Parameters) -> float:
    gap, ratio = p["mean"] - q["mean"], q["kappa"] / p["kappa"]
    between = q["kappa"] * p["dof"] * (gap @ p["scale"] @ gap)
    return 0.5 * float(len(gap) * (ratio - 1.0 - np.log(ratio)) + between) + _wishart(p, q)


def _dirichlet(p: Parameters, q: Parameters) -> float:
    a, b = p["concentration"], q["concentration"]
    logs = gammaln(a.sum()) - gammaln(b.sum()) - (gammaln(a) - gammaln(b)).sum()
    return float(logs + ((a - b) * (digamma(a) - digamma(a.sum()))).sum())


def _gamma(p: Parameters, q: Parameters) -> float:
    (a, b), (c, d) = (p["shape"], p["rate"]), (q["shape"], q["rate"])
    return float((a - c) * digamma(a) - gammaln(a) + gammaln(c) + c * np.log(b / d) + a * (d - b) / b)


def _categorical(p: Parameters, q: Parameters) -> float:
    return float((p["probabilities"] * np.log(p["probabilities"] / q["probabilities"])).sum())


def _point(p: Parameters, q: Parameters) -> float:
    return 0.5 * float(((p["value"] - q["value"]) ** 2).sum())


def _diagonal(p: Parameters, q: Parameters) -> float:
    ratio = p["variance"] / q["variance"]
    return 0.5 * float((ratio - 1.0 - np.log(ratio) + (p["mean"] - q["mean"]) ** 2 / q["variance"]).sum())


def _product(p: Parameters, q: Parameters) -> float:
    blocks = {"place": _diagonal, "rate": _gamma, "shares": _dirichlet}
    return sum(kl(p[name], q[name]) for name, kl in blocks.items())


KL: dict[str, Callable[[Parameters, Parameters], float]] = {
    "dirichlet": _dirichlet,
    "normal-wishart": _normal_wishart,
    "gaussian": _gaussian,
    "gamma": _gamma,
    "categorical": _categorical,
    "point": _point,
    "product": _product,
    "diagonal-gaussian": _diagonal,
}


def _row(values: Any, number: int) -> Any:
    if isinstance(values, dict):
        return {name: _row(one, number) for name, one in values.items()}
    return np.asarray(values)[number]


def _described(family: cs.families.Family, natural: Floats) -> list[Parameters]:
    found = family.from_natural(np.asarray(natural, dtype=np.float64))
    return [_row(found, number) for number in range(len(natural))]


def divergences(family: cs.families.Family, centres: Floats, natural: Floats, direction: str = "forward") -> Floats:
    """Return costs (n, G), pair by pair."""
    here, there, kl = _described(family, natural), _described(family, centres), KL[family.name]
    pairs = [[kl(q, p) if direction == "forward" else kl(p, q) for q in there] for p in here]
    return np.array(pairs)


# -- Sites, and what is to be known of a fusion of them.


def drawn_sites(
    name: str, sites: int = SITES, *, seed: int = 0, near: float = 0.15, sizes: Sequence[int] = (), prior: bool = True
) -> list[cs.Posterior]:
    """Return sites that hold some of a few members of a family, moved a little; sizes are random where not given."""
    specimen, rng = ZOO[name], np.random.default_rng(seed)
    planted = specimen.draw(rng, max(GROUPS, *sizes) if sizes else GROUPS)
    found = []
    for site in range(sites):
        size = sizes[site % len(sizes)] if sizes else int(rng.integers(1, 5))
        own = rng.permutation(len(planted))[:size]
        natural = specimen.near(rng, planted[own], near * rng.random())
        found.append(
            cs.Posterior(
                specimen.family,
                natural,
                prior=specimen.prior * (1.0 + 0.5 * rng.random()) if prior and name not in ("point",) else None,
                counts=rng.uniform(5.0, 80.0, size),
                weights=rng.random(size) + 0.1,
            )
        )
    return found


def saved(posteriors: Sequence[cs.Posterior], folder: Path) -> Path:
    """Write a file for each."""
    folder.mkdir(parents=True)
    for number, one in enumerate(posteriors):
        cs.save(one, folder / f"{number:05d}.safetensors")
    return folder


def packed(posteriors: Sequence[cs.Posterior], folder: Path, **options: Any) -> Path:
    """Write them as shards."""
    cs.pack(saved(posteriors, folder / "files"), folder / "packed", **options)
    return folder / "packed"


@dataclass(frozen=True)
class Read:
    """A fusion beside the sites that it is of."""

    posteriors: Sequence[cs.Posterior]
    fusion: Any
    weights: Floats

    @property
    def labels(self) -> list[Floats]:
        """Of each site."""
        return [self.fusion.matching.labels[self.fusion.matching.owner == site] for site in range(len(self.posteriors))]

    def users(self) -> Floats:
        """Number of components with a say in every group."""
        users = np.zeros(self.fusion.n_components)
        for own, weight in zip(self.labels, self.weights, strict=True):
            for label in own[own >= 0]:
                users[label] += weight > 0
        return users

    def costs(self, direction: str = "forward") -> list[Floats]:
        """Divergences of every site's components from all fused ones."""
        family, centres = self.fusion.posterior.family, self.fusion.posterior.natural
        return [divergences(family, centres, one.natural, direction) for one in self.posteriors]


def read(where: Path, posteriors: Sequence[cs.Posterior], weights: Floats | None = None, **options: Any) -> Read:
    """Fuse shards, many at once, and read the result; barycenters, where nothing else is asked for."""
    fusion = cs.fuse(where, pilot_sites=PILOT, weights=weights, **{"combine": "barycenter", **options})
    assert fusion.details["sites"] == len(posteriors)
    # Mean 1 over the sites that have a say, as in memory.
    share = np.ones(len(posteriors)) if weights is None else weights * np.count_nonzero(weights) / weights.sum()
    return Read(posteriors, fusion, share)


def assert_settled(found: Read, price: float, direction: str = "forward", *, exclusive: bool = True) -> None:
    """Labels are best given the centres, centres the averages of their members, and the objective what they say."""
    users = found.users()
    last = price * (np.sqrt(users) - np.sqrt(users - 1.0))
    total = price * float(np.sqrt(users).sum())
    for own, costs, weight in zip(found.labels, found.costs(direction), found.weights, strict=True):
        # A site without weight uses no group, so that none has a price for it.
        priced = weight * costs[own >= 0] + last if weight > 0 else costs[own >= 0]
        kept = own[own >= 0]
        here = priced[np.arange(len(kept)), kept].sum()
        best = priced[linear_sum_assignment(priced)].sum() if exclusive else priced.min(axis=1).sum()
        assert here <= best + KL_MATRIX_PRODUCT * max(1.0, abs(best))
        assert not exclusive or len(set(kept.tolist())) == len(kept)
        total += weight * costs[own >= 0][np.arange(len(kept)), kept].sum()
    assert found.fusion.objective == pytest.approx(total, rel=1e-8)
    assert found.fusion.history[-1] == found.fusion.objective
    assert np.all(np.diff(found.fusion.history) <= DESCENT * np.abs(found.fusion.history[:-1]))
    np.testing.assert_allclose(found.fusion.posterior.natural, averages(found, direction), rtol=1e-8, atol=1e-8)


def averages(found: Read, direction: str = "forward") -> Floats:
    """Return the barycenter of every group, member by member."""
    family, size = found.fusion.posterior.family, found.fusion.n_components
    sums, mass = [0.0] * size, [0.0] * size
    for one, own, weight in zip(found.posteriors, found.labels, found.weights, strict=True):
        rows = one.natural if direction == "forward" else family.mean_parameters(one.natural)
        for row, label in zip(rows, own, strict=True):
            if label >= 0:
                sums[label] = sums[label] + weight * row
                mass[label] += weight
    means = np.array([total / part for total, part in zip(sums, mass, strict=True)])
    return means if direction == "forward" else family.from_mean(means)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[list[cs.Posterior], Path]]:
    root = tmp_path_factory.mktemp("oracle")

    @cache
    def made(name: str) -> tuple[list[cs.Posterior], Path]:
        posteriors = drawn_sites(name)
        return posteriors, packed(posteriors, root / name, shard_bytes=700)

    return made


@pytest.fixture(autouse=True)
def passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have shards of few components fused in passes, as those of many are; averages are still of gathered ones."""
    monkeypatch.setattr(fuse, "MAX_GATHERED_ROWS", methods.MAX_GATHERED_ROWS)  # which is bound at its first import
    monkeypatch.setattr(methods, "MAX_GATHERED_ROWS", 0)


Place = Callable[[str], tuple[list[cs.Posterior], Path]]

# -- KL-fusion and k-means.

FAST: dict[str, Any] = {"restarts": 1, "tolerance": 0.0, "min_count": 0.0}
EQUATION_6: dict[str, Any] = {"method": "kl", "n_components": GROUPS, "regularization": 0.0}
"""Of Claici et al.: a given number, at no price."""


@pytest.mark.parametrize("name", NAMES)
def test_labels_and_centres_of_kl_fusion_fit_each_other(place: Place, name: str) -> None:
    posteriors, where = place(name)
    found = read(where, posteriors, **EQUATION_6, **FAST)
    assert found.fusion.details["shards"] > 2
    assert_settled(found, 0.0)


@pytest.mark.parametrize("name", ["dirichlet", "normal-wishart", "product"])
def test_labels_fit_the_price_of_components(place: Place, name: str) -> None:
    posteriors, where = place(name)
    found = read(where, posteriors, method="kl", regularization=0.3, **FAST)
    assert_settled(found, 0.3 * found.fusion.details["spread"])


@pytest.mark.parametrize("name", ["dirichlet", "gamma", "gaussian"])
def test_the_other_direction_has_averages_of_its_own(place: Place, name: str) -> None:
    posteriors, where = place(name)
    found = read(where, posteriors, **EQUATION_6, direction="reverse", **FAST)
    assert_settled(found, 0.0, "reverse")


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_no_fused_component_can_be_moved_to_advantage(place: Place, direction: str) -> None:
    posteriors, where = place("dirichlet")
    found = read(where, posteriors, **EQUATION_6, direction=direction, **FAST)
    family, centres = found.fusion.posterior.family, found.fusion.posterior.natural
    members = [[row for one, own in zip(posteriors, found.labels, strict=True)
                for row, label in zip(one.natural, own, strict=True) if label == group]
               for group in range(GROUPS)]  # fmt: skip
    rng = np.random.default_rng(5)
    for centre, own in zip(centres, members, strict=True):
        moved = centre + 1e-3 * rng.standard_normal((6, len(centre)))
        worth = divergences(family, np.vstack([centre, moved]), np.array(own), direction).sum(axis=0)
        assert np.all(worth[1:] > worth[0])


@pytest.mark.parametrize("price", [0.0, 0.4])
def test_weights_count_also_where_some_are_zero(place: Place, price: float) -> None:
    posteriors, where = place("gamma")
    weights = np.random.default_rng(2).choice([0.0, 0.5, 1.0, 3.0], len(posteriors))
    how = {"method": "kl", "regularization": price} if price else EQUATION_6
    found = read(where, posteriors, weights, **how, **FAST)
    assert np.any(weights == 0.0)
    assert_settled(found, price * found.fusion.details.get("spread", 0.0))


@pytest.mark.parametrize("name", ["categorical", "normal-wishart"])
def test_clusters_of_kmeans_are_nearest_centres(place: Place, name: str) -> None:
    posteriors, where = place(name)
    found = read(where, posteriors, method="kmeans", n_components=GROUPS, restarts=1, min_count=0.0)
    assert_settled(found, 0.0, exclusive=False)
    repeated = sum(len(own) - len(set(own.tolist())) for own in found.labels)
    assert found.fusion.details["violations"] == repeated


def test_passes_in_loops_end_where_shards_do(place: Place) -> None:
    posteriors, where = place("dirichlet")
    fusion = cs.fuse(where, **EQUATION_6, pilot_sites=PILOT, combine="barycenter", **FAST)
    rng = np.random.default_rng(0)
    family = posteriors[0].family
    centres = fusion.posterior.natural * (1.0 + 0.02 * rng.random(fusion.posterior.natural.shape))
    labels: list[NDArray[np.int64]] = []
    for _ in range(30):
        labels = [linear_sum_assignment(divergences(family, centres, one.natural))[1] for one in posteriors]
        rows = [[] for _ in range(GROUPS)]  # type: ignore[var-annotated]
        for one, own in zip(posteriors, labels, strict=True):
            for row, label in zip(one.natural, own, strict=True):
                rows[label].append(row)
        before, centres = centres, np.array([np.mean(group, axis=0) for group in rows])
        if np.array_equal(before, centres):
            break
    assert np.array_equal(np.concatenate(labels), fusion.matching.labels)
    np.testing.assert_allclose(fusion.posterior.natural, centres, rtol=1e-10)


# -- What else is added up.


@pytest.mark.parametrize("weighted", [False, True])
def test_counts_mixture_weights_and_priors_are_sums_in_loops(place: Place, weighted: bool) -> None:
    posteriors, where = place("normal-wishart")
    weights = np.random.default_rng(3).random(len(posteriors)) * 2.0 if weighted else None
    found = read(where, posteriors, weights, **EQUATION_6, combine="product", **FAST)
    counts, mixture, product, prior = np.zeros(GROUPS), np.zeros(GROUPS), [0.0] * GROUPS, 0.0
    for one, own, weight in zip(posteriors, found.labels, found.weights, strict=True):
        prior = prior + weight / found.weights.sum() * one.prior
        for row, label in enumerate(own):
            counts[label] += weight * one.counts[row]
            mixture[label] += weight * one.weights[row] / one.weights.sum() * one.counts.sum()
            product[label] = product[label] + weight * (one.natural[row] - one.prior)
    fused = found.fusion.posterior
    np.testing.assert_allclose(fused.counts, counts, rtol=ROUNDING)
    np.testing.assert_allclose(fused.weights, mixture / mixture.sum(), rtol=ROUNDING)
    np.testing.assert_allclose(fused.prior, prior, rtol=ROUNDING)
    np.testing.assert_allclose(fused.natural, np.array(product) + prior, rtol=1e-10, atol=1e-10)


def test_components_with_few_observations_have_no_say_but_the_best_of_a_site(place: Place) -> None:
    posteriors, where = place("gamma")
    found = read(where, posteriors, **EQUATION_6, **{**FAST, "min_matching_count": 40.0})
    for one, own in zip(posteriors, found.labels, strict=True):
        asked = one.counts >= 40.0
        asked[one.counts.argmax()] = True
        assert np.array_equal(own >= 0, asked)
    assert_settled(found, 0.0)


def test_attached_arrays_are_carried_entry_by_entry(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    posteriors = []
    for one in drawn_sites("dirichlet"):
        size = one.n_components
        attached = {
            "moves": cs.Attached(rng.random((size, size)), ("component", "component"), "sum"),
            "level": cs.Attached(rng.random((size, 2)), ("component", "fixed"), "mean"),
            "slope": cs.Attached(rng.random(size), ("component",), "precision-mean", rng.random(size) + 0.1),
            "shared": cs.Attached(rng.random(3), ("fixed",), "sum"),
        }
        posteriors.append(cs.Posterior(one.family, one.natural, counts=one.counts, attached=attached))
    where = packed(posteriors, tmp_path, shard_bytes=1500, form="parquet")
    weights = rng.random(len(posteriors)) + 0.2
    found = read(where, posteriors, weights, **EQUATION_6, **FAST)
    moves, shared = np.zeros((GROUPS, GROUPS)), np.zeros(3)
    level, members = np.zeros((GROUPS, 2)), np.zeros((GROUPS, 1))
    slope, precision = np.zeros(GROUPS), np.zeros(GROUPS)
    for one, own, weight in zip(posteriors, found.labels, found.weights, strict=True):
        shared += weight * one.attached["shared"].values
        for row, here in enumerate(own):
            level[here] += weight * one.attached["level"].values[row]
            members[here] += weight
            sure = weight * one.attached["slope"].precision[row]
            slope[here] += sure * one.attached["slope"].values[row]
            precision[here] += sure
            for column, there in enumerate(own):
                moves[here, there] += weight * one.attached["moves"].values[row, column]
    fused = found.fusion.posterior.attached
    expected = {"moves": moves, "level": level / members, "slope": slope / precision, "shared": shared}
    for name, values in expected.items():
        np.testing.assert_allclose(fused[name].values, values, rtol=ROUNDING, atol=1e-300)
    np.testing.assert_allclose(fused["slope"].precision, precision, rtol=ROUNDING)


def test_transitions_of_hidden_markov_models_go_through_packing_and_fusing(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    models = []
    for site in range(20):
        states = rng.permutation(4)[: 3 + site % 2]
        start, transitions = hmmlearn_sites.only(tuple(states.tolist()))
        means = hmmlearn_sites.MEANS[states] + 0.1 * rng.standard_normal((len(states), 2))
        models.append(hmmlearn_sites.by_hand(transitions, "diag", start, means))
    posteriors = [cs.describe(model, n_observations=1000) for model in models]
    where = packed(posteriors, tmp_path, shard_bytes=600)
    found = read(where, posteriors, method="kl", n_components=4)
    moves, first = np.zeros((4, 4)), np.zeros(4)
    for one, own in zip(posteriors, found.labels, strict=True):
        for row, here in enumerate(own):
            first[here] += one.attached["start_counts"].values[row]
            for column, there in enumerate(own):
                moves[here, there] += one.attached["transition_counts"].values[row, column]
    fused = found.fusion.posterior.attached
    np.testing.assert_allclose(fused["transition_counts"].values, moves, rtol=ROUNDING)
    np.testing.assert_allclose(fused["start_counts"].values, first, rtol=ROUNDING)
    model = found.fusion.model
    order = np.linalg.norm(hmmlearn_sites.MEANS[:, None] - model.means_, axis=2).argmin(axis=1)
    assert sorted(order.tolist()) == [0, 1, 2, 3]
    np.testing.assert_allclose(model.means_[order], hmmlearn_sites.MEANS, atol=0.3)
    np.testing.assert_allclose(model.transmat_[np.ix_(order, order)], hmmlearn_sites.TRANSITIONS, atol=0.15)


def test_names_of_columns_travel_and_are_compared(tmp_path: Path) -> None:
    family = cs.families.DiagonalGaussian(dim=2)
    rng = np.random.default_rng(0)

    def site(names: tuple[str, ...] | None) -> cs.Posterior:
        eta = family.to_natural(mean=rng.normal([[0.0, 0.0], [9.0, 9.0]]), variance=np.ones((2, 2)))
        return cs.Posterior(family, eta, features=cs.Features(names=names))

    columns = ("Größe", "weight\nin kg")
    where = packed([site(columns) for _ in range(20)], tmp_path / "same")
    assert cs.fuse(where, method="kl", n_components=2, pilot_sites=5).posterior.features.names == columns
    turned = saved([site(columns), site(columns), site(columns[::-1])], tmp_path / "turned")
    with pytest.raises(cs.errors.InputError, match=r"00002\.safetensors: has the same features in another order"):
        cs.pack(turned, tmp_path / "never")
    assert any("another order" in problem for problem in cs.check(turned))


# -- SPAHM.


def _log_posterior(points: Sequence[Floats], labels: Sequence[Any], law: Parameters, sites: int) -> float:
    """Return the log posterior of who is who, group by group, each a joint Gaussian of its members."""
    members: dict[int, list[Floats]] = {}
    for own, at in zip(labels, points, strict=True):
        for label, point in zip(own, at, strict=True):
            members.setdefault(int(label), []).append(point)
    return sum(_group(np.array(group), law, sites) for group in members.values())


def _group(rows: Floats, law: Parameters, sites: int) -> float:
    count = len(rows)
    if count == 0:
        return 0.0
    total = float(betaln(count, sites - count + 1.0))  # an atom that so many of all sites hold, mass 1
    for d, (mean, within, between) in enumerate(zip(law["mean"], law["within"], law["between"], strict=True)):
        covariance = within * np.eye(count) + between * np.ones((count, count))
        total += float(multivariate_normal.logpdf(rows[:, d], np.full(count, mean), covariance))
    return total


def _law(fusion: Any) -> Parameters:
    known = {name: one.values for name, one in fusion.atoms.attached.items()}
    return {"mean": known["mean"], "within": known["within_variance"], "between": known["between_variance"]}


@pytest.mark.parametrize("name", ["point", "normal-wishart"])
def test_no_site_can_be_matched_better_under_the_log_posterior_of_spahm(place: Place, name: str) -> None:
    posteriors, where = place(name)
    found = read(where, posteriors, method="spahm", restarts=1, min_count=0.0, max_iterations=100)
    fusion, law, sites = found.fusion, _law(found.fusion), len(posteriors)
    points = [one.family.points(one.natural) for one in posteriors]
    value = _log_posterior(points, found.labels, law, sites)
    assert fusion.objective == pytest.approx(-value, rel=KL_MATRIX_PRODUCT)
    assert np.all(np.diff(fusion.history) <= DESCENT * np.abs(fusion.history[:-1]))
    assert fusion.status.name == "CONVERGED"
    for site in range(0, sites, 6):
        groups = [np.array([point for other, (own, at) in enumerate(zip(found.labels, points, strict=True))
                            for label, point in zip(own, at, strict=True) if label == group and other != site])
                  for group in range(fusion.n_components)]  # fmt: skip
        groups += [np.zeros((0, points[0].shape[1]))] * len(points[site])
        alone = np.array([_group(group, law, sites) for group in groups])
        dims = points[0].shape[1]
        gains = np.array([[_group(np.vstack([group.reshape(-1, dims), point]), law, sites) for group in groups]
                          for point in points[site]]) - alone  # fmt: skip
        own = found.labels[site]
        here = gains[np.arange(len(own)), own].sum()
        assert here >= gains[linear_sum_assignment(-gains)].sum() - 1e-7 * abs(here)


def test_fused_points_are_drawn_to_the_mean_as_their_law_says(place: Place) -> None:
    posteriors, where = place("point")
    found = read(where, posteriors, method="spahm", restarts=1, min_count=0.0, max_iterations=2)
    law, users = _law(found.fusion), found.users()
    sums = np.zeros((found.fusion.n_components, len(law["mean"])))
    for one, own in zip(posteriors, found.labels, strict=True):
        for row, label in zip(one.natural, own, strict=True):
            sums[label] += row
    total = law["within"] + np.outer(users, law["between"])
    expected = (law["mean"] * law["within"] + law["between"] * sums) / total
    np.testing.assert_allclose(found.fusion.posterior.parameters()["value"], expected, rtol=1e-9, atol=1e-9)


# -- Layouts, engines, precisions.

METHODS: dict[str, dict[str, Any]] = {
    "kl": {**EQUATION_6, **FAST},
    "priced": {"method": "kl", "regularization": 0.3, **FAST},
    "kmeans": {"method": "kmeans", "n_components": GROUPS, "restarts": 1},
}


@pytest.mark.parametrize("how", METHODS)
def test_sites_may_lie_in_shards_as_they_like(place: Place, how: str, tmp_path: Path) -> None:
    posteriors, where = place("gaussian")
    first = cs.fuse(where, pilot_sites=PILOT, **METHODS[how])
    turned = packed(posteriors[::-1], tmp_path / "turned", form="parquet")
    a_shard_a_site, one_shard = (where.parent / "files", 1), (turned, 10**9)
    for (other, size), engine in ((a_shard_a_site, Local(threads=3, memory=0)), (one_shard, Local(threads=1))):
        shards = cs.shards(other, shard_bytes=size)
        assert len(shards.sources) == (1 if other == turned else len(posteriors))
        again = cs.fuse(shards, pilot_sites=PILOT, engine=engine, **METHODS[how])
        labels = again.matching.labels
        if other == turned:
            pieces = np.split(labels, np.cumsum([one.n_components for one in posteriors[::-1]])[:-1])
            labels = np.concatenate(pieces[::-1])
        assert np.array_equal(labels, first.matching.labels)
        np.testing.assert_allclose(again.posterior.natural, first.posterior.natural, rtol=1e-10)
        assert again.objective == pytest.approx(first.objective, rel=1e-10)


def test_spahm_gives_the_same_bits_for_the_same_shards_however_they_are_run(place: Place) -> None:
    _, where = place("gaussian")
    engines = (Local(threads=1), Local(threads=3, memory=0))
    one, other = (
        cs.fuse(where, method="spahm", restarts=1, max_iterations=4, pilot_sites=PILOT, engine=engine)
        for engine in engines
    )
    assert np.array_equal(one.matching.labels, other.matching.labels)
    assert np.array_equal(one.posterior.natural, other.posterior.natural)
    assert np.array_equal(one.history, other.history)


@pytest.mark.parametrize("form", ["safetensors", "parquet"])
def test_single_precision_moves_the_answer_as_little_as_it_moves_components(
    place: Place, form: str, tmp_path: Path
) -> None:
    posteriors, where = place("dirichlet")
    cs.pack(where, tmp_path / "single", dtype="float32", form=form, shard_bytes=800)
    options = {**METHODS["kl"], "combine": "barycenter"}
    exact, single = (cs.fuse(one, pilot_sites=PILOT, **options) for one in (where, tmp_path / "single"))
    assert np.array_equal(exact.matching.labels, single.matching.labels)
    np.testing.assert_allclose(single.posterior.natural, exact.posterior.natural, rtol=1e-6)
    rounded = [cs.Posterior(one.family, one.natural.astype(np.float32)) for one in posteriors]
    assert_settled(Read(rounded, single, np.ones(len(posteriors))), 0.0)


@pytest.mark.parametrize(
    ("sizes", "count"), [((1,), 5), ((1, 12, 2, 7), 12), ((4,), 4)], ids=["one each", "very different", "all the same"]
)
@pytest.mark.parametrize("price", [0.0, 0.3])
def test_sites_may_be_of_any_size(tmp_path: Path, sizes: tuple[int, ...], count: int, price: float) -> None:
    posteriors = drawn_sites("gamma", sizes=sizes, near=0.05)
    where = packed(posteriors, tmp_path, shard_bytes=400)
    how = {"regularization": price} if price else {"n_components": count}
    found = read(where, posteriors, method="kl", **how, **FAST)
    assert_settled(found, price * found.fusion.details.get("spread", 0.0))
    assert found.fusion.n_components >= max(sizes)
