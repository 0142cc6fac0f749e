"""One default fusion at work: the networks, what their sites say, and the averages that candidates are made of.

**Whether networks have a common initialisation, seen from their parameters alone**.

Networks with a common initialisation keep the numbering of its units: each is nearer to the mean of the others as it is
than with its units in a random order. Independently initialised networks are as near in any order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.checks import AnyArray, Array
from consilience.core.details import Status
from consilience.core.progress import Progress
from consilience.errors import UnsupportedError
from consilience.networks.choice.candidate import Candidate, Effort
from consilience.networks.choice.sites import Sites
from consilience.networks.choice.verdict import Choice, verdict_of
from consilience.networks.classes.shares import MAX_SKEW_OF_ALIKE, class_coverage, class_skew
from consilience.networks.details import NetworkDetails
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.fuse_aligned import NetworkArguments, fuse_aligned, target_units
from consilience.networks.fusion import NetworkFusion
from consilience.networks.inputs import canonical_order
from consilience.networks.method import NetworkMethod
from consilience.networks.methods.baselines import SideBySide
from consilience.networks.network import Network, to_numpy
from consilience.networks.repair_fusion import refit_fusion, replace_module
from consilience.networks.shared_symmetry import NetworksWithSymmetry

if TYPE_CHECKING:
    from torch import nn

    from consilience.networks.choice.inputs import ChoiceInputs

_COMMON = "Networks of a common initialisation are aligned and averaged, which is often worse than the best of them"
"""Note where nothing says whether the fused network is any good: in 14 of 18 such settings of
experiments/network_battery without batch normalisation the refitted network was worse."""


@dataclass(frozen=True, eq=False)
class Workshop:
    """One default fusion: the networks, and what candidates are made of, each computed once.

    Networks and sites are in the order of the call.
    """

    models: NetworksWithSymmetry
    sites: Sites
    arguments: NetworkArguments
    information: Sequence[FisherInformation] | None
    method: NetworkMethod  # says how units are matched, and bounds the work
    rng: np.random.Generator
    progress: Progress

    @cached_property
    def order(self) -> list[int]:
        """The canonical order of the networks, in which everything is summed."""
        return canonical_order(self.models.inputs)

    @cached_property
    def ordered(self) -> Sites:
        """The sites in the canonical order."""
        return self.sites.take(self.order)

    @cached_property
    def modules(self) -> list[nn.Module]:
        """The sites' networks as modules in evaluation mode, in the canonical order."""
        return [self.models.module(self.models.networks[i]) for i in self.order]

    @property
    def plain_modules(self) -> list[nn.Module]:
        """Modules that take the inputs of the sites' networks; of other kinds not the networks themselves."""
        return self.modules

    def choice_inputs(
        self, n_inputs: int, rng: np.random.Generator, max_seconds: float | None = None, *, matches_images: bool = False
    ) -> ChoiceInputs | None:
        """Return inputs for a choice, as many to fit candidates on; see ``inputs.choice_inputs``."""
        from consilience.networks.choice.inputs import choice_inputs  # here, since it needs torch

        given, example = self.arguments.inputs, self.arguments.example
        return choice_inputs(
            self.ordered, self.plain_modules, given, example, n_inputs, rng, self.progress, max_seconds,
            matches_images=matches_images,
        )  # fmt: skip

    @cached_property
    def units(self) -> Mapping[str, int]:
        """Units of every group of the fused network."""
        return target_units(self.models, self.method, self.arguments)

    @cached_property
    def has_equal_widths(self) -> bool:
        """Whether all networks have the widths of the fused one."""
        return all(dict(network.units) == self.units for network in self.models.networks)

    @cached_property
    def is_common_start(self) -> bool:
        """Whether the networks have a common initialisation, so that no unit needs to be matched."""
        return self.has_equal_widths and self._seem_of_common_start

    @property
    def _seem_of_common_start(self) -> bool:
        """Whether networks of one width, those with a weight, look as if they had a common initialisation."""
        networks = [self.models.networks[i] for i in self.order if self.sites.weights[i] > 0]
        return have_common_start(networks, np.random.default_rng(0))

    @cached_property
    def base(self) -> NetworkFusion:
        """The average of the matched networks, whose numbering is one of the starts of the matching."""
        return self.averaged(self.method)

    @property
    def base_candidate(self) -> Candidate:
        """The base as a candidate."""
        return Candidate("matched", Effort.MATCHED, self.base.model, self.base)

    @property
    def refitted_base(self) -> Candidate:
        """The base, refitted on synthetic inputs where networks of a common initialisation have no batch normalisation.

        There that gained 2.4 points in the mean of the nine settings of the first half of experiments/network_battery
        without batch normalisation, and lost 3 to 30 with it; 3.8 points in the nine of the other half.
        """
        can_refit = self.method.refits and self.models.template is not None and not self.has_batch_norm
        if not can_refit or not self.is_common_start:
            return self.base_candidate
        fusion = refit_fusion(self.base, self.order, self.arguments.example, None, self.rng)
        if fusion.repaired is None:
            return self.base_candidate
        return Candidate("refit", Effort.REFITTED, fusion.model, self.base, fusion.repaired)

    @property
    def has_batch_norm(self) -> bool:
        """Whether the networks have batch normalisation with running statistics."""
        return any(name.endswith("running_var") for name in self.models.networks[0].arrays)

    @cached_property
    def head(self) -> str | None:
        """Path of the linear layer whose outputs are the networks'; None where there is none, or nothing to ask."""
        if self.models.template is None or self.arguments.example is None:
            return None
        from consilience.networks.classes.heads import find_head  # here, since it needs torch

        return find_head(self._with_head(self.models.template), self.arguments.example)

    def _with_head(self, template: nn.Module) -> nn.Module:
        return template

    @cached_property
    def centred(self) -> NetworksWithSymmetry:
        """The networks with the mean over classes taken from the rows of their heads, which changes no probability.

        Only classifiers that are described as such are centred: what else reads an output may see the difference.
        """
        head = self.head
        if head is None or self.sites.classes is None:
            return self.models
        from consilience.networks.classes.heads import centred_head  # here, since it needs torch

        names = [f"{head}.{name}" if head else name for name in ("weight", "bias")]
        if len(self.models.networks[0].working[names[0]]) < 2:  # one output, of which the mean is all
            return self.models
        networks = []
        for network in self.models.networks:
            weight, bias = centred_head(network.working[names[0]], network.working.get(names[1]))
            rows = {names[0]: weight} if bias is None else {names[0]: weight, names[1]: bias}
            networks.append(network.with_arrays(rows, network.name))
        return replace(self.models, networks=tuple(networks))

    def averaged(self, method: NetworkMethod, inputs: Any = None) -> NetworkFusion:
        """Return the average of the networks, their units aligned by a method, which may ask them on inputs."""
        fusion, _ = fuse_aligned(
            # Information belongs to the parameters that it was computed at, to the last bit.
            self.models if method.wants_information else self.centred,
            method,
            method.site_weights(self.sites),
            self.arguments if inputs is None else replace(self.arguments, inputs=inputs),
            self.rng,
            self.progress,
            self.information if method.wants_information else None,
        )
        return fusion

    @property
    def is_wider(self) -> bool:
        """Whether the caller asks for a width that two of the networks have room in, each with units of its own."""
        is_asked = self.arguments.target is not None or self.arguments.target_widths is not None
        if not is_asked or self.has_equal_widths or self.models.template is None:
            return False
        by_group = {group: sorted(network.units[group] for network in self.models.networks) for group in self.units}
        return len(self.order) > 1 and all(sum(by_group[group][:2]) <= width for group, width in self.units.items())

    def side_by_side_candidate(
        self, order: Sequence[int], outputs_of: Callable[[nn.Module], Array]
    ) -> Candidate | None:
        """Return the networks of some sites side by side in one; None where there is no room for two.

        The weights of all sites stay those of the call, also of those that have no place. `order` says which sites, by
        their canonical numbers, have room first; `outputs_of` returns what a network answers on some inputs (n, k).
        Raises UnsupportedError where the network does not answer the mean of the sites' on them: something in the
        networks is no unit's and yet differs, or mixes units of a fixed place.
        """
        if not self.is_wider:
            return None
        room, chosen = self.units, list[int]()
        for site in order:
            units = self.models.networks[self.order[site]].units
            left = {group: n_free - units[group] for group, n_free in room.items()}
            if min(left.values()) >= 0 and self.ordered.weights[site] > 0:
                room, chosen = left, sorted([*chosen, site])
        if len(chosen) < 2:
            return None
        weights, placed = np.zeros(len(self.order)), [self.order[site] for site in chosen]
        weights[placed] = self.sites.weights[placed] / self.sites.weights[placed].sum()
        fusion = replace(self, sites=replace(self.sites, weights=weights)).averaged(SideBySide())
        names = " and ".join(self.ordered.names[site] for site in chosen)
        self._check_mean(fusion, chosen, weights[placed], outputs_of)
        pairs = zip(fusion.inputs, self.sites.weights.tolist(), strict=True)
        weighed = tuple(replace(of_site, weight=weight) for of_site, weight in pairs)
        fusion = replace(fusion, inputs=weighed, repaired=f"the networks of {names} side by side")
        return Candidate("side_by_side", Effort.AVERAGE, fusion.model, fusion, sites=tuple(chosen))

    def _check_mean(
        self, fusion: NetworkFusion, sites: Sequence[int], weights: Array, outputs_of: Callable[[nn.Module], Array]
    ) -> None:
        """Raise where a network does not answer the weighted mean of those of some sites."""
        answers = np.stack([outputs_of(self.modules[site]) for site in sites])  # (J, n, k)
        answered = outputs_of(fusion.model)
        if self.centred is not self.models:  # only differences between classes are kept
            answers, answered = (of - of.mean(axis=-1, keepdims=True) for of in (answers, answered))
        gap = np.abs(answered - np.tensordot(weights, answers, 1)).max()
        # Half of the digits of single precision: over the architectures of the tests the share is below 1e-4, and 0.06
        # where something that is no unit's differs, such as one slope for all units.
        if not gap <= np.finfo(np.float32).eps ** 0.5 * np.ptp(answers, axis=0).max():
            raise UnsupportedError("side by side the networks do not answer their mean")

    @property
    def has_own_widths(self) -> bool:
        """Whether a site's own network may be taken: the caller asks for no other widths."""
        return self.arguments.target is None and self.arguments.target_widths is None

    @property
    def gains_by_images(self) -> bool:
        """Whether images are matched to batch normalisation where inputs are drawn: unless sites are alike.

        Those have nothing to gain: in four fusions of networks with batch normalisation whose sites have their classes
        alike (experiments/network_battery and experiments/one_shot) a site's own network was taken with images and
        without, which took a fifth of the time, and in fifteen pairs (experiments/synthetic_inputs) with them.
        """
        return not (self.has_own_widths and self.sites.have_classes_alike)

    def site_candidates(self) -> list[Candidate]:
        """Return the sites' own networks; where the caller asks for other widths they are compared only."""
        is_eligible = self.has_own_widths
        modules = self.modules if self.models.template is not None else [None] * len(self.order)
        return [
            Candidate(f"site:{name}", Effort.SITE, module, self.base, sites=(number,), is_eligible=is_eligible)
            for number, (name, module) in enumerate(zip(self.ordered.names, modules, strict=True))
        ]

    @property
    def reach(self) -> Array | None:
        """How much of all that sites see each of them sees (J,), in canonical order, where nothing else is known.

        The coverage of classes, else the numbers of observations. Where sites say neither, equal values for
        independently initialised networks, and None for those with a common initialisation, or where the caller gives
        weights.
        """
        counts, n_observations = self.ordered.observed_counts, self.ordered.n_observations
        if counts is not None:
            return class_coverage(counts)
        if n_observations is not None:
            return n_observations
        can_average = self.is_common_start or self.sites.are_weights_stated
        return None if can_average else np.ones(len(self.order))

    def unseen(self, reason: str, remedy: str) -> NetworkFusion:
        """Return a fusion where nothing says what inputs are like, so that no candidate can be compared.

        With a common initialisation and IID sites that is the matched network; where sites say counts of classes that
        differ, the network of the site that covers the classes best, and where they say their numbers of observations
        alone, that of the largest site. In the 52 ensembles of experiments/network_battery the site of most
        observations is 2 points below the best site in the mean, the base 15. Where nobody says anything, the matched
        and refitted network of those of a common initialisation; of independently initialised ones the network of one
        site, whichever: matched averages of convolutional networks have 23 to 45 % where each network has 79 to 85
        (docs/evidence/synthetic_inputs.md). In a wider network those of the largest sites side by side: of four and of
        eight LeNets in twice the width 70.4 and 70.8 %, the matched average 67.1 and 62.7. Where the caller gives
        weights, the base.
        """
        notes: tuple[str, ...] = ()
        if self.information is not None:
            notes = (
                "Fisher information was not used, since nothing tells whether it helps: `method='fisher'` merges by it",
            )
        counts = self.ordered.observed_counts
        is_safe = self.is_common_start and counts is not None and class_skew(counts) < MAX_SKEW_OF_ALIKE
        reach = self.reach
        candidates = [] if reach is None or is_safe else [c for c in self.site_candidates() if c.is_eligible]
        if reach is None or not candidates:
            side_by_side = None if reach is None else self._side_by_side_unseen(reach)
            only = (side_by_side or self.refitted_base,)
            notes += (_COMMON,) * (self.is_common_start and not self.sites.are_weights_stated)
            return self.finish(Choice(only, 0, reason=reason, remedy=remedy, notes=notes))
        if counts is None and self.ordered.n_observations is None:
            notes = (*notes, "Of independently initialised networks any single one is likely better than their average")
        return self.finish(Choice(tuple(candidates), int(np.argmax(reach)), reason=reason, remedy=remedy, notes=notes))

    def _side_by_side_unseen(self, reach: Array) -> Candidate | None:
        """Return the largest sites' independently initialised networks side by side in one; None without room.

        Networks with a common initialisation have an average that is good.
        """
        example = self.arguments.example
        have_one_width = all(network.units == self.models.networks[0].units for network in self.models.networks)
        if not self.is_wider or not hasattr(example, "shape") or (have_one_width and self._seem_of_common_start):
            return None
        from consilience.networks.choice.rows import outputs_of  # here, since it needs torch

        order = np.argsort(-reach, kind="stable").tolist()
        try:
            return self.side_by_side_candidate(order, lambda module: outputs_of(module, example))
        except UnsupportedError:
            return None

    def finish(self, choice: Choice) -> NetworkFusion:
        """Return the fusion with the network that was taken."""
        taken, verdict = choice.taken, verdict_of(choice, self.ordered)
        fusion = taken.base
        if taken.site is not None:
            # The site's own numbers, in the order of its units: nothing of it was changed.
            network = self.models.networks[self.order[taken.site]]
            fusion = replace(fusion, network=network, objective=math.nan, repaired="not needed: it is a site's own")
        elif taken.made:
            fusion = replace_module(fusion, taken.module, taken.made)
        if taken.effort is Effort.DISTILLED:
            fusion = replace(fusion, objective=math.nan)
        if choice.is_cut_short:
            fusion = replace(fusion, status=Status.OUT_OF_TIME)
        modules = {candidate.name: candidate.module for candidate in choice.candidates if candidate.is_eligible}
        details: NetworkDetails = {**fusion.details}
        if self.sites.classes is not None:
            details["classes"] = list(self.sites.classes)
        if choice.one_output is not None:
            details["one_output"] = choice.one_output
        details["chosen"] = taken.name
        if choice.estimated_classes is not None:
            details["estimated_classes"] = choice.estimated_classes
        if choice.notes:
            details["left_out"] = list(choice.notes)
        return replace(fusion, details=details, judgement=verdict, candidates=modules)


