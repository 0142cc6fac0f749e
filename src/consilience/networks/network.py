"""Networks as named arrays with a symmetry, and operations on arrays of any library and precision.

Arrays follow the Python array API: the same code runs on NumPy arrays and on torch tensors, on any device. Networks
keep the precision of their files; methods compute with `Network.working`, in at least 32 bits, and
`Network.with_arrays` writes results in the precision of the network.
"""

from __future__ import annotations

import math
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from math import isfinite, prod
from typing import TYPE_CHECKING

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from consilience.catalogue import with_suggestions
from consilience.checks import AnyArray, Array, Labels
from consilience.drawing.display import Displayed, names_in_line
from consilience.drawing.words import format_count, shorten
from consilience.errors import InputError, OptionError, Problem
from consilience.networks.descriptions.disclosure import named
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import Injection, Transport, move, permutation

if TYPE_CHECKING:
    from torch import nn

    from consilience.networks.descriptions.description import Description
    from consilience.networks.parametrised_layers import Parametrised

# Names of types rather than types, since arrays may be of any library.
_HALVES = ("float16", "bfloat16")
_FLOATS = (*_HALVES, "float32", "float64")
_COMPLEX = ("complex32", "complex64", "complex128")

RUNNING_STATISTICS = ("running_mean", "running_var")
"""Names that torch gives to what normalisation layers learn without a gradient."""


@dataclass(frozen=True, eq=False, repr=False)
class Network(Displayed):
    """Named arrays and which of their axes move together.

    Parameters
    ----------
    arrays : mapping of str to array
        Weights, biases and buffers by name, of any array library; floating ones of any precision.
    symmetry : Symmetry
        Which axes move together.
    name : str, optional
        Its name in messages. Default: "network".
    description : Description, optional
        What a site says of it beside the weights: what ``consilience.describe`` found. Default: None.
    module : Module, optional
        The module that it is of. Default: None.
    parametrised : Parametrised, optional
        Its parametrised layers, of which `arrays` has the weights that they stand for. Default: None, without any.
    constants : frozenset of str, optional
        Arrays that were not trained, such as masks and bounds: they may hold infinities, and no method averages them.
        Those that `untrained_infinities` recognises are added. Default: none.

    Attributes
    ----------
    units : mapping of str to int
        Number of units of every group.

    Raises
    ------
    InputError
        Naming the arrays that are missing, unknown, of a wrong shape, or not finite.
    """

    arrays: Mapping[str, AnyArray]
    symmetry: Symmetry
    name: str = "network"
    description: Description | None = None
    module: nn.Module | None = None
    parametrised: Parametrised | None = None
    constants: frozenset[str] = frozenset()
    units: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        shapes = {key: tuple(values.shape) for key, values in self.arrays.items()}
        arrays = {key: values for key, values in self.arrays.items() if key not in self.symmetry.aliases}
        for alias, key in self.symmetry.aliases.items():
            if key not in arrays and alias in self.arrays:  # the file has a tied weight under its other name only
                arrays[key] = self.arrays[alias]
                shapes[key] = shapes[alias]
        object.__setattr__(self, "units", self.symmetry.units(shapes, self.name))
        moving = {key for key, layout in self.symmetry.layouts.items() if layout.moving_axes}
        infinite = {key: values for key, values in arrays.items() if not is_finite(values)}
        constants = (self.constants | untrained_infinities(infinite, self.module)) & (infinite.keys() - moving)
        problems = [*self._tied_problems(), *self._type_problems(arrays, moving)]
        if problems := problems + non_finite_problems(infinite, self.name, constants):
            raise InputError(problems)
        object.__setattr__(self, "arrays", arrays)
        object.__setattr__(self, "constants", constants)

    def _tied_problems(self) -> Iterator[Problem]:
        """Yield which names of one array have different values."""
        for alias, key in self.symmetry.aliases.items():
            if alias in self.arrays and key in self.arrays and not same_values(self.arrays[alias], self.arrays[key]):
                text = f"arrays {alias} and {key} are one array in this network (tied weights), but differ here"
                yield Problem(self.name, text, "give them the same values", "E-MISMATCH")

    def _type_problems(self, arrays: Mapping[str, AnyArray], moving: Container[str]) -> Iterator[Problem]:
        """Yield which arrays whose units move hold neither numbers that have a mean nor truth values."""
        for key in self.symmetry.layouts:
            if key in moving and not is_averaged(arrays[key]) and dtype_name(arrays[key]) != "bool":
                text = f"array {key} holds {dtype_name(arrays[key])}, but its units move"
                yield Problem(self.name, text, "convert it to floating-point")

    def _headline(self) -> str:
        size = sum(math.prod(values.shape) for values in self.arrays.values())
        return f"{shorten(self.name, 40)}, {format_count(len(self.arrays), 'array')}, {size:,} numbers"

    def _facts(self) -> dict[str, object | None]:
        units = [f"{name} {count:,}" for name, count in self.units.items()]
        return {
            "units by group": names_in_line(units, 40) or "no group, so that nothing can be matched",
            "symmetry": "proved" if self.symmetry.proved else "unproved",
            "description": None if self.description is None else self.description._headline(),
            "module": None if self.module is None else type(self.module).__name__,
        }

    @property
    def sent_arrays(self) -> Mapping[str, AnyArray]:
        """The arrays of its state dict, with the parts of parametrised layers."""
        return self.arrays if self.parametrised is None else self.parametrised.arrays

    @property
    def is_untraced(self) -> bool:
        """Whether it is a module's, whose axes could not be traced; notes of the symmetry say why."""
        return self.module is not None and not self.symmetry.proved and not self.symmetry.all_groups

    @cached_property
    def working(self) -> dict[str, AnyArray]:
        """What methods compute with: its floating arrays in at least 32 bits, without those that are constants.

        Complex arrays are pairs of real numbers, on one axis more than their layouts have: (..., 2).
        """
        return {
            key: real_pairs(working_precision(values))
            for key, values in self.arrays.items()
            if is_averaged(values) and key not in self.constants
        }

    def move(self, transports: Mapping[str, Transport]) -> dict[str, AnyArray]:
        """Return its floating arrays with units moved by the transports of their groups, in working precision."""
        layouts = self.symmetry.layouts
        return {key: move(values, layouts[key], transports, self.units) for key, values in self.working.items()}

    def with_arrays(self, arrays: Mapping[str, AnyArray], name: str = "fused") -> Network:
        """Return a network with other arrays, given as `working` has them and written in the types of this one's.

        Arrays that are not given (counters, masks) stay as they are here.
        """
        written = {
            key: _cast_like(arrays[key], values) if key in arrays else values for key, values in self.arrays.items()
        }
        return Network(written, self.symmetry, name, constants=self.constants)

    def permute(self, orders: Mapping[str, Sequence[int] | Labels]) -> Network:
        """Return the same function with units in another order.

        Parameters
        ----------
        orders : mapping of str to sequence of int, shape (k,)
            By group, the old number of each new unit. Where a group is inside units of a parent, its order must follow
            the parent's; a parent alone takes the groups inside along.

        Raises
        ------
        OptionError
            For groups that do not exist and orders that are not permutations.
        """
        transports = {
            name: permutation(order) for name, order in complete_orders(self.symmetry, self.units, orders).items()
        }
        return self.with_arrays(self.move(transports), self.name)


