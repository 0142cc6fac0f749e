"""Layers of a fused network refitted in closed form, from second moments at the sites.

With a (d + 1,) what a layer of the fused network reads at site j, a one appended for the bias, A_j = E[a a^T], and t_j
what the layer should answer there,

    minimise  sum_j p_j E|W a - t_j|^2 + ridge * mean diagonal of A * |W - W_0|^2,      A = sum_j p_j A_j,

by W - W_0 = (sum_j p_j (E[t_j a^T] - W_0 A_j)) (A + ridge)^-1, p_j the site's share of all rows. Kinds of requests
differ in t_j. Here is what they share: which layers, the walk along them, and the solve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import FailFast, Field

from consilience.checks import Array
from consilience.core.solve_layer import solve_layer
from consilience.core.verdict import Verdict
from consilience.errors import InputError, Problem, UnsupportedError
from consilience.federated.requests.base import Answer, Content, Reduction, RequestKind, RoundRequest, StandingAnswer
from consilience.federated.requests.head import with_network
from consilience.federated.requests.message_checks import LARGEST, SCATTER_ROUNDING, few_rows, latest_answers
from consilience.federated.requests.network_state import (
    PREFIX,
    array_names,
    network_problems,
    symmetric_matrix,
    weights_in_order,
)
from consilience.files.schemas import StrictModel

RIDGE = 1e-4
"""Ridge towards the layer as it was, relative to the mean square of what it reads. Chosen by hand, as a ridge that
decides only where inputs are constant; of digits a chain of merges had the same accuracy to .3 points at 1e-2."""

MIN_ROWS = 100
"""Least rows behind a site's matrices, as for all moments of layers: of a few rows they span these rows."""


class LayerRequestFields(StrictModel):
    """JSON values of a request."""

    layers: Annotated[list[str], FailFast()] = Field(min_length=1)
    done: int = Field(ge=0)
    gain: float = Field(ge=0.0, allow_inf_nan=False)
    n_rows: float = Field(ge=0.0, allow_inf_nan=False)


class LayerAnswerFields(StrictModel):
    """JSON values of an answer."""

    withheld: int = Field(ge=0, le=0)


