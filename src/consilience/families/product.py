"""Products: one component made of independent blocks, each from a family of its own.

q(z_1, .., z_B | eta) = prod_b q_b(z_b | eta_b): natural parameters and statistics are concatenated in the order of the
blocks (n, P_1 + .. + P_B); log normalisers, divergences and entropies add up. A neuron, a vector of independent
Gaussians, is one component in this way. Every method here asks its blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csr_array

from consilience.checks import Array, Json, Labels
from consilience.errors import InputError
from consilience.families.base import Draws, Family, Parameters
from consilience.families.evidence import DiscountedRows, Discounts, EvidenceFamily
from consilience.families.linalg import scaled_columns


@dataclass(frozen=True, init=False)
class Product(EvidenceFamily):
    """Independent blocks; natural parameters are concatenated in order, log normalisers and divergences add.

    Parameters
    ----------
    blocks
        Families by name.

    Examples
    --------
    >>> from consilience.families import Gamma, Gaussian
    >>> family = Product({"place": Gaussian(1), "rate": Gamma()})
    >>> family.to_natural(place={"mean": [[2.0]], "covariance": [[[1.0]]]}, rate={"shape": [3.0], "rate": [4.0]})
    array([[ 2. , -0.5,  2. , -4. ]])
    """

    blocks: tuple[tuple[str, Family], ...]
    name: ClassVar[str] = "product"

    def __init__(self, blocks: Mapping[str, Family]) -> None:
        if not blocks:
            raise InputError("Product", "expected at least one block", code="E-NEEDED")
        object.__setattr__(self, "blocks", tuple(blocks.items()))

    @property
    def has_width(self) -> bool:  # type: ignore[override]
        """Whether every block is a density."""
        return all(family.has_width for _, family in self.blocks)

    @property
    def size(self) -> int:
        """Length P of a row: the sum over blocks."""
        return sum(family.size for _, family in self.blocks)

    def config(self) -> dict[str, Json]:
        """Return the blocks' names and configurations."""
        return {"blocks": {name: {"name": family.name, **family.config()} for name, family in self.blocks}}

    def _iterate_blocks(self, *arrays: Array) -> Iterator[tuple[Any, ...]]:
        """Yield (name, family, the columns of each array (n, P) that belong to it) for every block."""
        start = 0
        for name, family in self.blocks:
            columns = slice(start, start + family.size)
            yield (name, family, *(np.asarray(array)[:, columns] for array in arrays))
            start += family.size

    def affine_image(self, eta: Array, matrix: Array, shift: Array) -> Array:
        """Return the blocks in another order, where a block stands for each column of the data and all are alike.

        Raises UnsupportedError for every other map.
        """
        order, factors = scaled_columns(matrix)
        are_alike = len({family for _, family in self.blocks}) == 1
        if not are_alike or len(order) != len(self.blocks) or np.any(factors != 1.0) or np.any(shift != 0.0):
            return super().affine_image(eta, matrix, shift)
        by_block = np.asarray(eta).reshape(len(eta), len(order), -1)
        return np.ascontiguousarray(by_block[:, order].reshape(np.shape(eta)))

    def to_natural(self, **parameters: Mapping[str, Json]) -> Array:
        """Return eta (n, P) from each block's parameters, given as a mapping under the block's name."""
        names = [name for name, _ in self.blocks]
        if sorted(parameters) != sorted(names):
            raise InputError("Product", f"expected parameters for the blocks {names}, found {sorted(parameters)}")
        return np.concatenate([family.to_natural(**parameters[name]) for name, family in self.blocks], axis=1)

    def from_natural(self, eta: Array) -> Parameters:
        """Return each block's parameters under its name."""
        return {name: family.from_natural(columns) for name, family, columns in self._iterate_blocks(eta)}

    def points(self, eta: Array) -> Array:
        """Return the blocks' points side by side."""
        return np.concatenate([family.points(columns) for _, family, columns in self._iterate_blocks(eta)], axis=1)

    def log_normalizer(self, eta: Array) -> Array:
        """Return the sum over blocks."""
        return np.sum([family.log_normalizer(columns) for _, family, columns in self._iterate_blocks(eta)], axis=0)

    def mean_parameters(self, eta: Array) -> Array:
        """Return the blocks' mean parameters side by side."""
        return np.concatenate([f.mean_parameters(columns) for _, f, columns in self._iterate_blocks(eta)], axis=1)

    def from_mean(self, mean: Array) -> Array:
        """Return the blocks' natural parameters side by side."""
        return np.concatenate([family.from_mean(columns) for _, family, columns in self._iterate_blocks(mean)], axis=1)

    def kl_pairs(self, eta_a: Array, eta_b: Array) -> Array:
        """Return the sum over blocks."""
        return np.sum([family.kl_pairs(a, b) for _, family, a, b in self._iterate_blocks(eta_a, eta_b)], axis=0)

    def evidence_form(self, eta: Array) -> tuple[EvidenceFamily, Array]:
        """Return the product of the blocks' forms."""
        forms = [(name, *family.evidence_form(columns)) for name, family, columns in self._iterate_blocks(eta)]
        natural = np.concatenate([rows for *_, rows in forms], axis=1)
        return Product({name: family for name, family, _ in forms}), natural

    @property
    def _evidence_blocks(self) -> list[tuple[str, EvidenceFamily]]:
        """The blocks that measure information: all of them, in what ``evidence_form`` returns."""
        return [(name, family) for name, family in self.blocks if isinstance(family, EvidenceFamily)]

    @property
    def flat(self) -> Array:
        """The blocks' flat limits side by side."""
        return np.concatenate([family.flat for _, family in self._evidence_blocks])

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the blocks' own blocks."""
        return tuple(f"{name}.{part}" for name, family in self._evidence_blocks for part in family.part_names)

    @property
    def enough(self) -> Array:
        """The blocks' limits side by side."""
        return np.concatenate([family.enough for _, family in self._evidence_blocks])

    def information(self, eta: Array) -> Array:
        """Return the blocks' information side by side."""
        return np.concatenate([family.information(columns) for _, family, columns in self._iterate_blocks(eta)], axis=1)

    def reweighted(self, eta: Array, factors: Array) -> Array:
        """Reweight every block."""
        reweighted, start = [], 0
        for _, family, columns in self._iterate_blocks(eta):
            end = start + len(family.part_names)  # a block may have several amounts of information
            reweighted.append(family.reweighted(columns, factors[:, start:end]))
            start = end
        return np.concatenate(reweighted, axis=1)

    def observed(self, eta: Array, heterogeneity: Array) -> Array:
        """Return the sum over blocks."""
        total, start = np.zeros(len(eta)), 0
        for _, family, columns in self._iterate_blocks(eta):
            end = start + len(family.part_names)
            total += family.observed(columns, heterogeneity[start:end])
            start = end
        return total

    def law_of(self, eta: Array) -> Array:
        """Return the blocks' distributions side by side."""
        return np.concatenate([family.law_of(columns) for _, family, columns in self._iterate_blocks(eta)])

    def without_prior(self, eta: Array, prior: Array) -> Array:
        """Take the prior off every block."""
        blocks = self._iterate_blocks(eta, prior)
        return np.concatenate([family.without_prior(columns, priors) for _, family, columns, priors in blocks], axis=1)

    def discounts(self, eta: Array) -> Discounts:
        """Return the blocks' rows under any discount, side by side."""
        blocks = list(self._iterate_blocks(np.asarray(eta)))
        discounts = [family.discounts(columns) for _, family, columns in blocks]
        return _ProductDiscounts(discounts, [len(family.part_names) for _, family, _ in blocks])

    def heterogeneity_unit(self, eta: Array) -> Array:
        """Return the blocks' units side by side (B,)."""
        return np.concatenate([family.heterogeneity_unit(columns) for _, family, columns in self._iterate_blocks(eta)])

    def log_normalizer_of_sums(self, eta: Array) -> Array:
        """Return the sum over blocks (n,)."""
        return np.sum([f.log_normalizer_of_sums(columns) for _, f, columns in self._iterate_blocks(eta)], axis=0)

    def faults(self, eta: Array) -> list[tuple[int, str]]:
        """Rows in which some block is outside its domain."""
        faults = ((name, family.faults(columns)) for name, family, columns in self._iterate_blocks(eta))
        return [(row, f"{text} (block {name!r})") for name, of_block in faults for row, text in of_block]

    def offsets(self, eta: Array) -> tuple[Array, Array] | None:
        """Return those of the blocks that are Gaussians side by side; None where no block has a width that is lost."""
        blocks = [(family, columns, family.offsets(columns)) for _, family, columns in self._iterate_blocks(eta)]
        if all(offsets is None for *_, offsets in blocks):
            return None
        parts: list[tuple[Array, Array]] = []
        for family, columns, offsets in blocks:
            if offsets is not None:
                parts.append(offsets)
            elif (gaussians := family.plug_in(columns)) is not None:
                parts.append((gaussians[0], np.zeros_like(gaussians[0])))
        return np.concatenate([means for means, _ in parts], axis=1), np.concatenate([one for _, one in parts], axis=1)

    def sample(self, eta: Array, size: int, rng: np.random.Generator) -> Draws:
        """Return each block's draws under its name."""
        return {name: family.sample(columns, size, rng) for name, family, columns in self._iterate_blocks(eta)}

    def sufficient_statistics(self, draws: Draws) -> Array:
        """Return the blocks' statistics side by side."""
        return np.concatenate([family.sufficient_statistics(draws[name]) for name, family in self.blocks], axis=-1)

    def entropy(self, eta: Array) -> Array:
        """Return the sum over blocks."""
        return np.sum([family.entropy(columns) for _, family, columns in self._iterate_blocks(eta)], axis=0)


