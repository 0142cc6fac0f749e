"""Federated rounds: sites send their models, a server fuses them, over a folder, a bucket or Flower."""

from consilience.federated.contribution import Announcement, Contribution
from consilience.federated.flower.place import flower_place
from consilience.federated.flower.server import serve_flower
from consilience.federated.folder.answer import Answered, answer_folder
from consilience.federated.folder.masked_site import answer_masked, send_masked
from consilience.federated.folder.server import serve_folder
from consilience.federated.folder.site import Sent, receive_folder, send_folder, take_part
from consilience.federated.masking.exchange import TookPart
from consilience.federated.masking.network_sum import SumNoise
from consilience.federated.masking.table import Masked
from consilience.federated.plan import RoundPlan
from consilience.federated.report import Record, RoundError, RoundReport
from consilience.federated.requests.base import (
    Answer,
    Reduction,
    RequestKind,
    RoundRequest,
    StandingAnswer,
    read_answer,
    read_request,
    write_message,
)
from consilience.federated.requests.exchange import Round, answer, exchange, finish, reduce, request
from consilience.federated.requests.table import REQUEST_KINDS, Then
from consilience.federated.round import RoundResult, run_round

__all__ = [
    "REQUEST_KINDS",
    "Announcement",
    "Answer",
    "Answered",
    "Contribution",
    "Masked",
    "Record",
    "Reduction",
    "RequestKind",
    "Round",
    "RoundError",
    "RoundPlan",
    "RoundReport",
    "RoundRequest",
    "RoundResult",
    "Sent",
    "StandingAnswer",
    "SumNoise",
    "Then",
    "TookPart",
    "answer",
    "answer_folder",
    "answer_masked",
    "exchange",
    "finish",
    "flower_place",
    "read_answer",
    "read_request",
    "receive_folder",
    "reduce",
    "request",
    "run_round",
    "send_folder",
    "send_masked",
    "serve_flower",
    "serve_folder",
    "take_part",
    "write_message",
]
