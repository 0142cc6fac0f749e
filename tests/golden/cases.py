"""Every golden fusion: a table of functions of an empty folder, which use nothing but the public names."""

from tests.golden import adapters, bayesian, checkpoints, networks, posteriors, rounds, shards
from tests.golden.table import CASES

MODULES = (posteriors, adapters, networks, bayesian, shards, checkpoints, rounds)
"""Importing these fills the table."""

__all__ = ["CASES", "MODULES"]
