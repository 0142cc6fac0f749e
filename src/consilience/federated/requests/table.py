"""The table of request kinds; a new kind is one file and one line here."""

from __future__ import annotations

from dataclasses import dataclass

from consilience.errors import OptionError
from consilience.federated.requests.base import RequestKind
from consilience.federated.requests.chain import ChainOfMerges
from consilience.federated.requests.density import LogDensities
from consilience.federated.requests.em import ExpectationMaximization
from consilience.federated.requests.files import MAX_ROUNDS
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
)
"""Every kind of request."""


def request_kind(name: str) -> RequestKind:
    """Return the kind of a name.

    Raises
    ------
    OptionError
        Listing all kinds, for a name that none has.
    """
    for kind in REQUEST_KINDS:
        if kind.name == name:
            return kind
    known = ", ".join(f"{kind.name} ({kind.summary})" for kind in REQUEST_KINDS)
    raise OptionError("request", f"there is no kind {name!r:.80}", f"the kinds are: {known}")


@dataclass(frozen=True)
class Then:
    """What follows the first message of a round: so many requests of one kind.

    Parameters
    ----------
    kind : str
        Name of the kind.
    rounds : int
        Number of requests. Default: 1.

    Examples
    --------
    >>> Then.parse("em:3")
    Then(kind='em', rounds=3)
    """

    kind: str
    rounds: int = 1

    def __post_init__(self) -> None:
        request_kind(self.kind)
        if not 1 <= self.rounds <= MAX_ROUNDS:
            raise OptionError("then", f"expected 1 to {MAX_ROUNDS} requests, found {self.rounds}")

    @classmethod
    def parse(cls, text: str) -> Then:
        """Return what a text such as ``em`` or ``em:3`` says.

        Raises
        ------
        OptionError
            For an unknown kind, and for a number that is not positive.
        """
        kind, colon, rounds = text.strip().partition(":")
        if colon and not rounds.isdecimal():
            raise OptionError("then", f"expected KIND or KIND:N, such as em:3; found {text!r:.80}")
        return cls(kind, int(rounds) if colon else 1)

    def __str__(self) -> str:
        return f"{self.kind}:{self.rounds}"
