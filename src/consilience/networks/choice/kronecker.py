"""Merges by Kronecker-factored information as candidates of the default, and the choice of their damping.

Where every site says the second moments of its layers, in its description or as information that came along, the base
(the average, or the matched network) is merged by them at several dampings, from the average and from the average with
rows of the head by class; and by the second moments of what layers read alone (RegMean). No damping is best everywhere,
so each is a candidate like others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import AnyArray, Array
from consilience.core.progress import Progress, silent
from consilience.core.verdict import Verdict
from consilience.errors import InputError, UnsupportedError, reason_of
from consilience.networks.choice.candidate import Candidate, Effort
from consilience.networks.choice.sites import Sites
from consilience.networks.choice.verdict import DESCRIBE, verdict_of
from consilience.networks.choice.workshop import Workshop
from consilience.networks.classes.shares import class_shares
from consilience.networks.descriptions.description import Description
from consilience.networks.details import NetworkDetails
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.fisher.kronecker import parameter_names
from consilience.networks.fuse_aligned import NetworkArguments, fuse_aligned
from consilience.networks.fusion import NetworkFusion
from consilience.networks.method import NetworkEnsemble, average
from consilience.networks.methods.auto import Auto
from consilience.networks.methods.fisher.kronecker import DAMPINGS, DEFAULT_DAMPING, KFAC, KroneckerProblem
from consilience.networks.network import convert_like, to_numpy
from consilience.networks.shared_symmetry import NetworksWithSymmetry
from consilience.networks.symmetry.transport import Transport

if TYPE_CHECKING:
    from torch import nn

MAX_KRONECKER = len(DAMPINGS) + 2
"""Candidates at most: a damping each, one from rows of the head by class, and regression."""

HEAD_DAMPING = 0.1
"""Damping of the merge that starts at rows of the head by class: the best fixed one of merges from the average over 26
federated settings (62.0 %; 63.6 from such rows). Others were not tried from there."""

REGMEAN_OFF_DIAGONAL = 0.9
"""Factor of second moments of different inputs in RegMean, which its authors found best (Jin et al. 2023)."""

NamedContext = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True, eq=False)
class KroneckerMerges:
    """The merges of one fusion by Kronecker factors, in the units of its base."""

    workshop: Workshop  # the networks and their base
    information: Sequence[FisherInformation]  # Kronecker factors of every network with a vote, in canonical order

    @classmethod
    def of(cls, workshop: Workshop) -> KroneckerMerges | None:
        """Return the merges of a fusion; None where not every site says its layers' factors, or widths differ.

        Raises UnsupportedError for factors that are not of the same parameters at all sites, such as where one froze a
        bias.
        """
        if not workshop.has_equal_widths or workshop.models.template is None:
            return None
        voting = _voting(workshop)
        information = _known_information(workshop, voting)
        if information is None:
            return None
        first = _what_is_informed(workshop, information[0])
        for of_site in information[1:]:
            if _what_is_informed(workshop, of_site) != first:
                text = f"{of_site.name} says Kronecker factors of other parameters than {information[0].name}"
                raise UnsupportedError(f"{text}; train the same ones at all sites")
        # Factors move with units one to one, and with no others.
        transports = [transport for i in voting for transport in workshop.base.transports[i].values()]
        if any(one.is_soft or not np.array_equal(np.sort(one.labels), np.arange(one.width)) for one in transports):
            return None
        return cls(workshop, information)

    @cached_property
    def _average(self) -> dict[str, AnyArray]:
        """The average of the networks as they are, units aligned: what has no factors stays so.

        Scales of units are those of the sites, not balanced ones: their factors are of them.
        """
        base, weights = self.workshop.base, self.workshop.sites.weights[_voting(self.workshop)]
        ensemble = NetworkEnsemble(
            tuple(self.workshop.centred.networks[i] for i in _voting(self.workshop)),
            weights / weights.sum(),
            base.groups,
        )
        return dict(average(ensemble, tuple(base.transports[i] for i in _voting(self.workshop))))

    @cached_property
    def problem(self) -> KroneckerProblem:
        """What is minimised, all layers."""
        base, weights = self.workshop.base, self.workshop.sites.weights[_voting(self.workshop)]
        arrays, moved = [], []
        for i, of_site in zip(_voting(self.workshop), self.information, strict=True):
            # Rows of a head are centred, which changes no probability, and so no information.
            network = self.workshop.centred.networks[i]
            moved.append(of_site.moved(network, base.transports[i]))
            arrays.append({key: to_numpy(values) for key, values in network.move(base.transports[i]).items()})
        return KroneckerProblem.of(weights / weights.sum(), arrays, moved)

    def module(self, merged: dict[str, Array]) -> nn.Module:
        """Return the average with the merged arrays in it, as a module."""
        arrays = dict(self._average)
        for key, values in merged.items():
            beside = convert_like(values, arrays[key])
            arrays[key] = array_namespace(beside).astype(beside, arrays[key].dtype)
        return self.workshop.models.module(self.workshop.base.network.with_arrays(arrays))

    def head_start(self) -> dict[str, Array]:
        """Return the rows of the head by the sites' counts of classes; empty where no merge would start there.

        That is without a head whose parameters are merged, or without counts.
        """
        counts, head = self.workshop.ordered.class_counts, self.workshop.head
        if head is None or counts is None or len(_voting(self.workshop)) < len(self.workshop.order):
            return {}
        if not set(parameter_names(head)) & set(self.problem.shapes):
            return {}
        from consilience.networks.classes.heads import class_heads  # here, since it needs torch

        networks = [self.workshop.centred.networks[i] for i in _voting(self.workshop)]
        moved = [
            network.move(self.workshop.base.transports[i])
            for i, network in zip(_voting(self.workshop), networks, strict=True)
        ]
        rows = class_heads(moved, head, class_shares(counts, self.workshop.ordered.weights))
        return {key: to_numpy(values) for key, values in rows.items()}


def _voting(workshop: Workshop) -> list[int]:
    """Return the numbers of the networks that count, in canonical order."""
    return [i for i in workshop.order if workshop.sites.weights[i] > 0]


def _known_information(workshop: Workshop, voting: Sequence[int]) -> tuple[FisherInformation, ...] | None:
    """Return the Kronecker factors of the networks that count, given or described; None where one has none."""
    given = workshop.information
    if given is not None and all(given[i].layers for i in voting):
        return tuple(given[i] for i in voting)
    return described_information([workshop.sites.descriptions[i] for i in voting])


def _what_is_informed(workshop: Workshop, information: FisherInformation) -> tuple[object, ...]:
    """Return what two sites' information must have alike: layers, their sizes and biases, the rest, the likelihood."""
    residual = information.renamed(workshop.models.symmetry).residual  # tied parameters may go by several names
    layers = {layer: (factors.sizes, factors.has_bias) for layer, factors in information.layers.items()}
    return layers, {key: tuple(values.shape) for key, values in residual.items()}, information.likelihood


