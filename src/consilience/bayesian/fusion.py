"""Result of fusing Bayesian networks: a fused posterior over weights, its matching and provenance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from consilience.bayesian.ensemble import BayesianEnsemble, class_priors
from consilience.bayesian.files import write_bayesian_network
from consilience.core.kind import ensemble_is_no_file
from consilience.drawing.words import format_count, printable
from consilience.errors import InputError
from consilience.networks.choice.sites import Sites
from consilience.networks.fusion import NetworkFusion
from consilience.networks.summary import MAX_GROUPS, summary_lines


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
        members = [] if self._rebuild is None else [self._rebuild(local.network) for local in self.inputs]
        if not members or any(member.module is None for member in members):
            raise InputError(
                "models", "these came without a module", "give `module=`, one of the architecture", "E-NEEDED"
            )
        descriptions = tuple(local.description for local in self.inputs)
        weights = np.array([local.weight for local in self.inputs])
        sites = Sites(tuple(local.name for local in self.inputs), weights, descriptions)
        return BayesianEnsemble(tuple(members), weights, sites.observed_counts, class_priors(descriptions))

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

    def report(self, path: str | Path, **shown: Any) -> None:
        """Write a page about the fusion, whole or not at all: one HTML file without scripts that fetches nothing.

        Parameters
        ----------
        path : str or Path
            Path of the page; usually ``*.html``.
        **shown
            As for networks, and ``predictions``: results of `consilience.predictive_scores` by name of the model, such
            as ``{"site 0": ..., "fused": ...}``. With ``images``, arrays (n, h, w) of the inputs by name of a model
            among these, the page shows the inputs of which that model is most and least certain.

        Raises
        ------
        InputError
            When the path cannot be written, or what is to be shown is something else.
        """
        from consilience.bayesian.report.write import (
            write_bayesian_page,  # here, so that fusing needs no pages  # here, so that fusing starts without the pages
        )

        write_bayesian_page(Path(path), self._shown(), **shown)
