"""File sizes in text, such as 5GB or 1.5 GiB, as numbers of bytes."""

from __future__ import annotations

import re

from consilience.errors import OptionError

# Decimal and binary prefixes of the IEC.
_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def as_bytes(size: str | int, what: str = "shard_bytes") -> int:
    """Return a number of bytes, from text such as "5GB".

    `what` names the option in messages. Raises OptionError for anything but a positive number with a known unit.

    Examples
    --------
    >>> as_bytes("5GB"), as_bytes("1.5 GiB"), as_bytes(1000)
    (5000000000, 1610612736, 1000)
    """
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([a-z]*)", str(size).strip().lower())
    if isinstance(size, bool) or match is None or match[2] not in _UNITS or float(match[1]) * _UNITS[match[2]] < 1:
        raise OptionError(what, f"expected a size such as 5GB, 500MB or a number of bytes, found {size!r}")
    return int(float(match[1]) * _UNITS[match[2]])
