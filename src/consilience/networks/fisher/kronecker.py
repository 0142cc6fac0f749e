"""Kronecker-factored information of a layer: second moments of what it reads, times those of its output gradients.

The weight W (o, i) of a linear layer and its bias are one matrix (o, d), d = i + 1, that multiplies a = (x, 1). The
gradient of log p(y | x) at it is g a^T, g the gradient at the layer's output, so that its Fisher information of one
observation is approximately

    F = A (x) B,    A = E[a a^T]  (d, d),    B = E[sum_y p(y | x) g g^T]  (o, o),

which is exact for one observation (K-FAC; Martens and Grosse 2015). In a convolution a is a patch under the kernel and
every observation has T positions: A = E[sum_t a_t a_t^T], B = E[sum_t g_t g_t^T] / T (Grosse and Martens
2016). Groups of a grouped convolution have factors of their own. A alone is what the regression of
weights on weights needs (RegMean).

Second moments of few observations betray them: their eigenvectors span the observations. A factor of size d leaves
whole where there were 2 d observations, and else as its diagonal. Where one observation alone has a number that is not
zero, A[k] / A[k, k] is that observation: of such rows and columns too only the diagonal leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from consilience.checks import AnyArray, Array
from consilience.drawing.words import first_names
from consilience.errors import InputError, Problem
from consilience.files.format import TensorSpec
from consilience.networks.network import to_numpy
from consilience.networks.symmetry.axes import Layout
from consilience.networks.symmetry.transport import Transport
from consilience.networks.symmetry.unit_rows import entry_permutation

OBSERVATIONS_PER_SIZE = 2
"""Observations behind each row of a factor that leaves whole, at least: up to once as many, its eigenvectors span the
observations themselves."""

NEGATIVE_SHARE = 1e-6
"""Eigenvalues of a factor below minus this share of their mean contradict that it is a second moment."""

_REMEDY = "compute them again"

MAX_NAMED = 3
"""Layers or parameters that a message names; further ones are counted. Chosen by hand, for the length of a line."""

SINGLE_ROUNDING = float(np.finfo(np.float32).eps)
"""Rounding unit of the files: entries rounded to it move eigenvalues by at most this times the Frobenius norm."""


@dataclass(frozen=True, eq=False)
class KroneckerFactors:
    """The Kronecker factors of the information of one layer, means over observations."""

    # (groups, d, d), A: second moments of what the layer reads, by group of a grouped convolution (1 for other
    # layers). The last row and column belong to the 1 that multiplies the bias, where there is one.
    inputs: Array
    outputs: Array  # (groups, o, o), B: second moments of the gradients at what the layer answers
    has_bias: bool  # whether A ends with the row and column of a bias

    def __post_init__(self) -> None:
        for name in ("inputs", "outputs"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Number of groups, o and d."""
        return (len(self.inputs), self.outputs.shape[-1], self.inputs.shape[-1])

    @property
    def diagonal(self) -> Array:
        """The diagonal of A (x) B, (groups, o, d): B_oo A_dd."""
        of_outputs = np.diagonal(self.outputs, axis1=1, axis2=2)  # (groups, o)
        of_inputs = np.diagonal(self.inputs, axis1=1, axis2=2)  # (groups, d)
        return of_outputs[:, :, None] * of_inputs[:, None, :]

    def problems(self, name: str, layer: str) -> list[Problem]:
        """Return what contradicts that these are second moments, a line each."""
        return [Problem(name, f"{what} of {layer or 'the network'} {fault}", _REMEDY) for what, fault in self._faults]

    @cached_property
    def _faults(self) -> list[tuple[str, str]]:
        """What contradicts that these are second moments: of which, and why."""
        faults = []
        for what, values in (("inputs", self.inputs), ("output gradients", self.outputs)):
            of = f"second moments of the {what}"
            if values.ndim != 3 or values.shape[1] != values.shape[2] or 0 in values.shape:
                faults.append((of, f"have shape {values.shape}, expected (groups, size, size)"))
            elif not np.isfinite(values).all():
                faults.append((of, "have NaN or infinite values"))
            elif not np.array_equal(values, values.transpose(0, 2, 1)):
                faults.append((of, "are not symmetric"))
            else:
                smallest = smallest_eigenvalue_below_rounding(values)
                if smallest is not None:
                    faults.append((of, f"have a negative eigenvalue ({smallest:.3g}), which no second moment has"))
        if not faults and len(self.inputs) != len(self.outputs):
            text = f"are of {len(self.inputs)} groups of inputs, and {len(self.outputs)} of outputs"
            faults.append(("factors", text))
        return faults

    def fit(self, layer: str, arrays: Mapping[str, AnyArray]) -> bool:
        """Return whether these are the sizes of a layer whose weight and bias are in a network's arrays."""
        weight, bias = parameter_names(layer)
        if weight not in arrays or (self.has_bias and bias not in arrays):
            return False
        shape = tuple(arrays[weight].shape)
        groups, o, d = self.sizes
        n_inputs = int(np.prod(shape[1:]))
        return len(shape) > 1 and shape[0] == groups * o and d == n_inputs + self.has_bias