def described_information(descriptions: Sequence[Description | None]) -> tuple[FisherInformation, ...] | None:
    """Return the Kronecker factors that all sites describe; None where one describes none."""
    information = tuple(
        FisherInformation(
            {},
            layers=description.layers,
            observations=description.n_observations,
            likelihood=description.layer_likelihood,
            name=description.name,
        )
        for description in descriptions
        if description is not None and description.layers
    )
    return information if len(information) == len(descriptions) else None


def kronecker_candidates(
    workshop: Workshop, classifies: bool, is_too_late: Callable[[str], bool], or_noted: NamedContext
) -> Iterator[Candidate]:
    """Yield the base merged by the sites' Kronecker factors, at several dampings, one at a time.

    `classifies` says whether outputs are those of classes; `is_too_late` whether time is up for a candidate, which it
    notes; in the context `or_noted` a candidate is made, or left out with a note on why.
    """
    merges = None
    with or_noted("kfac"):
        merges = KroneckerMerges.of(workshop)
    if merges is None:
        return
    starts: list[tuple[str, float, bool]] = [(f"kfac({damping:g})", damping, False) for damping in DAMPINGS]
    if classifies and workshop.ordered.class_counts is not None:
        starts.append((f"kfac({HEAD_DAMPING:g}, class_heads)", HEAD_DAMPING, True))
    for name, damping, from_heads in starts:
        if is_too_late(name):
            return
        with or_noted(name):
            # Damping then holds the minimum to the head by class instead of the average.
            start = merges.head_start() if from_heads else {}
            if from_heads and not start:
                continue
            merged = merges.problem.damped_minimum(damping, KFAC.tolerance, KFAC.max_iterations, silent, start)
            made = f"layers merged by Kronecker factors, damping {damping:g}"
            made += ", from rows of the head by class" if from_heads else ""
            yield Candidate(name, Effort.KRONECKER, merges.module(merged.arrays), workshop.base, made)
    if is_too_late("regmean"):
        return
    with or_noted("regmean"):
        arrays = merges.problem.regression_mean(REGMEAN_OFF_DIAGONAL)
        made = "layers merged by second moments of what they read"
        yield Candidate("regmean", Effort.KRONECKER, merges.module(arrays), workshop.base, made)


