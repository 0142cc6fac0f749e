"""What a masked sum can sum: a site's contribution as a vector of numbers, and the sum back as a model.

A kind of summand is made of the *expected file*, which the server publishes and all sites read before anything is sent:
its shapes, units and classes say what each number of the vector is, so that a site's file says nothing but numbers.
Methods that match components, gate sites or compare models need each site's own, and are no sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from consilience.checks import Json
from consilience.federated.masking.fixed_point import Words
from consilience.federated.masking.plan import MaskedPlan


@dataclass(frozen=True, eq=False)
class SumResult:
    """What a sum comes to."""

    model: Any  # the fusion, the network or the mixture
    details: Mapping[str, Json] = field(default_factory=dict)  # JSON values for the report and the provenance


class Summand(ABC):
    """One kind of what is summed, made of the expected file."""

    name: ClassVar[str]
    """Name in plans, such as ``statistics``."""
    site_lines: tuple[str, ...] = ()
    """Lines for a site about its own numbers, once it has them."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Number L of numbers."""

    @property
    def content(self) -> Mapping[str, Json]:
        """JSON values that the plan states of it, besides its name and the digest of the expected file."""
        return {}

    @property
    def state(self) -> str | None:
        """Digest of the request that is answered, which a site answers once. Default: None, for what answers none."""
        return None

    def warnings(self, plan: MaskedPlan) -> list[str]:
        """Return what a site should know before it sends anything, a sentence each."""
        return []

    @abstractmethod
    def words(self, source: Any, n_sites: int, fractional_bits: int) -> Words:
        """Return a site's numbers in fixed point (L, 2).

        Parameters
        ----------
        source : object
            The site's file and its companion files, a sequence of `SafetensorsFile`; for requests its rows.
        n_sites, fractional_bits : int
            Of the plan.

        Raises
        ------
        InputError
            For a file that does not fit the expected one, or numbers out of range.
        """

    @abstractmethod
    def result(self, words: Words, sites: Sequence[str], plan: Mapping[str, Json], fractional_bits: int) -> SumResult:
        """Return what the sum comes to.

        Parameters
        ----------
        words : ndarray of shape (L, 2)
            The sum.
        sites : sequence of str
            Whose numbers are in it.
        plan : mapping
            What provenance says of the round: its digest, threshold and fractional bits.
        fractional_bits : int
            Of the plan.
        """

    @abstractmethod
    def save(self, result: SumResult, path: Path) -> None:
        """Write the model."""
