"""Every matching of a few components, for brute force."""

import numpy as np

from consilience.posteriors.ensemble import Stack


def stacked(family, natural, sizes):
    return Stack(family, natural, np.concatenate([[0], np.cumsum(sizes)]), np.ones(sum(sizes)))


def matchings(sizes):
    """Labels of every set partition in which no block has two components of one site."""
    owner = np.repeat(np.arange(len(sizes)), sizes)

    def extend(labels):
        row = len(labels)
        if row == len(owner):
            yield np.array(labels)
            return
        for label in range(max(labels, default=-1) + 2):
            if all(owner[other] != owner[row] for other in range(row) if labels[other] == label):
                yield from extend([*labels, label])

    return list(extend([]))
