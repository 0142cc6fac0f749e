"""Bayesian networks of one symmetry: inputs read, checked and written as Gaussian networks.

The symmetry is that of the module's parameters. It is doubled to means and deviations (`gaussian_arrays`), and the
doubled networks go through the same pipeline as plain ones. Buffers have no posterior, so they must not move with units
and must agree between the networks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from consilience.core.agreement import Doubt
from consilience.core.gather import Reading, gather
from consilience.core.inputs import NamedInput, too_few_models
from consilience.errors import InputError, Problem
from consilience.files.document import BAYESIAN
from consilience.files.format import Record
from consilience.files.safetensors_file import SafetensorsFile
from consilience.networks.descriptions.inputs import example_of, with_descriptions
from consilience.networks.files import read_symmetry
from consilience.networks.fisher.information import parameter_digest
from consilience.networks.fusion import NetworkFusion
from consilience.networks.gaussian.file_format import BAYESIAN_FILES
from consilience.networks.gaussian.files import symmetry_of_parameters
from consilience.networks.gaussian.fusion import BayesianFusion
from consilience.networks.gaussian.gaussian_arrays import (
    DEVIATION,
    gaussian_arrays,
    gaussian_symmetry,
    is_deviation,
    means_of,
    variances_of,
    without_deviations,
)
from consilience.networks.gaussian.network import BayesianNetwork, differing_buffers
from consilience.networks.gaussian.readers.table import as_bayesian_network, is_bayesian
from consilience.networks.inputs import DescribedNetwork, content_digest
from consilience.networks.network import Network, total_size
from consilience.networks.shared_symmetry import NO_SYMMETRY, NetworksWithSymmetry, with_symmetry
from consilience.networks.symmetry.axes import Layout, Proof, fixed_axes
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.torch_modules import make_template, module_with

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, eq=False)
class BayesianNetworksWithSymmetry(NetworksWithSymmetry):
    """Bayesian networks of one symmetry, as Gaussian networks."""

    bnns: tuple[BayesianNetwork, ...] = ()  # the J Bayesian networks as they were handed in
    doubts: Sequence[Doubt] = ()  # why they may not mean the same

    fusion_type: ClassVar[type[NetworkFusion]] = BayesianFusion

    @property
    def priors(self) -> tuple[Mapping[str, float] | None, ...]:
        """Prior variances by parameter of every network."""
        return tuple(bnn.prior for bnn in self.bnns)

    @property
    def rebuild(self) -> Callable[[Network], Any]:
        """What makes a Bayesian network of a fused one, also where nobody gave a module."""
        return self.module

    def module(self, network: Network) -> Any:
        """Return a Gaussian network as a Bayesian network, with a module of its widths where there is a template.

        One that was handed in keeps its own numbers: the square of a root is not the variance, to the last bit.
        """
        own = next((bnn for one, bnn in zip(self.networks, self.bnns, strict=True) if one is network), None)
        means, variances = means_of(network.arrays), variances_of(network.arrays)
        plain = without_deviations(network.symmetry)
        module = None
        if self.template is not None:
            module = module_with(self.template, {**self.template.state_dict(), **means}, plain).eval()
        if own is not None:
            return replace(own, module=own.module if module is None else module, symmetry=plain, description=None)
        first = self.bnns[0]
        classes = next((bnn.classes for bnn in self.bnns if bnn.classes is not None), None)
        prior = first.prior_variances if all(bnn.prior == first.prior for bnn in self.bnns) else None
        sizes = [bnn.n_observations for bnn in self.bnns]
        n_observations = None if None in sizes else sum(size for size in sizes if size is not None)
        return BayesianNetwork(
            module, means, variances, prior, classes, plain, network.name, n_observations=n_observations
        )

    def shapes(self, module: nn.Module) -> dict[str, tuple[int, ...]]:
        """Return the shapes by array, of means and of deviations, for the widths of `module`."""
        plain = super().shapes(module)
        names = {key: key.removesuffix(DEVIATION) for key in self.symmetry.layouts}
        return {key: plain[name] for key, name in names.items() if name in plain}


def _unfit_shapes(bnns: Sequence[BayesianNetwork], symmetry: Symmetry) -> Iterator[Problem]:
    """Yield what does not fit a symmetry in the shapes of networks' means."""
    for bnn in bnns:
        try:
            symmetry.units({key: tuple(values.shape) for key, values in bnn.means.items()}, bnn.name)
        except InputError as error:
            yield from error.problems


