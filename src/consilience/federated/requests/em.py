"""Federated expectation maximisation: sums of responsibilities leave the sites, and no row (`gaussian_mixture`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from consilience.checks import Array, symmetric_part
from consilience.core.observations import ExpectedColumns, read_observations
from consilience.errors import InputError, Problem
from consilience.federated.masking.fixed_point import unit_exponent
from consilience.federated.requests.base import Answer, Content, Reduction, RequestKind, RoundRequest, StandingAnswer
from consilience.federated.requests.gaussian_mixture import (
    RIDGE,
    MixtureExpectations,
    MixtureState,
    MixtureSums,
    divergence_from_prior,
    e_step,
    expectations,
    m_step,
    mean_weights,
    outer,
)
from consilience.federated.requests.message_checks import SCATTER_ROUNDING, array_problems, few_rows, latest_answers
from consilience.files.schemas import StrictModel
from consilience.posteriors.adapters.sklearn.covariance_types import (
    ConjugateParameters,
    about_origin,
    family_of,
    flat_dof,
    in_units_of_data,
    maximum_likelihood_covariances,
    to_natural,
)
from consilience.posteriors.posterior import Posterior

_COVARIANCE_NAMES = {"normal-wishart": "full", "normal-gamma": "diag", "spherical-normal-gamma": "spherical"}
_KINDS = {"sklearn.BayesianGaussianMixture": "variational", "sklearn.GaussianMixture": "likelihood"}

_COUNT_ROUNDING = 1e-6
"""Relative error of sums of float64 that is taken for rounding: 10**9 rows leave some 1e-12 of a sum."""

_ASCENT_ROUNDING = 1e-9
"""Relative fall of a site's part of the objective that is taken for rounding."""


class EMRequestFields(StrictModel):
    """JSON values of a request."""

    covariance_type: Literal["full", "tied", "diag", "spherical"]
    estimate: Literal["variational", "likelihood"]
    weight_prior: Literal["dirichlet_process", "dirichlet_distribution", "none"]
    concentration: float = Field(ge=0.0, allow_inf_nan=False)


_COMPONENT_ARRAYS = ("mean", "kappa", "dof", "spread")


