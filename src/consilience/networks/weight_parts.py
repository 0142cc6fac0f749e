"""Weights that layers compute from parts of a state dict: weight and spectral normalisation, pruning.

    weight normalisation      W = g v / |v|             |v| over all axes along which g has one entry
    spectral normalisation    W = W' / (u^T M(W') v)    M: the matrix of the axis `dim` by all others; u, v unit vectors
    pruning                   W = W' mask

Parts cannot be averaged one by one: the mean of (g, v) stands for another weight than the mean of W, and u and v are
defined up to a common sign. `WeightParts.combine` computes W from parts, `WeightParts.split` finds parts that stand for
W. Parts are recognised by the names that torch gives them (`find_parts`), in both of its spellings: parametrisations
(``parametrizations.weight.original0``) and hooks (``weight_g``).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import eq
from typing import Literal, Protocol

import numpy as np
from scipy.linalg import eigh

from consilience.checks import AnyArray, Array
from consilience.errors import InputError, Problem

PARAMETRISATIONS = "parametrizations."
"""What torch puts before the names of the parts of a parametrised array."""
_ROUNDING = 1e-6
"""Relative distance of two weights that are taken for the same: some units in the last place of float32."""
REMOVAL = "remove it first (torch.nn.utils.parametrize.remove_parametrizations)"


Formula = Literal["weight_norm", "spectral_norm", "mask"]
"""What combines the parts of a weight."""


@dataclass(frozen=True)
class SplitWeight:
    """Parts that stand for a weight."""

    parts: Mapping[str, AnyArray]  # by name in the state dict
    note: str = ""  # what should be known of them; empty where nothing should
    is_exact: bool = True  # whether they stand for the very weight that was split, and not for the nearest one


class PartsOfWeight(Protocol):
    """How one weight of a layer is computed from parts of a state dict."""

    @property
    def name(self) -> str:
        """Name of the weight."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its parts."""

    def combine(self, arrays: Mapping[str, AnyArray]) -> AnyArray:
        """Return the weight that the parts of a state dict stand for."""

    def split(self, weight: AnyArray, likes: Sequence[Mapping[str, AnyArray]]) -> SplitWeight | None:
        """Return parts that stand for a weight, in the form of the first of `likes`; None where there are none.

        The parts of one of these networks are taken where its weight is the same.
        """


