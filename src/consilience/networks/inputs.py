"""Inputs that are networks: modules, Networks and files, described by their arrays, symmetry and digest.

Companion files of networks (Fisher information, descriptions) are selected by format and matched by digest.

Networks are fused in an order that depends on their contents only (`canonical_order`), so that a result does not
depend on the order in which they arrive (docs/adr/4).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from zlib import crc32

import numpy as np

from consilience.checks import AnyArray
from consilience.core.agreement import Doubt
from consilience.core.gather import Reading, gather
from consilience.core.inputs import NamedInput, in_order, too_few_models, training_state_problem
from consilience.core.provenance import NO_ANCESTORS
from consilience.errors import FileFormatError, InputError, OptionError, Problem
from consilience.files.foreign_formats import part_of_checkpoint
from consilience.files.format import Record
from consilience.files.quantisation import quantisation_beside
from consilience.files.safetensors_file import SafetensorsFile
from consilience.files.tensor_names import PLAIN_TYPES, unfit_tensors
from consilience.networks.descriptions.description import Description
from consilience.networks.entry_names import common_names, dense_arrays, extra_state, is_state_dict
from consilience.networks.files import read_network
from consilience.networks.network import Network, as_buffer, dtype_name, has_nan, to_bytes
from consilience.networks.parametrised_layers import Parametrised, parts_of_module, plain_module
from consilience.networks.symmetry.symmetry import Symmetry, trivial_symmetry
from consilience.networks.torch_modules import arrays_of_module, initialised, is_module, unwrapped
from consilience.networks.weight_parts import plain_arrays
from consilience.posteriors.adapters.table import has_adapter

if TYPE_CHECKING:
    from torch import nn

    from consilience.networks.fisher.information import FisherInformation

_NO_ARRAY = -1
"""Part of a sorting key where a network has fewer arrays than another: before every sum."""


@dataclass(frozen=True, eq=False)
class DescribedNetwork:
    """An input that is a network."""

    name: str  # name in results, reports and provenance
    label: str  # name in messages: the name, or the path of a file
    # Parameters and buffers by name; of parametrised layers the weights that they stand for.
    arrays: Mapping[str, AnyArray]
    symmetry: Symmetry | None  # the symmetry that the input came with
    module: nn.Module | None  # the module, where the input is one; parametrised layers have their weights as parameters
    digest: str | None  # SHA-256 of the file; None for an object in memory, and where nothing will be fused
    description: Description | None = None  # what the site says of the network beside the weights
    # Its parametrised layers as the site has them. Default: None, where it has none.
    parametrised: Parametrised | None = None
    extra_state: tuple[str, ...] = ()  # names of the entries of a state dict that are extra state, and no arrays
    notes: tuple[str, ...] = ()  # what was left out of its names, a line each
    # Digest of its numbers, whatever the order of its units; "" where they stay in their file.
    content_digest: str = ""
    # By name the arrays that were summed for this digest, with the sums of their bits.
    bit_sums: Mapping[str, tuple[AnyArray, int]] = field(default_factory=dict)
    # Names, by digests, of itself and of what it was fused from.
    rests_on: Mapping[str, str] = field(default_factory=lambda: NO_ANCESTORS)

    @property
    def sent_arrays(self) -> Mapping[str, AnyArray]:
        """The arrays as the site has them, with the parts of parametrised layers."""
        return self.arrays if self.parametrised is None else self.parametrised.arrays

    def network(self) -> Network:
        """Return the network under the trivial symmetry, under which nothing moves."""
        return Network(self.arrays, trivial_symmetry(self.arrays), self.label)

    def bit_sum(self, key: str) -> int:
        """Return the sum of bits of an array, which is known where it is one of those that the digest was taken of."""
        summed, total = self.bit_sums.get(key, (None, 0))
        return total if summed is self.arrays[key] else _sum_of_bits(self.arrays[key])

    def with_content_digest(self) -> DescribedNetwork:
        """Return the network with the digest of its numbers."""
        sums = _bit_sums(self.sent_arrays)
        return replace(self, content_digest=_digest_of_sums(sums), bit_sums=sums)


def canonical_order(networks: Sequence[DescribedNetwork]) -> list[int]:
    """Return the numbers of networks in an order that depends on what they are, not on how they arrive."""
    keys: list[tuple[int, ...]] = [()] * len(networks)
    # By array, the sum of its numbers' bits modulo 2^64: whole numbers, so the same in any order of units. Keys differ
    # in their first parts, as a rule, and are read no further than it takes to tell all apart.
    for parts in zip_longest(*(map(one.bit_sum, sorted(one.arrays)) for one in networks), fillvalue=_NO_ARRAY):
        keys = [(*key, part) for key, part in zip(keys, parts, strict=True)]
        if len(set(keys)) == len(keys):
            break
    else:  # by a CRC of each array, which tells the order of units too
        checksums = [[crc32(to_bytes(one.arrays[key])) for key in sorted(one.arrays)] for one in networks]
        keys = [(*key, *checksum) for key, checksum in zip(keys, checksums, strict=True)]
    return sorted(range(len(networks)), key=lambda i: (keys[i], i))


def _sum_of_bits(values: AnyArray) -> int:
    """Return the sum modulo 2^64 of the numbers of an array, their bits read as unsigned integers."""
    data = as_buffer(values)
    size = len(data) // max(1, math.prod(values.shape))  # bytes of a number
    kind = f"u{size}" if size in (1, 2, 4, 8) else "u1"
    return int(data.view(kind).sum(dtype=np.uint64))


def is_arrays(model: object) -> bool:
    """Return whether an object is a state dict in NumPy: arrays by name, or in its order, as Flower has them."""
    values = list(model.values() if isinstance(model, Mapping) else model) if isinstance(model, Mapping | list) else []
    return bool(values) and all(isinstance(one, np.ndarray | np.generic) for one in values)


def state_dict_of_arrays(model: Any, template: nn.Module | None) -> Any:
    """Return NumPy arrays as the state dict of a module; any other object as it is.

    Raises InputError for a list that has not as many arrays as the module, or of other shapes.
    """
    if template is None or not is_arrays(model):
        return model
    import torch  # here, since networks in files need none

    own = template.state_dict()
    if isinstance(model, list):
        if len(model) != len(own):
            text = f"is a list of {len(model)} arrays, and the module's state_dict() has {len(own)}"
            raise InputError("", text, "give arrays by name, or all in the order of state_dict()", "E-SHAPE")
        model = dict(zip(own, model, strict=True))
        for name, values in model.items():
            if values.shape != tuple(own[name].shape):
                text = f"has the shape {values.shape}, expected {tuple(own[name].shape)}: arrays go by their order"
                raise InputError(name, text, "give arrays by name", "E-SHAPE")
    return {str(name): torch.from_numpy(np.array(values)) for name, values in model.items()}


def content_digest(arrays: Mapping[str, AnyArray]) -> str:
    """Return a digest of arrays that copies share, and copies whose units are in another order."""
    return _digest_of_sums(_bit_sums(arrays))


def _bit_sums(arrays: Mapping[str, AnyArray]) -> dict[str, tuple[AnyArray, int]]:
    """Return arrays with the sums of their bits, by name."""
    return {name: (values, _sum_of_bits(values)) for name, values in arrays.items()}


def _digest_of_sums(sums: Mapping[str, tuple[AnyArray, int]]) -> str:
    """Return the digest of arrays, given with the sums of their bits."""
    digest = hashlib.sha256()
    for name in sorted(sums):
        values, total = sums[name]
        digest.update(f"{name} {dtype_name(values)} {tuple(values.shape)} {total}".encode())
    return digest.hexdigest()


def digest_of_model(model: Any) -> str:
    """Return the digest of the arrays of a module, Network or state dict; see `content_digest`."""
    return content_digest(describe_object(model, "", "").sent_arrays)


def is_network(model: object) -> bool:
    """Return whether an object in memory is a network: one of ours, a state dict, or a module of no posterior."""
    return isinstance(model, Network) or is_state_dict(model) or (is_module(model) and not has_adapter(model))


def describe_networks(
    inputs: Sequence[NamedInput], *, mapped: bool = False, template: nn.Module | None = None, example: Any = None
) -> tuple[list[DescribedNetwork], list[Doubt]]:
    """Return the networks of all inputs, and why they may not mean the same.

    With `mapped`, arrays stay in their files until their values are used, and no digests are taken. `template` is a
    module of the architecture, which says how parametrised layers of files and state dicts compute their weights;
    `example` has the arguments of a call, which gives lazy layers their shapes: else they are refused. Raises
    InputError, naming everything that is no network, and files given twice.
    """
    reading = NetworkReading(mapped, template, example)
    gathered = gather(inputs, reading)
    described, problems = [replace(one.value, rests_on=one.rests_on) for one in gathered.described], gathered.problems
    paths = {named.label: named.file.path for named in inputs if named.file is not None}
    problems += [problem for network in described for problem in _unfit_arrays(network, paths.get(network.label))]
    problems += too_few_models(len(inputs))
    if problems:
        raise InputError(problems)
    return described, gathered.doubts


class NetworkReading(Reading[DescribedNetwork]):
    """How networks are read: modules, state dicts, Networks, and files, whose arrays may stay there.

    `mapped`, `template` and `example` are as `describe_networks` takes them.
    """

    called = "a network"
    names_inputs = True

    def __init__(self, mapped: bool, template: nn.Module | None, example: Any) -> None:
        self.mapped, self.template, self.example = mapped, template, example

    def read(self, file: SafetensorsFile) -> tuple[DescribedNetwork, Record]:
        """Return the network in a file; a plain checkpoint is one too."""
        network = read_network(file, mapped=self.mapped)
        described = _of_state_dict(network.arrays, file.label, file.label, self.template)
        described = replace(described, symmetry=network.symmetry, digest=None if self.mapped else file.digest)
        return described if self.mapped else described.with_content_digest(), network.provenance

    def convert(self, one: NamedInput) -> tuple[DescribedNetwork, Record]:
        """Return a module, Network or state dict as a network."""
        model = state_dict_of_arrays(one.model, self.template)
        if is_module(model) or isinstance(model, Network) or is_state_dict(model):
            described = describe_object(model, one.name, one.label, self.template, self.example)
            return described.with_content_digest(), None
        text = f"a {type(one.model).__name__} is no network; expected a module, Network or path"
        known = training_state_problem(one.model)
        raise InputError([Problem(one.label, text, code="E-TYPE") if known is None else known.about(one.label)])

    def settle(self, value: DescribedNetwork, one: NamedInput, place: int, problems: list[Problem]) -> DescribedNetwork:
        """Return a network under the name of its input."""
        del place, problems
        is_named = (value.name, value.label) == (one.name, one.label)
        return value if is_named else replace(value, name=one.name, label=one.label)

    def digest_of(self, value: DescribedNetwork) -> str:
        """Return the digest of the network's numbers, whatever the order of its units."""
        return value.content_digest

    def digested(self, value: DescribedNetwork) -> DescribedNetwork:
        """Return a network with the digest of its numbers, which are read now where they stayed in their file."""
        return value if value.content_digest else value.with_content_digest()


