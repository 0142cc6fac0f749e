"""Priors of draws: what a site's posterior holds of the prior, and how what is counted J times is divided out.

The full posterior is prior times all likelihoods. In unconstrained coordinates u the density of site j is

    p_j(u) = exp c(u) L_j(u),      full = exp c(u) prod_j L_j(u) = prod_j p_j(u) / exp((J - 1) c(u)),

so what every site has once, exp c, is divided out J - 1 times: the Jacobian |d theta / d u| where the prior was raised
to 1/J or is flat, Jacobian and prior where every site used the whole prior, and nothing where the density of u, its
Jacobian included, was raised to 1/J.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.checks import Array, Json, is_number, symmetric_part
from consilience.draws.constraints import Constraint, Elementwise, Real, Simplex
from consilience.errors import InputError, OptionError, Problem

FLAT = "flat"
"""A prior that is constant in the parameters themselves."""

MAX_NEWTON_STEPS = 100
"""A bound that is not reached: 3 to 12 steps on the experiments' targets."""
NEWTON_TOLERANCE = 1e-10
"""Length of a step, in standard deviations of the product, at which Newton's method ends. Rounding only."""

Derivatives = Callable[[Array], tuple[Array, Array, Array]]
"""Log density, first and second derivative of a law at values (n, d), entry by entry."""


def _normal(mean: float, sd: float) -> Derivatives:
    return lambda x: (-0.5 * ((x - mean) / sd) ** 2, -(x - mean) / sd**2, np.full_like(x, -1.0 / sd**2))


def _student_t(dof: float, location: float, scale: float) -> Derivatives:
    def derivatives(x: Array) -> tuple[Array, Array, Array]:
        z, n = (x - location) / scale, dof + 1.0
        below = dof + z**2
        return -0.5 * n * np.log(below), -n * z / below / scale, -n * (dof - z**2) / below**2 / scale**2

    return derivatives


def _gamma(shape: float, rate: float) -> Derivatives:
    return lambda x: ((shape - 1) * np.log(x) - rate * x, (shape - 1) / x - rate, -(shape - 1) / x**2)


def _inverse_gamma(shape: float, scale: float) -> Derivatives:
    n = shape + 1.0
    return lambda x: (-n * np.log(x) - scale / x, -n / x + scale / x**2, n / x**2 - 2 * scale / x**3)


def _beta(a: float, b: float) -> Derivatives:
    return lambda x: (
        (a - 1) * np.log(x) + (b - 1) * np.log1p(-x),
        (a - 1) / x - (b - 1) / (1 - x),
        -(a - 1) / x**2 - (b - 1) / (1 - x) ** 2,
    )


def _lognormal(mean: float, sd: float) -> Derivatives:
    def derivatives(x: Array) -> tuple[Array, Array, Array]:
        z = (np.log(x) - mean) / sd**2
        return -np.log(x) - 0.5 * sd**2 * z**2, -(1 + z) / x, (1 + z - 1 / sd**2) / x**2

    return derivatives


def _constant() -> Derivatives:
    return lambda x: (np.zeros_like(x), np.zeros_like(x), np.zeros_like(x))


LAWS: dict[str, tuple[Callable[..., Derivatives], tuple[str, ...]]] = {
    "flat": (_constant, ()),
    "normal": (_normal, ("mean", "sd")),
    "half_normal": (lambda sd: _normal(0.0, sd), ("sd",)),
    "student_t": (_student_t, ("dof", "location", "scale")),
    "cauchy": (lambda location, scale: _student_t(1.0, location, scale), ("location", "scale")),
    "half_cauchy": (lambda scale: _student_t(1.0, 0.0, scale), ("scale",)),
    "exponential": (lambda rate: _gamma(1.0, rate), ("rate",)),
    "gamma": (_gamma, ("shape", "rate")),
    "inverse_gamma": (_inverse_gamma, ("shape", "scale")),
    "beta": (_beta, ("a", "b")),
    "lognormal": (_lognormal, ("mean", "sd")),
}
"""Laws of single entries, with the names of their arguments; of simplexes there is ``dirichlet`` beside these."""

