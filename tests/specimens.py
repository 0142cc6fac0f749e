"""Specimens of the entries of a table of the library: what the laws over that table run on."""

from collections.abc import Iterable, Mapping
from typing import Any


class Specimens(dict[str, Any]):
    """Specimens by the name of their entry; one that is missing is asked for by the file that it belongs in.

    Parameters
    ----------
    place
        The file, and the mapping in it, that a newcomer's specimen is added to.
    found
        The specimens that there are.
    """

    def __init__(self, place: str, found: Mapping[str, Any]) -> None:
        super().__init__(found)
        self.place = place

    def __missing__(self, name: str) -> Any:
        raise LookupError(self.wanted([name]))

    def wanted(self, names: Iterable[str]) -> str:
        """Return the sentence that asks for specimens."""
        return f"no specimen of {', '.join(map(repr, names))}: add one to {self.place}, so that the laws run on it"

    def problems(self, entries: Iterable[str]) -> list[str]:
        """Return what is wrong with the specimens of these entries, a sentence each."""
        names = list(entries)
        found = [f"two entries are called {name!r}" for name in sorted({one for one in names if names.count(one) > 1})]
        missing, idle = [name for name in names if name not in self], [name for name in self if name not in names]
        if missing:
            found.append(self.wanted(missing))
        if idle:
            found.append(f"{', '.join(map(repr, idle))} in {self.place}: the table has no such entry")
        return found
