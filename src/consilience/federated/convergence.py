"""Convergence of rounds: the change of the fused model from one round to the next.

    change = |theta_new - theta_old| / |theta_old|,      divergence = mean over components of KL(new || matched old)

with theta all parameters. Fused components of a posterior have no fixed order, so they are matched first: the
assignment of least total divergence. Networks are compared in place, since sites went on from one fused network. Where
shapes differ, or a family, there is no change to state (None).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from consilience.api.kinds import ADAPTERS, BAYESIAN, DRAWS, ESTIMATORS, POSTERIORS, kind_of_file
from consilience.checks import Array, Json
from consilience.draws.files import read_draws
from consilience.estimators.files import read_statistics
from consilience.networks.files import read_weights
from consilience.networks.gaussian.file_format import read_bayesian
from consilience.posteriors.files import read_posterior
from consilience.posteriors.posterior import Posterior


def change_between(before: Path | None, after: Path, objective: float) -> dict[str, Any]:
    """Return how a round's fused model differs from that of the round before.

    The arguments are files (`before` None in the first round) and the method's final objective, NaN where it has none.
    In the answer ``change`` is the Euclidean norm of the difference of all parameters relative to that of the
    parameters before, None where they are not of one shape; posteriors have ``divergence``, the mean over components of
    the divergence from the matched one before, in nats, and ``components``.
    """
    convergence: dict[str, Json] = {"objective": objective if math.isfinite(objective) else None, "change": None}
    kind = kind_of_file(after)
    if kind is POSTERIORS:
        new = read_posterior(after)[0]
        convergence["components"] = new.n_components
        return convergence if before is None else {**convergence, **_compare_posteriors(read_posterior(before)[0], new)}
    if kind is ESTIMATORS:
        convergence["components"] = read_statistics(after)[0].n_components
    if before is None or (arrays := _arrays_of(kind, before, after)) is None:
        return convergence
    # Only floating-point arrays: counters and buffers of integers are no parameters.
    values = [
        (_floats(old.get(name)), _floats(new[name])) for old, new in arrays for name in new if _floats(new[name]).size
    ]
    if any(old.shape != new.shape for old, new in values):
        return convergence
    return {**convergence, "change": _relative_change(values)}


def _arrays_of(kind: Any, before: Path, after: Path) -> list[tuple[Any, Any]] | None:
    """Return the arrays of two models by name, in pairs of mappings; None where they have other names."""
    if kind is ADAPTERS:  # whose stacked ranks differ from round to round
        return None
    if kind is BAYESIAN:
        old, new = read_bayesian(before), read_bayesian(after)
        # Means and variances are as many numbers, compared as one vector.
        return [(old.means, new.means), (old.variances, new.variances)]
    if kind is DRAWS:  # draws of two rounds have an order of their own each, so that their means are compared
        before_arrays, after_arrays = (
            {name: np.atleast_1d(v.mean(axis=(0, 1))) for name, v in read_draws(path)[0].variables.items()}
            for path in (before, after)
        )
    elif kind is ESTIMATORS:
        before_arrays, after_arrays = (dict(read_statistics(path)[0].tensors()) for path in (before, after))
    else:
        return [(read_weights(before).arrays, read_weights(after).arrays)]
    return [(before_arrays, after_arrays)] if before_arrays.keys() == after_arrays.keys() else None


def _compare_posteriors(old: Posterior, new: Posterior) -> dict[str, Any]:
    """Return the mean divergence of matched components, and the relative change where their numbers agree."""
    if old.family != new.family:
        return {}
    divergences = new.family.kl(new.natural, old.natural)  # (G_new, G_old)
    rows, columns = linear_sum_assignment(divergences)
    comparison: dict[str, Json] = {"divergence": float(divergences[rows, columns].mean())}
    if old.n_components == new.n_components:
        # Rows of natural parameters (G, P), the old ones in the order of the new ones that they match.
        comparison["change"] = _relative_change([(old.natural[columns], new.natural[rows])])
    return comparison


def _relative_change(pairs: list[tuple[Array, Array]]) -> float:
    """Return |new - old| / |old| over pairs (old, new) of arrays; |new - old| where old is zero."""
    distance = math.sqrt(sum(float(np.sum((new - old) ** 2)) for old, new in pairs))
    length = math.sqrt(sum(float(np.sum(old**2)) for old, _ in pairs))
    return distance / length if length > 0.0 else distance


def _floats(values: Any) -> Array:
    """Return floating-point values in float64; an empty array for None and for values of other types."""
    if values is None:
        return np.zeros(0)
    if not isinstance(values, np.ndarray):
        values = values.float().numpy() if values.is_floating_point() else values.numpy()
    return values.astype(np.float64) if values.dtype.kind == "f" else np.zeros(0)


def table(rows: list[dict[str, Json]]) -> str:
    """Return a table of rounds, a line each.

    Parameters
    ----------
    rows : list of dict
        What `change_between` gave for every round.

    Examples
    --------
    >>> print(table([{"objective": 3.0, "change": None}, {"objective": 2.5, "change": 0.01, "divergence": 0.2}]))
    round     objective     change  divergence
        1             3          –           –
        2           2.5       0.01         0.2
    """
    lines = [f"{'round':>5}  {'objective':>12}  {'change':>9}  {'divergence':>10}"]
    for number, row in enumerate(rows, 1):
        cells = [row.get("objective"), row.get("change"), row.get("divergence")]
        texts = ["–" if cell is None else f"{cell:.4g}" for cell in cells]
        lines.append(f"{number:>5}  {texts[0]:>12}  {texts[1]:>9}  {texts[2]:>10}")
    return "\n".join(lines)
