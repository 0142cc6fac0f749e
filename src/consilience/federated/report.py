"""What a round says of itself: who was expected, who took part, who was left out and why."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from consilience.core.provenance import library_versions
from consilience.drawing.words import printable
from consilience.errors import FileFormatError, InputError
from consilience.federated.contribution import Announcement
from consilience.files.atomic import write_bytes
from consilience.files.document import check_version, parse_document

_BESIDE = {"format", "format_version", "library_version", "status"}
_REMEDY = "`consilience serve` writes it"
FORMAT, VERSION = "consilience-round", 1


@dataclass(frozen=True)
class Record:
    """What became of one contribution.

    Parameters
    ----------
    site, attempt, sha256, fisher_sha256
        As announced.
    bytes
        Length of its files.
    weight
        How much it counted, where it did.
    reasons
        Why it did not, where it did not.
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
        """Return the record of an announced contribution."""
        return cls(one.site, one.attempt, one.digest, one.fisher or None, reasons=reasons, **more)


@dataclass(frozen=True)
class RoundReport:
    """What a round says of itself; ``round.json``.

    Parameters
    ----------
    name, number
        Of the round; from 1 where there are several.
    expected
        Names of the sites that may take part.
    took_part
        Contributions that the fused model was made of.
    left_out
        Those that it was not, with the reasons.
    missing
        Expected sites that sent nothing.
    late
        Contributions that came after the round was closed.
    ignored
        Earlier attempts of a site that sent another.
    unknown
        Who else sent something: names as found, which were not looked at further.
    closed
        What ended the round: "all sites in", "deadline", or "given" where there was nothing to wait for.
    quorum, deadline
        Good contributions that it took, seconds that it would wait.
    method, seed
        How they were fused.
    problems
        Why nothing was fused; empty where something was.
    fused
        Digest and length of the fused file.
    convergence
        How much this round changed, where there are several; see `consilience.federated.convergence`.
    continues
        Whether another round follows, which sites take part in.
    """

    name: str
    number: int
    expected: tuple[str, ...]
    took_part: tuple[Record, ...] = ()
    left_out: tuple[Record, ...] = ()
    missing: tuple[str, ...] = ()
    late: tuple[Record, ...] = ()
    ignored: tuple[Record, ...] = ()
    unknown: tuple[str, ...] = ()
    closed: str = "given"
    quorum: int = 2
    deadline: float | None = None
    method: str | None = None
    seed: int = 0
    problems: tuple[str, ...] = ()
    fused: Mapping[str, Any] | None = None
    convergence: Mapping[str, Any] | None = field(default=None)
    continues: bool = False

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites that the fused model was made of."""
        return tuple(one.site for one in self.took_part)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        found: dict[str, Any] = {
            "format": FORMAT,
            "format_version": VERSION,
            "library_version": library_versions()["consilience"],
            "status": "failed" if self.problems else "fused",
        }
        for key, value in asdict(self).items():
            records = isinstance(value, tuple) and value and isinstance(value[0], dict)
            found[key] = [_brief(one) for one in value] if records else value
        return found

    def save(self, path: str | Path) -> None:
        """Write the report as JSON, whole or not at all.

        Raises
        ------
        InputError
            When the path cannot be written.
        """
        write_bytes(Path(path), self.to_bytes())

    def to_bytes(self) -> bytes:
        """Return the text of ``round.json``."""
        return (json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n").encode()

    @classmethod
    def from_bytes(cls, text: bytes) -> RoundReport:
        """Return the report that a ``round.json`` holds.

        Raises
        ------
        FileFormatError
            For anything else, or one of a later version.
        """
        document = parse_document(Path("round.json"), text, "content", _REMEDY)
        check_version(Path("round.json"), document, VERSION)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise FileFormatError(f"round.json: is no report of a round; {_REMEDY}")
        fields = {key: value for key, value in document.items() if key not in _BESIDE}
        try:
            return TypeAdapter(RoundReport).validate_python(fields)
        except ValidationError as error:
            raise FileFormatError(f"round.json: is not a valid report; {_REMEDY}") from error

    def lines(self) -> list[str]:
        """Return the report in lines for people."""
        weighed = len({one.weight for one in self.took_part}) > 1
        names = [one.site + (f" (weight {one.weight:g})" if weighed else "") for one in self.took_part]
        found = [f"round {self.number} closed ({self.closed}): {len(names)} of {len(self.expected)} sites took part"]
        found += [f"took part: {', '.join(names)}"] if names else []
        found += [f"left out: {one.site}: {printable(reason)}" for one in self.left_out for reason in one.reasons]
        found += [f"sent nothing: {', '.join(self.missing)}"] if self.missing else []
        found += [f"late: {one.site}, attempt {one.attempt}" for one in self.late]
        found += [f"ignored: {one.site}: {'; '.join(one.reasons)}" for one in self.ignored]
        found += [f"not expected: {', '.join(map(printable, self.unknown))}"] if self.unknown else []
        return found + [printable(problem) for problem in self.problems]

    def with_late(self, late: tuple[Record, ...]) -> RoundReport:
        """Return the report with what came after the round was closed."""
        return replace(self, late=late)


class RoundError(InputError):
    """A round ended without a fused model; ``report`` says who took part and what was wrong with the others."""

    def __init__(self, report: RoundReport) -> None:
        self.report = report
        super().__init__(report.lines())


def _brief(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record without what it does not say."""
    return {key: value for key, value in record.items() if value is not None and value != ()}
