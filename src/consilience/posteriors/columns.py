"""Components of many sites as columns: what a shard of posteriors is once it is loaded.

An Ensemble holds a Posterior for each site; a hundred thousand of those are slow to make and to walk over. A block
holds the same as arrays, in the precision in which they were stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array, Labels
from consilience.families.base import Family
from consilience.posteriors.posterior import Attached, AxisTag, Features, Posterior, Rule

_CHUNK_BYTES = 2**25
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


@dataclass(frozen=True)
class Kind:
    """What all sites of a set of shards share.

    Parameters
    ----------
    family
        The family of every component.
    source
        What rebuilding the model needs, as in Posterior.
    features
        What the data columns mean.
    attached
        Axes, rule and fixed lengths (one for each axis, -1 where it follows the components) of attached arrays.
    stated
        Which of counts, weights and prior every site states, in this order.
    """

    family: Family
    source: Mapping[str, Any] = field(default_factory=dict)
    features: Features = field(default_factory=Features)
    attached: Mapping[str, tuple[tuple[AxisTag, ...], Rule, tuple[int, ...]]] = field(default_factory=dict)
    stated: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Ragged:
    """An attached array of every site, one after another, flattened.

    Parameters
    ----------
    values
        Of all sites.
    precision
        As long as `values`, where the rule needs one.
    """

    values: Array
    precision: Array | None = None


@dataclass(frozen=True, eq=False)
class Block:
    """Components of J sites, L in all.

    Parameters
    ----------
    kind
        What all sites share.
    natural
        Natural parameters (L, P), float32 or float64, perhaps mapped from a file.
    offsets
        Where each site starts, and the end (J + 1,).
    counts, weights
        Effective observations and mixture weights (L,).
    prior
        Of every site (J, P), or of all (P,).
    attached
        By name.
    """

    kind: Kind
    natural: NDArray[np.floating[Any]]
    offsets: Labels
    counts: Array | None = None
    weights: Array | None = None
    prior: Array | None = None
    attached: Mapping[str, Ragged] = field(default_factory=dict)

    @property
    def n_sites(self) -> int:
        """Number J of sites."""
        return len(self.offsets) - 1

    @cached_property
    def sizes(self) -> Labels:
        """Number of components of each site (J,)."""
        return np.diff(self.offsets)

    @cached_property
    def owner(self) -> Labels:
        """The site of each component (L,)."""
        return np.repeat(np.arange(self.n_sites, dtype=np.int64), self.sizes)

    @cached_property
    def attached_starts(self) -> Mapping[str, Labels]:
        """Where each site's part of an attached array starts, and the end (J + 1,), by name."""
        found = {}
        for name, (axes, _rule, lengths) in self.kind.attached.items():
            sizes = np.ones(self.n_sites, dtype=np.int64)
            for tag, length in zip(axes, lengths, strict=True):
                sizes *= self.sizes if tag == "component" else length
            found[name] = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
        return found

    def site(self, number: int) -> Posterior:
        """Return the posterior of one site."""
        rows = slice(int(self.offsets[number]), int(self.offsets[number + 1]))
        attached = {}
        for name, (axes, rule, lengths) in self.kind.attached.items():
            own, start = self.attached[name], self.attached_starts[name]
            part = slice(int(start[number]), int(start[number + 1]))
            size = int(self.sizes[number])
            shape = tuple(size if tag == "component" else n for tag, n in zip(axes, lengths, strict=True))
            precision = None if own.precision is None else own.precision[part].reshape(shape)
            attached[name] = Attached(own.values[part].reshape(shape), axes, rule, precision)
        return Posterior(
            self.kind.family,
            np.asarray(self.natural[rows], dtype=np.float64),
            prior=self.prior if self.prior is None or self.prior.ndim == 1 else self.prior[number],
            counts=None if self.counts is None else self.counts[rows],
            weights=None if self.weights is None else self.weights[rows],
            attached=attached,
            features=self.kind.features,
            source=self.kind.source,
        )

    def chunks(self, limit: int = _CHUNK_BYTES) -> list[tuple[int, int]]:
        """Return runs of whole sites (first, end) of about `limit` bytes of float64 parameters each."""
        rows = max(1, limit // (8 * self.natural.shape[1]))
        ends = np.unique(
            np.searchsorted(self.offsets, np.arange(rows, self.offsets[-1] + rows, rows), side="right") - 1
        )
        ends = np.unique(np.append(ends[ends > 0], self.n_sites))
        return list(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True))

    def keys(self, seed: int) -> NDArray[np.uint64]:
        """Return a pseudo-random number for each site (J,), by its natural parameters and the seed alone.

        Neither the order of sites, nor that of their components, nor how sites lie in shards changes it; so the sites
        of the smallest numbers are a sample that does not depend on any of these either.
        """
        rng = np.random.default_rng(seed)
        factors = rng.integers(0, 2**63, size=self.natural.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        keys = np.empty(self.n_sites, dtype=np.uint64)
        for first, end in self.chunks():
            rows = np.ascontiguousarray(self.natural[self.offsets[first] : self.offsets[end]], dtype=np.float64)
            mixed = _mixed((rows + 0.0).view(np.uint64) @ factors)  # zero has two signs, and means one thing
            keys[first:end] = _mixed(np.add.reduceat(mixed, self.offsets[first:end] - self.offsets[first]))
        return keys


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return 64-bit numbers well mixed (Steele, Lea, Flood 2014, the finaliser of SplitMix)."""
    values = (values ^ (values >> np.uint64(30))) * _MIX[0]
    values = (values ^ (values >> np.uint64(27))) * _MIX[1]
    mixed: NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed
