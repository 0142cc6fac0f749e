"""Further messages about hidden layers: sites answer with Gram matrices, and layers are refitted one after another.

With A_j the second moments of what layer l of the fused network reads on the rows of site j (inputs with a one appended
for the bias) and W_j the layer of site j, its units in the fused network's order, the refitted layer is

    (sum_j W_j A_j + ridge W_0)(sum_j A_j + ridge)^-1,    W_0 the layer before:

what W_j answers there (`layer_refits` with t_j = W_j a). It is exact on the data of all sites: what a pass over all
rows would give. (Regression mean, Jin et al. 2023; with the inputs of the merged network in place of the models' own,
as RegMean++ does.) With as many requests as layers each is refitted behind layers that are refitted; with fewer,
several are refitted at once. The sites' networks stay at the server, which has them from the first message.

A site that sends no answer is carried on with the matrices of its last one, which were taken behind earlier layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from consilience.checks import Array
from consilience.errors import InputError
from consilience.federated.requests.base import Content, Reduction, RoundRequest, StandingAnswer
from consilience.federated.requests.layer_refits import (
    LayerRefits,
    affine_rows,
    input_batches,
    layers_that_fit,
    reduce_layers,
)
from consilience.federated.requests.network_state import (
    PREFIX,
    as_double,
    module_of_state,
    network_arrays,
    upper_triangle,
)


class LayerGrams(LayerRefits):
    """Layers of a fused network refitted to those of the sites, from second moments of what they read."""

    name: ClassVar[str] = "gram"
    summary: ClassVar[str] = "layers of a fused network refitted to the sites' on all sites' data, from Gram matrices"
    fitted_to: ClassVar[str] = "those of the sites"
    repaired: ClassVar[str] = "layers fitted to Gram matrices"
    tells: ClassVar[tuple[tuple[str, str], ...]] = (
        ("second moments", "of what layers read over all rows; of fewer rows than inputs of a layer, their space"),
    )

    def start(self, fusion: Any) -> Content:
        """Return the fused network and its layers; see `RequestKind.start`."""
        arrays = network_arrays(fusion, self.name)
        layers = layers_that_fit(fusion, self.name, self.supports)
        sites = {
            local.name: {
                PREFIX + name: as_double(values)
                for name, values in local.arrays.items()
                if name.rpartition(".")[0] in layers
            }
            for local in fusion.aligned
        }
        return Content({"layers": layers, "done": 0, "gain": 0.0, "n_rows": 0.0}, arrays, sites)

    def answer(self, request: RoundRequest, data: Any, *, min_count: float, module: Any = None) -> tuple[int, Content]:
        """Return the moments of what the layers that are not refitted yet read; see `RequestKind.answer`."""
        from consilience.networks.repair.layer_moments import layer_moments

        # In double precision, since units that hardly vary leave covariances of single precision indefinite.
        network = module_of_state(module, request.content.arrays).double()
        batches, n = input_batches(data, network, min_count)
        moments = layer_moments(network, batches, minimum=1)
        arrays: dict[str, Array] = {}
        for path in self.open_layers(request):
            if path not in moments.layers:
                why = moments.skipped.get(path, "is not called, or no linear layer or convolution")
                raise InputError("module", f"layer {path!r} {why}, so that it has no Gram matrix", code="E-ROUND")
            arrays[f"mean.{path}"] = moments.layers[path].mean
            arrays[f"covariance.{path}"] = upper_triangle(moments.layers[path].covariance)
        return n, Content({"withheld": 0}, arrays)

    def reduce(
        self, request: RoundRequest, answers: Mapping[str, StandingAnswer], standing: Mapping[str, StandingAnswer]
    ) -> Reduction:
        """Return the network with the next layers refitted; see `RequestKind.reduce` and `reduce_layers`."""
        networks: Mapping[str, Mapping[str, Array]] = request.content.private or {}

        def outputs(site: str, path: str, sent: Mapping[str, Array], gram: Array) -> Array:
            """Return E[W_j a a^T]."""
            return affine_rows(networks[site], path) @ gram

        return reduce_layers(request, answers, standing, networks, outputs, self.asked_layers(request))
