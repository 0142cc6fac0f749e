"""Factors of LoRA adapters: found in their files, and stacked so that their products add up exactly.

A merge of J adapters of one base is to change each module by D = sum_k w_k s_k B_k A_k. With c_k = w_k s_k,

    A = [A_1 p_1 sign(c_1); ...; A_J p_J sign(c_J)],    B = [B_1 |c_1| / p_1, ..., B_J |c_J| / p_J]    =>    B A = D,

whose rank is sum_k r_k. p_k is the power of two nearest to sqrt|c_k|: it keeps both factors of one size, and multiplies
A without rounding, so that only B is rounded, and nothing where c_k is a power of two itself. Averages of A and of B
apart are another matrix: their product has the cross terms B_j A_k.

Sources: Hu et al. (2022), "LoRA", ICLR, for the factors; peft's ``add_weighted_adapter`` ("cat") stacks the same way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log2, prod, sqrt

import numpy as np

from consilience.checkpoints.folder import Checkpoint
from consilience.checkpoints.lora.config import module_rank, module_scale, trains_biases
from consilience.checkpoints.lora.files import LoraFile
from consilience.checkpoints.lora.names import Convention
from consilience.checkpoints.numbers import FLOAT_TYPES, Floats
from consilience.checks import Json, is_count
from consilience.errors import OptionError, Problem

PREFIX = "base_model.model."
"""What peft puts before the names of the base's modules."""

A_NAMES, B_NAMES = ("lora_A.weight", "lora_embedding_A"), ("lora_B.weight", "lora_embedding_B")
BIAS, MIDDLE = "lora_B.bias", "lora_mid.weight"
_BASE_WEIGHT, _BASE_BIAS = ".base_layer.weight", ".base_layer.bias"
"""Ends of the names of tensors of the base that peft saves with factors: a whole embedding, and trained biases."""

_FACTOR = re.compile(rf"(?P<module>.+)\.(?P<part>{'|'.join(map(re.escape, (*A_NAMES, *B_NAMES, BIAS)))})")


