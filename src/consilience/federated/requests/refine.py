"""Refinement of a fused generalised linear model: gradients and information leave the sites, and no row.

The mathematics are those of `consilience.estimators.refinement`: one request is one full step of damped Newton.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from consilience.checks import Array
from consilience.core.fusion import Fusion
from consilience.errors import ConsilienceError, InputError, Problem, UnsupportedError
from consilience.estimators.class_labels import ClassLabels
from consilience.estimators.details import EstimatorDetails, RefinementDetails
from consilience.estimators.files import statistics_problems
from consilience.estimators.fusion import EstimatorFusion
from consilience.estimators.rebuild import rebuild
from consilience.estimators.refinement import (
    LARGEST,
    STEP_LENGTHS,
    RefinementState,
    SiteLikelihood,
    advance,
    finished,
    judge_refined,
    laplace_adapter,
    site_likelihood,
    start_state,
)
from consilience.estimators.site_rows import names_within, read_rows
from consilience.estimators.statistics import DEGREES, INFORMATION, PEARSON, PRIOR, ROWS, SHIFT, WEIGHT, Statistics
from consilience.federated.requests.base import Answer, Content, Reduction, RequestKind, RoundRequest, StandingAnswer
from consilience.federated.requests.message_checks import count_problems, few_rows, in_order, latest_answers, name_of
from consilience.files.schemas import Chunked, FiniteJSON, StrictModel

_ASYMMETRY = 1e-8
"""Asymmetry, and negative eigenvalues, of an information matrix in units of its trace that are taken for rounding."""

_STATE = (INFORMATION, SHIFT, PRIOR, ROWS, PEARSON, WEIGHT, DEGREES)
"""Sums of the fused model that a request publishes, as far as its estimator has them."""


class RefineRequestFields(StrictModel):
    """JSON values of a request."""

    estimator: str
    parameters: FiniteJSON
    n_columns: int = Field(gt=0, le=2**31)
    classes: Chunked[list[bool | int | float | str]] | None = None
    classes_are_objects: bool = False
    target_shape: Chunked[list[int]] | None = None
    slope: float = Field(ge=0.0, allow_inf_nan=False)
    error: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)
    sites: int = Field(ge=0, le=2**31)
    carried: int = Field(ge=0, le=2**31)


class Refinement(RequestKind):
    """Rounds of damped Newton from a product of Laplace approximations to the fit on the pooled rows."""

    name: ClassVar[str] = "refine"
    summary: ClassVar[str] = "Newton steps from a product of generalised linear models to the fit on all rows"
    counts_withheld: ClassVar[bool] = False
    request_fields: ClassVar[type[StrictModel]] = RefineRequestFields
    no_request: ClassVar[str] = "is no state of a refinement"
    supports: ClassVar[str] = "generalised linear models that are fused by Laplace's approximation"
    models: ClassVar[str] = "estimators"

    def start(self, fusion: Fusion | Any) -> Content:
        """Return the product as a state; see `RequestKind.start`."""
        statistics = fusion.statistics if isinstance(fusion, EstimatorFusion) else fusion
        if isinstance(statistics, Statistics) and statistics.last_step is not None:
            raise UnsupportedError("refine", "takes no Pipeline", "describe the last step alone")
        if not isinstance(statistics, Statistics):
            raise self.unsupported(f"this is a {type(statistics).__name__}")
        return _content_of(start_state(statistics))

    def state_problems(self, request: RoundRequest) -> list[Problem]:
        """Return what is wrong with a state; see `RequestKind.state_problems`."""
        arrays = request.content.arrays
        if odd := [name for name, values in arrays.items() if not np.all(np.abs(values) <= LARGEST)]:
            return [Problem("request", f"{odd[0]} has values that are NaN or infinite, or beyond {LARGEST:g}")]
        try:
            statistics = _statistics_of(request)
            adapter = laplace_adapter(statistics)
            if refusal := adapter.refusal(statistics.parameters):
                return [refusal.about("request")]
            if problems := statistics_problems(statistics):
                return [problem.about("request") for problem in problems]
            q = len(adapter.natural(statistics)[1])
        except (ConsilienceError, KeyError, TypeError, ValueError) as error:
            return [Problem("request", f"{self.no_request}: {error}")]
        return [
            Problem("request", f"{name} has shape {np.shape(arrays.get(name, 0.0))}, expected {(q,)}")
            for name in ("base", "step")
            if np.shape(arrays.get(name, 0.0)) != (q,)
        ]

    def answer(self, request: RoundRequest, data: Any, *, min_count: float, module: Any = None) -> tuple[int, Content]:
        """Return log-likelihoods, gradient and information of a site's rows; see `RequestKind.answer`."""
        del module  # of a network; `exchange.answer` refuses one
        state = _state_of(request)
        statistics, adapter = state.statistics, state.adapter
        data, weights = (data[:2], data[2]) if isinstance(data, tuple) and len(data) == 3 else (data, None)
        names = names_within(data, statistics.features)
        categories = statistics.parameters.get("categories") or ()
        rows = read_rows(
            data, weights, statistics.n_columns, names, adapter.needs, may_be_sparse=False, categories=categories
        )
        numbers = None
        if statistics.classes is not None:
            numbers = statistics.classes.numbers_of(_typed(rows.y, statistics.classes))
            counts = np.bincount(numbers, minlength=len(statistics.classes))
            thin = np.flatnonzero((counts > 0) & (counts < min_count))
            if len(thin):
                name = statistics.classes.names[thin[0]]
                text = (
                    f"has {counts[thin[0]]} rows of class {name}, and sums over fewer than {min_count:g} do not leave"
                )
                raise few_rows(data, text, "answer without that class, or take a lower `min_count=`")
        if rows.n < max(min_count, 1.0):
            raise few_rows(data, f"has {rows.n} rows, and sums over fewer than {min_count:g} do not leave a site")
        try:
            likelihood = site_likelihood(state, rows, numbers)
        except ConsilienceError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # Of targets or hyper-parameters that statsmodels does not take, which the request of a stranger may have.
            text = f"has no likelihood under this request ({str(error).partition(chr(10))[0][:200]})"
            raise InputError(
                name_of(data), text, "give the columns and targets that the models were fitted to"
            ) from error
        arrays = {
            "log_likelihood": likelihood.values,
            "gradient": likelihood.gradient,
            "information": likelihood.information,
            "rows": np.atleast_1d(likelihood.rows),
            "weight": np.array([likelihood.weight]),
            "pearson": np.array([likelihood.pearson]),
        }
        return rows.n, Content({}, arrays)

    def sum_problems(self, request: RoundRequest, answer: Answer) -> list[Problem]:
        """Return what is wrong with sums; see `RequestKind.sum_problems`."""
        arrays, classes = answer.content.arrays, request.content.fields.get("classes")
        problems = count_problems(arrays["rows"], answer)
        if not arrays["weight"][0] > 0.0 or arrays["pearson"][0] < 0.0:
            problems.append(Problem("answer", "has weights that are not positive, or a negative sum of squares"))
        information = arrays["information"]
        size = float(np.abs(np.diag(information)).sum())
        with np.errstate(all="ignore"):
            is_symmetric = bool(np.all(np.abs(information - information.T) <= _ASYMMETRY * size))
        if not is_symmetric:
            return [*problems, Problem("answer", "has an information matrix that is not symmetric")]
        adapter = _state_of(request).adapter
        if adapter.is_concave(request.content.fields["parameters"]):
            scale = max(size, np.finfo(np.float64).tiny)
            if np.linalg.eigvalsh(information / scale)[0] < -_ASYMMETRY:
                problems.append(Problem("answer", "has an information matrix that is not positive semidefinite"))
        if classes and np.any(arrays["log_likelihood"] > 0.0):
            problems.append(Problem("answer", "has a log-likelihood above 0, which no probability has"))
        return problems

    def sums(self, request: RoundRequest) -> Mapping[str, tuple[tuple[int, ...], int]]:
        """Return the shapes of the sums; see `RequestKind.sums`."""
        q, classes = len(request.content.arrays["base"]), request.content.fields.get("classes")
        return {
            "log_likelihood": ((len(STEP_LENGTHS),), 0),
            "gradient": ((q,), 0),
            "information": ((q, q), 0),
            "rows": ((len(classes) if classes else 1,), 0),
            "weight": ((1,), 0),
            "pearson": ((1,), 0),
        }

    def reduce(
        self, request: RoundRequest, answers: Mapping[str, StandingAnswer], standing: Mapping[str, StandingAnswer]
    ) -> Reduction:
        """Return the next state; see `RequestKind.reduce`."""
        state = _state_of(request)
        chosen, carried = latest_answers(request, answers, standing)
        sites: dict[str, SiteLikelihood] = {}
        for site, one in chosen.items():
            likelihood = _likelihood_of(one)
            if one.request.number != request.number:
                if not likelihood.has_derivatives:  # its step was too long for its numbers, so that it has no expansion
                    continue
                likelihood = likelihood.extrapolated(state.base, state.step)
            sites[site] = likelihood
        sites = in_order(sites)
        late = [site for site in sites if site in carried]
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                next_state, before, after = advance(state, sites, len(late))
        except InputError as error:
            raise InputError(problem.about("the sums of all sites") for problem in error.problems) from error
        if not np.isfinite(after):
            raise InputError("the sums of all sites", "are so large that no model has them", code="E-ROUND")
        return Reduction(
            _content_of(next_state),
            after,
            before,
            {site: chosen[site] for site in sites},
            {site: carried[site] for site in late},
            is_last=next_state.is_converged,
        )

    def finish(self, fusion: Any, content: Content) -> Any:
        """Return the fusion with the refined model; see `RequestKind.finish`."""
        is_fusion = isinstance(fusion, EstimatorFusion)
        model = fusion.statistics if is_fusion else fusion
        state = _state_from(_with_counts(model, content), content)
        statistics, error, is_taken = finished(state)
        if not is_fusion:
            return statistics
        n_all = max(len(fusion.provenance.get("inputs", ())), state.n_sites)
        refinement: RefinementDetails = {
            "step": error if np.isfinite(error) else None,
            "is_taken": is_taken,
            "sites": state.n_sites,
            "carried": state.n_carried,
        }
        # What priors weighed in the product says nothing of the refined model.
        fused_details: EstimatorDetails = fusion.details
        details: EstimatorDetails = {**fused_details, "refinement": refinement}
        details.pop("prior_share", None)
        return replace(
            fusion,
            statistics=statistics,
            details=details,
            provenance={**fusion.provenance, "result": {**fusion.provenance["result"], "refinement": refinement}},
            _model=rebuild(statistics),
            _verdict=judge_refined(state, n_all, fusion.statistics.n_observations),
        )


