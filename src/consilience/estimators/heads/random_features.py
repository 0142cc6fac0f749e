"""Random features, which need no data: convolutional ones of images, and Fourier features of rows.

Convolutions have filters like patches of natural images, at three scales. A synthetic patch p = L xi has the covariance
K_ab = exp(-|a - b| / k) of pixels at a and b, L = chol(K + 1e-4 I). A filter is its whitened form: with
Wh = (K + 0.02 I)^(-1/2), the mean of each channel taken off before,

    w = normalised(Wh normalised(Wh p)),   less its mean, normalised.

The response is that of a valid convolution, normalised by the contrast of the patch under it,

    r = w . x / (sqrt(v + 0.01) s),   v = mean of x^2 over the patch - squared mean of x,   s = mean of |L^T w|,

so that the threshold 0.3 is one of standard deviations and no data set it. Features are relu(r - 0.3) and
relu(-r - 0.3), averaged over the cells of a 3 x 3 grid: 18 for each filter. Patches have sides of 4, 6 and 9 pixels:
two, two and one of five filters. (Coates and Ng 2012 whiten patches of data; here no patch is one.)

Fourier features are those on which a ridge is kernel ridge regression with a Gaussian kernel (Rahimi and Recht 2007),

    phi(x) = sqrt(2 / d) cos(Omega x / length + b),

Omega (d, D) standard normal, b uniform on [0, 2 pi): the mean of phi(x) . phi(y) over the draws is
exp(-|x - y|^2 / (2 length^2)), by their equation (4) and Algorithm 1.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy import linalg

from consilience.checks import AnyArray, Array, Json, is_count, is_number
from consilience.errors import InputError, OptionError
from consilience.estimators.heads.feature_maps import FeatureMap, remember

FEATURES_PER_FILTER = 18
"""Two signs, each averaged over the nine cells of a grid."""
SIDES = (4, 6, 9)
"""Sides of the patches. With them Fashion-MNIST (20,000 images, d = 1,800) has 88.4 % in place of 87.9 with 6 alone."""
SHARES = (0.4, 0.4, 0.2)
"""Parts of the filters that each side has."""
THRESHOLD = 0.3
"""In deviations of the response. 1 in its place: 86.9 % against 87.9 on 5,000 training images that were not fitted."""
CONTRAST_NOISE = 0.01
"""Added to the contrast, in squared units of the standardised inputs: 0.1 in its place 87.5 % against 87.9."""
PATCH_NOISE, WHITENING_NOISE, COLOUR_CORRELATION = 1e-4, 0.02, 0.9
"""Of the recipe: added to the diagonal of K for its root and for its whitener; of channels at one pixel."""
SCALE = 0.3081
"""Deviation of MNIST's pixels in [0, 1], by which inputs are divided; it matters through `CONTRAST_NOISE` alone."""
GRID = 3
"""Cells of the grid on each axis."""

_BLOCK_BYTES = 2**25
"""Bytes of patches that are multiplied at a time, 32 MiB. Chosen by hand."""


