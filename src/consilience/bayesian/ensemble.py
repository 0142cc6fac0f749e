"""Ensembles of Bayesian networks: the mixture of their posteriors, a reference that costs all of them.

The predictive distribution is p(y | x) = sum_j w_j p_j(y | x), the weighted mean of those of the J members. With counts
of classes it is the pooled one under label shift, w_j then depending on x: ``networks.classes.stationary``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.bayesian.network import BayesianNetwork
from consilience.checks import Array
from consilience.drawing.display import Displayed, names_in_line
from consilience.drawing.words import format_count
from consilience.networks.descriptions.description import Description


@dataclass(frozen=True, eq=False, repr=False)
class BayesianEnsemble(Displayed):
    """Networks side by side, whose predictive probabilities are averaged."""

    members: tuple[BayesianNetwork, ...]  # the J networks, each with a module
    weights: Array  # (J,), weight of each member, summing to 1
    # (J, C): Observations of every class at the site of each member. Default: weighed by `weights`.
    class_counts: Array | None = None
    # tuple of {"own", "removed"}: Whether a member's probabilities contain the frequencies of its site's classes, which
    # are else put back; see ``consilience.describe``. Default: all do.
    class_priors: tuple[str, ...] | None = None

    def _headline(self) -> str:
        return f"{format_count(len(self.members), 'Bayesian network')} side by side"

    def _facts(self) -> dict[str, object | None]:
        return {
            "members": names_in_line([member.name for member in self.members]),
            "weights": names_in_line([f"{weight:.3g}" for weight in self.weights.tolist()]),
            "combined": "by the counts of classes" if self.class_counts is not None else "by weight",
        }

    def predict(
        self, inputs: Any, samples: int = 128, rng: int | np.random.Generator = 0, batch_size: int = 4096
    ) -> Array:
        """Return predictive probabilities (n, n_classes); see `BayesianNetwork.predict`.

        `samples` are of the weights of each member, which draws from a child of `rng` of its own.
        """
        children = np.random.default_rng(rng).spawn(len(self.members))
        answers = [  # (n, n_classes) each
            member.predict(inputs, samples, child, batch_size)
            for member, child in zip(self.members, children, strict=True)
        ]
        if self.class_counts is not None:
            from consilience.networks.choice.teacher import stationary_answers  # here, since fusing needs no torch

            are_removed = [prior == "removed" for prior in self.class_priors or ("own",) * len(self.members)]
            return stationary_answers(np.stack(answers), self.class_counts, are_removed)
        mixture: Array = np.sum(
            [weight * answer for weight, answer in zip(self.weights.tolist(), answers, strict=True)], axis=0
        )
        return mixture


def class_priors(descriptions: Sequence[Description | None]) -> tuple[str, ...]:
    """Return whether the probabilities of each network contain the frequencies of its site's classes."""
    return tuple("own" if description is None else description.class_prior for description in descriptions)
