"""Topic models of full size: five sites of ten topics over 12,500 words."""

from __future__ import annotations

import signal
from statistics import median
from types import FrameType
from typing import Any

import numpy as np
from timing import seconds

import consilience as cs

SITES, TOPICS, TRUE_TOPICS, WORDS, TOKENS, PRIOR, SPARSITY = 5, 10, 15, 12_500, 20_000, 0.1, 0.02
REPEATS, SEED, LIMIT = 3, 0, 180  # LIMIT: seconds after which a run is given up


def posteriors() -> list[cs.Posterior]:
    """Return sites that each hold some of the same topics, every topic counted from its own draw of words."""
    rng = np.random.default_rng(SEED)
    truth = rng.dirichlet(np.full(WORDS, SPARSITY), size=TRUE_TOPICS)
    family = cs.families.Dirichlet(dim=WORDS)
    sites = []
    for _ in range(SITES):
        own = rng.choice(TRUE_TOPICS, size=TOPICS, replace=False)
        counts = np.stack([rng.multinomial(TOKENS, truth[topic]) for topic in own])
        sites.append(cs.Posterior(family, family.to_natural(concentration=PRIOR + counts)))
    return sites


def run_topics() -> dict[str, Any]:
    """Time a default fusion, or say that it did not end within the limit."""
    given = posteriors()
    names = (
        "sites",
        "topics",
        "true_topics",
        "words",
        "tokens_per_topic",
        "prior",
        "sparsity",
        "repeats",
        "seed",
        "limit",
    )
    values = (SITES, TOPICS, TRUE_TOPICS, WORDS, TOKENS, PRIOR, SPARSITY, REPEATS, SEED, LIMIT)
    found: dict[str, Any] = {"seconds": [], "median": None, "found": None}
    signal.signal(signal.SIGALRM, _give_up)
    try:
        for _ in range(REPEATS):
            signal.alarm(LIMIT)
            time, fusion = seconds(lambda: cs.fuse(given, min_count=0))
            found["seconds"].append(time)
            found["found"] = fusion.n_components
        found["median"] = median(found["seconds"])
    except TimeoutError:
        found["gave_up_after"] = LIMIT
    finally:
        signal.alarm(0)
    return {"settings": dict(zip(names, values, strict=True)), "results": found}


def _give_up(_number: int, _frame: FrameType | None) -> None:
    raise TimeoutError
