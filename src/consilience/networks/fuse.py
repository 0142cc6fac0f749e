"""Pipeline of network fusion: describe and check, then match, average, rebuild and refit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from consilience.checks import AnyArray, Array
from consilience.core.agreement import Doubt
from consilience.core.inputs import NamedInput
from consilience.core.kind import Prepared, Request
from consilience.core.progress import Progress
from consilience.core.robust import cap_factors
from consilience.errors import InputError, OptionError, Problem, UncomparedWarning, UnsupportedError, reason_of
from consilience.files.document import DESCRIPTION, FISHER
from consilience.networks.choice.default import fuse_by_default, module_needed
from consilience.networks.choice.kronecker import described_information, fuse_with_chosen_damping
from consilience.networks.choice.named_method import with_verdict
from consilience.networks.choice.sites import Sites, weigh_sites
from consilience.networks.choice.workshop import Workshop
from consilience.networks.classes.union import unite_classes
from consilience.networks.descriptions.compare import given_scale_problems
from consilience.networks.descriptions.inputs import example_of, with_descriptions
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.fisher.inputs import gather_information
from consilience.networks.fuse_aligned import (
    NetworkArguments,
    fuse_aligned,
    network_provenance,
    split_arguments,
    target_units,
    with_left_out,
)
from consilience.networks.fuse_distilled import distillation_problems, fuse_distilled
from consilience.networks.fusion import NetworkFusion, NetworkInput
from consilience.networks.inputs import DescribedNetwork, describe_networks, split_companions
from consilience.networks.method import NetworkEnsemble, NetworkMethod, Road
from consilience.networks.methods import make_network_method
from consilience.networks.methods.auto import Auto
from consilience.networks.methods.baselines import NetworkEnsembleMethod
from consilience.networks.network import Network
from consilience.networks.parametrised_layers import Parametrised
from consilience.networks.repair_fusion import refit_fusion
from consilience.networks.shared_symmetry import (
    NetworksWithSymmetry,
    extra_state_notes,
    own_arrays,
    under_common_names,
    with_common_bookkeeping,
    with_symmetry,
    without_symmetry,
)
from consilience.networks.torch_modules import initialised, is_module, make_template, refuse_scripted_parts, unwrapped

if TYPE_CHECKING:
    from torch import nn

    from consilience.core.details import RobustDetails


def prepare_networks(request: Request) -> Prepared:
    """Describe and check networks; see ``Kind.prepare``.

    The networks are put in an order by their contents before they are matched, so that the order in which they arrive
    changes nothing.
    """
    arguments, options = split_arguments(request.options)
    networks, information_files, description_files = split_companions(request.inputs, FISHER, DESCRIPTION)
    method = make_network_method(request.method, options)
    try:
        return _prepare(request, arguments, method, networks, information_files, description_files)
    except (InputError, OptionError) as error:
        return Prepared.failed(error)


def _prepare(
    request: Request,
    arguments: NetworkArguments,
    method: NetworkMethod,
    networks: Sequence[NamedInput],
    information_files: Sequence[NamedInput],
    description_files: Sequence[NamedInput],
) -> Prepared:
    """Return described networks with what fuses them, or the reasons why the method refuses them."""
    if (information_files or description_files) and not networks:
        without = [
            *_without_network(information_files, "Fisher information"),
            *_without_network(description_files, "the description"),
        ]
        raise InputError(without)
    inputs = _describe(networks, arguments, method, description_files, only_check=request.only_check)
    arguments, information = inputs.arguments, None
    template = make_template(arguments.module)
    has_module = template is not None or any(network.module is not None for network in inputs.networks)
    describes_inputs = all(one.description is not None and one.description.input_shape for one in inputs.networks)
    method = method.resolved(can_compare=has_module and describes_inputs)
    is_given = bool(arguments.fishers is not None or information_files)
    if method.wants_information or (method.takes_information and is_given):
        information = gather_information(inputs.networks, arguments.fishers, information_files)
    if information is None and method.describes_information:
        information = described_information([network.description for network in inputs.networks])
    method = method.informed(information)
    sites = _sites_of(inputs, request, method, information)
    if method.keeps_models:
        return _prepare_ensemble(inputs, request, method, sites)
    proof_rng, fusion_rng, refit_rng, verdict_rng = request.rng.spawn(4)
    described, notes = with_common_bookkeeping(inputs.networks, inputs.own)
    models = _with_symmetry(described, information, method, arguments, inputs.example, proof_rng)
    case = _Case(method, models, sites, method.site_weights(sites), arguments, inputs.example, information,
                 fusion_rng, refit_rng, verdict_rng, request.progress)  # fmt: skip
    is_allowed = has_module or (isinstance(method, Auto) and method.allow_single)
    if method.road == "chosen" and not is_allowed and (arguments.inputs is not None or sites.describe_inputs):
        raise module_needed()
    if request.only_check:
        return Prepared.checked(_refusals(case), [*inputs.doubts, *_uncompared(case)])
    notes = [*inputs.notes, *notes, *extra_state_notes(described, has_module)]
    return Prepared((), partial(_fuse, case, notes, inputs.parametrised, request.seed), doubts=inputs.doubts)


def _fuse(case: _Case, notes: Sequence[str], parametrised: Parametrised | None, seed: int | None) -> NetworkFusion:
    """Return the fusion of networks, with what was left out of them and how it was made."""
    if case.method.compares_networks and case.models.template is not None:
        named = "example" if case.arguments.example is not None else "descriptions"
        _refuse_unfit_example(case.models.template, case.example, named)
    fusion = replace(_ROADS[case.method.road](case), parametrised=parametrised)
    if notes:
        fusion = replace(fusion, details={**fusion.details, "notes": [*fusion.details.get("notes", ()), *notes]})
    return replace(fusion, provenance=network_provenance(fusion, case.method, seed))


@dataclass(frozen=True, eq=False)
class _Case:
    """Networks that were described and checked, with all that fusing them takes.

    The example are inputs that the networks take: those given, or such as sites describe. The weights are those of the
    sites in the average.
    """

    method: NetworkMethod
    models: NetworksWithSymmetry
    sites: Sites
    weights: Array
    arguments: NetworkArguments
    example: Any
    information: tuple[FisherInformation, ...] | None
    fusion_rng: np.random.Generator
    refit_rng: np.random.Generator
    verdict_rng: np.random.Generator
    progress: Progress

    @property
    def stated(self) -> NetworkArguments:
        """The arguments, with such an example."""
        return replace(self.arguments, example=self.example)

    def workshop(self, rng: np.random.Generator) -> Workshop:
        """Return what candidates are made of, matched and drawn from a generator."""
        return Workshop(self.models, self.sites, self.stated, self.information, self.method, rng, self.progress)

    def of_sites(self, kept: Sequence[int]) -> _Case:
        """Return the case of some of the networks, by number, without information."""
        models = replace(
            self.models,
            inputs=tuple(self.models.inputs[number] for number in kept),
            networks=tuple(self.models.networks[number] for number in kept),
        )
        sites, reference = self.sites.take(kept), self.arguments.reference_number
        sites = replace(sites, weights=sites.weights / sites.weights.sum())
        return replace(
            self,
            models=models,
            sites=sites,
            weights=sites.weights,
            arguments=replace(self.arguments, reference=kept.index(reference) if reference in kept else None),
            information=None,
        )


def _fuse_matched(case: _Case) -> NetworkFusion:
    """Return the networks matched, averaged and refitted by one method, with a verdict."""
    fusion, order = fuse_aligned(
        case.models, case.method, case.weights, case.arguments, case.fusion_rng, case.progress, case.information
    )
    if case.method.refits and case.models.template is not None:
        fusion = refit_fusion(fusion, order, case.example, case.arguments.inputs, case.refit_rng)
    return with_verdict(fusion, case.workshop(case.verdict_rng))


def _uncompared(case: _Case) -> Iterator[Doubt]:
    """Yield why the default will not be able to compare networks by what they return, before that takes its time."""
    says_inputs = case.arguments.inputs is not None or case.sites.described is not None
    if case.method.road != "chosen" or case.models.template is None or case.example is None or not says_inputs:
        return
    from consilience.networks.example import as_example
    from consilience.networks.output_layout import layout_of

    try:
        layout_of(case.models.template, as_example(case.example))
    except UnsupportedError as error:
        remedy = "name the output that is meant with `output=`, or a method"
        yield Doubt(Problem("networks", f"cannot be compared: {reason_of(error)}", remedy), UncomparedWarning)


def _fuse_chosen(case: _Case) -> NetworkFusion:
    """Return the network chosen among candidates, which are made of the sites that robust fusion keeps."""
    method = case.method
    if not (isinstance(method, Auto) and method.is_robust):
        return fuse_by_default(case.workshop(case.fusion_rng))
    matched, _ = fuse_aligned(case.models, method.matching, case.weights, case.stated, case.verdict_rng, case.progress)
    kept = [number for number, name in enumerate(case.sites.names) if name not in matched.left_out]
    of_kept = replace(case.of_sites(kept), method=replace(method, robust=None))
    fusion = fuse_by_default(of_kept.workshop(case.fusion_rng))
    # What is weak of an average is not of a choice among the sites' own networks and what was distilled from all.
    robust = {key: value for key, value in matched.details["robust"].items() if key != "weak"}
    fusion = replace(fusion, details={**fusion.details, "robust": cast("RobustDetails", robust)})
    return with_left_out(fusion, matched.inputs)


def _refusals(case: _Case) -> list[Problem]:
    """Return why the method refuses these networks, a line each."""
    if case.method.road == "distilled":  # whose target may be any network
        networks = case.models.networks
        robust = case.method.reasons(NetworkEnsemble(networks, case.weights, dict(networks[0].units)))
        return [*robust, *distillation_problems(case.models, case.sites, case.stated)]
    units = target_units(case.models, case.method, case.arguments)
    activations = () if case.arguments.inputs is not None else None  # whether there are any is all that a check asks
    ensemble = NetworkEnsemble(
        case.models.networks, case.weights, units, case.arguments.reference_number or 0, activations
    )
    return case.method.reasons(replace(ensemble, information=case.information))


_ROADS: Mapping[Road, Callable[[_Case], NetworkFusion]] = {
    "matched": _fuse_matched,
    "chosen": _fuse_chosen,
    "damped": lambda case: fuse_with_chosen_damping(case.workshop(case.fusion_rng)),
    "distilled": lambda case: fuse_distilled(case.workshop(case.fusion_rng)),
}
"""How networks are fused once they are described."""


@dataclass(frozen=True)
class _Inputs:
    """Networks under names in common, with what their sites describe.

    The arguments have plain modules, `parametrised` the parametrised layers that the fused network has; `own` is what
    `own_arrays` returned, `notes` say what was left out of names, and `doubts` why they may not mean the same.
    """

    networks: list[DescribedNetwork]
    arguments: NetworkArguments
    example: Any
    parametrised: Parametrised | None
    own: Mapping[str, AnyArray | None] | None
    notes: tuple[str, ...]
    doubts: Sequence[Doubt]


def _describe(
    networks: Sequence[NamedInput],
    arguments: NetworkArguments,
    method: NetworkMethod,
    description_files: Sequence[NamedInput],
    *,
    only_check: bool,
) -> _Inputs:
    """Return the networks with their descriptions, under names in common."""
    inputs = _gather(networks, arguments, method, only_check=only_check)
    described, arguments = inputs.networks, inputs.arguments
    if arguments.classes not in (None, "union"):
        raise OptionError("classes", f"expected 'union', found {arguments.classes!r}")
    unites = arguments.classes == "union"
    described = with_descriptions(described, networks, arguments.descriptions, description_files, unites_classes=unites)
    _refuse_other_scale(arguments.inputs, described)
    example = arguments.example
    if example is None:
        example = _described_example(described, make_template(arguments.module))
    if example is None:
        template = make_template(arguments.module)
        asked = template or next((network.module for network in described if network.module is not None), None)
        example = _first_input(arguments.inputs, asked)
        if asked is not None and example is not None:
            _refuse_unfit_example(initialised(asked, example), example, "inputs")
    if unites:
        described = unite_classes([_as_module(network, arguments.module) for network in described], example)
        arguments = replace(arguments, module=None)  # which has not the head of all classes
    arguments = arguments.with_reference_number([named.name for named in networks])
    described, arguments = _with_output(described, arguments)
    return replace(inputs, networks=described, arguments=arguments, example=example)


def _with_output(
    described: Sequence[DescribedNetwork], arguments: NetworkArguments
) -> tuple[list[DescribedNetwork], NetworkArguments]:
    """Return networks and arguments whose modules answer the output that the caller, or else the sites, mean."""
    stated = [network.description.output for network in described if network.description is not None]
    output = (
        arguments.output if arguments.output is not None else next((one for one in stated if one is not None), None)
    )
    if output is None:
        return list(described), arguments
    from consilience.networks.module_outputs import with_output  # here, since it needs torch

    networks = [replace(network, module=with_output(network.module, output)) for network in described]
    module = arguments.module if arguments.module is None else with_output(make_template(arguments.module), output)
    return networks, replace(arguments, module=module)


def _sites_of(
    inputs: _Inputs, request: Request, method: NetworkMethod, information: Sequence[FisherInformation] | None
) -> Sites:
    """Return what the sites say, and how much each counts."""
    names = tuple(network.name for network in inputs.networks)
    descriptions = tuple(network.description for network in inputs.networks)
    trusted = descriptions if not method.is_robust or method.road == "chosen" else (None,) * len(descriptions)
    said = [None if description is None else description.n_observations for description in trusted]
    weights, are_stated, observations = weigh_sites(names, request.weights, request.n_observations, said)
    if method.is_robust and observations is not None:  # nobody's claim counts for more than the usual one
        observations = observations * cap_factors(observations, float(np.median(observations[observations > 0])))
        weights = observations / observations.sum()
    if not are_stated:
        weights = method.observed_shares(information, weights)
    return Sites(names, weights, descriptions, are_stated, observations)


def _prepare_ensemble(inputs: _Inputs, request: Request, method: NetworkMethod, sites: Sites) -> Prepared:
    """Return networks that stay side by side, weighed by class where all sites say their counts."""
    ensemble = as_ensemble_method(method).with_described_counts(sites.descriptions)
    by_output = sites.by_output if ensemble.mean is None else []
    if sites.is_regression and ensemble.mean is None:
        ensemble = replace(ensemble, mean="logits")  # of numbers that are no classes, the mean of these
    asked = request.weights is not None or request.n_observations is not None
    counts = ensemble.site_class_counts(len(inputs.networks), sites.weights if asked else None)
    fuse = partial(_keep_all, inputs.networks, ensemble, sites.weights, counts, by_output, request.seed)
    return Prepared((), fuse, doubts=inputs.doubts)


def _gather(
    networks: Sequence[NamedInput], arguments: NetworkArguments, method: NetworkMethod, *, only_check: bool
) -> _Inputs:
    """Return the networks under names in common, and the arguments with plain modules."""
    template = make_template(arguments.module)
    asked = template or next((unwrapped(named.model) for named in networks if is_module(named.model)), None)
    first_input = _first_input(arguments.inputs, asked) if arguments.example is None else arguments.example
    if template is not None:
        template = initialised(template, first_input)
        refuse_scripted_parts(template, "module")
    explaining = template
    if template is None and asked is not None and not method.keeps_models:  # which may be of several architectures
        explaining = initialised(asked, first_input)
    described, doubts = describe_networks(networks, mapped=only_check, template=explaining, example=first_input)
    for network in described if not method.keeps_models else ():  # an ensemble computes no weights
        refuse_scripted_parts(network.module, network.label)
    plain = arguments.without_parametrised_layers(template)
    own, notes = None, list[str]()
    # Of an ensemble each may be of an architecture of its own; the union of classes reads every module by itself.
    if not method.keeps_models and arguments.classes != "union":
        own = own_arrays(described, make_template(plain.module), plain.symmetry)
        described, notes = under_common_names(described, own)
    parametrised = _parametrised_result(described, arguments.target, template)
    return _Inputs(list(described), plain, plain.example, parametrised, own, tuple(notes), doubts)


def _parametrised_result(
    described: Sequence[DescribedNetwork], target: Any, template: nn.Module | None
) -> Parametrised | None:
    """Return the parametrised layers that the fused network has: those of the target, or of the models' architecture.

    The architecture is that of the first module among the inputs, else that of `module`, else the first state dict.
    """
    first = next((network for network in described if network.module is not None), described[0])
    given = target if is_module(target) else template if first.module is None else None
    result = first.parametrised if given is None else Parametrised.of_module(given)
    return None if result is None else result.beside([network.parametrised for network in described])


def _without_network(files: Sequence[NamedInput], called: str) -> list[Problem]:
    """Return a problem for each companion file of a network that is not given."""
    return [Problem(file.label, f"is {called} of a network", "give the networks too", "E-NEEDED") for file in files]


def _described_example(described: Sequence[DescribedNetwork], module: nn.Module | None) -> Any:
    """Return an example of the inputs that sites describe; None without a module that could take it."""
    template = next((network.module for network in described if network.module is not None), module)
    return None if template is None else example_of([network.description for network in described], template)


def _as_module(network: DescribedNetwork, template: nn.Module | Callable[[], nn.Module] | None) -> DescribedNetwork:
    """Return a network in a module of its own, where it came without one and an architecture is given."""
    architecture = make_template(template)
    if network.module is not None or architecture is None:
        return network
    from consilience.networks.evaluate import module_of  # here, since it needs torch

    aliases = {} if network.symmetry is None else network.symmetry.aliases
    return replace(network, module=module_of(network.arrays, architecture, network.label, aliases))


def _first_input(inputs: Any, module: nn.Module | None) -> Any:
    """Return two unlabelled inputs, since some layers refuse one; None where there are none or they are read once.

    Raises InputError for inputs without any.
    """
    if inputs is None or hasattr(inputs, "__next__"):
        return None
    if isinstance(inputs, str | Path) or (hasattr(inputs, "__len__") and not len(inputs)):
        found = "none" if not isinstance(inputs, str | Path) else f"the text {str(inputs)!r:.60}"
        text = f"expected a tensor, a mapping or tuple of tensors, or batches of these, found {found}"
        raise InputError("inputs", text, code="E-NEEDED")
    if isinstance(inputs, np.ndarray):
        return None
    first = _first_batch(inputs, module)
    is_some = hasattr(first, "changed") or (hasattr(first, "shape") and hasattr(first, "detach"))
    return first[:2] if is_some and len(first) else None


def _first_batch(inputs: Any, module: nn.Module | None = None) -> Any:
    """Return inputs themselves, or of batches the first, without labels."""
    from consilience.networks.example import is_one_batch, unlabelled  # here, since it needs torch

    return unlabelled(inputs if is_one_batch(inputs) else next(iter(inputs), None), module)


def _refuse_other_scale(given: Any, networks: Sequence[DescribedNetwork]) -> None:
    """Raise for unlabelled inputs of another scale than the sites describe; of batches the first counts."""
    descriptions = [network.description for network in networks if network.description is not None]
    if given is None or not descriptions or hasattr(given, "__next__"):  # what is read once is read later
        return
    from torch import Tensor  # here, since no network needs torch without inputs

    first = _first_batch(given)
    if isinstance(first, Tensor) and first.numel() and (problems := given_scale_problems(descriptions, first)):
        raise InputError(problems)


def _refuse_unfit_example(template: nn.Module, example: Any, name: str) -> None:
    """Raise for an example that the networks do not take, or descriptions of inputs of another shape."""
    from consilience.networks.module_inputs import refuse_unfit

    arguments = example if isinstance(example, tuple) else (example,)
    if hasattr(example, "changed") or isinstance(example, Mapping):
        refuse_unfit(template, example, name)
    elif all(hasattr(argument, "detach") for argument in arguments):
        refuse_unfit(template, arguments, name)


def _with_symmetry(
    described: Sequence[DescribedNetwork],
    information: Sequence[FisherInformation] | None,
    method: NetworkMethod,
    arguments: NetworkArguments,
    example: Any,
    rng: np.random.Generator,
) -> NetworksWithSymmetry:
    """Return the networks with their symmetry; the trivial one where the method needs none and nobody states one."""
    is_unknown = arguments.symmetry is None and arguments.example is None
    is_unknown = is_unknown and all(network.symmetry is None for network in described)
    # Information comes with networks of one start, as a rule, whose units need no matching.
    if is_unknown and (method.optional_symmetry or information is not None):
        return without_symmetry(described, arguments.module, [of_network.aliases for of_network in information or ()])
    try:
        return with_symmetry(described, arguments.symmetry, example, arguments.module, rng)
    except UnsupportedError:
        if not method.compares_networks or not all(network.description for network in described):
            raise
        return without_symmetry(described, arguments.module)  # what cannot be traced can still be chosen among


def as_ensemble_method(method: NetworkMethod) -> NetworkEnsembleMethod:
    """Return a method that keeps all networks, which ensembles alone can; raise InputError for another one."""
    if not isinstance(method, NetworkEnsembleMethod):
        raise InputError(f"method {method.name!r} keeps all models, but is no ensemble")
    return method


def _keep_all(
    described: Sequence[DescribedNetwork],
    method: NetworkEnsembleMethod,
    weights: Array,
    class_counts: Array | None,
    by_output: Sequence[Sites],
    seed: int | None,
) -> NetworkFusion:
    """Return the ensemble of all modules, which need not be of one architecture, as a fusion."""
    if without_module := [network.label for network in described if network.module is None]:
        text = "an ensemble asks modules, and these are none"
        raise InputError(", ".join(without_module), text, "load them into modules", "E-NEEDED")
    members = [network.network() for network in described]
    fusion = NetworkFusion(
        network=members[0],
        matching={},
        transports=tuple({} for _ in described),
        details={} if method.mean is not None or class_counts is not None else {"notes": [_TAKEN_FOR_CLASSES]},
        provenance={},
        inputs=tuple(
            NetworkInput(network.name, member, float(weight), network.digest, rests_on=network.rests_on)
            for network, member, weight in zip(described, members, weights, strict=True)
        ),
        _rebuild=partial(_ensemble, described, weights, method.resolved_mean, class_counts, by_output),
        keeps_models=True,
    )
    return replace(fusion, provenance=network_provenance(fusion, method, seed))


_TAKEN_FOR_CLASSES = (
    "several outputs of networks that nobody described are taken for classes, whose probabilities are averaged; of"
    " networks that predict numbers give `mean='logits'`, the mean of the outputs"
)


def _ensemble(
    described: Sequence[DescribedNetwork],
    weights: Array,
    mean: Any,
    class_counts: Array | None,
    by_output: Sequence[Sites],
    _fused: Network,
) -> Any:
    """Return all modules side by side; no lambda, so that a fusion can be pickled."""
    from consilience.networks.ensemble import AnswerMean, ModuleEnsemble  # here, since it needs torch

    modules: list[Any] = copy.deepcopy([network.module for network in described])
    names = [network.name for network in described]
    outputs = [AnswerMean(weights, **of_output.answer_mean) for of_output in by_output]
    return ModuleEnsemble(modules, weights, mean, class_counts=class_counts, names=names, outputs=outputs).eval()
