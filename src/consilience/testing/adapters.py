"""Laws of adapters: a fitted model described as a posterior, filed, and rebuilt."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from consilience.checks import AnyArray
from consilience.errors import InputError
from consilience.families import Gamma, Gaussian
from consilience.families.base import Family
from consilience.files.safetensors_file import SafetensorsFile
from consilience.posteriors.adapters.base import Adapter
from consilience.posteriors.adapters.table import known_adapters
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.files import read_posterior, write_posterior
from consilience.posteriors.inputs import label_problems
from consilience.posteriors.methods.average import Average
from consilience.posteriors.posterior import Posterior
from consilience.testing.law import ROUNDING, require, require_equal


def check_adapter(
    adapter: Adapter, model: Any, *, n_observations: float | None = None, data: Any = None, rounding: float = ROUNDING
) -> None:
    """Hold an adapter to the laws of adapters, on one fitted model.

    Parameters
    ----------
    adapter : Adapter
        The adapter; it need not be registered.
    model : object
        A fitted model of its class, with more than one component.
    n_observations : float, optional
        Observations behind it, for classes that do not record them. Default: not told.
    data : array_like of shape (n, D), optional
        Observations to score, four or more. Default: no law of scores is checked.
    rounding : float, optional
        Relative error that describing a rebuilt model may have, for libraries of single precision. Default: 1e-9.

    Raises
    ------
    BrokenLawError
        Naming the first law that does not hold.
    """
    law = "an adapter says what it is for"
    require(law, isinstance(adapter, Adapter), f"{adapter!r:.80} is no instance of a subclass of Adapter")
    problems = adapter.declaration_problems()
    require(law, not problems, "; ".join(problems))
    law = "one adapter alone accepts a model"
    require(law, adapter.accepts(model), f"{adapter.kind} does not accept a {type(model).__name__}")
    others = [other.kind for other in known_adapters() if other.kind != adapter.kind and other.accepts(model)]
    require(law, not others, f"so do {', '.join(others)}")
    law = "a fitted model is described as a posterior of its kind"
    posterior = adapter.describe(model, n_observations)
    require(law, isinstance(posterior, Posterior), f"describe returns a {type(posterior).__name__}")
    require(law, posterior.source.get("kind") == adapter.kind, f"source['kind'] is {posterior.source.get('kind')!r}")
    source = dict(posterior.source)
    require("the source is JSON", json.loads(json.dumps(source)) == source, f"{source!r:.200} are no JSON values")
    require("a model has components", posterior.n_components > 1, "a model with more than one is needed for the laws")
    if adapter.components == "labelled":
        problems = label_problems(posterior)
        require("every component has one label", not problems, problems[0] if problems else "")
    _check_files(posterior)
    _check_rebuilding(adapter, posterior, n_observations, rounding)
    _check_refusals(adapter, posterior)
    _check_average(adapter, posterior)
    if data is not None:
        _check_scores(adapter, model, data, posterior.n_components)


def _check_files(posterior: Posterior) -> None:
    """Hold a posterior to coming back from a file with every bit."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "site.safetensors"
        write_posterior(path, posterior)
        _require_same("files keep every bit", read_posterior(SafetensorsFile(path))[0], posterior, 0.0)


def _check_rebuilding(adapter: Adapter, posterior: Posterior, n_observations: float | None, rounding: float) -> None:
    """Hold an adapter to rebuilding what it described."""
    law = "what is rebuilt is of its class and described the same"
    rebuilt = adapter.rebuild(posterior)
    require(law, adapter.accepts(rebuilt), f"rebuild returns a {type(rebuilt).__name__}")
    _require_same(law, adapter.describe(rebuilt, n_observations), posterior, rounding)


