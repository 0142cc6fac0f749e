"""The ensemble of local models: J posteriors of one family stacked in one array of L components, in canonical order.

Rows are components, one site after another; ``offsets`` (J + 1,) says where each site starts, ``owner`` (L,) whose a
row is. The canonical order depends on contents only, so that neither arrival order nor numbering changes a result.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.checks import Array, Labels, as_weights
from consilience.errors import InputError
from consilience.families.base import Family
from consilience.families.evidence import EvidenceFamily
from consilience.posteriors.posterior import Posterior


def offsets_of(sizes: Labels) -> Labels:
    """Return where each of some runs of these sizes (J,) starts, and the end of the last (J + 1,)."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])


def informed_rows(counts: Array, owner: Labels, offsets: Labels, min_count: float) -> NDArray[np.bool_]:
    """Return which components (L,) have at least `min_count` observations or are the best informed of their site."""
    is_informed = counts >= min_count
    # In the order of sites, then of falling counts, the row at a site's offset is its best informed one.
    is_informed[np.lexsort((-counts, owner))[offsets[:-1]]] = True
    return is_informed


class SiteRuns:
    """Rows of J sites, one site after another; ``offsets`` (J + 1,) says where each site starts, and the end."""

    offsets: Labels

    @property
    def n_sites(self) -> int:
        """Number J of sites."""
        return len(self.offsets) - 1

    @cached_property
    def sizes(self) -> Labels:
        """Number of rows of each site (J,)."""
        return np.diff(self.offsets)

    @cached_property
    def owner(self) -> Labels:
        """The site of each row (L,)."""
        return np.repeat(np.arange(self.n_sites, dtype=np.int64), self.sizes)

    def rows_of(self, sites: slice) -> slice:
        """Return the rows of a run of sites."""
        return slice(int(self.offsets[sites.start]), int(self.offsets[sites.stop]))

    def runs(self, limit: int) -> Iterator[slice]:
        """Yield runs of whole sites, in order, of as many rows as `limit` allows; of one site at least."""
        first = 0
        while first < self.n_sites:
            end = int(np.searchsorted(self.offsets, self.offsets[first] + limit, side="right")) - 1
            yield slice(first, max(end, first + 1))
            first = max(end, first + 1)


@dataclass(frozen=True, eq=False)
class Stack(SiteRuns):
    """Components of sites without what else their posteriors hold, in a family that counts information."""

    family: EvidenceFamily
    natural: Array  # (L, P)
    offsets: Labels  # (J + 1,)
    row_weights: Array  # site weight of each component (L,)

    def take(self, rows: Labels) -> Stack:
        """Return the stack of some rows, ascending; sites keep their places even when nothing is left of them."""
        sizes = np.bincount(self.owner[rows], minlength=self.n_sites)
        return Stack(self.family, self.natural[rows], offsets_of(sizes), self.row_weights[rows])