@dataclass(frozen=True)
class WeightParts:
    """Parts of a weight that a formula combines."""

    kind: Formula  # the formula
    name: str  # name of the weight
    names: tuple[str, ...]  # names of the parts: (g, v), (W', u, v) or (W', mask)
    # Axis of the rows of M, for spectral normalisation. Default: the axis that u and v fit.
    dim: int | None = None

    @property
    def main(self) -> str:
        """Name of the part of the weight's shape."""
        return self.names[1 if self.kind == "weight_norm" else 0]

    def combine(self, arrays: Mapping[str, AnyArray]) -> AnyArray:
        """Return the weight, computed in float64, in the precision of its largest part."""
        values = [_numbers(arrays[name]) for name in self.names]
        like = arrays[self.main]
        with np.errstate(all="ignore"):  # a direction of zeros gives NaN, as in torch
            if self.kind == "weight_norm":
                length, direction = values
                return cast_as(direction * (length / _slice_norms(direction, length.shape)), like)
            if self.kind == "mask":
                return cast_as(values[0] * values[1], like)
            original, left, right = values
            return cast_as(original / (left.conj() @ matrix_of(original, self._axis(*values)) @ right), like)

    def split(self, weight: AnyArray, likes: Sequence[Mapping[str, AnyArray]]) -> SplitWeight:
        """Return parts that stand for a weight; see `PartsOfWeight.split`."""
        if (own := parts_with_weight(self, weight, likes)) is not None:
            return own
        values, form = _numbers(weight), likes[0]
        parts_of_likes = [[_numbers(like[name]) for name in self.names] for like in likes]
        split = {"weight_norm": self._lengths, "mask": self._mask, "spectral_norm": self._spectrum}[self.kind]
        parts, note = split(values, parts_of_likes)
        stored = {name: cast_as(part, form[name]) for name, part in zip(self.names, parts, strict=True)}
        is_exact = not note or self.kind != "spectral_norm"
        return SplitWeight(stored, f"{self.name}: {note}" if note else "", is_exact)

    def _lengths(self, weight: Array, likes: Sequence[Sequence[Array]]) -> tuple[list[Array], str]:
        """Return the norms of the slices of a weight, and the weight itself as their directions."""
        norms = _slice_norms(weight, tuple(1 if n == 1 else weight.shape[a] for a, n in enumerate(likes[0][0].shape)))
        # A slice of zeros has any direction.
        return [norms, np.where(norms == 0.0, 1.0, weight)], ""

    def _mask(self, weight: Array, likes: Sequence[Sequence[Array]]) -> tuple[list[Array], str]:
        """Return a weight with a mask of `likes` that it keeps to, else with the mask of its own zeros."""
        for _, mask in likes:
            if mask.shape == weight.shape and not np.any(weight[mask == 0.0]):
                return [weight, mask], ""
        own = (weight != 0.0).astype(np.float64)
        shares = ", ".join(f"{mask.real.mean():.3g}" for _, mask in likes)
        note = f"no mask of the networks fits: {own.mean():.3g} of the entries are kept, of theirs {shares}"
        return [weight, own], note

    def _spectrum(self, weight: Array, likes: Sequence[Sequence[Array]]) -> tuple[list[Array], str]:
        """Return a weight with its leading singular vectors u, v, so that the layer's largest singular value s is 1.

        Power iterations that have not converged leave a layer with s somewhat above 1. A fused weight with s between 1
        and the largest of `likes` is kept as it is, by a u that is turned away from the leading one until u^T M v = 1.
        """
        matrix = matrix_of(weight, self._axis(*likes[0]))
        size, left, right = leading_singular_vectors(matrix)
        if not size > 0.0:
            raise InputError(self.name, "the fused weight is zero, which spectral_norm cannot scale to 1", REMOVAL)
        if abs(size - 1.0) <= _ROUNDING:
            return [weight, left, right], ""
        if 1.0 < size <= max(self._largest_value(*like) for like in likes) * (1.0 + _ROUNDING):
            if len(left) > 1:
                left = _turned(left, 1.0 / size)
            elif len(right) > 1:
                right = _turned(right, 1.0 / size)
            return [weight, left, right], ""
        note = f"spectral_norm scales the fused weight by {1.0 / size:.4g}, to a largest singular value of 1"
        return [weight, left, right], note

    def _largest_value(self, original: Array, left: Array, right: Array) -> float:
        """Return the largest singular value of a layer with spectral normalisation."""
        matrix = matrix_of(original, self._axis(original, left, right))
        return leading_singular_vectors(matrix)[0] / float(abs(left.conj() @ matrix @ right))

    def _axis(self, original: Array, left: Array, right: Array) -> int:
        """Return the axis of the rows of M; where u and v fit several, the one with the largest u^T M v."""
        if self.dim is not None:
            return self.dim
        sizes = {
            axis: float(abs(left.conj() @ matrix_of(original, axis) @ right))
            for axis, length in enumerate(original.shape)
            if length == len(left)
        }
        return max(sizes, key=lambda axis: sizes[axis])


def parts_with_weight(
    parts: PartsOfWeight, weight: AnyArray, likes: Sequence[Mapping[str, AnyArray]]
) -> SplitWeight | None:
    """Return the parts of the first network that have a weight, but for rounding; None where none has it."""
    for like in likes:
        if is_same_weight(parts.combine(like), weight):
            return SplitWeight({name: like[name] for name in parts.names})
    return None


def find_parts(shapes: Mapping[str, tuple[int, ...]]) -> list[WeightParts]:
    """Return the parts of weights among the arrays of a state dict, by their names and shapes.

    Examples
    --------
    >>> [parts.name for parts in find_parts({"0.weight_g": (3, 1), "0.weight_v": (3, 2), "0.bias": (3,)})]
    ['0.weight']
    """
    return [parts for name in shapes if (parts := _parts_with_first(name, shapes)) is not None]


def with_weights(arrays: Mapping[str, AnyArray], parts: Sequence[PartsOfWeight]) -> dict[str, AnyArray]:
    """Return a state dict with weights instead of parts, each in the place of its first part."""
    plain = dict(arrays)
    for of_weight in parts:
        weight, first = of_weight.combine(plain), of_weight.names[0]
        plain = {
            of_weight.name if name == first else name: weight if name == first else values
            for name, values in plain.items()
            if name == first or name not in of_weight.names
        }
    return plain


