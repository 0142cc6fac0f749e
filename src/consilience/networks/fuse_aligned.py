"""Fusion of networks of one symmetry by a method for networks; shared by plain and Bayesian networks.

Networks are put in their canonical order, aligned and averaged by the method, and the results are put back in the order
of the inputs. The fusion comes without provenance, which the callers add once refits and repairs are done.

**Activations of a network's units on inputs, for activation matching**.

The activations of a group are z (k, m): its k units after their nonlinearity, at m samples. They are recorded where a
linear or convolutional layer reads the group, as the input of that layer. Positions and examples are samples alike.
Groups that no such layer reads, or none that is called as a module, are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from consilience.catalogue import suggestion
from consilience.checks import Array, Json, is_count
from consilience.core.progress import Progress
from consilience.core.provenance import make_provenance, site_digests
from consilience.errors import InputError, OptionError, Problem
from consilience.matching.result import Matching
from consilience.networks.details import left_out_of
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.fusion import NetworkFusion, NetworkInput
from consilience.networks.inputs import canonical_order
from consilience.networks.method import NetworkEnsemble, NetworkMethod, check_widths
from consilience.networks.parametrised_layers import plain_module
from consilience.networks.shared_symmetry import NetworksWithSymmetry
from consilience.networks.symmetry.axes import Place
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import MatrixTransport, Transport
from consilience.networks.torch_modules import evaluating, is_module

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class NetworkArguments:
    """Arguments of ``fuse`` for networks only, apart from a method's options; see ``fuse`` for what they mean."""

    example: Any = None
    inputs: Any = None
    symmetry: Symmetry | str | Path | None = None
    module: nn.Module | Callable[[], nn.Module] | None = None
    target: nn.Module | None = None
    target_widths: Mapping[str, int] | None = None
    reference: Any = None
    fishers: Sequence[Any] | None = None
    descriptions: Any = None
    classes: Literal["union"] | None = None
    output: str | int | None = None

    def without_parametrised_layers(self, template: nn.Module | None) -> NetworkArguments:
        """Return the arguments with plain modules: `template`, which the module makes, and the target."""
        module = None if template is None else plain_module(template)
        target = plain_module(self.target) if is_module(self.target) and self.target is not None else self.target
        return replace(self, module=module, target=target)

    @property
    def reference_number(self) -> int | None:
        """Number of the reference; None where none was given, or one that `target_units` refuses."""
        return int(self.reference) if isinstance(self.reference, Integral) else None

    def with_reference_number(self, names: Sequence[str]) -> NetworkArguments:
        """Return the arguments with the number of the reference, where it was given by its name.

        Raises OptionError for a name that no model has.
        """
        if not isinstance(self.reference, str):
            return self
        if self.reference not in names:
            text = f"expected one of {', '.join(names)}, found {self.reference!r}{suggestion(self.reference, names)}"
            raise OptionError("reference", text)
        return replace(self, reference=list(names).index(self.reference))


def split_arguments(options: Mapping[str, Any]) -> tuple[NetworkArguments, dict[str, Any]]:
    """Return the arguments for networks, and the method's options."""
    names = {one.name for one in fields(NetworkArguments)}
    arguments = {key: value for key, value in options.items() if key in names}
    return NetworkArguments(**arguments), {key: value for key, value in options.items() if key not in names}


_Value = TypeVar("_Value")


def fuse_aligned(
    models: NetworksWithSymmetry,
    method: NetworkMethod,
    weights: Array,
    arguments: NetworkArguments,
    rng: np.random.Generator,
    progress: Progress,
    information: Sequence[FisherInformation] | None = None,
) -> tuple[NetworkFusion, list[int]]:
    """Return the fusion of networks, without provenance, and the canonical order in which they were fused.

    `weights` (J,) sum to 1. `information` is the Fisher information of each network, for methods that weigh by it.
    """
    inputs = models.inputs
    order = canonical_order(inputs)
    reference = order[0] if arguments.reference_number is None else arguments.reference_number

    def arranged(values: Sequence[_Value] | None) -> tuple[_Value, ...] | None:
        return None if values is None else tuple(values[i] for i in order)

    networks, units = tuple(models.networks[i] for i in order), target_units(models, method, arguments)
    ensemble = NetworkEnsemble(networks, weights[order], units, order.index(reference), input_numbers=tuple(order))
    ensemble = replace(ensemble, information=arranged(information), priors=arranged(models.priors))
    if method.takes_activations and arguments.inputs is not None:
        ensemble = replace(ensemble, activations=_activations(models, order, arguments.inputs))
    outcome = method.fuse(ensemble, rng, progress)
    alignment = outcome.alignment
    rank = [order.index(i) for i in range(len(inputs))]  # (J,): where input i stands in the canonical order
    transports, members = zip(*((alignment.transports[i], outcome.ensemble.networks[i]) for i in rank), strict=True)
    models = replace(models, template=arguments.target if arguments.target is not None else models.template)
    names = tuple(described.name for described in inputs)
    known: Sequence[FisherInformation | None] = [None] * len(inputs) if information is None else information
    notes = [*models.symmetry.notes, *alignment.details.get("notes", ())]
    if left_out := left_out_of(alignment.details):
        weights = np.where([name in left_out for name in names], 0.0, weights)
        weights = weights / weights.sum()
    fusion = models.fusion_type(
        network=outcome.network,
        matching={name: _matching(name, transports, names) for name in models.symmetry.by_name},
        transports=transports,
        objective=alignment.objective,
        history=alignment.history,
        status=alignment.status,
        details={**alignment.details, "proved": models.symmetry.proved, "notes": notes},
        provenance={},
        inputs=tuple(
            NetworkInput(of.name, member, float(weight), of.digest, said, of.description, sent, of.rests_on)
            for of, member, weight, said, sent in zip(inputs, members, weights, known, models.networks, strict=True)
        ),
        _rebuild=models.rebuild,
    )
    return fusion, order


