"""Log-likelihoods of generalised linear models with their gradients and information, at any coefficients.

Multinomial, of log odds eta = A theta^T over C classes with probabilities p:

    l = sum_i w_i log p_{i, y_i},   dl/dtheta_c = sum_i w_i (1[y_i = c] - p_ic) a_i,
    I_ck = sum_i w_i p_ic (1[c = k] - p_ik) a_i a_i^T.

Tweedie of the power q with mu = exp(A beta), up to a constant and the dispersion:

    l = -sum_i w_i (mu^(2-q) / (2-q) - y mu^(1-q) / (1-q)),   dl/deta = -(mu^(2-q) - y mu^(1-q)),
    -d2l/deta2 = (2-q) mu^(2-q) - (1-q) y mu^(1-q),

with logarithms in place of powers of zero at q = 1 (Poisson) and q = 2 (gamma); of the identity link at q = 0 it is
least squares. (McCullagh and Nelder, 1989, "Generalized linear models", sections 2.2 and 9.2.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from consilience.checks import Array, Labels, symmetric_part


class Likelihood(ABC):
    """The log-likelihood of rows at some coefficients, with derivatives by the q that are free."""

    @abstractmethod
    def value(self) -> float:
        """Return the log-likelihood, up to a constant that depends on the rows alone."""

    @abstractmethod
    def gradient(self) -> Array:
        """Return its gradient (q,)."""

    @abstractmethod
    def information(self) -> Array:
        """Return its negative Hessian (q, q)."""

    def pearson(self) -> float:
        """Return the sum of squared Pearson residuals by weight; 0 where there is no dispersion."""
        return 0.0


@dataclass(frozen=True, eq=False)
class Multinomial(Likelihood):
    """Rows of several classes at coefficients (C, p)."""

    A: Array  # (n, p), rows, with a column of ones where there is an intercept
    numbers: Labels  # (n,), class of every row
    weights: Array  # (n,), weight of every row
    theta: Array  # (C, p), coefficients of all classes
    first: int = 0  # the first class whose coefficients are free, all others being zero

    @property
    def log_odds(self) -> Array:
        """A theta^T (n, C)."""
        eta: Array = self.A @ self.theta.T
        return eta

    @property
    def log_probabilities(self) -> Array:
        """Logarithms of the probabilities of all classes (n, C)."""
        eta = self.log_odds
        normalised: Array = eta - np.logaddexp.reduce(eta, axis=1)[:, None]
        return normalised

    def value(self) -> float:
        """Return the log-likelihood."""
        return float(self.weights @ self.log_probabilities[np.arange(len(self.A)), self.numbers])

    def gradient(self) -> Array:
        """Return its gradient (q,)."""
        return self.gradient_by_class()[self.first :].ravel()

    def information(self) -> Array:
        """Return its negative Hessian (q, q)."""
        q = (len(self.theta) - self.first) * self.theta.shape[1]
        return self.information_by_class()[self.first :, :, self.first :, :].reshape(q, q)

    def gradient_by_class(self) -> Array:
        """Return its gradient by the coefficients of all classes (C, p)."""
        residuals = -np.exp(self.log_probabilities)  # (n, C)
        residuals[np.arange(len(self.A)), self.numbers] += 1.0
        gradient: Array = (self.weights[:, None] * residuals).T @ self.A
        return gradient

    def information_by_class(self) -> Array:
        """Return its negative Hessian by the coefficients of all classes (C, p, C, p)."""
        n_classes, p = self.theta.shape
        probabilities = np.exp(self.log_probabilities)
        information = np.zeros((n_classes, p, n_classes, p))
        for c in range(n_classes):
            for k in range(c, n_classes):
                curvature = self.weights * probabilities[:, c] * ((c == k) - probabilities[:, k])
                information[c, :, k, :] = (self.A * curvature[:, None]).T @ self.A
                information[k, :, c, :] = information[c, :, k, :]
        return information


@dataclass(frozen=True, eq=False)
class Tweedie(Likelihood):
    """Rows of a Tweedie distribution at coefficients (p,)."""

    A: Array  # (n, p), rows, with a column of ones where there is an intercept
    y: Array  # (n,), targets
    weights: Array  # (n,), weight of every row
    beta: Array  # (p,), coefficients
    power: float  # power q of the variance
    is_identity: bool  # whether the link is the identity, of least squares, and not the logarithm

    def mean(self) -> Array:
        """Return the means (n,)."""
        eta: Array = self.A @ self.beta
        return eta if self.is_identity else np.exp(eta)

    def value(self) -> float:
        """Return the log-likelihood."""
        mu, q = self.mean(), self.power
        if self.is_identity:
            return float(-0.5 * self.weights @ (self.y - mu) ** 2)
        log_mu = self.A @ self.beta
        first = log_mu if q == 2.0 else mu ** (2.0 - q) / (2.0 - q)
        second = log_mu if q == 1.0 else mu ** (1.0 - q) / (1.0 - q)
        return float(-self.weights @ (first - self.y * second))

    def gradient(self) -> Array:
        """Return its gradient (p,)."""
        mu, q = self.mean(), self.power
        slope = mu - self.y if self.is_identity else mu ** (2.0 - q) - self.y * mu ** (1.0 - q)
        gradient: Array = -(self.A.T @ (self.weights * slope))
        return gradient

    def information(self) -> Array:
        """Return its negative Hessian (p, p)."""
        mu, q = self.mean(), self.power
        curvature = (
            np.ones(len(mu)) if self.is_identity else (2.0 - q) * mu ** (2.0 - q) - (1.0 - q) * self.y * mu ** (1.0 - q)
        )
        return symmetric_part((self.A * (self.weights * curvature)[:, None]).T @ self.A)

    def pearson(self) -> float:
        """Return the sum of squared Pearson residuals."""
        mu = self.mean()
        return float(np.sum(self.weights * (self.y - mu) ** 2 / np.abs(mu) ** self.power))
