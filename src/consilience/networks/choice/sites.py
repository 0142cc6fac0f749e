"""What all sites of a fusion say together: weights, counts by class, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from consilience.checks import Array, as_weights
from consilience.core.inputs import in_order, stated_numbers
from consilience.networks.classes.shares import MAX_SKEW_OF_ALIKE, class_skew
from consilience.networks.descriptions.description import Description


@dataclass(frozen=True, eq=False)
class Sites:
    """The J sites of a fusion, in canonical order."""

    names: tuple[str, ...]  # names of the sites
    weights: Array  # (J,), weight of each, summing to one
    descriptions: tuple[Description | None, ...]  # what each says of its network
    # Whether the caller, or every site, said what a network counts; else they count equally.
    are_weights_stated: bool = True
    # (J,), observations of every site; None where one is silent, or the caller gave other weights.
    n_observations: Array | None = None
    # (J, C), distribution of the classes at every site, as far as the networks tell it, for sites that do not say
    # counts.
    estimated_classes: Array | None = None

    def take(self, chosen: Sequence[int]) -> Sites:
        """Return some of the sites, by number and in that order; weights stay as they are."""
        return Sites(
            tuple(self.names[number] for number in chosen),
            self.weights[list(chosen)],
            tuple(self.descriptions[number] for number in chosen),
            self.are_weights_stated,
            None if self.n_observations is None else self.n_observations[list(chosen)],
        )

    @cached_property
    def described(self) -> tuple[Description, ...] | None:
        """The descriptions where every site with a vote gives one; None otherwise."""
        voting = [
            description for description, weight in zip(self.descriptions, self.weights, strict=True) if weight > 0
        ]
        given = tuple(description for description in voting if description is not None)
        return given if len(given) == len(voting) else None

    @property
    def describe_inputs(self) -> bool:
        """Whether every site with a vote described its network from data."""
        return self.described is not None and all(one.input_shape is not None for one in self.described)

    @cached_property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes, where the sites name them."""
        return next((d.classes for d in self.descriptions if d is not None and d.classes is not None), None)

    @property
    def is_regression(self) -> bool:
        """Whether sites describe networks that do not classify."""
        says_labels = (
            description is not None and description.input_shape is not None for description in self.descriptions
        )
        return self.classes is None and any(says_labels)

    def of_output(self, place: int) -> Sites:
        """Return the sites as they describe the labels of one of several outputs."""
        described = [
            None
            if said is None or not said.output_labels
            else replace(
                said,
                classes=(of_output := said.output_labels[place]).classes,
                class_counts=of_output.counts,
                withheld=(),
                class_moments={},
                class_mixtures={},
                class_tokens={},
                class_features=None,
                own_error=None,
            )
            for said in self.descriptions
        ]
        return replace(self, descriptions=tuple(described))

    @property
    def by_output(self) -> list[Sites]:
        """The sites as they describe each of several outputs; empty where none does, or where there is one output."""
        n_outputs = max((len(one.output_labels) for one in self.descriptions if one is not None), default=0)
        return [self.of_output(place) for place in range(n_outputs)]

    @property
    def answer_mean(self) -> dict[str, Any]:
        """How the ensemble averages answers, as arguments of `AnswerMean`."""
        if self.ensemble_counts is None:
            return {"mean": "logits" if self.is_regression else "probabilities"}
        priors = ["own" if one is None else one.class_prior for one in self.descriptions]
        counts = {"class_counts": self.ensemble_counts, "class_prior": priors, "classes": self.classes}
        return {"mean": "stationary", **counts}

    def classify(self, place: int) -> bool | None:
        """Return whether one of several outputs tells classes apart; None where no site says."""
        said = (one.output_labels[place] for one in self.descriptions if one is not None and one.output_labels)
        first = next(said, None)
        return None if first is None else first.classes is not None

    @cached_property
    def class_counts(self) -> Array | None:
        """What each site's observations of each class count (J, C), in units of weight; None where a site is silent.

        Where weights are numbers of observations these are the counts over their sum. Where they are estimated, those
        of all sites are.
        """
        if self.estimated_classes is not None:
            return self.weights[:, None] * self.estimated_classes
        rows = []
        for description, weight in zip(self.descriptions, self.weights, strict=True):
            counts = None if description is None else description.class_counts
            if counts is None and weight > 0:
                return None
            rows.append(None if counts is None else weight * counts / max(counts.sum(), 1.0))
        n_classes = next((len(row) for row in rows if row is not None), 0)
        if not any(row is not None and row.any() for row in rows):  # every label was ignored
            return None
        return np.array([np.zeros(n_classes) if row is None else row for row in rows])

    @cached_property
    def have_classes_alike(self) -> bool | None:
        """Whether sites have their classes alike, where these are given or estimated; None elsewhere."""
        return None if self.class_counts is None else class_skew(self.class_counts) < MAX_SKEW_OF_ALIKE

    @property
    def ensemble_counts(self) -> Array | None:
        """The counts (J, C) that the ensemble is weighed by: those observed, else estimated ones in units of weight."""
        return self.class_counts if self.observed_counts is None else self.observed_counts

    @property
    def estimated_by_name(self) -> dict[str, list[float]] | None:
        """The estimated distribution of classes of every site, by its name; None where none was estimated."""
        if self.estimated_classes is None:
            return None
        return dict(zip(self.names, self.estimated_classes.tolist(), strict=True))

    @property
    def information_weights(self) -> Array:
        """Weights (J,) of precisions that are sums over observations: none by number, or they would count twice."""
        equal = np.full(len(self.names), 1.0 / len(self.names))
        return self.weights if self.n_observations is None else equal

    @property
    def observed_counts(self) -> Array | None:
        """The counts (J, C) in observations; None where a site is silent."""
        if self.class_counts is None or self.estimated_classes is not None:
            return None
        counts: Array = self.class_counts * sum(d.n_observations for d in self.descriptions if d is not None)
        return counts


def weigh_sites(
    names: Sequence[str], weights: Any, n_observations: Any, said: Sequence[float | None]
) -> tuple[Array, bool, Array | None]:
    """Return weights (J,) that sum to 1, whether anybody stated them, and the observations (J,) where these weigh.

    What the caller of ``fuse`` says weighs, `weights` first; else the observations as sites say them (`said`), where no
    site is silent. Raises OptionError for anything but a number for each site.
    """
    numbers = stated_numbers(n_observations, names)
    stated = None
    if weights is not None:
        stated = as_weights(in_order(weights, names, "weights"), len(names))
    elif numbers is not None:
        stated = np.array(numbers)
    elif n_observations is None and None not in said:
        stated = np.array(said, dtype=np.float64)
    if stated is None:
        return np.full(len(names), 1.0 / len(names)), n_observations is not None, None
    return stated / stated.sum(), True, stated if weights is None else None
