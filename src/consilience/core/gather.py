"""Inputs of every kind, gathered: files are read and objects converted, and all that is wrong with them is found.

What is given twice, and what counts twice since it was fused from what is given too, is found here for all kinds.
Inputs are known by digests of files and of contents. How an object is converted, and what must agree between sites, is
a kind's own (`Reading`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Generic, Self, TypeVar

from numpy.linalg import LinAlgError

from consilience.catalogue import said_once
from consilience.checks import Json
from consilience.core.agreement import Doubt, Meaning, doubts_of, twice
from consilience.core.inputs import NamedInput, refuse_other_kind
from consilience.core.provenance import NO_ANCESTORS, ancestors_of, bound_provenance
from consilience.errors import InputError, Problem, UnsupportedError
from consilience.files.format import Format, Record
from consilience.files.safetensors_file import SafetensorsFile

MAX_SHARED = 5
"""Sites that a message names at most. Chosen by hand."""

Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class Described(Generic[Value]):
    """An input and what it was described as."""

    # name, label: its name in results, and in messages
    name: str
    label: str
    value: Value  # what takes part in the fusion
    original: Value  # the value as it was handed in
    reading: Reading[Value]  # how it was read
    digest: str | None  # SHA-256 of its file; None for an object in memory
    # Names of what a fused file was fused from, by their digests
    ancestors: Mapping[str, str] = field(default_factory=lambda: NO_ANCESTORS)
    model: object = None  # the object in memory that was handed in; None for a file

    @cached_property
    def content_digest(self) -> str:
        """Digest of the value as it was handed in; computed when asked for, since there may be very many."""
        return self.reading.digest_of(self.original)

    @property
    def rests_on(self) -> dict[str, str]:
        """Names, by digests, of the input itself and of all that it was fused from."""
        own = {digest: self.name for digest in (self.digest, self.content_digest) if digest}
        return {**own, **self.ancestors}

    def record(self, components: int, weight: float | None, labels: Sequence[int]) -> dict[str, Json]:
        """Return what the provenance of a fused file says of the input.

        `labels` are the fused components of its own; `weight` is None where that is not known.
        """
        of_file = {} if self.digest is None else {"sha256": self.digest}
        return {"name": self.name, "components": components, "weight": weight, **of_file, "labels": list(labels)}

    def fields(self) -> dict[str, Any]:
        """Return the fields, of which a kind makes a description with more of them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def with_value(self, value: Value) -> Self:
        """Return the input described by another value; what was handed in stays."""
        return self if value is self.value else replace(self, value=value)


class Reading(ABC, Generic[Value]):
    """How the inputs of a kind become values: what `gather` asks of it."""

    called: str
    """What a file of the kind is called: "a draws file"."""
    names_inputs: bool = False
    """Whether what is wrong with an object is said with the name of its input already."""

    def takes(self, file: NamedInput) -> bool:
        """Return whether a file is to be read, whose reader says what else it is; all others are refused here."""
        del file
        return True

    @abstractmethod
    def read(self, file: SafetensorsFile) -> tuple[Value, Record]:
        """Return what is in a file, with its provenance; raises InputError for what is no model of the kind."""

    def read_many(self, files: Sequence[SafetensorsFile]) -> Iterable[tuple[Value, Record] | InputError]:
        """Yield what `read` returns or raises for files that are taken, one after another."""
        for file in files:
            try:
                yield self.read(file)
            except InputError as error:
                yield error

    @abstractmethod
    def convert(self, one: NamedInput) -> tuple[Value, Record]:
        """Return the object in memory of an input as a value, and its provenance where it was fused.

        Raises InputError or UnsupportedError for what is no model of the kind.
        """

    def settle(self, value: Value, one: NamedInput, place: int, problems: list[Problem]) -> Value:
        """Return a value with what the call says of the input at a place; what can wait is added to `problems`.

        Raises InputError for a value that cannot take part; `gather` names the input.
        """
        del one, place, problems
        return value

    def digest_of(self, value: Value) -> str:
        """Return the digest of what a value says; "" where its numbers stay in a file that is not read."""
        digest: str = value.digest  # type: ignore[attr-defined]
        return digest

    def digested(self, value: Value) -> Value:
        """Return a value whose digest is known: it is compared with those of what another one was fused from."""
        return value

    def meaning_of(self, value: Value) -> Meaning:
        """Return what a value says that must mean the same at all sites; nothing, where a kind has no such thing."""
        del value
        return Meaning()


