"""Bayesian networks that can be fused: all of one symmetry, each with a Gaussian for every weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.bayesian.files import read_bayesian_network, symmetry_of_parameters
from consilience.bayesian.gaussian_arrays import (
    DEVIATION,
    gaussian_arrays,
    gaussian_symmetry,
    is_deviation,
    means_of,
    variances_of,
    without_deviations,
)
from consilience.bayesian.network import BayesianNetwork
from consilience.bayesian.readers.table import as_bayesian_network, is_bayesian
from consilience.core.inputs import NamedInput, files_given_twice
from consilience.errors import InputError, OptionError
from consilience.networks.files import read_symmetry
from consilience.networks.fisher.information import parameter_digest
from consilience.networks.inputs import DescribedNetwork
from consilience.networks.network import Network, same_values, total_size
from consilience.networks.shared_symmetry import Gathered, made_template, with_symmetry
from consilience.networks.symmetry.axes import Layout, Proof, fixed_axes
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.torch_modules import module_with

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, eq=False)
class GatheredBayesian(Gathered):
    """Bayesian networks of one symmetry, as Gaussian networks.

    Parameters
    ----------
    bayesian
        The networks as they were handed in.
    """

    bayesian: tuple[BayesianNetwork, ...] = ()

    def module(self, network: Network) -> Any:
        """Return the Bayesian network that a Gaussian network is, with a module of its widths where there is one."""
        means, variances = means_of(network.arrays), variances_of(network.arrays)
        plain = without_deviations(network.symmetry)
        module = None
        if self.template is not None:
            arrays = {**_buffers(self.template, means), **means}
            module = module_with(self.template, arrays, plain).eval()
        first = self.bayesian[0]
        classes = next((one.classes for one in self.bayesian if one.classes is not None), None)
        same = all(one.prior == first.prior for one in self.bayesian)
        prior = first.prior_variances if same else None
        return BayesianNetwork(module, means, variances, prior, classes, plain, network.name)

    def shapes(self, module: nn.Module) -> dict[str, tuple[int, ...]]:
        """Return the shapes by array, of means and of deviations, for the widths of `module`."""
        plain = super().shapes(module)
        names = {key: key.removesuffix(DEVIATION) for key in self.symmetry.layouts}
        return {key: plain[name] for key, name in names.items() if name in plain}


def _buffers(module: nn.Module, means: Mapping[str, Any]) -> dict[str, Any]:
    return {key: values for key, values in module.state_dict().items() if key not in means}


def gather_bayesian(
    inputs: Sequence[NamedInput],
    symmetry: Symmetry | str | Path | None,
    example: Any,
    module: nn.Module | Callable[[], nn.Module] | None,
    rng: np.random.Generator,
    *,
    without: bool = False,
) -> GatheredBayesian:
    """Return the networks with the symmetry that they share.

    Parameters
    ----------
    inputs
        Bayesian networks of any kind that has an adapter, and their files.
    symmetry
        A symmetry or its file; None takes the files' own, or traces the first module.
    example
        What the modules are called with; needed to trace.
    module
        A module of the architecture, or a function that makes one, for models that have none.
    rng
        Draws the changes of the proof.
    without
        Whether to go without a symmetry where there is none: nothing moves.

    Raises
    ------
    InputError
        Naming everything that is wrong with the models.
    OptionError
        If there is no symmetry, nor what it takes to trace one.
    """
    told = made_template(module)
    given = _read(inputs, told)
    widest = max((one for one in given if one.module is not None), key=_rank, default=None)
    template = told if widest is None else widest.module
    found = _symmetry(given, symmetry, example, template, rng, without=without)
    names = list(given[0].means)
    _refuse_buffers(given, found, names)
    plain = symmetry_of_parameters(found, names)
    problems: list[str] = []
    for one in given:
        try:
            plain.units({key: tuple(values.shape) for key, values in one.means.items()}, one.name)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    networks = [
        DescribedNetwork(
            named.name, named.label, gaussian_arrays(one.means, one.variances), None, one.module, one.sha256
        )
        for named, one in zip(inputs, given, strict=True)
    ]
    gathered = with_symmetry(networks, gaussian_symmetry(plain, names), None, template, rng)
    return GatheredBayesian(gathered.given, gathered.networks, gathered.symmetry, template, tuple(given))


def _read(inputs: Sequence[NamedInput], module: nn.Module | None) -> list[BayesianNetwork]:
    """Return the inputs as Bayesian networks, or raise with everything that is wrong."""
    networks: list[BayesianNetwork] = []
    problems: list[str] = []
    for one in inputs:
        try:
            if one.file is not None:
                networks.append(_beside(read_bayesian_network(one.file), module))
            elif is_bayesian(one.model):
                networks.append(as_bayesian_network(one.model, module, one.label))
            else:
                problems.append(
                    f"{one.label}: a {type(one.model).__name__} has no variances, so it is no Bayesian network; fuse "
                    "it with networks, or give consilience.BayesianNetwork(module, means, variances)"
                )
        except InputError as error:
            problems += error.problems
    problems += files_given_twice(inputs)
    if len(inputs) < 2:
        problems.append(f"fusing takes at least two models, found {len(inputs)}")
    problems += _other_classes(networks)
    if problems:
        raise InputError(problems)
    return networks


def _beside(bnn: BayesianNetwork, module: nn.Module | None) -> BayesianNetwork:
    """Return a network with a module, where that has its widths."""
    if module is None:
        return bnn
    own = {key: tuple(values.shape) for key, values in module.named_parameters()}
    fits = own == {key: tuple(values.shape) for key, values in bnn.means.items()}
    return bnn.with_module(module) if fits else bnn


def _rank(bnn: BayesianNetwork) -> tuple[int, str]:
    """Return what picks the network that is traced, whatever the order of the models: the widest, then by content."""
    return total_size(bnn.means), parameter_digest(bnn.means, list(bnn.means))


def _refuse_buffers(given: Sequence[BayesianNetwork], symmetry: Symmetry, names: Sequence[str]) -> None:
    """Raise for buffers that move with units, and for those in which modules differ: there is no posterior of them.

    Raises
    ------
    InputError
        Naming the buffers.
    """
    moving = [
        key
        for key, layout in symmetry.layouts.items()
        if key not in names and not is_deviation(key) and any(axis.moves for axis in layout.axes)
    ]
    if moving:
        raise InputError(
            f"{', '.join(moving[:3])}: moves with units, but is no parameter, so there is no posterior of it; use "
            "layer or instance normalisation instead of batch normalisation"
        )
    held = [one for one in given if one.module is not None]
    problems = []
    for one in held[1:]:
        own, first = ({k: v for k, v in bnn.arrays.items() if k not in bnn.means} for bnn in (one, held[0]))
        problems += [
            f"{one.name}: buffer {key} differs from that of {held[0].name}; give all networks the same"
            for key in sorted(own.keys() | first.keys())
            if key not in own or key not in first or not same_values(own[key], first[key])
        ]
    if problems:
        raise InputError(problems)


def _other_classes(given: Sequence[BayesianNetwork]) -> list[str]:
    """Return which networks have other classes than the first that states any, or another order of them."""
    stated = [one for one in given if one.classes is not None]
    found = []
    for one in stated[1:]:
        mine, theirs = stated[0].classes or (), one.classes or ()
        if mine == theirs:
            continue
        what = "the same classes in another order" if sorted(mine) == sorted(theirs) else "other classes"
        found.append(
            f"{one.name}: has {what}, {', '.join(theirs)}, where {stated[0].name} has {', '.join(mine)}; train with "
            "one order of classes"
        )
    return found


def _symmetry(
    given: Sequence[BayesianNetwork],
    symmetry: Symmetry | str | Path | None,
    example: Any,
    template: nn.Module | None,
    rng: np.random.Generator,
    *,
    without: bool,
) -> Symmetry:
    if isinstance(symmetry, (str, Path)):
        symmetry = read_symmetry(Path(symmetry))
    if symmetry is not None:
        return symmetry
    own = [one.symmetry for one in given if one.symmetry is not None]
    if len({one.digest for one in own}) > 1:
        names = ", ".join(one.name for one in given if one.symmetry is not None)
        raise InputError(f"{names}: come with different symmetries, so they are of different architectures")
    if own:
        return min(own, key=lambda one: (one.proof is None, 0.0 if one.proof is None else one.proof.deviation))
    if without and example is None:
        still = Symmetry({key: Layout(fixed_axes(tuple(v.shape))) for key, v in given[0].means.items()}, ())
        return replace(still, proof=Proof(still.digest, 0.0, 1))  # nothing moves, so there is nothing to prove
    if template is None:
        raise OptionError(
            f"{given[0].name}: says nothing of which axes move together; give symmetry= (what consilience.symmetry "
            "found, or its file), or module= and example="
        )
    if example is None:
        raise OptionError("example: needed to find which axes move together; give an input that the networks take")
    from consilience.networks.tracing.proof import symmetry as traced_and_proved

    return traced_and_proved(template, example, rng)