MIN_GAIN = 0.1
"""Share of the squared distance, from a renumbered network to the mean of the others, that its own numbering must save.
On scikit-learn's digits (an MLP and a convolutional network, three sites, with and without classes apart, 2 to 60
epochs) networks of a common initialisation saved 0.24 to 0.98, independently initialised ones 0.04 at most."""
N_ORDERS = 20
"""Random orders of the units; the nearest counts, so that few units are in order by chance once in 20 at most, the
usual level of a test."""


def have_common_start(networks: Sequence[Network], rng: np.random.Generator) -> bool:
    """Return whether networks of one symmetry look as if they have a common initialisation.

    They are of the same widths; one alone has one.
    """
    if len(networks) < 2 or not networks[0].symmetry.groups:
        return True
    outer = [name for name, group in networks[0].symmetry.by_name.items() if group.parent is None]
    total = _moving_sums(networks)

    def is_near(network: Network) -> bool:
        """Return whether its own numbering saves distance to the mean of the others."""
        own = network.working
        distance = _distance(own, total, own, len(networks))

        def renumbered() -> Mapping[str, AnyArray]:
            return network.permute({name: rng.permutation(network.units[name]) for name in outer}).working

        # The first order that is as near decides: independently initialised networks differ by one.
        return all(
            distance <= (1 - MIN_GAIN) * _distance(renumbered(), total, own, len(networks)) for _ in range(N_ORDERS)
        )

    return all(map(is_near, networks))


def _moving_sums(networks: Sequence[Network]) -> dict[str, Array]:
    """Return the sums over networks of the arrays that move with units."""
    moving = [
        key
        for key, layout in networks[0].symmetry.layouts.items()
        if key in networks[0].working and any(axis.moves for axis in layout.axes)
    ]
    return {key: np.sum([to_numpy(network.working[key]) for network in networks], axis=0) for key in moving}


def _distance(
    arrays: Mapping[str, AnyArray], total: Mapping[str, AnyArray], own: Mapping[str, AnyArray], n_networks: int
) -> float:
    """Return the squared distance from arrays to the mean of the other networks, whose own part in `total` is `own`."""
    return float(
        sum(
            np.square(to_numpy(arrays[key]) - (of_all - to_numpy(own[key])) / (n_networks - 1)).sum()
            for key, of_all in total.items()
        )
    )
