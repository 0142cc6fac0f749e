"""Simulated sequences of well-separated Gaussian states, and the models of two sites that saw some of the states."""

from functools import cache

import numpy as np

from consilience.posteriors.hidden_markov.learner import StickyHDPHMM

CENTRES = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0], [9.0, 9.0], [-9.0, 4.0]])
SITES = ((0, 1, 2, 3), (4, 2, 1))


@cache
def simulated(states, lengths=(150, 90, 60), seed=0, stay=0.95):
    """Rows (n, 2), true states (n,) and lengths of sequences that visit these states."""
    rng = np.random.default_rng(seed)
    labels = []
    for length in lengths:
        state = rng.choice(states)
        for _ in range(length):
            labels.append(state)
            if rng.random() > stay:
                state = rng.choice([other for other in states if other != state])
    labels = np.array(labels)
    return CENTRES[labels] + rng.normal(size=(len(labels), 2)), labels, np.array(lengths)


@cache
def fitted(site=0, **options):
    rows, _, lengths = simulated(SITES[site], seed=site)
    return StickyHDPHMM(**{"n_states": 8, "n_init": 2, **options}).fit(rows, lengths)