class FormatReading(Reading[Value]):
    """How inputs are read whose files are of one `Format`, all documents before any tensor."""

    format: Format[Any, Value]

    def takes(self, file: NamedInput) -> bool:
        """Return whether a file is of the format."""
        return file.format == self.format.tag

    def read(self, file: SafetensorsFile) -> tuple[Value, Record]:
        """Return what is in a file; see `Format.read`."""
        return self.format.read(file)

    def read_many(self, files: Sequence[SafetensorsFile]) -> Iterable[tuple[Value, Record] | InputError]:
        """Return what is in files; see `Format.read_many`."""
        return self.format.read_many(files)


@dataclass(frozen=True, eq=False)
class Gathered(Generic[Value]):
    """All inputs of a fusion, and what is wrong or in doubt with them."""

    described: list[Described[Value]]  # those that could be described, in their order
    problems: list[Problem]  # why they cannot be fused, each said once
    doubts: list[Doubt]  # why they may not mean the same


def gather(inputs: Sequence[NamedInput], reading: Reading[Value]) -> Gathered[Value]:
    """Return all inputs described, with everything that is wrong or in doubt.

    A file that is given twice, and a fused model beside what it was fused from, are wrong. Other copies are in doubt.
    """
    described, unsettled, problems = _describe(inputs, reading)
    if any(site.ancestors for site in described):  # only then digests of files have to be known
        digests = {one.name: one.file.digest for one in inputs if one.file is not None}
        described = [
            replace(site, digest=digests.get(site.name), original=reading.digested(site.original)) for site in described
        ]
    problems += [*_files_given_twice(inputs, described), *counted_twice([*described, *unsettled])]
    if problems:
        return Gathered(described, said_once(problems), [])
    return Gathered(described, [], doubts_among(described, reading))


def doubts_among(described: Sequence[Described[Value]], reading: Reading[Value]) -> list[Doubt]:
    """Return why inputs may not mean the same: copies of one another, and what the others say that differs oddly."""
    doubts = _copies(described, reading)
    copied = {doubt.problem.subject for doubt in doubts}
    others = [site for site in described if site.label not in copied]
    return [*doubts, *doubts_of([(site.label, reading.meaning_of(site.original)) for site in others])]


def aligned_doubts(described: Sequence[Described[Value]], reading: Reading[Value]) -> list[Doubt]:
    """Return the doubts among inputs whose columns were aligned, of their values as they stand now."""
    return doubts_among([replace(site, original=site.value) for site in described], reading)


def _describe(
    inputs: Sequence[NamedInput], reading: Reading[Value]
) -> tuple[list[Described[Value]], list[Described[Value]], list[Problem]]:
    """Return the inputs that could be described, those that could be read and not settled, and what is wrong."""
    described: list[Described[Value]] = []
    unsettled: list[Described[Value]] = []
    problems: list[Problem] = []
    taken = [(one.label, one.file) for one in inputs if one.file is not None and reading.takes(one)]
    contents = iter(reading.read_many([file for _, file in taken]) if taken else ())
    for place, one in enumerate(inputs):
        names_itself = reading.names_inputs
        try:
            if one.file is None:
                (value, record), digest = reading.convert(one), None
            else:
                names_itself = True  # as readers of files do
                if not reading.takes(one):
                    refuse_other_kind(one, reading.called, taken[0][0] if taken else None)
                value, record = _content(next(contents))
                names_itself, digest = reading.names_inputs, one.file.sha256
            read = Described(one.name, one.label, value, value, reading, digest, ancestors_of(record), one.model)
            if not read.ancestors and (ancestors := ancestors_of(_bound(read))):
                read = replace(read, ancestors=ancestors)
            unsettled.append(read)
            described.append(read.with_value(reading.settle(value, one, place, problems)))
            unsettled.pop()
        except (InputError, UnsupportedError) as error:
            problems += [problem if names_itself else problem.about(one.label) for problem in error.problems]
        except (ArithmeticError, LinAlgError) as error:
            if one.file is None:
                raise
            text = f"has numbers with which nothing can be calculated ({error!s:.120})"
            problems.append(Problem(one.label, text, "fit it again, and save it again", "E-NUMBER"))
    return described, unsettled, problems


