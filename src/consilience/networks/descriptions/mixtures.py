"""Classes that are far from Gaussian, each described by several components.

Two things show that one Gaussian says too little. The density: the logarithm of that of a mixture of Gaussians, fitted
to half of the observations, on the other half. And the network: the gap is by how much more often it errs on inputs
drawn from the moments of its site's classes than on the site's own; a network of one class sees none, whatever that
class is like. Where either shows it, every class is split by k-means on coordinates of unit variance, and each part is
a component with the moments of its observations. The number of parts is that of the best density, or more where that
leaves less of the gap.

Over small networks of tabular data (experiments/network_battery/tabular.py, first half) gaps of 5 to 65 points became
0 to 20. Images and texts are not split: on them it gained nothing (mixtures of experiments/network_battery).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from consilience.checks import Array, Labels
from consilience.errors import UnsupportedError, reason_of
from consilience.networks.descriptions.description import Description, Moments
from consilience.networks.descriptions.disclosure import MAX_CLASS_RANK, Leaving, allowed_rank, least_class_observations
from consilience.networks.descriptions.layers import SPARE_SHARE, InputSample, sample_size
from consilience.networks.descriptions.moments import MomentAccumulator
from consilience.networks.descriptions.observations import Batch
from consilience.networks.descriptions.statistic import ErrorCounts, Setting, Statistic
from consilience.networks.module_inputs import first_line, precision_of
from consilience.networks.repair.partial_forward import call_module, evaluation_without_gradients

if TYPE_CHECKING:
    from consilience.networks.synthetic.draws import SyntheticInputs

MAX_COORDINATES = 128
"""Numbers of an input at most. Chosen by hand, between rows of a table and images."""
MAX_ROWS = 20_000
"""Observations at most that are split, a random sample of more. Chosen by hand, for memory: 20 MB."""
MAX_ENTRIES = 2**17
"""Numbers of all components at most (512 KiB in float32). Chosen by hand."""
NUMBERS_OF_PARTS = (2, 4, 8, 16)
"""Parts of a class that are tried, where it has enough observations for so many."""
MAX_GAP = 0.05
"""Further errors on drawn inputs beyond which classes are split. Chosen by hand."""
GOAL = 0.02
"""Further errors at which no more parts are tried: two standard errors of `N_DRAWN` inputs."""
N_DRAWN = 1000
"""Inputs drawn to see the gap: a standard error of a point."""
MIN_NATS = 0.1
"""Gain in the mean logarithm of the density from which a class is split without a gap. Chosen by hand."""
MIN_VARIANCE_SHARE = 1e-2
"""Share of a class's variances that is added to those of its parts where densities are compared: columns of few values
have parts in which they do not vary. Chosen by hand."""
_SEED = 0


def with_mixtures(
    described: Description, rows: Array, labels: Labels, error_on: Callable[[SyntheticInputs], float], min_count: float
) -> Description:
    """Return a description with split classes, where that brings synthetic inputs nearer to the site's own.

    The rows (n, d) are observations of the classes that it describes, or a random sample of them; `error_on` says how
    often the network takes drawn inputs for another class than they were drawn from.
    """
    own_error = described.own_error
    if own_error is None or described.input_shape is None or prod(described.input_shape) != rows.shape[1]:
        return described

    def gap(candidate: Description) -> float:
        from consilience.networks.synthetic.draws import draw_inputs  # here, since it draws from descriptions

        return error_on(draw_inputs([candidate], N_DRAWN, _SEED, labelled=True)) - own_error

    least = least_class_observations(min_count)
    n_dense = densest_number([rows[labels == label] for label in described.class_moments], least)
    best, best_gap = described, gap(described)
    if best_gap <= MAX_GAP and n_dense == 1:
        return described
    for most in NUMBERS_OF_PARTS:
        if most < n_dense:
            continue
        mixtures = {
            label: split_class(rows[labels == label], moments.n_observations, most, least)
            for label, moments in described.class_moments.items()
        }
        parts = chain.from_iterable(mixtures.values())
        if sum(part.factor.size + 2 * part.mean.size for part in parts) > MAX_ENTRIES:
            break
        # The moments of a class are those of its parts together: nothing is said of other observations of it, from
        # which a difference could be taken.
        whole = {label: mixture_moments(of_class, MAX_CLASS_RANK) for label, of_class in mixtures.items()}
        candidate = replace(described, class_moments=whole, class_mixtures=mixtures)
        # What no more than the noise of the draws would gain is not sent.
        if (gap_left := gap(candidate)) < best_gap - GOAL or most == n_dense:
            best, best_gap = candidate, gap_left
        if best_gap <= GOAL:
            break
    return best


class SplitClasses(Statistic):
    """A random sample of rows, by which classes are split where one Gaussian for each says too little."""

    def __init__(self, setting: Setting, errors: ErrorCounts) -> None:
        self._setting, self._errors = setting, errors
        self._sample = InputSample(int((1 + SPARE_SHARE) * MAX_ROWS))

    def add(self, batch: Batch, groups: Labels, answer: Any) -> None:
        """Let the inputs of a batch pass."""
        self._sample.add(batch.inputs, groups)

    def state(self, described: Description, leaving: Leaving) -> Description:
        """Return a description with split classes, where that brings synthetic inputs nearer to the site's own."""
        if not described.class_moments:
            return described
        groups = np.array(sorted(described.class_moments))
        n_all, most = int(leaving.counts[groups].sum()), int(self._sample.capacity / (1 + SPARE_SHARE))
        drawn = self._sample.labelled_rows(groups, sample_size(n_all, most, leaving.min_count))
        if drawn is None:
            return described
        rows = drawn[0].to(torch.float64).numpy()
        try:
            return with_mixtures(described, rows, drawn[1], self._error_on, leaving.min_count)
        except UnsupportedError as error:
            text = f"{reason_of(error)}: the default will not compare candidates, unless `inputs=` are given"
            return replace(described, notes=(*described.notes, text))

    def _error_on(self, synthetic: SyntheticInputs) -> float:
        """Return how often the network errs on synthetic inputs."""
        module = self._setting.module
        with evaluation_without_gradients(module):
            try:
                inputs = self._setting.arguments(synthetic.inputs.to(precision_of(module)))
                outputs = call_module(module, inputs)
            except (IndexError, ValueError, RuntimeError) as error:  # columns of ids, say, are none in drawn inputs
                text = f"the network does not take inputs drawn as its own are described ({first_line(error)})"
                raise UnsupportedError(text) from error
        return self._errors.share_wrong(outputs, np.asarray(synthetic.labels))


