"""Evaluation of fused draws against a site's own: by reference draws, or by the log-likelihood of held-out rows.

lppd_i = log 1/T sum_t p(y_i | theta_t)          (Gelman, Hwang and Vehtari 2014, equation 5)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import logsumexp

from consilience.checks import Array
from consilience.core.evaluation import Evaluation, Score
from consilience.core.inputs import NamedInput
from consilience.core.scores import ScoreKind, paired_difference
from consilience.draws.checking import variable_disagreements
from consilience.draws.draws import Draws, as_draws
from consilience.draws.files import read_draws
from consilience.draws.fusion import DrawsFusion
from consilience.errors import InputError, OptionError, UnsupportedError

_OVER_PARAMETERS = "differences are over parameters, which depend on each other: the interval is a guide"


def evaluate_draws(fused: NamedInput, own: NamedInput, data: Any, labels: Any) -> Evaluation:
    """Return how fused draws and a site's own compare; see ``consilience.evaluate``.

    `data` are draws of the posterior of all data, where somebody has such: distances from these. Or a function of a
    dictionary of arrays (T, ...) that returns log-likelihoods (T, n) of held-out rows: predictive densities of these.
    """
    if labels is not None:
        raise OptionError("labels", "are classes of rows, and draws have none; leave it out")
    both = [_draws_of(fused), _draws_of(own)]
    if callable(data):
        return _by_likelihood(both[0], both[1], data)
    reference = _reference(data)
    problems = [
        problem
        for one, draws in ((fused, both[0]), (own, both[1]))
        for problem in variable_disagreements("the reference", reference, one.label, draws.stated())
    ]
    if problems:
        raise InputError(problems)
    order = list(reference.variables)
    values = [_rows(draws, order) for draws in (*both, reference)]
    return _by_reference(*values)


def _draws_of(one: NamedInput) -> Draws:
    """Return the draws of an input."""
    if one.file is not None:
        return read_draws(one.file)[0]  # which names the file
    try:
        return one.model.draws if isinstance(one.model, DrawsFusion) else as_draws(one.model)
    except (InputError, UnsupportedError) as error:
        raise InputError(problem.about(one.label) for problem in error.problems) from error


def _reference(data: Any) -> Draws:
    """Return reference draws, from a file of draws or of CmdStan, or an object."""
    if isinstance(data, str | Path):
        if Path(data).suffix.lower() in (".npy", ".npz"):
            remedy = (
                "write them with `cs.save(cs.Draws({name: array, ...}), path)`, or give CmdStan's CSV; in Python a"
                " function that returns log-likelihoods of held-out rows will do"
            )
            raise InputError(data, "has arrays, expected a file of draws of the posterior of all data", remedy)
        return as_draws([data]) if Path(data).suffix == ".csv" else read_draws(Path(data))[0]
    try:
        return data.draws if isinstance(data, DrawsFusion) else as_draws(data)
    except (InputError, UnsupportedError) as error:
        raise InputError(problem.about("data") for problem in error.problems) from error


def _rows(draws: Draws, order: list[str]) -> Array:
    """Return all entries (n, d), variables in an order."""
    return np.concatenate([draws.variables[name].reshape(draws.n_draws, -1) for name in order], axis=1)


def _by_reference(fused: Array, own: Array, reference: Array) -> Evaluation:
    """Return the distances of both from a reference, each (n, d)."""
    varies = reference.std(axis=0) > 0
    fused, own, reference = fused[:, varies], own[:, varies], reference[:, varies]
    distances = [wasserstein_distances(draws, reference) for draws in (fused, own)]
    spread = reference.std(axis=0)
    offsets = [np.abs(draws.mean(axis=0) - reference.mean(axis=0)) / spread for draws in (fused, own)]
    means = [float(np.sqrt(np.mean(one**2))) for one in offsets]
    widths = [float(np.sqrt(np.mean(np.log(draws.std(axis=0) / spread) ** 2))) for draws in (fused, own)]
    kind = ScoreKind.REFERENCE
    scores = (
        Score("Wasserstein distance", "sd", False, float(distances[0].mean()), float(distances[1].mean()), kind),
        Score("distance of means", "sd", False, means[0], means[1], kind),
        Score("log ratio of widths", "", False, widths[0], widths[1], kind),
    )
    difference = paired_difference(distances[0], distances[1], np.ones(len(distances[0])))
    return Evaluation(scores, difference, (_OVER_PARAMETERS,), what="draws", observations="parameters")


def _by_likelihood(fused: Draws, own: Draws, log_likelihood: Callable[..., Any]) -> Evaluation:
    """Return log predictive densities of both, row by row."""
    densities = []
    for called, draws in (("the fused draws", fused), ("your own draws", own)):
        flat = {name: values.reshape(-1, *values.shape[2:]) for name, values in draws.variables.items()}
        values = np.asarray(log_likelihood(flat), dtype=np.float64)
        if values.ndim != 2 or len(values) != draws.n_draws:
            text = f"gave log-likelihoods of shape {values.shape} for {called}, expected ({draws.n_draws}, rows)"
            raise InputError("data", text, "return one number for each draw and each held-out row", "E-SHAPE")
        if np.any(np.isnan(values)) or np.any(values == np.inf):
            text = f"gave log-likelihoods of {called} that are no numbers, or infinite"
            raise InputError("data", text, code="E-NUMBER")
        densities.append(logsumexp(values, axis=0) - np.log(draws.n_draws))
    if densities[0].shape != densities[1].shape:
        text = f"gave {len(densities[0])} rows and then {len(densities[1])}"
        raise InputError("data", text, "give the same rows", "E-SHAPE")
    means = [float(one.mean()) for one in densities]
    scores = (Score("log predictive density", "nats", True, means[0], means[1], ScoreKind.PREDICTIVE),)
    difference = paired_difference(densities[0], densities[1], np.ones(len(densities[0])))
    return Evaluation(scores, difference, what="draws")


N_LEVELS = 999
"""Levels at which quantile functions are compared. Draws are some thousands; chosen by hand."""


def wasserstein_distances(draws: Array, reference: Array) -> Array:
    """Return Wasserstein-1 distances (d,) of marginals, in standard deviations: the mean gap of quantile functions."""
    levels = (np.arange(N_LEVELS) + 0.5) / N_LEVELS
    gaps = np.quantile(draws, levels, axis=0) - np.quantile(reference, levels, axis=0)
    result: Array = np.abs(gaps).mean(axis=0) / reference.std(axis=0)
    return result
