"""A site's part in masked sums over any transport: read what the server agreed on, answer, and forget the secret.

The server publishes, and a site reads, by these names:

    server/plan.json                      that the round is masked, and its sites
    server/M/masked.json                  the plan of sum M
    server/M/expected.safetensors         the expected file, or the request, that the sum is made of
    server/M/agreed-STEP                  what the server agreed on after a step; after step 2 agreed-2/NAME each
    server/M/round.json                   the report, and fused.safetensors, the model

A site's message of step K of sum M has the number 5 (M - 1) + K. Everything that it must not forget while the sum goes
on is in a folder of its own, which nobody else can read: its secret, and the messages that it has sent. A site that was
killed goes on from there, and the folder is removed when the sum is over. What stays is the record of opened sums, by
which the site refuses those that would reveal another site's numbers (`OpenedSums`).
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from consilience.errors import InputError, Problem
from consilience.federated.masking.fixed_point import Words
from consilience.federated.masking.messages import CONFIRM, DEAL, MASK, REVEAL, STEPS, Message, read_message
from consilience.federated.masking.opened import OpenedSums
from consilience.federated.masking.plan import MaskedPlan
from consilience.federated.masking.site import MaskedSite, numbers_digest
from consilience.federated.masking.site_secret import SiteSecret
from consilience.federated.masking.summands import Summand
from consilience.federated.masking.table import summand_of_plan
from consilience.federated.report import RoundReport
from consilience.files.atomic import write_bytes
from consilience.files.document import parse_document
from consilience.files.limits import Limits, exceeded_limits
from consilience.files.opening import read_file, read_text
from consilience.files.safetensors_file import SafetensorsFile

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FIRST_PAUSE, MAX_PAUSE = 0.05, 2.0
"""Seconds between looks for what the server publishes: doubled from the first to the longest. Chosen by hand."""

MAX_PLAN_BYTES = 2**24
"""Bytes of a plan or report that are read at most. Chosen by hand: a plan has some hundred bytes for each site."""

Say = Callable[[str], None]


class Mailbox(Protocol):
    """A site's end of a transport."""

    @property
    def where(self) -> str:
        """What messages call the place."""

    def read(self, name: str, max_bytes: int) -> bytes | None:
        """Return what the server published under a name; None while there is nothing, or it cannot be reached."""

    def send(self, number: int, data: bytes) -> None:
        """Send a message of a number; the same again is nothing."""


@dataclass(frozen=True)
class TookPart:
    """A site's part in masked sums that are over."""

    site: str  # name of the site
    report: RoundReport  # the report of the last sum
    sums: int  # how many there were
    bytes: int  # length of all messages that were sent
    warnings: tuple[str, ...] = field(default=())  # to the site, before it sent anything


