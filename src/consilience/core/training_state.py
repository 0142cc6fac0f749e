"""Training states handed in as models: checkpoint dictionaries, and states of optimisers."""

from __future__ import annotations

from collections.abc import Mapping

from consilience.errors import Problem

_MODULE_REMEDY = "hand in the module, or `module.state_dict()`"


def training_state_problem(model: object) -> Problem | None:
    """Return that an object is a checkpoint dictionary or an optimiser, and what of it to hand in; None for others.

    Examples
    --------
    >>> training_state_problem({"state": {}, "param_groups": []}).text
    'is the state of an optimiser, not of a model'
    """
    if isinstance(model, Mapping):
        for key, value in model.items():
            if _is_state_dict(value) and not str(key).startswith(("optim", "opt_", "sched")):
                text = f"is a training checkpoint, whose weights are under {key!r}"
                return Problem("", text, f"hand in checkpoint[{key!r}]", "E-MODEL")
        if "param_groups" in model:
            return Problem("", "is the state of an optimiser, not of a model", _MODULE_REMEDY, "E-MODEL")
    elif hasattr(model, "param_groups") and hasattr(model, "zero_grad"):
        return Problem("", f"is an optimiser ({type(model).__name__}), not a model", _MODULE_REMEDY, "E-MODEL")
    return None


def _is_state_dict(value: object) -> bool:
    """Return whether a value is a mapping of names to tensors."""
    return isinstance(value, Mapping) and any(
        isinstance(name, str) and hasattr(tensor, "is_floating_point") for name, tensor in value.items()
    )