class ExpectationMaximization(RequestKind):
    """Rounds of variational or likelihood EM of a Gaussian mixture, as on the pooled rows."""

    name: ClassVar[str] = "em"
    summary: ClassVar[str] = "expectation maximisation of a Gaussian mixture over all sites, from sums"
    supports: ClassVar[str] = "mixtures of Gaussians: full, tied, diag or spherical covariances"
    models: ClassVar[str] = "posteriors"
    request_fields: ClassVar[type[StrictModel]] = EMRequestFields
    no_request: ClassVar[str] = "is no state of a Gaussian mixture"

    def start(self, fusion: Any) -> Content:
        """Return the fused mixture as a state; see `RequestKind.start`."""
        if getattr(fusion, "keeps_models", False):
            raise ExpectationMaximization.unsupported("this fusion keeps all models side by side")
        state = _start_state(getattr(fusion, "posterior", fusion))
        return _content_of(state, state)

    def state_problems(self, request: RoundRequest) -> list[Problem]:
        """Return what is wrong with a state; see `RequestKind.state_problems`."""
        fields, arrays = request.content.fields, request.content.arrays
        is_likelihood = fields["estimate"] == "likelihood"
        if is_likelihood != (fields["weight_prior"] == "none"):
            return [Problem("request", f"{self.no_request}: its weight prior does not fit its estimate")]
        try:
            shapes = _state_shapes(request.content, str(fields["covariance_type"]))
        except (ValueError, KeyError) as error:
            return [Problem("request", f"{self.no_request}: {error}")]
        problems = array_problems("request", arrays, shapes) or _sign_problems(arrays, is_likelihood)
        if problems:
            return problems
        try:
            with np.errstate(all="ignore"):  # of numbers that no fit has: what comes of them is looked at
                offsets = [expectations(_state_of(request.content, prefix)).offset for prefix in ("", "start.")]
        except InputError as error:
            return [problem.about("request") for problem in error.problems]
        if not np.all(np.isfinite(offsets)):
            return [Problem("request", "a component has no finite log determinant")]
        return []

    def answer(self, request: RoundRequest, data: Any, *, min_count: float, module: Any = None) -> tuple[int, Content]:
        """Return N_k, s_k, S_k and H of a site's rows; see `RequestKind.answer`."""
        del module  # of a network; `exchange.answer` refuses one
        state = _state_of(request.content)
        columns = ExpectedColumns(state.dim, request.features.names, are_counts=False)
        rows = read_observations(data, None, columns).values
        if len(rows) < max(min_count, 1.0):
            raise few_rows(data, f"has {len(rows)} rows, and sums over fewer than {min_count:g} do not leave a site")
        with np.errstate(all="ignore"):
            step = e_step(state, _state_of(request.content, "start."), rows, min_count)
        sums = step.sums
        if not all(np.all(np.isfinite(values)) for values in (sums.counts, sums.first, sums.second, sums.entropy)):
            text = "its state gives these rows no finite sums; do the units of its columns fit?"
            raise InputError("request", text, code="E-NUMBER")
        if not sums.counts.any():
            text = f"has no component with {min_count:g} rows or more, and sums over fewer do not leave a site"
            raise few_rows(data, text)
        arrays = {"counts": sums.counts, "first": sums.first, "second": sums.second}
        return len(rows), Content({"withheld": len(step.withheld)}, {**arrays, "entropy": np.array([sums.entropy])})

    def sum_problems(self, request: RoundRequest, answer: Answer) -> list[Problem]:
        """Return what is wrong with sums; see `RequestKind.sum_problems`."""
        state, problems = _state_of(request.content), list[Problem]()
        sums, n = _sums_of(answer.content), answer.n_observations
        if negative := np.flatnonzero(sums.counts < 0.0).tolist():
            return [Problem("answer", f"component {negative[0]} has a count of {sums.counts[negative[0]]:.6g}")]
        # What withheld components take of the rows is in no count.
        absent = sums.counts == 0.0
        excess = sums.counts.sum() - n
        if excess > _COUNT_ROUNDING * n or (excess < -_COUNT_ROUNDING * n and not absent.any()):
            problems.append(Problem("answer", f"its counts sum to {sums.counts.sum():.10g}, and it states {n} rows"))
        few = np.flatnonzero((sums.counts > 0.0) & (sums.counts < answer.min_count * (1.0 - _COUNT_ROUNDING)))
        if few.size:
            text = (
                f"component {few[0]} has {sums.counts[few[0]]:.6g} observations behind it, and the site withholds "
                f"those of fewer than {answer.min_count:g}"
            )
            problems.append(Problem("answer", text))
        # Of withheld components it has the log densities, too: at most those at their modes.
        start = expectations(_state_of(request.content, "start."))
        modes = np.maximum(start.log_weights + 0.5 * start.offset, 0.0)[absent]
        highest = n * np.log(state.n_components) + n * modes.sum() + _COUNT_ROUNDING * n
        if sums.entropy > highest or (not absent.any() and sums.entropy < -_COUNT_ROUNDING * n):
            text = f"its entropy is {sums.entropy:.6g}, expected 0 to {highest:.6g} of {n} rows"
            problems.append(Problem("answer", text))
        return problems + _scatter_problems(sums)

    def sums(self, request: RoundRequest) -> Mapping[str, tuple[tuple[int, ...], int]]:
        """Return the shapes of the sums, in units of the mean deviation of the columns; see `RequestKind.sums`."""
        state = _state_of(request.content)
        variances = _total_variance(state.components, state.counts, state.covariance_type)
        unit = unit_exponent(float(np.sqrt(np.mean(variances))))
        return {
            "counts": ((state.n_components,), 0),
            "first": ((state.n_components, state.dim), unit),
            "second": (state.components.spread.shape, 2 * unit),
            "entropy": ((1,), 0),
        }

    def reduce(
        self, request: RoundRequest, answers: Mapping[str, StandingAnswer], standing: Mapping[str, StandingAnswer]
    ) -> Reduction:
        """Return the M-step of the sums that stand; see `RequestKind.reduce`.

        The sums of a site that did not answer are carried on from its last answer. New sums of a site may fit the
        published state less well than its last ones, where it withholds other components or answers late: then the last
        ones are carried on, too, so that the objective does not fall.
        """
        state = _state_of(request.content)
        centres = state.components.mean
        expected = expectations(state)
        chosen, carried = _ascending(request, answers, standing, expected)
        first, *others = (_rebased(one, centres) for one in chosen.values())
        total = sum(others, start=first)
        try:
            with np.errstate(all="ignore"):
                objective_before = expected.free_energy(total) - divergence_from_prior(state)
                new_state = m_step(state, total)
                moved = total.about(centres, new_state.components.mean)
                objective = expectations(new_state).free_energy(moved) - divergence_from_prior(new_state)
        except InputError as error:
            raise InputError(problem.about("the sums of all sites") for problem in error.problems) from error
        if not np.isfinite(objective):
            raise InputError("the sums of all sites", "are so large that no mixture has them", code="E-ROUND")
        return Reduction(
            _content_of(new_state, _state_of(request.content, "start.")), objective, objective_before, chosen, carried
        )

    def finish(self, fusion: Any, content: Content) -> Any:
        """Return the fusion with the mixture of a state; see `RequestKind.finish`."""
        state = _state_of(content)
        old = getattr(fusion, "posterior", fusion)
        posterior = _posterior_of(state, old)
        if isinstance(fusion, Posterior):
            return posterior
        matching = fusion.matching
        if posterior.n_components < state.n_components:  # components without rows are gone
            number = np.cumsum(state.counts > 0.0) - 1
            number[state.counts <= 0.0] = -1
            labels = np.where(matching.labels >= 0, number[matching.labels], -1)
            coupling = None if matching.coupling is None else matching.coupling[:, state.counts > 0.0]
            matching = replace(matching, labels=labels, n_components=posterior.n_components, coupling=coupling)
        # The points that stand for components were those of the components before.
        return replace(fusion, posterior=posterior, matching=matching, atoms=None)


