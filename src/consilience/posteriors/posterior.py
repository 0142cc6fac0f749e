"""A mean-field posterior: what a site sends of every component of its model, and what travels with it.

``Posterior`` holds natural parameters (L, P) of one exponential family, the prior (P,), effective counts and mixture
weights (L,), attached arrays and the meaning of the data columns (``Features``). A fusion gives one back.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from consilience.checks import Array, Labels
from consilience.core.features import Features
from consilience.core.frozen import FrozenDict
from consilience.drawing.display import Displayed, Tabular, names_in_line
from consilience.drawing.plots import Chart, Plotted
from consilience.drawing.words import format_count, shorten
from consilience.errors import InputError
from consilience.families.base import Family

AxisTag = Literal["component", "fixed"]
Rule = Literal["sum", "mean", "precision-mean", "keep"]
RULES: tuple[Rule, ...] = ("sum", "mean", "precision-mean", "keep")
ORIGIN = "origin"
"""Name of the attached array that says what natural parameters are about; see ``posteriors.origin``."""


def _frozen(values: ArrayLike) -> Array:
    """Return a read-only float64 copy."""
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("", f"expected an array of numbers, found {values!r:.80}", code="E-SHAPE") from None
    array.setflags(write=False)
    return array


def shares_of(weights: Array) -> Array:
    """Return weights (n,) that sum to one; alike where none has any."""
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(weights), 1.0 / len(weights))


@dataclass(frozen=True, eq=False, repr=False)
class Attached(Displayed):
    """A named array that is carried through the matching: transition counts, a bias, a hyper-parameter.

    Parameters
    ----------
    values
        Any shape; every axis tagged ``component`` has length L.
    axes
        One tag per axis: ``component`` follows the matching, ``fixed`` stays.
    rule
        How entries of different sites that land on the same place are combined: ``sum`` and ``mean`` (weighted by the
        site weights), ``precision-mean`` (weighted by `precision` too), or ``keep`` (the entry of the first site that
        has it, in the order of contents and not of arrival).
    precision
        Same shape as `values`; needed by ``precision-mean`` only.
    """

    values: Array
    axes: tuple[AxisTag, ...]
    rule: Rule
    precision: Array | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _frozen(self.values))
        object.__setattr__(self, "axes", tuple(self.axes))
        if self.precision is not None:
            object.__setattr__(self, "precision", _frozen(self.precision))

    def _headline(self) -> str:
        return f"shape {self.values.shape}, axes {', '.join(self.axes) or 'none'}, rule {self.rule}"

    def problems(self, n_components: int) -> list[str]:
        """Return what is wrong with it in a model of `n_components`."""
        faults = []
        if len(self.axes) != self.values.ndim or set(self.axes) - {"component", "fixed"}:
            faults.append(f"has axes {self.axes} for {self.values.ndim} dimensions")
        elif any(
            size != n_components for size, tag in zip(self.values.shape, self.axes, strict=True) if tag == "component"
        ):
            faults.append(f"has shape {self.values.shape}, but its component axes must have length {n_components}")
        if self.rule not in RULES:
            faults.append(f"has rule {self.rule!r}; expected one of {', '.join(RULES)}")
        if (self.rule == "precision-mean") != (self.precision is not None):
            faults.append("must have a precision exactly when its rule is 'precision-mean'")
        elif self.precision is not None and (
            self.precision.shape != self.values.shape or not np.all(np.isfinite(self.precision) & (self.precision > 0))
        ):
            faults.append("has a precision that is not positive, finite and of the shape of its values")
        if not np.all(np.isfinite(self.values)):
            faults.append("has NaN or infinite values")
        return faults

    def fits(self, other: Attached) -> bool:
        """Return whether both can be carried through one matching: same axes, rule and fixed lengths."""
        return (
            self.axes == other.axes
            and self.rule == other.rule
            and all(
                tag == "component" or size == other_size
                for tag, size, other_size in zip(self.axes, self.values.shape, other.values.shape, strict=True)
            )
        )

    def take(self, order: Labels) -> Attached:
        """Return it with its component axes in another order."""
        arrays = [self.values, self.precision]
        for axis, tag in enumerate(self.axes):
            if tag == "component":
                arrays = [None if array is None else np.take(array, order, axis=axis) for array in arrays]
        assert arrays[0] is not None  # noqa: S101  (narrows the type)
        return replace(self, values=arrays[0], precision=arrays[1])


@dataclass(frozen=True, eq=False, slots=True, repr=False)  # there may be very many
class Posterior(Displayed, Plotted, Tabular):
    """A mean-field posterior over the L components of one model: what a site sends, and what a fusion gives.

    Parameters
    ----------
    family
        The exponential family of every component.
    natural
        Natural parameters (L, P).
    prior
        Natural parameters (P,) of the prior that every component had; needed by Bayes products.
    counts
        Effective number of observations behind each component (L,).
    weights
        Mixture weights (L,), not negative; they need not sum to one.
    attached
        Arrays carried through the matching, by name.
    features
        What the data columns mean.
    source
        What rebuilding the model needs, as JSON values; ``source["kind"]`` names the adapter.

    Raises
    ------
    InputError
        Listing every component and field that is not valid.

    Examples
    --------
    >>> from consilience.families import Gamma
    >>> Posterior(Gamma(), Gamma().to_natural(shape=[2.0, 3.0], rate=[1.0, 1.0])).n_components
    2
    """

    family: Family
    natural: Array
    prior: Array | None = field(default=None, kw_only=True)
    counts: Array | None = field(default=None, kw_only=True)
    weights: Array | None = field(default=None, kw_only=True)
    attached: Mapping[str, Attached] = field(default_factory=dict, kw_only=True)
    features: Features = field(default_factory=Features, kw_only=True)
    source: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.family, Family):
            text = f"expected a member of consilience.families, found {self.family!r}"
            raise InputError("family", text, code="E-TYPE")
        for name in ("natural", "prior", "counts", "weights"):
            values = getattr(self, name)
            if values is not None:
                object.__setattr__(self, name, _frozen(values))
        object.__setattr__(self, "attached", FrozenDict(dict(self.attached)))
        object.__setattr__(self, "source", FrozenDict(dict(self.source)))
        problems = self._problems()
        if problems:
            raise InputError(problems)

    def _headline(self) -> str:
        kind = self.source.get("kind")
        of = f" of a {shorten(str(kind), 40)}" if kind else ""
        return f"{format_count(self.n_components, 'component')}, {self.family!r}{of}"

    def _facts(self) -> dict[str, object | None]:
        stated = self.counts
        counts = None if stated is None else f"{stated.sum():,.0f}, at least {stated.min():,.1f} a component"
        return {
            "observations": counts,
            "columns": names_in_line(self.features.names or ()),
            "units": names_in_line(self.features.units or ()),
            "attached": names_in_line(tuple(self.attached)),
            "prior": "none, so that products are impossible" if self.prior is None else None,
        }

    def _charts(self) -> dict[str, Chart | str]:
        from consilience.posteriors.plots import components_chart  # here, since it imports this file

        return {"components": components_chart(self, None, np.zeros(0, dtype=np.int64))}

    def to_columns(self) -> dict[str, list[Any]]:
        """Return a row for each component: observations, share, mean and deviation of each feature."""
        from consilience.posteriors.summary import component_columns  # here, since it imports this file

        return component_columns(self)

    @property
    def n_components(self) -> int:
        """Number L of components."""
        return int(self.natural.shape[0])

    @property
    def states_observations(self) -> bool:
        """Whether the number of observations behind it is known."""
        return self.source.get("samples") != "assumed"

    @property
    def digest(self) -> str:
        """SHA-256 of what it says: family, components with counts, weights and what is attached, and the prior.

        Components are taken in the order of their bytes, so relabelling them changes nothing. Names, source and what
        the columns mean are not covered. A fused file records the digests of what it was fused from.
        """
        columns = [values[:, None] for values in (self.counts, self.weights) if values is not None]
        rows = np.ascontiguousarray(np.concatenate([self.natural, *columns], axis=1) + 0.0)  # -0 becomes 0
        keys = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
        order = np.argsort(keys, kind="stable")
        stated = [name for name in ("prior", "counts", "weights") if getattr(self, name) is not None]
        digest = hashlib.sha256(json.dumps([self.family.name, self.family.config(), stated], sort_keys=True).encode())
        digest.update(rows[order].tobytes())
        if self.prior is not None:
            digest.update((self.prior + 0.0).tobytes())
        for name, attached in sorted(self.attached.items()):
            taken = attached.take(order)
            digest.update(json.dumps([name, attached.axes, attached.rule, attached.values.shape]).encode())
            for values in (taken.values, taken.precision):
                digest.update(b"" if values is None else np.ascontiguousarray(values + 0.0).tobytes())
        return digest.hexdigest()

    def _problems(self) -> list[str]:
        """Return everything that is wrong with the fields, a line each."""
        problems = self.family.member_problems(self.natural, self.prior, self.features.names)
        if problems and (self.natural.ndim != 2 or self.natural.size == 0 or self.natural.shape[1] != self.family.size):
            return problems  # of such arrays nothing more can be said
        for name in ("counts", "weights"):
            values = getattr(self, name)
            if values is None:
                continue
            if values.shape != (self.n_components,):
                problems.append(f"{name} must be ({self.n_components},), found {values.shape}")
                continue
            invalid = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
            problems += [
                f"component {i} has {name} {values[i]}, which must be finite and not negative" for i in invalid
            ]
        for name, attached in self.attached.items():
            problems += [f"attached array {name!r} {text}" for text in attached.problems(self.n_components)]
        names = self.features.names
        dim = getattr(self.family, "dim", None)
        origin = self.attached.get(ORIGIN)
        if origin is not None and (origin.values.shape != (dim,) or not self.family.describes_data):
            problems.append(f"attached array {ORIGIN!r} has shape {origin.values.shape}, expected one number a column")
        if names is not None and dim is not None and len(names) != dim:
            problems.append(f"has {len(names)} feature names for {dim} dimensions")
        return problems

    @property
    def shares(self) -> Array:
        """What each component is of the model's mixture (L,), summing to one: by weights, else counts, else alike."""
        stated = self.weights if self.weights is not None else self.counts
        return shares_of(np.ones(self.n_components) if stated is None else stated)

    def take(self, order: Labels) -> Posterior:
        """Return it with its components in another order (or only some of them)."""
        return self.reordered(self.natural[order], order)

    def reordered(self, natural: Array, order: Labels) -> Posterior:
        """Return ``take(order)`` when ``natural[order]`` is at hand; what was checked once is not checked again."""
        taken = copy(self)  # a frozen dataclass: fields are set past its checks, which hold for any reordering
        columns = {
            name: None if (values := getattr(self, name)) is None else values[order] for name in ("counts", "weights")
        }
        attached = self.attached  # shared where there is nothing to put in order
        if attached:
            attached = FrozenDict({name: array.take(order) for name, array in attached.items()})
        for name, value in {"natural": natural, "attached": attached, **columns}.items():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)
            object.__setattr__(taken, name, value)
        return taken

    @property
    def origin(self) -> Array | float:
        """What is added to a mean that the natural parameters say, in units of the data (D,); 0 for nearly all."""
        return self.attached[ORIGIN].values if ORIGIN in self.attached else 0.0

    def parameters(self) -> dict[str, Any]:
        """Return the standard parameters of the components, by name."""
        found = self.family.from_natural(self.natural)
        return {**found, "mean": found["mean"] + self.origin} if ORIGIN in self.attached else found