class _ProductRows:
    """Rows of products under any discount: that of every block, each with its own part of the heterogeneity (B,)."""

    def __init__(self, blocks: Sequence[DiscountedRows], n_parts: Sequence[int]) -> None:
        self._rows_of_blocks, self._n_parts = blocks, n_parts

    def _parts(self, heterogeneity: Array) -> list[Array]:
        """Return the heterogeneity of every block."""
        return np.split(heterogeneity, np.cumsum(self._n_parts)[:-1])

    def pieces(self, heterogeneity: Array) -> Array:
        """Return the blocks' pieces side by side (L, P)."""
        parts = zip(self._rows_of_blocks, self._parts(heterogeneity), strict=True)
        return np.concatenate([block.pieces(part) for block, part in parts], axis=1)

    def observed(self, heterogeneity: Array) -> Array:
        """Return the sum over blocks (L,)."""
        parts = zip(self._rows_of_blocks, self._parts(heterogeneity), strict=True)
        return np.asarray(np.sum([block.observed(part) for block, part in parts], axis=0))


class _ProductDiscounts(_ProductRows):
    """Products under any discount."""

    def __init__(self, blocks: Sequence[Discounts], n_parts: Sequence[int]) -> None:
        super().__init__(blocks, n_parts)
        self._blocks = blocks

    def part(self, rows: slice | Labels) -> _ProductRows:
        """Return some of the rows."""
        return _ProductRows([block.part(rows) for block in self._blocks], self._n_parts)

    def sums_of(self, membership: csr_array) -> Callable[[Array], Array]:
        """Return the blocks' weighted sums side by side (G, P) as a function of the heterogeneity."""
        sums = [block.sums_of(membership) for block in self._blocks]

        def side_by_side(heterogeneity: Array) -> Array:
            parts = zip(sums, self._parts(heterogeneity), strict=True)
            return np.concatenate([of_block(part) for of_block, part in parts], axis=1)

        return side_by_side

    def law(self, heterogeneity: Array) -> Array:
        """Return the blocks' distributions side by side (P,)."""
        parts = zip(self._blocks, self._parts(heterogeneity), strict=True)
        return np.concatenate([block.law(part) for block, part in parts])
