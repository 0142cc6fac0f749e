"""The symmetry that the networks of a fusion share: stated, read or traced, and proved where it can be.

A symmetry says which axes of the arrays move together. It is the one that the caller states, or that the inputs came
with, or that is traced from a module and an example. One without a proof is proved on modules of every shape among the
inputs; where there is no module or no example, it is used with a warning. Before, networks are brought under names in
common, and to the same bookkeeping.

**Whether modules are of one architecture where the shapes of their arrays do not show it**.

Attention of 4 heads and of 8 has the same arrays, and so have a network with ReLU and one with GELU, rotary positions
of base 1e4 and of 1e6. Their average is neither. Modules are compared part by part, by class and by what shapes no
array; models of transformers by their configurations, as checkpoints are before a merge.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import AnyArray
from consilience.drawing.words import first_names
from consilience.errors import InputError, Problem, UnprovedSymmetryWarning, UnsupportedError
from consilience.files.configurations import WIDTHS, compare_configurations
from consilience.networks.carried_arrays import difference_problems, shared_constants, type_problems
from consilience.networks.entry_names import common_names, is_bookkeeping, is_counter
from consilience.networks.files import read_symmetry
from consilience.networks.fusion import NetworkFusion
from consilience.networks.inputs import DescribedNetwork
from consilience.networks.network import Network, negative_variance_problems, non_finite_problems, untrained_infinities
from consilience.networks.symmetry.axes import Action, Proof
from consilience.networks.symmetry.symmetry import Symmetry, trivial_symmetry
from consilience.networks.torch_modules import (
    aliases_of_module,
    arrays_of_module,
    layer_kinds,
    make_template,
    module_with,
    tensor_beside,
)

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, eq=False)
class NetworksWithSymmetry:
    """Networks that can be fused: all of one symmetry."""

    inputs: tuple[DescribedNetwork, ...]  # the J networks as they came
    networks: tuple[Network, ...]  # their arrays under the symmetry, in the same order
    symmetry: Symmetry  # which axes move together, in all of them
    # A module of the architecture, from which fused modules are made; None where there is none.
    template: nn.Module | None

    fusion_type: ClassVar[type[NetworkFusion]] = NetworkFusion

    @property
    def priors(self) -> tuple[Mapping[str, float] | None, ...] | None:
        """Prior variances of networks with variances, by parameter; None for one that states none."""
        return None

    @property
    def rebuild(self) -> Callable[[Network], Any] | None:
        """What makes a model of a fused network; None for networks that came without a module."""
        return None if self.template is None else self.module

    def module(self, network: Network) -> nn.Module:
        """Return a module in evaluation mode with the arrays of a network."""
        if self.template is None:
            raise UnsupportedError("these networks came without a module; give `module=`, a function that makes one")
        return module_with(self.template, network.arrays, self.symmetry).eval()

    def shapes(self, module: nn.Module) -> dict[str, tuple[int, ...]]:
        """Return the shapes by array that a fused network has whose widths are those of `module`."""
        return {key: tuple(values.shape) for key, values in arrays_of_module(module).items()}


def with_symmetry(
    inputs: Sequence[DescribedNetwork],
    symmetry: Symmetry | str | Path | None,
    example: Any,
    module: nn.Module | Callable[[], nn.Module] | None,
    rng: np.random.Generator,
) -> NetworksWithSymmetry:
    """Return the networks with the symmetry that they share, proved where there are modules and an example.

    `symmetry`, or its file, is by default the one that inputs came with, or else that of the first module, traced;
    `example` has arguments for a call of the modules, to trace and to prove, with random elements of groups from `rng`;
    `module`, or a function that makes one, is of the architecture, where the inputs are files. Raises InputError for
    networks that differ in more than widths, or a symmetry that is wrong, and OptionError if there is no symmetry, nor
    what it takes to trace one.
    """
    problems = architecture_problems(inputs)
    template = _template(inputs, module)
    stated = [network.symmetry for network in inputs if network.symmetry is not None]
    if isinstance(symmetry, str | Path):
        symmetry = read_symmetry(Path(symmetry))
    if symmetry is None and stated:
        symmetry = with_common_actions(stated)
        if symmetry is None:
            names = ", ".join(network.label for network in inputs if network.symmetry is not None)
            text = "come with different symmetries, so they are of different architectures"
            raise InputError(names, text, code="E-MISMATCH")
    if symmetry is None:
        if problems:  # of several architectures nothing is traced
            raise InputError(problems)
        if example is None and template is not None:
            from consilience.networks.example import derived_example

            example = derived_example(template)
        if template is None:
            raise InputError(NO_SYMMETRY.about(network.label) for network in inputs)
        from consilience.networks.tracing.trace import trace

        symmetry = trace(template, example)
    if not symmetry.proved:  # modules that are called in a proof must be finite; others are looked at as networks below
        problems += _non_finite_module_problems(inputs)
        if problems:
            raise InputError(problems)
    symmetry = _prove(symmetry, inputs, template, example, rng)
    return NetworksWithSymmetry(tuple(inputs), _networks(inputs, symmetry, problems), symmetry, template)


def without_symmetry(
    inputs: Sequence[DescribedNetwork],
    module: nn.Module | Callable[[], nn.Module] | None,
    aliases: Sequence[Mapping[str, str]] = (),
) -> NetworksWithSymmetry:
    """Return the networks under the trivial symmetry, for methods that take units as they are numbered.

    `aliases` are other names of tied arrays to their names, such as Fisher information states them for networks that
    are files. Raises InputError for networks that are not of one architecture.
    """
    template = _template(inputs, module)
    tied = {alias: name for by_alias in aliases for alias, name in by_alias.items()}
    if template is not None:
        tied |= aliases_of_module(template)
    arrays = inputs[0].arrays
    tied = {alias: name for alias, name in tied.items() if alias in arrays and name in arrays}
    symmetry = trivial_symmetry(arrays, tied)
    networks = _networks(inputs, symmetry, architecture_problems(inputs))
    return NetworksWithSymmetry(tuple(inputs), networks, symmetry, template)


def _non_finite_module_problems(inputs: Sequence[DescribedNetwork]) -> list[Problem]:
    """Return which arrays of modules are not finite, and no constants."""
    shared = shared_constants([network.arrays for network in inputs])
    problems: list[Problem] = []
    for network in inputs:
        if network.module is not None:
            constants = shared | untrained_infinities(network.arrays, network.module)
            problems += non_finite_problems(network.arrays, network.label, constants)
    return problems


def _networks(
    inputs: Sequence[DescribedNetwork], symmetry: Symmetry, problems: Sequence[Problem]
) -> tuple[Network, ...]:
    """Return the networks with a symmetry, or raise with everything that does not fit, after what is known already."""
    networks: list[Network] = []
    problems = list(problems)
    # Where one input is of torch, all become tensors beside its first one, so that methods see one library.
    tensor = next((v for network in inputs for v in network.arrays.values() if hasattr(v, "detach")), None)
    by_network = [
        described.arrays if tensor is None else {key: tensor_beside(v, tensor) for key, v in described.arrays.items()}
        for described in inputs
    ]
    constants = shared_constants(by_network)
    for described, arrays in zip(inputs, by_network, strict=True):
        problems += negative_variance_problems(arrays, described.label)
        try:
            networks.append(Network(arrays, symmetry, described.label, constants=constants))
        except InputError as error:
            problems += error.problems
    problems += [problem for network in networks[1:] for problem in type_problems(network, networks[0])]
    if not problems:
        problems += [problem for network in networks[1:] for problem in difference_problems(network, networks[0])]
    if problems:
        raise InputError(problems)
    return tuple(networks)


def _template(
    inputs: Sequence[DescribedNetwork], module: nn.Module | Callable[[], nn.Module] | None
) -> nn.Module | None:
    """Return a module of the architecture, if there is one: the first of the inputs, or else the one handed in."""
    first = next((network.module for network in inputs if network.module is not None), None)
    return make_template(module) if first is None else first


NO_SYMMETRY = Problem(
    "",
    "says nothing of which axes move together",
    "give `symmetry=` (what consilience.symmetry found, or its file), or `module=` and `example=`; or write it with"
    " `consilience.save(model, path, symmetry=...)`",
    "E-NEEDED",
)
"""Why the units of a network cannot be matched."""


def _prove(
    symmetry: Symmetry,
    inputs: Sequence[DescribedNetwork],
    template: nn.Module | None,
    example: Any,
    rng: np.random.Generator,
) -> Symmetry:
    """Return the symmetry with a proof, made for networks of each shape where it has none; without, warn."""
    if symmetry.proved:
        return symmetry
    if template is None or example is None:
        warnings.warn(
            "the symmetry of these networks is unproved: if it is wrong, so is the fused network; "
            f"give `module=` and `example=`, which prove it [{UnprovedSymmetryWarning.code}]",
            UnprovedSymmetryWarning,
            stacklevel=4,
        )
        return symmetry
    from consilience.networks.tracing.proof import prove

    # One module for each set of shapes: what holds at one width may fail at another. Reversed, so that the first wins.
    modules = {
        _shapes(arrays_of_module(network.module)): network.module
        for network in reversed(inputs)
        if network.module is not None
    }
    problems = [problem for network in inputs for problem in _unit_problems(network, symmetry)]
    if problems:  # said by the name of the network, before a proof says it of a class of modules
        raise InputError(problems)
    proved = [prove(proved_module, symmetry, example, rng) for proved_module in list(modules.values()) or [template]]
    common = with_common_actions(proved)
    assert common is not None  # noqa: S101  (narrows the type; all are proofs of one symmetry)
    return _with_joint_proof(common, proved)


def _unit_problems(network: DescribedNetwork, symmetry: Symmetry) -> list[Problem]:
    """Return which arrays of a module do not fit a symmetry, a line each."""
    if network.module is None:
        return []
    try:
        symmetry.units(dict(_shapes(network.arrays)), network.label)
    except InputError as error:
        return list(error.problems)
    return []


def with_common_actions(symmetries: Sequence[Symmetry]) -> Symmetry | None:
    """Return the symmetry that all of these are but for actions, with those that every one has; None where none is.

    Actions are tried on inputs (``tracing.proof``), and those of one site may not rule out what those of another do.
    It is proved where all are.
    """
    first = symmetries[0]
    if len({symmetry.digest for symmetry in symmetries}) == 1:
        return first
    plain = {_with_actions(symmetry, [("permute",)] * len(symmetry.all_groups)).digest for symmetry in symmetries}
    if len(plain) > 1:
        return None
    by_name = [{group.name: group.actions for group in symmetry.all_groups} for symmetry in symmetries]
    in_all = [
        tuple(action for action in group.actions if all(action in actions[group.name] for actions in by_name))
        for group in first.all_groups
    ]
    common = _with_actions(first, in_all)
    return _with_joint_proof(common, symmetries)


def _with_joint_proof(common: Symmetry, symmetries: Sequence[Symmetry]) -> Symmetry:
    """Return a symmetry with the proof of these, which are the same but for actions; without where one is unproved."""
    proofs = [symmetry.proof for symmetry in symmetries if symmetry.proof is not None and symmetry.proved]
    if len(proofs) < len(symmetries):
        return replace(common, proof=None)
    deviation, trials = max(proof.deviation for proof in proofs), min(proof.trials for proof in proofs)
    return replace(common, proof=Proof(common.digest, deviation, trials))


def _with_actions(symmetry: Symmetry, actions: Sequence[tuple[Action, ...]]) -> Symmetry:
    """Return a symmetry with other actions of its groups, in their order."""
    groups = zip(symmetry.all_groups, actions, strict=True)
    return replace(symmetry, all_groups=tuple(replace(group, actions=of_group) for group, of_group in groups))


def _shapes(arrays: Mapping[str, AnyArray]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((key, tuple(values.shape)) for key, values in arrays.items())


_MAX_LISTED = 3
"""Arrays that a note names; more are counted. Chosen by hand."""


def own_arrays(
    networks: Sequence[DescribedNetwork], module: nn.Module | None, symmetry: Symmetry | str | Path | None
) -> dict[str, AnyArray | None] | None:
    """Return what says by which names a network knows its arrays: a module, else a symmetry; None without either.

    Arrays are those of the module, and None by the names of a symmetry.
    """
    template = next((network.module for network in networks if network.module is not None), module)
    if template is not None:
        return dict(arrays_of_module(template))
    if isinstance(symmetry, str | Path):
        symmetry = read_symmetry(Path(symmetry))
    if symmetry is None:
        symmetry = next((network.symmetry for network in networks if network.symmetry is not None), None)
    return None if symmetry is None else dict.fromkeys((*symmetry.layouts, *symmetry.aliases))


def under_common_names(
    networks: Sequence[DescribedNetwork], own: Mapping[str, AnyArray | None] | None
) -> tuple[list[DescribedNetwork], list[str]]:
    """Return networks under the names that they have in common, and notes on prefixes that were left out.

    `own` is what `own_arrays` returned. Modules and networks with a symmetry keep their names, by which it knows them.
    Raises InputError for networks that differ in a prefix and in more, or in a prefix that a module or a symmetry
    needs.
    """
    shapes = [{key: tuple(values.shape) for key, values in network.arrays.items()} for network in networks]
    labels = [network.label for network in networks]
    found = common_names(shapes, labels, own)
    problems = list(found.problems)
    renamed = list(networks)
    for number, (network, own_names, left_out) in enumerate(
        zip(networks, found.own_names, found.left_out, strict=True)
    ):
        if network.module is None and network.symmetry is None:
            arrays = {key: network.arrays[name] for key, name in own_names.items()}
            parametrised = network.parametrised
            if parametrised is not None:
                parametrised = parametrised.renamed({name: key for key, name in own_names.items()})
            renamed[number] = replace(network, arrays=arrays, parametrised=parametrised)
        elif left_out:
            text = f"its names have {left_out}, which those of the others lack"
            problems.append(Problem(network.label, text, "give the network inside of what wraps it", "E-MISMATCH"))
    if problems:
        raise InputError(problems)
    return renamed, [*(note for network in networks for note in network.notes), *found.notes]


def with_common_bookkeeping(
    networks: Sequence[DescribedNetwork], own: Mapping[str, AnyArray | None] | None
) -> tuple[list[DescribedNetwork], list[str]]:
    """Return networks that all have the same bookkeeping, and notes on what was left out of or added to which.

    What is not in `own`, which `own_arrays` returned, is left out; what a network lacks of it is another network's or
    the module's, and a counter that it lacks is zero.
    """
    bookkeeping = _bookkeeping(networks, own or {})
    common = set(bookkeeping).intersection(*(network.arrays for network in networks))
    kept = common if own is None else own
    dropped = [key for key in bookkeeping if key not in kept]
    added = {
        key: array_namespace(values).zeros_like(values) if is_counter(key) else values
        for key, values in bookkeeping.items()
        if key in kept and key not in common
    }
    notes = (
        [f"{first_names(dropped, _MAX_LISTED)}: bookkeeping that not all networks have, left out"] if dropped else []
    )
    notes += (
        [f"{first_names(list(added), _MAX_LISTED)}: bookkeeping that not all networks have, completed"] if added else []
    )
    return [_with_entries(network, added, dropped) for network in networks], notes


def _bookkeeping(networks: Sequence[DescribedNetwork], own: Mapping[str, AnyArray | None]) -> dict[str, AnyArray]:
    """Return the bookkeeping of networks and their module; of several of one name that of the last network."""
    pool = [own, *(network.arrays for network in networks)]
    known = ((key, values) for arrays in pool for key, values in arrays.items() if values is not None)
    return {key: values for key, values in known if is_bookkeeping(key, tuple(values.shape))}


def _with_entries(
    network: DescribedNetwork, added: Mapping[str, AnyArray], dropped: Collection[str]
) -> DescribedNetwork:
    """Return a network without some entries, and with others that it lacks."""
    if not added and not dropped:
        return network
    kept = {key: values for key, values in network.arrays.items() if key not in dropped}
    return replace(network, arrays={**kept, **{key: values for key, values in added.items() if key not in kept}})


def extra_state_notes(networks: Sequence[DescribedNetwork], has_module: bool) -> list[str]:
    """Return where the extra state of the fused network is from, where any network has some.

    With a module, the fused one is a copy of it with other arrays.
    """
    names = dict.fromkeys(name for network in networks for name in network.extra_state)
    taken = "the module's is kept" if has_module else "left out; give `module=` to keep that of a module"
    return [f"{first_names(list(names), _MAX_LISTED)}: extra state has no mean, {taken}"] if names else []


_OF_PARTS = (
    "num_heads", "n_heads", "n_head", "num_attention_heads", "num_key_value_heads", "head_dim", "num_groups", "groups",
    "stride", "padding", "dilation", "padding_mode", "ceil_mode", "eps", "variance_epsilon", "norm_first", "mode",
    "scale_factor", "output_size", "activation", "activation_fn", "act", "rope_theta", "scaling", "is_causal", "causal",
    "start_dim",
)  # fmt: skip
"""Attributes of parts that shape no array and decide what the part computes, in torch and in transformers. Those of
activations and recurrent layers are in `layer_kinds`."""
_NAMES_OF_PARTS = frozenset(_OF_PARTS)

_REMEDY = "fuse networks of one architecture, or keep them all: `method='ensemble'`"


def architecture_problems(networks: Sequence[DescribedNetwork]) -> list[Problem]:
    """Return in what modules differ from the first one, a line for each part.

    Networks without a module, of files, say nothing here.
    """
    modules = [(network.label, network.module) for network in networks if network.module is not None]
    configured = [(label, config) for label, module in modules if (config := _configuration(module)) is not None]
    problems, _ = compare_configurations(configured, _REMEDY, WIDTHS)
    stated = {problem.subject for problem in problems}
    for label, module in modules[1:]:
        first_label, first = modules[0]
        if label not in stated:  # whose parts follow from its configuration
            problems += [
                Problem(label, f"{part} is {theirs}, but {ours} in {first_label}", _REMEDY, "E-CONFIG")
                for part, theirs, ours in _differences(first, module)
            ]
    return problems


def _configuration(module: nn.Module) -> Mapping[str, Any] | None:
    """Return the configuration of a model of transformers; None of any other module."""
    config = getattr(module, "config", None)
    as_mapping = getattr(config, "to_dict", None)
    stated = as_mapping() if callable(as_mapping) else None
    return stated if isinstance(stated, Mapping) else None


def _differences(first: nn.Module, other: nn.Module) -> Iterator[tuple[str, str, str]]:
    """Yield the parts in which two modules differ, with what they are in the second and in the first.

    What lacks arrays is refused by these. A part whose kind differs is compared no further.
    """
    parts, kinds = dict(other.named_modules()), (layer_kinds(first), layer_kinds(other))
    for path, ours in first.named_modules():
        theirs = parts.get(path)
        if theirs is None:
            continue
        if path in kinds[0] and path in kinds[1] and kinds[0][path] != kinds[1][path]:
            yield path or "it", kinds[1][path], kinds[0][path]
            continue
        names = _stated_names(theirs) & _stated_names(ours)
        if not names or _shapes_of(theirs) != _shapes_of(ours):
            continue
        for name in (name for name in _OF_PARTS if name in names):
            values = _value_of(theirs, name), _value_of(ours, name)
            if None not in values and values[0] != values[1]:
                yield f"{path}.{name}".lstrip("."), str(values[0]), str(values[1])


def _stated_names(part: nn.Module) -> Set[str]:
    """Return which of the attributes of parts a module or its class has."""
    of_class = _names_of_class(type(part))  # type: ignore[arg-type]  # classes are hashable, which mypy does not see
    return of_class | _NAMES_OF_PARTS.intersection(vars(part))  # modules take long to say that they lack one


@lru_cache(maxsize=256)  # a network has few kinds of parts, and as many networks are compared as there are sites
def _names_of_class(kind: type) -> frozenset[str]:
    """Return which of the attributes of parts a class has."""
    return frozenset(name for name in _OF_PARTS if hasattr(kind, name))


def _shapes_of(part: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(parameter.shape) for parameter in part.parameters()]


def _value_of(part: nn.Module, name: str) -> str | None:
    """Return a number, text or tuple of such, or the name of a function, as a text; None of all else."""
    value = getattr(part, name, None)
    if isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, tuple | list) and all(isinstance(entry, bool | int | float | str) for entry in value):
        return repr(tuple(value))
    return getattr(value, "__name__", None) if callable(value) and not hasattr(value, "named_modules") else None
