"""Modules with parametrised layers, and the plain modules that they stand for.

A layer is parametrised where it computes a weight from parts at every call: by `torch.nn.utils.parametrize` (weight and
spectral normalisation, orthogonal weights, functions of one's own) or by a hook (``torch.nn.utils.weight_norm``,
``spectral_norm``, ``prune``). Networks are described, matched and averaged as plain modules with the weights themselves
(`plain_module`). Fused weights are written back as parts (`Parametrised`), such that every layer stands for its fused
weight, or for the nearest one that it can stand for. torch is imported only where a module is at hand.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from consilience.checks import AnyArray
from consilience.networks.entry_names import is_extra_state
from consilience.networks.weight_parts import (
    PARAMETRISATIONS,
    PartsOfWeight,
    SplitWeight,
    WeightParts,
    cast_as,
    is_same_weight,
    leading_singular_vectors,
    matrix_of,
    parts_with_weight,
    with_weights,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

_OF_TORCH = "torch.nn.utils.parametrizations"
_WEIGHT_NORM, _SPECTRAL_NORM, _ORTHOGONAL = "_WeightNorm", "_SpectralNorm", "_Orthogonal"
"""Classes of torch's parametrisations, in its module of that name."""
_LOADS_PARTS = "SpectralNormLoadStateDictPreHook"
"""Class of torch that reads parts of spectral normalisation, also those of early versions."""
_HOOKS: Mapping[tuple[str, str], tuple[Any, tuple[str, ...]]] = {
    ("torch.nn.utils.weight_norm", "WeightNorm"): ("weight_norm", ("_g", "_v")),
    ("torch.nn.utils.spectral_norm", "SpectralNorm"): ("spectral_norm", ("_orig", "_u", "_v")),
    ("torch.nn.utils.prune", "BasePruningMethod"): ("mask", ("_orig", "_mask")),
}
"""The formula and the ends of the names of the parts, by the class of torch whose hook computes a weight."""


@dataclass(frozen=True, eq=False)
class ListParts:
    """Parts of a weight that the modules of a parametrisation combine one after another."""

    name: str  # name of the weight
    names: tuple[str, ...]  # names of its parts, in the order of the state dict of `parametrisation`
    parametrisation: Any  # computes the weight; it is copied, never changed

    def combine(self, arrays: Mapping[str, AnyArray]) -> AnyArray:
        """Return the weight that the parts stand for in evaluation mode."""
        import torch

        with torch.no_grad():
            return cast_as(self._filled(arrays)(), arrays[self.names[0]])

    def split(self, weight: AnyArray, likes: Sequence[Mapping[str, AnyArray]]) -> SplitWeight | None:
        """Return parts that stand for a weight, or for the nearest one that torch's own parametrisations have.

        None where a parametrisation of the user's own has no ``right_inverse`` that gives the weight back.
        """
        import torch

        if (own := parts_with_weight(self, weight, likes)) is not None:
            return own
        like = likes[0]
        filled = self._filled(like)
        originals = [*filled.parameters(recurse=False), *filled.buffers(recurse=False)]
        wanted = torch.as_tensor(weight).detach().to(originals[0])
        try:
            with torch.no_grad():
                _assign(filled, originals, wanted)
                got = filled()
        except Exception:  # whatever a parametrisation of the user's own raises for a weight that it cannot be
            return None
        is_exact, note = is_same_weight(cast_as(got, weight), weight), ""
        if not is_exact and not self._is_of_torch:
            return None
        if not is_exact:
            distance = float((got - wanted).norm() / wanted.norm())
            kinds = ", ".join(type(step).__name__.lstrip("_") for step in filled)
            note = f"{self.name}: the nearest weight that {kinds} gives, {distance:.2g} of its norm away"
        state = zip(self.names, filled.state_dict().values(), strict=True)
        return SplitWeight({name: cast_as(values, like[name]) for name, values in state}, note, is_exact)

    @property
    def _is_of_torch(self) -> bool:
        """Whether all modules are torch's own."""
        return all(type(step).__module__ == _OF_TORCH for step in self.parametrisation)

    def _filled(self, arrays: Mapping[str, AnyArray]) -> Any:
        """Return a copy of the parametrisation with other parts, in evaluation mode; torch's own ones in float64."""
        import torch

        filled = copy.deepcopy(self.parametrisation).eval()
        for name, values in zip(self.names, filled.state_dict(keep_vars=True).values(), strict=True):
            values.data = torch.as_tensor(arrays[name]).detach().to(values.device).clone()
        return filled.cpu().double() if self._is_of_torch else filled


