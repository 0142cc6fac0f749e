"""Gaussian noise on masked sums: each site adds a part, and the sum has what the analytic Gaussian mechanism asks.

Of n sites that may take part T open the sum, so that at least T parts are in it: parts of variance s^2 / T make up s^2
or more. A site's contribution is a vector of norm `clip` at most (it is cut to that), and the guarantee is of the whole
contribution of a site: with the sum nobody tells whether it sent what it has or zeros, but with (epsilon, delta). Sites
that work together and leave out their parts take as much of it away.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from math import sqrt

import numpy as np

from consilience.checks import Array, Json, is_number
from consilience.errors import OptionError
from consilience.estimators.heads.privacy import gaussian_scale


@dataclass(frozen=True)
class SumNoise:
    """Noise on a sum of vectors of bounded norm.

    Raises OptionError for numbers that are not positive, and a delta of 1 or more.

    Examples
    --------
    >>> round(SumNoise(1.0, 1e-6, 2.0).scale, 2)
    8.45
    """

    # Differential privacy of the contribution of a site.
    epsilon: float
    delta: float
    clip: float  # norm to which contributions are cut

    def __post_init__(self) -> None:
        if not is_number(self.clip) or not 0 < self.clip < np.inf:
            raise OptionError("clip", f"expected a positive number, found {self.clip!r}")
        gaussian_scale(self.epsilon, self.delta)

    @property
    def scale(self) -> float:
        """Deviation s of the noise in the sum, of each number."""
        return gaussian_scale(self.epsilon, self.delta, self.clip)

    def clipped(self, vector: Array) -> Array:
        """Return a vector cut to the norm `clip`."""
        norm = float(np.linalg.norm(vector))
        return vector if norm <= self.clip else vector * (self.clip / norm)

    def part(self, length: int, threshold: int) -> Array:
        """Return a site's part of the noise (L,), anew from the system's randomness."""
        rng = np.random.default_rng(secrets.randbits(256))
        return rng.standard_normal(length) * (self.scale / sqrt(threshold))

    def warning(self, length: int, n_sites: int, threshold: int) -> str | None:
        """Return that noise is larger than all that sites can send, where it is; None where it is not.

        The norm of the noise is s sqrt(L n / T) where all n sites add their parts, that of the sum n clip at most.
        """
        noise = self.scale * sqrt(length * n_sites / threshold)
        if noise <= n_sites * self.clip:
            return None
        return (
            f"noise for epsilon {self.epsilon:g} and delta {self.delta:g} has norm {noise:.3g} in {length:,} numbers, "
            f"and the contributions of {n_sites} sites together {n_sites * self.clip:.3g} at most: the sum will say "
            "little; take a larger epsilon, more sites, or fewer numbers"
        )

    def to_json(self) -> dict[str, Json]:
        """Return the noise as JSON values."""
        return {"epsilon": self.epsilon, "delta": self.delta, "clip": self.clip}
