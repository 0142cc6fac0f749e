"""Networks as a kind of model: formats, methods, and the steps of the pipeline, for the table of kinds."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from consilience.checks import AnyArray, Json
from consilience.core.arguments import NETWORK_KEYWORDS, OF_NETWORKS
from consilience.core.inputs import NamedInput
from consilience.core.kind import (
    WIDTHS,
    Facets,
    FileFormat,
    Kind,
    Prepared,
    Request,
    Saving,
    SiteFacts,
    ensemble_is_no_file,
    facet,
    refuse_statements,
    root_mean_square,
)
from consilience.errors import InputError, OptionError, Problem
from consilience.files.document import DESCRIPTION, FISHER, NETWORK

if TYPE_CHECKING:
    from consilience.core.evaluation import Evaluation
    from consilience.core.site_losses import RowLosses
    from consilience.files.safetensors_file import SafetensorsFile
    from consilience.networks.method import NetworkMethod
    from consilience.networks.network import Network
    from consilience.networks.symmetry.symmetry import Symmetry

MAX_ARRAYS_NAMED = 8
"""Arrays that are not finite and that an error names. Chosen by hand for short messages."""


def _format(name: str, tag: str | None, called: str, loader: str, inspector: str, beside: bool = False) -> FileFormat:
    """Return a format whose functions lie in this room."""
    return FileFormat(
        name, tag, called, f"consilience.networks.{loader}", f"consilience.networks.{inspector}", is_companion=beside
    )


_OF_NETWORKS = ("inputs:load_network", "inspect:inspect_network")
_OF_DESCRIPTIONS = ("descriptions.files:read_description", "descriptions.inspect:inspect_description")


class NetworkKind(Kind):
    """What plain networks and those with variances share."""

    keywords = NETWORK_KEYWORDS
    takes_containers = True

    def own_models(self, fusion: Any) -> dict[str, Any]:
        """Return the networks that went into a fusion as modules, by site."""
        return {local.name: fusion.module_of(local.as_sent) for local in fusion.inputs}

    def observations(self, fusion: Any) -> dict[str, float]:
        """Return the weight of every site."""
        return {local.name: float(local.weight) for local in fusion.inputs}


class Networks(NetworkKind):
    """Neural networks: torch modules, Networks, and checkpoints of them."""

    name = "networks"
    title = "networks"
    sites_are_candidates = True
    bounds_claims = True
    described_by = Kind.described_by | {*OF_NETWORKS}
    formats = (
        _format("network", NETWORK, "a network", *_OF_NETWORKS),
        _format("fisher", FISHER, "Fisher information", "fisher.files:read_fisher", "inspect:inspect_fisher", True),
        _format("description", DESCRIPTION, "a description of a network", *_OF_DESCRIPTIONS, True),
        _format("checkpoint", None, "a plain checkpoint without variances", *_OF_NETWORKS),
    )
    no_file = ensemble_is_no_file("consensus")

    packages = frozenset(("torch", "consilience.networks"))
    statements = NETWORK_KEYWORDS
    instead_of_rebuilding: ClassVar[Mapping[str, str]] = {
        "Network": "load its arrays into a module of its architecture (load_state_dict)"
    }

    @property
    def methods(self) -> tuple[type[Any], ...]:
        """Every method for networks."""
        from consilience.networks.methods import NETWORK_METHODS

        return NETWORK_METHODS

    def are_models(self, models: Sequence[object]) -> list[bool]:
        """Return which models are torch modules, their state dicts, Networks, or fusions of such."""
        from consilience.networks.fusion import NetworkFusion
        from consilience.networks.inputs import is_network

        return [isinstance(model, NetworkFusion) or is_network(model) for model in models]

    def make_method(self, method: Any, options: Mapping[str, Any]) -> NetworkMethod:
        """Return a method for networks; see `Kind.make_method`."""
        from consilience.networks.fuse_aligned import split_arguments
        from consilience.networks.methods import make_network_method

        return make_network_method(method, split_arguments(options)[1])

    def prepare(self, request: Request) -> Prepared:
        """Read, check and describe networks."""
        from consilience.networks.fuse import prepare_networks

        return prepare_networks(request)

    def evaluate(self, fused: NamedInput, local: NamedInput, data: Any, labels: Any, module: Any) -> Evaluation:
        """Compare two networks on labelled data."""
        from consilience.networks.evaluate import evaluate_networks  # here, so that fusing starts without it

        return evaluate_networks(fused, local, data, labels, module)

    def losses(self, models: Sequence[Any], data: Any, module: Any = None) -> RowLosses:
        """Return the losses of networks, as modules, on a site's held-out rows."""
        from consilience.networks.held_losses import losses_of_networks  # here, as above

        return losses_of_networks(models, data)

    def candidates(self, fusion: Any) -> dict[str, Any]:
        """Return the networks among which sites may choose: the fused one, and the best others of a choice."""
        from consilience.networks.candidates_at_sites import candidates_of

        return candidates_of(fusion)

    def with_candidate(self, fusion: Any, name: str) -> Any:
        """Return a fusion with one of its candidates as the fused network, or the own one of a site."""
        from consilience.networks.candidates_at_sites import with_candidate

        return with_candidate(fusion, name)

    def withhold(self, file: SafetensorsFile, target: Path, min_count: float) -> Problem | None:
        """Refuse a description of classes with fewer observations than may leave; see `Kind.withhold`.

        Raises InputError for such a description; the rest of it cannot be separated from what was measured.
        """
        from consilience.networks.descriptions.files import DESCRIPTION_FILES

        del target
        if file.format == DESCRIPTION and (stated := DESCRIPTION_FILES.read_header(file)[0].min_count) < min_count:
            text = f"describes classes of {stated:g} observations, and {min_count:g} is the least that is sent"
            raise InputError(file, text, "describe the network again, or give a smaller min_count", "E-FEW")
        return None

    def method_of_round(
        self, options: Mapping[str, Any], *, allow_single: bool, asks_sites: bool
    ) -> tuple[str | None, Mapping[str, Any]]:
        """Return the method of a round; without a module nothing is compared, so that one site's network would come."""
        if options.get("module") is not None:
            return None, {}
        if allow_single:
            return "auto", {"allow_single": True}
        if asks_sites:
            from consilience.networks.methods.auto import Auto

            return Auto().matching.name, {}
        text = "is needed: without it networks are not compared, and one site's own would be published as the fused one"
        remedy = "give it, let sites choose (`then='choose'`), name a `method=`, or allow it (`allow_single=True`)"
        raise OptionError("module", text, remedy, "E-NEEDED")

    def site_facts(self, file: SafetensorsFile, companion: SafetensorsFile | None) -> SiteFacts:
        """Return the facts of a network's file, and of its Fisher information, that a round compares."""
        from consilience.networks.descriptions.inputs import with_descriptions
        from consilience.networks.fisher.files import read_fisher
        from consilience.networks.fisher.inputs import gather_information
        from consilience.networks.inputs import describe_network_file
        from consilience.networks.network import untrained_infinities

        if file.format in (FISHER, DESCRIPTION):
            called = "Fisher information" if file.format == FISHER else "a description"
            raise InputError(file, f"is {called}, expected a model", "send it with its network's file", "E-TYPE")
        n_observations: float | None = None
        network = describe_network_file(file, file.label, file.label)
        refuse_not_finite(file, network.arrays, untrained_infinities(network.arrays))
        scales = array_scales(network.arrays)
        is_informed = False
        if companion is not None:
            beside = [NamedInput(companion.label, companion.label, file=companion)]
            is_informed = companion.format != DESCRIPTION
            if is_informed:
                information = read_fisher(companion)
                refuse_not_finite(companion, {**information.residual, **information.factors})
                gather_information([network], None, beside)
                traces = array_scales(information.residual)
                scales |= {f"Fisher information of {name}": size for name, size in traces.items()}
            else:
                own = NamedInput(file.label, file.label, file=file)
                (described,) = with_descriptions([network], [own], None, beside)
                n_observations = None if described.description is None else described.description.n_observations
        facets = network_facets("network", network.arrays, network.symmetry, is_informed)
        bounded = frozenset(scales)
        return SiteFacts(facets, scales=scales, bounded_scales=bounded, n_observations=n_observations)

    def save(self, model: Any, path: Path, saving: Saving) -> None:
        """Write a network with its symmetry and description, a companion of one, or an ensemble as a folder."""
        from consilience.networks.descriptions.description import Description
        from consilience.networks.descriptions.files import description_path, write_description
        from consilience.networks.ensemble_files import is_ensemble, write_ensemble
        from consilience.networks.fisher.files import write_fisher
        from consilience.networks.fisher.information import FisherInformation
        from consilience.networks.fusion import NetworkFusion
        from consilience.networks.network import Network

        if isinstance(model, FisherInformation | Description):
            refuse_statements(model, saving.stated)
            write_fisher(path, model) if isinstance(model, FisherInformation) else write_description(path, model)
            return
        is_fusion = isinstance(model, NetworkFusion)
        if is_fusion or is_ensemble(model):
            refuse_statements(model, saving.stated)
            if saving.symmetry is not None:
                why = "an ensemble has none; its members are networks of their own"
                raise OptionError("symmetry", "a fusion has its own; leave it out" if is_fusion else why)
            model.save(path) if is_fusion else write_ensemble(path, model)
            return
        if saving.stated:
            model = self.describe(model, **{"data": None, **saving.stated}, symmetry=saving.symmetry)
        description = model.description if isinstance(model, Network) else None
        _write(model, path, saving.symmetry, saving.provenance)
        if description is not None:  # after the weights, which remove that of others
            write_description(description_path(path), description)

    def digest_of(self, model: Any) -> str:
        """Return the digest of a network's arrays; see `Kind.digest_of`."""
        from consilience.networks.inputs import digest_of_model

        return digest_of_model(model)

    def describe(self, model: Any, data: Any, *, symmetry: Any = None, **stated: Any) -> Network:
        """Return a network with its symmetry and its description; see `Kind.describe`."""
        from consilience.networks.describe import describe_model

        return describe_model(model, data, symmetry=symmetry, **stated)

    def describe_file(self, path: Path, module: Any, data: Any, *, is_rewritten: bool, **stated: Any) -> Network:
        """Return the described network of a file; see `Kind.describe_file`."""
        from consilience.networks.entry_names import renamed_like
        from consilience.networks.evaluate import module_of_file  # here, as above
        from consilience.networks.files import read_network
        from consilience.networks.fisher.information import network_digest

        described = self.describe(module_of_file(path, module), data, **stated)
        if is_rewritten or described.description is None:
            return described
        # Bound to the arrays of the file, which may be of another precision than those of the module.
        stored = read_network(path)
        aliases = {} if stored.symmetry is None else stored.symmetry.aliases
        arrays = renamed_like(stored.arrays, described.sent_arrays, str(path))  # as `fuse` reads them
        description = replace(described.description, digest=network_digest(arrays, aliases))
        return replace(described, description=description)

    def writes(self, model: object) -> bool:
        """Return whether an object is a network, or a companion such as its Fisher information."""
        from consilience.networks.descriptions.description import Description
        from consilience.networks.fisher.information import FisherInformation

        return isinstance(model, FisherInformation | Description) or self.recognises([model])[0]

    def write_report(self, page: Path, fused: SafetensorsFile, sites: Sequence[SafetensorsFile], **shown: Any) -> None:
        """Write a page about a fused network's file; `shown` has files of barriers and planes by name."""
        from consilience.networks.report.content import content_of  # here, so that fusing needs no pages
        from consilience.networks.report.page import shown_networks_of_files, write_network_content

        curves = load_curves(**shown)
        write_network_content(page, content_of(shown_networks_of_files(fused, sites), **curves))