def _unfit_arrays(network: DescribedNetwork, path: Path | None) -> Iterator[Problem]:
    """Yield that arrays of a network are packed by quantisation, an optimiser's, or those of a part of its file."""
    dtypes = {name: dtype_name(values) for name, values in network.arrays.items()}
    stated = None if path is None or PLAIN_TYPES.issuperset(dtypes.values()) else quantisation_beside(path.parent)
    if (unfit := unfit_tensors(dtypes, stated)) is not None:
        yield Problem(network.label, *unfit, "E-TYPE")
    elif path is not None and (part := part_of_checkpoint(path)) is not None:
        text = f"is part {part[0]} of {part[1]} of a checkpoint, expected a whole one"
        yield Problem(network.label, text, "merge the folders: consilience.merge", "E-FILE")


def describe_network_file(file: SafetensorsFile, name: str, label: str) -> DescribedNetwork:
    """Return the network in a file as an input, without its digest; see `describe_networks`."""
    network = read_network(file)
    return replace(_of_state_dict(network.arrays, name, label, None), symmetry=network.symmetry)


def describe_object(
    model: Any, name: str, label: str, template: nn.Module | None = None, example: Any = None
) -> DescribedNetwork:
    """Return a module, Network or state dict as an input; see `describe_networks`."""
    if isinstance(model, Network):
        return _described(model, name, label)
    if not is_module(model):
        return _of_state_dict(model, name, label, template)
    module = initialised(unwrapped(model), example)
    plain = plain_module(module)
    state = plain.state_dict()
    parametrised = None if plain is module else Parametrised.of_module(module)
    return DescribedNetwork(
        name, label, dense_arrays(state, label), None, plain, None,
        parametrised=parametrised, extra_state=extra_state(state),
    )  # fmt: skip