def smallest_eigenvalue_below_rounding(matrices: Array) -> float | None:
    """Return the smallest eigenvalue of matrices (groups, k, k) that are no second moments; None if they are."""
    size = matrices.shape[1]
    mean = np.abs(np.trace(matrices, axis1=1, axis2=2)) / size
    rounding = np.maximum(NEGATIVE_SHARE * mean, SINGLE_ROUNDING * np.linalg.norm(matrices, axis=(1, 2)))
    try:
        # A factorisation of the shifted matrix exists where no eigenvalue is below: a tenth of the time of eigenvalues.
        np.linalg.cholesky(matrices + np.maximum(rounding, np.finfo(float).tiny)[:, None, None] * np.eye(size))
    except np.linalg.LinAlgError:
        return float(np.linalg.eigvalsh(matrices).min())
    return None


def parameter_names(layer: str) -> tuple[str, str]:
    """Return the names of the weight and the bias of the layer at a path; "" is the network itself."""
    prefix = f"{layer}." if layer else ""
    return f"{prefix}weight", f"{prefix}bias"


def informed_names(layers: Mapping[str, KroneckerFactors]) -> list[str]:
    """Return the names of all parameters that have Kronecker factors."""
    named = (parameter_names(layer)[: 1 + factors.has_bias] for layer, factors in layers.items())
    return list(chain.from_iterable(named))


def diagonal_by_parameter(layers: Mapping[str, KroneckerFactors]) -> dict[str, Array]:
    """Return the diagonal of A (x) B by parameter: biases (groups * o,), weights (groups * o, i)."""
    diagonals: dict[str, Array] = {}
    for layer, factors in layers.items():
        weight, bias = parameter_names(layer)
        diagonal = factors.diagonal  # (groups, o, d)
        if factors.has_bias:
            diagonals[bias] = diagonal[:, :, -1].ravel()
            diagonal = diagonal[:, :, :-1]
        diagonals[weight] = diagonal.reshape(-1, diagonal.shape[2])
    return diagonals


def matrix_of_layer(layer: str, factors: KroneckerFactors, arrays: Mapping[str, AnyArray]) -> Array:
    """Return weight and bias of a layer as one matrix for each group (groups, o, d), float64."""
    groups, o, _ = factors.sizes
    weight, bias = parameter_names(layer)
    matrix = np.asarray(to_numpy(arrays[weight]), dtype=np.float64).reshape(groups, o, -1)
    if not factors.has_bias:
        return matrix
    of_bias = np.asarray(to_numpy(arrays[bias]), dtype=np.float64).reshape(groups, o, 1)
    return np.concatenate([matrix, of_bias], axis=2)