def _start_state(posterior: Any) -> MixtureState:
    """Return the state of a mixture's posterior.

    Raises UnsupportedError for anything but a mixture of Gaussians with weights, saying what it is. Raises InputError
    for a variational one without the prior of its components.
    """
    if not isinstance(posterior, Posterior):
        statistics = getattr(posterior, "statistics", None)  # of an EstimatorFusion, which is no name for users
        text = f"this is a {type(posterior).__name__ if statistics is None else statistics.kind}"
        raise ExpectationMaximization.unsupported(text)
    kind = posterior.source.get("kind")
    if (kind is not None and kind not in _KINDS) or posterior.family.name not in _COVARIANCE_NAMES:
        raise ExpectationMaximization.unsupported(f"this is a {kind or posterior.family.name}")
    if posterior.weights is None and posterior.counts is None:
        raise ExpectationMaximization.unsupported("these components have neither weights nor counts")
    covariance_type = str(posterior.source.get("covariance_type", _COVARIANCE_NAMES[posterior.family.name]))
    components = in_units_of_data(posterior)
    counts = np.asarray(components.kappa if posterior.counts is None else posterior.counts)
    if kind is not None and _KINDS[kind] == "likelihood":
        prior = ConjugateParameters(
            np.zeros((1, components.mean.shape[1])),
            np.zeros(1),
            np.array([flat_dof(covariance_type, components.mean.shape[1])]),
            RIDGE * _total_variance(components, counts, covariance_type),
        )
        return MixtureState(covariance_type, "likelihood", "none", 0.0, components, counts, prior)
    if posterior.prior is None:
        text = "has no prior, which every round needs"
        raise InputError("the fused posterior", text, "fuse models that state their prior", "E-NEEDED")
    attached = posterior.attached.get("weight_concentration_prior")
    concentration = 1.0 / posterior.n_components if attached is None else float(attached.values)
    weight_prior = str(posterior.source.get("weight_concentration_prior_type", "dirichlet_distribution"))
    prior = in_units_of_data(posterior, posterior.prior[None])
    return MixtureState(covariance_type, "variational", weight_prior, concentration, components, counts, prior)


