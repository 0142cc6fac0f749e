"""What files of this library are called, by the format that their documents state, and what takes them."""

from __future__ import annotations

from collections.abc import Mapping

POSTERIOR, SHARD, STATISTICS = "consilience-posterior", "consilience-shard", "consilience-statistics"
DRAWS, BAYESIAN, NETWORK = "consilience-draws", "consilience-bayesian", "consilience-network"
FISHER, DESCRIPTION = "consilience-fisher", "consilience-description"

PARQUET = ".parquet"
"""Suffix of shards that are tables."""

_FUSE = "use `fuse`, with others of its kind"
_ROUND = "leave it in the folder of its round"

OUR_FORMATS: Mapping[str, tuple[str, str]] = {
    NETWORK: ("a network", _FUSE),
    FISHER: ("a file of Fisher information", "give it with its network: method 'fisher', `fishers=`"),
    DESCRIPTION: ("a description", "give it with the network that it describes"),
    POSTERIOR: ("a posterior file", _FUSE),
    STATISTICS: ("a statistics file", _FUSE),
    DRAWS: ("a draws file", _FUSE),
    BAYESIAN: ("a Bayesian network", _FUSE),
    SHARD: ("a shard of many posteriors", _FUSE),
    "consilience-request": ("a request of a round", _ROUND),
    "consilience-answer": ("an answer of a round", _ROUND),
    "consilience-masked": ("a masked message of a round", _ROUND),
    "consilience-barrier": ("a loss barrier", "show it in a report: `consilience report`"),
    "consilience-plane": ("a loss plane", "show it in a report: `consilience report`"),
}
"""Noun and remedy of every format of safetensors files that this library writes."""


def misplaced(tag: object, expected: str) -> tuple[str, str]:
    """Return the problem with a file of one of our formats where something else is expected, and its remedy.

    Examples
    --------
    >>> misplaced("consilience-plane", "a network")
    ('is a loss plane, expected a network', 'show it in a report: `consilience report`')
    """
    called, remedy = OUR_FORMATS.get(str(tag), (f"a file of format {tag!r}", "update consilience"))
    return f"is {called}, expected {expected}", remedy
