"""Log of a round: lines for people, with the facts of each for a machine."""

from __future__ import annotations

import json
from typing import Self


class Event(str):
    """A line of a round's log, and what it says: the kind of event, the round, and the site where it is of one.

    Parameters
    ----------
    text : str
        The line.
    kind : str
        "waiting", "in", "refused", "status", "trouble", "closed", "failed", "resumed", "ended" or "request".
    number : int
        Number of the round.
    site : str, optional
        The site. Default: none.

    Examples
    --------
    >>> print(Event("a: is in", "in", 1, "a").to_json())
    {"event": "in", "round": 1, "site": "a", "text": "a: is in"}
    """

    __slots__ = ("kind", "number", "site")
    kind: str
    number: int
    site: str | None

    def __new__(cls, text: str, kind: str, number: int, site: str | None = None) -> Self:
        """Return the line with its facts."""
        event = super().__new__(cls, text)
        event.kind, event.number, event.site = kind, number, site
        return event

    def __getnewargs__(self) -> tuple[str, str, int, str | None]:  # type: ignore[override]
        """Return what the constructor takes, so that an event can be copied and pickled."""
        return str(self), self.kind, self.number, self.site

    def to_json(self) -> str:
        """Return the event as one line of JSON."""
        fields = {"event": self.kind, "round": self.number, "site": self.site, "text": str(self)}
        return json.dumps({name: value for name, value in fields.items() if value is not None})


def json_line(line: str) -> str:
    """Return a line of a log as JSON; one that is no event is a line of kind "log"."""
    return line.to_json() if isinstance(line, Event) else json.dumps({"event": "log", "text": line})