@dataclass(frozen=True)
class _MatchedOnce(KFAC):
    """K-FAC merging whose copies of other dampings find the units matched by the first of them."""

    _found: list[tuple[tuple[Mapping[str, Transport], ...], NetworkDetails]] = field(default_factory=list, kw_only=True)

    def _align_units(
        self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress
    ) -> tuple[tuple[Mapping[str, Transport], ...], NetworkDetails]:
        if not self._found:
            self._found.append(super()._align_units(ensemble, rng, progress))
        return self._found[0]


def fuse_with_chosen_damping(
    models: NetworksWithSymmetry,
    sites: Sites,
    arguments: NetworkArguments,
    information: Sequence[FisherInformation] | None,
    method: KFAC,
    rng: np.random.Generator,
    progress: Progress,
) -> NetworkFusion:
    """Return the merge of networks at the damping that is best on what the sites describe; see ``KFAC.damping``.

    The parameters are those of ``default.fuse_by_default``.
    """
    options = {option.name: getattr(method, option.name) for option in fields(method)}
    matched_once = _MatchedOnce(**options)

    def merged(damping: float) -> NetworkFusion:
        fusion, _ = fuse_aligned(
            models, replace(matched_once, damping=damping), sites.weights, arguments, rng, progress,
            NetworkFusion, information=information,
        )  # fmt: skip
        return fusion

    # First, so that units are matched by the streams that they have when a damping is given by name; what is drawn
    # below has others.
    by_default = merged(DEFAULT_DAMPING)
    workshop_rng, input_rng, candidate_rng = rng.spawn(3)

    if models.template is None:
        return _not_compared(by_default, "The networks came without a module")
    from consilience.networks.choice.compare import CandidateComparison  # here, since it needs torch
    from consilience.networks.choice.inputs import choice_inputs

    auto = Auto()
    workshop = Workshop(models, sites, arguments, information, auto, workshop_rng, progress)
    try:
        inputs = choice_inputs(
            workshop.ordered, workshop.modules, arguments.inputs, arguments.example, auto.n_inputs,
            input_rng, silent,
        )  # fmt: skip
        if inputs is None:
            return _not_compared(by_default, "Not every site described its inputs")
        candidates = []
        for damping in DAMPINGS:
            fusion = by_default if damping == DEFAULT_DAMPING else merged(damping)
            candidates.append(Candidate(f"kfac({damping:g})", Effort.KRONECKER, fusion.model, fusion))
        choice = CandidateComparison(workshop, inputs, candidate_rng, time.monotonic()).compare(candidates)
    except (InputError, UnsupportedError) as error:
        return _not_compared(by_default, f"Dampings cannot be compared ({reason_of(error)})")
    return _judged(choice.taken.base, verdict_of(choice, workshop.ordered), DAMPINGS[choice.chosen])


def _not_compared(fusion: NetworkFusion, reason: str) -> NetworkFusion:
    """Return the merge at the default damping, with a verdict on why no others were compared with it."""
    taken = f"{DEFAULT_DAMPING:g}, the best fixed one over 26 federated settings"
    unknown = "Whether it is no worse than the best site is not known."
    text = f"{reason}, so dampings were not compared; taken: {taken}. {unknown}"
    verdict = Verdict(code="no_inputs", text=text, remedy=DESCRIBE)
    return _judged(fusion, verdict, DEFAULT_DAMPING)


def _judged(fusion: NetworkFusion, verdict: Verdict, damping: float) -> NetworkFusion:
    """Return a merge with the verdict on its damping."""
    details: NetworkDetails = {**fusion.details, "damping": damping, "verdict": verdict.to_json()}
    return replace(fusion, details=details, judgement=verdict)