def _typed(labels: Any, classes: ClassLabels) -> Any:
    """Return labels as the classes are typed: a table has texts where an array has numbers."""
    if np.asarray(labels).dtype.kind not in "US" or all(isinstance(value, str) for value in classes.values):
        return labels
    by_name = {str(value): value for value in classes.values}
    return np.array([by_name.get(str(label), str(label)) for label in labels.tolist()], dtype=object)


def _content_of(state: RefinementState) -> Content:
    """Return a state as a message's content."""
    statistics = state.statistics
    header = statistics.header()
    fields = {
        "estimator": statistics.kind,
        "parameters": header["parameters"],
        "n_columns": statistics.n_columns,
        "classes": header["classes"],
        "classes_are_objects": header["classes_are_objects"],
        "target_shape": header["target_shape"],
        "slope": max(state.slope, 0.0),
        "error": state.error if np.isfinite(state.error) else None,
        "sites": state.n_sites,
        "carried": state.n_carried,
    }
    arrays = {name: np.atleast_1d(values) for name, values in statistics.counts.items()}
    return Content(fields, {**arrays, "base": state.base, "step": state.step})


def _statistics_of(request: RoundRequest) -> Statistics:
    """Return the statistics of the model in a request."""
    fields = request.content.fields
    labels = fields.get("classes")
    shape = fields.get("target_shape")
    blank = Statistics(
        str(fields["estimator"]),
        dict(fields["parameters"]),
        int(fields["n_columns"]),
        classes=None if labels is None else ClassLabels(tuple(labels), bool(fields.get("classes_are_objects"))),
        target_shape=None if shape is None else tuple(shape),
        features=request.features,
    )
    return _with_counts(blank, request.content)