def with_left_out(fusion: NetworkFusion, inputs: Sequence[NetworkInput]) -> NetworkFusion:
    """Return a fusion of some networks with all of `inputs`: others have no weight, and no unit of them is matched."""
    own = {local.name: (local, moves) for local, moves in zip(fusion.inputs, fusion.transports, strict=True)}

    def of_left_out(local: NetworkInput) -> tuple[NetworkInput, dict[str, Transport]]:
        matrices = {
            group: np.zeros((moves.width, local.network.units[group])) for group, moves in fusion.transports[0].items()
        }
        return replace(local, weight=0.0), {group: MatrixTransport(zero, zero) for group, zero in matrices.items()}

    pairs = [own.get(local.name) or of_left_out(local) for local in inputs]
    names, transports = tuple(local.name for local in inputs), tuple(moves for _, moves in pairs)
    matching = {group: _matching(group, transports, names) for group in fusion.matching}
    return replace(fusion, inputs=tuple(local for local, _ in pairs), transports=transports, matching=matching)


def target_units(models: NetworksWithSymmetry, method: NetworkMethod, arguments: NetworkArguments) -> dict[str, int]:
    """Return the number of units of the fused network by group: of the target module, as stated, or by the method.

    Raises OptionError for a reference that is no number of a model, targets that are none, or widths that groups cannot
    have.
    """
    count = len(models.networks)
    reference: Any = arguments.reference
    if reference is not None and not (reference == 0 or (is_count(reference) and reference < count)):
        text = f"expected the number of a model, 0 to {count - 1}, found {reference!r}"
        raise OptionError("reference", text)
    if arguments.target is not None and arguments.target_widths is not None:
        raise OptionError("target, target_widths", "give one of them")
    if arguments.target is not None:
        if not is_module(arguments.target):
            raise OptionError("target", f"expected a torch module, found {type(arguments.target).__name__}")
        try:
            return models.symmetry.units(models.shapes(arguments.target), "target")
        except InputError as error:
            text = f"a {type(arguments.target).__name__} that is not the models' network in other widths"
            remedy = "give one that differs in widths only, or `method='distill'`, which trains any network"
            unfit = Problem("target", text, remedy)
            # Which arrays do not fit says something only where the others do.
            is_near = any(key in models.networks[0].arrays for key in models.shapes(arguments.target))
            raise InputError([unfit, *error.problems] if is_near else [unfit]) from error
    default = method.default_units(models.networks, arguments.reference_number)
    return check_widths(models.symmetry, default, arguments.target_widths)


def is_width_change(models: NetworksWithSymmetry, target: nn.Module) -> bool:
    """Return whether a network is that of the models in these or other widths, by names and shapes of its arrays."""
    try:
        models.symmetry.units(models.shapes(target), "target")
    except InputError:
        return False
    return True


def _activations(models: NetworksWithSymmetry, order: Sequence[int], inputs: Any) -> tuple[Mapping[str, Array], ...]:
    """Return the activations of the units of every model on the same inputs, in canonical order."""
    from consilience.networks.example import batches_of

    modules = [models.inputs[i].module or models.module(models.networks[i]) for i in order]
    batches = list(batches_of(inputs, modules[0]))
    by_model = []
    for i, module in zip(order, modules, strict=True):
        described = models.inputs[i]
        of_model = activations(module, models.symmetry, batches)
        if overflowing := [group for group, values in of_model.items() if not np.isfinite(values).all()]:
            text = f"has NaN or infinite activations in group {overflowing[0]} on these inputs"
            remedy = "give inputs of the scale that it was trained on, or leave this network out"
            raise InputError(described.name, text, remedy, "E-NUMBER")
        by_model.append(of_model)
    return tuple(by_model)


def _matching(group: str, transports: Sequence[Mapping[str, Transport]], names: tuple[str, ...]) -> Matching:
    """Return the matching of one group: which fused unit each unit of each model became.

    With L units in all models and G fused ones: labels and owners (L,), and a coupling (L, G) where one is soft.
    """
    of_group = [moves[group] for moves in transports]
    labels = np.concatenate([transport.labels for transport in of_group])  # (L,)
    owner = np.repeat(np.arange(len(of_group)), [len(transport.labels) for transport in of_group])  # (L,)
    width = of_group[0].width
    signs = None
    if any(transport.unit_signs is not None for transport in of_group):
        signs_by_model = [transport.unit_signs for transport in of_group]
        ones = [np.ones(len(transport.labels)) for transport in of_group]
        signs = np.concatenate([one if sign is None else sign for sign, one in zip(signs_by_model, ones, strict=True)])
    if not any(transport.is_soft for transport in of_group):
        return Matching(labels, owner, width, signs=signs, names=names)
    coupling = np.concatenate([transport.plan.T for transport in of_group])
    return Matching(labels, owner, width, coupling, signs=signs, names=names)


