"""Ledger of rounds: which groups of sites a fused model was published of, so that no two disclose few sites.

Averages and products subtract: whoever has the fused models of two groups of sites computes what the sites between them
sent, exactly where it is one. So a group may be published that is equal to an earlier one, or differs from each of them
by at least `MIN_DIFFERENCE` sites (the fixed cohorts of docs/sites/privacy.md). The ledger is a file of the server's,
one line of JSON for each published round; it has names and digests only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from consilience.errors import FileFormatError, Problem
from consilience.files.atomic import write_bytes
from consilience.files.opening import read_file, read_text

MIN_DIFFERENCE = 3
"""Sites between two published groups, at least: of two, each can compute the other's contribution from the
difference."""

MAX_LEDGER_BYTES = 2**24
"""Length of a ledger that is read. A bound only: some hundred bytes for each round."""


def read_ledger(path: Path) -> list[frozenset[str]]:
    """Return the groups of sites that were published; none where there is no such file.

    Raises FileFormatError for anything that is no ledger: a round must not be published after groups that nobody can
    read.
    """
    if not path.exists():
        return []
    if path.stat().st_size > MAX_LEDGER_BYTES:
        raise FileFormatError(path, f"is longer than {MAX_LEDGER_BYTES} bytes, expected a ledger of rounds")
    groups = []
    for number, line in enumerate(read_file(path).splitlines(), start=1):
        try:
            sites: Any = json.loads(line)["sites"]
        except (ValueError, TypeError, KeyError, RecursionError):
            sites = None
        if not isinstance(sites, list) or not all(isinstance(site, str) for site in sites):
            raise FileFormatError(path, f"line {number} is no record of a round", "give the file that `serve` wrote")
        groups.append(frozenset(sites))
    return groups


def sites_between(group: Iterable[str], earlier: Iterable[str], least: int = MIN_DIFFERENCE) -> list[str]:
    """Return the sites that are in one of two groups alone, sorted, where they are fewer than `least`; else none.

    Examples
    --------
    >>> sites_between("abcd", "abc"), sites_between("abcd", "dcba"), sites_between("abcd", "aef")
    (['d'], [], [])
    """
    between = sorted(frozenset(group) ^ frozenset(earlier))
    return between if len(between) < least else []


def too_near(path: Path, sites: Iterable[str], least: int = MIN_DIFFERENCE) -> list[Problem]:
    """Return why a fused model of these sites must not be published in addition to earlier ones; empty where it may be.

    `path` is the ledger's; at least `least` sites are to be between two groups.
    """
    group = frozenset(sites)
    for earlier in read_ledger(path):
        if between := sites_between(group, earlier, least):
            text = (
                f"a model was published that differs by {', '.join(between)} only, and the two together disclose what "
                f"{'it' if len(between) == 1 else 'they'} sent"
            )
            return [Problem(path, text, f"publish the same sites again, or at least {least} others")]
    return []


def record(path: Path, sites: Iterable[str], digest: str) -> None:
    """Add a published model to the ledger, whole or not at all; one that stands there already is not added again.

    Parameters
    ----------
    path : Path
        The ledger.
    sites : iterable of str
        Names of the sites that the model was fused from.
    digest : str
        SHA-256 of its file.
    """
    line = json.dumps({"sites": sorted(sites), "sha256": digest})
    lines = read_text(path).splitlines() if path.exists() else []
    if line not in lines:
        write_bytes(path, "".join(f"{one}\n" for one in [*lines, line]).encode())