@dataclass(eq=False)
class MaskedPart:
    """A site in the masked sums of one round."""

    mailbox: Mailbox  # the transport
    site: str  # name of this site
    signing_key: Ed25519PrivateKey  # its long-term key
    source: Any  # what its numbers are made of: its files, or its rows
    work: Path  # its own folder, which keeps the record of opened sums from round to round
    timeout: float  # seconds to wait for what the server publishes next
    # Public keys of all sites, known from elsewhere. Default: those in the plan, which the server can fabricate.
    signing_keys: Mapping[str, bytes] | None
    say: Say  # called with each line for people
    limits: Limits = field(default_factory=Limits)

    def run(self, receive: Path | None = None) -> TookPart:
        """Take part in all sums of the round, and write the model to `receive`: that of the sum before one that failed.

        Raises InputError for a plan that this site does not agree to, a server that departs from the protocol, a sum
        that failed, and where nothing came in time.
        """
        number, sent, warnings, is_warned = 1, 0, list[str](), False
        report: RoundReport | None = None  # of the sum before
        while True:
            plan = self._plan(number)
            ended = self._ended(number, plan)
            if ended is not None and not (self.work / plan.round_id.hex()).exists():
                if not ended.continues:
                    raise InputError(self.mailbox.where, "this round is over; nothing was sent", code="E-ROUND")
                number, report = number + 1, ended  # without this site, or it was killed after it had taken part
                continue
            folder = self._private_folder(plan.round_id)
            try:
                summand = self._summand(number, plan, folder)
                for line in [] if is_warned else self._warnings(plan, summand):
                    warnings.append(line)
                    self.say(line)
                is_warned = True
                sent += self._answer_steps(number, plan, summand, folder)
                report = self._report(number, plan)
            except InputError as error:
                if not (isinstance(error, _TimeoutError) or error.may_pass):  # what was refused is not taken up again
                    self._forget(folder)
                if isinstance(error, _FailedError) and report is not None and receive is not None:
                    self._receive(number - 1, report, receive)
                raise
            self._forget(folder)
            if not report.continues:
                if receive is not None:
                    self._receive(number, report, receive)
                return TookPart(self.site, report, number, sent, tuple(warnings))
            number += 1

    def _plan(self, number: int) -> MaskedPlan:
        """Return the plan of a sum, once it is published, if this site agrees to it."""
        label = f"{self.mailbox.where}: server/{number}/masked.json"
        self._refuse_open_round()
        data = self._wait(number, None, f"server/{number}/masked.json", MAX_PLAN_BYTES, "no plan")
        plan = MaskedPlan.from_json(parse_document(Path("masked.json"), data, "content", ""), label)
        if self.site not in plan.keys and number > 1:
            text = f"was not in sum {number - 1}, and a later one with it would reveal what it sends; nothing was sent"
            raise InputError(self.site, text, "take part in another round", "E-ROUND")
        if self.site not in plan.keys:
            raise InputError(self.site, f"is not a site of the masked sum in {self.mailbox.where}", code="E-ROUND")
        if self.signing_keys is not None:
            wrong = [site for site, key in plan.keys.items() if self.signing_keys.get(site) != key]
            if wrong:
                text = f"has another signing key of {', '.join(wrong)} than this site knows, or this site knows none"
                remedy = "ask that site for its public key by another way than this server"
                raise InputError(label, text, remedy, "E-ROUND")
        return plan

    def _refuse_open_round(self) -> None:
        """Raise where the round in this place is not masked: numbers would leave bare."""
        data = self._wait(1, None, "server/plan.json", MAX_PLAN_BYTES, "no plan")
        document = parse_document(Path("plan.json"), data, "content", "`consilience round open` writes it")
        if not isinstance(document, dict) or document.get("masked") is not True:
            raise InputError(self.mailbox.where, "this round is not masked; nothing was sent", "send openly", "E-ROUND")

    def _warnings(self, plan: MaskedPlan, summand: Summand) -> list[str]:
        """Return what the site should know before it sends anything."""
        lines = plan.warnings() + summand.warnings(plan)
        if self.signing_keys is None:
            lines.append(
                "the keys of the other sites come from the server, which could play them all; give the folder of their"
                f" signing keys (`signing_keys=`), or compare this number with the other sites: {keys_digest(plan)}"
            )
        return lines

    def _private_folder(self, round_id: bytes) -> Path:
        """Return the folder of one sum, which nobody else can read."""
        folder = self.work / round_id.hex()
        self.work.mkdir(parents=True, exist_ok=True)
        for other in self.work.iterdir():  # of a round in this place that failed while this site was away
            place = other / "place"
            if other != folder and place.is_file() and read_text(place) == self.mailbox.where:
                shutil.rmtree(other)
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)
        (folder / "place").write_text(self.mailbox.where)
        return folder

    def _forget(self, folder: Path) -> None:
        """Remove the secret of a sum that is over."""
        shutil.rmtree(folder, ignore_errors=True)
        try:
            self.work.rmdir()
        except OSError:  # other sums are going on there
            return

    def _secret(self, folder: Path) -> SiteSecret:
        path = folder / "secret.json"
        if path.exists():
            return SiteSecret.from_json(read_text(path), str(path))
        secret = SiteSecret.random()
        _write_private(path, secret.to_json())
        return secret

    def _summand(self, number: int, plan: MaskedPlan, folder: Path) -> Summand:
        """Return what is summed, made of the expected file that the plan names."""
        name = f"server/{number}/expected.safetensors"
        path = folder / "expected.safetensors"
        if not path.exists():
            data = self._wait(number, plan, name, self.limits.file_bytes, "no expected file")
            if sha256(data).hexdigest() != plan.content.get("expected"):
                raise InputError(self.mailbox.where, f"{name} is not the file that the plan names", code="E-ROUND")
            write_bytes(path, data)
        file = SafetensorsFile(path, f"{self.mailbox.where}: {name}")
        if problems := exceeded_limits(file, self.limits):
            raise InputError(problems)
        summand = summand_of_plan(file, plan, self.site)
        if summand.length != plan.length:
            raise InputError(name, f"makes {summand.length} numbers, and the plan has {plan.length}", code="E-SHAPE")
        return summand

    def _answer_steps(self, number: int, plan: MaskedPlan, summand: Summand, folder: Path) -> int:
        """Send the messages of all steps; return their length."""
        secret = self._secret(folder)
        machine = MaskedSite(plan, self.site, self.signing_key, secret)
        opened = OpenedSums(self.work / "opened", self.mailbox.where)
        words: list[Words] = []
        if not (folder / f"step-{MASK}").exists():  # before anything is sent: it may not fit
            words.append(summand.words(self.source, len(plan.sites), plan.fractional_bits))
            opened.refuse_other_numbers(summand.state, numbers_digest(words[0]))
            for line in summand.site_lines:
                self.say(f"sum {number}: {line}")
        agreed: list[Message] = []
        sent = 0
        for step in STEPS:
            path = folder / f"step-{step}"
            if not path.exists():
                message = _message(machine, step, agreed, words)
                group = {site: plan.keys[site] for site in agreed[MASK - 1].sites} if step > MASK else {}
                if step == CONFIRM:
                    opened.refuse_near(group, summand.state)
                elif step == REVEAL:
                    opened.record(group, summand.state, secret.numbers)
                _write_private(folder / "secret.json", secret.to_json())  # what was promised, before it is said
                write_bytes(path, message.data)
            data = read_file(path)
            self.mailbox.send(5 * (number - 1) + step, data)
            sent += len(data)
            if step != REVEAL:
                agreed.append(self._agreed(number, plan, step, folder))
        return sent

    def _agreed(self, number: int, plan: MaskedPlan, step: int, folder: Path) -> Message:
        """Return what the server agreed on after a step."""
        name = f"server/{number}/agreed-{step}" + (f"/{self.site}" if step == DEAL else "")
        path = folder / f"agreed-{step}"

        def of_this_round(data: bytes) -> bool:
            """Return whether a message is none of a round that failed before in this place; keep it if so."""
            write_bytes(path, data)
            file = SafetensorsFile(path, f"{self.mailbox.where}: {name}")
            if problems := exceeded_limits(file, self.limits):
                path.unlink()
                raise InputError(problems)
            if read_message(file).round_id == plan.round_id:
                return True
            path.unlink()
            return False

        if not path.exists():
            self._wait(number, plan, name, self.limits.file_bytes, f"nothing after step {step}", of_this_round)
        return read_message(SafetensorsFile(path, f"{self.mailbox.where}: {name}"))

    def _report(self, number: int, plan: MaskedPlan) -> RoundReport:
        """Return the report of a sum that has come to an end; raise for one that failed."""
        self.say(f"sum {number}: all is sent, waiting for the sum")

        def of_this_round(data: bytes) -> bool:
            return (RoundReport.from_bytes(data).masked or {}).get("round") == plan.round_id.hex()

        name = f"server/{number}/round.json"
        return RoundReport.from_bytes(self._wait(number, plan, name, MAX_PLAN_BYTES, "no report", of_this_round))

    def _ended(self, number: int, plan: MaskedPlan) -> RoundReport | None:
        """Return the report of this very sum, where it has ended with a model."""
        data = self.mailbox.read(f"server/{number}/round.json", MAX_PLAN_BYTES)
        report = None if data is None else RoundReport.from_bytes(data)
        if report is None or report.problems or (report.masked or {}).get("round") != plan.round_id.hex():
            return None
        return report

    def _receive(self, number: int, report: RoundReport, target: Path) -> None:
        """Write the model, checked against the digest in the report."""
        record = report.fused or {}
        data = self._wait(number, None, f"server/{number}/fused.safetensors", self.limits.file_bytes, "no model")
        if sha256(data).hexdigest() != record.get("sha256"):
            raise InputError(self.mailbox.where, "the fused model is not what its report says", code="E-ROUND")
        write_bytes(target, data)

    def _wait(
        self,
        number: int,
        plan: MaskedPlan | None,
        name: str,
        max_bytes: int,
        missing: str,
        accepts: Callable[[bytes], bool] = lambda _data: True,
    ) -> bytes:
        """Return what the server publishes under a name, or raise where the sum failed meanwhile or time is over."""
        pause, deadline = FIRST_PAUSE, time.monotonic() + self.timeout
        while True:
            data = self.mailbox.read(name, max_bytes)
            if plan is not None:
                self._raise_failure(number, plan)
            if data is not None and accepts(data):
                return data
            if time.monotonic() >= deadline:
                raise _TimeoutError(self.mailbox.where, f"published {missing} within {self.timeout:g} s")
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(2.0 * pause, MAX_PAUSE)

    def _raise_failure(self, number: int, plan: MaskedPlan) -> None:
        """Raise where the report of this very sum says that it failed."""
        data = self.mailbox.read(f"server/{number}/round.json", MAX_PLAN_BYTES)
        if data is None:
            return
        report = RoundReport.from_bytes(data)
        if report.problems and (report.masked or {}).get("round") == plan.round_id.hex():
            stays = f"; the model of sum {number - 1} stays" if number > 1 else ""
            raise _FailedError([Problem(self.mailbox.where, f"masked sum {number} failed{stays}"), *report.lines()])


class _TimeoutError(InputError):
    """Nothing came in time; the site may go on later."""


class _FailedError(InputError):
    """The server's report says that the sum failed."""


def _message(machine: MaskedSite, step: int, agreed: list[Message], words: list[Words]) -> Message:
    """Return a site's message of a step."""
    if step < MASK:
        return machine.advertise() if not agreed else machine.deal(agreed[0])
    if step == MASK:
        return machine.mask(agreed[0], agreed[1], words[0])
    return machine.confirm(*agreed) if step == CONFIRM else machine.reveal(*agreed)


def keys_digest(plan: MaskedPlan) -> str:
    """Return a short digest of the sites' keys, which people can compare."""
    text = json.dumps({site: key.hex() for site, key in plan.keys.items()}, sort_keys=True)
    digest = sha256(text.encode()).hexdigest()[:32]
    return " ".join(digest[start : start + 4] for start in range(0, len(digest), 4))


def _write_private(path: Path, text: str) -> None:
    """Write a file that its owner alone reads, whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    partial.touch(mode=0o600)
    with partial.open("w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)