def network_provenance(fusion: NetworkFusion, method: NetworkMethod, seed: int | None) -> dict[str, Json]:
    """Return the provenance that the fused file carries: method, options, seed, inputs and the outcome."""
    inputs = []
    for fused in fusion.inputs:
        record: dict[str, Json] = {"name": fused.name, "units": dict(fused.network.units), "weight": fused.weight}
        if fused.sha256 is not None:
            record["sha256"] = fused.sha256
        if fused.information is not None:
            record["fisher"] = fused.information.record()
        if fused.description is not None and fused.description.sha256 is not None:
            record["description"] = fused.description.sha256
        inputs.append(record)
    # By digest and name, so that the order in which the inputs arrived does not reach the file.
    inputs.sort(key=lambda record: (str(record.get("sha256", "")), str(record["name"])))
    result = {
        "units": fusion.groups,
        "status": fusion.status.name.lower(),
        "objective": fusion.objective if math.isfinite(fusion.objective) else None,
        "history": [float(f"{value:.12g}") for value in fusion.history.tolist()],
        "repaired": fusion.repaired,
        **fusion.details,
        "notes": list(fusion.notes),
        "site_digests": site_digests(fused.rests_on for fused in fusion.inputs),
    }
    return make_provenance(method.name, asdict(method), seed, inputs, result)


MAX_SAMPLES = 2**18
"""Most samples per unit of activations; of more, some are taken at even steps. Chosen by hand, to bound memory; nobody
has measured other values."""


def activations(module: nn.Module, symmetry: Symmetry, inputs: Any) -> dict[str, Array]:
    """Return the activations (k, m) of the units of every group that a layer reads, by group.

    `inputs` is a tensor of rows, a tuple or mapping of arguments of one call, or batches of these. Raises InputError if
    no group has a layer that reads it.
    """
    import torch

    from consilience.networks.example import batches_of

    readers = _readers(module, symmetry)
    if not readers:
        raise InputError("inputs", "no group of this network is read by a linear or convolutional layer")
    units = symmetry.units({name: tuple(v.shape) for name, v in module.state_dict().items()})
    recorded: dict[str, list[Tensor]] = {group: [] for group in readers}
    handles = []
    for group, (layer, place) in readers.items():
        segments = symmetry.layouts[place.array].axes[place.axis].segments
        start = sum(segment.length(units) for segment in segments[: place.segment])
        segment = segments[place.segment]
        length = segment.length(units)

        def record_input(
            layer: nn.Module,
            arguments: tuple[Any, ...],
            group: str = group,
            start: int = start,
            length: int = length,
            inner: int = segment.inner,
        ) -> None:
            values = arguments[0].detach()
            # Channels are axis 1 of a convolution's input, the last axis of a linear layer's.
            channel_axis = 1 if type(layer).__name__.startswith("Conv") else values.ndim - 1
            entries = values.movedim(channel_axis, 0)[start : start + length]  # (k * inner, ...)
            recorded[group].append(entries.reshape(length // inner, -1).cpu())  # (k, samples)

        handles.append(layer.register_forward_pre_hook(record_input))
    try:
        with evaluating(module):
            for batch in batches_of(inputs, module):
                batch.call(module)
    finally:
        for handle in handles:
            handle.remove()
    return {
        group: _thin_columns(torch.cat(batches, dim=1).double().numpy())
        for group, batches in recorded.items()
        if batches  # a layer whose weights are read without a call, such as that of attention, records nothing
    }


def _readers(module: nn.Module, symmetry: Symmetry) -> dict[str, tuple[nn.Module, Place]]:
    """Return, by group, the first layer that reads it, and the place of its weight where it does."""
    layers = dict(module.named_modules())
    readers: dict[str, tuple[nn.Module, Place]] = {}
    for group in symmetry.by_name:
        for place in symmetry.places(group):
            path, _, name = place.array.rpartition(".")
            layer = layers.get(path)
            kind = type(layer).__name__
            is_reader = kind.endswith("Linear") or kind in ("Conv1d", "Conv2d", "Conv3d")
            outer = symmetry.layouts[place.array].axes[place.axis].segments[place.segment].outer
            if layer is not None and is_reader and name == "weight" and place.side == "input" and outer == 1:
                readers.setdefault(group, (layer, place))
    return readers


def _thin_columns(values: Array) -> Array:
    """Return at most `MAX_SAMPLES` columns, at even steps."""
    n_columns = values.shape[1]
    if n_columns <= MAX_SAMPLES:
        return values
    return values[:, np.linspace(0, n_columns - 1, MAX_SAMPLES).astype(np.int64)]
