"""Candidates of the default fusion that are made of networks: averaged, refitted, distilled; see ``default``."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from consilience.checks import Array
from consilience.errors import UnsupportedError
from consilience.networks.choice.candidate import Candidate, Effort
from consilience.networks.choice.compare import CandidateComparison
from consilience.networks.choice.rows import Rows, outputs_of
from consilience.networks.choice.verdict import MAX_GAP
from consilience.networks.choice.workshop import Workshop
from consilience.networks.classes.heads import class_heads, refit_head
from consilience.networks.classes.logits import TwoClasses, as_probabilities
from consilience.networks.classes.shares import MAX_SKEW_OF_ALIKE, class_shares, class_skew
from consilience.networks.distillation import Distilled, distill, has_batch_norm, part_way
from consilience.networks.example import BATCH_SIZE, Example
from consilience.networks.fusion import NetworkFusion
from consilience.networks.methods.baselines import NetworkAverage
from consilience.networks.methods.distill import LEARNING_RATE
from consilience.networks.methods.fisher.merging import FisherMerging
from consilience.networks.methods.optimal_transport import OTFusion
from consilience.networks.output_layout import inner_network
from consilience.networks.repair.anchor import anchor
from consilience.networks.repair_fusion import refit_fusion

N_DISTILLED = 2
"""Fused candidates that are distilled further: the best on early inputs. Chosen by hand, as a bound on time."""
LEARNING_RATE_NEAR = 3e-4
"""Rate of a distillation on matched images of a start that is near the ensemble (`MAX_GAP`). VGG11 of 84 to 86 %
(disagreement 0.2) fell by 1 to 5 points at 1e-3 (three pairs; a fourth had 85.2, 85.5 and 85.5 from 84.2 at 1e-3, 3e-4
and 1e-4), ResNet-8 (0.26) gained 1.1 by either; where a start is far, 1e-3 gained 4 to 14 (MobileNet 0.45, sites that
differ in their classes 0.35 to 0.7). 3e-4 was not tried there. Of pairs that did not shape it none was run."""
_MADE = (
    "matched", "average", "class_heads", "fisher", "side_by_side", "refit", "refit_head", "refit_activations",
    "refit_activations_head", "distill(side_by_side)", "distill(site)",
)  # fmt: skip
"""Candidates at most, besides the `N_DISTILLED` networks that are distilled of fused ones."""
_BY_ACTIVATIONS = OTFusion(cost="activations")


@dataclass(eq=False)
class NetworkComparison(CandidateComparison):
    """Sites' own networks and what is made of them on the same inputs, one of which is chosen; see ``Comparison``."""

    @cached_property
    def _on_images(self) -> tuple[Array, Array]:
        """What the sites' networks answer on images to distil on and to stop by (J, n, k)."""
        fit, early = self.inputs.to_distil
        return self._site_outputs(fit), self._site_outputs(early)

    @property
    def max_made(self) -> int:
        """Largest number of candidates besides the sites' networks."""
        return len(_MADE) + N_DISTILLED

    def _made(self, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
        """Yield what is made of the networks, given all candidates so far, which grow meanwhile."""
        rng, distill_rng = self.rng.spawn(2)
        yield from self.averages()
        yield from self.refitted(rng)
        yield from self._distilled(candidates, distill_rng)

    def averages(self) -> Iterator[Candidate]:
        """Yield the base, the base with the rows of its head by class, and that by Fisher information."""
        workshop, base = self.workshop, self.workshop.base_candidate
        yield base
        if workshop.is_common_start:
            average = workshop.averaged(NetworkAverage())
            yield Candidate("average", Effort.AVERAGE, average.model, average)
        counts = self.sites.class_counts
        if counts is not None and self.classifies:
            with self._or_noted("class_heads"):
                module = self._with_class_heads(base.module, class_shares(counts, self.sites.weights))
                yield Candidate("class_heads", Effort.CLASS_HEADS, module, base.base, "rows of the head by class")
        if workshop.information is not None and not self._is_too_late("fisher"):
            with self._or_noted("fisher"):
                fusion = workshop.averaged(FisherMerging())
                yield Candidate("fisher", Effort.FISHER, fusion.model, fusion)
        yield from self._side_by_side(workshop)

    def _side_by_side(self, workshop: Workshop) -> Iterator[Candidate]:
        """Yield the best sites' own networks side by side in one, where a wider network has room for at least two."""
        if not workshop.is_wider or self._is_too_late("side_by_side"):
            return
        with self._or_noted("side_by_side"):
            sites = [of for of in self.workshop.site_candidates() if workshop.ordered.weights[of.sites[0]] > 0]
            order = [candidate.sites[0] for candidate in self.best(sites, len(sites))]
            early = self.inputs.early
            candidate = workshop.side_by_side_candidate(order, lambda module: outputs_of(self._as_rows(module), early))
            if candidate is not None and (len(candidate.sites) == len(sites) or self._sites_stand_for_all):
                yield candidate

    def _with_class_heads(self, module: nn.Module, shares: Array) -> nn.Module:
        """Return a copy of the base whose head has the rows of the sites' heads, by their shares in each class."""
        head = self.workshop.head
        if head is None:
            raise UnsupportedError("the networks do not end in a linear layer")
        order = self.workshop.order
        rows = class_heads([self.workshop.base.aligned[i].arrays for i in order], head, shares)
        copied = copy.deepcopy(module)
        state = copied.state_dict()
        copied.load_state_dict({**state, **{key: torch.as_tensor(rows[key]).to(state[key]) for key in rows}})
        return copied

    def refitted(self, rng: np.random.Generator) -> Iterator[Candidate]:
        """Yield the base with its layers refitted, and with its head then fitted to the ensemble."""
        if not self.options.refit or self._keeps_near_sites or self._is_too_late("refit"):
            return
        workshop, inputs, layout = self.workshop, self.inputs.fit.inputs, self.inputs.layout
        has_head = layout is None or not (layout.has_positions or self._heads)  # one, of a row for each input
        for name, base in self._bases_to_refit(inputs).items():
            if self._is_too_late(name, "refit"):
                continue
            with self._timed("refit"):
                fusion = refit_fusion(base, workshop.order, None, inputs, rng)
            if fusion.repaired is None:
                self.notes.append(f"{name} was left out: {fusion.details['refit']}")
                continue
            yield Candidate(name, Effort.REFITTED, fusion.model, base, fusion.repaired)
            if not has_head:
                continue
            with self._or_noted(f"{name}_head"):
                is_softmax = self.classifies and self.one_output is None
                module = refit_head(fusion.model, inputs, self._head_targets, is_softmax=is_softmax)
                made = f"{fusion.repaired}; head fitted to the sites' ensemble"
                yield Candidate(f"{name}_head", Effort.REFITTED_HEAD, module, base, made)

    @cached_property
    def _head_targets(self) -> torch.Tensor:
        """What a head is fitted to (n, C)."""
        targets = torch.as_tensor(self.teacher.head_targets(self.on_fit, self.inputs.fit.inputs))
        return targets if self.one_output is None else targets[:, 1:] - targets[:, :1]  # log odds

    def _bases_to_refit(self, inputs: torch.Tensor | Example) -> dict[str, NetworkFusion]:
        """Return the fusions whose layers are refitted: the base, and by what units answer on inputs."""
        workshop = self.workshop
        bases = {"refit": workshop.base}
        # Among inputs drawn by class it gained nothing (five settings, four of experiments/network_battery), and the
        # best of more candidates that were fitted to synthetic inputs is more often worse than a site on real ones.
        can_match = not workshop.is_common_start and workshop.has_equal_widths
        if can_match and self.inputs.fit.labels is None:
            with self._or_noted("refit_activations"):
                bases["refit_activations"] = workshop.averaged(_BY_ACTIVATIONS, inputs[:BATCH_SIZE])
        return bases

    def _distilled(self, candidates: Sequence[Candidate], rng: np.random.Generator) -> Iterator[Candidate]:
        """Yield the best candidates so far, distilled from the ensemble."""
        if not self.options.steps or self._is_too_late("distill"):
            return
        starts = self.starts(candidates)
        for start, stream in zip(starts, rng.spawn(len(starts)), strict=True):
            name = _distilled_name(start)
            if self._is_too_late(name):
                continue
            with self._or_noted(name):
                left = self._seconds_left
                candidate, _ = self.distil(start, stream, steps=self.options.steps, max_seconds=left)
                if candidate is not None:
                    yield candidate

    def starts(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates to distil: the best fused ones, and the sites' own networks.

        Of IID sites the best one's, in a wider network several side by side. On real inputs these are above what is
        fused of independently initialised networks.
        """
        fused = [candidate for candidate in candidates if not candidate.sites]
        if not self._are_sites_near:
            return self.best(fused, N_DISTILLED)
        side_by_side = [candidate for candidate in candidates if len(candidate.sites) > 1]
        sites = [candidate for candidate in candidates if candidate.site is not None and candidate.is_eligible]
        if self._keeps_near_sites:
            scores, _ = self._scored(sites, self.inputs.early, self.on_early)
            return [sites[scores.best_site(range(len(sites)))]]
        best_site = self.best(sites if self.workshop.has_equal_widths else [], 1)
        return [*self.best(fused, N_DISTILLED), *side_by_side, *best_site]

    @property
    def _keeps_near_sites(self) -> bool:
        """Whether nothing is made that is far from a site's own network, which may be taken.

        What is fitted of fused networks to inputs drawn for IID sites is better on these by more than a site's own
        distilled half of the way, and seldom on real ones: -7.3 to 0.2 points from the best site in fifteen settings
        of images, -0.9 and 2.9 in two of texts, but -0.6 to 1.0 from where it started half of the way
        (docs/evidence/networks_default.md). Rows of numbers gain by it.
        """
        return self.inputs.keeps_near_sites and self.workshop.has_own_widths

    def start(self, candidates: Sequence[Candidate]) -> Candidate:
        """Return the one candidate to distil: the best of these, and no fitted one that may not be taken for a site."""
        starts = self.starts(candidates)
        best = self.best(starts, 1)[0]
        sites = [candidate for candidate in starts if self._stands_for_sites(candidate)]
        if sites and best.effort.is_fitted:
            return self.compare([*sites, best]).taken
        return best

    @property
    def _are_sites_near(self) -> bool:
        """Whether sites' own networks are near the ensemble: where sites have their classes alike.

        Where these are neither given nor estimated, the sites' mean answers on the inputs to fit on replace them.
        """
        if not self.classifies:
            return False
        if self.sites.class_counts is not None:
            return self._are_classes_alike
        answers = np.stack([as_probabilities(of_site).mean(axis=0) for of_site in self.on_fit])  # (J, C)
        return bool(class_skew(answers) < MAX_SKEW_OF_ALIKE)

    def distil(
        self, start: Candidate, rng: np.random.Generator, *, is_anchored: bool = True, **options: Any
    ) -> tuple[Candidate | None, Distilled[nn.Module]]:
        """Return a candidate trained to answer as the ensemble, None where nothing was gained, and how training went.

        Half of a target is the drawn class where there is one. Batch normalisation that kept its statistics is anchored
        afterwards. A site's own network goes half of the way: over 24 ensembles of IID sites that moved accuracy by
        -1.0 to 0.9 points, the whole way by -1.3 to 2.0 (experiments/synthetic_inputs/halfway.py). Only where the base
        has the models' layers is it anchored (`is_anchored`). `on_draws` says whether batch normalisation learns its
        statistics from synthetic inputs, besides which there are better ones; `options` are those of
        `consilience.networks.distillation.distill`.
        """
        is_normed = has_batch_norm(start.module)
        if is_normed and self.inputs.images is not None:
            (fit, early), of_sites = self.inputs.images, self._on_images
        else:
            fit, early, of_sites = self.inputs.fit, self.inputs.early, (self.on_fit, self.on_early)
        reads_batches = is_normed and self.inputs.have_statistics
        targets, early_targets = (
            _as_outputs(_with_labels(self.teacher.answers(outputs, rows.inputs), rows), rows)
            for outputs, rows in zip(of_sites, (fit, early), strict=True)
        )
        if options.get("learning_rate") is None:
            options["learning_rate"] = self._learning_rate(start, early, early_targets)
        distilled = distill(
            self._as_classifier(start.module),
            fit.arguments,
            targets,
            early.arguments,
            early_targets,
            loss="kl" if self.classifies else "squared",
            heads=self._heads,
            batch_statistics=reads_batches,
            rng=rng,
            **options,
        )
        if not distilled.best_step:
            return None, distilled
        module = distilled.module.network if isinstance(distilled.module, TwoClasses) else distilled.module
        module = inner_network(module)
        if start.sites:
            module = part_way(start.module, module)
        if is_anchored and not reads_batches and has_batch_norm(module):  # steps moved gamma and beta
            module = self._anchored(module, start)
        candidate = Candidate(
            _distilled_name(start),
            Effort.DISTILLED,
            module,
            start.base,
            self._how_distilled(start, distilled.best_step),
        )
        return candidate, distilled

    def _anchored(self, module: nn.Module, start: Candidate) -> nn.Module:
        """Return a network with the statistics that its batch normalisation has in what it started from."""
        if start.sites:
            return anchor(module, [start.module], np.ones(1)).module
        aligned = start.base.aligned_models
        return anchor(module, [aligned[i] for i in self.workshop.order], self.workshop.ordered.weights).module

    def _how_distilled(self, start: Candidate, n_steps: int) -> str:
        """Return how a candidate was made that was distilled."""
        before = start.made if start.site is None else f"the network of {self.workshop.ordered.names[start.site]}"
        way = "distilled half of the way" if start.sites else "distilled"
        return "; ".join(filter(None, [before, f"{way} from the sites' ensemble, {n_steps} steps"]))

    def _learning_rate(self, start: Candidate, early: Rows, early_targets: torch.Tensor) -> float:
        """Return the rate at the start of a distillation: on matched images less, for a start that is near already."""
        if not self.classifies or not self.inputs.has_matched:
            return LEARNING_RATE
        answers = self._outputs(start.module, early).argmax(axis=1)
        disagreement = float(np.mean(answers != early_targets.numpy().argmax(axis=1)))
        return LEARNING_RATE if disagreement > MAX_GAP else LEARNING_RATE_NEAR


def _distilled_name(start: Candidate) -> str:
    return f"distill({start.name})"


def _as_outputs(answers: Array, rows: Rows) -> torch.Tensor:
    """Return rows (n, C) in the shape of the outputs that they are of: (n, P, C) where inputs have P positions."""
    targets = torch.as_tensor(answers)
    return targets if rows.positions is None else targets.reshape(len(rows), -1, targets.shape[1])


def _with_labels(answers: Array, rows: Rows) -> Array:
    """Return targets (n, C): answers, or their mean with the drawn classes."""
    if rows.labels is None:
        return answers
    targets: Array = np.mean([np.eye(answers.shape[1])[rows.labels], answers], axis=0)
    return targets