def _assign(parametrisation: Any, originals: Sequence[Any], weight: Any) -> None:
    """Set the parts of a parametrisation such that it gives a weight, or the nearest one."""
    value = weight
    for step in reversed(list(parametrisation)):
        kind = type(step).__name__ if type(step).__module__ == _OF_TORCH else ""
        if kind == _ORTHOGONAL:
            value = _orthogonal_part(step, value)
        elif kind == _SPECTRAL_NORM and value.ndim > 1:
            _, left, right = leading_singular_vectors(matrix_of(value.numpy(), step.dim))
            step._u, step._v = value.new_tensor(left), value.new_tensor(right)
        else:
            value = step.right_inverse(value)
    parts = [value] if parametrisation.is_tensor else value
    for original, part in zip(originals, parts, strict=True):
        original.data = part.clone()


def _orthogonal_part(parametrisation: Any, matrices: Tensor) -> Tensor:
    """Return the part X of torch's Q = B F(X) for the orthogonal matrices Q nearest to given ones (..., n, k).

    B (n, n) is set where the parametrisation has one ("trivialised", as by default): B = [Q, complement] and F(X) = I.
    Raises what torch raises for the matrix exponential and the Cayley transform without B.
    """
    import torch

    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    nearest = left @ right  # the polar factor
    parametrisation.shape = nearest.shape
    if not hasattr(parametrisation, "base"):
        part: Tensor = parametrisation.right_inverse(nearest)
        return part
    tall = nearest.mT if nearest.shape[-2] < nearest.shape[-1] else nearest  # (..., n, k)
    # torch's own inverse draws the complement at random.
    complement = torch.linalg.svd(tall, full_matrices=True)[0][..., tall.shape[-1] :]
    parametrisation.base = torch.cat([tall, complement], dim=-1)
    # The diagonal of X are the signs of Householder reflections, and counts for nothing in the other maps.
    identity = nearest.new_zeros(nearest.shape)
    identity.diagonal(dim1=-2, dim2=-1).fill_(-1.0)
    return identity


def parts_of_module(module: nn.Module) -> list[PartsOfWeight]:
    """Return the parts of all weights of a module that its layers compute at every call, by their full names."""
    found: list[PartsOfWeight] = []
    for path, layer in module.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        for name, parametrisation in _parametrisations(layer).items():
            found.append(_parts_of_list(prefix, name, parametrisation))
        for name, hook in _weight_hooks(layer):
            kind, ends = _HOOKS[_hook_class(hook)]  # type: ignore[index]  # of a hook that was found by it
            names = tuple(f"{prefix}{name}{end}" for end in ends)
            found.append(WeightParts(kind, f"{prefix}{name}", names, getattr(hook, "dim", None)))
    return found


def plain_module(module: nn.Module) -> nn.Module:
    """Return a copy of a module whose layers have their weights as parameters; the module itself where they do."""
    parts = parts_of_module(module)
    if not parts:
        return module
    weights = with_weights(module.state_dict(), parts)
    plain = copy_of_module(module)
    for path, layer in plain.named_modules():
        for name in [*_parametrisations(layer), *(name for name, _ in _weight_hooks(layer))]:
            _remove_parts(layer, name, weights[f"{path}.{name}" if path else name])
    return plain


def copy_of_module(module: nn.Module, memo: dict[int, Any] | None = None) -> Any:
    """Return a deep copy of a module; what layers have computed and keep, such as weights of hooks, is copied detached.

    `memo` has what stands in the copy for objects of the module, by their identity.
    """
    import torch

    memo = {} if memo is None else memo
    for layer in module.modules():
        for value in vars(layer).values():
            for tensor in value if isinstance(value, list | tuple) else (value,):
                if isinstance(tensor, torch.Tensor) and not tensor.is_leaf:
                    memo.setdefault(id(tensor), tensor.detach().clone())
    return copy.deepcopy(module, memo)