@dataclass(frozen=True, eq=False)
class LowRankAdapter:
    """An adapter of which only the header and the configuration have been read."""

    checkpoint: Checkpoint  # the file, with the adapter's configuration
    # Names of the tensors of every module, by module (without the prefix of peft) and part.
    factors: Mapping[str, Mapping[str, str]]
    others: tuple[str, ...]  # tensors that are no factors: modules that were trained as a whole, biases, the base's own
    unknown: tuple[str, ...]  # parts of adapters that stacking does not know, such as magnitudes
    # Modules by the name that an adapter of another convention has for them: their names in this one.
    own_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name in messages."""
        return self.checkpoint.name

    @property
    def config(self) -> Mapping[str, Json]:
        """Its configuration."""
        return self.checkpoint.config

    @property
    def convention(self) -> Convention:
        """Whose names it has."""
        return self.checkpoint.convention if isinstance(self.checkpoint, LoraFile) else "peft"

    @property
    def has_factor_biases(self) -> bool:
        """Whether its factors B have biases (lora_bias): s b is added to what a module answers."""
        return any(BIAS in parts for parts in self.factors.values())

    def is_of_base(self, tensor: str) -> bool:
        """Return whether a tensor is the base's own, which all adapters share, and was not trained."""
        return tensor.endswith(_BASE_WEIGHT) or (tensor.endswith(_BASE_BIAS) and not trains_biases(self.config))

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return self.checkpoint.tensors[tensor][1].shape

    def parts(self, module: str) -> tuple[str, str]:
        """Return the names of the tensors A and B of a module."""
        named = self.factors[module]
        kind = A_NAMES[0] in named
        return named[A_NAMES[not kind]], named[B_NAMES[not kind]]

    def shapes(self, module: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of the factors A (r, ...) and B (outputs, r, ...) of a module."""
        a_shape, b_shape = (self.shape(name) for name in self.parts(module))
        middle = self.factors[module].get(MIDDLE)
        return (a_shape if middle is None else (*a_shape[:2], *self.shape(middle)[2:])), b_shape

    def rank(self, module: str) -> int:
        """Return the rank of a module's factors."""
        return self.shapes(module)[0][0]

    def sizes(self, module: str) -> tuple[int, int]:
        """Return the outputs and inputs of a module, of a convolution those of all places of its kernel."""
        a_shape, b_shape = self.shapes(module)
        return b_shape[0], prod(a_shape[1:])

    def scale(self, module: str) -> float:
        """Return what the product of a module's factors is multiplied by."""
        own, rank = self.own_names.get(module, module), self.rank(module)
        if isinstance(self.checkpoint, LoraFile):
            return self.checkpoint.scale(own, rank)
        return module_scale(self.config, own, rank)

    def read(self, module: str, read: Callable[[str], Floats]) -> tuple[Floats, Floats]:
        """Return the factors A (r, ...) and B (outputs, r, ...) of a module, a middle multiplied into A."""
        a, b = (read(name) for name in self.parts(module))
        if (middle := self.factors[module].get(MIDDLE)) is not None:
            a = with_middle(a, read(middle))
        return a, b


def with_middle(a: Floats, middle: Floats) -> Floats:
    """Return A (r, inputs, ...) of a convolution in three parts: A (r, inputs, 1, 1) and the middle (r, r, ...)."""
    return np.einsum("ij...,jk->ik...", middle, a.reshape(len(a), -1))


def base_name(tensor: str) -> str:
    """Return the name in the base of a tensor that was trained as a whole."""
    return tensor.removeprefix(PREFIX).replace(".base_layer.", ".").replace(".modules_to_save.default.", ".")


def read_factors(checkpoint: Checkpoint) -> LowRankAdapter:
    """Return which tensors of an adapter are factors of which modules, from its header."""
    if isinstance(checkpoint, LoraFile):
        return LowRankAdapter(checkpoint, checkpoint.modules, (), checkpoint.unknown)
    factors: dict[str, dict[str, str]] = {}
    others, unknown = [], []
    for name in checkpoint.tensors:
        if match := _FACTOR.fullmatch(name):
            factors.setdefault(match["module"].removeprefix(PREFIX), {})[match["part"]] = name
        elif "lora_" in name or "trainable_tokens" in name:
            unknown.append(name)
        else:
            others.append(name)
    return LowRankAdapter(checkpoint, factors, tuple(others), tuple(unknown))


def module_problems(adapter: LowRankAdapter) -> list[Problem]:
    """Return which modules have factors that do not fit together or their configuration, a line each."""
    found = (_module_problem(adapter, module, parts) for module, parts in adapter.factors.items())
    return [problem for problem in found if problem is not None]


def _module_problem(adapter: LowRankAdapter, module: str, parts: Mapping[str, str]) -> Problem | None:
    """Return what is wrong with the factors of one module; None where nothing is."""
    again = "save the adapter again"
    if not any({a, b} <= set(parts) for a, b in ((A_NAMES[0], B_NAMES[0]), (A_NAMES[1], B_NAMES[1]))):
        text = f"{module} has {', '.join(sorted(parts))} alone, expected both factors"
        return Problem(adapter.name, text, again)
    a_shape, b_shape = (adapter.shape(name) for name in adapter.parts(module))
    is_file = adapter.convention != "peft"  # which states no rank
    rank = next(iter(b_shape[1:]), 0) if is_file else module_rank(adapter.config, module)
    has_axes = len(a_shape) >= 2 and len(b_shape) >= 2
    if not has_axes or rank < 1 or a_shape[0] != rank or b_shape[1] != rank or prod(b_shape[2:]) != 1:
        expected = "one rank" if is_file else f"rank {rank} as its configuration says"
        text = f"{module} has factors {list(a_shape)} and {list(b_shape)}, expected {expected}"
        return Problem(adapter.name, text, again)
    if MIDDLE in parts and (adapter.shape(parts[MIDDLE])[:2] != (rank, rank) or prod(a_shape[2:]) != 1):
        text = f"{module} has a middle {list(adapter.shape(parts[MIDDLE]))}, expected [{rank}, {rank}, ...]"
        return Problem(adapter.name, text, again, "E-SHAPE")
    if BIAS in parts and adapter.shape(parts[BIAS]) != b_shape[:1]:
        text = f"{module} has a bias {list(adapter.shape(parts[BIAS]))} of factor B, expected {list(b_shape[:1])}"
        return Problem(adapter.name, text, again, "E-SHAPE")
    stored = [adapter.checkpoint.tensors[name][1].dtype for name in parts.values()]
    if odd := [dtype for dtype in stored if dtype not in FLOAT_TYPES]:
        text = f"{module}: type {odd[0]} cannot be merged"
        return Problem(adapter.name, text, f"convert to one of {', '.join(FLOAT_TYPES)}")
    return None


def power_of_two(coefficient: float) -> float:
    """Return p, the power of two nearest to the square root of |c|.

    Examples
    --------
    >>> power_of_two(0.25), power_of_two(-8.0), power_of_two(1.0)
    (0.5, 4.0, 1.0)
    """
    return float(2.0 ** round(log2(abs(coefficient)) / 2))


def stack(factors: Sequence[tuple[Floats, Floats]], coefficients: Sequence[float]) -> tuple[Floats, Floats]:
    """Return A (sum r, ...) and B (outputs, sum r, ...) whose product is sum_k c_k B_k A_k.

    Parameters
    ----------
    factors : sequence of (A, B)
        A of shape (r_k, ...), B of shape (outputs, r_k, ...), in float64.
    coefficients : sequence of floats
        c_k, none of them 0.

    Examples
    --------
    >>> one = (np.array([[1.0, 2.0]]), np.array([[1.0], [3.0]]))
    >>> two = (np.array([[4.0, 0.0]]), np.array([[0.0], [1.0]]))
    >>> a, b = stack([one, two], [0.5, -1.0])
    >>> b @ a
    array([[ 0.5,  1. ],
           [-2.5,  3. ]])
    """
    scales = [power_of_two(coefficient) for coefficient in coefficients]
    a_parts = [a * np.copysign(scale, c) for (a, _), scale, c in zip(factors, scales, coefficients, strict=True)]
    b_parts = [b * (abs(c) / scale) for (_, b), scale, c in zip(factors, scales, coefficients, strict=True)]
    return np.concatenate(a_parts), np.concatenate(b_parts, axis=1)


def truncated(a: Floats, b: Floats, rank: int) -> tuple[Floats, Floats]:
    """Return the factors A (rank, ...) and B (outputs, rank, ...) of the nearest product of a rank.

    With A^T = Q_a R_a and B = Q_b R_b, the singular values of B A are those of the small core R_b R_a^T; the product is
    never formed. Both factors take the square roots of the singular values.

    Examples
    --------
    >>> a, b = truncated(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[3.0, 0.0], [0.0, 1.0]]), 1)
    >>> np.round(b @ a, 12) + 0.0
    array([[3., 0.],
           [0., 0.]])
    """
    wide, tall = a.reshape(len(a), -1), b.reshape(len(b), -1)
    q_a, r_a = np.linalg.qr(wide.T)
    q_b, r_b = np.linalg.qr(tall)
    left, values, right = np.linalg.svd(r_b @ r_a.T)
    roots = np.sqrt(values[:rank])
    rank = len(roots)
    return (
        (roots[:, None] * (right[:rank] @ q_a.T)).reshape(rank, *a.shape[1:]),
        ((q_b @ left[:, :rank]) * roots).reshape(len(b), rank, *b.shape[2:]),
    )


def singular_values(a: Floats, b: Floats) -> Floats:
    """Return the singular values of B A, of which A (r, ...) and B (outputs, r, ...) are the factors."""
    _, r_a = np.linalg.qr(a.reshape(len(a), -1).T)
    _, r_b = np.linalg.qr(b.reshape(len(b), -1))
    return np.asarray(np.linalg.svd(r_b @ r_a.T, compute_uv=False))


def least_rank(values: Floats, share: float) -> int:
    """Return the smallest rank whose singular values have a share of the energy, the sum of their squares.

    Examples
    --------
    >>> least_rank(np.array([3.0, 1.0, 0.1]), 0.89), least_rank(np.array([3.0, 1.0, 0.1]), 0.91)
    (1, 2)
    """
    energies = np.cumsum(np.square(values))
    return 1 + int(np.count_nonzero(energies[:-1] < share * energies[-1]))


def as_rank(rank: object) -> int | float:
    """Return a rank, or a share of energy that decides it; raise OptionError for anything else."""
    if is_count(rank):
        return int(rank)  # type: ignore[call-overload]
    if isinstance(rank, float | np.floating) and 0 < float(rank) < 1:
        return float(rank)
    text = f"expected a positive integer, or a share of the energy between 0 and 1, found {rank!r}"
    raise OptionError("rank", text)


def factorised(matrix: Floats, rank: int | float) -> tuple[Floats, Floats]:
    """Return factors A (rank, inputs) and B (outputs, rank) of the nearest matrix of a rank, or share of energy."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    if isinstance(rank, float):
        rank = least_rank(values, rank)
    roots = np.sqrt(values[:rank])
    return roots[:, None] * right[:rank], left[:, :rank] * roots


def squared_change(a: Floats, b: Floats, rounded_a: Floats, rounded_b: Floats) -> tuple[float, float]:
    """Return the squared Frobenius norms of what rounding, and a lower rank, changed in B A, and of B A itself.

    B' A' - B A = (B' - B) A' + B (A' - A), a product of factors again, so that neither matrix is formed.

    A is (r, ...) and B is (outputs, r, ...).
    """
    a, rounded_a = (np.reshape(one, (len(one), -1)) for one in (a, rounded_a))  # (r, inputs)
    b, rounded_b = (np.reshape(one, (len(one), -1)) for one in (b, rounded_b))  # (outputs, r)
    if a.shape == rounded_a.shape:
        change = _squared_norm(np.hstack([rounded_b - b, b]), np.vstack([rounded_a, rounded_a - a]))
    else:  # of another rank
        change = _squared_norm(np.hstack([rounded_b, b]), np.vstack([rounded_a, -a]))
    return change, _squared_norm(b, a)


def product_gram(adapters: Sequence[tuple[tuple[Floats, Floats], float]], merged: tuple[Floats, Floats]) -> Floats:
    """Return the inner products (J + 1, J + 1) of s B A of adapters and of the merged B A last, from their factors.

    <B A, B' A'> = <B^T B', A A'^T>, sums over ranks alone.
    """
    pairs = [*adapters, (merged, 1.0)]
    flat = [(scale * b.reshape(len(b), -1), a.reshape(len(a), -1)) for (a, b), scale in pairs]
    return np.array([[float(np.sum((b.T @ d) * (a @ c.T))) for d, c in flat] for b, a in flat])


def _squared_norm(left: Floats, right: Floats) -> float:
    """Return |left right|_F^2 = <left^T left, right right^T>, at least 0 whatever rounding does."""
    return max(0.0, float(np.sum((left.T @ left) * (right @ right.T))))


def relative(change: float, whole: float) -> float:
    """Return the ratio of two norms from their squares, to two digits, as far as it is the same on every machine."""
    return float(f"{sqrt(change / whole):.1e}") if whole else 0.0


@dataclass(eq=False)
class Losses:
    """What a lower rank and rounding changed in products of factors, by module."""

    squares: dict[str, tuple[float, float]] = field(default_factory=dict)  # of the change, and of the product itself

    @property
    def errors(self) -> dict[str, float]:
        """The change over the size of the product."""
        return {module: relative(*pair) for module, pair in self.squares.items()}

    @property
    def error(self) -> float:
        """The same of all modules together."""
        return relative(*(sum(part) for part in zip(*self.squares.values(), strict=True)))

    @property
    def worst(self) -> str:
        """The module that loses most."""
        errors = self.errors
        return max(errors, key=lambda module: errors[module])
