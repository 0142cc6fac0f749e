"""Plans of masked sums: everything that is fixed before the first message; their digest is bound into every message."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Self

from pydantic import Field, ValidationError

from consilience.checks import Json
from consilience.core.frozen import FrozenDict
from consilience.core.min_count import TWO_SITES
from consilience.errors import InputError, OptionError
from consilience.federated.masking.fixed_point import FRACTIONAL_BITS, WORD_BITS
from consilience.federated.masking.keys import KEY_BYTES
from consilience.federated.plan import NAME_RULE, is_name
from consilience.files.schemas import FiniteJSON, StrictModel, first_problem

MAX_SITES = 10_000
"""Sites of one sum at most: a site does two key agreements with every other one, and shares are of 16-bit parties."""
MAX_LENGTH = 2**26
"""Numbers of one sum at most: their words are 1 GiB."""


class _PlanHeader(StrictModel):
    """The JSON document of a plan."""

    sites: dict[str, str] = Field(min_length=2, max_length=MAX_SITES)
    threshold: int = Field(ge=2, le=MAX_SITES)
    fractional_bits: int = Field(ge=0, le=WORD_BITS - 32)
    length: int = Field(ge=1, le=MAX_LENGTH)
    content: FiniteJSON = Field(default_factory=dict)


def default_threshold(n_sites: int) -> int:
    """Return the least T above two thirds of the sites: what holds against a server that lies."""
    return 2 * n_sites // 3 + 1


@dataclass(frozen=True, eq=False)
class MaskedPlan:
    """Everything that is fixed before a masked sum; its digest is bound into every message.

    Raises OptionError for a threshold of half of the sites or less: the server could open two different sums.
    """

    keys: Mapping[str, bytes]  # the public signing key of every site, by name
    length: int  # number L of numbers that are summed
    # T: so many sites open the sum, and fewer learn nothing. Default: more than two thirds of the sites.
    threshold: int = 0
    fractional_bits: int = FRACTIONAL_BITS  # F of the fixed-point numbers
    content: Mapping[str, Any] = field(default_factory=dict)  # JSON values: what is summed

    def __post_init__(self) -> None:
        if invalid := [site for site in self.keys if not is_name(site)]:
            raise OptionError("sites", f"expected names of {NAME_RULE}; found {', '.join(map(repr, invalid))}")
        if len(set(self.keys.values())) < len(self.keys):
            raise OptionError("signing_keys", "two sites have the same key; every site needs its own")
        object.__setattr__(self, "keys", FrozenDict({site: self.keys[site] for site in sorted(self.keys)}))
        object.__setattr__(self, "content", FrozenDict(dict(self.content)))
        n = len(self.keys)
        if n < 2:
            raise OptionError("sites", f"a masked sum takes at least two, found {n}")
        if self.threshold == 0:
            object.__setattr__(self, "threshold", default_threshold(n))
        if not n < 2 * self.threshold <= 2 * n:
            text = f"expected more than half of the {n} sites, and at most all; found {self.threshold}"
            raise OptionError("quorum", text, "with fewer the server could open two different sums")

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites, sorted: the first is party 1."""
        return tuple(self.keys)

    def party(self, site: str) -> int:
        """Return the number of a site, from 1: where the polynomials are evaluated."""
        return self.sites.index(site) + 1

    @property
    def data(self) -> bytes:
        """The plan as JSON, the same bytes for the same plan."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

    @property
    def round_id(self) -> bytes:
        """SHA-256 of the plan."""
        return sha256(self.data).digest()

    def to_json(self) -> dict[str, Json]:
        """Return the plan as JSON values."""
        return {
            "sites": {site: key.hex() for site, key in self.keys.items()},
            "threshold": self.threshold,
            "fractional_bits": self.fractional_bits,
            "length": self.length,
            "content": dict(self.content),
        }

    @classmethod
    def from_json(cls, document: Any, label: str) -> Self:
        """Return the plan of a document that comes from a server, checked.

        Raises InputError for anything else.
        """
        try:
            header = _PlanHeader.model_validate(document)
            keys = {site: bytes.fromhex(key) for site, key in header.sites.items()}
            if any(len(key) != KEY_BYTES for key in keys.values()):
                raise ValueError(f"keys of other lengths than {KEY_BYTES} bytes")
            return cls(keys, header.length, header.threshold, header.fractional_bits, header.content)
        except ValidationError as error:
            location, reason = first_problem(error)
            text = f"is no plan of a masked sum: {location or 'the whole'}: {reason}"
            raise InputError(label, text, code="E-ROUND") from error
        except (ValueError, OptionError) as error:
            raise InputError(label, f"is no plan of a masked sum: {error}", code="E-ROUND") from error

    def warnings(self) -> list[str]:
        """Return what a site should know before it takes part, a sentence each."""
        n, lines = len(self.keys), list[str]()
        if n == 2:
            lines.append(f"two sites: {TWO_SITES}; masks keep the server from it, and not the other site")
        if 3 * self.threshold <= 2 * n:
            lines.append(
                f"{self.threshold} of {n} sites open the sum: that keeps it from a server that follows the protocol; "
                f"against one that lies it takes {default_threshold(n)}"
            )
        return lines