def arrays_of_layer(
    layer: str, factors: KroneckerFactors, matrix: Array, shapes: Mapping[str, Any]
) -> dict[str, Array]:
    """Return the weight and bias, by name, of the matrix (groups, o, d) of a layer."""
    weight, bias = parameter_names(layer)
    if not factors.has_bias:
        return {weight: matrix.reshape(shapes[weight])}
    return {weight: matrix[:, :, :-1].reshape(shapes[weight]), bias: matrix[:, :, -1].reshape(shapes[bias])}


def moved_factors(
    layers: Mapping[str, KroneckerFactors],
    layouts: Mapping[str, Layout],
    transports: Mapping[str, Transport],
    units: Mapping[str, int],
) -> dict[str, KroneckerFactors]:
    """Return the factors of the network whose units were renumbered, or changed their sign.

    The permutation of a weight's entries is that of its rows and its columns: A moves as the columns, B as the rows.
    Groups of channels that are mixed, which no renumbering of a grouped convolution does, are an `InputError`.
    """
    moved = {}
    for layer, factors in layers.items():
        groups, o, d = factors.sizes
        n_inputs = d - factors.has_bias
        weight, bias = parameter_names(layer)
        entries, signs = entry_permutation(layouts[weight], transports, units)
        row_signs = np.ones((groups, o))
        if factors.has_bias:
            _, bias_signs = entry_permutation(layouts[bias], transports, units)
            row_signs = row_signs if bias_signs is None else np.asarray(bias_signs).reshape(groups, o)
        if entries is None:
            moved[layer] = factors
            continue
        old = np.asarray(entries).reshape(groups, o, n_inputs)  # flat index of the entry that moves to each place
        sign = np.ones((groups, o, n_inputs)) if signs is None else np.asarray(signs).reshape(groups, o, n_inputs)
        if not factors.has_bias:  # signs of rows and columns are known up to one common sign, which A and B do not show
            row_signs = sign[:, :, 0]
        group = old[:, 0, 0] // (o * n_inputs)  # (groups,)
        rows = old[:, :, 0] // n_inputs % o  # (groups, o)
        columns = old[:, 0, :] % n_inputs  # (groups, n_inputs)
        column_signs = sign[:, 0, :] * row_signs[:, :1]
        expected = (group[:, None, None] * o + rows[:, :, None]) * n_inputs + columns[:, None, :]
        if not np.array_equal(expected, old):
            text = "its groups of channels are mixed, and its factors are by group"
            raise InputError(layer, text, "leave the layer out")
        if factors.has_bias:
            columns = np.concatenate([columns, np.full((groups, 1), n_inputs)], axis=1)
            column_signs = np.concatenate([column_signs, np.ones((groups, 1))], axis=1)
        inputs = _permuted(factors.inputs[group], columns, column_signs)
        outputs = _permuted(factors.outputs[group], rows, row_signs)
        moved[layer] = KroneckerFactors(inputs, outputs, factors.has_bias)
    return moved


def _permuted(matrices: Array, order: Any, signs: Array) -> Array:
    """Return matrices (groups, k, k) whose rows and columns are taken in an order (groups, k), times signs."""
    moved = np.take_along_axis(np.take_along_axis(matrices, order[:, :, None], axis=1), order[:, None, :], axis=2)
    return moved * signs[:, :, None] * signs[:, None, :]


def reduced(matrices: Array, n_observations: float) -> Array:
    """Return second moments (groups, k, k), or their diagonals where there are too few observations for more."""
    if n_observations >= OBSERVATIONS_PER_SIZE * matrices.shape[-1]:
        return matrices
    return matrices * np.eye(matrices.shape[-1])


def without_rare_rows(matrices: Array, is_rare: AnyArray) -> Array:
    """Return second moments (groups, k, k) of whose rare rows and columns (groups, k) only the diagonal is left.

    They are still second moments: those of numbers without correlation.
    """
    is_kept = ~is_rare[:, :, None] & ~is_rare[:, None, :]
    return np.where(is_kept | np.eye(matrices.shape[-1], dtype=bool), matrices, 0.0)


