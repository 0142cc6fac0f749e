"""Export of modules to graphs of ATen operations.

`torch.export` in its non-strict mode follows what the module computes on an example, whatever its code looks like. It
fails where the path depends on the numbers in tensors; the error then tells a module that cannot be exported from an
example that does not fit.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any

import torch
from torch import nn

from consilience.errors import InputError, UnsupportedError

MAX_QUOTED_CHARACTERS = 200
"""Characters of another library's message that ours quote. Chosen by hand, for legible messages."""


@dataclass(frozen=True)
class Example:
    """Example input of a module: positional and keyword arguments."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None

    def call(self, module: nn.Module) -> Any:
        """Return the output of the module."""
        return module(*self.args, **(self.kwargs or {}))


def as_example(example: Any) -> Example:
    """Return an example input as arguments: a tensor, a tuple of arguments, or a dict of keyword arguments."""
    if isinstance(example, Example):
        return example
    if isinstance(example, Mapping):
        return Example(kwargs=dict(example))
    return Example(tuple(example) if isinstance(example, tuple | list) else (example,))


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode, without gradients, for a while."""
    modes = [(submodule, submodule.training) for submodule in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for submodule, training in modes:
            submodule.training = training


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter: logs, warnings and the graph that it prints on failure; our errors quote its own."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def export(module: nn.Module, example: Example) -> torch.export.ExportedProgram:
    """Return the graph of ATen operations of a module in evaluation mode.

    Raises
    ------
    InputError
        If the module cannot be called with the example.
    UnsupportedError
        If what it computes depends on the numbers in its inputs, or on things outside of it.
    """
    with evaluating(module), _quiet():
        try:
            return torch.export.export(module, example.args, dict(example.kwargs or {}), strict=False)
        except Exception as error:
            try:
                example.call(module)
            except Exception as call_error:
                raise InputError(
                    "example",
                    f"{type(module).__name__} cannot be called with it ({_summary(call_error)})",
                    "give a tensor, a tuple of arguments or a dict of keyword arguments",
                ) from error
            raise UnsupportedError(
                f"{type(module).__name__} cannot be exported ({_summary(error)}); write its forward without decisions "
                "that depend on the numbers in tensors, or give its symmetry as a file"
            ) from error


def _summary(error: BaseException) -> str:
    """Return the first line of an error's message, shortened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:MAX_QUOTED_CHARACTERS] if lines else type(error).__name__