def _total_variance(components: ConjugateParameters, counts: Array, covariance_type: str) -> Array:
    """Return the variance of every column under the whole mixture, as one spread (1, D, D), (1, D) or (1,)."""
    weights = counts / counts.sum()
    centred = components.mean - weights @ components.mean
    within = maximum_likelihood_covariances(components, covariance_type)
    if covariance_type in ("full", "tied"):
        within = np.diagonal(within, axis1=1, axis2=2)
    between = centred**2 if within.ndim == 2 else (centred**2).mean(axis=1)
    total = np.einsum("k,k...->...", weights, within + between)
    return (np.diag(total) if covariance_type in ("full", "tied") else total)[None]


def _content_of(state: MixtureState, start: MixtureState) -> Content:
    """Return a state, with the one of the first request, as a message's content."""
    arrays: dict[str, Array] = {}
    for prefix, one in (("", state), ("start.", start)):
        arrays[f"{prefix}counts"] = one.counts
        arrays |= {f"{prefix}{name}": getattr(one.components, name) for name in _COMPONENT_ARRAYS}
    arrays |= {f"prior.{name}": getattr(state.prior, name) for name in _COMPONENT_ARRAYS}
    fields = {
        "covariance_type": state.covariance_type,
        "estimate": state.estimate,
        "weight_prior": state.weight_prior,
        "concentration": state.concentration,
    }
    return Content(fields, arrays)


def _state_of(content: Content, prefix: str = "") -> MixtureState:
    """Return the state in a message's content; with the prefix "start." that of the first request."""
    fields, arrays = content.fields, content.arrays
    return MixtureState(
        str(fields["covariance_type"]),
        str(fields["estimate"]),
        str(fields["weight_prior"]),
        float(fields["concentration"]),
        ConjugateParameters(*(arrays[f"{prefix}{name}"] for name in _COMPONENT_ARRAYS)),
        arrays[f"{prefix}counts"],
        ConjugateParameters(*(arrays[f"prior.{name}"] for name in _COMPONENT_ARRAYS)),
    )


