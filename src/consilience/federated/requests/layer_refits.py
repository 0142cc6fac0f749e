"""Layers of a fused network refitted in closed form, from second moments at the sites.

With a (d + 1,) what a layer of the fused network reads at site j, a one appended for the bias, A_j = E[a a^T], and t_j
what the layer should answer there,

    minimise  sum_j p_j E|W a - t_j|^2 + ridge * mean diagonal of A * |W - W_0|^2,      A = sum_j p_j A_j,

by W - W_0 = (sum_j p_j (E[t_j a^T] - W_0 A_j)) (A + ridge)^-1, p_j the site's share of all rows. Kinds of requests
differ in t_j. Here is what they share: which layers, the walk along them, and the solve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field, ValidationError
from scipy import linalg

from consilience.checks import Array
from consilience.errors import InputError, Problem, UnsupportedError
from consilience.federated.requests.base import Content, Reduction, RoundRequest, StandingAnswer
from consilience.federated.requests.head import stand, withheld_of
from consilience.federated.requests.network_state import (
    PREFIX,
    array_names,
    network_problems,
    symmetric_matrix,
    weights_in_order,
)
from consilience.files.schemas import StrictModel, first_problem

RIDGE = 1e-4
"""Ridge towards the layer as it was, relative to the mean square of what it reads. Chosen by hand, as a ridge that
decides only where inputs are constant; of digits a chain of merges had the same accuracy to .3 points at 1e-2."""

MIN_ROWS = 100
"""Least rows behind a site's matrices, as for all moments of layers: of a few rows they span these rows."""

_SCATTER_ROUNDING = 1e-8
"""Least eigenvalue of a covariance, in units of its trace, that is taken for rounding."""
_LARGEST = 1e75
"""Largest number in an answer: products of four such numbers are finite in float64."""


class LayerRequestFields(StrictModel):
    """JSON values of a request."""

    layers: list[str] = Field(min_length=1)
    done: int = Field(ge=0)
    gain: float = Field(ge=0.0, allow_inf_nan=False)
    n_rows: float = Field(ge=0.0, allow_inf_nan=False)


class LayerAnswerFields(StrictModel):
    """JSON values of an answer."""

    withheld: int = Field(ge=0, le=0)


def layers_that_fit(fusion: Any, request: str, supports: str) -> list[str]:
    """Return the layers of a fused network, in order, whose weights have the shape of every site's.

    Raises
    ------
    UnsupportedError
        Where there are none, and where no units are matched: layers of sites are then not those of the fused network.
    """
    if not fusion.matching and fusion.network.symmetry.by_name:
        raise UnsupportedError(
            request,
            "no units of these networks are matched",
            "fuse by a method that matches them, such as `method='consensus'`",
        )
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
        raise UnsupportedError(
            request,
            "no layer of this network is matched with layers of the sites'",
            f"{request} is for {supports}",
        )
    return fitting


def layer_problems(request: RoundRequest, schema: type[LayerRequestFields]) -> list[Problem]:
    """Return what is wrong with what a request states, with its network, and with its names of layers."""
    try:
        fields = schema.model_validate(dict(request.content.fields))
    except ValidationError as error:
        location, reason = first_problem(error)
        return [Problem("request", f"is no network with layers: {location or 'the whole'}: {reason}")]
    problems = network_problems(request.content.arrays)
    names = (PREFIX + array_names(path)[0] for path in fields.layers)
    if any(name not in request.content.arrays or request.content.arrays[name].ndim < 2 for name in names):
        problems.append(Problem("request", "names layers that its network does not have"))
    return problems


def input_batches(data: Any, network: Any, min_count: float) -> tuple[list[Any], int]:
    """Return the inputs of a site's rows in batches, and how many rows there are.

    Raises
    ------
    InputError
        For too few rows for their moments to leave the site.
    """
    from consilience.networks.descriptions.observations import batches_of_data

    batches = [batch.inputs for batch in batches_of_data(data, network)]
    n = sum(len(inputs) for inputs in batches)
    least = max(min_count, MIN_ROWS) if min_count > 0 else 1
    if n < least:
        raise InputError(
            "data",
            f"has {n} rows, and moments of layers over fewer than {least:g} do not leave a site",
            "answer with more rows, or take `min_count=0`",
            "E-FEW",
        )
    return batches, n


def open_layers(request: RoundRequest, layers: Sequence[str]) -> list[str]:
    """Return those of some layers that are not refitted yet; after the last one it is asked again."""
    n_done = int(request.content.fields["done"])
    return list(layers[min(n_done, len(layers) - 1) :])


