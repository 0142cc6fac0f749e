"""Reports of rounds, ``round.json``: who took part, who was left out and why; and the lines of their log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from consilience.checks import Json
from consilience.core.min_count import MIN_SITES, TWO_SITES
from consilience.core.provenance import library_versions
from consilience.drawing.words import printable
from consilience.errors import FileFormatError, InputError, Problem
from consilience.federated.contribution import Announcement, AnnouncementSelection
from consilience.federated.plan import RoundPlan
from consilience.files.atomic import refuse_to_replace, write_bytes
from consilience.files.document import check_version, parse_document

_FILE_KEYS = {"format", "format_version", "library_version", "status"}
"""Keys of the document that are no fields of the report."""
_OPTIONAL = {"then", "request", "carried", "plan", "masked", "verdict", "chosen", "single_site", "notes"}
"""Fields that the document has only where there is something in them."""
_REMEDY = "`consilience round open` writes it"
FORMAT, VERSION = "consilience-round", 1
OPEN = "open"
"""What a report says in place of how the round closed, while it has not."""


@dataclass(frozen=True)
class Record:
    """The outcome of one contribution.

    Parameters
    ----------
    site, attempt, sha256, fisher_sha256
        As announced; None where nothing was.
    bytes : int, optional
        Length of its files, where it took part.
    weight : float, optional
        Its weight in the fusion, where it took part.
    reasons : tuple of str
        Why it did not take part, where it did not.
    """

    site: str
    attempt: int | None = None
    sha256: str | None = None
    fisher_sha256: str | None = None
    bytes: int | None = None
    weight: float | None = None
    reasons: tuple[str, ...] = ()

    @classmethod
    def of(cls, one: Announcement, *reasons: str, **more: Any) -> Record:
        """Return the record of an announced contribution, with reasons why it did not take part and other fields."""
        return cls(one.site, one.attempt, one.digest, one.fisher or None, reasons=reasons, **more)


@dataclass(frozen=True)
class RoundReport:
    """The report of a round; the content of ``round.json``."""

    # Name and number of the round, from 1.
    name: str
    number: int
    expected: tuple[str, ...]  # names of the sites that may take part
    took_part: tuple[Record, ...] = ()  # contributions that were fused
    left_out: tuple[Record, ...] = ()  # contributions that were not, with the reasons
    missing: tuple[str, ...] = ()  # expected sites that sent nothing
    late: tuple[Record, ...] = ()  # contributions that came after the round was closed
    ignored: tuple[Record, ...] = ()  # earlier attempts of sites that sent another
    unknown: tuple[str, ...] = ()  # names of others that sent something, which was not read
    # What ended the round: "all sites in", "deadline", "signal", or "given" where there was nothing to wait for; "open"
    # while it goes on, when `took_part` names who is in.
    closed: str = "given"
    # Least number of good contributions, and seconds after which the round ends.
    quorum: int = 2
    deadline: float | None = None
    # Name of the method, None where nothing was fused, and the seed.
    method: str | None = None
    seed: int = 0
    problems: tuple[str, ...] = ()  # why nothing was fused; empty where something was
    verdict: str | None = None  # whether what was fused is better than what the sites have, in words
    chosen: str | None = None  # the candidate that the default took, of networks
    single_site: str | None = None  # the site whose own model was published as it is; None where models were fused
    notes: tuple[str, ...] = ()  # what the operator should know of the sites' claims
    fused: Mapping[str, Any] | None = None  # digest and length of the fused file
    # Change of the fused model, where there are several rounds; see `consilience.federated.convergence`.
    convergence: Mapping[str, Any] | None = field(default=None)
    continues: bool = False  # whether another round follows
    then: str | None = None  # requests that follow this round of models, such as "em:3"
    # Kind, number and digest of the request that was answered, and how many there are. Default: None, for a round of
    # models.
    request: Mapping[str, Any] | None = None
    carried: tuple[Record, ...] = ()  # sites whose answer to an earlier request was carried on, with the reason
    # SHA-256 of the plan, by which a server that is started again knows its own round. Default: None, without a server.
    plan: str | None = None
    # Of a masked sum: digest, threshold and fractional bits of its plan, and what sites had trouble with. Default:
    # None, where every contribution was seen.
    masked: Mapping[str, Any] | None = None

    @classmethod
    def of_round(
        cls,
        plan: RoundPlan,
        number: int,
        selection: AnnouncementSelection,
        reasons: Mapping[str, Sequence[str]],
        /,
        **more: Any,
    ) -> RoundReport:
        """Return the report on what sites announced, with the reasons by site why it was left out, and other fields."""
        chosen = selection.chosen
        fields = {
            "left_out": tuple(
                Record.of(chosen[site], *reasons[site])
                if site in chosen
                else Record(site, reasons=tuple(reasons[site]))
                for site in sorted(reasons)
            ),
            "missing": tuple(site for site in plan.sites if site not in chosen and site not in reasons),
            "ignored": tuple(
                Record.of(one, f"attempt {chosen[one.site].attempt} replaces attempt {one.attempt}")
                for one in selection.ignored
            ),
            "quorum": plan.needed,
            "deadline": float(plan.deadline),
            "seed": plan.seed,
        }
        return cls(plan.name, number, plan.sites, **{**fields, **more})

    @property
    def goes_on(self) -> bool:
        """Whether anything follows: another round of models, or a request."""
        return self.continues or self.then is not None

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites that the fused model was made of."""
        return tuple(record.site for record in self.took_part)

    def to_json(self) -> dict[str, Json]:
        """Return the report as JSON values."""
        document: dict[str, Json] = {
            "format": FORMAT,
            "format_version": VERSION,
            "library_version": library_versions()["consilience"],
            "status": OPEN if self.closed == OPEN else "failed" if self.problems else "fused",
        }
        for key, value in asdict(self).items():
            if key in _OPTIONAL and not value:
                continue
            has_records = isinstance(value, tuple) and value and isinstance(value[0], dict)
            document[key] = [_without_empty(record) for record in value] if has_records else value
        return document

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the report as JSON, whole or not at all; `overwrite` allows to replace a file of another program."""
        refuse_to_replace(path, overwrite)
        write_bytes(Path(path), self.to_bytes())

    def to_bytes(self) -> bytes:
        """Return the text of ``round.json``."""
        return (json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n").encode()

    @classmethod
    def from_bytes(cls, text: bytes) -> RoundReport:
        """Return the report that a ``round.json`` holds.

        Raises FileFormatError for anything else, or one of a later version.
        """
        document = parse_document(Path("round.json"), text, "content", _REMEDY)
        check_version(Path("round.json"), document, VERSION)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise FileFormatError("round.json", "is no report of a round", _REMEDY)
        fields = {key: value for key, value in document.items() if key not in _FILE_KEYS}
        try:
            return TypeAdapter(RoundReport).validate_python(fields)
        except ValidationError as error:
            raise FileFormatError("round.json", "is not a valid report", _REMEDY) from error

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        has_weights = len({record.weight for record in self.took_part}) > 1
        names = [record.site + (f" (weight {record.weight:g})" if has_weights else "") for record in self.took_part]
        asked = "" if self.request is None else " (request {kind} {number} of {rounds})".format(**self.request)
        took_part = "took part" if self.request is None else "answered"
        counts = f"{len(names)} of {len(self.expected)} sites {took_part}"
        lines = [f"round {self.number}{asked} closed ({self.closed}): {counts}", *_listed(took_part, names)]
        lines += self.outcome_lines()
        lines += _listed("two sites", [TWO_SITES] * (len(names) == MIN_SITES - 1))
        if self.masked is not None:
            lines.append(f"masked: the server saw the sum alone, which {self.quorum} sites had to open")
            lines += [printable(str(line)) for line in self.masked.get("troubles", ())]
        lines += [f"carried on: {record.site}: {printable('; '.join(record.reasons))}" for record in self.carried]
        for record in self.left_out:
            lines += [f"left out: {record.site}: {printable(reason)}" for reason in record.reasons]
        lines += _listed("sent nothing", self.missing)
        lines += [f"late: {record.site}, attempt {record.attempt}" for record in self.late]
        lines += [f"ignored: {record.site}: {'; '.join(record.reasons)}" for record in self.ignored]
        lines += _listed("not expected", map(printable, self.unknown))
        return lines + [printable(problem) for problem in self.problems]

    def outcome_lines(self) -> list[str]:
        """Return what was published, whether it is better than what sites have, and what they claim, a line each."""
        single, verdict, chosen = self.single_site, self.verdict, self.chosen
        lines = [] if single is None else [f"not fused: the model is that of site {single}, as it was sent"]
        lines += [] if verdict is None else [f"verdict: {printable(verdict)}"]
        lines += [] if chosen is None else [f"chosen: {printable(chosen)}"]
        return lines + [printable(note) for note in self.notes]

    def status_line(self) -> str:
        """Return who is in an open round, who is missing and who was refused, in a line."""
        refused = [f"{record.site} ({'; '.join(record.reasons)})" for record in self.left_out]
        groups = (("in", list(self.sites)), ("missing", list(self.missing)), ("refused", refused))
        said = "; ".join(f"{name} {len(names)}: {', '.join(names)}" for name, names in groups if names)
        return f"round {self.number}: {printable(said)}"

    def with_late(self, late: tuple[Record, ...]) -> RoundReport:
        """Return the report with the contributions that came after the round was closed."""
        return replace(self, late=late)


class RoundError(InputError):
    """A round ended without a fused model; ``report`` says who took part and what was wrong with the others."""

    code = "E-ROUND"

    def __init__(self, report: RoundReport) -> None:
        self.report = report
        *lines, last = report.lines()
        super().__init__([*(Problem("", line, "", self.code, ends_with_code=False) for line in lines), last])


def _listed(label: str, names: Iterable[str]) -> list[str]:
    """Return the line that names some; none where there are none."""
    listed = ", ".join(names)
    return [f"{label}: {listed}"] if listed else []


def _without_empty(record: Mapping[str, Json]) -> dict[str, Any]:
    """Return a record without its empty fields."""
    return {key: value for key, value in record.items() if value is not None and value != ()}


class Event(str):
    """A line of a round's log, and what it says: the kind of event, the round, and the site where it is of one.

    Parameters
    ----------
    text : str
        The line.
    kind : str
        "waiting", "in", "refused", "status", "trouble", "closed", "outcome", "failed", "resumed", "ended" or "request".
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
