"""Whether modules are of one architecture where the shapes of their arrays do not show it.

Attention of 4 heads and of 8 has the same arrays, and so have a network with ReLU and one with GELU, rotary positions
of base 1e4 and of 1e6. Their average is neither. Modules are compared part by part, by class and by what shapes no
array; models of transformers by their configurations, as checkpoints are before a merge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from consilience.errors import Problem
from consilience.files.configurations import WIDTHS, compare_configurations
from consilience.networks.torch_modules import layer_kinds

if TYPE_CHECKING:
    from torch import nn

    from consilience.networks.inputs import DescribedNetwork

_OF_PARTS = (
    "num_heads", "n_heads", "n_head", "num_attention_heads", "num_key_value_heads", "head_dim", "num_groups", "groups",
    "stride", "padding", "dilation", "padding_mode", "ceil_mode", "eps", "variance_epsilon", "norm_first", "mode",
    "scale_factor", "output_size", "activation", "activation_fn", "act", "rope_theta", "scaling", "is_causal", "causal",
    "start_dim",
)  # fmt: skip
"""Attributes of parts that shape no array and decide what the part computes, in torch and in transformers. Those of
activations and recurrent layers are in `layer_kinds`."""

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
        are_alike = _shapes_of(theirs) == _shapes_of(ours)
        for name in _OF_PARTS if are_alike else ():
            values = _value_of(theirs, name), _value_of(ours, name)
            if None not in values and values[0] != values[1]:
                yield f"{path}.{name}".lstrip("."), str(values[0]), str(values[1])


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