def _described(network: Network, name: str, label: str) -> DescribedNetwork:
    """Return a Network as an input; one that was not traced says nothing of which axes move together."""
    symmetry = None if network.is_untraced else network.symmetry
    module = None if network.module is None else plain_module(network.module)
    return DescribedNetwork(
        name, label, network.arrays, symmetry, module, None, network.description, network.parametrised
    )


def _of_state_dict(
    state: Mapping[str, AnyArray], name: str, label: str, template: nn.Module | None
) -> DescribedNetwork:
    """Return the arrays of a network without code as an input."""
    names = {} if template is None else arrays_of_module(template)
    known = [] if template is None else parts_of_module(template)
    sent, notes = dense_arrays(state, label), tuple[str, ...]()
    if known:  # by whose names the parts are known
        found = common_names([{key: tuple(values.shape) for key, values in sent.items()}], [label], names)
        sent, notes = {key: sent[own] for key, own in found.own_names[0].items()}, found.notes
    plain, parts = plain_arrays(sent, label, known, names)
    parametrised = Parametrised(parts, sent) if parts else None
    return DescribedNetwork(
        name, label, plain, None, None, None, parametrised=parametrised, extra_state=extra_state(state), notes=notes
    )


def load_network(file: SafetensorsFile) -> Network:
    """Return the network in a file that states its symmetry."""
    described = describe_network_file(file, file.label, file.label)
    if described.symmetry is None:
        text = "has no consilience metadata with a symmetry"
        remedy = "read it with safetensors, or write it with consilience.save and its `symmetry=`"
        raise FileFormatError(
            file, f"{text}, so it is neither a posterior file nor a network of known symmetry", remedy
        )
    # One file does not say what all networks of a fusion share: NaN is refused here, an infinity where it is fused.
    constants = frozenset(key for key, values in described.arrays.items() if not has_nan(values))
    return Network(
        described.arrays, described.symmetry, file.label, constants=constants, parametrised=described.parametrised
    )


