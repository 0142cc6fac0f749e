"""The cells of the battery: their settings, drawn by a fixed rule, and simulated data.

A half has one cell of every kind in ``KINDS``, each axis drawn from the kind's choices, ``RANDOM_CELLS`` cells whose
axes are all drawn from ``ANY``, and two cells of each of its real data sets (``real.py``). The halves are drawn by
generators of their own, so that they differ in settings and seeds. Nothing here was chosen by a result.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

HALVES = ("tune", "report", "second")
"""The half for tuning, the half for reporting, and a second one to report, drawn after the first had shown a fault."""
RANDOM_CELLS = 12
MOST_LOCAL, MOST_DISJOINT = 600, 100
"""Local components of a cell whose axes are drawn from ``ANY``, of disjoint sites too: others are drawn again."""
HELD_OUT = 2000
"""Held-out observations of a simulated cell; the Bayes error is estimated on the same."""
TAILS = 3
"""Degrees of freedom of the Student-t cells; the covariance stays that of the Gaussian ones."""

ORDINARY: dict[str, tuple[Any, ...]] = {
    "sites": (8, 10, 12, 15, 20),
    "components": (5, 6, 7, 8),
    "per_site": ((2, 4), (3, 4), (2, 5)),
    "dim": (2, 3, 5, 8),
    "separation": (5.0, 6.0, 8.0),
    "noise": (0.0,),
    "tails": (False,),
    "sizes": ("equal",),
    "sharing": ("random",),
    "local": ("fitted",),
    "prior": ("default", "default", "agreed"),
}
KINDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "sites of two": {"sites": (20, 30, 40), "components": (12, 16, 20, 28), "per_site": ((2, 2),), "dim": (3, 5)},
    "very many sites of three": {"sites": (150, 200), "components": (8, 12, 20), "per_site": ((3, 3),)},
    "sites of one to eight": {"sites": (40, 50, 60), "components": (30, 40), "per_site": ((1, 8),), "dim": (5, 8)},
    "hundred components": {"sites": (80, 100), "components": (100,), "per_site": ((5, 8),), "dim": (5, 10)},
    "two hundred sites of ten": {"sites": (200,), "components": (36, 40, 44), "per_site": ((10, 10),), "dim": (5,)},
    "twenty per site": {"sites": (6, 8, 10), "components": (30, 40), "per_site": ((15, 20),), "dim": (5, 10)},
    "two components": {"components": (2,), "per_site": ((1, 2),)},
    "two sites": {"sites": (2,), "per_site": ((3, 5),)},
    "disjoint pair": {"sites": (2, 3), "per_site": ((2, 2), (3, 3), (5, 5)), "sharing": ("disjoint",)},
    "disjoint": {"sites": (5, 8, 10), "per_site": ((2, 2), (3, 3)), "sharing": ("disjoint",)},
    "identical": {"sites": (10, 20, 50), "per_site": ((3, 3), (5, 5), (8, 8)), "sharing": ("identical",)},
    "paper": {"sites": (50,), "components": (5,), "per_site": ((2, 5),), "dim": (10,), "noise": (0.5,)},
    "small noise": {"noise": (0.1, 0.3)},
    "noise one": {"sites": (20, 30, 40), "noise": (1.0,)},
    "noise two": {"sites": (20, 30, 40), "noise": (2.0,)},
    "student": {"tails": (True,)},
    "student, few sites": {"sites": (3, 4), "tails": (True,)},
    "overlap": {"separation": (1.5, 2.0, 2.5)},
    "overlap, many sites": {"sites": (30, 40), "separation": (1.5, 2.0, 2.5)},
    "unequal sizes": {"sites": (20, 30), "sizes": ("unequal",)},
    "popular and rare": {"sites": (20, 30, 40), "components": (12, 16, 20), "sharing": ("popular",)},
    "over-split": {"local": ("over-split",)},
    "fifty dimensions": {"dim": (50,)},
    "true local labels": {"sites": (60, 100), "components": (20, 40), "per_site": ((3, 8),), "local": ("exact",)},
}
"""Kinds of cells, by the axes in which they differ from ``ORDINARY``."""
ANY: dict[str, tuple[Any, ...]] = {
    "sites": (2, 3, 5, 8, 12, 20, 40, 80),
    "components": (2, 4, 6, 10, 16, 30, 50),
    "per_site": ((1, 2), (2, 2), (2, 4), (1, 8), (4, 8), (8, 12)),
    "dim": (2, 3, 5, 8, 12, 20),
    "separation": (2.5, 4.0, 6.0, 8.0),
    "noise": (0.0, 0.0, 0.1, 0.3, 1.0, 2.0),
    "tails": (False, False, False, True),
    "sizes": ("equal", "equal", "unequal"),
    "sharing": ("random", "random", "popular", "identical", "disjoint"),
    "local": ("fitted", "fitted", "fitted", "exact", "over-split"),
    "prior": ("default", "default", "agreed"),
}


@dataclass(frozen=True)
class Setting:
    """A simulated cell.

    Parameters
    ----------
    name, half, kind : str
        Its name, which is unique, "tune" or "report", and the kind of cell.
    seed : int
        Seed of everything that is drawn.
    sites : int
        Number J of sites.
    components : int
        Number G of global components. Disjoint sites have what they have together instead, identical sites the most
        of `per_site`.
    per_site : tuple of int
        Fewest and most components of a site.
    dim : int
        Number D of dimensions.
    separation : float
        Median over components of the distance to the nearest other mean, in standard deviations of a pooled component,
        sqrt(1 + noise^2).
    noise : float
        Standard deviation of a component's mean between sites, for covariances of determinant one.
    tails : bool
        Whether components are Student-t.
    sizes : {"equal", "unequal"}
        Observations of a site: alike for each of its components, or times what is log-uniform between 1/2 and 8.
    sharing : {"random", "popular", "identical", "disjoint"}
        Who has what: any subset alike, by probabilities that fall as 1 / rank, all, or nothing in common.
    local : {"fitted", "over-split", "exact"}
        Fits told the true local number, or two more, or conjugate posteriors given the true labels.
    prior : {"default", "agreed"}
        scikit-learn's default prior, which every site makes of its own data, or one that all share.
    """

    name: str
    half: str
    kind: str
    seed: int
    sites: int
    components: int
    per_site: tuple[int, int]
    dim: int
    separation: float
    noise: float
    tails: bool
    sizes: str
    sharing: str
    local: str
    prior: str

    @property
    def group(self) -> str:
        """The group of cells that it is summed up with; where several fit, the first."""
        groups = {
            "disjoint": self.sharing == "disjoint",
            "over-split": self.local == "over-split",
            "overlap": self.separation < 3.0,
            "tails": self.tails,
            "noise": self.noise >= 1.0,
            "many small sites": self.sites >= 20 and self.per_site[1] <= 3,
        }
        return next((name for name, applies in groups.items() if applies), "ordinary")


@dataclass(frozen=True, eq=False)
class Data:
    """What the sites of a cell observed, and what is held out.

    Parameters
    ----------
    rows, labels : list of ndarray of shape (n_j, D) and (n_j,)
        Observations of every site and their true components.
    held_out, held_out_labels : ndarray of shape (n, D) and (n,)
        Observations of the population of all sites.
    bayes_error : float or None
        Error of the best classifier of the held-out data, given the true mixture; None where that is not known.
    """

    rows: list[np.ndarray]
    labels: list[np.ndarray]
    held_out: np.ndarray
    held_out_labels: np.ndarray
    bayes_error: float | None


def plan(half: str) -> list[Setting]:
    """Return the simulated cells of a half."""
    rng = np.random.default_rng([2026, HALVES.index(half)])
    axes = [(kind, _drawn(ORDINARY | changed, rng)) for kind, changed in KINDS.items()]
    while len(axes) < len(KINDS) + RANDOM_CELLS:
        drawn = _drawn(ANY, rng)
        most = drawn["per_site"][1]
        limit = MOST_DISJOINT if drawn["sharing"] == "disjoint" else MOST_LOCAL
        if drawn["components"] >= most and drawn["sites"] * most <= limit:
            axes.append(("any", drawn))
    seeds = rng.integers(2**31, size=len(axes)).tolist()
    return [
        Setting(f"{half}-{number:02d}-{re.sub('[^a-z]+', '-', kind)}", half, kind, seed, **drawn)
        for number, ((kind, drawn), seed) in enumerate(zip(axes, seeds, strict=True))
    ]


def settings_of(setting: Any) -> dict[str, Any]:
    """Return a setting as JSON values."""
    return {**asdict(setting), "group": setting.group}


def simulate(setting: Setting) -> Data:
    """Draw a cell."""
    rng = np.random.default_rng(setting.seed)
    holdings = _holdings(setting, rng)
    n_components = 1 + max(int(held.max()) for held in holdings)
    roots = np.stack([_covariance_root(setting.dim, rng) for _ in range(n_components)])  # S^1/2, (G, D, D)
    means = _means(setting, n_components, rng)  # (G, D)
    centres = [means[held] + setting.noise * rng.standard_normal((len(held), setting.dim)) for held in holdings]
    counts = [_counts(setting, len(held), rng) for held in holdings]
    rows, labels = [], []
    for held, centre, count in zip(holdings, centres, counts, strict=True):
        own = np.repeat(np.arange(len(held)), count)
        rows.append(centre[own] + _draw(roots[held[own]], setting, rng))
        labels.append(held[own])
    component, centre, count = np.concatenate(holdings), np.concatenate(centres), np.concatenate(counts)
    chosen = rng.choice(len(count), size=HELD_OUT, p=count / count.sum())
    held_out = centre[chosen] + _draw(roots[component[chosen]], setting, rng)
    density = _densities(held_out, setting, roots, component, centre, np.log(count / count.sum()))  # (n, G)
    posterior = np.exp(density - np.logaddexp.reduce(density, axis=1, keepdims=True))
    return Data(rows, labels, held_out, component[chosen], float(1.0 - posterior.max(axis=1).mean()))


def _drawn(axes: dict[str, tuple[Any, ...]], rng: np.random.Generator) -> dict[str, Any]:
    """Return one choice of every axis."""
    return {axis: choices[rng.integers(len(choices))] for axis, choices in axes.items()}


def _holdings(setting: Setting, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the components of every site, numbered so that all that occur are consecutive."""
    fewest, most = setting.per_site
    numbers = rng.integers(fewest, most + 1, size=setting.sites)
    if setting.sharing == "disjoint":
        ends = np.cumsum(numbers)
        return [np.arange(end - number, end) for number, end in zip(numbers, ends, strict=True)]
    if setting.sharing == "identical":
        return [np.arange(most)] * setting.sites
    popularity = 1.0 / np.arange(1, setting.components + 1) if setting.sharing == "popular" else None
    shares = None if popularity is None else popularity / popularity.sum()
    holdings = [np.sort(rng.choice(setting.components, size=n, replace=False, p=shares)) for n in numbers]
    positions = np.unique(np.concatenate(holdings), return_inverse=True)[1]
    return np.split(positions, np.cumsum(numbers)[:-1])