class LayerRefits(RequestKind):
    """Kinds of requests whose answers are moments of what layers read, by which they are refitted."""

    supports: ClassVar[str] = "networks of linear layers and convolutions, their units matched"
    models: ClassVar[str] = "networks"
    needs_module: ClassVar[bool] = True
    request_fields: ClassVar[type[StrictModel]] = LayerRequestFields
    no_request: ClassVar[str] = "is no network with layers"
    answer_fields: ClassVar[type[StrictModel]] = LayerAnswerFields
    fitted_to: ClassVar[str]
    """What layers are refitted to, in words of messages."""
    repaired: ClassVar[str]
    """What a fusion says of how its network was repaired."""

    def asked_layers(self, request: RoundRequest) -> list[str]:
        """Return the layers that all requests together refit, in order."""
        return list(request.content.fields["layers"])

    def open_layers(self, request: RoundRequest) -> list[str]:
        """Return those that are not refitted yet; after the last one it is asked again."""
        layers = self.asked_layers(request)
        return layers[min(int(request.content.fields["done"]), len(layers) - 1) :]

    def moment_shapes(self, weight: Array) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a layer's moments, from its weight as rows (k, d)."""
        d = weight.shape[1]
        return {"mean": (d,), "covariance": (d * (d + 1) // 2,)}

    def state_problems(self, request: RoundRequest) -> list[Problem]:
        """Return what is wrong with a network and its names of layers; see `RequestKind.state_problems`."""
        arrays = request.content.arrays
        problems = network_problems(arrays)
        names = (PREFIX + array_names(path)[0] for path in request.content.fields["layers"])
        if any(name not in arrays or arrays[name].ndim < 2 for name in names):
            problems.append(Problem("request", "names layers that its network does not have"))
        return problems

    def shape_problems(self, request: RoundRequest, answer: Answer) -> list[Problem]:
        """Return what is wrong with the shapes of moments; see `RequestKind.shape_problems`."""
        arrays, layers = answer.content.arrays, self.open_layers(request)
        shapes = {path: self.moment_shapes(weight_rows(request.content.arrays, path)) for path in layers}
        if set(arrays) != {f"{part}.{path}" for path, parts in shapes.items() for part in parts}:
            return [Problem("answer", f"expected moments of the layers {', '.join(layers)}")]
        for path, parts in shapes.items():
            moments = [arrays[f"{part}.{path}"] for part in parts]
            if [values.shape for values in moments] != list(parts.values()):
                found, expected = (
                    " and ".join(map(str, one)) for one in ([values.shape for values in moments], parts.values())
                )
                return [Problem("answer", f"layer {path} has moments {found}, expected {expected}")]
            if not all(np.all(np.abs(values) <= LARGEST) for values in moments):
                return [Problem("answer", f"layer {path} has moments that are NaN or infinite, or beyond {LARGEST:g}")]
        return []

    def sum_problems(self, request: RoundRequest, answer: Answer) -> list[Problem]:
        """Return the first layer with a covariance that no rows have; see `RequestKind.sum_problems`."""
        arrays = answer.content.arrays
        for path in self.open_layers(request):
            covariance = symmetric_matrix(arrays[f"covariance.{path}"], len(arrays[f"mean.{path}"]))
            if np.linalg.eigvalsh(covariance)[0] < -SCATTER_ROUNDING * max(float(np.trace(covariance)), 0.0):
                return [Problem("answer", f"layer {path} has a covariance that is not positive semidefinite")]
        return []

    def finish(self, fusion: Any, content: Content) -> Any:
        """Return the fusion with the network of a state; see `RequestKind.finish`."""
        fields = content.fields
        text = (
            f"{int(fields['done'])} of {len(fields['layers'])} layers are refitted to {self.fitted_to}"
            f" on the {fields['n_rows']:,.0f} rows of all that answered, exactly."
        )
        return with_network(fusion, content, Verdict("refitted layers", text, None), self.repaired)


def layers_that_fit(fusion: Any, request: str, supports: str) -> list[str]:
    """Return the layers of a fused network, in order, whose weights have the shape of every site's.

    Raises UnsupportedError where there are none, and where no units are matched: layers of sites are then not those of
    the fused network.
    """
    if not fusion.matching and fusion.network.symmetry.by_name:
        remedy = "fuse by a method that matches them, such as `method='consensus'`"
        raise UnsupportedError(request, "no units of these networks are matched", remedy)
    layers = [path for path, _ in weights_in_order(fusion.network)]
    shapes = {name: tuple(values.shape) for name, values in fusion.network.arrays.items()}
    fitting = [
        path
        for path in layers
        if all(
            tuple(np.shape(local.network.arrays.get(array_names(path)[0], 0))) == shapes[array_names(path)[0]]
            for local in fusion.inputs
        )
    ]
    if not fitting or not fusion.inputs:
        text = "no layer of this network is matched with layers of the sites'"
        raise UnsupportedError(request, text, f"{request} is for {supports}")
    return fitting


def input_batches(data: Any, network: Any, min_count: float) -> tuple[list[Any], int]:
    """Return the inputs of a site's rows in batches, and how many rows there are.

    Raises InputError for too few rows for their moments to leave the site.
    """
    from consilience.networks.descriptions.observations import batches_of_data

    batches = [batch.inputs for batch in batches_of_data(data, network)]
    n = sum(len(inputs) for inputs in batches)
    least = max(min_count, MIN_ROWS) if min_count > 0 else 1
    if n < least:
        text = f"has {n} rows, and moments of layers over fewer than {least:g} do not leave a site"
        raise few_rows(None, text, "answer with more rows, or take `min_count=0`")
    return batches, n


def weight_rows(arrays: Mapping[str, Array], path: str) -> Array:
    """Return the weight of a layer as rows (k, d), of convolutions over channels and kernel."""
    weight = arrays[PREFIX + array_names(path)[0]]
    rows: Array = weight.reshape(len(weight), -1)
    return rows


def affine_rows(arrays: Mapping[str, Array], path: str) -> Array:
    """Return the rows of a layer with its bias as the last column (k, d + 1); zero for a layer without one."""
    rows = weight_rows(arrays, path)
    bias = arrays.get(PREFIX + array_names(path)[1], np.zeros(len(rows)))
    return np.hstack([rows, bias[:, None]])


def gram_matrix(arrays: Mapping[str, Array], path: str) -> Array:
    """Return A_j (d + 1, d + 1): the second moments of what a layer reads, a one appended."""
    mean = np.append(arrays[f"mean.{path}"], 1.0)
    gram = np.outer(mean, mean)
    gram[:-1, :-1] += symmetric_matrix(arrays[f"covariance.{path}"], len(mean) - 1)
    return gram


Targets = Callable[[str, str, Mapping[str, Array], Array], Array]
"""E[t_j a^T] (k, d + 1) of a site and a layer, from the arrays of its answer and its A_j."""


def reduce_layers(
    request: RoundRequest,
    answers: Mapping[str, StandingAnswer],
    standing: Mapping[str, StandingAnswer],
    known: Mapping[str, Any],
    targets: Targets,
    layers: Sequence[str],
) -> Reduction:
    """Return the network with the next layers refitted.

    The objective is what the refits gain so far: the fall of sum_j p_j E|W a - t_j|^2 over layers.

    `known` is what the server knows of every site whose network was fused, kept for the next request; `targets` says
    what layers should answer; `layers` are those that all requests together refit, in order.
    """
    chosen, carried = latest_answers(request, answers, standing)
    if strangers := sorted(set(chosen) - set(known)):
        text = "answered, and none of the networks that were fused is called so"
        raise InputError(strangers[0], text, code="E-ROUND")
    fields = request.content.fields
    n_done = int(fields["done"])
    n_left = request.rounds - request.number + 1
    n_now = -(-(len(layers) - n_done) // n_left)  # rounded up: the requests that are left refit all layers
    arrays, gain = dict(request.content.arrays), float(fields["gain"])
    sent = {site: one.answer.content.arrays for site, one in chosen.items()}
    counts = np.array([one.answer.n_observations for one in chosen.values()], dtype=np.float64)
    for path in layers[n_done : n_done + n_now]:
        grams = [gram_matrix(one, path) for one in sent.values()]
        crosses = [targets(site, path, one, gram) for (site, one), gram in zip(sent.items(), grams, strict=True)]
        gain += refit_layer(arrays, path, grams, crosses, counts / counts.sum())
    done = {"done": min(n_done + n_now, len(layers)), "gain": gain, "n_rows": float(counts.sum())}
    return Reduction(Content({**fields, **done}, arrays, known), gain, float(fields["gain"]), chosen, carried)


def refit_layer(arrays: dict[str, Array], path: str, grams: list[Array], crosses: list[Array], shares: Array) -> float:
    """Refit a layer in place; return by how much the squared error of its outputs falls, summed over outputs.

    `grams` and `crosses` are A_j (d + 1, d + 1) and E[t_j a^T] (k, d + 1) of every site, `shares` (J,) its share of all
    rows.
    """
    weight_name, bias_name = (PREFIX + name for name in array_names(path))
    has_bias = bias_name in arrays
    before = affine_rows(arrays, path)  # W_0
    gram = np.einsum("j,jde->de", shares, np.stack(grams))
    pull = np.einsum("j,jkd->kd", shares, np.stack(crosses)) - before @ gram
    if not has_bias:
        gram, pull, before = gram[:-1, :-1], pull[:, :-1], before[:, :-1]
    # Sites send moments about zero, with a one among the inputs: the bias is shrunk as weights are.
    change: Array = solve_layer(gram, pull, RIDGE)
    # Q(W_0) - Q(W_0 + D) = 2 <D, sum_j p_j (E[t_j a^T] - W_0 A_j)> - tr D A D^T
    fall = 2.0 * float((change * pull).sum()) - float(np.einsum("kd,de,ke->", change, gram, change))
    after = before + change
    if has_bias:
        after, arrays[bias_name] = after[:, :-1], after[:, -1].copy()
    arrays[weight_name] = after.reshape(arrays[weight_name].shape)
    return max(fall, 0.0)