def _with_counts(statistics: Statistics, content: Content) -> Statistics:
    arrays = {name: np.array(values) for name, values in content.arrays.items() if name in _STATE}
    if statistics.classes is None:  # numbers are arrays of one in messages
        arrays |= {name: arrays[name].reshape(()) for name in (ROWS, PEARSON, WEIGHT, DEGREES) if name in arrays}
    return replace(statistics, counts=arrays, approximations=())


def _state_of(request: RoundRequest) -> RefinementState:
    """Return the state in a request."""
    return _state_from(_statistics_of(request), request.content)


def _state_from(statistics: Statistics, content: Content) -> RefinementState:
    fields, error = content.fields, content.fields.get("error")
    return RefinementState(
        statistics,
        content.arrays["base"],
        content.arrays["step"],
        float(fields["slope"]),
        float("inf") if error is None else float(error),
        int(fields["sites"]),
        int(fields["carried"]),
    )


def _likelihood_of(standing: StandingAnswer) -> SiteLikelihood:
    """Return what a site answered."""
    arrays, published = standing.answer.content.arrays, standing.request.content
    counts: Array = arrays["rows"]
    return SiteLikelihood(
        published.arrays["base"] + published.arrays["step"],
        arrays["log_likelihood"],
        arrays["gradient"],
        arrays["information"],
        counts if published.fields.get("classes") is not None else counts.reshape(()),
        float(arrays["weight"][0]),
        float(arrays["pearson"][0]),
    )
