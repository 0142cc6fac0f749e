"""Stochastic gradient descent with momentum on objectives that are drawn anew, the last iterates averaged."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from consilience.checks import Array
from consilience.core.progress import Progress
from consilience.errors import OptionError
from consilience.networks.methods.fisher.masked_objective import MaskedObjective


def descend(
    objectives: Callable[[], MaskedObjective],
    start: Array,
    rate: float,
    momentum: float,
    steps: int,
    averaged: float,
    progress: Progress,
) -> tuple[Array, Array, bool]:
    """Return where descent ends (P,), the objective of every step (steps,) with its own masks, and whether it settled.

    It may rise from one step to the next, for other masks and since momentum overshoots. Steps end early where the
    iterate moves by less than 1e-6 of its length.

    Parameters
    ----------
    objectives
        Gives the objective of a step.
    start
        Where to begin (P,).
    rate, momentum
        v = momentum v + gradient; theta = theta - rate v.
    steps
        Steps at most.
    averaged
        Part of the steps, the last ones, whose iterates are averaged; 0 takes the last.
    progress
        Told about steps.

    Raises
    ------
    OptionError
        When the steps diverge.
    """
    theta, speed, total, counted = start.copy(), np.zeros_like(start), np.zeros_like(start), 0
    history: list[float] = []
    for step in range(steps):
        value, gradient = objectives().value_and_gradient(theta)
        history.append(value)
        speed = momentum * speed + gradient
        moved = rate * speed
        theta = theta - moved
        if not np.isfinite(value) or abs(value) > _FAR * (1.0 + abs(history[0])):
            raise OptionError(f"learning_rate: steps of rate {rate:.3g} diverge after {step + 1}; give a lower one")
        if step >= steps * (1.0 - averaged):
            total, counted = total + theta, counted + 1
        progress(step + 1, steps)
        if np.linalg.norm(moved) < _STILL * np.linalg.norm(theta):
            break
    return (total / counted if counted else theta), np.array(history), _settled(history, steps)


_FAR, _STILL, _LEVEL = 1e6, 1e-6, 0.01


def _settled(history: list[float], steps: int) -> bool:
    """Return whether the objective fell in its last tenth by no more than a hundredth of what it fell in all."""
    if len(history) < steps:
        return True
    tenth = max(1, steps // 10)
    before, last = np.mean(history[-2 * tenth : -tenth] or history[:1]), np.mean(history[-tenth:])
    return bool(before - last <= _LEVEL * (max(history) - min(history)))
