"""A chain of merges: layers of a fused network refitted, one behind another, to what the sites' own networks compute.

At site j both networks run on the same rows: layer l of the fused one reads a, a one appended for the bias, and layer l
of the site's own, behind the site's own layers, answers t_j. Sites answer with A_j = E[a a^T] and C_j = E[t_j a^T]; the
server puts the rows of C_j into the fused network's order of units and takes

    W = (sum_j p_j C_j + ridge W_0)(sum_j p_j A_j + ridge)^-1

(`layer_refits`), which is exact on the data of all sites. Later layers thereby undo what was lost in earlier ones,
where `gram`, whose targets are the sites' layers behind the *fused* ones, fits what the loss has done to them. (Chain
of merges, Buzzega et al. 2025, whose statistics come from sampled rows in one place.) No label is needed. With as many
requests as layers all are refitted; with fewer, the last ones. Never several at once: a layer that is fitted behind
layers which then change is of no use (digits: 12 to 94 % in place of 83 to 96).

A site that sends no answer is carried on with the matrices of its last one, which were taken behind earlier layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import FailFast, Field

from consilience.checks import AnyArray, Array
from consilience.errors import InputError
from consilience.federated.requests.base import Content, Reduction, RoundRequest, StandingAnswer
from consilience.federated.requests.layer_refits import (
    LayerRefits,
    LayerRequestFields,
    input_batches,
    layers_that_fit,
    reduce_layers,
    weight_rows,
)
from consilience.federated.requests.network_state import (
    array_names,
    arrays_of_state,
    as_double,
    module_of_state,
    network_arrays,
    own_template,
    upper_triangle,
)
from consilience.files.schemas import StrictModel
from consilience.networks.network import same_values
from consilience.networks.symmetry.axes import Axis
from consilience.networks.symmetry.transport import Transport, move_axis
from consilience.networks.symmetry.unit_rows import balancing_scales, shared_groups


class ChainRequestFields(LayerRequestFields):
    """JSON values of a request."""

    networks: Annotated[list[str], FailFast()] = Field(min_length=1)
    """SHA-256 of the arrays of every network that was fused: a site's own is one of them."""


@dataclass(frozen=True, eq=False)
class UnitOrder:
    """How the units of a site became those of the fused network."""

    axes: Mapping[str, Axis]  # by layer, the axis of its outputs
    transports: Mapping[str, Transport]  # by group
    units: Mapping[str, int]  # units of every group before
    # What units were multiplied by (k,) before they were matched, by group; none for groups that kept their scale.
    scales: Mapping[str, Array]

    def move(self, values: Array, path: str) -> Array:
        """Return values (k, ...) of a layer's outputs in the scale and order of the fused network's."""
        factors = [
            np.tile(np.repeat(self.scales[str(segment.group)], segment.inner), segment.outer)
            if segment.group in self.scales
            else np.ones(segment.length(self.units))
            for segment in self.axes[path].segments
        ]
        scaled = values * np.concatenate(factors)[:, None]
        moved: Array = move_axis(scaled, 0, self.axes[path], self.transports, self.units)
        return moved


class ChainOfMerges(LayerRefits):
    """Layers of a fused network refitted to what the sites' own networks compute on their rows."""

    name: ClassVar[str] = "chain"
    summary: ClassVar[str] = (
        "layers of a fused network refitted to what the sites' own networks compute, without labels"
    )
    request_fields: ClassVar[type[StrictModel]] = ChainRequestFields
    fitted_to: ClassVar[str] = "what the sites' own networks compute"
    repaired: ClassVar[str] = "layers fitted by a chain of merges"
    module: ClassVar[str] = "the site's own trained network"
    tells: ClassVar[tuple[tuple[str, str], ...]] = (
        (
            "second moments",
            "of what layers read and answer over all rows; of fewer rows than inputs of a layer, their space",
        ),
    )

    def start(self, fusion: Any) -> Content:
        """Return the fused network, its layers, and digests of the sites' networks; see `RequestKind.start`."""
        arrays = network_arrays(fusion, self.name)
        layers = layers_that_fit(fusion, self.name, self.supports)
        layouts = fusion.network.symmetry.layouts
        axes = {path: layouts[array_names(path)[0]].axes[0] for path in layers}
        no_moves: dict[str, Transport] = {}
        moves = fusion.transports or (no_moves,) * len(fusion.inputs)
        pairs = [pair for pair in zip(fusion.inputs, moves, strict=True) if pair[0].name not in fusion.left_out]
        shared = shared_groups([local.as_sent for local, _ in pairs])
        orders = {
            local.name: UnitOrder(axes, transports, local.network.units, _scales_of(local, shared))
            for local, transports in pairs
        }
        digests = sorted(arrays_digest(local.as_sent.arrays) for local, _ in pairs)
        fields = {"layers": layers, "networks": digests, "done": 0, "gain": 0.0, "n_rows": 0.0}
        return Content(fields, arrays, orders)

    def site_module(self, fusion: Any, site: str) -> Any:
        """Return the network of a site as it came; see `RequestKind.site_module`."""
        for local in fusion.inputs:
            if local.name == site:
                return fusion.module_of(local.as_sent)
        raise InputError(site, "answers, and none of the networks that were fused is called so", code="E-ROUND")

    def asked_layers(self, request: RoundRequest) -> list[str]:
        """Return the layers that all requests together refit, one each: the last ones."""
        return super().asked_layers(request)[-request.rounds :]

    def moment_shapes(self, weight: Array) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a layer's moments, those of its targets too; see `LayerRefits.moment_shapes`."""
        return {**super().moment_shapes(weight), "target": weight.shape[:1], "cross": weight.shape}

    def answer(self, request: RoundRequest, data: Any, *, min_count: float, module: Any = None) -> tuple[int, Content]:
        """Return moments of what layers read, and of what the site's own answer; see `RequestKind.answer`."""
        own = own_template(module)
        fused = module_of_state(own, request.content.arrays).double()
        state = own.state_dict()
        if arrays_digest({name: state[name] for name in arrays_of_state(request.content.arrays)}) not in set(
            request.content.fields["networks"]
        ):
            text = "has other weights than all networks that were fused, and its layers are what is to be met"
            raise InputError("module", text, "give your own trained network, as it was when you sent it", "E-MISMATCH")
        own = own.double().eval()
        batches, n = input_batches(data, fused, min_count)
        arrays: dict[str, Array] = {}
        for path, (mean, covariance) in _joint_moments(fused, own, self.open_layers(request), batches).items():
            d = weight_rows(request.content.arrays, path).shape[1]
            arrays[f"mean.{path}"], arrays[f"target.{path}"] = mean[:d], mean[d:]
            arrays[f"covariance.{path}"] = upper_triangle(covariance[:d, :d])
            arrays[f"cross.{path}"] = covariance[d:, :d]
        return n, Content({"withheld": 0}, arrays)

    def reduce(
        self, request: RoundRequest, answers: Mapping[str, StandingAnswer], standing: Mapping[str, StandingAnswer]
    ) -> Reduction:
        """Return the network with the next layers refitted; see `RequestKind.reduce` and `reduce_layers`."""
        orders: Mapping[str, UnitOrder] = request.content.private or {}

        def outputs(site: str, path: str, sent: Mapping[str, Array], gram: Array) -> Array:
            """Return E[t_j a^T], the units of the site in the fused network's order."""
            mean = gram[-1]  # of a with a one appended
            cross = np.outer(sent[f"target.{path}"], mean)  # (k, d + 1)
            cross[:, :-1] += sent[f"cross.{path}"]
            return orders[site].move(cross, path)

        return reduce_layers(request, answers, standing, orders, outputs, self.asked_layers(request))


