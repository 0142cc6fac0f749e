"""What a site keeps to itself during a masked sum: one random secret, and what it has already said.

Both keys, the seed and the coefficients of the polynomials are derived from the secret, so that a site that was killed
says the same again, and never two different things under one secret.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Self

from consilience.errors import InputError
from consilience.federated.masking.keys import KEY_BYTES, derive, key_stream, public_of
from consilience.federated.masking.shamir import ELEMENT_BYTES, element


@dataclass(eq=False)
class SiteSecret:
    """A site's secret of one masked sum, with the digests of what it was used for."""

    secret: bytes  # 32 random bytes
    masked: bytes = b""  # digest of the sites and numbers under whose masks this site's numbers left; empty before
    confirmed: bytes = b""  # digest of what the site has confirmed, and opens; empty before
    numbers: bytes = b""  # digest of the numbers that left under masks; empty before

    @classmethod
    def random(cls) -> Self:
        """Return a new secret."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @cached_property
    def sealing_key(self) -> bytes:
        """Private key under whose agreements shares are sealed."""
        return derive(self.secret, b"sealing key")

    @cached_property
    def masking_key(self) -> bytes:
        """Private key from whose agreements pairwise masks are made."""
        return derive(self.secret, b"masking key")

    @cached_property
    def seed(self) -> bytes:
        """Seed of the site's own mask."""
        return derive(self.secret, b"seed")

    @cached_property
    def public_keys(self) -> tuple[bytes, bytes]:
        """The public sealing and masking key."""
        return public_of(self.sealing_key), public_of(self.masking_key)

    def coefficients(self, name: bytes, count: int) -> list[int]:
        """Return the random coefficients of the polynomial of a name."""
        stream = key_stream(derive(self.secret, b"coefficients", name), count * ELEMENT_BYTES)
        return [element(stream[start : start + ELEMENT_BYTES]) for start in range(0, len(stream), ELEMENT_BYTES)]

    def bind(self, use: str, digest: bytes) -> None:
        """Note what the secret is used for, and refuse any other use.

        Raises InputError where it was used for something else: masks that are used twice tell the difference of what
        they hide, and both shares of one site tell its numbers.
        """
        before = getattr(self, use)
        if before and before != digest:
            asked = "mask numbers for other sites" if use == "masked" else "open the sum of other sites"
            text = f"asks to {asked} than before, which would tell what a site sent"
            remedy = "take no further part in this round, and ask who runs the server"
            raise InputError("the server", text, remedy, "E-ROUND")
        setattr(self, use, digest)

    def to_json(self) -> str:
        """Return the secret as a text, for a file that nobody else reads."""
        return json.dumps({name: getattr(self, name).hex() for name in _FIELDS})

    @classmethod
    def from_json(cls, text: str, label: str) -> Self:
        """Return the secret of a text.

        Raises InputError for anything else.
        """
        try:
            document = json.loads(text)
            secret = cls(*(bytes.fromhex(document[name]) for name in _FIELDS))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                label, "is no secret of a masked sum", "remove the folder, and take part anew", "E-ROUND"
            ) from error
        if len(secret.secret) != KEY_BYTES:
            raise InputError(label, "is no secret of a masked sum", "remove the folder, and take part anew", "E-ROUND")
        return secret


_FIELDS = ("secret", "masked", "confirmed", "numbers")
"""What is kept, in the order of the fields."""


def commitment(round_id: bytes, seed: bytes) -> bytes:
    """Return the digest by which a rebuilt seed is known to be the right one."""
    return sha256(b"consilience seed" + round_id + seed).digest()
