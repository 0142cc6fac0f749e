"""Posterior draws of one site, with what they are of: constraints, prior, dims, coords."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from consilience.catalogue import did_you_mean, with_suggestions
from consilience.checks import Array, Json
from consilience.core.frozen import FrozenDict
from consilience.drawing.display import Displayed, Tabular, names_in_line
from consilience.drawing.words import format_count
from consilience.draws.cmdstan import read_cmdstan
from consilience.draws.constraint_table import as_constraint, is_shaped
from consilience.draws.constraints import Constraint, Real
from consilience.draws.containers import read_container
from consilience.draws.priors import CommonFactor, Term, as_prior, law_problem
from consilience.draws.tied_entries import TiedEntries
from consilience.errors import InputError, OptionError, Problem

LEVEL = 0.9
"""Probability of the intervals in tables of draws and in reports."""


@dataclass(frozen=True, eq=False, repr=False)
class Draws(Displayed, Tabular):
    """Draws of the posterior of one site, its subposterior.

    Parameters
    ----------
    variables : mapping, InferenceData, DataTree, Dataset, path or list of paths
        Arrays (chains, draws, ...) or (draws, ...) by name; what ArviZ makes of a sampler's output; or the CmdStan CSV
        files of the chains of one site.
    prior : float, "flat" or mapping of str to law, optional
        What of the prior the posterior holds: the power to which it was raised (1/J of J sites, which is advised); that
        it is flat; or the law of every variable, such as ``{"beta": ("normal", 0, 1)}``, where the whole prior was used
        and is to be divided out. Default: not stated.
    constraints : mapping of str to constraint, optional
        Where variables lie: "positive", "unit_interval", ("lower", a), ("upper", b), ("interval", a, b), "simplex",
        "ordered", "sum_to_zero", "covariance", "correlation", "cholesky_covariance" or "cholesky_correlation". They are
        combined on the unconstrained scale. Default: where ``fuse`` finds in all draws of all sites that a variable is
        a matrix of such a kind, a simplex, or sums to zero, that; else real. Entries that are constant in all draws, or
        copies of others, are carried over.
    only : sequence of str, optional
        Variables to combine, where others are functions of them: transformed parameters and generated quantities, which
        are dropped. Default: all.
    n_observations : float, optional
        Number of observations behind the posterior.
    likelihood_power : float, optional
        Power to which the likelihood was raised: J for the Wasserstein posterior. Default: 1.
    jacobian : {"once", "shared"}, optional
        Whether the density on the unconstrained scale holds the Jacobian once, as that of any sampler does, or was
        raised to 1/J with it. Default: "once".
    exchangeable : sequence of str, optional
        Variables whose first own axis are the components of a mixture, numbered arbitrarily.
    has_chains : bool, optional
        Whether arrays of a mapping have chains as first axis. Default: where all agree in two axes, of which the first
        is the shorter one.
    diverging : array_like of bool of shape (chains, draws), optional
        Divergent transitions. Default: what the sampler recorded.
    dims, coords, container, attributes, dropped : optional
        Names of axes and their labels, the container to give draws back in, texts about them, and names of variables
        that were left out. Default: read from `variables`.

    Raises
    ------
    InputError
        For what holds no draws, and statements about variables that there are not.
    OptionError
        For statements that are not of their form.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> draws = Draws({"beta": rng.normal(size=(4, 500, 2)), "sigma": rng.gamma(9.0, size=(4, 500))},
    ...               prior=1 / 3, constraints={"sigma": "positive"})
    >>> draws.shape, draws.names
    ((4, 500), ('beta[0]', 'beta[1]', 'sigma'))
    """

    variables: Any
    prior: Any = field(default=None, kw_only=True)
    constraints: Any = field(default=None, kw_only=True)
    only: Any = field(default=None, kw_only=True, repr=False)
    n_observations: float | None = field(default=None, kw_only=True)
    likelihood_power: float = field(default=1.0, kw_only=True)
    jacobian: Literal["once", "shared"] = field(default="once", kw_only=True)
    exchangeable: Any = field(default=(), kw_only=True)
    has_chains: bool | None = field(default=None, kw_only=True, repr=False)
    diverging: Any = field(default=None, kw_only=True, repr=False)
    dims: Any = field(default=None, kw_only=True, repr=False)
    coords: Any = field(default=None, kw_only=True, repr=False)
    container: Any = field(default=None, kw_only=True, repr=False)
    attributes: Any = field(default=None, kw_only=True, repr=False)
    dropped: tuple[str, ...] = field(default=(), kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if self.container is None:
            self._read()
        self._choose()
        self._check()

    def _headline(self) -> str:
        chains, draws = self.shape
        return f"{format_count(chains, 'chain')} of {format_count(draws, 'draw')}"

    def _facts(self) -> dict[str, object | None]:
        sizes = [
            name if values.ndim == 2 else f"{name} {'x'.join(map(str, values.shape[2:]))}"
            for name, values in self.variables.items()
        ]
        return {
            "variables": names_in_line(sizes, 40),
            "container": self.container,
            "prior": None if self.prior is None else str(self.prior),
            "observations": None if self.n_observations is None else f"{self.n_observations:,g}",
            "left out": names_in_line(self.dropped) if self.dropped else None,
        }

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _read(self) -> None:
        """Take variables, dims, coords and divergences from whatever holds them."""
        paths = [self.variables] if isinstance(self.variables, str | Path) else self.variables
        if isinstance(paths, list | tuple) and paths and all(isinstance(path, str | Path) for path in paths):
            contents = read_cmdstan([Path(path) for path in paths])
        else:
            contents = read_container(self.variables, self.has_chains)
        diverging = contents.diverging if self.diverging is None else self.diverging
        self._set(
            variables=dict(contents.variables),
            container=contents.container,
            dims={**contents.dims, **{name: tuple(own) for name, own in (self.dims or {}).items()}},
            coords={**contents.coords, **{name: np.asarray(own) for name, own in (self.coords or {}).items()}},
            diverging=diverging,
            has_chains=True,
        )

    def _choose(self) -> None:
        """Drop the variables that are not to be combined."""
        if self.only is None:
            return
        chosen = [self.only] if isinstance(self.only, str) else list(self.only)
        if missing := [str(name) for name in chosen if name not in self.variables]:
            raise InputError("only", f"names {self._no_variable(missing)}")
        left = tuple(name for name in self.variables if name not in chosen)
        self._set(
            variables={name: self.variables[name] for name in self.variables if name in chosen},
            dims={name: own for name, own in self.dims.items() if name in chosen},
            dropped=(*self.dropped, *left),
            only=None,
        )

    def _no_variable(self, odd: list[str]) -> str:
        known = f"{', '.join(self.variables):.200}"
        return f"{with_suggestions(odd, self.variables)}, which is no variable; there are {known}"

    def _refuse_misspelt_coords(self) -> None:
        """Raise for labels of what is no dimension where one like it has none; containers may hold labels of others."""
        bare = [dim for dim in self.all_dims() if dim not in (self.coords or {})]
        for name in self.coords or {}:
            if name not in self.all_dims() and (meant := did_you_mean(name, bare)):
                raise InputError("coords", f"of {name}, which is no dimension, did you mean {meant}?")

    def _checked_constraints(self) -> dict[str, Any]:
        """Return the constraint of every variable."""
        stated = dict(self.constraints or {})
        if odd := [str(name) for name in stated if name not in self.variables]:
            raise InputError("constraints", f"of {self._no_variable(odd)}")
        constraints = {name: as_constraint(stated.get(name, "real"), name) for name in self.variables}
        if odd := [str(name) for name in self.dims or {} if name not in (*self.variables, *self.dropped)]:
            raise InputError("dims", f"of {self._no_variable(odd)}")
        self._refuse_misspelt_coords()
        problems = [
            Problem(
                name,
                f"has shape {values.shape[2:]}, which no {constraints[name].name} has",
                "mend `constraints=`",
                "E-SHAPE",
            )
            for name, values in self.variables.items()
            if not is_shaped(constraints[name], values.shape[2:])
        ]
        if problems:
            raise InputError(problems)
        return constraints

    def _checked_prior(self, constraints: Mapping[str, Any]) -> tuple[Any, list[Problem]]:
        """Return the prior, with the distributions of variables alone, and what is wrong with it."""
        prior, problems = as_prior(self.prior), list[Problem]()
        if isinstance(prior, dict):
            if missing := [name for name in self.variables if name not in prior]:
                text = f"says nothing of {', '.join(missing)}"
                problems.append(Problem("prior", text, "give its distribution, or 'flat', too", "E-NEEDED"))
            if odd := [name for name in prior if name not in (*self.variables, *self.dropped)]:
                problems.append(Problem("prior", f"of {', '.join(odd)}, which is no variable", "leave it out"))
            prior = {name: law for name, law in prior.items() if name in self.variables}
            law_problems = [
                law_problem(n, law, constraints[n], self.variables[n].shape[2:]) for n, law in prior.items()
            ]
            problems += [problem for problem in law_problems if problem is not None]
        return prior, problems

    def _refuse_numbers(self) -> None:
        """Raise OptionError for statements that have another type or value than they may have."""
        if self.jacobian not in ("once", "shared"):
            raise OptionError("jacobian", f"found {self.jacobian!r:.40}, expected 'once' or 'shared'")
        for name in ("n_observations", "likelihood_power"):
            value = getattr(self, name)
            is_positive = not isinstance(value, bool) and isinstance(value, int | float) and 0 < value < float("inf")
            if value is not None and not is_positive:
                raise OptionError(name, f"expected a positive number, found {value!r:.40}")

    def _check(self) -> None:
        """Check all statements, and freeze what they say."""
        constraints = self._checked_constraints()
        prior, problems = self._checked_prior(constraints)
        exchangeable = (self.exchangeable,) if isinstance(self.exchangeable, str) else tuple(self.exchangeable or ())
        problems += self._exchangeable_problems(exchangeable)
        if problems:
            raise InputError(problems)
        self._refuse_numbers()
        diverging = None if self.diverging is None else np.asarray(self.diverging) != 0
        if diverging is not None and diverging.shape != self.shape:
            text = f"has shape {diverging.shape}, expected {self.shape}: chains and draws"
            raise InputError("diverging", text, code="E-SHAPE")
        views = {name: np.asarray(values).view() for name, values in self.variables.items()}
        for values in views.values():
            values.setflags(write=False)  # of the view: the caller's array stays as it is
        self._set(
            variables=FrozenDict(views),
            constraints=FrozenDict(constraints),
            prior=prior,
            exchangeable=exchangeable,
            diverging=diverging,
            dims=FrozenDict({name: self.dims_of(name) for name in self.variables}),
            coords=FrozenDict(dict(self.coords or {})),
            attributes=FrozenDict({str(k): str(v) for k, v in (self.attributes or {}).items()}),
            n_observations=None if self.n_observations is None else float(self.n_observations),
            likelihood_power=float(self.likelihood_power),
        )

    def _exchangeable_problems(self, names: Sequence[str]) -> list[Problem]:
        if odd := [str(name) for name in names if name not in self.variables]:
            return [Problem("exchangeable", f"names {self._no_variable(odd)}")]
        sizes = {name: self.variables[name].shape[2:3] for name in names}
        if len(set(sizes.values())) > 1 or () in sizes.values():
            text = f"variables need one first axis of components, found {sizes}"
            return [Problem("exchangeable", text, code="E-TYPE")]
        return []

    # -- tables

    def to_columns(self) -> dict[str, list[Any]]:
        """Return a row for each parameter: mean, standard deviation, and the ends of its 90 % interval."""
        entries = self.entries().reshape(self.n_draws, -1)
        tails = [0.5 - LEVEL / 2, 0.5 + LEVEL / 2]
        low, high = np.quantile(entries, tails, axis=0)
        return {
            "parameter": list(self.names),
            "mean": entries.mean(axis=0).tolist(),
            "deviation": entries.std(axis=0).tolist(),
            "low": low.tolist(),
            "high": high.tolist(),
            "level": [LEVEL] * len(self.names),
        }

    # -- shapes and names

    @property
    def shape(self) -> tuple[int, int]:
        """Number C of chains and T of draws in each."""
        first = next(iter(self.variables.values()))
        return int(first.shape[0]), int(first.shape[1])

    @property
    def n_draws(self) -> int:
        """Number of draws in all chains."""
        return self.shape[0] * self.shape[1]

    @property
    def n_coordinates(self) -> int:
        """Number D of unconstrained coordinates."""
        return sum(self.constraints[name].n_coordinates(values.shape[2:]) for name, values in self.variables.items())

    @property
    def n_components(self) -> int:
        """Number K of exchangeable components; of draws without such, the number of variables."""
        return int(self.variables[self.exchangeable[0]].shape[2]) if self.exchangeable else len(self.variables)

    def dims_of(self, name: str) -> tuple[str, ...]:
        """Return the names of a variable's axes after chain and draw; ArviZ's own where they have none."""
        own = tuple((self.dims or {}).get(name) or ())
        rank = self.variables[name].ndim - 2
        return own if len(own) == rank else tuple(f"{name}_dim_{axis}" for axis in range(rank))

    def all_dims(self) -> set[str]:
        """Return the names of all axes."""
        return {dim for name in self.variables for dim in self.dims_of(name)}

    def entry_names(self, name: str) -> list[str]:
        """Return names of the entries of a variable, with their labels: ``theta[Choate]``."""
        shape, dims = self.variables[name].shape[2:], self.dims_of(name)
        labels = [
            [str(label) for label in self.coords[dim]]
            if dim in self.coords and len(self.coords[dim]) == size
            else [str(place) for place in range(size)]
            for dim, size in zip(dims, shape, strict=True)
        ]
        return [
            f"{name}[{', '.join(labels[axis][place] for axis, place in enumerate(index))}]" if shape else name
            for index in np.ndindex(*shape)
        ]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all entries of all variables."""
        return tuple(entry for name in self.variables for entry in self.entry_names(name))

    @property
    def coordinate_names(self) -> tuple[str, ...]:
        """Names of the unconstrained coordinates (D,)."""
        return tuple(
            entry
            for name, values in self.variables.items()
            for entry in self.constraints[name].coordinate_names(self.entry_names(name), values.shape[2:])
        )

    @property
    def constant_names(self) -> tuple[str, ...]:
        """Names of the entries that are no parameters, since all draws have one value there."""
        return tuple(
            self.entry_names(name)[entry]
            for name, constraint in self.constraints.items()
            if isinstance(constraint, TiedEntries)
            for entry in constraint.fixed
        )

    def parts(self) -> Iterator[tuple[str, slice, tuple[int, ...], Constraint]]:
        """Yield every variable with its place among the coordinates, its shape and its constraint."""
        start = 0
        for name, values in self.variables.items():
            constraint, shape = self.constraints[name], values.shape[2:]
            end = start + constraint.n_coordinates(shape)
            yield name, slice(start, end), shape, constraint
            start = end

    # -- coordinates

    def entries(self) -> Array:
        """Return all entries of all variables (C, T, n_entries), as they are."""
        return np.concatenate([values.reshape(*self.shape, -1) for values in self.variables.values()], axis=2)

    @cached_property
    def unconstrained(self) -> Array:
        """All draws in unconstrained coordinates (C, T, D)."""
        columns = []
        for name, _, shape, constraint in self.parts():
            flat = self.variables[name].reshape(-1, *shape)
            columns.append(constraint.unconstrain(flat).reshape(*self.shape, -1))
        return np.concatenate(columns, axis=2)

    def from_unconstrained(self, coordinates: Array) -> dict[str, Array]:
        """Return variables (1, T, ...) of coordinates (T, D)."""
        return {
            name: constraint.constrain(coordinates[:, part], shape)[None]
            for name, part, shape, constraint in self.parts()
        }

    def common_factor(self) -> CommonFactor:
        """Return c(u), what every site's density has once and so has the full posterior."""
        if self.jacobian == "shared" and not isinstance(self.prior, dict):
            return CommonFactor((), self.n_coordinates)
        laws = self.prior if isinstance(self.prior, dict) else {}
        terms = tuple(Term(part, shape, constraint, laws.get(name)) for name, part, shape, constraint in self.parts())
        return CommonFactor(terms, self.n_coordinates)

    # -- files and containers

    def header(self) -> dict[str, Json]:
        """Return everything but the arrays, as JSON values."""
        return {
            "variables": {
                name: {"dims": list(self.dims_of(name)), "constraint": self.constraints[name].to_json()}
                for name in self.variables
            },
            "coords": {
                name: {"dtype": labels.dtype.str, "labels": _plain(labels)}
                for name, labels in sorted(self.coords.items())
                if name in self.all_dims()
            },
            "prior": self.prior,
            "n_observations": self.n_observations,
            "likelihood_power": self.likelihood_power,
            "jacobian": self.jacobian,
            "exchangeable": list(self.exchangeable),
            "container": self.container,
            "attributes": dict(sorted(self.attributes.items())),
            "dropped": list(self.dropped),
        }

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the draws and of the statements on them, in hexadecimal."""
        hashed_fields = {
            name: value for name, value in self.header().items() if name not in ("container", "attributes")
        }
        digest = hashlib.sha256(json.dumps(hashed_fields, sort_keys=True).encode())
        for name, values in self.variables.items():
            digest.update(f"{name} {values.shape}".encode())
            digest.update(np.ascontiguousarray(values + 0.0).tobytes())  # + 0.0 makes -0.0 and 0.0 the same bits
        return digest.hexdigest()

    def stated(self, **statements: Any) -> Draws:
        """Return the draws with the given statements where they have none of their own; None states nothing.

        `constraints` are added by variable.
        """
        changes = {name: value for name, value in statements.items() if value is not None}
        if self.prior is not None:
            changes.pop("prior", None)
        if self.exchangeable or not changes.get("exchangeable", True):
            changes.pop("exchangeable", None)
        if constraints := changes.pop("constraints", None):
            if not isinstance(constraints, Mapping):
                raise OptionError("constraints", f"expected one by variable, found {constraints!r:.80}")
            own_constraints = {name: one for name, one in self.constraints.items() if not isinstance(one, Real)}
            changes["constraints"] = {**constraints, **own_constraints}
        if "only" in changes:
            changes |= _of_variables(changes["only"], {"constraints": self.constraints, "prior": self.prior, **changes})
        return replace(self, **changes) if changes else self


def _of_variables(only: str | Sequence[str], statements: Mapping[str, Any]) -> dict[str, Any]:
    """Return constraints and prior, where this is stated by variable, of some variables alone."""
    variables = [only] if isinstance(only, str) else list(only)
    return {
        stated: {name: one for name, one in statements[stated].items() if name in variables}
        for stated in ("constraints", "prior")
        if isinstance(statements[stated], Mapping)
    }


def as_draws(model: Any) -> Draws:
    """Return draws as they are, and any container as draws of which nothing more is said."""
    return model if isinstance(model, Draws) else Draws(model)


def _plain(labels: Any) -> list[Any]:
    """Return labels as JSON values; dates as integers of their unit."""
    return (labels.astype(np.int64) if labels.dtype.kind == "M" else labels).tolist()