def _check_refusals(adapter: Adapter, posterior: Posterior) -> None:
    """Hold an adapter to refusing posteriors that are not of its class, with an InputError."""
    law = "a posterior of another family is refused"
    gamma: Family = Gamma()
    other = Posterior(gamma, gamma.to_natural(shape=[2.0, 3.0], rate=[1.0, 1.0]), source=posterior.source)
    if posterior.family == gamma:
        gaussian: Family = Gaussian(dim=1)
        natural = gaussian.to_natural(mean=np.zeros((2, 1)), covariance=np.ones((2, 1, 1)))
        other = Posterior(gaussian, natural, source=posterior.source)
    try:
        adapter.rebuild(other)
    except InputError:
        pass
    else:
        require(law, False, f"rebuild takes a posterior of {other.family}")
    for lost in set(posterior.source) - {"kind", "samples"}:
        law = "a source that lacks what rebuilding needs is refused"
        source = {key: value for key, value in posterior.source.items() if key != lost}
        try:
            adapter.rebuild(replace(posterior, source=source))
        except (InputError, KeyError):  # a KeyError becomes an InputError for users
            continue
        require(law, False, f"rebuild takes a source without {lost!r}")


def _check_average(adapter: Adapter, posterior: Posterior) -> None:
    """Hold an adapter to copies of a model averaging to the model."""
    law = "copies average to the model"
    ensemble = Ensemble.of([posterior, posterior], None, ["first", "second"])
    require(law, not adapter.refuse(ensemble), "; ".join(adapter.refuse(ensemble)))
    fused = Average().fuse(ensemble, np.random.default_rng(0)).posterior
    combined = adapter.recombine(replace(fused, features=posterior.features), ensemble)
    require(law, adapter.accepts(adapter.rebuild(combined)), "what is rebuilt of the average is of another class")
    if not adapter.recombines:  # as a process does, which two copies know better than one
        require_equal(law, combined.natural, posterior.natural, "natural parameters")


def _check_scores(adapter: Adapter, model: Any, data: Any, n_components: int) -> None:
    """Hold an adapter to scoring observation by observation."""
    data = data if hasattr(data, "shape") else np.asarray(data, dtype=np.float64)  # sparse counts stay as they are
    n = int(data.shape[0])
    require("observations are rows", n > 0, "data has none")
    scores = adapter.scores(model, data)
    law = "every observation has a score and a component"
    require(law, np.shape(scores.values) == (n,), f"scores have shape {np.shape(scores.values)} for {n} observations")
    require(law, np.isfinite(scores.values[scores.weights > 0]).all(), "a score is not finite")
    labels = np.asarray(scores.labels)
    are_valid = ((labels >= -1) & (labels < n_components)).all()
    require(law, are_valid, f"components go from {labels.min()} to {labels.max()}")
    again = adapter.scores(model, data)
    require_equal("the same data have the same scores", again.values, scores.values, "scores", 0.0)


def _require_same(law: str, actual: Posterior, expected: Posterior, rounding: float) -> None:
    """Hold two posteriors to being the same, up to rounding."""
    require(law, actual.family == expected.family, f"the family is {actual.family}, expected {expected.family}")
    require(law, actual.features == expected.features, f"features are {actual.features}, expected {expected.features}")
    sources = dict(actual.source), dict(expected.source)
    require(law, sources[0] == sources[1], f"the source is {sources[0]!r:.200}, expected {sources[1]!r:.200}")
    arrays, expected_arrays = _arrays(actual), _arrays(expected)
    require(law, set(arrays) == set(expected_arrays), f"states {sorted(arrays)}, expected {sorted(expected_arrays)}")
    for name, values in expected_arrays.items():
        require_equal(law, arrays[name], values, name, rounding)


def _arrays(posterior: Posterior) -> dict[str, AnyArray]:
    """Return every array of a posterior, by name."""
    arrays = {name: getattr(posterior, name) for name in ("natural", "prior", "counts", "weights")}
    arrays |= {f"attached {name}": attached.values for name, attached in posterior.attached.items()}
    return {name: values for name, values in arrays.items() if values is not None}