@dataclass(frozen=True, eq=False)
class Ensemble:
    """J posteriors of one family, stacked: L components in all."""

    posteriors: Sequence[Posterior]  # the J posteriors; a canonical ensemble makes each when it is asked for
    site_weights: Array  # one weight per posterior (J,), scaled to mean 1
    names: tuple[str, ...]  # what to call each model in messages

    @classmethod
    def of(
        cls, posteriors: Sequence[Posterior], weights: ArrayLike | None = None, names: Sequence[str] | None = None
    ) -> Ensemble:
        """Stack `posteriors` of one family; weights are one number per posterior, finite and not negative."""
        if not posteriors:
            raise InputError("nothing to fuse", "no model was given", code="E-NEEDED")
        called = tuple(f"model {number}" for number in range(len(posteriors))) if names is None else tuple(names)
        for name, posterior in zip(called, posteriors, strict=True):
            if posterior.family != posteriors[0].family:
                text = f"{name} is {posterior.family}, expected {posteriors[0].family} as {called[0]}"
                raise InputError("", text, code="E-MISMATCH")
        site_weights = as_weights(weights, len(posteriors), "weights of the models")
        return cls(tuple(posteriors), site_weights * (len(site_weights) / math.fsum(site_weights)), called)

    @property
    def family(self) -> Family:
        """The family of every component."""
        return self.unordered[0].family

    @property
    def unordered(self) -> Sequence[Posterior]:
        """The J posteriors with components in any order, at hand: for all that does not depend on that order."""
        return self.posteriors.handed_in if isinstance(self.posteriors, ReorderedPosteriors) else self.posteriors

    @property
    def n_sites(self) -> int:
        """Number J of models."""
        return len(self.posteriors)

    @cached_property
    def natural(self) -> Array:
        """Natural parameters of all components (L, P)."""
        return self._stacked()

    def _stacked(self) -> Array:
        if isinstance(self.posteriors, ReorderedPosteriors):
            return self.posteriors.natural
        return np.concatenate([posterior.natural for posterior in self.posteriors])

    @cached_property
    def sizes(self) -> Labels:
        """Number of components of each model (J,)."""
        return np.array([posterior.n_components for posterior in self.unordered], dtype=np.int64)

    @cached_property
    def offsets(self) -> Labels:
        """Where each model starts in the stack, and the end (J + 1,)."""
        return offsets_of(self.sizes)

    @cached_property
    def owner(self) -> Labels:
        """The model of each component (L,)."""
        return np.repeat(np.arange(self.n_sites, dtype=np.int64), self.sizes)

    @cached_property
    def row_weights(self) -> Array:
        """The site weight of each component (L,)."""
        return self.site_weights[self.owner]

    @property
    def is_chain(self) -> bool:
        """Whether something is known of pairs of components, as the transitions between states are."""
        arrays = [array for posterior in self.unordered for array in posterior.attached.values()]
        return any(array.axes.count("component") > 1 for array in arrays)

    def voting(self) -> Ensemble:
        """Return the models of positive weight, with weights of mean 1."""
        positive = np.flatnonzero(self.site_weights > 0)
        if len(positive) == self.n_sites:
            return self
        posteriors, names = [self.posteriors[i] for i in positive.tolist()], [self.names[i] for i in positive]
        return Ensemble.of(posteriors, self.site_weights[positive], names)

    def keep(self, is_kept: NDArray[np.bool_]) -> Ensemble:
        """Return the ensemble of those components that are kept (L,), some of every model."""
        kept = np.split(is_kept, self.offsets[1:-1])
        pairs = zip(self.posteriors, kept, strict=True)
        return replace(self, posteriors=tuple(posterior.take(np.flatnonzero(rows)) for posterior, rows in pairs))

    def column(self, name: str) -> Array | None:
        """Return ``counts`` or ``weights`` of all components (L,), or None where some model lacks them."""
        if isinstance(self.posteriors, ReorderedPosteriors):
            return self.posteriors.column(name)
        parts = [getattr(posterior, name) for posterior in self.posteriors]
        return None if any(part is None for part in parts) else np.concatenate(parts)

    def canonical(self, *, relabel: bool) -> tuple[Ensemble, Labels]:
        """Return the same ensemble in an order that depends on contents only, and where each row came from (L,).

        Models are ordered by a digest that does not change when their components are relabelled, so neither arrival
        order nor labels can change a single bit of what follows. With `relabel`, components inside models are ordered
        by contents too.
        """
        # Rows are compared as bytes: any order will do that depends on contents alone, and bytes never tie by rounding.
        columns = [column[:, None] for column in (self.column("counts"), self.column("weights")) if column is not None]
        # Not kept where it was not asked for: the canonical order is what is worked on.
        stacked = self.natural if "natural" in self.__dict__ else self._stacked()
        rows = np.ascontiguousarray(np.concatenate([stacked, *columns], axis=1) if columns else stacked)
        row_keys = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
        rank = np.empty(len(row_keys), dtype=np.int64)
        rank[np.argsort(row_keys, kind="stable")] = np.arange(len(row_keys))
        by_contents = np.lexsort((rank, self.owner))
        # A site's digest covers its rows in content order, its weight and what is attached: no label, no name.
        digests = []
        for site in range(self.n_sites):
            start, end = self.offsets[site], self.offsets[site + 1]
            digest = hashlib.sha256(rows[by_contents[start:end]].tobytes())
            digest.update(self.site_weights[site].tobytes())
            for name, attached in sorted(self.posteriors[site].attached.items()):
                digest.update(name.encode() + attached.take(by_contents[start:end] - start).values.tobytes())
            digests.append(digest.digest())
        sites = np.array(sorted(range(self.n_sites), key=digests.__getitem__), dtype=np.int64)
        del digests
        order = by_contents if relabel else np.arange(len(rows), dtype=np.int64)
        origin = np.concatenate([order[self.offsets[site] : self.offsets[site + 1]] for site in sites])
        del rows, row_keys
        posteriors = ReorderedPosteriors(self, sites, origin, stacked[origin])
        names = tuple(self.names[site] for site in sites.tolist())
        return Ensemble(posteriors, self.site_weights[sites], names), origin


@dataclass(frozen=True, eq=False)
class ReorderedPosteriors(Sequence[Posterior]):
    """The posteriors of an ensemble in another order of sites, and of components inside sites, made when asked for.

    There may be very many, and most of a fusion needs the stack alone.
    """

    source: Ensemble
    sites: Labels  # which site of the source each posterior is of (J,)
    origin: Labels  # row of each component in the source (L,)
    natural: Array  # natural parameters in the new order (L, P)

    @cached_property
    def handed_in(self) -> tuple[Posterior, ...]:
        """The posteriors in the new order of sites, components as in the source."""
        return tuple(self.source.posteriors[site] for site in self.sites.tolist())

    @cached_property
    def _offsets(self) -> Labels:
        """Where each site starts, and the end (J + 1,)."""
        return offsets_of(self.source.sizes[self.sites])

    def column(self, name: str) -> Array | None:
        """Return ``counts`` or ``weights`` of all components (L,), or None where some model lacks them."""
        column = self.source.column(name)
        return None if column is None else column[self.origin]

    def __len__(self) -> int:
        return len(self.sites)

    @overload
    def __getitem__(self, index: int) -> Posterior: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Posterior, ...]: ...
    def __getitem__(self, index: int | slice) -> Posterior | tuple[Posterior, ...]:
        if isinstance(index, slice):
            return tuple(self[number] for number in range(*index.indices(len(self))))
        number = range(len(self))[index]  # of negative ones, too; raises IndexError beyond the last
        rows, site = slice(self._offsets[number], self._offsets[number + 1]), self.sites[number]
        positions = self.origin[rows] - self.source.offsets[site]
        return self.source.posteriors[site].reordered(self.natural[rows], positions)


Stacked = Ensemble | Stack
"""The components of J sites, one site after another."""