def plain_arrays(
    arrays: Mapping[str, AnyArray], label: str, known: Sequence[PartsOfWeight] = (), own_names: Container[str] = ()
) -> tuple[dict[str, AnyArray], tuple[PartsOfWeight, ...]]:
    """Return a state dict with weights instead of their parts, and the parts, those of parts last.

    `label` is the network's name in messages. `known` are parts of a module of the architecture; without it all are
    recognised by their names (`find_parts`). `own_names` are the module's arrays, no parts unless known as such. Raises
    InputError, naming parts of which the names do not say how they are combined.
    """
    plain, found = with_known_weights(arrays, known, own_names)
    if unknown := unknown_parts(plain):
        text = "is parametrised (as by torch's orthogonal), and its arrays do not say how it is computed"
        remedy = f"hand in the module (as the model, or as `module=`), or {REMOVAL}"
        raise InputError([Problem(label, f"{name} {text}", remedy, "E-NEEDED") for name in unknown])
    return plain, found


def with_known_weights(
    arrays: Mapping[str, AnyArray], known: Sequence[PartsOfWeight] = (), own_names: Container[str] = ()
) -> tuple[dict[str, AnyArray], tuple[PartsOfWeight, ...]]:
    """Return what `plain_arrays` does, where parts that names do not explain stay."""
    found = [parts for parts in known if all(name in arrays for name in parts.names)]
    plain = with_weights(arrays, found)
    while pending := find_parts({n: tuple(values.shape) for n, values in plain.items() if n not in own_names}):
        plain = with_weights(plain, pending)
        found += pending
    return plain, tuple(found)


def plain_shapes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a state dict with weights instead of their parts.

    Of parts that no formula here combines, ``original`` has the shape of the weight.
    """
    plain = dict(shapes)
    while pending := find_parts(plain):
        for parts in pending:
            plain[parts.name] = plain[parts.main]
            plain = {name: shape for name, shape in plain.items() if name not in parts.names}
    unknown = unknown_parts(plain)
    plain |= {
        f"{path}{rest.removesuffix('.original')}": shape
        for name, shape in plain.items()
        for path, _, rest in [name.rpartition(PARAMETRISATIONS)]
        if unknown and _is_part(name) and rest.endswith(".original")
    }
    return {name: shape for name, shape in plain.items() if not _is_part(name)}


def unknown_parts(names: Iterable[str]) -> list[str]:
    """Return the names of weights of which a state dict has parts that no formula here combines, each once."""
    unknown = (name.rpartition(PARAMETRISATIONS) for name in sorted(names) if _is_part(name))
    return list(dict.fromkeys(f"{path}{rest.partition('.')[0]}" for path, _, rest in unknown))


def is_same_weight(weight: AnyArray, other: AnyArray) -> bool:
    """Return whether two weights are the same but for rounding, in the precision of the first."""
    values, others = _numbers(weight), _numbers(other)
    if values.shape != others.shape:
        return False
    itemsize = weight.element_size() if hasattr(weight, "element_size") else weight.dtype.itemsize
    rounding = {2: 2.0**-7, 4: _ROUNDING}.get(int(itemsize), 1e-12)
    return bool(np.abs(values - others).max(initial=0.0) <= rounding * np.abs(others).max(initial=0.0))


def leading_singular_vectors(matrix: Array) -> tuple[float, Array, Array]:
    """Return the largest singular value of a matrix (h, w), and its left (h,) and right (w,) singular vector."""
    is_tall = matrix.shape[0] > matrix.shape[1]
    tall = matrix if is_tall else matrix.conj().T  # (n, m), n >= m
    last = tall.shape[1] - 1
    vector = eigh(tall.conj().T @ tall, subset_by_index=[last, last])[1][:, 0]  # (m,)
    image = tall @ vector
    size = float(np.linalg.norm(image))
    other = image / size if size > 0.0 else image
    return (size, other, vector) if is_tall else (size, vector, other)


def _turned(vector: Array, cosine: float) -> Array:
    """Return a unit vector (n,) with this cosine to another, n >= 2."""
    other = np.zeros_like(vector)
    other[np.argmin(np.abs(vector))] = 1.0
    other -= (vector.conj() @ other) * vector
    turned: Array = cosine * vector + np.sqrt(max(0.0, 1.0 - cosine**2)) * other / np.linalg.norm(other)
    return turned


def _slice_norms(values: Array, shape: tuple[int, ...]) -> Array:
    """Return the norms of an array over all axes along which `shape` has one entry; all axes for the shape ()."""
    axes = tuple(axis for axis in range(values.ndim) if not shape or shape[axis] == 1)
    return np.sqrt(np.sum(np.abs(values) ** 2, axis=axes, keepdims=True)).reshape(shape)


def matrix_of(values: Array, axis: int) -> Array:
    """Return an array as the matrix (length of the axis, all others)."""
    return np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)


def _numbers(values: AnyArray) -> Array:
    """Return an array as NumPy float64, or complex128, on the CPU."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = (values if values.is_complex() else values.double()).numpy()  # NumPy has no bfloat16
    return np.asarray(values, dtype=np.complex128 if values.dtype.kind == "c" else np.float64)


