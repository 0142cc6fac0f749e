"""Fisher information of a network's parameters: diagonal, low rank plus diagonal, or Kronecker factors by layer.

At parameters theta (P numbers) the information of N observations x_n with outcomes y is

    F = sum_n E_{y ~ p(. | x_n, theta)} [ grad log p grad log p^T ],    grad = d/d theta log p(y | x_n, theta),

equation (3) of Recasens et al. (2023). It is stored as F = G^T G + diag(r): the rows of G (rank, P), the *factors*, are
the leading singular directions of all gradients together; r (P,), the *residual*, is the diagonal of F less that of
G^T G. Without factors, r is the whole diagonal. With a prior N(0, I / alpha) the precision of the posterior is
F + alpha I (Laplace approximation).

In the Kronecker-factored form the parameters of a layer have F = N A (x) B (``fisher.kronecker``), no information being
shared between layers, and only parameters without such factors have an r.

All parts are split by parameter. They move with the units of their network (permutations and signs), and a digest of
the parameters binds them to the network that they were computed at.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Literal, get_args

from array_api_compat import array_namespace

from consilience.checks import AnyArray, Json
from consilience.drawing.display import Displayed, names_in_line
from consilience.drawing.words import first_names, format_count
from consilience.errors import InputError, Problem
from consilience.networks.fisher.kronecker import (
    MAX_NAMED,
    KroneckerFactors,
    diagonal_by_parameter,
    informed_names,
    moved_factors,
)
from consilience.networks.network import Network, is_floating, non_finite_problems, to_bytes
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import Transport
from consilience.networks.symmetry.unit_rows import entry_permutation

Likelihood = Literal["categorical", "bernoulli", "gaussian"]
LIKELIHOODS: tuple[Likelihood, ...] = get_args(Likelihood)
Kind = Literal["diagonal", "factors", "kronecker"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, eq=False, repr=False)
class FisherInformation(Displayed):
    """The Fisher information of a network's trained parameters, summed over a site's observations.

    Parameters
    ----------
    residual : mapping of str to array
        By parameter, an array of its shape: the part of the diagonal that the factors do not have; all of it where
        there are none. In units of one over the parameter squared.
    factors : mapping of str to array of shape (rank, ...), optional
        By parameter: G, split as the parameters are. Empty for a diagonal alone. Default: empty.
    layers : mapping of str to KroneckerFactors, optional
        By path of a layer: means over observations of the factors of its weight and bias, which then have no residual.
        Default: empty.
    observations : float, optional
        Number N of observations that it stands for. Default: None, unknown.
    prior_precision : float, optional
        Precision alpha of the prior N(0, I / alpha) that the network was trained with, on the scale of the sum: for
        torch's mean losses, N times the weight decay. Default: None, unknown.
    likelihood : {"categorical", "bernoulli", "gaussian"}, optional
        Distribution of outcomes given the outputs. Default: None, unknown.
    noise : float, optional
        Standard deviation of a gaussian likelihood. Default: 1.
    seen : int, optional
        Number of observations that gradients were computed for; their sums were scaled up to `observations`.
    samples : int, optional
        Number of outcomes drawn for each observation. Default: None, the exact expectation.
    linear : bool, optional
        Whether the network is linear in its parameters; with a gaussian likelihood the information is then the same
        everywhere. Default: False.
    digest : str, optional
        SHA-256 of the parameters that it was computed at. Default: None, unknown.
    aliases : mapping of str to str, optional
        Other names of tied parameters, to the name used here.
    name : str, optional
        Name used in messages.
    sha256 : str, optional
        Digest of the file that it was read from.

    Raises
    ------
    InputError
        Naming the parameters whose values are negative, not finite, or of another shape; when there is no information
        at all; or for counts that are not positive.
    """

    residual: Mapping[str, AnyArray]
    factors: Mapping[str, AnyArray] = field(default_factory=dict)
    layers: Mapping[str, KroneckerFactors] = field(default_factory=dict, kw_only=True)
    observations: float | None = None
    prior_precision: float | None = None
    likelihood: Likelihood | None = None
    noise: float = 1.0
    seen: int | None = None
    samples: int | None = None
    linear: bool = False
    digest: str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    name: str = "Fisher information"
    sha256: str | None = None

    def __post_init__(self) -> None:
        problems = [] if self.residual or self.layers else [Problem(self.name, "has no parameters", code="E-NEEDED")]
        problems += [
            Problem(self.name, f"{key} holds {values.dtype}, not floats", code="E-TYPE")
            for key, values in (*self.residual.items(), *self.factors.items())
            if not is_floating(values)
        ]
        if not problems:
            for what, arrays in (("residual", self.residual), ("factors", self.factors)):
                problems += non_finite_problems(
                    {f"{what} of {key}": values for key, values in arrays.items()}, self.name
                )
        if not problems:
            problems += [*self._negative_problems(), *self._factor_problems(), *self._layer_problems()]
        problems += self._statement_problems()
        # Information of zero everywhere would give the network no weight in any parameter.
        if not problems and not self._is_informative():
            text = "has information that is zero for every parameter, so the network says nothing of its data"
            remedy = "look at its outputs (saturated, or constant) or leave it out"
            problems.append(Problem(self.name, text, remedy, "E-NUMBER"))
        if problems:
            raise InputError(problems)

    def _negative_problems(self) -> Iterator[Problem]:
        """Yield the parameters whose diagonal, a sum of squares, is negative."""
        for key, values in self.residual.items():
            smallest = 0.0 if 0 in values.shape else float(array_namespace(values).min(values))
            if smallest < 0:
                text = f"parameter {key} has negative information, smallest {smallest:.3g}; a Fisher"
                text += " diagonal is a sum of squares: compute it anew with consilience.fisher"
                yield Problem(self.name, text, code="E-NUMBER")

    def _statement_problems(self) -> Iterator[Problem]:
        """Yield the problems with the numbers and the likelihood that it states."""
        for name, value in (("observations", self.observations), ("noise", self.noise)):
            if value is not None and not (isfinite(value) and value > 0):
                yield Problem(self.name, f"{name} must be a positive number, found {value!r}", code="E-NUMBER")
        prior = self.prior_precision
        if prior is not None and not (isfinite(prior) and prior >= 0):
            text = f"prior_precision must be a number, not negative, found {prior!r}"
            yield Problem(self.name, text, code="E-NUMBER")
        if self.likelihood is not None and self.likelihood not in LIKELIHOODS:
            text = f"likelihood must be one of {', '.join(LIKELIHOODS)}, found {self.likelihood!r}"
            yield Problem(self.name, text)

    def _factor_problems(self) -> Iterator[Problem]:
        """Yield the problems with names and shapes of factors."""
        if any(values.ndim == 0 or not values.shape[0] for values in self.factors.values()):
            yield Problem(self.name, "factors of rank 0", "leave them out")
        elif self.factors and set(self.factors) != set(self.residual):
            unpaired = first_names(sorted(set(self.factors) ^ set(self.residual)), MAX_NAMED)
            yield Problem(self.name, f"{unpaired}: both a residual and factors are needed", code="E-NEEDED")
        else:
            for key, values in self.factors.items():
                expected = (self.rank, *self.residual[key].shape)
                if tuple(values.shape) != expected:
                    text = f"factors of {key} have shape {tuple(values.shape)}, expected {expected}"
                    yield Problem(self.name, text, code="E-SHAPE")

    def _layer_problems(self) -> Iterator[Problem]:
        """Yield the problems with Kronecker factors."""
        for layer, factors in self.layers.items():
            yield from factors.problems(self.name, layer)
        if self.layers and self.factors:
            yield Problem(self.name, "has factors of all parameters and of layers", "give one of them")
        if twice := [name for name in informed_names(self.layers) if name in self.residual]:
            text = f"{first_names(twice, MAX_NAMED)}: has a residual and Kronecker factors of its layer"
            yield Problem(self.name, text, code="E-TWICE")

    def _is_informative(self) -> bool:
        """Return whether any entry is not zero."""
        return any(
            bool(array_namespace(values).any(values != 0))
            for values in (*self.residual.values(), *self.factors.values())
        ) or any(factors.diagonal.any() for factors in self.layers.values())

    def _headline(self) -> str:
        rank = f" of rank {self.rank}" if self.rank else ""
        return f"{self.kind}{rank}, {format_count(len(self.parameters), 'parameter array')}"

    def _facts(self) -> dict[str, object | None]:
        return {
            "observations": None if self.observations is None else f"{self.observations:,.0f}",
            "likelihood": self.likelihood,
            "prior precision": self.prior_precision,
            "parameters": names_in_line(self.parameters),
        }

    @property
    def parameters(self) -> list[str]:
        """Names of all parameters that are informed."""
        return [*self.residual, *informed_names(self.layers)]

    def record(self) -> dict[str, Json]:
        """Return its entry in the provenance of a fused file, as JSON values."""
        names = ("kind", "rank", "observations", "seen", "samples", "likelihood", "prior_precision", "sha256")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @property
    def kind(self) -> Kind:
        """Whether it has factors, Kronecker factors of layers, or only a diagonal."""
        if self.layers:
            return "kronecker"
        return "factors" if self.factors else "diagonal"

    @property
    def rank(self) -> int:
        """Number of factors."""
        return int(next(iter(self.factors.values())).shape[0]) if self.factors else 0

    @property
    def diagonal(self) -> dict[str, AnyArray]:
        """The diagonal of F by parameter, each of its parameter's shape; of layers with Kronecker factors, flattened.

        Of a layer with Kronecker factors it is that of N A (x) B, weights (o, i).
        """
        # diag(G^T G + diag(r)) = r + sum over factors of their squares
        diagonals = {key: values + _squares(self.factors.get(key)) for key, values in self.residual.items()}
        scale = 1.0 if self.observations is None else self.observations  # of means over observations
        return diagonals | {key: scale * values for key, values in diagonal_by_parameter(self.layers).items()}

    def as_diagonal(self, shapes: Mapping[str, tuple[int, ...]]) -> FisherInformation:
        """Return the same with the diagonal alone of its Kronecker factors, for methods that read no factors."""
        if not self.layers:
            return self
        diagonal = {key: values.reshape(shapes[key]) for key, values in self.diagonal.items()}
        return replace(self, residual=diagonal, layers={})

    def renamed(self, symmetry: Symmetry) -> FisherInformation:
        """Return the same information under the names that a symmetry uses for tied parameters."""
        new_names = {key: name for key in self.residual if (name := self._name(key, symmetry)) != key}
        if not new_names:
            return self
        residual = {new_names.get(key, key): values for key, values in self.residual.items()}
        factors = {new_names.get(key, key): values for key, values in self.factors.items()}
        return replace(self, residual=residual, factors=factors)

    def _name(self, key: str, symmetry: Symmetry) -> str:
        """Return the name of a parameter in a symmetry, which may list a tied parameter under another of its names."""
        names = [key, *(alias for alias, name in self.aliases.items() if name == key)]
        canonical_names = (symmetry.aliases.get(name, name) for name in names)
        return next((name for name in canonical_names if name in symmetry.layouts), key)

    def unfit(self, network: Network) -> list[Problem]:
        """Return the reasons why this is not the information of a network, a line each; empty when it may be."""
        names = {key: self._name(key, network.symmetry) for key in self.residual}
        problems = [*self._misfits(names, network)]
        if problems or self.digest is None:
            return problems
        names |= {key: key for key in informed_names(self.layers)}
        if self.digest == parameter_digest({key: network.arrays[name] for key, name in names.items()}, names):
            return []
        text = f"was computed at other parameters than those of {network.name}"
        text += " (another network, other order of units, or another precision)"
        return [Problem(self.name, text, "compute it for the network as it is sent", "E-MISMATCH")]

    def _misfits(self, names: Mapping[str, str], network: Network) -> Iterator[Problem]:
        """Yield the parameters and layers that a network does not have, or not in this size."""
        remedy = "give the information of this network"
        shapes = {names[key]: tuple(values.shape) for key, values in self.residual.items()}
        missing = [key for key in (*names.values(), *informed_names(self.layers)) if key not in network.arrays]
        if missing:
            text = f"{first_names(missing, MAX_NAMED)}: not in {network.name}"
            yield Problem(self.name, text, remedy, "E-MISMATCH")
        for key, shape in shapes.items():
            if key in network.arrays and shape != tuple(network.arrays[key].shape):
                text = f"{key} has shape {shape}, but {tuple(network.arrays[key].shape)} in {network.name}"
                yield Problem(self.name, text, remedy, "E-SHAPE")
        for layer, factors in self.layers.items():
            if not missing and not factors.fit(layer, network.arrays):
                text = f"factors of {layer or 'the network'} are those of another layer than that of {network.name}"
                yield Problem(self.name, text, remedy, "E-MISMATCH")

    def moved(self, network: Network, transports: Mapping[str, Transport]) -> FisherInformation:
        """Return the information of a network whose units were renumbered, or changed their sign.

        A gradient changes its sign with its parameter, its square does not: factors take signs, residuals only move.
        """
        layouts, units = network.symmetry.layouts, network.units
        information = self.renamed(network.symmetry)
        residual, factors = {}, {}
        for key, values in information.residual.items():
            # The factors have a leading axis (rank,) before those of the parameter.
            entries, signs = entry_permutation(layouts[key], transports, units)
            residual[key] = _take_entries(values, entries, None, 0)
            if information.factors:
                factors[key] = _take_entries(information.factors[key], entries, signs, 1)
        layers = moved_factors(information.layers, layouts, transports, units)
        return replace(information, residual=residual, factors=factors, layers=layers)


def as_information(information: Any, name: str) -> FisherInformation:
    """Return what a user gave as a `FisherInformation`, which a diagonal by parameter becomes under a name."""
    if isinstance(information, FisherInformation):
        return replace(information, name=name) if information.name == "Fisher information" else information
    if isinstance(information, Mapping) and all(isinstance(key, str) for key in information):
        if not_arrays := [key for key, values in information.items() if not hasattr(values, "shape")]:
            text = f"{first_names(not_arrays, MAX_NAMED)}: expected arrays by parameter"
            raise InputError(name, text, code="E-TYPE")
        return FisherInformation(information, name=name)
    text = (
        "expected what consilience.fisher gives, the path of its file, or a diagonal by parameter, found "
        f"{type(information).__name__}"
    )
    raise InputError(name, text, code="E-TYPE")


def parameter_digest(arrays: Mapping[str, AnyArray], names: Sequence[str] | Mapping[str, Any]) -> str:
    """Return the SHA-256 of some arrays (name, shape, dtype and bytes of each), names in any order."""
    sha256 = hashlib.sha256()
    for key in sorted(names):
        # The dtype without its library: float32 of NumPy and of torch give one digest.
        sha256.update(f"{key} {tuple(arrays[key].shape)} {str(arrays[key].dtype).rpartition('.')[2]}\n".encode())
        sha256.update(to_bytes(arrays[key]))
    return sha256.hexdigest()


def _squares(factors: AnyArray | None) -> Any:
    """Return the sum of squares over the first axis, a row at a time so that no copy of all is made."""
    return 0.0 if factors is None else sum(factors[row, ...] ** 2 for row in range(factors.shape[0]))


def _take_entries(values: AnyArray, entries: Any, signs: Any, lead: int) -> AnyArray:
    """Return an array (*leading, *shape) whose entries are others of it, times signs (size,), after `lead` axes.

    The entries (size,) are flat indices of what moves there; None for either where nothing does.
    """
    if entries is None:
        return values
    xp = array_namespace(values)
    flat = xp.reshape(values, (*values.shape[:lead], -1))  # (*leading, size)
    moved = xp.take(flat, xp.asarray(entries, device=values.device), axis=lead)
    if signs is not None:
        moved = moved * xp.asarray(signs, dtype=values.dtype, device=values.device)
    return xp.reshape(moved, values.shape)


def network_digest(arrays: Mapping[str, AnyArray], aliases: Mapping[str, str]) -> str:
    """Return the SHA-256 of a network's parameters and buffers, the same in memory and in its file.

    Arrays hold tied weights under one of their names or under all; files have all names.
    """
    named = dict(arrays)
    for alias, name in aliases.items():
        if name in named:
            named.setdefault(alias, named[name])
        elif alias in named:
            named[name] = named[alias]
    return parameter_digest(named, named)