def complete_orders(
    symmetry: Symmetry, units: Mapping[str, int], orders: Mapping[str, Sequence[int] | Labels]
) -> dict[str, Labels]:
    """Return checked orders, completed by those of groups whose parent moves.

    `orders` has, by group, the old number of each new unit. Raises OptionError for groups that do not exist and orders
    that are not permutations, or leave their parent's units.
    """
    if unknown := sorted(set(orders) - set(symmetry.by_name)):
        named = with_suggestions(unknown, symmetry.by_name)
        raise OptionError(f"group {named} does not exist; there are {', '.join(symmetry.by_name)}")
    completed: dict[str, Labels] = {}
    for name, numbers in orders.items():
        order = np.asarray(numbers)
        if order.shape != (units[name],) or not np.array_equal(np.sort(order), np.arange(units[name])):
            raise OptionError(f"group {name}: expected every number from 0 to {units[name] - 1} once, in a new order")
        completed[name] = order.astype(np.int64)
    for name, group in symmetry.by_name.items():
        if group.parent is None or (name not in completed and group.parent not in completed):
            continue
        # Unit u of parent unit h has the number h * size + u.
        parent_order = completed.get(group.parent, np.arange(units[group.parent]))
        if name not in completed:
            completed[name] = (parent_order[:, None] * group.size + np.arange(group.size)).ravel()
        if np.any(completed[name].reshape(-1, group.size) // group.size != parent_order[:, None]):
            raise OptionError(f"group {name}: units must stay inside those of {group.parent}, in its order")
    return completed


def identity_transports(units: Mapping[str, int]) -> dict[str, Transport]:
    """Return transports that move nothing."""
    return {name: Injection(np.arange(count), count) for name, count in units.items()}


def is_floating(values: AnyArray) -> bool:
    """Return whether an array holds floating-point numbers."""
    return dtype_name(values) in _FLOATS


def is_complex(values: AnyArray) -> bool:
    """Return whether an array holds complex numbers."""
    return dtype_name(values) in _COMPLEX


def is_averaged(values: AnyArray) -> bool:
    """Return whether an array holds real or complex numbers, which have a mean."""
    return is_floating(values) or is_complex(values)


def dtype_name(values: AnyArray) -> str:
    """Return the type of an array's entries, as NumPy calls it."""
    return _name_of(values.dtype)


@cache
def _name_of(dtype: Hashable) -> str:
    """Return the name of a type of any library: of ``torch.float32`` too it is ``float32``."""
    return str(dtype).rpartition(".")[2]


def working_precision(values: AnyArray) -> AnyArray:
    """Return a floating array in at least 32 bits, a complex one in at least twice 32."""
    kind = dtype_name(values)
    if kind not in _HALVES and kind != "complex32":
        return values
    xp = array_namespace(values)
    return xp.astype(values, xp.complex64 if kind == "complex32" else xp.float32)


def real_pairs(values: AnyArray) -> AnyArray:
    """Return a complex array as its real and imaginary parts, (..., 2), not copied; a real one as it is.

    Sums, means by real weights, distances and permutations of complex numbers are those of the pairs.
    """
    if not is_complex(values):
        return values
    if hasattr(values, "detach"):
        import torch

        return torch.view_as_real(values.detach().resolve_conj())
    rows = np.ascontiguousarray(values)
    return rows.view(rows.real.dtype).reshape(*values.shape, 2)


def _cast_like(values: AnyArray, other: AnyArray) -> AnyArray:
    """Return an array in the type of another of the same library; pairs of real numbers where that is complex."""
    if is_complex(other) and not is_complex(values):
        if hasattr(values, "detach"):
            import torch

            values = torch.view_as_complex(values.contiguous())
        else:
            values = np.ascontiguousarray(values).view(np.result_type(values.dtype, np.complex64))[..., 0]
    if values.dtype == other.dtype:
        return values
    return array_namespace(values).astype(values, other.dtype)


def non_finite_problems(
    arrays: Mapping[str, AnyArray], name: str, constants: Container[str] = frozenset()
) -> list[Problem]:
    """Return a line for every array of a network that has NaN or infinite values, and is none of the constants."""
    wrong = [key for key, values in arrays.items() if key not in constants and not is_finite(values)]
    remedy = "leave this network out, or train it again"
    return [Problem(name, f"array {key} has NaN or infinite values", remedy, "E-NUMBER") for key in wrong]


def untrained_infinities(arrays: Mapping[str, AnyArray], module: nn.Module | None = None) -> frozenset[str]:
    """Return the names of arrays whose NaN or infinite values are no sign of broken training: masks and bounds.

    Buffers of the module are not trained, but for running statistics. Without it, an array of zeros and infinities
    alone is taken for a mask or a bound: training leaves other numbers, or NaN.

    Examples
    --------
    >>> sorted(untrained_infinities({"mask": np.array([0.0, -np.inf]), "weight": np.array([0.5, np.inf])}))
    ['mask']
    """
    trained = None if module is None else {key for key, _ in module.named_parameters(remove_duplicate=False)}
    return frozenset(
        key
        for key, values in arrays.items()
        if key.rpartition(".")[2] not in RUNNING_STATISTICS
        and not is_finite(values)
        and (_is_zero_or_infinite(values) if trained is None else key not in trained)
    )


def _is_zero_or_infinite(values: AnyArray) -> bool:
    """Return whether every entry is zero or infinite."""
    working = real_pairs(working_precision(values))
    xp = array_namespace(working)
    return bool(xp.all((working == 0) | xp.isinf(working)))


def negative_variance_problems(arrays: Mapping[str, AnyArray], name: str) -> list[Problem]:
    """Return a line for every array of running variances of a network, by torch's name for them, with a negative one.

    NaN and infinite ones are said by `non_finite_problems`.
    """
    variances = {key: values for key, values in arrays.items() if key.rpartition(".")[2] == "running_var"}
    least = {
        key: float(values.min()) for key, values in variances.items() if prod(values.shape) and is_floating(values)
    }
    return [
        Problem(name, f"array {key} has a negative variance ({value:.3g})", "leave this network out, or train it again")
        for key, value in least.items()
        if value < 0
    ]


def untrained_norms(arrays: Mapping[str, AnyArray]) -> list[str]:
    """Return the paths of batch normalisation with mean 0 and variance 1 in all channels, the values before training.

    Such statistics, left by training in ``eval()`` mode or by a reset, normalise nothing in evaluation mode.

    Examples
    --------
    >>> untrained_norms({"bn.running_mean": np.zeros(3), "bn.running_var": np.ones(3)})
    ['bn']
    >>> untrained_norms({"bn.running_mean": np.zeros(3), "bn.running_var": np.array([1.0, 1.0, 0.9])})
    []
    """
    keys = {key.removesuffix("running_var"): key for key in arrays if key.endswith("running_var")}
    return [
        path.removesuffix(".")
        for path, key in keys.items()
        if (mean := f"{path}running_mean") in arrays
        and not to_numpy(arrays[mean]).any()
        and (to_numpy(arrays[key]) == 1).all()
    ]


def never_saw_data(paths: list[str]) -> str:
    """Return the note on batch normalisation layers that have never seen data."""
    return f"batch normalisation {named(paths)} has never seen data (mean 0, variance 1)"


def is_finite(values: AnyArray) -> bool:
    """Return whether no entry is NaN or infinite."""
    if not is_averaged(values):
        return True
    working = real_pairs(working_precision(values))
    if isfinite(_quiet_sum(working)):  # one NaN or infinity would show in the sum, which is quick to compute
        return True
    xp = array_namespace(working)
    return bool(xp.all(xp.isfinite(working)))


def _quiet_sum(values: AnyArray) -> float:
    """Return the sum of an array, without NumPy's warning where finite numbers have no finite sum."""
    if not isinstance(values, np.ndarray):
        return float(values.sum())
    with np.errstate(over="ignore", invalid="ignore"):
        return float(values.sum())


def has_nan(values: AnyArray) -> bool:
    """Return whether an array has NaN."""
    if not is_averaged(values):
        return False
    working = real_pairs(working_precision(values))
    xp = array_namespace(working)
    return bool(xp.any(xp.isnan(working)))


def same_values(values: AnyArray, other: AnyArray) -> bool:
    """Return whether two arrays hold the same numbers."""
    if values is other:
        return True
    return tuple(values.shape) == tuple(other.shape) and bool(array_namespace(values).all(values == other))


def square_sum(values: AnyArray) -> float:
    """Return the sum of squares: within rows in the array's own precision, over rows in float64."""
    xp = array_namespace(values)
    rows = xp.reshape(values, (values.shape[0], -1) if values.ndim else (1, 1))
    return float(xp.sum(xp.sum(rows * rows, axis=-1), dtype=xp.float64))


def to_numpy(values: AnyArray) -> Array:
    """Return an array as NumPy float64 on the CPU."""
    if hasattr(values, "detach"):
        return values.detach().cpu().double().numpy()  # torch, since NumPy lacks bfloat16
    return np.asarray(values, dtype=np.float64)


def on_host(values: AnyArray) -> AnyArray:
    """Return a tensor in memory as a NumPy array of the same numbers, not copied; others as they are."""
    if hasattr(values, "detach") and values.device.type == "cpu":
        return values.detach().numpy()
    return values


def convert_like(values: AnyArray, other: AnyArray) -> AnyArray:
    """Return an array converted to the library and device of another, in at least 32 bits."""
    values, xp = working_precision(values), array_namespace(other)
    if array_namespace(values) is not xp:
        plain = values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)
        values = plain if plain.flags.writeable else plain.copy()  # torch warns of tensors on read-only memory
    return xp.asarray(values, device=other.device)


def total_size(arrays: Mapping[str, AnyArray]) -> int:
    """Return the number of entries of all arrays together."""
    return sum(prod(values.shape) for values in arrays.values())


def to_bytes(values: AnyArray) -> bytes:
    """Return the numbers of an array, of any library and precision, as bytes."""
    return as_buffer(values).tobytes()


def as_buffer(values: AnyArray) -> NDArray[np.uint8]:
    """Return the bytes of the numbers of an array, of any library and precision; not copied where they lie together."""
    if hasattr(values, "detach"):
        import torch

        flat = values.detach().cpu().contiguous().reshape(-1)
        buffer: NDArray[np.uint8] = flat.view(torch.uint8).numpy()
        return buffer
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)
