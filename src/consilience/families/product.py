"""Products: one component made of independent blocks, each from a family of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from consilience.checks import Array
from consilience.errors import InputError
from consilience.families.base import Draws, Family
from consilience.families.evidence import EvidenceFamily


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
            raise InputError("Product: expected at least one block")
        object.__setattr__(self, "blocks", tuple(blocks.items()))

    @property
    def has_width(self) -> bool:  # type: ignore[override]
        """Whether every block is a density."""
        return all(family.has_width for _, family in self.blocks)

    @property
    def size(self) -> int:
        """Length P of a row: the sum over blocks."""
        return sum(family.size for _, family in self.blocks)

    def config(self) -> dict[str, Any]:
        """Return the blocks' names and configurations."""
        return {"blocks": {name: {"name": family.name, **family.config()} for name, family in self.blocks}}

    def _parts(self, *arrays: Array) -> Iterator[tuple[Any, ...]]:
        """Yield (name, family, the columns of each array that belong to it)."""
        start = 0
        for name, family in self.blocks:
            columns = slice(start, start + family.size)
            yield (name, family, *(array[:, columns] for array in arrays))
            start += family.size

    def to_natural(self, **parameters: Mapping[str, Any]) -> Array:
        """Return eta (n, P) from each block's parameters, given as a mapping under the block's name."""
        names = [name for name, _ in self.blocks]
        if sorted(parameters) != sorted(names):
            raise InputError(f"Product: expected parameters for the blocks {names}, found {sorted(parameters)}")
        return np.concatenate([family.to_natural(**parameters[name]) for name, family in self.blocks], axis=1)

    def from_natural(self, eta: Array) -> Draws:
        """Return each block's parameters under its name."""
        return {name: family.from_natural(part) for name, family, part in self._parts(eta)}

    def points(self, eta: Array) -> Array:
        """Return the blocks' points side by side."""
        return np.concatenate([family.points(part) for _, family, part in self._parts(eta)], axis=1)

    def log_normalizer(self, eta: Array) -> Array:
        """Return the sum over blocks."""
        return np.sum([family.log_normalizer(part) for _, family, part in self._parts(eta)], axis=0)

    def mean_parameters(self, eta: Array) -> Array:
        """Return the blocks' mean parameters side by side."""
        return np.concatenate([family.mean_parameters(part) for _, family, part in self._parts(eta)], axis=1)

    def from_mean(self, mean: Array) -> Array:
        """Return the blocks' natural parameters side by side."""
        return np.concatenate([family.from_mean(part) for _, family, part in self._parts(mean)], axis=1)

    def kl_pairs(self, eta_a: Array, eta_b: Array) -> Array:
        """Return the sum over blocks."""
        return np.sum([family.kl_pairs(a, b) for _, family, a, b in self._parts(eta_a, eta_b)], axis=0)

    def evidence_form(self, eta: Array) -> tuple[EvidenceFamily, Array]:
        """Return the product of the blocks' forms."""
        forms = [(name, *family.evidence_form(part)) for name, family, part in self._parts(eta)]
        return Product({name: family for name, family, _ in forms}), np.concatenate([row for *_, row in forms], axis=1)

    @property
    def _counting(self) -> list[tuple[str, EvidenceFamily]]:
        """The blocks of an evidence form."""
        return [(name, family) for name, family in self.blocks if isinstance(family, EvidenceFamily)]

    @property
    def flat(self) -> Array:
        """The blocks' flat limits side by side."""
        return np.concatenate([family.flat for _, family in self._counting])

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the blocks' own blocks."""
        return tuple(f"{name}.{part}" for name, family in self._counting for part in family.part_names)

    @property
    def enough(self) -> Array:
        """The blocks' limits side by side."""
        return np.concatenate([family.enough for _, family in self._counting])

    def information(self, eta: Array) -> Array:
        """Return the blocks' information side by side."""
        return np.concatenate([family.information(part) for _, family, part in self._parts(eta)], axis=1)

    def reweighted(self, eta: Array, factors: Array) -> Array:
        """Reweight every block."""
        rows, start = [], 0
        for _, family, part in self._parts(eta):
            end = start + len(family.part_names)
            rows.append(family.reweighted(part, factors[:, start:end]))
            start = end
        return np.concatenate(rows, axis=1)

    def observed(self, eta: Array, heterogeneity: Array) -> Array:
        """Return the sum over blocks."""
        total, start = np.zeros(len(eta)), 0
        for _, family, part in self._parts(eta):
            end = start + len(family.part_names)
            total += family.observed(part, heterogeneity[start:end])
            start = end
        return total

    def law_of(self, eta: Array) -> Array:
        """Return the blocks' laws side by side."""
        return np.concatenate([family.law_of(part) for _, family, part in self._parts(eta)])

    def without_prior(self, eta: Array, prior: Array) -> Array:
        """Take the prior off every block."""
        return np.concatenate(
            [family.without_prior(part, own) for _, family, part, own in self._parts(eta, prior)], axis=1
        )

    def faults(self, eta: Array) -> list[tuple[int, str]]:
        """Rows in which some block is outside its domain."""
        return [
            (row, f"{text} (block {name!r})")
            for name, family, part in self._parts(eta)
            for row, text in family.faults(part)
        ]

    def sample(self, eta: Array, size: int, rng: np.random.Generator) -> Draws:
        """Return each block's draws under its name."""
        return {name: family.sample(part, size, rng) for name, family, part in self._parts(eta)}

    def sufficient_statistics(self, draws: Draws) -> Array:
        """Return the blocks' statistics side by side."""
        return np.concatenate([family.sufficient_statistics(draws[name]) for name, family in self.blocks], axis=-1)

    def entropy(self, eta: Array) -> Array:
        """Return the sum over blocks."""
        return np.sum([family.entropy(part) for _, family, part in self._parts(eta)], axis=0)