def _bound(read: Described[Any]) -> Mapping[str, Json] | None:
    """Return the provenance that a model in memory carries, as it was read."""
    return bound_provenance(read.model, lambda _: read.content_digest)


def _content(read: tuple[Value, Record] | InputError) -> tuple[Value, Record]:
    """Return what was read from a file; raise where that failed."""
    if isinstance(read, InputError):
        raise read
    return read


def _files_given_twice(inputs: Sequence[NamedInput], described: Sequence[Described[Any]]) -> list[Problem]:
    """Return which inputs are one file, a line each; without a look at files whose digests are known to differ."""
    digests = [site.digest for site in described if site.model is None]
    are_known = None not in digests and len(set(digests)) == len(digests)
    return [] if are_known else files_given_twice(inputs)


def _copies(described: Sequence[Described[Value]], reading: Reading[Value]) -> list[Doubt]:
    """Return which inputs say the very same as an earlier one; files that are the same are refused elsewhere."""
    first: dict[str, Described[Value]] = {}
    doubts = []
    for site in described:
        if not (digest := site.content_digest):
            continue
        other = first.setdefault(digest, site)
        if other is site or (site.digest is not None and site.digest == other.digest):
            continue
        is_same = site.model is not None and site.model is other.model
        if not is_same and reading.meaning_of(site.original).is_idempotent:
            continue
        shared = "is the same object as" if is_same else "has the same contents as"
        doubts.append(twice(site.label, f"{shared} {other.label}: it counts twice"))
    return doubts


def counted_twice(described: Sequence[Described[Any]]) -> list[Problem]:
    """Return which inputs were fused from others that are given too, or share a site with one, a line each.

    What is compared are digests of files and of contents. Copies of a model are not refused: they may be meant.
    """
    problems: list[Problem] = []
    fused = [site for site in described if site.ancestors]
    labels = {site.label for site in described}
    for number, site in enumerate(fused):
        for other in described:
            if other is not site and set(other.rests_on) & set(site.ancestors) - set(other.ancestors):
                text = f"was fused from {other.label}, which is given too: it would count twice"
                remedy = f"leave {other.label} out, or fuse the sites' own files"
                problems.append(Problem(site.label, text, remedy, "E-TWICE"))
        for other in fused[number + 1 :]:
            if shared := sorted({site.ancestors[digest] for digest in set(site.ancestors) & set(other.ancestors)}):
                names = ", ".join(shared[:MAX_SHARED]) + (", ..." if len(shared) > MAX_SHARED else "")
                text = f"was fused from {names}, as {site.label} was"
                if not labels.isdisjoint(shared):  # names of an earlier fusion, which mean other models here
                    text = f"was fused from a model that {site.label} was fused from too"
                text = f"{text}: what they share would count twice"
                problems.append(Problem(other.label, text, "fuse the sites' own files", "E-TWICE"))
    return problems


def files_given_twice(inputs: Sequence[NamedInput]) -> list[Problem]:
    """Return which files have the same contents as an earlier one, a line each; only files of equal size are hashed."""
    by_size: dict[int, list[NamedInput]] = defaultdict(list)
    for one in inputs:
        if one.file is not None:
            with suppress(OSError, ValueError):  # said by whoever reads it
                by_size[one.file.path.stat().st_size].append(one)
    problems: list[Problem] = []
    for alike in by_size.values():
        first_of_digest: dict[str, NamedInput] = {}
        for one in alike if len(alike) > 1 else []:
            assert one.file is not None  # noqa: S101  (narrows the type; only files have a size)
            first = first_of_digest.setdefault(one.file.sha256 or one.file.digest, one)
            if first is not one:
                problems.append(Problem(one.label, f"is the same file as {first.label}", "leave one out", "E-TWICE"))
    return problems
