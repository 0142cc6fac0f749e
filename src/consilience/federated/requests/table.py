"""The table of request kinds; a new kind is one file and one line here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consilience.api.kinds import KINDS, kind_of_file
from consilience.catalogue import suggestion
from consilience.errors import OptionError, UnsupportedError
from consilience.federated.requests.base import MAX_ROUNDS, RequestKind
from consilience.federated.requests.chain import ChainOfMerges
from consilience.federated.requests.choose import ChoiceAtSites
from consilience.federated.requests.density import LogDensities
from consilience.federated.requests.em import ExpectationMaximization
from consilience.federated.requests.gram import LayerGrams
from consilience.federated.requests.head import ExactHead
from consilience.federated.requests.moments4 import FourthMoments
from consilience.federated.requests.refine import Refinement

REQUEST_KINDS: tuple[RequestKind, ...] = (
    ExpectationMaximization(),
    Refinement(),
    ExactHead(),
    LayerGrams(),
    ChainOfMerges(),
    FourthMoments(),
    LogDensities(),
    ChoiceAtSites(),
)
"""Every kind of request."""


def request_kind(name: str, option: str = "request") -> RequestKind:
    """Return the kind of a name.

    `option` is what it was given as, for messages. Raises OptionError, listing all kinds, for a name that none has.
    """
    for kind in REQUEST_KINDS:
        if kind.name == name:
            return kind
    known = ", ".join(f"{kind.name} ({kind.summary})" for kind in REQUEST_KINDS)
    text = f"there is no kind {name!r:.80}{suggestion(name, [kind.name for kind in REQUEST_KINDS])}"
    raise OptionError(option, text, f"the kinds are: {known}")


@dataclass(frozen=True)
class Then:
    """What follows the first message of a round: so many requests of one kind, and what follows these.

    Parameters
    ----------
    kind : str
        Name of the kind.
    rounds : int
        Number of requests. Default: 1.
    after : Then, optional
        What follows them, of the model that they come to. Default: none.

    Examples
    --------
    >>> Then.parse("em:3")
    Then(kind='em', rounds=3, after=None)
    >>> str(Then.parse("head,choose"))
    'head:1,choose:1'
    """

    kind: str
    rounds: int = 1
    after: Then | None = None

    def __post_init__(self) -> None:
        request_kind(self.kind, "then")
        if not 1 <= self.rounds <= MAX_ROUNDS:
            raise OptionError("then", f"expected 1 to {MAX_ROUNDS} requests, found {self.rounds}")

    @classmethod
    def parse(cls, text: str) -> Then:
        """Return what a text such as ``em``, ``em:3`` or ``head,choose`` says.

        Raises
        ------
        OptionError
            For an unknown kind, and for a number that is not positive.
        """
        first, comma, rest = text.partition(",")
        kind, colon, rounds = first.strip().partition(":")
        if colon and not rounds.isdecimal():
            raise OptionError("then", f"expected KIND or KIND:N, such as em:3; found {first!r:.80}")
        return cls(kind, int(rounds) if colon else 1, cls.parse(rest) if comma else None)

    @classmethod
    def given(cls, then: str | Then | None) -> Then | None:
        """Return what an argument says, a text or what one says already."""
        return cls.parse(then) if isinstance(then, str) else then

    def __str__(self) -> str:
        return ",".join([f"{self.kind}:{self.rounds}", *([] if self.after is None else [str(self.after)])])

    @property
    def n_requests(self) -> int:
        """Number of all requests."""
        return self.rounds + (0 if self.after is None else self.after.n_requests)

    @property
    def asks_sites(self) -> bool:
        """Whether sites choose among fused candidates, in one of the requests."""
        return request_kind(self.kind).asks_held_out or (self.after is not None and self.after.asks_sites)

    def refuse_unfit(self, method: Any, expect: str | Path | None) -> None:
        """Raise before any site is asked where the models of the round are known, and have no such requests.

        Parameters
        ----------
        method : str, method or None
            How models are fused, which says their kind where it is not the recommended one.
        expect : path or None
            A file of the model that sites start from.

        Raises
        ------
        UnsupportedError
            Saying which models the requests are for.
        """
        if self.after is not None:
            self.after.refuse_unfit(method, expect)
        asked = request_kind(self.kind)
        name = getattr(method, "name", method)
        kinds = [kind for kind in KINDS if name is not None and kind.has_method(name)]
        remedy = f"{self.kind} is for {asked.supports}"
        if not asked.models:  # of every kind
            return
        if kinds and asked.models not in [kind.name for kind in kinds]:
            text = f"method {name!r} is for {kinds[0].name}, which have no request {self.kind!r}"
            raise UnsupportedError("then", text, remedy)
        if expect is not None and (kind := kind_of_file(expect)).name != asked.models:
            raise UnsupportedError("then", f"{expect} is of {kind.name}, which have no request {self.kind!r}", remedy)