CompanionType = TypeVar("CompanionType", Description, "FisherInformation")
"""What belongs to a network, with a digest of it."""


def split_companions(inputs: Sequence[NamedInput], *formats: str) -> tuple[list[NamedInput], ...]:
    """Return the inputs that are files of none of these formats, and then those of each."""
    return (
        [named for named in inputs if named.format not in formats],
        *([named for named in inputs if named.format == file_format] for file_format in formats),
    )


def values_in_order(values: Any, names: Sequence[str], option: str) -> Sequence[Any] | None:
    """Return one value for each network, in their order, of a list or a mapping by name; None where none were given.

    Raises OptionError for anything else, and another number of values.
    """
    values = in_order(values, names, option)
    if values is None:
        return None
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise OptionError(option, f"expected a list with one entry for each network, found {type(values).__name__}")
    if len(values) != len(names):
        raise OptionError(option, f"expected {len(names)}, one for each network in their order, found {len(values)}")
    return values


def assign_by_digest(
    networks: Sequence[DescribedNetwork],
    companions: Sequence[CompanionType],
    is_of: Callable[[CompanionType, DescribedNetwork], bool],
    unmatched: str,
    remedy: str,
) -> tuple[dict[int, CompanionType], list[Problem]]:
    """Return the companion of every network that has one, by the network's number, and what is wrong with the others.

    Companions come in any order; `is_of` says by digest whether one is of a network. `unmatched` and `remedy` are what
    to say of a companion of no network here.
    """
    by_network: dict[int, CompanionType] = {}
    problems: list[Problem] = []
    for companion in companions:
        numbers = [number for number, network in enumerate(networks) if is_of(companion, network)]
        if not numbers:
            problems.append(Problem(companion.name, unmatched, remedy, "E-MISMATCH"))
        # Equal networks have equal digests, so that one file may be of several.
        for number in numbers:
            if number in by_network:
                text = f"is of {networks[number].label}, as {by_network[number].name} is"
                problems.append(Problem(companion.name, text, "leave one out", "E-TWICE"))
            by_network.setdefault(number, companion)
    return by_network, problems