def describe_bayesian_networks(
    inputs: Sequence[NamedInput],
    symmetry: Symmetry | str | Path | None,
    example: Any,
    module: nn.Module | Callable[[], nn.Module] | None,
    rng: np.random.Generator,
    *,
    is_optional: bool = False,
    descriptions: Any = None,
    description_files: Sequence[NamedInput] = (),
) -> BayesianNetworksWithSymmetry:
    """Return the networks with their descriptions and the symmetry that they share.

    `symmetry` is one or its file; default: the one that inputs came with, or else that of the widest module, traced
    with `example`. `module` is of the architecture, for models that have none; `rng` draws the random group elements of
    the proof. `is_optional` takes the trivial symmetry, under which nothing moves, where none is stated and there is no
    example. Descriptions are as ``with_descriptions`` takes them. Raises InputError, naming everything that is wrong
    with the models. Raises OptionError if there is no symmetry, nor what it takes to trace one.
    """
    handed_in = make_template(module)
    gathered = gather(inputs, BayesianReading(handed_in))
    bnns = [one.value for one in gathered.described]
    if problems := [*gathered.problems, *too_few_models(len(inputs)), *_class_problems(bnns)]:
        raise InputError(problems)
    bnns = with_site_descriptions(bnns, inputs, descriptions, description_files)
    # Of the largest by size, the largest by content, so that the order of models is no matter.
    widest = max(
        (bnn for bnn in bnns if bnn.module is not None),
        key=lambda bnn: (total_size(bnn.means), parameter_digest(bnn.means, list(bnn.means))),
        default=None,
    )
    template = handed_in if widest is None else widest.module
    made_up = next((bnn.example for bnn in bnns if bnn.example is not None), None)
    if made_up is None and template is not None:
        made_up = example_of([bnn.description for bnn in bnns], template)
    of_module = _symmetry(bnns, symmetry, example, made_up, template, rng, is_optional=is_optional)
    names = list(bnns[0].means)
    _refuse_buffers(bnns, of_module, names)
    plain = symmetry_of_parameters(of_module, names)
    if problems := list(_unfit_shapes(bnns, plain)):
        raise InputError(problems)
    described = [
        DescribedNetwork(
            named.name,
            named.label,
            gaussian_arrays(bnn.means, bnn.variances),
            None,
            bnn.module,
            bnn.sha256,
            bnn.description,
            rests_on=one.rests_on,
        )
        for named, one, bnn in zip(inputs, gathered.described, bnns, strict=True)
    ]
    # Without an example: the module has its proof already, and doubled arrays cannot be loaded into a module.
    networks = with_symmetry(described, gaussian_symmetry(plain, names), None, template, rng)
    return BayesianNetworksWithSymmetry(
        networks.inputs, networks.networks, networks.symmetry, template, tuple(bnns), gathered.doubts
    )


class BayesianReading(Reading[BayesianNetwork]):
    """How Bayesian networks are read, with a module of their architecture where there is one."""

    called = "a Bayesian network"
    names_inputs = True

    def __init__(self, module: nn.Module | None) -> None:
        self.module = module

    def takes(self, file: NamedInput) -> bool:
        """Return whether a file is of a Bayesian network."""
        return file.format == BAYESIAN

    def read(self, file: SafetensorsFile) -> tuple[BayesianNetwork, Record]:
        """Return the network in a file."""
        network, provenance = BAYESIAN_FILES.read(file)
        return _with_fitting_module(network, self.module), provenance

    def convert(self, one: NamedInput) -> tuple[BayesianNetwork, Record]:
        """Return a model of a library, or of ours, as a Bayesian network."""
        if is_bayesian(one.model):
            return as_bayesian_network(one.model, self.module, one.label), None
        raise InputError(
            one.label,
            f"a {type(one.model).__name__} has no variances, so it is no Bayesian network",
            "fuse it with networks, or give `consilience.BayesianNetwork(module, means, variances)`",
            "E-NEEDED",
        )

    def digest_of(self, value: BayesianNetwork) -> str:
        """Return the digest of the network's numbers, whatever the order of its units."""
        return content_digest(value.stored_arrays)


def with_site_descriptions(
    bnns: Sequence[BayesianNetwork], inputs: Sequence[NamedInput], descriptions: Any, files: Sequence[NamedInput]
) -> list[BayesianNetwork]:
    """Return networks with what their sites say of them: given, among the inputs, their own, or next to their files.

    The arguments are as for ``networks.descriptions.inputs.with_descriptions``. Raises InputError, naming descriptions
    of other networks, and what contradicts each other. Raises OptionError for `descriptions` that are not one for each
    network.
    """
    stored = [  # by the names of a file, whose digest binds a description
        DescribedNetwork(named.name, named.label, bnn.stored_arrays, None, bnn.module, bnn.sha256, bnn.description)
        for named, bnn in zip(inputs, bnns, strict=True)
    ]
    described = with_descriptions(stored, inputs, descriptions, files)
    if problems := [
        Problem(
            one.label,
            f"describes classes {', '.join(said.classes)}, and has {', '.join(bnn.classes)}",
            code="E-MISMATCH",
        )
        for bnn, one in zip(bnns, described, strict=True)
        if (said := one.description) is not None
        and said.classes is not None
        and bnn.classes is not None
        and said.classes != bnn.classes
    ]:
        raise InputError(problems)
    return [replace(bnn, description=one.description) for bnn, one in zip(bnns, described, strict=True)]


