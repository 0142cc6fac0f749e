"""Networks that can be fused: all of one symmetry, which is traced and proved where it can be."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.checks import AnyArray
from consilience.errors import InputError, OptionError, UnsupportedError
from consilience.networks.files import read_symmetry
from consilience.networks.inputs import DescribedNetwork
from consilience.networks.network import Network, is_floating, non_finite_problems
from consilience.networks.symmetry.axes import Layout, Proof, fixed_axes
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.torch_modules import (
    aliases_of_module,
    arrays_of_module,
    is_module,
    layer_kinds,
    module_with,
    tensor_beside,
)

if TYPE_CHECKING:
    from torch import nn


class UnprovedSymmetryWarning(UserWarning):
    """A symmetry is used that nobody proved: if it is wrong, so is the fused network."""


@dataclass(frozen=True, eq=False)
class Gathered:
    """Networks that can be fused: all of one symmetry."""

    given: tuple[DescribedNetwork, ...]
    networks: tuple[Network, ...]
    symmetry: Symmetry
    template: nn.Module | None

    def module(self, network: Network) -> nn.Module:
        """Return a module in evaluation mode with the arrays of a network."""
        if self.template is None:
            raise UnsupportedError("these networks came without a module; give module=, a function that makes one")
        return module_with(self.template, network.arrays, self.symmetry).eval()

    def shapes(self, module: nn.Module) -> dict[str, tuple[int, ...]]:
        """Return the shapes by array that a fused network has whose widths are those of `module`."""
        return {key: tuple(values.shape) for key, values in arrays_of_module(module).items()}


def with_symmetry(
    given: Sequence[DescribedNetwork],
    symmetry: Symmetry | str | Path | None,
    example: Any,
    module: nn.Module | Callable[[], nn.Module] | None,
    rng: np.random.Generator,
) -> Gathered:
    """Return the networks with the symmetry that they share, proved where there are modules and an example.

    Parameters
    ----------
    given
        The networks.
    symmetry
        A symmetry or its file; None takes the files' own, or traces the first module.
    example
        What the modules are called with; needed to trace and to prove.
    module
        A module of the architecture, or a function that makes one, for files.
    rng
        Draws the changes of the proof.

    Raises
    ------
    InputError
        For networks that differ in more than widths, or a symmetry that is wrong.
    OptionError
        If there is no symmetry, nor what it takes to trace one.
    """
    template = _template(given, module)
    own = [one.symmetry for one in given if one.symmetry is not None]
    if isinstance(symmetry, str | Path):
        symmetry = read_symmetry(Path(symmetry))
    if symmetry is None and len({one.digest for one in own}) > 1:
        names = ", ".join(one.label for one in given if one.symmetry is not None)
        raise InputError(f"{names}: come with different symmetries, so they are of different architectures")
    found = symmetry if symmetry is not None else (own[0] if own else None)
    if found is None:
        found = _traced(given, template, example)
    _refuse_other_layers(given)
    found = _proved(found, given, template, example, rng)
    return Gathered(tuple(given), _networks(given, found), found, template)


def without_symmetry(
    given: Sequence[DescribedNetwork],
    module: nn.Module | Callable[[], nn.Module] | None,
    aliases: Sequence[Mapping[str, str]] = (),
) -> Gathered:
    """Return the networks as arrays of which nothing moves, for methods that take units as they are numbered.

    Parameters
    ----------
    given
        The networks.
    module
        As in `with_symmetry`.
    aliases
        Other names of tied arrays to their names, as somebody knows them for networks that are files.

    Raises
    ------
    InputError
        For networks that are not of one architecture.
    """
    template = _template(given, module)
    _refuse_other_layers(given)
    tied = {alias: name for known in aliases for alias, name in known.items()}
    if template is not None:
        tied |= aliases_of_module(template)
    arrays = given[0].arrays
    tied = {alias: name for alias, name in tied.items() if alias in arrays and name in arrays}
    layouts = {key: Layout(fixed_axes(tuple(v.shape))) for key, v in arrays.items() if key not in tied}
    found = Symmetry(layouts, (), tied)
    return Gathered(tuple(given), _networks(given, found), found, template)


def _refuse_other_layers(given: Sequence[DescribedNetwork]) -> None:
    problems = _other_layers(given)
    problems += [
        problem for one in given if one.module is not None for problem in non_finite_problems(one.arrays, one.label)
    ]
    if problems:
        raise InputError(problems)


def _networks(given: Sequence[DescribedNetwork], symmetry: Symmetry) -> tuple[Network, ...]:
    """Return the networks with a symmetry, or raise with everything that does not fit."""
    networks: list[Network] = []
    problems: list[str] = []
    tensor = next((v for one in given for v in one.arrays.values() if hasattr(v, "detach")), None)
    for one in given:
        arrays = one.arrays if tensor is None else {key: tensor_beside(v, tensor) for key, v in one.arrays.items()}
        try:
            networks.append(Network(arrays, symmetry, one.label))
        except InputError as error:
            problems += error.problems
    problems += [problem for one in networks[1:] for problem in _other_kinds(one, networks[0])]
    if problems:
        raise InputError(problems)
    return tuple(networks)


def _other_layers(given: Sequence[DescribedNetwork]) -> list[str]:
    """Return which layers of the modules do something else, though their arrays may look alike."""
    modules = [one for one in given if one.module is not None]
    kinds = [layer_kinds(one.module) for one in modules if one.module is not None]
    return [
        f"{one.label}: {path or 'it'} is of type {own[path]}, but {kinds[0][path]} in {modules[0].label}; fuse "
        "networks of one architecture only"
        for one, own in zip(modules[1:], kinds[1:], strict=True)
        for path in own
        if path in kinds[0] and own[path] != kinds[0][path]
    ]


def _other_kinds(one: Network, first: Network) -> list[str]:
    """Return which arrays of a network are real numbers where those of another are not."""
    return [
        f"{one.name}: array {key} holds {values.dtype}, but {first.arrays[key].dtype} in {first.name}; convert one"
        for key, values in one.arrays.items()
        if is_floating(values) != is_floating(first.arrays[key])
    ]


def _template(
    given: Sequence[DescribedNetwork], module: nn.Module | Callable[[], nn.Module] | None
) -> nn.Module | None:
    """Return a module of the architecture, if there is one."""
    own = next((one.module for one in given if one.module is not None), None)
    return made_template(module) if own is None else own


def made_template(module: nn.Module | Callable[[], nn.Module] | None) -> nn.Module | None:
    """Return a module that was handed in, or that a function makes.

    Raises
    ------
    OptionError
        For anything else.
    """
    if module is None:
        return None
    made: Any = module if is_module(module) else _made(module)
    if not is_module(made):
        raise OptionError(f"module: expected a torch module or a function that makes one, found {type(made).__name__}")
    template: nn.Module = made
    return template


def _made(function: Callable[[], Any]) -> Any:
    """Return what a function makes, random numbers from a fixed seed: its start weights enter the proof's record."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return function()