@dataclass(frozen=True)
class StoredArrays:
    """A network as its state dict has it, with the parts of parametrised layers."""

    arrays: Mapping[str, AnyArray]  # by name
    dissolved: tuple[str, ...] = ()  # names of weights that no parts stand for, which are weights in `arrays`
    changed: tuple[str, ...] = ()  # names of weights whose parts stand for the nearest weight only
    notes: tuple[str, ...] = ()  # what should be known of parts, a sentence each


@dataclass(frozen=True, eq=False)
class Parametrised:
    """The parametrised layers of a network that others of its architecture are written like."""

    parts: tuple[PartsOfWeight, ...]  # parts of its weights; those of parts last
    arrays: Mapping[str, AnyArray]  # its state dict
    # Its module. Default: None, for a state dict or file.
    module: nn.Module | None = None
    # State dicts of other networks with the same parts, which are taken where their weights are.
    others: tuple[Mapping[str, AnyArray], ...] = ()

    @classmethod
    def of_module(cls, module: nn.Module) -> Parametrised | None:
        """Return the parametrised layers of a module; None where it has none."""
        parts = parts_of_module(module)
        if not parts:
            return None
        state = {name: values for name, values in module.state_dict().items() if not is_extra_state(name)}
        return cls(tuple(parts), state, module)

    def renamed(self, names: Mapping[str, str]) -> Parametrised:
        """Return the same layers by other names: `names` has those of the arrays of the plain network by the own ones.

        Parts are in the layers of their weights, whose paths change as in the names of the weights.
        """
        paths = {own.rpartition(".")[0]: name.rpartition(".")[0] for own, name in names.items()}
        parts: list[Any] = list(self.parts)  # all are dataclasses, as their protocol cannot say
        parts = [
            replace(one, name=_moved(one.name, paths), names=tuple(_moved(name, paths) for name in one.names))
            for one in parts
        ]
        arrays = {_moved(name, paths): values for name, values in self.arrays.items()}
        return replace(self, parts=tuple(parts), arrays=arrays)

    def beside(self, networks: Sequence[Parametrised | None]) -> Parametrised:
        """Return the same layers with other networks whose parts may be taken."""
        names = {name for parts in self.parts for name in parts.names if name in self.arrays}
        others = (network.arrays for network in networks if network is not None and network is not self)
        return replace(self, others=tuple(arrays for arrays in others if names <= set(arrays)))

    def stored(self, plain: Mapping[str, AnyArray]) -> StoredArrays:
        """Return the arrays of a network as a state dict like this one's, in its order where all parts are found."""
        likes = [dict(arrays) for arrays in (self.arrays, *self.others)]
        for parts in self.parts:  # of parts of parts, those of the first ones are given by name
            for like in likes:
                like[parts.name] = parts.combine(like)
        arrays, split_weights, dissolved = dict(plain), {}, []
        for parts in reversed(self.parts):
            if parts.name not in arrays:
                continue
            split = parts.split(arrays[parts.name], likes)
            if split is None:
                dissolved.append(parts.name)
                continue
            del arrays[parts.name]
            arrays |= split.parts
            split_weights[parts.name] = split
        ordered = {name: arrays[name] for name in self.arrays if name in arrays}
        notes = [split.note for split in reversed(split_weights.values()) if split.note]
        notes += [f"{name}: a plain weight, since its parametrisation has no inverse for it" for name in dissolved]
        changed = tuple(name for name, split in split_weights.items() if not split.is_exact)
        return StoredArrays({**ordered, **arrays}, tuple(dissolved), changed, tuple(notes))

    def rebuilt(self, stored: StoredArrays) -> nn.Module:
        """Return a module like this one whose layers have parts as `stored` has them; their values are not set."""
        assert self.module is not None  # noqa: S101  (asked of modules only)
        if not stored.dissolved:
            return self.module
        module = copy_of_module(self.module)
        for name in stored.dissolved:
            path, _, last = name.rpartition(".")
            layer = module.get_submodule(path)
            if last not in layer._parameters:  # a layer under two paths is mended once
                _remove_parts(layer, last, stored.arrays[name])
        return module


def _moved(name: str, paths: Mapping[str, str]) -> str:
    """Return a name with the new path of the innermost layer that is in `paths`, new ones by the own ones."""
    path = name
    while path and (path := path.rpartition(".")[0]) not in paths:
        pass
    if path not in paths:
        return name
    rest = name.removeprefix(f"{path}.") if path else name
    return f"{paths[path]}.{rest}" if paths[path] else rest