def densest_number(classes: Sequence[Array], least: float) -> int:
    """Return how many parts, of `NUMBERS_OF_PARTS` or 1, give held-out rows of all classes the largest density.

    Classes (n, d) of too few rows for two parts of `least` in a half say nothing.
    """
    rng = np.random.default_rng(_SEED)
    halves = [(rows[order[::2]], rows[order[1::2]]) for rows in classes for order in [rng.permutation(len(rows))]]
    halves = [(fitted, held) for fitted, held in halves if len(fitted) >= 2 * least]
    if not halves:
        return 1
    n_held = sum(len(held) for _, held in halves)
    densities = {
        most: sum(_log_density(split_class(fitted, 1.0, most, least), held).sum() for fitted, held in halves) / n_held
        for most in (1, *NUMBERS_OF_PARTS)
    }
    best = max(densities, key=lambda most: densities[most])
    return best if densities[best] - densities[1] >= MIN_NATS else 1


def _log_density(parts: Sequence[Moments], rows: Array) -> Array:
    """Return the logarithm of the density of a mixture of Gaussians at rows (n, d)."""
    whole = mixture_moments(tuple(parts), 0)
    # What varies by less than rounding of the largest column does not vary: 1e-94 made a triangle that has no inverse.
    is_varying = whole.variance > np.finfo(np.float64).eps ** 2 * whole.variance.max()
    floor = MIN_VARIANCE_SHARE * np.where(is_varying, whole.variance, 1.0)
    terms = []
    for part in parts:
        triangle = np.linalg.cholesky(part.covariance + np.diag(floor))
        distances = np.square(np.linalg.solve(triangle, (rows - part.mean).T)).sum(axis=0)  # (n,)
        log_volume = 2.0 * np.log(np.diag(triangle)).sum() + rows.shape[1] * np.log(2.0 * np.pi)
        terms.append(np.log(part.n_observations / whole.n_observations) - 0.5 * (distances + log_volume))
    densities: Array = np.logaddexp.reduce(terms, axis=0)
    return densities


