"""What a site remembers of the sums that it has opened: never two of groups that differ by few sites.

The sums of two groups of sites differ by what the sites between them sent, where both are the same function of the
data, and nearly by that where the functions are nearly the same: consecutive requests of EM, two rounds over the same
rows. Masks hide the sites of one sum, and not those of a difference. So a site opens a sum only where its group is
equal to that of every earlier sum, or differs from it by `MIN_DIFFERENCE` sites. It goes by its own record, since the
server may lie about who left:

    WORK/opened/GROUP.json       {"sites": {NAME: KEY}, "states": {REQUEST: NUMBERS}}

with digests of the group, of requests, and of the numbers that answered them. All sums of one record count as nearly
the same function. A narrower rule would go by what the server says of a sum, and a start that is moved in its last
digit, or has one more component far from all rows, is another request with the same sums. Data that have nothing to do
with each other have a record each: another folder of the site's. Sites are known by their keys; names are the
server's to give.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from consilience.core.min_count import MIN_COUNT
from consilience.errors import InputError
from consilience.federated.ledger import sites_between
from consilience.files.atomic import remove_stale, write_bytes
from consilience.files.opening import read_file

MIN_DIFFERENCE = int(MIN_COUNT)
"""Sites between the groups of two opened sums, at least: as many as observations behind a number that leaves a site."""


@dataclass(frozen=True)
class _Group:
    """Sites whose sums were opened."""

    names: Mapping[str, str]  # names by public key, in hexadecimal digits
    states: Mapping[str, str]  # digest of the site's numbers, by that of the request that they answered


@dataclass(frozen=True)
class OpenedSums:
    """The record of the sums that a site has opened.

    All methods that refuse raise InputError, also for a record that cannot be read.
    """

    folder: Path  # where the record is
    where: str  # what messages call the place of the round

    def refuse_other_numbers(self, state: str | None, numbers: bytes) -> None:
        """Refuse to answer a request again from other rows.

        Parameters
        ----------
        state : str or None
            Digest of the request; None for sums that answer none.
        numbers : bytes
            Digest of the site's numbers.
        """
        answered = [group.states[state] for group in self._groups() if state is not None and state in group.states]
        if any(before != numbers.hex() for before in answered):
            text = "asks what this site has answered before from other rows: the two sums would reveal what changed"
            raise InputError(self.where, text, "start from another model, or give another `work=`", "E-ROUND")

    def refuse_near(self, keys: Mapping[str, bytes], state: str | None) -> None:
        """Refuse to open the sum of a group that few sites distinguish from an earlier one.

        Parameters
        ----------
        keys : mapping of str to bytes
            Public key of every site of the group, by name.
        state : str or None
            As for `refuse_other_numbers`. What was opened for one group is opened for no other.
        """
        names = {key.hex(): site for site, key in keys.items()}
        for group in self._groups():
            if between := sites_between(names, group.names, MIN_DIFFERENCE):
                left = sorted(group.names[key] for key in between if key in group.names)
                joined = sorted(names[key] for key in between if key in names)
                change = [f"without {', '.join(left)}"] * bool(left) + [f"with {', '.join(joined)}"] * bool(joined)
                text = (
                    f"asks to open a sum {' and '.join(change)}, unlike an earlier one that this site has opened: the "
                    f"two together would reveal what {', '.join(left + joined)} sent"
                )
                ends = "the requests end, and the last model stays" if state else "the round ends without a model"
                remedy = f"{ends}; for other data than before give another `work=`"
                raise InputError(self.where, text, remedy, "E-ROUND")
            if state in group.states and set(names) != set(group.names):
                text = "asks to open for other sites what was opened before: a request is answered once"
                raise InputError(self.where, text, "start from another model, or give another `work=`", "E-ROUND")

    def record(self, keys: Mapping[str, bytes], state: str | None, numbers: bytes) -> None:
        """Write that a sum is opened, whole or not at all; refuse as the other two.

        What was written stays where another process of this site has opened a sum meanwhile: at least one of the two
        sees the other's.
        """
        self.refuse_other_numbers(state, numbers)
        self.refuse_near(keys, state)
        path = self.folder / f"{sha256(b''.join(sorted(keys.values()))).hexdigest()}.json"
        states = {**(_read(path).states if path.exists() else {}), **({} if state is None else {state: numbers.hex()})}
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_stale(path)
        document = {"sites": {site: keys[site].hex() for site in sorted(keys)}, "states": states}
        write_bytes(path, json.dumps(document).encode())
        self.refuse_near(keys, state)

    def _groups(self) -> list[_Group]:
        """Return the groups whose sums were opened."""
        return [_read(path) for path in sorted(self.folder.glob("*.json"))]


def _read(path: Path) -> _Group:
    """Return a group of the record; raise for a file that is none."""
    try:
        document: Any = json.loads(read_file(path))
        sites, states = (dict(document[name]) for name in ("sites", "states"))
        if not all(isinstance(text, str) for pair in [*sites.items(), *states.items()] for text in pair):
            raise TypeError
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        remedy = "restore it from a copy: without it this site may open what reveals the numbers of another one"
        raise InputError(path, "is no record of an opened sum", remedy, "E-ROUND") from error
    return _Group({key: site for site, key in sites.items()}, states)
