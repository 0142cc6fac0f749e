"""The public functions: fuse, check, save, load."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from tqdm import tqdm

from consilience.checks import Array
from consilience.errors import InputError, OptionError
from consilience.families.ensemble import Ensemble
from consilience.families.posterior import Features, Posterior
from consilience.io.posterior_file import read_posterior, write_posterior
from consilience.io.provenance import make_provenance
from consilience.matching.result import Matching
from consilience.methods import Method, make_method
from consilience.methods.base import Progress, silent
from consilience.models import adapter_of, describe, rebuild
from consilience.models.ensemble import ensemble_of
from consilience.models.given import Given, gather
from consilience.result import Fusion, FusionInput

RECOMMENDED = "kl"
"""The method that ``method=None`` takes for posteriors."""


def fuse(
    models: Sequence[Any],
    method: str | Method | None = None,
    *,
    weights: ArrayLike | None = None,
    rng: int | np.random.Generator = 0,
    engine: None = None,
    progress: bool | Progress = False,
    samples: Sequence[float] | None = None,
    **options: Any,
) -> Fusion:
    """Fuse models that were trained apart into one.

    Parameters
    ----------
    models
        Fitted models, Posteriors, or paths of posterior files, mixed if they describe the same kind of thing. Topic
        models that name their words may have different vocabularies: the fused one has all words.
    method
        A name (see ``consilience methods``) or a method object; None takes the recommended one.
    weights
        How much each model counts (J,); None counts all the same.
    rng
        Seed or Generator; the same seed gives the same bytes.
    engine
        Where the work runs. This version runs it here: None.
    progress
        True shows a bar on a terminal; a callable is told (steps done, steps in all).
    samples
        Number of observations behind each model (J,), for models that do not record it
        (GaussianMixture, GaussianHMM, CategoricalHMM).
    **options
        The method's options.

    Returns
    -------
    Fusion

    Raises
    ------
    InputError
        Listing everything that is wrong with the models.
    OptionError
        For options that do not exist or do not fit the models.
    UnsupportedError
        For models that no adapter knows.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.mixture import BayesianGaussianMixture
    >>> X = np.random.default_rng(0).normal(size=(200, 2)) + np.repeat([[0.0, 0.0], [8.0, 8.0]], 100, axis=0)
    >>> a, b = (BayesianGaussianMixture(n_components=2, random_state=0).fit(X[start::2]) for start in (0, 1))
    >>> fusion = fuse([a, b], n_components=2)
    >>> fusion.model.predict([[0.0, 0.0], [8.0, 8.0]]).shape
    (2,)
    """
    if engine is not None:
        raise OptionError(f"engine: this version runs everything here; expected None, found {engine!r}")
    given, alignment, problems = gather(models, samples)
    chosen = _chosen(method, options, given)
    if problems:
        raise InputError(problems)
    ensemble = Ensemble.of([one.posterior for one in given], weights, [one.name for one in given])
    adapter = None if chosen.keeps_models else adapter_of(ensemble.posteriors[0])
    if reasons := [] if adapter is None else adapter.refuse(ensemble):
        raise InputError(reasons)
    seed, generator = _seeded(rng)
    with _progress(progress) as report:
        outcome = chosen.fuse(ensemble, generator, report)
    if alignment is not None:
        outcome = replace(outcome, details={**outcome.details, "vocabulary": alignment.details()})
    if adapter is not None:
        outcome = replace(outcome, posterior=adapter.recombine(outcome.posterior, ensemble))
    inputs = [
        _input_record(one, float(weight), outcome.matching, site)
        for site, (one, weight) in enumerate(zip(given, ensemble.site_weights, strict=True))
    ]
    result = {
        "n_components": outcome.posterior.n_components,
        "status": outcome.status.name.lower(),
        "objective": outcome.objective if math.isfinite(outcome.objective) else None,
        "history": _rounded(outcome.history),
        **outcome.details,
    }
    return Fusion(
        posterior=outcome.posterior,
        matching=outcome.matching,
        objective=outcome.objective,
        history=outcome.history,
        status=outcome.status,
        details=outcome.details,
        provenance=make_provenance(chosen.name, asdict(chosen), seed, sorted(inputs, key=_input_key), result),
        inputs=tuple(
            FusionInput(one.name, one.posterior, float(weight), one.digest)
            for one, weight in zip(given, ensemble.site_weights, strict=True)
        ),
        _rebuild=_rebuilds(chosen, ensemble),
        keeps_models=chosen.keeps_models,
        atoms=outcome.atoms,
    )


def check(
    models: Sequence[Any],
    method: str | Method | None = None,
    *,
    weights: ArrayLike | None = None,
    samples: Sequence[float] | None = None,
    **options: Any,
) -> list[str]:
    """Return everything that would go wrong in ``fuse`` with these arguments, a line each; empty when nothing would.

    Files are read one after another and their parameters checked; posteriors are small beside the data they stand for.

    Raises
    ------
    OptionError
        When the method or an option does not exist.
    """
    given, _, problems = gather(models, samples)
    chosen = _chosen(method, options, given)
    try:
        if len({one.posterior.family for one in given}) == 1:
            of_given = None if weights is None or len(given) < len(models) else weights
            ensemble = Ensemble.of([one.posterior for one in given], of_given, [one.name for one in given])
            refused = chosen.refuse(ensemble)
            adapter = None if problems or chosen.keeps_models else adapter_of(ensemble.posteriors[0])
            problems += refused if adapter is None else refused + adapter.refuse(ensemble)
    except OptionError as error:
        problems.append(str(error))
    return problems


def save(model: Any, path: str | Path, *, samples: float | None = None, features: Features | None = None) -> None:
    """Write the posterior of a fitted model to a file that can be fused: parameters only, no data.

    Parameters
    ----------
    model
        A fitted model or a Posterior.
    path
        Where to; usually ``*.safetensors``. The file appears whole or not at all.
    samples
        Number of observations the model was fitted to, for models that do not record it
        (GaussianMixture, GaussianHMM, CategoricalHMM).
    features
        What the columns mean; taken from the model where it knows.

    Raises
    ------
    InputError
        When the model cannot be described or the path cannot be written.
    UnsupportedError
        When no adapter knows the model's class.
    """
    write_posterior(Path(path), describe(model, samples=samples, features=features))


def load(path: str | Path) -> Posterior:
    """Return the posterior in a file.

    Raises
    ------
    FileFormatError
        When the file is not a posterior file of a version that this library reads.
    InputError
        When its values are not valid, naming the components at fault.
    """
    return read_posterior(Path(path))[0]


def _chosen(method: str | Method | None, options: Mapping[str, Any], given: Sequence[Given]) -> Method:
    """Return the method that was asked for, or the recommended one for models of this kind."""
    if method is not None:
        return make_method(method, options)
    adapter = adapter_of(given[0].posterior) if given else None
    if adapter is None:
        return make_method(RECOMMENDED, options)
    return make_method(adapter.recommended, {**adapter.recommended_options, **options})


def _rebuilds(method: Method, ensemble: Ensemble) -> Callable[[Posterior], Any]:
    """Return what makes the fused model: of the fused posterior, or all models side by side."""
    if not method.keeps_models:
        return rebuild
    return lambda _: ensemble_of([rebuild(posterior) for posterior in ensemble.posteriors], ensemble.site_weights)


def _seeded(rng: object) -> tuple[int | None, np.random.Generator]:
    """Return the seed, None when a Generator was given, and the Generator."""
    if isinstance(rng, np.random.Generator):
        return None, rng
    if not isinstance(rng, Integral) or rng < 0:
        raise OptionError(f"rng: expected a Generator or an integer that is not negative, found {rng!r}")
    return int(rng), np.random.default_rng(int(rng))


def _input_record(one: Given, weight: float, matching: Matching, site: int) -> dict[str, Any]:
    """Return what a fused file says about one of its inputs."""
    record: dict[str, Any] = {"name": one.name, "components": one.posterior.n_components, "weight": weight}
    if one.digest is not None:
        record["sha256"] = one.digest
    record["labels"] = matching.of_site(site).tolist()
    if matching.confidence is not None:
        values = matching.confidence[slice(*np.searchsorted(matching.owner, [site, site + 1]))].tolist()
        record["confidence"] = [round(value, 4) if math.isfinite(value) else None for value in values]
    return record


def _rounded(history: Array) -> list[float | None]:
    """Return a history as JSON values, to the digits that differ by more than rounding."""
    return [float(f"{value:.12g}") if math.isfinite(value) else None for value in history.tolist()]


def _input_key(record: dict[str, Any]) -> tuple[str, str]:
    """Order inputs by content, so that arrival order does not change a fused file."""
    return str(record.get("sha256", "")), str(record["name"])


@contextmanager
def _progress(wanted: bool | Progress) -> Iterator[Progress]:
    """Yield what a method reports its progress to; a bar is shown on a terminal only and leaves no trace."""
    if callable(wanted):
        yield wanted
    elif wanted:
        with tqdm(total=1, disable=None, leave=False, desc="fusing", unit="start") as bar:

            def report(done: int, total: int) -> None:
                bar.total, bar.n = total, done
                bar.refresh()

            yield report
    else:
        yield silent
