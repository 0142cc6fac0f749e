"""Candidates of the default fusion of Bayesian networks on the same inputs, with the same samples of their weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from consilience.checks import Array
from consilience.errors import InputError, UnsupportedError
from consilience.networks.choice.candidate import Candidate
from consilience.networks.choice.compare import CandidateComparison
from consilience.networks.choice.inputs import ChoiceInputs
from consilience.networks.choice.rows import Rows
from consilience.networks.choice.teacher import Teacher
from consilience.networks.gaussian.choice.workshop import BayesianWorkshop
from consilience.networks.gaussian.network import BayesianNetwork


def all_to_compare(inputs: ChoiceInputs, n_inputs: int) -> ChoiceInputs:
    """Return inputs of which all compare, `n_inputs` at most, since nothing here is fitted or stopped.

    Raises UnsupportedError for networks of several inputs, or that answer several rows to each.
    """
    sets = (inputs.held, inputs.fit, inputs.early)
    tensors = [of_set.inputs for of_set in sets if isinstance(of_set.inputs, Tensor) and of_set.positions is None]
    if len(tensors) < len(sets):
        raise UnsupportedError("Bayesian networks are compared by one row for each input, of one tensor")
    rows = torch.cat(tensors)
    if inputs.held.labels is None:
        return replace(inputs, held=Rows(rows[:n_inputs]))
    labels = np.concatenate([of_set.labels for of_set in sets if of_set.labels is not None])
    return replace(inputs, held=Rows(rows[:n_inputs], labels[:n_inputs]))


@dataclass(eq=False)
class BayesianComparison(CandidateComparison):
    """Bayesian networks on the same inputs, one of which is chosen; see ``Comparison``."""

    workshop: BayesianWorkshop

    @cached_property
    def seed(self) -> int:
        """Seed of the samples of all weights, the same for every candidate."""
        return int(self.rng.integers(2**62))

    @property
    def teacher(self) -> Teacher:
        """The ensemble of all sites.

        Raises UnsupportedError where sites describe networks that do not classify: a Bayesian network predicts classes.
        """
        if self.workshop.sites.is_regression:
            raise UnsupportedError("sites describe no classes, and these networks are compared by those they predict")
        return super().teacher

    @property
    def one_output(self) -> None:
        """Nothing: predictive probabilities have a column for every class."""

    def _outputs(self, model: BayesianNetwork, rows: Rows) -> Array:
        """Return predictive probabilities (n, C)."""
        try:
            return model.predict(rows.inputs, self.workshop.method.n_samples, self.seed)
        except InputError as error:
            raise UnsupportedError(str(error)) from error

    @property
    def max_made(self) -> int:
        """Number of candidates besides the sites' networks: KL-fusion and the other averages."""
        return 1 + len(list(self.workshop.averages()))

    def _made(self, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
        """Yield KL-fusion and the other averages; none of the candidates is fitted further."""
        yield self.workshop.base_candidate
        for name, make in self.workshop.averages():
            if self._is_too_late(name):
                continue
            with self._or_noted(name):
                yield make()
