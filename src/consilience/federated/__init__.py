"""Federated rounds: sites send their models, a server fuses them, over a folder, a bucket or Flower."""

from consilience.federated.contribution import Announcement, Contribution
from consilience.federated.flower.server import serve_flower
from consilience.federated.flower.site import send_flower
from consilience.federated.folder.server import serve_folder
from consilience.federated.folder.site import Sent, receive_folder, send_folder, take_part
from consilience.federated.plan import RoundPlan
from consilience.federated.report import Record, RoundError, RoundReport
from consilience.federated.round import RoundResult, run_round

__all__ = [
    "Announcement",
    "Contribution",
    "Record",
    "RoundError",
    "RoundPlan",
    "RoundReport",
    "RoundResult",
    "Sent",
    "receive_folder",
    "run_round",
    "send_flower",
    "send_folder",
    "serve_flower",
    "serve_folder",
    "take_part",
]
