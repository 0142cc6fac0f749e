"""Stochastic gradient descent with momentum, with iterate averaging: the published solver of self-supervised Fisher.

    v = momentum v + gradient,    theta = theta - rate v,

on an objective whose masks may be drawn anew in every step. Masks make the iterates stochastic, so the last ones may be
averaged. Steps that diverge are an error.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from consilience.checks import Array
from consilience.core.progress import Progress
from consilience.errors import OptionError
from consilience.networks.methods.fisher.masked_objective import MaskedObjective

DIVERGENCE_FACTOR = 1e6
"""An objective beyond this multiple of 1 + |its first value| has diverged. Chosen by hand; nobody has
measured other values."""

MIN_RELATIVE_STEP = 1e-6
"""A step shorter than this fraction of the iterate's length ends the descent. Chosen by hand; nobody has measured other
values."""

MAX_LATE_DECREASE = 0.01
"""The descent has settled if the objective fell in its last tenth by no more than this fraction of its whole range.
Chosen by hand; nobody has measured other values."""


def stochastic_descent(
    objectives: Callable[[], MaskedObjective],
    start: Array,
    rate: float,
    momentum: float,
    steps: int,
    averaged: float,
    progress: Progress,
) -> tuple[Array, Array, bool]:
    """Return the end of a descent, the objective of every step with its own masks, and whether it has settled.

    The objective may rise from one step to the next, because masks differ and because momentum overshoots.

    Parameters
    ----------
    objectives : callable
        Returns the objective of a step.
    start : ndarray of shape (P,)
        Initial parameters.
    rate, momentum : float
        Learning rate and momentum.
    steps : int
        Steps at most.
    averaged : float
        Fraction of the steps, the last ones, whose iterates are averaged; 0 takes the last.
    progress : callable
        Called with (steps done, steps at most).

    Returns
    -------
    theta : ndarray of shape (P,)
        The last or the averaged parameters.
    history : ndarray of shape (n_steps,)
        The objective of every step, at its start.
    has_settled : bool
        Whether the objective no longer fell by much.

    Raises
    ------
    OptionError
        When the steps diverge.
    """
    theta, velocity, iterate_sum, n_summed = start.copy(), np.zeros_like(start), np.zeros_like(start), 0
    history: list[float] = []
    for step in range(steps):
        value, gradient = objectives().value_and_gradient(theta)
        history.append(value)
        velocity = momentum * velocity + gradient
        change = rate * velocity
        theta = theta - change
        if not np.isfinite(value) or abs(value) > DIVERGENCE_FACTOR * (1.0 + abs(history[0])):
            raise OptionError("learning_rate", f"steps of rate {rate:.3g} diverge after {step + 1}", "give a lower one")
        # Averages over steps cancel the noise of fresh masks; the first steps, far from the minimum, are left out.
        if step >= steps * (1.0 - averaged):
            iterate_sum, n_summed = iterate_sum + theta, n_summed + 1
        progress(step + 1, steps)
        if np.linalg.norm(change) < MIN_RELATIVE_STEP * np.linalg.norm(theta):
            break
    return (iterate_sum / n_summed if n_summed else theta), np.array(history), _has_settled(history, steps)


def _has_settled(history: list[float], steps: int) -> bool:
    """Return whether the objective fell little in the last tenth of its steps, compared with the tenth before."""
    if len(history) < steps:  # it ended early, where steps got short
        return True
    # Means over tenths, since single values differ with their masks.
    tenth = max(1, steps // 10)
    before, last = np.mean(history[-2 * tenth : -tenth] or history[:1]), np.mean(history[-tenth:])
    return bool(before - last <= MAX_LATE_DECREASE * (max(history) - min(history)))