def moment_problems(
    request: RoundRequest,
    content: Content,
    layers: Sequence[str],
    more: Mapping[str, Callable[[str], tuple[int, ...]]],
) -> list[Problem]:
    """Return what is wrong with the moments in an answer.

    Parameters
    ----------
    request : Request
        The request.
    content : Content
        The moments: ``mean`` (d,) and ``covariance`` (upper triangle) of every layer, and `more`.
    layers : sequence of str
        The layers that it should be of.
    more : mapping of str to callable
        Further arrays of each layer, by the part of their name before the layer's, with their shape.
    """
    try:
        LayerAnswerFields.model_validate(dict(content.fields))
    except ValidationError as error:
        location, reason = first_problem(error)
        return [Problem("answer", f"is no answer to a {request.kind} request: {location or 'the whole'}: {reason}")]
    arrays = content.arrays
    expected = {f"{part}.{path}" for path in layers for part in ("mean", "covariance", *more)}
    if set(arrays) != expected:
        return [Problem("answer", f"expected moments of the layers {', '.join(layers)}")]
    for path in layers:
        d = weight_rows(request.content.arrays, path).shape[1]
        shapes = {
            "mean": (d,),
            "covariance": (d * (d + 1) // 2,),
            **{part: shape(path) for part, shape in more.items()},
        }
        moments = {part: arrays[f"{part}.{path}"] for part in shapes}
        if any(moments[part].shape != shape for part, shape in shapes.items()):
            what = " and ".join(str(values.shape) for values in moments.values())
            return [
                Problem(
                    "answer", f"layer {path} has moments {what}, expected {' and '.join(map(str, shapes.values()))}"
                )
            ]
        if not all(np.all(np.abs(values) <= _LARGEST) for values in moments.values()):
            return [Problem("answer", f"layer {path} has moments that are NaN or infinite, or beyond {_LARGEST:g}")]
        covariance = symmetric_matrix(moments["covariance"], d)
        if np.linalg.eigvalsh(covariance)[0] < -_SCATTER_ROUNDING * max(float(np.trace(covariance)), 0.0):
            return [Problem("answer", f"layer {path} has a covariance that is not positive semidefinite")]
    return []


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

    Parameters
    ----------
    request, answers, standing
        As for `RequestKind.reduce`.
    known : mapping
        What the server knows of every site whose network was fused, by name; kept for the next request.
    targets : callable
        What layers should answer.
    layers : sequence of str
        Layers that all requests together refit, in order.
    """
    chosen, carried = stand(request, answers, standing)
    if strangers := sorted(set(chosen) - set(known)):
        raise InputError(
            strangers[0], "answered, and none of the networks that were fused is called so", code="E-ROUND"
        )
    fields = request.content.fields
    n_done = int(fields["done"])
    n_left = request.rounds - request.number + 1
    n_now = -(-(len(layers) - n_done) // n_left)
    arrays, gain = dict(request.content.arrays), float(fields["gain"])
    sites = sorted(chosen)
    counts = np.array([chosen[site].answer.n_observations for site in sites], dtype=np.float64)
    for path in layers[n_done : n_done + n_now]:
        sent = [chosen[site].answer.content.arrays for site in sites]
        grams = [gram_matrix(one, path) for one in sent]
        crosses = [targets(site, path, one, gram) for site, one, gram in zip(sites, sent, grams, strict=True)]
        gain += refit_layer(arrays, path, grams, crosses, counts / counts.sum())
    return Reduction(
        Content(
            {
                **fields,
                "done": min(n_done + n_now, len(layers)),
                "gain": gain,
                "n_rows": float(counts.sum()),
            },
            arrays,
            known,
        ),
        gain,
        float(fields["gain"]),
        {site: chosen[site] for site in sites},
        {site: carried[site] for site in sites if site in carried},
        withheld_of(chosen),
    )


def refit_layer(arrays: dict[str, Array], path: str, grams: list[Array], crosses: list[Array], shares: Array) -> float:
    """Refit a layer in place; return by how much the squared error of its outputs falls, summed over outputs.

    Parameters
    ----------
    arrays : dict
        The network.
    path : str
        The layer.
    grams, crosses : list of ndarray
        A_j (d + 1, d + 1) and E[t_j a^T] (k, d + 1) of every site.
    shares : ndarray of shape (J,)
        Shares of all rows.
    """
    weight_name, bias_name = (PREFIX + name for name in array_names(path))
    has_bias = bias_name in arrays
    before = affine_rows(arrays, path)  # W_0
    gram = np.einsum("j,jde->de", shares, np.stack(grams))
    pull = np.einsum("j,jkd->kd", shares, np.stack(crosses)) - before @ gram
    if not has_bias:
        gram, pull, before = gram[:-1, :-1], pull[:, :-1], before[:, :-1]
    ridge = RIDGE * float(np.diagonal(gram).mean())
    system = gram + (ridge if ridge > 0 else 1.0) * np.eye(len(gram))
    change: Array = linalg.solve(system, pull.T, assume_a="pos").T
    # Q(W_0) - Q(W_0 + D) = 2 <D, sum_j p_j (E[t_j a^T] - W_0 A_j)> - tr D A D^T
    fall = 2.0 * float((change * pull).sum()) - float(np.einsum("kd,de,ke->", change, gram, change))
    after = before + change
    if has_bias:
        after, arrays[bias_name] = after[:, :-1], after[:, -1].copy()
    arrays[weight_name] = after.reshape(arrays[weight_name].shape)
    return max(fall, 0.0)