def _covariance_root(dim: int, rng: np.random.Generator) -> np.ndarray:
    """Return S^1/2 of a covariance of determinant one, in random directions, of condition up to e^2."""
    directions = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
    halves = rng.uniform(-0.5, 0.5, size=dim)  # logarithms of standard deviations
    return directions * np.exp(halves - halves.mean())


def _means(setting: Setting, n_components: int, rng: np.random.Generator) -> np.ndarray:
    """Return Gaussian means (G, D), scaled to the separation."""
    means = rng.standard_normal((n_components, setting.dim))
    distances = np.linalg.norm(means[:, None] - means, axis=2)
    nearest = np.median(np.sort(distances, axis=1)[:, 1])
    return means * (setting.separation * np.sqrt(1.0 + setting.noise**2) / nearest)


def _counts(setting: Setting, number: int, rng: np.random.Generator) -> np.ndarray:
    """Return how many observations of each of its components a site has, at least ten."""
    each = max(80, 4 * setting.dim)
    factor = float(np.exp(rng.uniform(np.log(0.5), np.log(8.0)))) if setting.sizes == "unequal" else 1.0
    amounts = rng.multinomial(int(factor * each * number), rng.dirichlet(np.full(number, 10.0)))
    return np.maximum(amounts, 10)


def _draw(roots: np.ndarray, setting: Setting, rng: np.random.Generator) -> np.ndarray:
    """Return one draw (n, D) around zero for each root (n, D, D)."""
    normal = rng.standard_normal(roots.shape[:2])
    if setting.tails:
        normal *= np.sqrt((TAILS - 2) / rng.chisquare(TAILS, size=len(normal)))[:, None]
    return np.einsum("nij,nj->ni", roots, normal)


def _densities(
    x: np.ndarray,
    setting: Setting,
    roots: np.ndarray,
    component: np.ndarray,
    centre: np.ndarray,
    log_weights: np.ndarray,
) -> np.ndarray:
    """Return log densities (n, G) of the true components of the pooled mixture with their weights, up to a constant.

    A component of the pooled mixture is the mixture of what it is at its sites.
    """
    densities = np.empty((len(x), len(roots)))
    for group, root in enumerate(roots):
        own = np.flatnonzero(component == group)
        inverse = np.linalg.inv(root)
        values, centres = x @ inverse.T, centre[own] @ inverse.T
        squares = ((values**2).sum(axis=1)[:, None] - 2.0 * values @ centres.T + (centres**2).sum(axis=1)).clip(0.0)
        student = -0.5 * (TAILS + setting.dim) * np.log1p(squares / (TAILS - 2))
        terms = student if setting.tails else -0.5 * squares
        densities[:, group] = np.logaddexp.reduce(terms + log_weights[own], axis=1)  # all determinants are one
    return densities