def _state_shapes(content: Content, covariance_type: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes that the arrays of a state must have, from the shape of its means."""
    n_components, dim = content.arrays["mean"].shape
    if n_components < 1 or dim < 1:
        raise ValueError("it has no components, or no columns")
    spread = {"full": (dim, dim), "tied": (dim, dim), "diag": (dim,), "spherical": ()}[covariance_type]
    shapes: dict[str, tuple[int, ...]] = {"counts": (n_components,), "start.counts": (n_components,)}
    for prefix, count in (("", n_components), ("start.", n_components), ("prior.", 1)):
        shapes |= {f"{prefix}mean": (count, dim), f"{prefix}spread": (count, *spread)}
        shapes |= {f"{prefix}{name}": (count,) for name in ("kappa", "dof")}
    return shapes


def _sign_problems(arrays: Mapping[str, Array], is_likelihood: bool) -> list[Problem]:
    """Return which numbers of a state are not positive, and should be."""
    positive = ["kappa", "start.kappa"]
    if not is_likelihood:  # the degrees of freedom of a flat prior may be negative
        positive += ["dof", "start.dof", "prior.kappa", "prior.dof"]
    problems = [Problem("request", f"{name} must be positive") for name in positive if np.any(arrays[name] <= 0.0)]
    return problems + [
        Problem("request", f"{name} must not be negative, nor all zero")
        for name in ("counts", "start.counts")
        if np.any(arrays[name] < 0.0) or arrays[name].sum() <= 0.0
    ]


def _ascending(
    request: RoundRequest,
    answers: Mapping[str, StandingAnswer],
    standing: Mapping[str, StandingAnswer],
    expected: MixtureExpectations,
) -> tuple[dict[str, StandingAnswer], dict[str, str]]:
    """Return the answers that count, as `stand`, but without new ones that fit the published state less well."""
    chosen, carried = latest_answers(request, answers, standing)
    for site in sorted(set(answers) & set(standing)):
        if answers[site].answer.n_observations != standing[site].answer.n_observations:
            continue  # a site that has got more rows is not held to its last answer
        before, after = (expected.free_energy(_rebased(one[site], expected.mean)) for one in (standing, answers))
        if after < before - _ASCENT_ROUNDING * abs(before):
            chosen[site] = standing[site]
            carried[site] = f"its new sums fit the state {before - after:.3g} nats less well than its last ones"
    return chosen, dict(sorted(carried.items()))


def _sums_of(content: Content) -> MixtureSums:
    """Return the sums in an answer."""
    arrays = content.arrays
    return MixtureSums(arrays["counts"], arrays["first"], arrays["second"], float(arrays["entropy"][0]))


def _rebased(standing: StandingAnswer, centres: Array) -> MixtureSums:
    """Return the sums of an answer about other centres than those of its own request."""
    return _sums_of(standing.answer.content).about(standing.request.content.arrays["mean"], centres)


def _scatter_problems(sums: MixtureSums) -> list[Problem]:
    """Return components whose second moments cannot be those of rows: S - s s^T / N is not positive semidefinite."""
    present = sums.counts > 0.0
    moments = np.column_stack([sums.first, sums.second.reshape(len(present), -1)])
    empty = ~present & np.any(moments != 0.0, axis=1)
    problems = [Problem("answer", f"component {k} has sums of no observations") for k in np.flatnonzero(empty)]
    if sums.second.ndim == 3 and not np.array_equal(sums.second, np.swapaxes(sums.second, 1, 2)):
        scale = np.abs(sums.second).max()
        if not np.allclose(sums.second, np.swapaxes(sums.second, 1, 2), rtol=0.0, atol=SCATTER_ROUNDING * scale):
            return [*problems, Problem("answer", "second has a matrix that is not symmetric")]
    counts = np.where(present, sums.counts, 1.0)
    with np.errstate(all="ignore"):
        # S_k - s_k s_k^T / N_k: (K, D, D), (K, D) or (K,)
        scatter = sums.second - outer(sums.first, sums.first / counts[:, None], sums.second.ndim)
    overflowing = ~np.isfinite(scatter.reshape(len(counts), -1)).all(axis=1)
    scatter = np.where(overflowing.reshape(-1, *[1] * (scatter.ndim - 1)), 0.0, scatter)
    if sums.second.ndim == 3:
        smallest = np.linalg.eigvalsh(symmetric_part(scatter))[:, 0]
        size = np.trace(sums.second, axis1=1, axis2=2)
    else:
        smallest = scatter.reshape(len(counts), -1).min(axis=1)
        size = sums.second.reshape(len(counts), -1).sum(axis=1)
    bad = np.flatnonzero(present & (overflowing | (smallest < -SCATTER_ROUNDING * np.abs(size)) | (size < 0.0)))
    return problems + [
        Problem("answer", f"component {k} has a scatter matrix that is not positive semidefinite: no rows have it")
        for k in bad
    ]


def _posterior_of(state: MixtureState, old: Posterior) -> Posterior:
    """Return a state as a posterior of the kind of `old`; a component that no site has is left out."""
    kept = np.flatnonzero(state.counts > 0.0) if state.is_likelihood else np.arange(state.n_components)
    counts = state.counts[kept]
    weights = counts / counts.sum() if state.is_likelihood else mean_weights(state)
    family = family_of(state.covariance_type, state.dim)
    natural = to_natural(family, about_origin(state.components, old.attached))
    return replace(old.take(kept), family=family, natural=natural[kept], counts=counts, weights=weights)
