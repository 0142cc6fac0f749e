"""Columnar storage of the components of many sites: what a shard of posteriors is once it is loaded.

An Ensemble holds a Posterior object for each site; a hundred thousand of those are slow to make and to walk over. Here
the components of all J sites stand one after another as columns, L rows in all, in the precision in which they were
stored; site j has rows offsets[j] to offsets[j + 1].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array, Json, Labels
from consilience.core.features import Features
from consilience.families.base import Family
from consilience.posteriors.ensemble import SiteRuns, offsets_of
from consilience.posteriors.posterior import Attached, AxisTag, Posterior, Rule

CHUNK_BYTES = 2**25
"""Bytes of float64 parameters that are worked on at a time, about: 32 MiB.

A bound on memory. Chosen by hand; nobody has measured other values.
"""

MIX_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
"""Multipliers of the finaliser of SplitMix64 (Steele, Lea, Flood 2014; the variant in Vigna's splitmix64)."""


@dataclass(frozen=True)
class ShardSchema:
    """What all sites of a set of shards have in common: the schema of their columns."""

    family: Family  # the family of every component
    source: Mapping[str, Json] = field(default_factory=dict)  # what rebuilding the model needs, as in Posterior
    features: Features = field(default_factory=Features)  # what the data columns mean
    # Attached arrays by name: axes, rule and lengths, that is the tag of each axis, how the array is averaged, and the
    # length of each axis, -1 where it follows the components.
    attached: Mapping[str, tuple[tuple[AxisTag, ...], Rule, tuple[int, ...]]] = field(default_factory=dict)
    stated: tuple[str, ...] = ()  # which of counts, weights and prior every site states, in this order


@dataclass(frozen=True, eq=False)
class RaggedColumn:
    """An attached array of every site, flattened, one site after another; see ``ComponentColumns.attached_starts``."""

    values: Array  # (n,)
    precision: Array | None = None  # (n,), where the rule needs it


@dataclass(frozen=True, eq=False)
class ComponentColumns(SiteRuns):
    """Components of J sites, L in all."""

    kind: ShardSchema  # what all sites share
    natural: NDArray[np.floating[Any]]  # (L, P), natural parameters, float32 or float64, perhaps mapped from a file
    offsets: Labels  # (J + 1,), first row of each site, and L
    # (L,), effective observations and mixture weights.
    counts: Array | None = None
    weights: Array | None = None
    # (J, P) or (P,), natural parameters of the prior of every site, or of the one prior of all.
    prior: Array | None = None
    attached: Mapping[str, RaggedColumn] = field(default_factory=dict)  # attached arrays by name
    # What to call each site in reports. Default: empty, where nobody reports.
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, kind: ShardSchema, posterior: Posterior) -> ComponentColumns:
        """Return the components of one site."""
        attached = {
            name: RaggedColumn(array.values.ravel(), None if array.precision is None else array.precision.ravel())
            for name, array in posterior.attached.items()
        }
        offsets = np.array([0, posterior.n_components])
        return cls(kind, posterior.natural, offsets, posterior.counts, posterior.weights, posterior.prior, attached)

    @classmethod
    def joined(cls, parts: Sequence[ComponentColumns]) -> ComponentColumns:
        """Return the components of several parts of one kind, one after another."""
        kind = parts[0].kind
        rows = {name: np.concatenate([part.stated_rows[name] for part in parts]) for name in parts[0].stated_rows}
        prior = None
        if "prior" in kind.stated:
            prior = one_if_alike(np.concatenate([part.priors for part in parts if part.priors is not None]))
        attached = {}
        for name, (_axes, rule, _lengths) in kind.attached.items():
            arrays = [part.attached[name] for part in parts]
            precisions = [array.precision for array in arrays if array.precision is not None]
            precision = np.concatenate(precisions) if rule == "precision-mean" else None
            attached[name] = RaggedColumn(np.concatenate([array.values for array in arrays]), precision)
        natural = np.concatenate([part.natural for part in parts])
        offsets = offsets_of(np.concatenate([part.sizes for part in parts]))
        return cls(kind, natural, offsets, rows.get("counts"), rows.get("weights"), prior, attached)

    @property
    def stated_rows(self) -> dict[str, Array]:
        """Those of counts and weights (L,) that the sites state, by name."""
        columns = {"counts": self.counts, "weights": self.weights}
        return {name: values for name, values in columns.items() if values is not None}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything of the sites but their offsets and names, by the names of columns in files."""
        columns = {"natural": self.natural, "counts": self.counts, "weights": self.weights, "prior": self.prior}
        for name, ragged in self.attached.items():
            columns |= {f"attached.{name}": ragged.values, f"attached.{name}.precision": ragged.precision}
        return {name: values for name, values in columns.items() if values is not None}

    @property
    def priors(self) -> Array | None:
        """The prior of every site (J, P); None where sites state none."""
        if self.prior is None:
            return None
        return np.broadcast_to(self.prior, (self.n_sites, self.kind.family.size))

    @cached_property
    def attached_starts(self) -> Mapping[str, Labels]:
        """First entry of each site in an attached array, and the length of all (J + 1,), by name."""
        starts = {}
        for name, (axes, _rule, lengths) in self.kind.attached.items():
            sizes = np.ones(self.n_sites, dtype=np.int64)
            for tag, length in zip(axes, lengths, strict=True):
                sizes *= self.sizes if tag == "component" else length
            starts[name] = offsets_of(sizes)
        return starts

    def site(self, number: int) -> Posterior:
        """Return the posterior of one site."""
        rows = self.rows_of(slice(number, number + 1))
        attached = {}
        for name, (axes, rule, lengths) in self.kind.attached.items():
            column, starts = self.attached[name], self.attached_starts[name]
            entries = slice(int(starts[number]), int(starts[number + 1]))
            size = int(self.sizes[number])
            shape = tuple(size if tag == "component" else n for tag, n in zip(axes, lengths, strict=True))
            precision = None if column.precision is None else column.precision[entries].reshape(shape)
            attached[name] = Attached(column.values[entries].reshape(shape), axes, rule, precision)
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

    def place_of(self, row: int) -> tuple[int, int]:
        """Return the site of a row, and the number of the component there."""
        site = int(np.searchsorted(self.offsets, row, side="right")) - 1  # the last whose offset is not above the row
        return site, row - int(self.offsets[site])

    def chunks(self) -> Iterator[tuple[slice, slice]]:
        """Yield runs of sites with about ``CHUNK_BYTES`` of float64 parameters, and their rows."""
        for sites in self.runs(max(1, CHUNK_BYTES // (8 * self.natural.shape[1]))):
            yield sites, self.rows_of(sites)

    def keys(self, seed: int) -> NDArray[np.uint64]:
        """Return a pseudo-random number for each site (J,), by its natural parameters and the seed alone.

        Neither the order of sites, nor that of their components, nor how sites lie in shards changes it. So the sites
        of the k smallest numbers are a sample that does not depend on any of these either (a bottom-k sketch), another
        for each seed.
        """
        rng = np.random.default_rng(seed)
        # The key of a row is a sum of its P words times random odd numbers, modulo 2^64 (multiply-shift hashing),
        # mixed; the key of a site the mixed sum over its rows. Sums do not depend on the order of the components.
        factors = rng.integers(0, 2**63, size=self.natural.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        keys = np.empty(self.n_sites, dtype=np.uint64)
        for sites, rows in self.chunks():
            natural = np.ascontiguousarray(self.natural[rows], dtype=np.float64)
            mixed = _mix_bits((natural + 0.0).view(np.uint64) @ factors)  # (n,); + 0.0 makes -0.0 and 0.0 the same bits
            keys[sites] = _mix_bits(np.add.reduceat(mixed, self.offsets[sites] - rows.start))
        return keys


def one_if_alike(priors: Array) -> Array:
    """Return the one prior (P,) of all sites, or the priors (J, P) where they differ."""
    return priors[0] if np.all(priors == priors[0]) else priors


def _mix_bits(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return 64-bit numbers with all bits mixed, by the finaliser of SplitMix64, a bijection."""
    values = (values ^ (values >> np.uint64(30))) * MIX_MULTIPLIERS[0]
    values = (values ^ (values >> np.uint64(27))) * MIX_MULTIPLIERS[1]
    return values ^ (values >> np.uint64(31))