def set_hooked_weights(module: nn.Module) -> None:
    """Compute the weights that hooks compute before each call, so that they are right before the first one."""
    state = dict(module.state_dict())
    for parts in parts_of_module(module):
        path, _, last = parts.name.rpartition(".")
        layer = module.get_submodule(path)
        if last in vars(layer):
            setattr(layer, last, parts.combine(state))


def _parametrisations(layer: nn.Module) -> Mapping[str, Any]:
    """Return the parametrisations of a layer by the name of the array."""
    if not type(layer).__name__.startswith("Parametrized"):
        return {}
    lists = dict(layer.named_children()).get("parametrizations")
    return dict(lists.items()) if type(lists).__name__ == "ModuleDict" else {}  # type: ignore[union-attr, operator]


def _parts_of_list(prefix: str, name: str, parametrisation: Any) -> PartsOfWeight:
    """Return the parts of an array that a parametrisation computes; `prefix` is the path of its layer with a dot."""
    weight, start = f"{prefix}{name}", f"{prefix}{PARAMETRISATIONS}{name}."
    first: Any = parametrisation[0]
    only = type(first).__name__ if len(parametrisation) == 1 and type(first).__module__ == _OF_TORCH else ""
    if only == _WEIGHT_NORM:
        return WeightParts("weight_norm", weight, (f"{start}original0", f"{start}original1"))
    if only == _SPECTRAL_NORM and parametrisation.original.ndim > 1:
        names = (f"{start}original", f"{start}0._u", f"{start}0._v")
        return WeightParts("spectral_norm", weight, names, first.dim)
    return ListParts(weight, tuple(f"{start}{key}" for key in parametrisation.state_dict()), parametrisation)


def _weight_hooks(layer: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the hooks of torch that compute a weight before each call, with the name of the weight."""
    for hook in layer._forward_pre_hooks.values():
        if _hook_class(hook) is not None:
            yield str(getattr(hook, "_tensor_name", getattr(hook, "name", None))), hook


def _hook_class(hook: object) -> tuple[str, str] | None:
    """Return the key of a hook in the table of those that compute weights."""
    keys = ((base.__module__, base.__name__) for base in type(hook).__mro__)
    return next((key for key in keys if key in _HOOKS), None)


def _remove_parts(layer: Any, name: str, weight: Any) -> None:
    """Give a layer a weight as its parameter, instead of the parts that it computes it from."""
    import torch
    from torch.nn.utils import prune, remove_spectral_norm, remove_weight_norm

    of_hooks = {hooked: _HOOKS[_hook_class(hook)][0] for hooked, hook in _weight_hooks(layer)}  # type: ignore[index]
    if name in of_hooks:
        parts = [values for key, values in layer.named_parameters(recurse=False) if key.startswith(f"{name}_")]
        requires_grad = any(values.requires_grad for values in parts)
        norms: dict[str, Any] = {"weight_norm": remove_weight_norm, "spectral_norm": remove_spectral_norm}
        remove = {**norms, "mask": prune.remove}
        remove[of_hooks[name]](layer, name)
        # torch leaves what loads the parts of spectral normalisation, which takes the weight out of state dicts.
        loading = layer._load_state_dict_pre_hooks
        for key in [key for key, hook in loading.items() if type(getattr(hook, "hook", hook)).__name__ == _LOADS_PARTS]:
            del loading[key]
        setattr(layer, name, torch.nn.Parameter(weight, requires_grad=requires_grad))
        return
    originals = list(layer.parametrizations[name].parameters(recurse=False))
    del layer.parametrizations[name]
    # torch computes the weight by a property of a class that copies of the layer share; the copy gets one of its own.
    of_layer = type(layer)
    if len(layer.parametrizations):
        kept = {key: value for key, value in vars(of_layer).items() if key not in (name, "__dict__", "__weakref__")}
        layer.__class__ = type(of_layer.__name__, of_layer.__bases__, kept)
    else:
        del layer.parametrizations
        layer.__class__ = of_layer.__bases__[0]
    if originals:
        requires_grad = any(values.requires_grad for values in originals)
        setattr(layer, name, torch.nn.Parameter(weight, requires_grad=requires_grad))
    else:
        layer.register_buffer(name, weight)
