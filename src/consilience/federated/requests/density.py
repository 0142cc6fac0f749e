"""Further messages about posterior draws: sites answer with their log densities at common points, which are weighted.

The server publishes points about the fused draws, in unconstrained coordinates. Every site maps them to its parameters
and answers with the log density that its sampler sampled: one number for each point, up to a constant, without
Jacobians. Their sum is the log density of the posterior of all data, by which the server weighs the points
(``draws.importance``); the next request has points where the weighted ones lie. The objective is the effective sample
size. It may fall where points find what none had found before; the record then shows it.

A site that answered an earlier request and not this one takes this one's points out of use. In the place of a site that
never answered stands the Gaussian of its draws, and the verdict names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import FailFast, Field

from consilience.checks import Array
from consilience.draws.constraint_table import as_constraint
from consilience.draws.details import Weighting
from consilience.draws.fusion import DrawsFusion
from consilience.draws.importance import N_POINTS, Points, Proposal, WeightedPoints, start_proposal
from consilience.draws.methods import make_draws_method
from consilience.draws.subposteriors import Subposteriors
from consilience.draws.verdict import judge_weighted
from consilience.errors import ConsilienceError, InputError, OptionError, Problem, UnsupportedError
from consilience.federated.requests.base import Answer, Content, Reduction, RequestKind, RoundRequest, StandingAnswer
from consilience.federated.requests.message_checks import LARGEST, few_rows, latest_answers
from consilience.files.csv import read_csv
from consilience.files.npy import open_arrays, read_array
from consilience.files.schemas import Chunked, StrictModel

PRODUCTS = ("auto", "gaussian_product", "consensus_mc", "semiparametric")
"""Methods whose draws are of the product of the sites' densities, which sums of log densities are of."""

_MAX_POINTS = 100_000
"""Points of a request that a site takes at most. Chosen by hand, against requests that keep it busy."""


class VariableFields(StrictModel):
    """A variable: its name, its shape and where it lies."""

    name: str
    shape: Annotated[list[int], FailFast()]
    constraint: str | Chunked[list[str | int | float]]


class DensityRequestFields(StrictModel):
    """JSON values of a request."""

    variables: Annotated[list[VariableFields], FailFast()] = Field(min_length=1)


@dataclass(frozen=True, eq=False)
class ServerState:
    """What the server keeps from request to request."""

    stack: Subposteriors  # draws of all sites
    proposal: Proposal  # where the published points come from
    rounds: tuple[Points, ...]  # requests that are over
    seed: int  # of points
    n_draws: int  # number of fused draws

    @property
    def weighted(self) -> WeightedPoints:
        """The points of all requests that are over."""
        return WeightedPoints(self.stack, tuple(one for one in self.rounds if one.densities))

    def next_points(self, number: int) -> Array:
        """Return the points of a request, by its number from 1."""
        return self.proposal.draw(N_POINTS, np.random.default_rng([self.seed, number]))


