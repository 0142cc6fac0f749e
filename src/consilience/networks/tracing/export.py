"""Calling a module with an example, and exporting it to a graph of operations."""

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


@dataclass(frozen=True)
class Example:
    """What a module is called with: positional and keyword arguments."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None

    def call(self, module: nn.Module) -> Any:
        """Return what the module makes of it."""
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
    """Put a module into evaluation mode for a while."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter from telling of its own workings; its errors are told by ours."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        # Where it fails, it prints the graph.
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def export(module: nn.Module, example: Example) -> torch.export.ExportedProgram:
    """Return the graph of operations of a module.

    Raises
    ------
    InputError
        If the module cannot be called with the example.
    UnsupportedError
        If what it does depends on the numbers that it is given, or on things outside of it.
    """
    with evaluating(module), _quiet():
        try:
            return torch.export.export(module, example.args, dict(example.kwargs or {}), strict=False)
        except Exception as error:
            try:
                example.call(module)
            except Exception as own:
                raise InputError(
                    f"example: {type(module).__name__} cannot be called with it ({_line(own)}); "
                    "give a tensor, a tuple of arguments or a dict of keyword arguments"
                ) from error
            raise UnsupportedError(
                f"{type(module).__name__} cannot be exported ({_line(error)}); write its forward without decisions "
                "that depend on the numbers in tensors, or give its symmetry as a file"
            ) from error


def _line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