class RandomFeatures(FeatureMap):
    """A map of random numbers, known by its recipe and these numbers, which releases of NumPy may draw otherwise."""

    constants: ClassVar[Sequence[Any] | None] = None
    """Constants of the recipe that nobody states."""

    @cached_property
    @abstractmethod
    def _draws(self) -> Sequence[Array]:
        """Random numbers, from PCG64."""

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the recipe, its constants and the random numbers."""
        recipe = dict(self.recipe or {})
        stated = recipe if self.constants is None else [recipe, list(self.constants)]
        digest = hashlib.sha256(json.dumps(stated, sort_keys=True).encode())
        for draws in self._draws:
            digest.update(draws.tobytes())
        return digest.hexdigest()


def _require_seed(seed: object) -> None:
    if not is_count(seed) and seed != 0:
        raise OptionError("seed", f"expected a whole number that is not negative, found {seed!r}")


class RandomConvolutions(RandomFeatures):
    """Random convolutional features of images; see `random_convolutions`."""

    kind: ClassVar[str] = "random_convolutions"
    constants: ClassVar[Sequence[Any] | None] = (
        SIDES, SHARES, THRESHOLD, CONTRAST_NOISE, PATCH_NOISE, WHITENING_NOISE, COLOUR_CORRELATION, GRID,
    )  # fmt: skip

    def __init__(self, shape: tuple[int, int, int], count: int, seed: int, stride: int, scale: float) -> None:
        self.shape, self.count, self.seed, self.stride, self.scale = shape, count, seed, stride, scale
        n_filters = count // FEATURES_PER_FILTER
        small = round(SHARES[2] * n_filters)
        first = (n_filters - small + 1) // 2
        self.filter_counts = (first, n_filters - small - first, small)

    @property
    def recipe(self) -> Mapping[str, Json]:
        """The arguments of `random_convolutions`."""
        return {
            "shape": list(self.shape),
            "count": self.count,
            "seed": self.seed,
            "stride": self.stride,
            "scale": self.scale,
        }

    @property
    def name(self) -> str:
        """Kind and number of features."""
        return f"{self.count} random convolutions"

    @cached_property
    def _draws(self) -> list[Array]:
        """Random numbers of the patches of each side (f, c k^2), from PCG64."""
        channels = self.shape[0]
        return [
            np.random.Generator(np.random.PCG64([self.seed, side])).standard_normal((n, channels * side * side))
            for side, n in zip(SIDES, self.filter_counts, strict=True)
        ]

    @cached_property
    def _filters(self) -> list[AnyArray]:
        """Filters of each side (c k^2, f), float32, divided by the deviation of responses to synthetic patches."""
        return [
            _filters(self.shape[0], side, draws).astype(np.float32)
            for side, draws in zip(SIDES, self._draws, strict=True)
        ]

    def transform(self, inputs: Any) -> AnyArray:
        """Return features (n, d) of images (n, channels, height, width), single precision.

        Parameters
        ----------
        inputs : array_like of shape (n, channels, height, width), or (n, height, width) of one channel
            Whole numbers from 0 to 255, or real ones in [0, 1].
        """
        images = self._images(inputs)
        features = np.empty((len(images), self.count), dtype=np.float32)
        position = 0
        for side, filters in zip(SIDES, self._filters, strict=True):
            width = filters.shape[1] * FEATURES_PER_FILTER
            n_places = ((self.shape[1] - side) // self.stride + 1) * ((self.shape[2] - side) // self.stride + 1)
            step = max(1, _BLOCK_BYTES // (4 * max(n_places * len(filters), 1)))
            for start in range(0, len(images) if width else 0, step):
                rows = slice(start, start + step)
                features[rows, position : position + width] = self._responses(images[rows], side, filters)
            position += width
        return features

    def _images(self, inputs: Any) -> AnyArray:
        """Return images (n, channels, height, width) in units of `scale`, single precision."""
        array = np.asarray(inputs.detach().cpu() if hasattr(inputs, "detach") else inputs)
        if array.dtype.kind not in "biuf":
            raise InputError("X", f"expected images, found an array of type {array.dtype}", code="E-TYPE")
        is_whole = array.dtype.kind in "iu"
        if array.ndim == 3 and self.shape[0] == 1:
            array = array[:, None]
        if array.shape[1:] != self.shape:
            hint = ""
            if array.ndim == 4 and (array.shape[3], *array.shape[1:3]) == self.shape:
                hint = "put channels first: `X.transpose(0, 3, 1, 2)`"
            raise InputError("X", f"has images of shape {array.shape[1:]}, expected {self.shape}", hint, "E-SHAPE")
        images = array.astype(np.float32)
        if is_whole:
            images /= np.float32(255.0)
        if not np.all(np.isfinite(images)):
            raise InputError("X", "has pixels that are NaN or infinite", code="E-NUMBER")
        if np.abs(images).max(initial=0.0) > 2.0:  # standardised images reach some 3, and mean another scale
            raise InputError("X", "has real pixels beyond [0, 1]", "divide by 255, or give whole numbers", "E-NUMBER")
        images /= np.float32(self.scale)
        return images

    def _responses(self, images: AnyArray, side: int, filters: AnyArray) -> AnyArray:
        """Return the features (n, 18 f) of filters of one side."""
        windows = sliding_window_view(images, (side, side), axis=(2, 3))[:, :, :: self.stride, :: self.stride]
        n, channels, height, width = windows.shape[:4]
        patches = windows.transpose(0, 2, 3, 1, 4, 5).reshape(n * height * width, channels * side * side)
        mean = patches.mean(axis=1)
        contrast = np.einsum("ij,ij->i", patches, patches) / patches.shape[1] - mean * mean
        responses = patches @ filters  # (places, f)
        responses /= np.sqrt(np.maximum(contrast, 0.0) + np.float32(CONTRAST_NOISE))[:, None]
        responses = responses.reshape(n, height, width, -1)
        positive = np.maximum(responses - np.float32(THRESHOLD), 0.0)
        negative = np.maximum(-responses - np.float32(THRESHOLD), 0.0)
        cells = [_pooled(_pooled(values, 1), 2) for values in (positive, negative)]  # (n, 3, 3, f) each
        return np.stack(cells, axis=-1).transpose(0, 3, 4, 1, 2).reshape(n, -1)


def random_convolutions(
    shape: tuple[int, int, int] = (1, 28, 28), count: int = 900, seed: int = 0, *, stride: int = 1, scale: float = SCALE
) -> RandomConvolutions:
    """Return random convolutional features of images, which are the same at all sites and need no data.

    Parameters
    ----------
    shape : tuple of int, optional
        Channels, height and width of the images. Default: (1, 28, 28).
    count : int, optional
        Number d of features, a multiple of 18. Default: 900.
    seed : int, optional
        Of the filters. Default: 0.
    stride : int, optional
        Steps between patches; 2 takes a quarter of the time and loses some two points on images of 28 x 28. Default: 1.
    scale : float, optional
        Deviation of pixels in [0, 1]. Default: 0.3081, that of handwritten digits.

    Raises
    ------
    OptionError
        For a count that is no multiple of 18, and images smaller than the largest patch with its grid.

    Examples
    --------
    >>> features = random_convolutions(shape=(1, 14, 14), count=90)
    >>> features(np.zeros((2, 1, 14, 14), dtype=np.uint8)).shape
    (2, 90)
    """
    try:
        sizes = tuple(shape)
    except TypeError:
        sizes = ()
    if len(sizes) != 3 or not all(is_count(size) for size in sizes):
        raise OptionError("shape", f"expected (channels, height, width), found {shape!r}")
    if not is_count(stride):
        raise OptionError("stride", f"expected a positive whole number, found {stride!r}")
    if not is_count(count) or count % FEATURES_PER_FILTER:
        raise OptionError("count", f"expected a multiple of {FEATURES_PER_FILTER}, found {count!r}")
    _require_seed(seed)
    if not is_number(scale) or scale <= 0:
        raise OptionError("scale", f"expected a positive number, found {scale!r}")
    least = max(SIDES) + (GRID - 1) * stride
    if min(sizes[1:]) < least:
        text = f"is {sizes[1]} x {sizes[2]}, expected images of {least} x {least} or more"
        raise OptionError("shape", text, "flatten small images, and take random_fourier")
    made = RandomConvolutions((sizes[0], sizes[1], sizes[2]), int(count), int(seed), int(stride), float(scale))
    remember(made)
    return made


def _filters(channels: int, side: int, draws: Array) -> Array:
    """Return filters (c k^2, f) of random numbers (f, c k^2); see the module."""
    rows, columns = np.divmod(np.arange(side * side), side)
    distances = np.hypot(rows[:, None] - rows, columns[:, None] - columns)
    covariance = np.exp(-distances / side)  # K (k^2, k^2)
    if channels > 1:
        colours = COLOUR_CORRELATION + (1.0 - COLOUR_CORRELATION) * np.eye(channels)
        covariance = np.kron(colours, covariance)
    root = linalg.cholesky(covariance + PATCH_NOISE * np.eye(len(covariance)), lower=True)
    values, vectors = linalg.eigh(covariance)
    whitener = (vectors / np.sqrt(values + WHITENING_NOISE)) @ vectors.T
    patches = (draws @ root.T).reshape(len(draws), channels, side * side)
    patches = (patches - patches.mean(axis=2, keepdims=True)).reshape(draws.shape)
    filters = _normalised(_normalised(patches @ whitener) @ whitener)
    filters = _normalised(filters - filters.mean(axis=1, keepdims=True))
    deviation = np.linalg.norm(filters @ root, axis=1).mean() if len(filters) else 1.0
    return np.ascontiguousarray(filters.T / deviation)


def _normalised(rows: Array) -> Array:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _pooled(values: AnyArray, axis: int) -> AnyArray:
    """Return means over the cells of one axis: cell i has the places floor(i n / 3) to ceil((i + 1) n / 3)."""
    n = values.shape[axis]
    cells = [(i * n // GRID, -(-(i + 1) * n // GRID)) for i in range(GRID)]
    parts = [values.take(range(*cell), axis=axis).mean(axis=axis) for cell in cells]
    return np.stack(parts, axis=axis)


class RandomFourier(RandomFeatures):
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
    _require_seed(seed)
    made = RandomFourier(int(n_columns), int(count), float(length), int(seed))
    remember(made)
    return made