def cast_as(values: AnyArray, like: AnyArray) -> AnyArray:
    """Return an array in the library, precision and place of another."""
    numbers = _numbers(values)
    if hasattr(like, "detach"):
        import torch

        return torch.from_numpy(np.array(numbers)).to(dtype=like.dtype, device=like.device)
    return numbers.astype(like.dtype)


def _is_part(name: str) -> bool:
    return name.startswith(PARAMETRISATIONS) or f".{PARAMETRISATIONS}" in name


def _parts_with_first(first: str, shapes: Mapping[str, tuple[int, ...]]) -> WeightParts | None:
    """Return the parts of a weight of which an array of this name is the first; None where it is no part."""
    for kind, ends, is_hooked, fits in _FORMS:
        prefix = first.removesuffix(ends[0])
        parts = tuple(f"{prefix}{end}" for end in ends)
        if not first.endswith(ends[0]) or not shapes.keys() >= set(parts):
            continue
        if is_hooked:
            name = None if prefix in shapes else prefix
        else:  # where the parametrisation is alone
            has_others = any(other.startswith(prefix) and other not in parts for other in shapes)
            name = None if has_others else _parametrised_name(prefix)
        if name is not None and fits(*(shapes[part] for part in parts)):
            return WeightParts(kind, name, parts)
    return None


def _parametrised_name(prefix: str) -> str | None:
    """Return the name of the weight whose parts have this prefix, such as ``conv.parametrizations.weight.``."""
    path, found, rest = prefix.rpartition(PARAMETRISATIONS)
    is_weight = found and rest.count(".") == 1 and (not path or path.endswith("."))
    return f"{path}{rest.removesuffix('.')}" if is_weight else None


def _are_lengths(lengths: tuple[int, ...], directions: tuple[int, ...]) -> bool:
    """Return whether an array of one shape can have the norms of the slices of another along one axis, or of all."""
    axes = [axis for axis, size in enumerate(lengths) if size != 1]
    is_along_axis = len(lengths) == len(directions) and len(axes) <= 1
    return lengths == () or (is_along_axis and all(lengths[a] == directions[a] for a in axes))


def _are_singular_vectors(original: tuple[int, ...], left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    """Return whether two arrays can be singular vectors of another, by their shapes."""
    is_matrix = len(original) > 1 and len(left) == 1 and len(right) == 1
    return is_matrix and left[0] in original and left[0] * right[0] == int(np.prod(original))


_FORMS: tuple[tuple[Formula, tuple[str, ...], bool, Callable[..., bool]], ...] = (
    ("weight_norm", ("_g", "_v"), True, lambda g, v: len(v) > 1 and _are_lengths(g, v)),
    ("weight_norm", ("original0", "original1"), False, _are_lengths),
    ("mask", ("_orig", "_mask"), True, eq),
    ("spectral_norm", ("_orig", "_u", "_v"), True, _are_singular_vectors),
    ("spectral_norm", ("original", "0._u", "0._v"), False, _are_singular_vectors),
)
"""Formulas with the ends of the names of the parts, whether hooks combine them, and what their shapes must be."""