_ANY_SIGN = ("mean", "location")
"""Arguments that need not be positive."""


def law_problem(variable: str, stated: Any, constraint: Constraint, shape: tuple[int, ...]) -> Problem | None:
    """Return why a distribution cannot be the prior of a variable; None where it can."""
    subject = f"prior of {variable}"
    known = f"one of {', '.join(LAWS)}, dirichlet, with its numbers, such as ('normal', 0, 1)"
    try:
        name, *arguments = stated
    except TypeError:
        return Problem(subject, f"is {stated!r:.80}, expected {known}")
    if name == "dirichlet":
        return _dirichlet_problem(variable, arguments, constraint, shape)
    if not isinstance(name, str) or name not in LAWS:
        return Problem(subject, f"is {name!r:.40}, expected {known}")
    names = LAWS[name][1]
    if len(arguments) != len(names):
        text = f"{name} takes {', '.join(names) or 'no numbers'}, found {arguments!r:.80}"
        return Problem(subject, text, code="E-NUMBER")
    for argument, value in zip(names, arguments, strict=True):
        is_valid = not isinstance(value, bool) and isinstance(value, int | float) and np.isfinite(value)
        if not is_valid or (argument not in _ANY_SIGN and value <= 0):
            return Problem(subject, f"has {argument} {value!r:.40}, expected a positive number", code="E-NUMBER")
    if not isinstance(constraint, Elementwise) and name != "flat":
        text = f"cannot be divided out: {variable} is a {constraint.name}"
        return Problem(subject, text, "raise the prior to 1/J at the sites and state `prior=1/J`")
    return None


def _dirichlet_problem(
    variable: str, arguments: Sequence[Any], constraint: Constraint, shape: tuple[int, ...]
) -> Problem | None:
    subject = f"prior of {variable}"
    if not isinstance(constraint, Simplex):
        return Problem(subject, f"is a dirichlet, and {variable} is no simplex", "state its constraint")
    if len(arguments) not in (1, shape[-1]) or not all(is_number(a) and a > 0 for a in arguments):
        return Problem(subject, f"takes one or {shape[-1]} positive numbers, found {arguments!r:.80}", code="E-NUMBER")
    return None


def as_prior(stated: Any) -> float | str | dict[str, Json] | None:
    """Return the statement of a prior: a power, "flat", a law by variable, or None where nothing is said."""
    if stated is None or stated == FLAT:
        return stated
    if isinstance(stated, Mapping):
        return {
            str(name): [law] if isinstance(law, str) else [*law] if isinstance(law, Sequence) else law
            for name, law in stated.items()
        }
    if is_number(stated) and 0 < stated <= 1:
        return float(stated)
    raise OptionError(
        "prior",
        f"found {stated!r:.80}, expected the power to which sites raised it (1/J), 'flat', or its distribution"
        " by variable, such as {'beta': ('normal', 0, 1)}, to be divided out",
    )