class LogDensities(RequestKind):
    """Fused draws made exact up to Monte Carlo error, from the sites' log densities at common points."""

    name: ClassVar[str] = "density"
    summary: ClassVar[str] = "fused draws weighted by the sites' log densities at common points"
    supports: ClassVar[str] = "fused posterior draws, and of each site the function of its log density"
    models: ClassVar[str] = "draws"
    counts_withheld: ClassVar[bool] = False
    request_fields: ClassVar[type[StrictModel]] = DensityRequestFields
    no_request: ClassVar[str] = "has no points of parameters"
    needs_module: ClassVar[bool] = True
    module: ClassVar[str] = (
        "a function of (draws, rows), draws a dictionary of arrays (n, ...), that returns the log densities (n,) which"
        " the site's sampler sampled, without Jacobians (in the shell `consilience round answer --density PKG.MOD:"
        "FUNCTION`)"
    )
    tells: ClassVar[tuple[tuple[str, str], ...]] = (
        ("log densities", "of all rows together at each point: as much as sums that suffice, where the model has such"),
    )

    def start(self, fusion: Any) -> Content:
        """Return points about the fused draws; see `RequestKind.start`."""
        if not isinstance(fusion, DrawsFusion):
            raise self.unsupported(f"this is a {type(fusion).__name__}")
        method = str(fusion.provenance["method"])
        if method not in PRODUCTS:
            text = f"these draws were combined by {method}, and sums of log densities are of a product"
            raise UnsupportedError(self.name, text, "fuse by the default, or another product")
        if not fusion.inputs:
            raise UnsupportedError(self.name, "the sites' draws are not at hand", "fuse them again, and ask then")
        stack = Subposteriors(tuple(site.name for site in fusion.inputs), tuple(site.value for site in fusion.inputs))
        seed = fusion.provenance["seed"] or 0
        state = ServerState(stack, start_proposal(fusion.draws), (), int(seed), fusion.draws.n_draws)
        variables = [
            {"name": name, "shape": list(shape), "constraint": constraint.to_json()}
            for name, _, shape, constraint in fusion.draws.parts()
        ]
        return Content({"variables": variables}, {"points": state.next_points(1)}, state)

    def site_module(self, fusion: Any, site: str) -> Any:
        """Raise: no fusion knows the sites' models; see `RequestKind.site_module`."""
        raise OptionError("module", f"is needed of {site}", f"give {self.module}")

    def state_problems(self, request: RoundRequest) -> list[Problem]:
        """Return what is wrong with points; see `RequestKind.state_problems`."""
        try:
            n_coordinates = sum(
                as_constraint(one["constraint"], one["name"]).n_coordinates(tuple(one["shape"]))
                for one in request.content.fields["variables"]
            )
        except ConsilienceError as error:
            return [problem.about("request") for problem in error.problems]
        except (ArithmeticError, IndexError, TypeError, ValueError) as error:  # of shapes that no variable has
            return [Problem("request", f"{self.no_request}: {_first_line(error)}")]
        points = request.content.arrays.get("points")
        if set(request.content.arrays) != {"points"} or points is None or points.ndim != 2:
            return [Problem("request", "has no array of points")]
        if points.shape[1] != n_coordinates or not 0 < len(points) <= _MAX_POINTS:
            text = f"has points of shape {points.shape}, expected 1 to {_MAX_POINTS} of {n_coordinates} coordinates"
            return [Problem("request", text)]
        if not np.all(np.abs(points) <= LARGEST):
            return [Problem("request", f"has points that are NaN or infinite, or beyond {LARGEST:g}")]
        return []

    def answer(self, request: RoundRequest, data: Any, *, min_count: float, module: Any = None) -> tuple[int, Content]:
        """Return the site's log densities at the points; see `RequestKind.answer`."""
        if not callable(module):
            raise OptionError("module", f"is a {type(module).__name__}", f"give {self.module}")
        rows, n = _rows_of(data)
        least = max(min_count, 1.0)
        if n < least:
            raise few_rows(None, f"has {n} rows, and log densities of fewer than {least:g} do not leave a site")
        values = _log_densities(module, _variables_of(request), rows, len(request.content.arrays["points"]))
        return n, Content({}, {"log_density": np.maximum(values, -LARGEST)})

    def shape_problems(self, request: RoundRequest, answer: Answer) -> list[Problem]:
        """Return what is wrong with log densities; see `RequestKind.shape_problems`."""
        values = answer.content.arrays.get("log_density")
        count = len(request.content.arrays["points"])
        if set(answer.content.arrays) != {"log_density"} or values is None or values.shape != (count,):
            return [Problem("answer", f"expected one log density for each of {count} points")]
        if not np.all(np.abs(values) <= LARGEST):
            return [Problem("answer", f"has log densities that are NaN or infinite, or beyond {LARGEST:g}")]
        return []

    def sum_problems(self, request: RoundRequest, answer: Answer) -> list[Problem]:
        """Return nothing, as any finite numbers may be log densities; see `RequestKind.sum_problems`."""
        return []

    def reduce(
        self, request: RoundRequest, answers: Mapping[str, StandingAnswer], standing: Mapping[str, StandingAnswer]
    ) -> Reduction:
        """Return points where the weighted ones lie; see `RequestKind.reduce`."""
        chosen, carried = latest_answers(request, answers, standing)
        state = request.content.private
        if strangers := sorted(set(chosen) - set(state.stack.names)):
            text = "answered, and none of the draws that were fused are called so"
            raise InputError(strangers[0], text, code="E-ROUND")
        rounds = [*state.rounds, Points(state.proposal, request.content.arrays["points"], {})]
        for site, one in sorted(answers.items()):  # a late one is of an earlier request
            place = one.request.number - 1
            log_densities = one.answer.content.arrays["log_density"]
            densities = {**rounds[place].densities, site: np.where(log_densities <= -LARGEST, -np.inf, log_densities)}
            rounds[place] = replace(rounds[place], densities=densities)
        before = state.weighted.effective_size if any(one.densities for one in state.rounds) else 0.0
        after = replace(state, rounds=tuple(rounds))
        weighted = after.weighted
        after = replace(after, proposal=weighted.next_proposal())
        is_enough = weighted.is_reliable and weighted.effective_size >= state.n_draws and not weighted.standing_in
        return Reduction(
            Content(request.content.fields, {"points": after.next_points(request.number + 1)}, after),
            weighted.effective_size,
            before,
            chosen,
            carried,
            is_last=is_enough,
        )

    def finish(self, fusion: Any, content: Content) -> Any:
        """Return the fusion with draws of the weighted points; see `RequestKind.finish`."""
        state: ServerState = content.private
        weighted = state.weighted
        # Another stream than those of points, whose numbers begin at 1.
        coordinates = weighted.resampled(state.n_draws, np.random.default_rng([state.seed, 0]))
        draws = replace(
            fusion.draws,
            variables=fusion.draws.from_unconstrained(coordinates),
            attributes={**fusion.draws.attributes, "weighted_by": "log densities of the sites"},
        )
        record: Weighting = {
            "points": len(weighted.points),
            "effective_size": round(weighted.effective_size, 1),
            "pareto_k": round(weighted.pareto_k, 3) if np.isfinite(weighted.pareto_k) else None,
            "sites": list(weighted.answered),
            "standing_in": list(weighted.standing_in),
        }
        method = make_draws_method(str(fusion.provenance["method"]), {})
        return replace(
            fusion,
            draws=draws,
            details={**fusion.details, "weighted": record},
            provenance={**fusion.provenance, "result": {**fusion.provenance["result"], "weighted": record}},
            _verdict=judge_weighted(weighted, method, fusion.details),
        )


