"""The default fusion of Bayesian networks: candidates are made, compared by their predictions, and one is returned.

Sites, inputs, teacher, criterion, rule and verdict are those of networks without variances (``networks.choice``). What
a candidate answers is its predictive distribution, by the same samples of the weights for all; and what candidates
there are is in ``workshop``. Nothing is fitted to inputs, so that all that are drawn compare.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np

from consilience.bayesian.choice.workshop import BayesianWorkshop
from consilience.bayesian.methods.auto import BayesianAuto
from consilience.bayesian.shared_symmetry import BayesianNetworksWithSymmetry
from consilience.core.progress import Progress
from consilience.networks.choice.candidate import CandidateOptions
from consilience.networks.choice.default import fuse_by_choice
from consilience.networks.choice.sites import Sites
from consilience.networks.choice.verdict import Choice
from consilience.networks.fuse_aligned import NetworkArguments
from consilience.networks.fusion import NetworkFusion

if TYPE_CHECKING:
    from consilience.networks.choice.inputs import ChoiceInputs


def fuse_by_default(
    models: BayesianNetworksWithSymmetry,
    sites: Sites,
    arguments: NetworkArguments,
    method: BayesianAuto,
    matching_rng: np.random.Generator,
    choice_rng: np.random.Generator,
    progress: Progress,
) -> NetworkFusion:
    """Return the fusion of Bayesian networks that was chosen among candidates, without provenance.

    `models` and `sites` are in the order of the call; `method` has the bounds on work. One generator is for the
    matching, one for inputs and samples.
    """
    started = time.monotonic()
    input_rng, sample_rng = choice_rng.spawn(2)
    workshop = BayesianWorkshop(models, sites, arguments, None, method, matching_rng, progress)

    def compare(inputs: ChoiceInputs) -> Choice:
        from consilience.bayesian.choice.compare import BayesianComparison, all_to_compare  # here, since it needs torch

        held = all_to_compare(inputs, method.n_inputs)
        options = CandidateOptions(max_seconds=method.max_seconds)
        return BayesianComparison(workshop, held, sample_rng, started, options).choose()

    return fuse_by_choice(workshop, method.matching, math.ceil(method.n_inputs / ALL_PER_FIT), compare, input_rng)


ALL_PER_FIT = 3.25
"""Inputs in all three sets that are drawn, for each one to fit on: 1 + ``EARLY_PER_FIT`` + ``HELD_PER_FIT`` of
``networks.choice.inputs``, which needs torch."""