def few_observations_text(n_observations: float, layers: Sequence[str]) -> str:
    """Return why only diagonals of some layers' factors leave, in a sentence."""
    shown = first_names(layers, MAX_NAMED)
    return (
        f"{n_observations:g} observations are fewer than {OBSERVATIONS_PER_SIZE} for each row of a factor of {shown}, "
        "so that only its diagonal leaves"
    )


def is_diagonal(matrices: Array) -> bool:
    """Return whether matrices (groups, k, k) have nothing off their diagonals."""
    return not np.any(matrices * (1.0 - np.eye(matrices.shape[-1])))


def packed(matrices: Array) -> Array:
    """Return the lower triangles (groups, k (k + 1) / 2) of symmetric matrices, or their diagonals (groups, k)."""
    if is_diagonal(matrices):
        return np.diagonal(matrices, axis1=1, axis2=2)
    rows, columns = np.tril_indices(matrices.shape[-1])
    return matrices[:, rows, columns]


def unpacked(values: Array, size: int) -> Array | None:
    """Return the symmetric matrices (groups, size, size) of lower triangles or diagonals; None for other shapes."""
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] not in (size, size * (size + 1) // 2):
        return None
    matrices = np.zeros((len(values), size, size))
    if values.shape[1] == size:
        matrices[:, np.arange(size), np.arange(size)] = values
        return matrices
    rows, columns = np.tril_indices(size)
    matrices[:, rows, columns] = values
    matrices[:, columns, rows] = values
    return matrices


def as_stored(factors: KroneckerFactors) -> KroneckerFactors:
    """Return factors in the precision of their file, so that a fusion of objects is that of their files."""
    inputs, outputs = (np.asarray(v, dtype=np.float32).astype(np.float64) for v in (factors.inputs, factors.outputs))
    return KroneckerFactors(inputs, outputs, factors.has_bias)


def factor_arrays(layers: Mapping[str, KroneckerFactors]) -> dict[str, Array]:
    """Return the tensors of a file, float32: ``layers/PATH/inputs`` and ``layers/PATH/outputs``."""
    arrays: dict[str, Array] = {}
    for layer, factors in layers.items():
        arrays[f"layers/{layer}/inputs"] = np.asarray(packed(factors.inputs), dtype=np.float32)
        arrays[f"layers/{layer}/outputs"] = np.asarray(packed(factors.outputs), dtype=np.float32)
    return arrays


def factor_tensors(layers: Iterable[str]) -> dict[str, TensorSpec]:
    """Return what the tensors of factors are called in a file."""
    return {f"layers/{layer}/{what}": TensorSpec((None, None)) for layer in layers for what in ("inputs", "outputs")}


def factors_of_arrays(
    sizes: Mapping[str, list[int]], arrays: Mapping[str, AnyArray], name: str
) -> dict[str, KroneckerFactors]:
    """Return the factors in the tensors of a file, of sizes (groups, o, d, and 1 where d counts a bias) by path.

    One error names all layers whose tensors do not have these sizes.
    """
    layers: dict[str, KroneckerFactors] = {}
    problems = []
    for layer, stated in sizes.items():
        values = [np.asarray(arrays[f"layers/{layer}/{what}"]) for what in ("inputs", "outputs")]
        matrices = None
        if len(stated) == 4 and min(stated[:3]) > 0 and stated[3] in (0, 1):
            matrices = (unpacked(values[0], stated[2]), unpacked(values[1], stated[1]))
        if matrices is None or matrices[0] is None or matrices[1] is None:
            shapes = " and ".join(str(list(one.shape)) for one in values)
            text = f"factors of {layer} have shapes {shapes}, which are not those of sizes {stated}"
            problems.append(Problem(name, text, _REMEDY))
            continue
        layers[layer] = KroneckerFactors(matrices[0], matrices[1], bool(stated[3]))
    if problems:
        raise InputError(problems)
    return layers


def stated_sizes(layers: Mapping[str, KroneckerFactors]) -> dict[str, list[int]]:
    """Return what the header of a file says of its factors: by path, groups, o, d, and 1 where d counts a bias."""
    return {layer: [*factors.sizes, int(factors.has_bias)] for layer, factors in layers.items()}
