"""Fisher information of a network's parameters: what a site computes where the data is, and sends with its network.

At parameters theta the information of N observations is

    F = sum_n E_{y ~ p(. | x_n, theta)} [ grad log p grad log p^T ],    grad = d/d theta log p(y | x_n, theta),

(3) of the self-supervised Fisher paper. It is kept as G^T G + diag(r): the rows of G, the *factors*, are the leading
singular directions of all gradients together, and r, the *residual*, is what they leave of the diagonal. Without
factors, r is the whole diagonal. With a prior N(0, I / alpha) the posterior's precision is F + alpha I (Laplace).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Literal, get_args

from array_api_compat import array_namespace

from consilience.checks import AnyArray
from consilience.errors import InputError
from consilience.networks.network import Network, is_floating, non_finite_problems, to_bytes
from consilience.networks.symmetry.entry_positions import entry_permutation
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import Transport

Likelihood = Literal["categorical", "bernoulli", "gaussian"]
LIKELIHOODS: tuple[Likelihood, ...] = get_args(Likelihood)

_FEW = 3
"""Parameters that a message names; more are counted."""


@dataclass(frozen=True, eq=False)
class FisherInformation:
    """The Fisher information of a network's trained parameters, summed over a site's observations.

    Parameters
    ----------
    residual
        By parameter, an array of its shape: the part of the diagonal that the factors do not have; all of it where
        there are none. In units of one over the parameter squared.
    factors
        By parameter, an array ``(rank, *shape)``: G, split as the parameters are. Empty for a diagonal alone.
    observations
        How many observations it stands for (N); None where nobody said.
    prior_precision
        Precision alpha of the prior N(0, I / alpha) that the network was trained with, on the scale of the sum: for
        torch's mean losses, N times the weight decay. None where nobody said.
    likelihood
        "categorical", "bernoulli" or "gaussian".
    noise
        Standard deviation of a gaussian likelihood.
    seen
        How many observations were looked at; what they gave was scaled up to `observations`.
    samples
        How many outcomes were drawn for each observation; None for the exact expectation.
    linear
        Whether the network is linear in its parameters; with a gaussian likelihood the information then is the same
        everywhere.
    compat
        Whether it has the sums of the published code instead: one factor, the mean gradient of a sampled logit, and
        the sum of its squares.
    digest
        Of the parameters that it was computed at (SHA-256); None where nobody said.
    aliases
        Other names of tied parameters, to the name that it has here.
    name
        What it is called in messages.
    sha256
        Digest of the file that it was read from.

    Raises
    ------
    InputError
        Naming the parameters whose values are negative, not finite, or of another shape; when there is no information
        at all; or for counts that are not positive.
    """

    residual: Mapping[str, AnyArray]
    factors: Mapping[str, AnyArray] = field(default_factory=dict)
    observations: float | None = None
    prior_precision: float | None = None
    likelihood: Likelihood | None = None
    noise: float = 1.0
    seen: int | None = None
    samples: int | None = None
    linear: bool = False
    compat: bool = False
    digest: str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    name: str = "Fisher information"
    sha256: str | None = None

    def __post_init__(self) -> None:
        problems = [f"{self.name}: has no parameters"] if not self.residual else []
        arrays = [*self.residual.items(), *self.factors.items()]
        problems += [f"{self.name}: {key} holds {v.dtype}, not floats" for key, v in arrays if not is_floating(v)]
        if not problems:
            problems += non_finite_problems(
                {f"residual of {key}": values for key, values in self.residual.items()}, self.name
            )
            problems += non_finite_problems(
                {f"factors of {key}": values for key, values in self.factors.items()}, self.name
            )
        if not problems:
            problems += [
                f"{self.name}: parameter {key} has negative information, smallest {float(_least(values)):.3g}; "
                "a Fisher diagonal is a sum of squares: compute it anew with consilience.fisher"
                for key, values in self.residual.items()
                if _least(values) < 0
            ]
            problems += self._unlike_factors()
        for what in ("observations", "noise"):
            value = getattr(self, what)
            if value is not None and not (isfinite(value) and value > 0):
                problems.append(f"{self.name}: {what} must be a positive number, found {value!r}")
        prior = self.prior_precision
        if prior is not None and not (isfinite(prior) and prior >= 0):
            problems.append(f"{self.name}: prior_precision must be a number, not negative, found {prior!r}")
        if self.likelihood is not None and self.likelihood not in LIKELIHOODS:
            problems.append(
                f"{self.name}: likelihood must be one of {', '.join(LIKELIHOODS)}, found {self.likelihood!r}"
            )
        if not problems and not self._informative():
            problems.append(
                f"{self.name}: is zero for every parameter, so the network says nothing of its data; look at its "
                "outputs (saturated, or constant) or leave it out"
            )
        if problems:
            raise InputError(problems)

    def _unlike_factors(self) -> list[str]:
        """Return what is wrong with the shapes of factors."""
        if not self.factors:
            return []
        if any(values.ndim == 0 or not values.shape[0] for values in self.factors.values()):
            return [f"{self.name}: factors of rank 0; leave them out"]
        if set(self.factors) != set(self.residual):
            odd = sorted(set(self.factors) ^ set(self.residual))
            return [f"{self.name}: {_few(odd)}: both a residual and factors are needed"]
        return [
            f"{self.name}: factors of {key} have shape {tuple(values.shape)}, expected "
            f"{(self.rank, *self.residual[key].shape)}"
            for key, values in self.factors.items()
            if tuple(values.shape) != (self.rank, *self.residual[key].shape)
        ]

    def _informative(self) -> bool:
        return any(
            bool(array_namespace(values).any(values != 0))
            for values in (*self.residual.values(), *self.factors.values())
        )

    def record(self) -> dict[str, Any]:
        """Return what a fused file says of it, as JSON values."""
        names = ("kind", "rank", "observations", "seen", "samples", "likelihood", "prior_precision", "sha256")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @property
    def kind(self) -> Literal["diagonal", "factors"]:
        """Whether it has factors, or only a diagonal."""
        return "factors" if self.factors else "diagonal"

    @property
    def rank(self) -> int:
        """Number of factors."""
        return int(next(iter(self.factors.values())).shape[0]) if self.factors else 0

    @property
    def diagonal(self) -> dict[str, AnyArray]:
        """The diagonal of F by parameter, each of its parameter's shape."""
        return {key: values + _squares(self.factors.get(key)) for key, values in self.residual.items()}

    def renamed(self, symmetry: Symmetry) -> FisherInformation:
        """Return the same under the names that a symmetry has for tied parameters."""
        own = {key: name for key in self.residual if (name := self._name(key, symmetry)) != key}
        if not own:
            return self
        return replace(
            self,
            residual={own.get(key, key): values for key, values in self.residual.items()},
            factors={own.get(key, key): values for key, values in self.factors.items()},
        )

    def _name(self, key: str, symmetry: Symmetry) -> str:
        """Return what a parameter is called in a symmetry, which may know it by another of its names only."""
        names = [key, *(alias for alias, name in self.aliases.items() if name == key)]
        known = (symmetry.aliases.get(name, name) for name in names)
        return next((name for name in known if name in symmetry.layouts), key)

    def unfit(self, network: Network) -> list[str]:
        """Return why this is not the information of a network, a line each; empty when it may be."""
        names = {key: self._name(key, network.symmetry) for key in self.residual}
        own = {names[key]: values for key, values in self.residual.items()}
        problems = (
            [
                f"{self.name}: {_few([key for key in own if key not in network.arrays])}: not in {network.name}; give "
                "the information of this network"
            ]
            if any(key not in network.arrays for key in own)
            else []
        )
        problems += [
            f"{self.name}: {key} has shape {tuple(values.shape)}, but {tuple(network.arrays[key].shape)} in "
            f"{network.name}; give the information of this network"
            for key, values in own.items()
            if key in network.arrays and tuple(values.shape) != tuple(network.arrays[key].shape)
        ]
        if (
            not problems
            and self.digest is not None
            and self.digest != parameter_digest({key: network.arrays[name] for key, name in names.items()}, names)
        ):
            problems.append(
                f"{self.name}: was computed at other parameters than those of {network.name} (another network, other "
                "order of units, or another precision); compute it for the network as it is sent"
            )
        return problems

    def moved(self, network: Network, transports: Mapping[str, Transport]) -> FisherInformation:
        """Return the information of a network whose units were renumbered, or changed their sign.

        A gradient turns with its parameter, and its square does not.
        """
        layouts, units = network.symmetry.layouts, network.units
        own = self.renamed(network.symmetry)
        residual, factors = {}, {}
        for key, values in own.residual.items():
            entries, signs = entry_permutation(layouts[key], transports, units)
            residual[key] = _taken(values, entries, None, 0)
            if own.factors:
                factors[key] = _taken(own.factors[key], entries, signs, 1)
        return replace(own, residual=residual, factors=factors)


