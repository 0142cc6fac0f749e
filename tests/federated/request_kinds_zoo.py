"""Specimens of the kinds of requests: a fused model, and the rows of its sites."""

from functools import cache

import consilience as cs
from consilience.federated import REQUEST_KINDS
from tests.federated.network_sites import networks
from tests.federated.rounds import mixture, rows
from tests.specimens import Specimens

NAMES = [kind.name for kind in REQUEST_KINDS]


@cache
def mixtures():
    """Return a fusion of mixtures, and the rows of its sites."""
    return cs.fuse([mixture(seed) for seed in range(3)]), {site: rows(seed) for seed, site in enumerate("abc")}


SPECIMENS = Specimens(
    "SPECIMENS in tests/federated/request_kinds_zoo.py", {"em": mixtures, "head": networks, "gram": networks}
)
"""What gives a fused model and the data of every site, by kind."""