def _write(model: Any, path: Path, symmetry: Symmetry | None, provenance: Mapping[str, Json] | None) -> None:
    """Write a network, or a module or state dict with a symmetry or without."""
    from consilience.networks.entry_names import dense_arrays, is_state_dict
    from consilience.networks.files import write_network
    from consilience.networks.inputs import describe_object
    from consilience.networks.network import Network
    from consilience.networks.torch_modules import arrays_of_module, unwrapped

    if isinstance(model, Network) and model.is_untraced:
        model = model.module  # nothing says which axes move, and under the module's names tied weights stay
    is_state = is_state_dict(model)
    if isinstance(model, Network):
        write_network(path, model.arrays, model.symmetry, provenance, sent=model.sent_arrays)
    elif symmetry is None:
        arrays = dense_arrays(model, "state dict") if is_state else arrays_of_module(unwrapped(model))
        write_network(path, arrays, None, provenance)
    else:
        described = describe_object(model, "", "state dict" if is_state else type(model).__name__)
        network = Network(described.arrays, symmetry, described.label)  # which refuses arrays that it does not fit
        sent = None if described.parametrised is None else described.sent_arrays
        write_network(path, network.arrays, symmetry, provenance, sent=sent)


def load_curves(
    barriers: Mapping[str, Path] | None = None,
    planes: Mapping[str, Path] | None = None,
    data: Any = None,
    truth: Any = None,
) -> dict[str, Any]:
    """Return the loss barriers and planes that a report page shows, read from files, by name.

    Raises OptionError for data, which are shown of statistical models only.
    """
    if data or truth is not None:
        raise OptionError("`data=`, `truth=`: for statistical models, and this is a network; see `barriers=`")
    if not barriers and not planes:
        return {}
    from consilience.networks.landscape.barrier import Barrier  # here, since they need torch
    from consilience.networks.landscape.plane import Plane

    return {
        "barriers": {name: Barrier.load(path) for name, path in (barriers or {}).items()},
        "planes": {name: Plane.load(path) for name, path in (planes or {}).items()},
    }


