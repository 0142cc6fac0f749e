"""How a matching is scored: number, matching, held-out likelihood and classes, virtual loss, confidence.

Every method's groups are merged by moments, so that matchings are compared and not averages: W_g = sum_l w_l, and the
mean and the covariance of the mixture of the group's plug-in Gaussians. Local components are weighted by their counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from battery.local_fits import Cell
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

import consilience as cs

VIRTUAL_DRAWS = 2000
COLLAPSE = 1.0 / 3.0
"""A number below this share of the true one is a collapse."""
CONFIDENCE_EDGES = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0)
LOG_2_PI = float(np.log(2.0 * np.pi))


@dataclass(frozen=True, eq=False)
class GaussianMixture:
    """A mixture of Gaussians: weights (G,), means (G, D), covariances (G, D, D)."""

    weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray

    def joint(self, x: np.ndarray) -> np.ndarray:
        """Return log weight plus log density (n, G) of every row under every component."""
        factors = np.linalg.cholesky(self.covariances)
        inverses = np.linalg.inv(factors)
        log_dets = np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(axis=1)
        with np.errstate(divide="ignore"):  # a component that nothing was observed of has weight zero
            constants = np.log(self.weights) - log_dets - 0.5 * x.shape[1] * LOG_2_PI
        result = np.empty((len(x), len(self.weights)))
        for g, (mean, inverse) in enumerate(zip(self.means, inverses, strict=True)):
            result[:, g] = constants[g] - 0.5 * (((x - mean) @ inverse.T) ** 2).sum(axis=1)
        return result

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Return log densities (n,)."""
        return np.logaddexp.reduce(self.joint(x), axis=1)

    def draw(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return draws (size, D)."""
        chosen = rng.choice(len(self.weights), size=size, p=self.weights)
        factors = np.linalg.cholesky(self.covariances)
        return self.means[chosen] + np.einsum("nij,nj->ni", factors[chosen], rng.standard_normal((size, self.dim)))

    @property
    def dim(self) -> int:
        """Number D of dimensions."""
        return self.means.shape[1]

    def merged(self, labels: np.ndarray) -> GaussianMixture:
        """Return the mixture whose components have the moments of the groups; rows labelled -1 are left out."""
        groups = np.unique(labels[labels >= 0])
        weights, means, covariances = [], [], []
        for group in groups:
            own = labels == group
            total = self.weights[own].sum()
            shares = self.weights[own] / total if total > 0 else np.full(own.sum(), 1.0 / own.sum())
            mean = shares @ self.means[own]
            offsets = self.means[own] - mean
            spread = self.covariances[own] + offsets[:, :, None] * offsets[:, None, :]
            weights.append(total)
            means.append(mean)
            covariances.append(np.einsum("n,nij->ij", shares, spread))
        shares = np.array(weights)
        return GaussianMixture(shares / shares.sum(), np.stack(means), np.stack(covariances))


def concatenation(cell: Cell) -> GaussianMixture:
    """Return all local components side by side, plug-in Gaussians at the posterior means, weighted by counts."""
    parameters = [posterior.family.standard(posterior.natural) for posterior in cell.posteriors]
    means, _, inverse_scales, dofs = (np.concatenate(column) for column in zip(*parameters, strict=True))
    counts = np.concatenate([posterior.counts for posterior in cell.posteriors])
    return GaussianMixture(counts / counts.sum(), means, inverse_scales / dofs[:, None, None])


@dataclass(frozen=True, eq=False)
class Bench:
    """A cell with what all its methods are scored on."""

    cell: Cell
    local: GaussianMixture
    draws: np.ndarray
    local_at_draws: np.ndarray


def bench(cell: Cell) -> Bench:
    """Return a cell with its concatenation and the draws of the virtual loss, which are the same for every method."""
    local = concatenation(cell)
    draws = local.draw(VIRTUAL_DRAWS, np.random.default_rng([cell.setting.seed, 1]))
    return Bench(cell, local, draws, local.log_density(draws))


def mixture_scores(on: Bench, mixture: GaussianMixture) -> dict[str, Any]:
    """Return what is scored of a mixture, wherever it comes from."""
    joint = mixture.joint(on.cell.held_out)
    loss = on.local_at_draws - mixture.log_density(on.draws)
    return {
        "components": len(mixture.weights),
        "error": len(mixture.weights) - on.cell.n_true,
        "collapsed": bool(len(mixture.weights) < COLLAPSE * on.cell.n_true),
        "log_likelihood": float(np.logaddexp.reduce(joint, axis=1).mean()),
        "ami": float(adjusted_mutual_info_score(on.cell.held_out_labels, joint.argmax(axis=1))),
        "virtual_loss": float(loss.mean()),
        "virtual_loss_error": float(loss.std() / np.sqrt(len(loss))),
    }


def matching_scores(on: Bench, labels: np.ndarray, confidence: np.ndarray | None) -> dict[str, Any]:
    """Return what is scored of a matching.

    The adjusted Rand index is over the local components that explain any data; what is left out counts as a group of
    its own there, so that nothing is won by leaving out, and not at all in ``ari_of_matched``.
    """
    known, matched = on.cell.truth >= 0, labels >= 0
    alone = np.where(matched, labels, labels.max() + 1 + np.arange(len(labels)))
    both = known & matched
    scores = mixture_scores(on, on.local.merged(labels)) | {
        "ari": float(adjusted_rand_score(on.cell.truth[known], alone[known])),
        "ari_of_matched": float(adjusted_rand_score(on.cell.truth[both], labels[both])),
        "left_out": int((~matched).sum()),
    }
    if confidence is not None:
        scores["confidence"] = calibration(labels, on.cell.truth, confidence)
    return scores


def plug_in(posterior: cs.Posterior) -> GaussianMixture:
    """Return the mixture of a Normal-Wishart posterior at its means."""
    mean, _, inverse_scale, dof = posterior.family.standard(posterior.natural)
    counts = posterior.counts if posterior.weights is None else posterior.weights
    return GaussianMixture(counts / counts.sum(), mean, inverse_scale / dof[:, None, None])


def calibration(labels: np.ndarray, truth: np.ndarray, confidence: np.ndarray) -> dict[str, Any]:
    """Return, by stated confidence, how many matches there are, their mean confidence and how many are right.

    A match is right if at least half of the other members of its group have the same true component.
    """
    stated, right = [], []
    for row in np.flatnonzero((labels >= 0) & (truth >= 0) & np.isfinite(confidence)):
        others = (labels == labels[row]) & (truth >= 0)
        others[row] = False
        if others.any():
            stated.append(float(confidence[row]))
            right.append(bool((truth[others] == truth[row]).mean() >= 0.5))
    p, is_right = np.array(stated), np.array(right, dtype=float)
    bins = np.clip(np.searchsorted(CONFIDENCE_EDGES, p, side="left") - 1, 0, len(CONFIDENCE_EDGES) - 2)
    table = [
        [float(value) for value in (own.sum(), p[own].sum(), is_right[own].sum())]
        for own in (bins == one for one in range(len(CONFIDENCE_EDGES) - 1))
    ]
    return {"bins": table, "brier": float(((p - is_right) ** 2).mean()) if len(p) else None}