@dataclass(frozen=True, eq=False)
class Term:
    """What a variable adds to c."""

    part: slice  # its coordinates among all
    shape: tuple[int, ...]
    constraint: Constraint
    law: Sequence[Any] | None = None  # its prior, where that is divided out

    def _elementwise(self) -> Derivatives:
        name, *arguments = self.law or ("flat",)
        return LAWS[name][0](*arguments)

    def _concentration(self) -> Array:
        """Return alpha + 0: log density and Jacobian are sum_k alpha_k log theta_k together."""
        _, *arguments = self.law or ()
        return np.broadcast_to(np.array(arguments, dtype=np.float64), (self.shape[-1],))

    @property
    def _is_dirichlet(self) -> bool:
        return self.law is not None and self.law[0] == "dirichlet"

    def value(self, coordinates: Array) -> Array:
        """Return the log density of u (n,) up to a constant, at all coordinates (n, D)."""
        own = coordinates[:, self.part]
        if self._is_dirichlet:
            logs = np.log(self.constraint.constrain(own, self.shape))
            return (logs * self._concentration()).reshape(len(own), -1).sum(axis=1)
        jacobian = self.constraint.log_jacobian(own, self.shape)
        if self.law is None or not isinstance(self.constraint, Elementwise):
            return jacobian
        return jacobian + self._elementwise()(self.constraint.derivatives(own)[0])[0].sum(axis=1)

    def derivatives(self, point: Array) -> tuple[Array, Array]:
        """Return gradient (d,) and Hessian (d, d) at one point (D,), with the chain rule for theta = h(u).

        d/du log p(h(u)) = p1 h',  d2/du2 = p2 h'^2 + p1 h'', with p1 and p2 the derivatives of log p.
        """
        own = point[self.part]
        if self._is_dirichlet and isinstance(self.constraint, Simplex):
            return self.constraint.dirichlet_derivatives(own, self.shape, self._concentration())
        gradient, hessian = self.constraint.jacobian_derivatives(own, self.shape)
        if self.law is None or not isinstance(self.constraint, Elementwise):
            return gradient, hessian
        values, slopes, curvatures = self.constraint.derivatives(own)
        signed = slopes * getattr(self.constraint, "sign", 1)
        _, first, second = self._elementwise()(values)
        return gradient + first * signed, hessian + np.diag(second * signed**2 + first * signed * curvatures)


@dataclass(frozen=True, eq=False)
class CommonFactor:
    """c(u): the logarithm of what every site's density has once, and the full posterior once too.

    Parameters
    ----------
    terms : tuple of Term
        By variable; empty where nothing is shared.
    n_coordinates : int
        Number D of coordinates.
    """

    terms: tuple[Term, ...]
    n_coordinates: int

    @property
    def is_constant(self) -> bool:
        """Whether there is nothing to divide out."""
        return all(
            isinstance(term.constraint, Real) and (term.law is None or term.law[0] == FLAT) for term in self.terms
        )

    def value(self, coordinates: Array) -> Array:
        """Return c (n,) at coordinates (n, D)."""
        return sum((term.value(coordinates) for term in self.terms), np.zeros(len(coordinates)))

    def derivatives(self, point: Array) -> tuple[Array, Array]:
        """Return gradient (D,) and Hessian (D, D) of c at a point (D,)."""
        gradient, hessian = np.zeros(self.n_coordinates), np.zeros((self.n_coordinates, self.n_coordinates))
        for term in self.terms:
            gradient[term.part], hessian[term.part, term.part] = term.derivatives(point)
        return gradient, hessian

    def divide_out(self, mean: Array, precision: Array, times: float) -> tuple[Array, Array]:
        """Return mean and precision of the Gaussian N(mean, precision^-1) / exp(times c), by Laplace's approximation.

        Exact where c is quadratic: Gaussian priors and the Jacobian of logarithms,
        mean' = mean - times precision^-1 1.

        Raises
        ------
        InputError
            Where nothing proper is left: the precision is not positive definite.
        """
        if self.is_constant or times == 0:
            return mean, precision
        point = mean
        for _ in range(MAX_NEWTON_STEPS):
            gradient, hessian = self.derivatives(point)
            divided = symmetric_part(precision + times * hessian)
            values = np.linalg.eigvalsh(divided)
            if not np.all(np.isfinite(values)) or values[0] <= 0:
                raise InputError(
                    "prior",
                    f"divided out {times:g} times leaves no proper posterior: the sites' draws say less than the prior",
                    "raise the prior to 1/J at the sites and state `prior=1/J`",
                    "E-NEEDED",
                )
            step = np.linalg.solve(divided, -(precision @ (point - mean) + times * gradient))
            length = float(np.sqrt(step @ precision @ step))
            point = point + step * min(1.0, np.sqrt(len(mean)) / max(length, 1e-300))  # no further than one s.d. each
            if length < NEWTON_TOLERANCE * np.sqrt(len(mean)):
                break
        return point, symmetric_part(precision + times * self.derivatives(point)[1])

    def quadratic(self, point: Array) -> tuple[Array, Array]:
        """Return (P, P m): precision and precision times mean of the quadratic that c has at a point."""
        gradient, hessian = self.derivatives(point)
        return -hessian, gradient - hessian @ point