def _with_fitting_module(bnn: BayesianNetwork, module: nn.Module | None) -> BayesianNetwork:
    """Return a network with a module, where that has its widths; the network as it is otherwise."""
    if module is None:
        return bnn
    shapes = {key: tuple(values.shape) for key, values in module.named_parameters()}
    fits = shapes == {key: tuple(values.shape) for key, values in bnn.means.items()}
    return bnn.with_module(module) if fits else bnn


def _refuse_buffers(bnns: Sequence[BayesianNetwork], symmetry: Symmetry, names: Sequence[str]) -> None:
    """Raise for buffers that move with units, and for those in which modules differ: there is no posterior of them.

    Raises InputError, naming the buffers.
    """
    moving = [
        key
        for key, layout in symmetry.layouts.items()
        if key not in names and not is_deviation(key) and any(axis.moves for axis in layout.axes)
    ]
    if moving:
        text = "moves with units, but is no parameter, so there is no posterior of it"
        remedy = "use layer or instance normalisation instead of batch normalisation"
        raise InputError(", ".join(moving[:3]), text, remedy)
    with_modules = [bnn for bnn in bnns if bnn.module is not None]
    problems = [
        Problem(
            bnn.name,
            f"buffer {key} differs from that of {with_modules[0].name}",
            "give all networks the same",
            "E-MISMATCH",
        )
        for bnn in with_modules[1:]
        for key in differing_buffers(with_modules[0], bnn)
    ]
    if problems:
        raise InputError(problems)


def _class_problems(bnns: Sequence[BayesianNetwork]) -> list[Problem]:
    """Return which networks have other classes than the first that states any, or another order of them."""
    with_classes = [bnn for bnn in bnns if bnn.classes is not None]
    problems = []
    for bnn in with_classes[1:]:
        expected, classes = with_classes[0].classes or (), bnn.classes or ()
        if expected == classes:
            continue
        what = "the same classes in another order" if sorted(expected) == sorted(classes) else "other classes"
        text = f"has {what}, {', '.join(classes)}, where {with_classes[0].name} has {', '.join(expected)}"
        problems.append(Problem(bnn.name, text, "train with one order of classes", "E-SHAPE"))
    return problems


def _symmetry(
    bnns: Sequence[BayesianNetwork],
    symmetry: Symmetry | str | Path | None,
    example: Any,
    made_up: Any,
    template: nn.Module | None,
    rng: np.random.Generator,
    *,
    is_optional: bool,
) -> Symmetry:
    """Return the symmetry of the module: as stated, as the networks came with it, or traced and proved.

    Where no example is given, it is traced by the synthetic inputs that a network of our learners has.
    """
    if isinstance(symmetry, (str, Path)):
        symmetry = read_symmetry(Path(symmetry))
    if symmetry is not None:
        return symmetry
    if (stated := _stated_symmetry(bnns)) is not None:
        return stated
    if is_optional and example is None:
        trivial = Symmetry({key: Layout(fixed_axes(tuple(v.shape))) for key, v in bnns[0].means.items()}, ())
        return replace(trivial, proof=Proof(trivial.digest, 0.0, 1))  # nothing moves, so there is nothing to prove
    if template is None:
        raise InputError(NO_SYMMETRY.about(bnn.name) for bnn in bnns)
    example = made_up if example is None else example
    if example is None:
        from consilience.networks.example import derived_example

        example = derived_example(template)
    from consilience.networks.tracing.proof import symmetry as trace_and_prove

    return trace_and_prove(template, example, rng)


def _stated_symmetry(bnns: Sequence[BayesianNetwork]) -> Symmetry | None:
    """Return the symmetry that networks came with, with the proof of the least deviation; None where none has one."""
    stated = [bnn.symmetry for bnn in bnns if bnn.symmetry is not None]
    if len({candidate.digest for candidate in stated}) > 1:
        names = ", ".join(bnn.name for bnn in bnns if bnn.symmetry is not None)
        text = "come with different symmetries, so they are of different architectures"
        raise InputError(names, text, code="E-MISMATCH")
    # Equal but for their proofs, so that the order of the networks does not count.
    proved = [(candidate.proof.deviation, candidate) for candidate in stated if candidate.proof is not None]
    return min(proved, key=itemgetter(0))[1] if proved else next(iter(stated), None)
