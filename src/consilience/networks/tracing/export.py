"""Export of modules to graphs of ATen operations.

`torch.export` in its non-strict mode follows what the module computes on an example, whatever its code looks like. It
fails where the path depends on the numbers in tensors; the error then tells a module that cannot be exported from an
example that does not fit.

Only what a model answers is its output here (`module_outputs.answer_of`). A cache moves with the heads, and the
encoder's last states with the residual stream; as outputs, which never move, they would fix both.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import wraps
from io import StringIO
from typing import Any

import torch
from torch import nn

from consilience.errors import InputError, UnsupportedError
from consilience.networks.example import Example
from consilience.networks.module_inputs import MAX_QUOTED_CHARACTERS
from consilience.networks.module_outputs import answer_of
from consilience.networks.torch_modules import evaluating, is_scripted


@contextmanager
def _answering(module: nn.Module) -> Iterator[None]:
    """Let a module return what it answers alone, for a while; names of its parameters stay as they are."""
    forward = module.forward

    @wraps(forward)
    def answering(*args: Any, **kwargs: Any) -> Any:
        return answer_of(forward(*args, **kwargs), module)

    had_own_forward = "forward" in vars(module)
    module.forward = answering
    try:
        yield
    finally:
        if had_own_forward:
            module.forward = forward
        else:
            del module.forward


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

    Raises InputError if the module cannot be called with the example, and UnsupportedError if what it computes depends
    on the numbers in its inputs, or on things outside of it.
    """
    if is_scripted(module):
        text = "give the module that it was scripted from; method 'average' without `example=` needs no tracing"
        raise UnsupportedError(type(module).__name__, "a TorchScript module cannot be traced", text, "E-TRACE")
    with evaluating(module), _quiet():
        try:
            with _answering(module):
                return torch.export.export(module, example.args, dict(example.kwargs or {}), strict=False)
        except Exception as error:
            try:  # whether the example is at fault, or the module
                example.call(module)
            except Exception as call_error:
                text = f"{type(module).__name__} cannot be called with it ({_summary(call_error)})"
                remedy = "give a tensor, a tuple of arguments or a dict of keyword arguments"
                raise InputError("example", text, remedy) from error
            text = f"{type(module).__name__} cannot be exported ({_summary(error)})"
            remedy = "write its forward without decisions that depend on the numbers in tensors"
            raise UnsupportedError("", text, f"{remedy}, or give its symmetry as a file", "E-TRACE") from error


def _summary(error: BaseException) -> str:
    """Return the first line of an error's message, shortened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:MAX_QUOTED_CHARACTERS] if lines else type(error).__name__