def network_facets(
    kind: str, arrays: Mapping[str, AnyArray], symmetry: Symmetry | None, has_information: bool
) -> Facets:
    """Return what must agree between the networks of a round: shapes, or with a symmetry only its layouts."""
    # A symmetry leaves the widths open; only some methods need equal ones, so they are a facet of their own.
    layouts = None if symmetry is None else symmetry.digest
    shapes = facet({name: list(values.shape) for name, values in sorted(arrays.items())})
    return {
        "kind": kind,
        "arrays": facet({name: len(values.shape) for name, values in sorted(arrays.items())}),
        "symmetry": layouts,
        "shapes": shapes if layouts is None else None,
        WIDTHS: shapes if layouts is not None else None,
        "Fisher information": "sent" if has_information else "none",
    }


def refuse_not_finite(file: SafetensorsFile, arrays: Mapping[str, AnyArray], constants: Container[str] = ()) -> None:
    """Raise InputError, naming the first, for arrays that are not finite and no constants."""
    from consilience.networks.network import is_finite

    non_finite = [name for name, values in arrays.items() if name not in constants and not is_finite(values)]
    if non_finite:
        texts = [f"array {name} has values that are not finite" for name in non_finite[:MAX_ARRAYS_NAMED]]
        raise InputError([Problem(file, text, code="E-NUMBER") for text in texts])


def array_scales(arrays: Mapping[str, AnyArray]) -> dict[str, float]:
    """Return the root mean square of every array of real or complex numbers that are finite, by name."""
    from consilience.networks.network import is_averaged, is_finite, real_pairs, to_numpy

    return {
        name: root_mean_square(to_numpy(real_pairs(values)))
        for name, values in arrays.items()
        if is_averaged(values) and is_finite(values)
    }