def _traced(given: Sequence[DescribedNetwork], template: nn.Module | None, example: Any) -> Symmetry:
    if template is None:
        raise OptionError(
            f"{given[0].label}: says nothing of which axes move together; give symmetry= (what consilience.symmetry "
            "found, or its file), or module= and example="
        )
    if example is None:
        raise OptionError("example: needed to find which axes move together; give an input that the networks take")
    from consilience.networks.tracing.trace import trace

    return trace(template, example)


def _proved(
    symmetry: Symmetry,
    given: Sequence[DescribedNetwork],
    template: nn.Module | None,
    example: Any,
    rng: np.random.Generator,
) -> Symmetry:
    """Return the symmetry with a proof, made for networks of each shape where it has none; without, warn."""
    if symmetry.proved:
        return symmetry
    if template is None or example is None:
        warnings.warn(
            "the symmetry of these networks is unproved: if it is wrong, so is the fused network; prove it with "
            "consilience.symmetry(module, example)",
            UnprovedSymmetryWarning,
            stacklevel=4,
        )
        return symmetry
    from consilience.networks.tracing.proof import prove

    modules = {_shapes(arrays_of_module(one.module)): one.module for one in reversed(given) if one.module is not None}
    proved = [prove(one, symmetry, example, rng) for one in list(modules.values()) or [template]]
    acting = [[group.actions for group in one.all_groups] for one in proved]
    groups = tuple(
        replace(group, actions=tuple(action for action in group.actions if all(action in other for other in others)))
        for group, others in zip(proved[0].all_groups, zip(*acting, strict=True), strict=True)
    )
    found = replace(symmetry, all_groups=groups)
    worst = max(one.proof.deviation for one in proved if one.proof is not None)
    return replace(found, proof=Proof(found.digest, worst, max(p.proof.trials for p in proved if p.proof is not None)))


def _shapes(arrays: Mapping[str, AnyArray]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((key, tuple(values.shape)) for key, values in arrays.items())
