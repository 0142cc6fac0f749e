"""What the command is told of networks beside their files: modules to import, examples.

Importing a module runs its code. So it happens for names on the command line only, never for what a file says.
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
from consilience.networks.torch_modules import is_module

if TYPE_CHECKING:
    from torch import Tensor, nn

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_WHOLES = ("int64", "int32", "bool")
_LARGEST = 2**28
"""Entries that an example may have; a network that needs more is not asked for by a typing error."""


def import_module(text: str, option: str) -> nn.Module:
    """Return the torch module that ``PKG.MOD:CALLABLE`` names: an instance, or what the callable makes.

    The current folder is looked in first, as ``python -m`` does.

    Parameters
    ----------
    text
        Module's name, a colon, and the name in it: a torch module, its class, or a function without arguments.
    option
        What the user wrote it under, for messages.

    Raises
    ------
    OptionError
        Saying what cannot be imported, found or called, or is no torch module.
    """
    import torch

    # The weights that it starts with are proved on, and the proof is in the file: the same seed, the same bytes.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _imported(text, f"{option} {text}").eval()


def imported(text: str, said: str) -> Any:
    """Return what ``PKG.MOD:NAME`` names; importing it runs its code.

    Raises
    ------
    OptionError
        Saying what cannot be imported or found.
    """
    place, colon, name = text.partition(":")
    if not (place and colon and name):
        raise OptionError(f"{said}: expected PKG.MOD:CALLABLE, such as mypkg.nets:make_mlp")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(place)
    except (Exception, SystemExit) as error:  # whatever the code of the user's module raises
        raise OptionError(f"{said}: cannot be imported ({first_line(error)})") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise OptionError(f"{said}: {place} has no {name}")
        found = getattr(found, part)
    return found


def _imported(text: str, said: str) -> nn.Module:
    found = imported(text, said)
    if not is_module(found):
        if not callable(found):
            raise OptionError(f"{said}: is a {type(found).__name__}; expected a torch module or what makes one")
        try:
            found = found()
        except (Exception, SystemExit) as error:
            raise OptionError(f"{said}: cannot be called without arguments ({first_line(error)})") from error
    if not is_module(found):
        raise OptionError(f"{said}: gave a {type(found).__name__}; expected a torch module")
    module: nn.Module = found
    return module


def make_example(specs: Sequence[str], module: nn.Module | None) -> tuple[Tensor, ...]:
    """Return the arguments that SPECs describe, one each.

    Parameters
    ----------
    specs
        A shape such as ``1,784``, with a type such as ``int64:1,20``, or the path of a .npy file. Entries are drawn
        with a fixed seed: normal ones, or zeros and ones where they are whole numbers.
    module
        Whose precision is taken where none is said.

    Raises
    ------
    OptionError
        For a SPEC that is none of these.
    InputError
        When the module does not take the arguments.
    """
    rng = np.random.default_rng(0)
    made = tuple(_argument(spec, module, rng) for spec in specs)
    if module is not None:
        refuse_unfit(module, made, f"--example {' '.join(specs)}")
    return made


def _argument(spec: str, module: nn.Module | None, rng: np.random.Generator) -> Tensor:
    import torch

    if spec.endswith(".npy"):
        return as_tensor(read_array(Path(spec)), spec, module)
    kind, colon, shape_text = spec.rpartition(":")
    expected = f"--example {spec}: expected a shape such as 1,784 or int64:1,20, or a .npy file"
    try:
        shape = [int(part) for part in shape_text.split(",")]
    except ValueError as error:
        raise OptionError(expected) from error
    if min(shape) < 1 or np.prod(shape, dtype=np.float64) > _LARGEST:
        raise OptionError(f"{expected}; every axis has at least one entry, and all together at most {_LARGEST}")
    if colon and kind not in (*_FLOATS, *_WHOLES):
        raise OptionError(f"{expected}; types are {', '.join((*_FLOATS, *_WHOLES))}")
    if kind in _WHOLES:
        return torch.as_tensor(rng.integers(0, 2, shape)).to(getattr(torch, kind))
    dtype = getattr(torch, kind) if colon else precision_of(module)
    return torch.as_tensor(rng.standard_normal(shape)).to(dtype)