def as_information(given: Any, name: str) -> FisherInformation:
    """Return Fisher information as handed in: one of ours, or a mapping of diagonals by parameter.

    Raises
    ------
    InputError
        For anything else.
    """
    if isinstance(given, FisherInformation):
        return replace(given, name=name) if given.name == "Fisher information" else given
    if isinstance(given, Mapping) and all(isinstance(key, str) for key in given):
        if odd := [key for key, values in given.items() if not hasattr(values, "shape")]:
            raise InputError(f"{name}: {_few(odd)}: expected arrays by parameter")
        return FisherInformation(given, name=name)
    raise InputError(
        f"{name}: expected what consilience.fisher gives, the path of its file, or a diagonal by parameter, found "
        f"{type(given).__name__}"
    )


def parameter_digest(arrays: Mapping[str, AnyArray], names: Sequence[str] | Mapping[str, Any]) -> str:
    """Return a digest of some arrays, names in any order."""
    found = hashlib.sha256()
    for key in sorted(names):
        found.update(f"{key} {tuple(arrays[key].shape)} {str(arrays[key].dtype).rpartition('.')[2]}\n".encode())
        found.update(to_bytes(arrays[key]))
    return found.hexdigest()


def _least(values: AnyArray) -> Any:
    return array_namespace(values).min(values) if 0 not in values.shape else 0.0


def _squares(factors: AnyArray | None) -> Any:
    """Return the sum of squares over the first axis, a row at a time so that no copy of all is made."""
    if factors is None:
        return 0.0
    total: Any = 0.0
    for row in range(factors.shape[0]):
        total = total + factors[row, ...] ** 2
    return total


def _taken(values: AnyArray, entries: Any, signs: Any, lead: int) -> AnyArray:
    """Return an array whose entries, after `lead` axes, are others of it."""
    if entries is None:
        return values
    xp = array_namespace(values)
    flat = xp.reshape(values, (*values.shape[:lead], -1))
    taken = xp.take(flat, xp.asarray(entries, device=values.device), axis=lead)
    if signs is not None:
        taken = taken * xp.asarray(signs, dtype=values.dtype, device=values.device)
    return xp.reshape(taken, values.shape)


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_FEW])
    return shown if len(names) <= _FEW else f"{shown} and {len(names) - _FEW} more"