def split_class(rows: Array, n_observations: float, most: int, least: float) -> tuple[Moments, ...]:
    """Return the moments of at most so many parts of a class, by k-means, none of fewer rows than `least`.

    Rows (n, d) are the observations, or a random sample of them; parts share `n_observations` as they share the rows.
    """
    from sklearn.cluster import KMeans  # here, since most descriptions need none

    deviations = rows.std(axis=0)
    scaled = rows / np.where(deviations > 0, deviations, 1.0)
    n_parts = min(most, int(len(rows) // max(least, 1)), len(np.unique(rows, axis=0)))
    labels = np.zeros(len(rows), dtype=np.int64)
    if n_parts > 1:
        labels = _without_small_parts(KMeans(n_parts, n_init=2, random_state=_SEED).fit_predict(scaled), scaled, least)
    parts = []
    for label in np.unique(labels).tolist():
        of_part = rows[labels == label]
        summed = MomentAccumulator(rows.shape[1])
        summed.add(of_part)
        moments = summed.moments(allowed_rank(len(of_part), MAX_CLASS_RANK))
        parts.append(replace(moments, n_observations=n_observations * len(of_part) / len(rows)))
    return tuple(parts)


def _without_small_parts(labels: Labels, rows: Array, least: float) -> Labels:
    """Return labels (n,) of parts of at least so many rows: the smallest joins the one of the nearest centre."""
    labels = labels.copy()
    while True:
        names, counts = np.unique(labels, return_counts=True)
        if len(names) == 1 or counts.min() >= least:
            return labels
        centres = np.stack([rows[labels == name].mean(axis=0) for name in names])
        smallest = int(counts.argmin())
        distances = np.square(centres - centres[smallest]).sum(axis=1)
        distances[smallest] = np.inf
        labels[labels == names[smallest]] = names[int(distances.argmin())]


def mixture_moments(parts: tuple[Moments, ...], most: int) -> Moments:
    """Return the moments of the parts of a class together, of `most` directions at most.

    With n_k, m_k and C_k of part k: n = sum n_k, m = sum n_k m_k / n, C = sum n_k / n (C_k + (m_k - m)(m_k - m)^T).
    """
    n = float(sum(part.n_observations for part in parts))
    shares = [part.n_observations / n for part in parts]
    mean: Array = sum(
        (share * part.mean for share, part in zip(shares, parts, strict=True)), np.zeros_like(parts[0].mean)
    )
    directions = np.concatenate(
        [
            np.sqrt(share) * np.concatenate([part.factor, (part.mean - mean)[None]])
            for share, part in zip(shares, parts, strict=True)
        ]
    )
    residual: Array = sum(
        (share * part.residual for share, part in zip(shares, parts, strict=True)), np.zeros_like(mean)
    )
    variance = residual + np.square(directions).sum(axis=0)
    values, vectors = np.linalg.eigh(directions.T @ directions + np.diag(residual))
    rank = min(most, allowed_rank(n, most), len(mean))
    leading = np.argsort(values)[::-1][:rank]
    factor = (vectors[:, leading] * np.sqrt(np.maximum(values[leading], 0.0))).T
    # An eigenvector's sign is arbitrary: its largest entry is made positive, so that every machine writes the same.
    largest = np.take_along_axis(factor, np.abs(factor).argmax(axis=1)[:, None], axis=1) if rank else factor
    factor = np.where(largest < 0, -factor, factor) if rank else factor
    return Moments(n, mean, factor, np.maximum(variance - np.square(factor).sum(axis=0), 0.0))
