"""The tables of what is refused, by kind of model and by command."""

from __future__ import annotations

from tests.refusals.tables.bayesian import CASES as BAYESIAN
from tests.refusals.tables.checkpoints import CASES as CHECKPOINTS
from tests.refusals.tables.commands import CASES as COMMANDS
from tests.refusals.tables.draws import CASES as DRAWS
from tests.refusals.tables.libraries import CASES as LIBRARIES
from tests.refusals.tables.networks import CASES as NETWORKS
from tests.refusals.tables.posteriors import CASES as POSTERIORS

TABLES = (POSTERIORS, NETWORKS, BAYESIAN, CHECKPOINTS, COMMANDS, LIBRARIES, DRAWS)
