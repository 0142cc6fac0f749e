"""Every method for Bayesian networks: what the laws of all methods run on."""

import consilience as cs
from consilience.networks.gaussian.methods import (
    BAYESIAN_METHODS,
    BayesianAuto,
    KLNetworkFusion,
    NetworkAverage,
    NetworkEnsembleMethod,
)
from tests.specimens import Specimens

SPECIMENS = Specimens(
    "SPECIMENS in tests/networks/gaussian/methods_zoo.py",
    {
        "auto": BayesianAuto(n_inputs=200, n_samples=8),
        "kl": KLNetworkFusion(regularization=0.3),
        "w2": cs.methods.PosteriorAlignment(),
        "average": NetworkAverage(),
        "ensemble": NetworkEnsembleMethod(),
    },
)
"""By the method's name; a new method is a new entry here."""
NAMES = [kind.name for kind in BAYESIAN_METHODS]
"""What the laws run over: the table itself."""