def _scales_of(local: Any, shared: set[str]) -> dict[str, Array]:
    """Return what the units of a site's network were multiplied by before they were matched, by group."""
    same = all(same_values(values, local.as_sent.arrays[name]) for name, values in local.network.arrays.items())
    return {} if same else {name: as_double(s) for name, s in balancing_scales(local.as_sent, shared).items()}


def arrays_digest(arrays: Mapping[str, AnyArray]) -> str:
    """Return the SHA-256 of the names and values of a network's arrays, whatever their library and precision."""
    digest = sha256()
    for name in sorted(arrays):
        values = np.ascontiguousarray(as_double(arrays[name]), dtype="<f8")
        digest.update(f"{name} {values.shape}\n".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()


def _joint_moments(fused: Any, own: Any, layers: list[str], batches: list[Any]) -> dict[str, tuple[Array, Array]]:
    """Return by layer mean (d + k,) and covariance of its inputs in `fused` joined with its outputs in `own`.

    Raises InputError for layers that are not called once in every pass, or are no linear layers or convolutions of one
    group.
    """
    import torch

    from consilience.networks.repair.convolution_patches import output_positions, patch_chunks
    from consilience.networks.repair.layer_moments import RunningMoments
    from consilience.networks.repair.partial_forward import call_module, evaluation_without_gradients

    _refuse_layers(fused, layers, batches[0])
    sums: dict[str, RunningMoments] = {}
    answers: dict[str, Any] = {}

    def keep(path: str, part: Any, arguments: Any, output: Any) -> None:
        """Keep what the own layer answers, as rows (samples * positions, k)."""
        channels_last = (
            output
            if len(output_positions(part, output)) == output.ndim - 1 and part.weight.ndim == 2
            else output.movedim(1, -1)
        )
        answers[path] = channels_last.reshape(-1, channels_last.shape[-1])

    def add(path: str, part: Any, arguments: Any, output: Any) -> None:
        """Add the rows that the fused layer reads, joined with those answers."""
        start = 0
        for rows in patch_chunks(part, arguments[0], output):
            joint = torch.cat([rows, answers[path][start : start + len(rows)]], dim=1)
            sums[path] = sums[path].with_rows(joint) if path in sums else RunningMoments.of(joint)
            start += len(rows)

    # The own network is called first in every batch: `add` reads the answers that `keep` has left.
    with ExitStack() as stack:
        for network, hook in ((own, keep), (fused, add)):
            stack.enter_context(evaluation_without_gradients(network))
            for path in layers:
                stack.callback(network.get_submodule(path).register_forward_hook(partial(hook, path)).remove)
        for batch in batches:
            call_module(own, batch)
            call_module(fused, batch)
    moments: dict[str, tuple[Array, Array]] = {}
    for path, one in sums.items():
        mean, covariance = one.mean_and_covariance()
        moments[path] = mean.cpu().numpy(), covariance.cpu().numpy()
    if bad := [path for path, (_, covariance) in moments.items() if not np.isfinite(covariance).all()]:
        text = "NaN or infinite values on these inputs"
        raise InputError(", ".join(bad), text, "look at the inputs and weights", "E-NUMBER")
    return moments


def _refuse_layers(fused: Any, layers: list[str], batch: Any) -> None:
    """Raise for layers that are not called once in every pass, or are no linear layers or convolutions of one group."""
    from consilience.networks.repair.partial_forward import is_grouped, is_transposed, layer_order

    order = layer_order(fused, batch)
    for path in layers:
        part = fused.get_submodule(path)
        if path not in order.affine or is_grouped(part) or is_transposed(part):
            why = order.skipped.get(path, "is not called, or no linear layer or convolution of one group")
            raise InputError("module", f"layer {path!r} {why}, so that it has no Gram matrix", code="E-ROUND")
