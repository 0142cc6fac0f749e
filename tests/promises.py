"""Promises of a default are judged over seeds, with an interval: on one seed rounding decides them."""

import numpy as np
from scipy import stats

SEEDS = range(8)
"""Enough for an interval of the mean of half the width that four give, and few enough to train networks for."""


def lower_end(differences):
    """Return the lower end of the 95 % interval of a mean of paired differences, by Student's t."""
    differences = np.asarray(differences)
    error = differences.std(ddof=1) / np.sqrt(len(differences))
    return differences.mean() - stats.t.ppf(0.975, len(differences) - 1) * error
