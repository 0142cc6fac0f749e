"""Every golden fusion: a table of functions of an empty folder, which use nothing but the public names."""

from tests.golden import adapters, bayesian, checkpoints, draws, estimators, networks, posteriors, rounds, shards
from tests.golden.table import CASES

MODULES = (posteriors, adapters, networks, bayesian, shards, checkpoints, rounds, estimators, draws)
"""Importing these fills the table."""

__all__ = ["CASES", "MODULES"]