def _first_line(error: BaseException) -> str:
    """Return the first line of an error's text."""
    return str(error).partition(chr(10))[0][:200]


def _variables_of(request: RoundRequest) -> dict[str, Array]:
    """Return the points of a request as arrays (n, ...) by variable."""
    points, start, values = request.content.arrays["points"], 0, {}
    for one in request.content.fields["variables"]:
        constraint, shape = as_constraint(one["constraint"], one["name"]), tuple(one["shape"])
        end = start + constraint.n_coordinates(shape)
        with np.errstate(over="ignore", invalid="ignore"):  # of points so far that no parameter is there
            values[str(one["name"])] = constraint.constrain(points[:, start:end], shape)
        start = end
    return values


def _log_densities(function: Callable[..., Any], values: Mapping[str, Array], rows: Any, count: int) -> Array:
    """Return what a site's function answers (n,), -inf outside of its support and where parameters are not finite.

    Raises InputError for a function that fails, or answers something else.
    """
    densities: Array
    is_finite = np.all([np.isfinite(one).reshape(count, -1).all(axis=1) for one in values.values()], axis=0)
    if not np.all(is_finite):
        densities = np.full(count, -np.inf)
        finite_values = {name: one[is_finite] for name, one in values.items()}
        if np.any(is_finite):
            densities[is_finite] = _log_densities(function, finite_values, rows, int(is_finite.sum()))
        return densities
    try:
        with np.errstate(all="ignore"):  # far points overflow in many models, which -inf says
            answered = function(dict(values), rows)
        densities = np.asarray(answered.detach() if hasattr(answered, "detach") else answered, dtype=np.float64)
    except Exception as error:  # whatever the code of the user raises
        text = f"failed on a dictionary of arrays and the rows: {type(error).__name__}: {_first_line(error)}"
        raise InputError("module", text, code="E-ROUND") from error
    if densities.shape == (count, 1):
        densities = densities[:, 0]
    if densities.shape != (count,):
        remedy = "return one number for each point, summed over rows, prior included as it was sampled"
        raise InputError(
            "module", f"gave log densities of shape {densities.shape} for {count} points", remedy, "E-SHAPE"
        )
    if np.any(densities == np.inf):
        raise InputError("module", "gave a log density of +inf, which no distribution has", code="E-ROUND")
    if np.all(np.isnan(densities) | (densities == -np.inf)):
        text = "gave no finite log density at any point"
        raise InputError("module", text, "look at what it takes and returns", "E-NUMBER")
    if np.any(np.isnan(densities)):
        text = f"gave NaN at {int(np.isnan(densities).sum())} of {count} points"
        raise InputError("module", text, "return -inf outside of the support", "E-NUMBER")
    return densities


def _rows_of(data: Any) -> tuple[Any, int]:
    """Return data for a site's function, and the number of rows: of a file its columns or arrays by name."""
    if isinstance(data, str | Path):
        path = Path(data)
        if path.suffix.lower() == ".csv":
            table = read_csv(path)
            numbers = table.numbers(range(len(table.rows[0]) if table.rows else 0))
            if table.header is None:
                return numbers, len(numbers)
            data = {name: numbers[:, place] for place, name in enumerate(table.header)}
        elif path.suffix.lower() == ".npz":
            with open_arrays(path, "arrays of numbers") as file:
                data = {name: file[name] for name in file}
        else:
            data = read_array(path)
    parts = list(data.values()) if isinstance(data, Mapping) else list(data) if isinstance(data, tuple) else [data]
    lengths = [len(part) for part in parts if hasattr(part, "__len__") and np.ndim(part) > 0]
    if not lengths:
        raise InputError("data", f"is a {type(data).__name__} without rows", "give arrays, a table or a file", "E-TYPE")
    return data, max(lengths)
