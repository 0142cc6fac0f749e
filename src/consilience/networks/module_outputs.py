"""What a module answers, of what it returns.

Models of transformers return an object: logits beside a cache of keys and values, and hidden states on request. Only
the logits, or the last hidden state of a model without a head, are its answer. Whoever traces a module, describes it,
compares it, distils it or asks an ensemble reads its output here.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from consilience.errors import InputError

ANSWERS = ("logits", "last_hidden_state")
"""What a model of transformers is asked for, the first that an output has: "logits", "start_logits",
"logits_per_image" and the like of those with a head, "last_hidden_state" of those without."""


_CHOSEN = "_consilience_output"
"""Attribute of a module under which its caller said which of its outputs is meant; copies of the module keep it."""


def with_output(module: Any, output: str | int | None) -> Any:
    """Return a module that answers the output of this name, or of this place in a tuple, alone.

    It shares its parameters with the module, which is left as it is. None changes nothing.
    """
    if output is None or module is None:
        return module
    chosen = copy.copy(module)
    vars(chosen)[_CHOSEN] = output
    return chosen


def answer_of(output: Any, module: nn.Module | None = None) -> Any:
    """Return what a module answers, of what it returns: logits of an object that has caches and states beside them.

    Where the caller said which output of the `module` is meant (`with_output`) that is it.

    Tensors, and lists and tuples of them, are returned as they are; of a tensor beside tuples of states, as recurrent
    networks return, it is that tensor. Of a mapping, a dataclass or any other object with
    tensors as attributes, these are the tensors whose names have "logits" as a word, else "last_hidden_state", else all
    that it has of itself (those inside of further objects, such as a cache, are not its own).

    Examples
    --------
    >>> import torch
    >>> answer_of({"logits": torch.ones(2), "past_key_values": object()})
    {'logits': tensor([1., 1.])}
    """
    chosen: str | int | None = None if module is None else vars(module).get(_CHOSEN)
    if chosen is not None:
        return _named_output(output, chosen)
    if isinstance(output, list | tuple):
        parts = [part for part in output if isinstance(part, Tensor)]
        return parts[0] if len(parts) == 1 else output
    return output if isinstance(output, Tensor) or output is None else _named_answer(output)


def _named_output(output: Any, chosen: str | int) -> Any:
    """Return one output by its name, or by its place in a tuple; raise InputError where there is none."""
    if isinstance(output, list | tuple):
        named: Mapping[Any, Any] = dict(enumerate(output))
    else:
        named = output if isinstance(output, Mapping) else getattr(output, "__dict__", {})
    if chosen not in named:
        tensors = [str(name) for name, value in named.items() if isinstance(value, Tensor)]
        listed = ", ".join(tensors) or type(output).__name__
        raise InputError("output", f"the networks return no {chosen!r}", f"choose one of: {listed}", "E-NEEDED")
    return named[chosen]


def _named_answer(output: Any) -> Any:
    """Return what a mapping or an object with tensors as attributes answers."""
    named = output if isinstance(output, Mapping) else getattr(output, "__dict__", {})
    tensors = {str(name): value for name, value in named.items() if isinstance(value, Tensor)}
    for answer in ANSWERS:
        if answers := {name: value for name, value in tensors.items() if f"_{answer}_" in f"_{name}_"}:
            return answers
    if isinstance(output, Mapping):  # of tensors in lists, say, which the exporter takes
        return dict(output)
    return tensors or output


def answer_tensor(output: Any, module: nn.Module | None = None) -> Any:
    """Return the one tensor that a module answers; of several, or none, what it answers as it is.

    Examples
    --------
    >>> import torch
    >>> state = torch.zeros(1)
    >>> answer_tensor({"logits": torch.ones(2), "hidden_states": state}), answer_tensor((torch.ones(2), (state, state)))
    (tensor([1., 1.]), tensor([1., 1.]))
    """
    answer = answer_of(output, module)
    if not isinstance(answer, Mapping):
        return answer
    tensors = [part for part in answer.values() if isinstance(part, Tensor)]
    return tensors[0] if len(tensors) == 1 else answer


def ask(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Return what a module answers to the arguments of a call; see `answer_tensor`."""
    return answer_tensor(module(*args, **kwargs), module)


def form_of(answer: Any) -> str:
    """Return what an answer is, for messages: the shape of a tensor, the names or number of several, a class.

    Examples
    --------
    >>> import torch
    >>> form_of(torch.ones(2, 3)), form_of((torch.ones(2), torch.ones(2)))
    ('shape (2, 3)', '2 outputs')
    """
    if isinstance(answer, Tensor):
        return f"shape {tuple(answer.shape)}"
    if isinstance(answer, Mapping) and answer:
        return f"{len(answer)} outputs: {', '.join(map(str, answer))}"
    return f"{len(answer)} outputs" if isinstance(answer, list | tuple) else type(answer).__name__
