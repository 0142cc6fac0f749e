"""Further messages about hidden layers: sites answer with Gram matrices, and layers are refitted one after another.

With A_j the second moments of what layer l of the fused network reads on the rows of site j (inputs with a one appended
for the bias) and W_j the layer of site j, its units in the fused network's order, the refitted layer minimises

    sum_j tr (W - W_j) A_j (W - W_j)^T  +  ridge * mean diagonal of A * |W - W_0|^2,      A = sum_j A_j,

W_0 the layer before: (sum_j W_j A_j + ridge W_0)(A + ridge)^-1. It is exact on the data of all sites: what a pass over
all rows would give. (Regression mean, Jin et al. 2023; with the inputs of the merged network in place of the models'
own as RegMean++ does.) With as many requests as layers each is refitted behind layers that are refitted; with fewer,
several are refitted at once. The sites' networks stay at the server, which has them from the first message.

A site that sends no answer is carried on with the matrices of its last one, which were taken behind earlier layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from pydantic import Field, ValidationError
from scipy import linalg

from consilience.checks import Array
from consilience.core.verdict import Verdict
from consilience.errors import InputError, Problem, UnsupportedError
from consilience.federated.requests.base import Answer, Content, Reduction, Request, RequestKind, StandingAnswer
from consilience.federated.requests.head import stand, with_network, withheld_of
from consilience.federated.requests.network_state import (
    PREFIX,
    array_names,
    as_double,
    module_of_state,
    network_arrays,
    network_problems,
    symmetric_matrix,
    upper_triangle,
    weights_in_order,
)
from consilience.files.schemas import StrictModel, first_problem

RIDGE = 1e-4
"""Ridge towards the layer as it was, relative to the mean square of what it reads. Chosen by hand, as a ridge that
decides only where inputs are constant; other values were not compared."""

MIN_ROWS = 100
"""Least rows behind a site's matrices, as for all moments of layers: of a few rows they span these rows."""

_SCATTER_ROUNDING = 1e-8
"""Least eigenvalue of a covariance, in units of its trace, that is taken for rounding."""
_LARGEST = 1e75
"""Largest number in an answer: products of four such numbers are finite in float64."""


class GramRequestFields(StrictModel):
    """JSON values of a request."""

    layers: list[str] = Field(min_length=1)
    done: int = Field(ge=0)
    gain: float = Field(ge=0.0, allow_inf_nan=False)
    n_rows: float = Field(ge=0.0, allow_inf_nan=False)


class GramAnswerFields(StrictModel):
    """JSON values of an answer."""

    withheld: int = Field(ge=0, le=0)


