"""Result of fusing networks: fused arrays, the matching of every group, provenance and diagnostics.

**Distance of batch normalisation from that of the models**: what training mode makes of it.

In training mode a channel is divided by the deviation of the batch, so that its output has the deviation |gamma| and
the mean beta. With G and B the means of the models' |gamma_i| and beta_i, by their weights, over those that have the
unit,

    distance = sqrt(mean_c [ (|gamma_c| - G_c)^2 + (beta_c - B_c)^2 ] / mean_c G_c^2),

the worst over all layers of batch normalisation. It is 0 for anchored ones (``repair.anchor``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.checks import AnyArray, Array
from consilience.core.fusion import Fusion
from consilience.core.provenance import NO_ANCESTORS, bind_provenance
from consilience.core.robust import robust_sentences
from consilience.core.site_losses import SITE
from consilience.core.verdict import SIDE_BY_SIDE, Verdict
from consilience.drawing.blocks import Block, Column, Table, text_column
from consilience.drawing.plots import Chart, draw_bars
from consilience.drawing.words import format_count
from consilience.errors import InputError
from consilience.files.atomic import refuse_to_replace
from consilience.matching.result import Matching
from consilience.networks.choice.sites import Sites
from consilience.networks.descriptions.description import Description
from consilience.networks.details import NetworkDetails, left_out_of
from consilience.networks.files import with_tied_arrays, write_network
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.network import (
    Network,
    never_saw_data,
    to_numpy,
    total_size,
    untrained_norms,
    working_precision,
)
from consilience.networks.parametrised_layers import Parametrised, StoredArrays
from consilience.networks.summary import GroupQuality, match_quality
from consilience.networks.symmetry.transport import Transport

if TYPE_CHECKING:
    from consilience.networks.report.content import ShownNetworks


@dataclass(frozen=True, eq=False)
class NetworkInput:
    """One of the networks that were fused; for the report, never saved."""

    name: str  # name in results and reports
    network: Network  # its arrays under the shared symmetry
    weight: float  # its weight in the fusion; the weights of all inputs sum to 1
    sha256: str | None  # digest of its file; None for a module that was handed in
    # The Fisher information of its parameters, where the method weighed by it.
    information: FisherInformation | None = None
    description: Description | None = None  # what its site says of it
    # The network as it came, where its units were rescaled to be compared. Default: `network`.
    sent: Network | None = None

    # Names, by digests, of itself and of what it was fused from.
    rests_on: Mapping[str, str] = field(default_factory=lambda: NO_ANCESTORS)

    @property
    def as_sent(self) -> Network:
        """The network with the arrays that the site has."""
        return self.network if self.sent is None else self.sent


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class NetworkFusion(Fusion):
    """A fused network and how it came about.

    Parameters
    ----------
    network : Network
        The fused arrays with their symmetry.
    transports : tuple of mappings of str to Transport
        For every model in the order of the inputs, by group, the transport of its units to fused units.
    repaired : str or None
        How the statistics of the fused network were repaired; None if they were not.
    judgement : Verdict, optional
        The verdict on a choice among candidates; None where there was none.
    candidates : mapping of str to Module
        By name, the networks among which was chosen, in evaluation mode.
    parametrised : Parametrised, optional
        The parametrised layers that the fused model has, and no other network here: `network`, `aligned` and the
        candidates have the weights that such layers stand for. Default: None, without any.
    """

    no_file = ("an ensemble is its members", "write them with `consilience.save(fusion.model, folder)`")

    network: Network
    matching: Mapping[str, Matching]
    details: NetworkDetails
    inputs: tuple[NetworkInput, ...] = field(default=(), repr=False)
    transports: tuple[Mapping[str, Transport], ...] = field(repr=False)
    _rebuild: Callable[[Network], Any] | None = field(repr=False)
    repaired: str | None = None
    judgement: Verdict | None = field(default=None, repr=False)
    candidates: Mapping[str, Any] = field(default_factory=dict, repr=False)
    parametrised: Parametrised | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        bind_provenance(self.network, self.provenance, NetworkFusion._content_digest)

    @cached_property
    def model(self) -> Any:
        """The fused module, in evaluation mode; for files without a module, the fused arrays by name.

        Warns (`HarmWarning`) where a site's own network is known to be better.
        """
        self.verdict.warn(stacklevel=5)  # past what caches the property
        model = self._rebuilt()
        return model if self.keeps_models else bind_provenance(model, self.provenance, self._content_digest)

    def _rebuilt(self) -> Any:
        """Return the fused network as a model of the kind that went in."""
        if self._rebuild is None:
            return dict(self.network.arrays if self._sent is None else self._sent.arrays)
        model = self._rebuild(self.network)
        if self._sent is None or self.parametrised is None or self.parametrised.module is None:
            return model
        from consilience.networks.torch_modules import module_with  # here, since files alone need no torch

        return module_with(self.parametrised.rebuilt(self._sent), self._sent.arrays, self.network.symmetry).eval()

    @staticmethod
    def _content_digest(model: Any) -> str:
        """Return the digest by which `fuse` knows the fused model again."""
        from consilience.networks.inputs import digest_of_model  # here, since files need no torch

        return digest_of_model(model)

    @cached_property
    def _sent(self) -> StoredArrays | None:
        """The state dict of the fused model where it has parametrised layers."""
        if self.parametrised is None or self.keeps_models:
            return None
        return self.parametrised.stored(with_tied_arrays(self.network.arrays, self.network.symmetry.aliases))

    @property
    def single_site(self) -> str | None:
        """Name of the site whose network was returned as it is; None where networks were fused."""
        chosen = str(self.details.get("chosen", ""))
        return chosen.removeprefix(SITE) if chosen.startswith(SITE) else None

    def without_single_site(self) -> NetworkFusion:
        """Return the fusion with its best fused candidate, where a site's network was returned as it is.

        Raises UnsupportedError where no network was fused.
        """
        if self.single_site is None:
            return self
        from consilience.networks.candidates_at_sites import candidate_names, with_candidate

        return with_candidate(self, candidate_names(self)[0][0])

    @property
    def left_out(self) -> frozenset[str]:
        """Names of the networks that ``robust=True`` left out."""
        return left_out_of(self.details)

    @property
    def _members(self) -> list[NetworkInput]:
        """The networks that take part in the ensemble."""
        return [local for local in self.inputs if local.name not in self.left_out]

    @property
    def _sites(self) -> Sites:
        names, descriptions = (tuple(getattr(one, what) for one in self._members) for what in ("name", "description"))
        return Sites(names, np.array([local.weight for local in self._members]), descriptions)

    @cached_property
    def ensemble(self) -> Any:
        """All networks side by side as one module (`ModuleEnsemble`), but those left out, in evaluation mode.

        Where every site says the counts of its classes it is the stationary ensemble, which is exact under label shift;
        where they were estimated on matched images (`details["estimated_classes"]`), the same as far as these are
        right; else the mean of probabilities by weight, or of outputs for networks that do not classify.

        Raises
        ------
        InputError
            When the models were files without a module.
        """
        if self.keeps_models:
            return self.model
        from consilience.networks.ensemble import AnswerMean, ModuleEnsemble  # here, since it needs torch

        modules, sites = [self.module_of(local.network) for local in self._members], self._sites
        if (estimated := self.details.get("estimated_classes")) is not None:
            sites = replace(sites, estimated_classes=np.array([estimated[name] for name in sites.names]))
        outputs = [AnswerMean(sites.weights, **of_output.answer_mean) for of_output in sites.by_output]
        stated: dict[str, Any] = {
            "names": sites.names,
            "one_output": self.details.get("one_output"),
            "outputs": outputs,
        }
        return ModuleEnsemble(modules, sites.weights, **sites.answer_mean, **stated).eval()

    @property
    def notes(self) -> tuple[str, ...]:
        """What should be known of the networks, a sentence each, as the method and the tracing say it."""
        of_layers = () if self._sent is None else self._sent.notes
        return (*map(str, self.details.get("notes", ())), *of_layers)

    def _charts(self) -> Mapping[str, Chart | str]:
        return {"matching": self._quality_chart(), **super()._charts()}

    def _quality_chart(self) -> Chart | str:
        """Return what draws how far aligned models are from their average, before and after; or why nothing was."""
        if self.keeps_models or not self.matching or not self.inputs:
            return "no units were matched"
        quality = self.quality
        columns = {
            "as numbered": [float("nan") if one.before is None else one.before for one in quality.values()],
            "matched": [one.distance for one in quality.values()],
        }
        what = "squared distance from the average, relative"
        return partial(draw_bars, names=list(quality), pairs=columns, title="Matching of units by group", what=what)

    def to_columns(self) -> dict[str, list[Any]]:
        """Return a row for each group: its units, how many are shared, and how far models are from the average."""
        if self.keeps_models or not self.matching or not self.inputs:
            names = [local.name for local in self.inputs]
            return {"model": names, "weight": [local.weight for local in self.inputs]}
        quality = self.quality
        columns = ("units", "shared", "before", "distance")
        return {"group": list(quality), **{name: [getattr(one, name) for one in quality.values()] for name in columns}}

    def _blocks(self) -> list[Block | None]:
        columns = self.to_columns()
        rows = list(zip(*columns.values(), strict=True))

        def column(place: int, name: str) -> Column:
            if place == 0:
                return text_column(name.capitalize(), lambda row: row[0])
            return Column(name.capitalize(), lambda row: row[place])

        heads = [column(place, name) for place, name in enumerate(columns)]
        return [*super()._blocks(), Table("Groups of units", rows, heads, "row", kind="narrow")]

    def _verdict_lines(self) -> Sequence[str]:
        is_said = self.judgement is not None or self.at_sites is not None or "robust" in self.details
        return super()._verdict_lines() if is_said else []

    def _summary_lines(self) -> Sequence[str]:
        from consilience.networks.summary import summary_lines  # here, since it imports this file

        return summary_lines(self)

    def _came_out(self) -> str:
        return SIDE_BY_SIDE if self.keeps_models else f"one network of {format_count(self._n_parameters, 'parameter')}"

    @property
    def _n_parameters(self) -> int:
        return total_size(self.network.arrays)

    def _outcome(self) -> str:
        if self.keeps_models:
            return "their ensemble"
        return f"{format_count(self.n_components, 'unit')} in {format_count(len(self.groups), 'group')}"

    @property
    def groups(self) -> dict[str, int]:
        """Number of units of every group of the fused network."""
        return dict(self.network.units)

    @property
    def n_components(self) -> int:
        """Number of fused units in all groups together."""
        return sum(self.groups.values())

    @cached_property
    def aligned(self) -> tuple[Network, ...]:
        """The models with their units in the order of the fused network.

        A renumbered model is the same function; one that was spread by a soft coupling is not. Where the fused network
        is of another architecture they are as they came.
        """
        if not self.matching:
            return tuple(replace(local.network, name=local.name) for local in self.inputs)
        return tuple(
            self.network.with_arrays(local.network.move(moves), local.name)
            for local, moves in zip(self.inputs, self.transports, strict=True)
        )

    @property
    def aligned_models(self) -> list[Any]:
        """The aligned models as modules, in evaluation mode.

        Raises
        ------
        InputError
            When the models were files without a module.
        """
        return [self.module_of(network) for network in self.aligned]

    def module_of(self, network: Network) -> Any:
        """Return one of the networks that were fused, or an aligned one, as a module in evaluation mode.

        Raises InputError when the models were files without a module.
        """
        if self._rebuild is None:
            text = "give `module=`, a function that makes one"
            raise InputError("models", "these are files without a module", text, "E-NEEDED")
        return self._rebuild(network)

    @cached_property
    def quality(self) -> dict[str, GroupQuality]:
        """How well the units of each group match, in the order of computation."""
        weights = np.array([local.weight for local in self.inputs])
        return match_quality([local.network for local in self.inputs], weights, self.transports)

    @property
    def needs_repair(self) -> bool:
        """Whether batch normalisation is wrong: by averaged statistics, or in training mode by other gamma and beta."""
        return self.has_averaged_statistics or self.scales_twice_in_training

    @cached_property
    def untrained_networks(self) -> tuple[str, ...]:
        """Which networks came with batch normalisation that never saw data, a part of a sentence each."""
        layers = {local.name: untrained_norms(local.as_sent.arrays) for local in self.inputs}
        return tuple(f"{name}: {never_saw_data(paths)}" for name, paths in layers.items() if paths)

    @property
    def has_averaged_statistics(self) -> bool:
        """Whether the network has statistics of batch normalisation that are averages, which fit no network."""
        averaged = self.repaired is None and not self.keeps_models
        return averaged and any(key.endswith("running_var") for key in self.network.arrays)

    @cached_property
    def scales_twice_in_training(self) -> bool:
        """Whether gamma and beta of batch normalisation are far from the models', so that training mode is not theirs.

        In training mode a channel has the deviation |gamma| and the mean beta, whatever the statistics are. Channels
        repaired on inputs have those that the models' channels have on these, so that both modes agree.
        """
        repaired = self.repaired or ""  # also the name of a candidate that sites chose, such as "distill(refit)"
        if not any(word in repaired for word in ("layers fitted", "refit", "distill")) or not self.matching:
            return False
        weights = np.array([local.weight for local in self.inputs])
        return norm_distance(self.network.arrays, [model.arrays for model in self.aligned], weights) > MAX_NORM_DISTANCE

    def _own_verdict(self) -> Verdict:
        verdict = self.judgement
        if verdict is None:
            return self._of_robust(super()._own_verdict())
        if self._sent is not None and self._sent.changed:
            verdict = replace(verdict, harmless=None)  # another network was judged
        # Where nothing could be compared for this very reason, the text has it already.
        problems = {problem: remedy for problem, remedy in self.open_problems().items() if problem not in verdict.text}
        verdict = self._of_robust(verdict)
        if not problems:
            return verdict
        remedies = filter(None, [verdict.remedy, *problems.values()])
        text = f"{verdict.text} Open: {'; '.join(problems)}."
        return replace(verdict, text=text, remedy="; ".join(dict.fromkeys(remedies)), is_doubtful=True)

    def _of_robust(self, verdict: Verdict) -> Verdict:
        """Return a verdict that says what robust fusion left out, and what it does not see."""
        sentences = robust_sentences(self.details["robust"]) if "robust" in self.details else []
        return replace(verdict, text=" ".join([verdict.text, *sentences]))

    def open_problems(self) -> Mapping[str, str]:
        """Return what is wrong with the networks: unproved symmetry, statistics without data, or of averaged layers."""
        problems = dict.fromkeys(self.untrained_networks, "train it in `train()` mode, or leave it out")
        if self.details.get("proved") is False:
            problems["the symmetry of these networks is unproved"] = "prove it with consilience.symmetry"
        if self._sent is not None and self._sent.changed:
            problems[f"parametrised layers have the nearest weight only ({', '.join(sorted(self._sent.changed))})"] = (
                "compare fusion.model with the sites' networks, or remove the parametrisations before the fusion"
            )
        if self.has_averaged_statistics:
            problems["statistics of batch normalisation are averages, which fit no network"] = (
                "measure them again with consilience.repair"
            )
        if self.scales_twice_in_training:
            problems[
                "gamma and beta of batch normalisation are not the models', so that `train()` is another network"
            ] = "write them at the models' own with consilience.networks.repair.anchor"
        return problems

    def _write(self, path: Path) -> None:
        sent = None if self._sent is None else self._sent.arrays
        write_network(path, self.network.arrays, self.network.symmetry, self.record, sent=sent)

    def report(self, path: str | Path, *, overwrite: bool = False, **shown: Any) -> None:
        """Write a page about the fusion, whole or not at all: one HTML file without scripts that fetches nothing.

        Parameters
        ----------
        path : str or Path
            Path of the page; usually ``*.html``.
        **shown
            ``barriers`` and ``planes`` by name, from `consilience.barrier` and `consilience.plane`, and ``scores`` by
            model, {name: value}, to show beside the matching. Of Bayesian networks also ``predictions``: results of
            `consilience.predictive_scores` by name of the model, such as ``{"site 0": ..., "fused": ...}``.
        overwrite : bool, optional
            Whether a file that is there may be replaced which this library did not write. Default: False.

        Raises
        ------
        InputError
            When the path cannot be written, or what is to be shown is something else.
        """
        refuse_to_replace(path, overwrite)
        self._write_page(Path(path), **shown)

    def _write_page(self, path: Path, **shown: Any) -> None:
        from consilience.networks.report import page  # here, so that fusing needs no pages

        page.write_network_content(path, page.checked_content_of(self._shown(), **shown))

    def _shown(self) -> ShownNetworks:
        """Return the fusion as its page takes it."""
        from consilience.networks.report.content import ShownNetworks  # here, as above

        in_order = sorted(self.inputs, key=lambda one: (str(one.sha256 or ""), one.name))  # as the provenance has them
        return ShownNetworks(
            "the fused network",
            self.network.arrays,
            self.network.symmetry,
            self.record,
            [one.network for one in in_order],
            self.needs_repair,
            self.keeps_models,
            self if self.matching and not self.keeps_models else None,
        )


MAX_NORM_DISTANCE = 0.5
"""Beyond, channels in training mode are off by half of the models' size. Refits that were anchored have 0 to rounding;
without it, and with inputs of ten times the models' scale, 9. Chosen by hand."""


