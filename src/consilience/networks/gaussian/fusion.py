"""Results of fusing Bayesian networks: a fused posterior over weights with its matching, or the ensemble of all.

The ensemble is the mixture of all posteriors, a reference that costs all of them. Its predictive distribution is p(y |
x) = sum_j w_j p_j(y | x), the weighted mean of those of the J members. With counts of classes it is the pooled one
under label shift, w_j then depending on x: ``networks.classes.stationary``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from consilience.checks import Array
from consilience.core.kind import ensemble_is_no_file
from consilience.drawing.display import Displayed, names_in_line
from consilience.drawing.words import format_count, printable
from consilience.errors import InputError
from consilience.networks.descriptions.description import Description
from consilience.networks.fusion import NetworkFusion
from consilience.networks.gaussian.files import write_bayesian_network
from consilience.networks.gaussian.network import BayesianNetwork
from consilience.networks.inputs import content_digest
from consilience.networks.summary import MAX_GROUPS, summary_lines


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


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class BayesianFusion(NetworkFusion):
    """A fused Bayesian network and how it came about.

    It is a NetworkFusion with arrays of means and of standard deviations in `network`. ``model`` is a
    `consilience.BayesianNetwork`, which can predict where a module of the architecture is known.
    """

    no_file = ensemble_is_no_file("kl")

    @cached_property
    def ensemble(self) -> BayesianEnsemble:
        """All networks side by side, whose predictive probabilities are averaged by weight.

        Where every site says the counts of its classes it is the stationary ensemble, which is exact under label shift.

        Raises
        ------
        InputError
            When the networks came without a module.
        """
        if self.keeps_models:
            ensemble: BayesianEnsemble = self.model
            return ensemble
        members = [] if self._rebuild is None else [self._rebuild(local.network) for local in self._members]
        if not members or any(member.module is None for member in members):
            remedy = "give `module=`, one of the architecture"
            raise InputError("models", "these came without a module", remedy, "E-NEEDED")
        sites = self._sites
        return BayesianEnsemble(tuple(members), sites.weights, sites.observed_counts, class_priors(sites.descriptions))

    @staticmethod
    def _content_digest(model: Any) -> str:
        return content_digest(model.stored_arrays)

    def _summary_lines(self) -> Sequence[str]:
        return summary_lines(self, "Bayesian networks", self._sharing(), self._is_comparable)

    def _is_comparable(self, group: str) -> bool:
        """Return whether all sites have all units: distances to a unit that a site lacks would mean nothing."""
        return all(bool(moves[group].owned.all()) for moves in self.transports)

    def _sharing(self) -> list[str]:
        """Return the numbers of sites per fused unit, and the divergences before and after alignment, a line each."""
        details = self.details
        lines = []
        for group, facts in list(details.get("groups", {}).items())[:MAX_GROUPS]:
            counts = [f"{count} of {format_count(n, 'site')}" for n, count in enumerate(facts["shared"], 1) if count]
            lines.append(f"group {printable(group)}: {', '.join(counts[:MAX_GROUPS])}")
        if "distance_after" in details:
            before, after = details["distance_before"], details["distance_after"]
            lines.append(f"distance of posteriors ({details['metric']}): {before:.6g} -> {after:.6g}")
        return lines

    @property
    def _n_parameters(self) -> int:
        return super()._n_parameters // 2  # a mean and a deviation for every weight

    @property
    def needs_repair(self) -> bool:
        """Whether there are statistics to repair: none, since weights are random."""
        return False

    has_averaged_statistics = scales_twice_in_training = needs_repair

    def _write(self, path: Path) -> None:
        write_bayesian_network(path, self.model, provenance=self.record)

    def _write_page(self, path: Path, **shown: Any) -> None:
        from consilience.networks.gaussian.report import write  # here, so that fusing needs no pages

        write.write_bayesian_content(path, write.bayesian_content_of(self._shown(), **shown))