class LayerGrams(RequestKind):
    """Layers of a fused network refitted to those of the sites, from second moments of what they read."""

    name: ClassVar[str] = "gram"
    summary: ClassVar[str] = "layers of a fused network refitted to the sites' on all sites' data, from Gram matrices"
    supports: ClassVar[str] = "networks of linear layers and convolutions, their units matched"
    models: ClassVar[str] = "networks"
    needs_module: ClassVar[bool] = True

    def start(self, fusion: Any) -> Content:
        """Return the fused network and its layers; see `RequestKind.start`."""
        arrays = network_arrays(fusion, self.name)
        layers = [path for path, _ in weights_in_order(fusion.network)]
        sites = {
            local.name: {
                PREFIX + name: as_double(values)
                for name, values in local.arrays.items()
                if name.rpartition(".")[0] in layers
            }
            for local in fusion.aligned
        }
        shapes = {name: values.shape for name, values in arrays.items()}
        fitting = [
            path
            for path in layers
            if all(
                site.get(PREFIX + array_names(path)[0], np.zeros(0)).shape == shapes[PREFIX + array_names(path)[0]]
                for site in sites.values()
            )
        ]
        if not fitting or not sites:
            raise UnsupportedError(
                self.name,
                "no layer of this network is matched with layers of the sites'",
                f"gram is for {self.supports}",
            )
        return Content({"layers": fitting, "done": 0, "gain": 0.0, "n_rows": 0.0}, arrays, sites)

    def request_problems(self, request: Request) -> list[Problem]:
        """Return what is wrong with a network; see `RequestKind.request_problems`."""
        try:
            fields = GramRequestFields.model_validate(dict(request.content.fields))
        except ValidationError as error:
            location, reason = first_problem(error)
            return [Problem("request", f"is no network with layers: {location or 'the whole'}: {reason}")]
        problems = network_problems(request.content.arrays)
        names = (PREFIX + array_names(path)[0] for path in fields.layers)
        if any(name not in request.content.arrays or request.content.arrays[name].ndim < 2 for name in names):
            problems.append(Problem("request", "names layers that its network does not have"))
        return problems

    def answer(self, request: Request, data: Any, *, min_count: float, module: Any = None) -> tuple[int, Content]:
        """Return the moments of what the layers that are not refitted yet read; see `RequestKind.answer`."""
        from consilience.networks.descriptions.observations import batches_of_data
        from consilience.networks.repair.layer_moments import layer_moments

        # In double precision, since units that hardly vary leave covariances of single precision indefinite.
        network = module_of_state(module, request.content.arrays).double()
        batches = [batch.inputs for batch in batches_of_data(data, network)]
        n = sum(len(inputs) for inputs in batches)
        least = max(min_count, MIN_ROWS) if min_count > 0 else 1
        if n < least:
            raise InputError(
                "data",
                f"has {n} rows, and moments of layers over fewer than {least:g} do not leave a site",
                "answer with more rows, or take min_count=0",
            )
        moments = layer_moments(network, batches, minimum=1)
        arrays: dict[str, Array] = {}
        for path in _open_layers(request):
            if path not in moments.layers:
                why = moments.skipped.get(path, "is not called, or no linear layer or convolution")
                raise InputError("module", f"layer {path!r} {why}, so that it has no Gram matrix")
            arrays[f"mean.{path}"] = moments.layers[path].mean
            arrays[f"covariance.{path}"] = upper_triangle(moments.layers[path].covariance)
        return n, Content({"withheld": 0}, arrays)

    def answer_problems(self, request: Request, answer: Answer) -> list[Problem]:
        """Return what is wrong with moments; see `RequestKind.answer_problems`."""
        try:
            GramAnswerFields.model_validate(dict(answer.content.fields))
        except ValidationError as error:
            location, reason = first_problem(error)
            return [Problem("answer", f"is no answer to a gram request: {location or 'the whole'}: {reason}")]
        arrays = answer.content.arrays
        expected = {f"{part}.{path}" for path in _open_layers(request) for part in ("mean", "covariance")}
        if set(arrays) != expected:
            return [Problem("answer", f"expected moments of the layers {', '.join(_open_layers(request))}")]
        for path in _open_layers(request):
            d = _rows_of(request.content.arrays, path).shape[1]
            mean, triangle = arrays[f"mean.{path}"], arrays[f"covariance.{path}"]
            shapes = (d,), (d * (d + 1) // 2,)
            if (mean.shape, triangle.shape) != shapes:
                text = (
                    f"layer {path} has moments {mean.shape} and {triangle.shape}, expected {shapes[0]} and {shapes[1]}"
                )
                return [Problem("answer", text)]
            if not (np.all(np.abs(mean) <= _LARGEST) and np.all(np.abs(triangle) <= _LARGEST)):
                return [Problem("answer", f"layer {path} has moments that are NaN or infinite, or beyond {_LARGEST:g}")]
            covariance = symmetric_matrix(triangle, d)
            if np.linalg.eigvalsh(covariance)[0] < -_SCATTER_ROUNDING * max(float(np.trace(covariance)), 0.0):
                return [Problem("answer", f"layer {path} has a covariance that is not positive semidefinite")]
        return []

    def reduce(
        self, request: Request, answers: Mapping[str, StandingAnswer], standing: Mapping[str, StandingAnswer]
    ) -> Reduction:
        """Return the network with the next layers refitted; see `RequestKind.reduce`.

        The objective is what the refits gain so far: the fall of sum_j tr (W - W_j) A_j (W - W_j)^T / n over layers.
        """
        chosen, carried = stand(request, answers, standing)
        networks: Mapping[str, Mapping[str, Array]] = request.content.private or {}
        if strangers := sorted(set(chosen) - set(networks)):
            raise InputError(strangers[0], "answered, and none of the networks that were fused is called so")
        fields = request.content.fields
        layers, n_done = list(fields["layers"]), int(fields["done"])
        n_left = request.rounds - request.number + 1
        n_now = -(-(len(layers) - n_done) // n_left)
        arrays, gain = dict(request.content.arrays), float(fields["gain"])
        sites = sorted(chosen)
        counts = np.array([chosen[site].answer.n_observations for site in sites], dtype=np.float64)
        for path in layers[n_done : n_done + n_now]:
            grams = [_gram(chosen[site].answer.content.arrays, path) for site in sites]
            gain += _refit(arrays, path, grams, [networks[site] for site in sites], counts / counts.sum())
        return Reduction(
            Content(
                {
                    "layers": layers,
                    "done": min(n_done + n_now, len(layers)),
                    "gain": gain,
                    "n_rows": float(counts.sum()),
                },
                arrays,
                networks,
            ),
            gain,
            float(fields["gain"]),
            {site: chosen[site] for site in sites},
            {site: carried[site] for site in sites if site in carried},
            withheld_of(chosen),
        )

    def finish(self, fusion: Any, content: Content) -> Any:
        """Return the fusion with the network of a state; see `RequestKind.finish`."""
        n_done, n_layers = int(content.fields["done"]), len(content.fields["layers"])
        text = (
            f"{n_done} of {n_layers} layers are refitted to those of the sites on the"
            f" {content.fields['n_rows']:,.0f} rows of all that answered, exactly."
        )
        return with_network(fusion, content, Verdict("refitted layers", text, None), "layers fitted to Gram matrices")


def _open_layers(request: Request) -> list[str]:
    """Return the layers that are not refitted yet; after the last one it is asked again."""
    layers, n_done = list(request.content.fields["layers"]), int(request.content.fields["done"])
    return layers[min(n_done, len(layers) - 1) :]


def _rows_of(arrays: Mapping[str, Array], path: str) -> Array:
    """Return the weight of a layer as rows (k, d), of convolutions over channels and kernel."""
    weight = arrays[PREFIX + array_names(path)[0]]
    rows: Array = weight.reshape(len(weight), -1)
    return rows


def _affine_rows(arrays: Mapping[str, Array], path: str, has_bias: bool) -> Array:
    """Return the rows of a layer (k, d), with the bias as the last column (k, d + 1) where the fused layer has one."""
    rows = _rows_of(arrays, path)
    if not has_bias:
        return rows
    bias = arrays.get(PREFIX + array_names(path)[1], np.zeros(len(rows)))
    return np.hstack([rows, bias[:, None]])


def _gram(arrays: Mapping[str, Array], path: str) -> Array:
    """Return the second moments of what a layer reads, a one appended (d + 1, d + 1)."""
    mean = np.append(arrays[f"mean.{path}"], 1.0)
    gram = np.outer(mean, mean)
    gram[:-1, :-1] += symmetric_matrix(arrays[f"covariance.{path}"], len(mean) - 1)
    return gram


def _refit(
    arrays: dict[str, Array], path: str, grams: list[Array], networks: list[Mapping[str, Array]], shares: Array
) -> float:
    """Refit a layer in place; return by how much the squared error of its outputs falls, summed over outputs."""
    weight_name, bias_name = (PREFIX + name for name in array_names(path))
    has_bias = bias_name in arrays
    if not has_bias:
        grams = [gram[:-1, :-1] for gram in grams]
    before = _affine_rows(arrays, path, has_bias)  # W_0
    gaps = [_affine_rows(network, path, has_bias) - before for network in networks]  # W_j - W_0
    gram = np.einsum("j,jde->de", shares, np.stack(grams))
    pull = np.einsum("j,jkd->kd", shares, np.stack([gap @ one for gap, one in zip(gaps, grams, strict=True)]))
    ridge = RIDGE * float(np.diagonal(gram).mean())
    system = gram + (ridge if ridge > 0 else 1.0) * np.eye(len(gram))
    change: Array = linalg.solve(system, pull.T, assume_a="pos").T
    # Q(W_0) - Q(W_0 + D) = 2 <D, sum_j p_j (W_j - W_0) A_j> - tr D A D^T
    fall = 2.0 * float((change * pull).sum()) - float(np.einsum("kd,de,ke->", change, gram, change))
    after = before + change
    if has_bias:
        after, arrays[bias_name] = after[:, :-1], after[:, -1].copy()
    arrays[weight_name] = after.reshape(arrays[weight_name].shape)
    return max(fall, 0.0)
