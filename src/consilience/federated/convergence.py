"""How much a round changed the fused model, from the files of two rounds.

Parameters are compared component by component: those of a posterior after matching (fused components have no fixed
order), by the Kullback-Leibler divergence; those of a network in place, since sites went on from one fused network.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from consilience.api.kinds import BAYESIAN, POSTERIORS, kind_of_file
from consilience.bayesian.file_format import read_bayesian
from consilience.checks import Array
from consilience.networks.files import read_network
from consilience.posteriors.files import read_posterior
from consilience.posteriors.posterior import Posterior


def change_between(before: Path | None, after: Path, objective: float) -> dict[str, Any]:
    """Return how a round's fused model differs from that of the round before.

    Parameters
    ----------
    before, after
        Files of fused models; None before the first round.
    objective
        Of the method, where it has one.

    Returns
    -------
    convergence
        ``objective``; ``change``, the Euclidean norm of the difference of all parameters relative to that of the
        parameters before, None where they are not of one shape; for posteriors ``divergence``, the mean over
        components of the divergence from the matched one before, in nats, and ``components``.
    """
    found: dict[str, Any] = {"objective": objective if math.isfinite(objective) else None, "change": None}
    kind = kind_of_file(after)
    if kind is POSTERIORS:
        new = read_posterior(after)[0]
        found["components"] = new.n_components
        return found if before is None else {**found, **_between_posteriors(read_posterior(before)[0], new)}
    if before is None:
        return found
    if kind is BAYESIAN:
        old_b, new_b = read_bayesian(before), read_bayesian(after)
        pairs = [(old_b.means, new_b.means), (old_b.variances, new_b.variances)]
    else:
        pairs = [(read_network(before).arrays, read_network(after).arrays)]
    values = [
        (_floats(old.get(name)), _floats(new[name])) for old, new in pairs for name in new if _floats(new[name]).size
    ]
    if any(old.shape != new.shape for old, new in values):
        return found
    return {**found, "change": _relative(values)}


def _between_posteriors(old: Posterior, new: Posterior) -> dict[str, Any]:
    if old.family != new.family:
        return {}
    costs = new.family.kl(new.natural, old.natural)
    rows, columns = linear_sum_assignment(costs)
    found: dict[str, Any] = {"divergence": float(costs[rows, columns].mean())}
    if old.n_components == new.n_components:
        found["change"] = _relative([(old.natural[columns], new.natural[rows])])
    return found


def _relative(pairs: list[tuple[Array, Array]]) -> float:
    moved = math.sqrt(sum(float(np.sum((new - old) ** 2)) for old, new in pairs))
    size = math.sqrt(sum(float(np.sum(old**2)) for old, _ in pairs))
    return moved / size if size > 0.0 else moved


def _floats(values: Any) -> Array:
    """Return an array's numbers in float64; none of one that is no array of such numbers."""
    if values is None:
        return np.zeros(0)
    if not isinstance(values, np.ndarray):
        values = values.float().numpy() if values.is_floating_point() else values.numpy()
    return values.astype(np.float64) if values.dtype.kind == "f" else np.zeros(0)


def table(rows: list[dict[str, Any]]) -> str:
    """Return rounds as lines for people.

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
        shown = ["–" if one is None else f"{one:.4g}" for one in cells]
        lines.append(f"{number:>5}  {shown[0]:>12}  {shown[1]:>9}  {shown[2]:>10}")
    return "\n".join(lines)
