"""Random Fourier features: a ridge on them is kernel ridge regression with a Gaussian kernel (Rahimi and Recht 2007).

phi(x) = sqrt(2 / d) cos(Omega x / length + b), Omega (d, D) standard normal, b uniform on [0, 2 pi): the mean of
phi(x) . phi(y) over the draws is exp(-|x - y|^2 / (2 length^2)), by their equation (4) and Algorithm 1.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from consilience.checks import Array, Json, is_count, is_number
from consilience.errors import InputError, OptionError
from consilience.estimators.heads.feature_maps import FeatureMap, remember


class RandomFourier(FeatureMap):
    """Random Fourier features of rows; see `random_fourier`."""

    kind: ClassVar[str] = "random_fourier"

    def __init__(self, n_columns: int, count: int, length: float, seed: int) -> None:
        self.n_columns, self.count, self.length, self.seed = n_columns, count, length, seed

    @property
    def recipe(self) -> Mapping[str, Json]:
        """The arguments of `random_fourier`."""
        return {"n_columns": self.n_columns, "count": self.count, "length": self.length, "seed": self.seed}

    @property
    def name(self) -> str:
        """Kind and number of features."""
        return f"{self.count} random Fourier features"

    @cached_property
    def _draws(self) -> tuple[Array, Array]:
        """Frequencies (d, D) and phases (d,), from PCG64."""
        rng = np.random.Generator(np.random.PCG64(self.seed))
        return rng.standard_normal((self.count, self.n_columns)), rng.uniform(0.0, 2.0 * np.pi, self.count)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the recipe and its random numbers, which releases of NumPy may draw otherwise."""
        digest = hashlib.sha256(json.dumps(dict(self.recipe), sort_keys=True).encode())
        for draws in self._draws:
            digest.update(draws.tobytes())
        return digest.hexdigest()

    def transform(self, inputs: Any) -> Array:
        """Return features (n, d) of rows (n, ...), which are flattened to D columns each."""
        try:
            rows = np.asarray(inputs, dtype=np.float64)
        except (TypeError, ValueError):
            raise InputError("X", "expected rows of numbers", code="E-TYPE") from None
        rows = rows.reshape(len(rows), -1) if rows.ndim > 1 else rows
        if rows.ndim != 2 or rows.shape[1] != self.n_columns:
            text = f"has shape {np.shape(inputs)}, expected rows of {self.n_columns} columns"
            raise InputError("X", text, code="E-SHAPE")
        if not np.all(np.isfinite(rows)):
            raise InputError("X", "has values that are NaN or infinite", code="E-NUMBER")
        frequencies, phases = self._draws
        angles = rows @ (frequencies / self.length).T + phases
        return np.sqrt(2.0 / self.count) * np.cos(angles)


def random_fourier(n_columns: int, count: int = 1000, *, length: float = 1.0, seed: int = 0) -> RandomFourier:
    """Return random Fourier features of rows, on which a ridge is kernel ridge regression with a Gaussian kernel.

    Parameters
    ----------
    n_columns : int
        Number D of columns of the rows; inputs with further axes are flattened.
    count : int, optional
        Number d of features. Default: 1000.
    length : float, optional
        Length scale of the kernel, in units of the columns: standardise them alike at all sites. Default: 1.
    seed : int, optional
        Of the frequencies. Default: 0.

    Raises
    ------
    OptionError
        For numbers that are none of these.

    Examples
    --------
    >>> features = random_fourier(2, count=4000, length=2.0)
    >>> a, b = features([[0.0, 0.0], [1.0, 1.0]])
    >>> round(float(a @ b), 1), round(float(np.exp(-2.0 / 8.0)), 1)
    (0.8, 0.8)
    """
    for name, value in (("n_columns", n_columns), ("count", count)):
        if not is_count(value):
            raise OptionError(name, f"expected a positive whole number, found {value!r}")
    if not is_number(length) or length <= 0:
        raise OptionError("length", f"expected a positive number, found {length!r}")
    if not is_count(seed) and seed != 0:
        raise OptionError("seed", f"expected a whole number that is not negative, found {seed!r}")
    made = RandomFourier(int(n_columns), int(count), float(length), int(seed))
    remember(made)
    return made