def norm_distance(fused: Mapping[str, AnyArray], models: Sequence[Mapping[str, AnyArray]], weights: Array) -> float:
    """Return how far gamma and beta of batch normalisation are from those of the models, in units of their gamma.

    The models have their units in the fused network's order, and `weights` (n_models,).
    """
    paths = [key.removesuffix("running_var") for key in fused if key.endswith("running_var")]
    paths = [path for path in paths if f"{path}weight" in fused]
    distances = [_of_layer(*(_affine(arrays, path) for arrays in (fused, *models)), weights=weights) for path in paths]
    return max(distances, default=0.0)


def _affine(arrays: Mapping[str, AnyArray], path: str) -> Array:
    """Return |gamma| and beta (2, channels) of one layer."""
    gamma, beta = (to_numpy(working_precision(arrays[f"{path}{name}"])) for name in ("weight", "bias"))
    return np.stack([np.abs(gamma), beta])


def _of_layer(fused: Array, *models: Array, weights: Array) -> float:
    """Return the distance of one layer."""
    of_models = np.stack(models)  # (models, 2, channels)
    has_unit = (of_models != 0).any(axis=1)  # (models, channels)
    a = weights[:, None] * has_unit
    a = a / np.where(a.sum(axis=0) > 0, a.sum(axis=0), 1.0)
    means = np.einsum("ic,ipc->pc", a, of_models)  # G and B
    size = float(np.mean(means[0] ** 2))
    gap = float(np.mean(((fused - means) ** 2).sum(axis=0)))
    return (gap / size) ** 0.5 if size > 0 else 0.0
