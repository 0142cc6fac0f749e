"""Bayesian networks as a kind of model: formats, methods, and the steps of the pipeline, for the table of kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from consilience.core.arguments import OF_NETWORKS
from consilience.core.inputs import NamedInput
from consilience.core.kind import FileFormat, Kind, Prepared, Request, Saving, SiteFacts, ensemble_is_no_file
from consilience.core.verdict import FUSED
from consilience.errors import InputError, UnsupportedError
from consilience.files.document import BAYESIAN, DESCRIPTION
from consilience.networks.kind import NetworkKind, array_scales, load_curves, network_facets

if TYPE_CHECKING:
    from consilience.core.evaluation import Evaluation
    from consilience.files.safetensors_file import SafetensorsFile
    from consilience.networks.gaussian.network import BayesianNetwork
    from consilience.networks.method import NetworkMethod


class BayesianNetworks(NetworkKind):
    """Networks with a Gaussian for every weight."""

    name = "bayesian"
    title = "Bayesian networks"
    described_by = Kind.described_by | {*OF_NETWORKS} - {"layers", "output"}
    formats = (
        FileFormat(
            "bayesian",
            BAYESIAN,
            "a Bayesian network",
            "consilience.networks.gaussian.file_format:read_bayesian",
            "consilience.networks.gaussian.inspect:inspect_bayesian",
        ),
    )
    no_file = ensemble_is_no_file("kl")

    packages = frozenset(("torch", "laplace", "pyro", "blitz", "bayesian_torch", "consilience.networks.gaussian"))
    instead_of_rebuilding: ClassVar[Mapping[str, str]] = {
        "BayesianNetwork": "give it a module: `network.with_module(module)`"
    }

    @property
    def methods(self) -> tuple[type[Any], ...]:
        """Every method for Bayesian networks."""
        from consilience.networks.gaussian.methods import BAYESIAN_METHODS

        return BAYESIAN_METHODS

    def are_models(self, models: Sequence[object]) -> list[bool]:
        """Return which models are Bayesian networks of a kind with a reader, or fusions of such."""
        from consilience.networks.gaussian.fusion import BayesianEnsemble, BayesianFusion
        from consilience.networks.gaussian.readers.table import is_bayesian

        return [isinstance(model, BayesianFusion | BayesianEnsemble) or is_bayesian(model) for model in models]

    def make_method(self, method: Any, options: Mapping[str, Any]) -> NetworkMethod:
        """Return a method for Bayesian networks; see `Kind.make_method`."""
        from consilience.networks.fuse_aligned import split_arguments
        from consilience.networks.gaussian.methods import make_bayesian_method

        return make_bayesian_method(method, split_arguments(options)[1])

    def prepare(self, request: Request) -> Prepared:
        """Read, check and describe Bayesian networks."""
        from consilience.networks.gaussian.fuse import prepare_bayesian

        return prepare_bayesian(request)

    def candidates(self, fusion: Any) -> dict[str, Any]:
        """Return the fused network."""
        return {FUSED: fusion.model}

    def evaluate(self, fused: NamedInput, local: NamedInput, data: Any, labels: Any, module: Any) -> Evaluation:
        """Compare two Bayesian networks on labelled data."""
        from consilience.networks.gaussian.evaluate import evaluate_bayesian  # here, so that fusing starts without it

        return evaluate_bayesian(fused, local, data, labels, module)

    def site_facts(self, file: SafetensorsFile, companion: SafetensorsFile | None) -> SiteFacts:
        """Return the facts of a Bayesian network's file that a round compares, its description checked."""
        from consilience.networks.gaussian.file_format import read_bayesian
        from consilience.networks.gaussian.shared_symmetry import with_site_descriptions

        if companion is not None and companion.format != DESCRIPTION:
            text = "is a Bayesian network, whose variances say what is known"
            raise InputError(file, text, "send it alone, or with its description")
        bnn = read_bayesian(file)
        variances = {f"variance of {key}": values for key, values in bnn.variances.items()}
        if companion is not None:
            own = NamedInput(file.label, file.label, file=file)
            with_site_descriptions([bnn], [own], None, [NamedInput(companion.label, companion.label, file=companion)])
        scales = array_scales({**bnn.means, **variances})
        facets = network_facets("bayesian", bnn.means, bnn.symmetry, False)
        return SiteFacts(facets, scales=scales, bounded_scales=frozenset(scales))

    def save(self, model: Any, path: Path, saving: Saving) -> None:
        """Write means and variances of all parameters with their symmetry, and the description next to them."""
        from consilience.networks.descriptions.files import description_path, write_description
        from consilience.networks.gaussian.files import write_bayesian_network

        if set(saving.stated) - {"n_observations"}:
            model = self.describe(model, **{"data": None, **saving.stated}, symmetry=saving.symmetry)
        elif "n_observations" in saving.stated:
            model = replace(model, n_observations=saving.stated["n_observations"])
        write_bayesian_network(path, model, saving.symmetry, saving.provenance)
        if model.description is not None:  # after the network, which removes that of another
            write_description(description_path(path), model.description)

    def digest_of(self, model: Any) -> str:
        """Return the digest of means and variances; see `Kind.digest_of`."""
        from consilience.networks.gaussian.readers.table import as_bayesian_network
        from consilience.networks.inputs import content_digest

        return content_digest(as_bayesian_network(model, None, "").stored_arrays)

    def describe(self, model: Any, data: Any, *, symmetry: Any = None, **stated: Any) -> BayesianNetwork:
        """Return a Bayesian network with its symmetry and its description; see `Kind.describe`."""
        from consilience.networks.gaussian.describe import describe_bayesian
        from consilience.networks.gaussian.fusion import BayesianEnsemble, BayesianFusion
        from consilience.networks.gaussian.network import BayesianNetwork
        from consilience.networks.gaussian.readers.table import as_bayesian_network

        if isinstance(model, BayesianFusion):
            model = model.model
        if isinstance(model, BayesianEnsemble):
            raise UnsupportedError("an ensemble", "is its members", "describe them where their data are")
        name = model.name if isinstance(model, BayesianNetwork) else type(model).__name__
        return describe_bayesian(as_bayesian_network(model, None, name), data, symmetry=symmetry, **stated)

    def describe_file(
        self, path: Path, module: Any, data: Any, *, is_rewritten: bool, **stated: Any
    ) -> BayesianNetwork:
        """Return the described network of a file; see `Kind.describe_file`."""
        from consilience.networks.gaussian.evaluate import with_widths  # here, as above
        from consilience.networks.gaussian.file_format import read_bayesian
        from consilience.networks.torch_modules import make_template

        self.refuse_foreign(stated)
        bnn, template = read_bayesian(path), make_template(module)
        if template is not None:
            bnn = bnn.with_module(with_widths(bnn, template))
        described = self.describe(bnn, data, **stated)
        if not is_rewritten and bnn.n_observations not in (None, described.n_observations):
            text = "states its number of observations, which with the description discloses how many are withheld"
            raise InputError(path, text, "write it anew too (`output=`)")
        return described

    def writes(self, model: object) -> bool:
        """Return whether a model is a BayesianNetwork; those of other libraries become one first."""
        from consilience.networks.gaussian.network import BayesianNetwork

        return isinstance(model, BayesianNetwork)

    def write_report(self, page: Path, fused: SafetensorsFile, sites: Sequence[SafetensorsFile], **shown: Any) -> None:
        """Write a page about a fused Bayesian network's file; `shown` has files of barriers and planes by name."""
        from consilience.networks.gaussian.report.content import bayesian_content  # here, so that fusing needs no pages
        from consilience.networks.gaussian.report.write import read_gaussian, write_bayesian_content
        from consilience.networks.report.content import content_of
        from consilience.networks.report.page import shown_networks_of_files

        of_files = shown_networks_of_files(fused, sites, read_gaussian)
        write_bayesian_content(page, bayesian_content(content_of(of_files, **load_curves(**shown)), of_files))
