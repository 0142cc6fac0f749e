"""Word counts of topics, rounded: how often a rare word is in the texts of a site is then not said to the last digit.

A topic has of each word the prior and the expected number of its tokens. Over all topics these add up to the count of
the word in all texts, exactly: of a name that one text has, how often it has it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from consilience.checks import Array, is_number
from consilience.errors import InputError, OptionError
from consilience.families import Dirichlet
from consilience.posteriors.posterior import Posterior

_LEAST = 2.0
"""Smallest step that hides whether a word is there once or not at all."""
_ROUNDING = 1e-6
"""Difference of a count from a multiple, as a part of the step, that is rounding of sums."""


def with_rounded_counts(posterior: Posterior, step: float) -> Posterior:
    """Return topics whose word counts are multiples of a step, halves up.

    Examples
    --------
    >>> counts = np.array([[0.7, 12.9, 2.6]])
    >>> topics = Posterior(Dirichlet(3), counts - 0.9, prior=np.full(3, -0.9), counts=counts.sum(axis=1))
    >>> rounded = with_rounded_counts(topics, 5.0)
    >>> rounded.natural - rounded.prior, rounded.counts
    (array([[ 0., 15.,  5.]]), array([20.]))
    """
    if not is_number(step) or step < _LEAST:
        raise OptionError("round_counts", f"expected a number of {_LEAST:g} or more, found {step!r}")
    if not isinstance(posterior.family, Dirichlet) or posterior.prior is None or posterior.counts is None:
        raise OptionError("round_counts", "is for topic models, and this model is none; leave it out")
    counts = step * np.floor((posterior.natural - posterior.prior) / step + 0.5)
    if not np.any(counts > 0):
        text = f"leaves no word: no topic has {step / 2:g} tokens of any"
        raise InputError("round_counts", text, "take a smaller number", "E-FEW")
    return replace(posterior, natural=posterior.prior + counts, counts=counts.sum(axis=1))


def rounding_of(natural: Array, prior: Array) -> float | None:
    """Return the step of which all word counts are multiples; None where they are not rounded.

    Examples
    --------
    >>> rounding_of(np.array([[-0.9, 14.1, 4.1]]), np.full(3, -0.9))
    5.0
    """
    counts = natural - prior
    some = counts[counts > _ROUNDING]
    if not some.size or (step := float(some.min())) < _LEAST * (1.0 - _ROUNDING):
        return None
    multiples = counts / step
    is_rounded = bool(np.all(np.abs(multiples - np.rint(multiples)) < _ROUNDING * np.maximum(multiples, 1.0)))
    return float(f"{step:.6g}") if is_rounded else None
