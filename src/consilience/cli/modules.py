"""Torch modules and example inputs that the command line names.

Importing a module runs its code. So it happens for names on the command line only, never for a name in a file.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.errors import OptionError
from consilience.files.npy import read_array
from consilience.networks.module_inputs import as_tensor, first_line, precision_of, refuse_unfit
from consilience.networks.torch_modules import is_module, seeded_torch

if TYPE_CHECKING:
    from torch import Tensor, nn

_FLOAT_TYPES = ("float16", "bfloat16", "float32", "float64")
_INTEGER_TYPES = ("int64", "int32", "bool")
_MAX_EXAMPLE_ENTRIES = 2**28
"""Entries of an example at most, 1 GiB in float32, so that a mistyped shape does not exhaust memory. Chosen by hand."""


def import_module(text: str, option: str) -> nn.Module:
    """Return the torch module that ``PKG.MOD:CALLABLE`` names: an instance, or what the callable makes; in eval mode.

    The current folder is looked in first, as ``python -m`` does. The name in the Python module is that of a torch
    module, its class, or a function without arguments. Initial weights are drawn with seed 0, and torch's own generator
    is left as it was. Raises OptionError saying what cannot be imported, found or called, or is no torch module.
    """
    with seeded_torch():  # as in make_template
        return _make_module(text, f"{option} {text}").eval()


def import_object(text: str, argument: str) -> Any:
    """Return the object that ``PKG.MOD:NAME`` names; importing it runs its code.

    NAME is dotted for an attribute of an attribute; `argument` is what the user typed, with its option, for messages.
    Raises OptionError saying what cannot be imported or found.
    """
    module_name, colon, name = text.partition(":")
    if not (module_name and colon and name):
        raise OptionError(argument, "expected PKG.MOD:CALLABLE, such as mypkg.nets:make_mlp")
    current_folder = os.getcwd()
    if current_folder not in sys.path:
        sys.path.insert(0, current_folder)
    try:
        value: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever the code of the user's module raises
        raise OptionError(argument, f"cannot be imported ({first_line(error)})") from error
    for part in name.split("."):
        if not hasattr(value, part):
            raise OptionError(argument, f"{module_name} has no {name}")
        value = getattr(value, part)
    return value


def _make_module(text: str, argument: str) -> nn.Module:
    """Import what `text` names, and call it where it is not yet a torch module."""
    value = import_object(text, argument)
    if not is_module(value):
        if not callable(value):
            raise OptionError(argument, f"is a {type(value).__name__}; expected a torch module or what makes one")
        try:
            value = value()
        except (Exception, SystemExit) as error:
            raise OptionError(argument, f"cannot be called without arguments ({first_line(error)})") from error
    if not is_module(value):
        raise OptionError(argument, f"gave a {type(value).__name__}; expected a torch module")
    module: nn.Module = value
    return module


def make_example(specs: Sequence[str], module: nn.Module | None) -> tuple[Tensor, ...]:
    """Return example arguments of a module, one for each SPEC of ``--example``.

    A SPEC is a shape such as ``1,784``, with a type such as ``int64:1,20``, or the path of a .npy file. Entries are
    drawn with seed 0: standard normal, or zeros and ones where they are whole numbers. Without a type they have the
    module's precision. Raises OptionError for a SPEC that is none of these, and InputError when the module does not
    take the arguments.
    """
    rng = np.random.default_rng(0)
    arguments = tuple(_example_tensor(spec, module, rng) for spec in specs)
    if module is not None:
        refuse_unfit(module, arguments, f"--example {' '.join(specs)}")
    return arguments


def _example_tensor(spec: str, module: nn.Module | None, rng: np.random.Generator) -> Tensor:
    """Return the tensor that a SPEC describes: read from a .npy file, or drawn."""
    import torch

    if spec.endswith(".npy"):
        return as_tensor(read_array(Path(spec)), spec, module)
    type_name, colon, shape_text = spec.rpartition(":")
    message = f"--example {spec}: expected a shape such as 1,784 or int64:1,20, or a .npy file"
    try:
        shape = [int(part) for part in shape_text.split(",")]
    except ValueError as error:
        raise OptionError(message) from error
    if min(shape) < 1 or np.prod(shape, dtype=np.float64) > _MAX_EXAMPLE_ENTRIES:
        text = f"{message}; every axis has at least one entry, and all together at most {_MAX_EXAMPLE_ENTRIES}"
        raise OptionError(text)
    if colon and type_name not in (*_FLOAT_TYPES, *_INTEGER_TYPES):
        raise OptionError(f"{message}; types are {', '.join((*_FLOAT_TYPES, *_INTEGER_TYPES))}")
    if type_name in _INTEGER_TYPES:
        return torch.as_tensor(rng.integers(0, 2, shape)).to(getattr(torch, type_name))
    dtype = getattr(torch, type_name) if colon else precision_of(module)
    return torch.as_tensor(rng.standard_normal(shape)).to(dtype)
