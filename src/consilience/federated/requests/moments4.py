"""The second message about shrinkage by fourth moments: frames go out, and a number for each class comes back.

Ledoit's and Wolf's shrinkage is no function of second moments. In the frame of the fused mean, and for discriminants
the fused scales too, it takes the sum of |z|^4 too. So first messages are added, the server publishes the
frames of all rows, and sites answer with that sum: for each class, and for all rows together. One request is enough.

The steps of a Pipeline before such an estimator are affine and known from first messages too: the server publishes
their map z = M x + t of columns, and frames are of z.

All requests of an exchange publish the same frames, so that an answer that comes late, or is carried on, loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from consilience.checks import Array
from consilience.errors import ConsilienceError, InputError, Problem
from consilience.estimators.adapters.table import adapter_of_kind
from consilience.estimators.class_labels import ClassLabels
from consilience.estimators.details import EstimatorDetails, FourthMomentDetails
from consilience.estimators.fourth_moments import fourth_powers, frames_of, with_fourth_moments
from consilience.estimators.fusion import EstimatorFusion
from consilience.estimators.rebuild import apply_steps, rebuild
from consilience.estimators.site_rows import names_within, read_rows
from consilience.estimators.statistics import Statistics
from consilience.estimators.verdict import judge
from consilience.federated.requests.base import Answer, Content, Reduction, RequestKind, RoundRequest, StandingAnswer
from consilience.federated.requests.message_checks import array_problems, count_problems, few_rows, latest_answers
from consilience.files.schemas import Chunked, StrictModel

_LARGEST = 1e150
"""Largest number in a message: sums of many, and products of two, are finite in float64."""


_STEPS = ("matrix", "shift")
"""Names of the map of the steps of a Pipeline, where there are some."""


class FramesFields(StrictModel):
    """JSON values of a request."""

    classes: Chunked[list[bool | int | float | str]] | None = None
    classes_are_objects: bool = False


class FourthMoments(RequestKind):
    """Fourth moments for Ledoit's and Wolf's shrinkage, after which the fused estimator is that of all rows."""

    name: ClassVar[str] = "moments4"
    summary: ClassVar[str] = 'fourth moments by which LedoitWolf and `shrinkage="auto"` shrink as on all rows'
    supports: ClassVar[str] = 'LedoitWolf, and discriminant analyses with `shrinkage="auto"`'
    models: ClassVar[str] = "estimators"
    request_fields: ClassVar[type[StrictModel]] = FramesFields
    no_request: ClassVar[str] = "has no frames"
    largest: ClassVar[float] = _LARGEST

    def start(self, fusion: Any) -> Content:
        """Return the frames of all rows; see `RequestKind.start`."""
        statistics = fusion.statistics if isinstance(fusion, EstimatorFusion) else fusion
        if not isinstance(statistics, Statistics):
            raise self.unsupported(f"this is a {type(statistics).__name__}")
        if not adapter_of_kind(statistics.kind).needs_fourth_moments(statistics.parameters):
            raise self.unsupported(f"a {statistics.kind} with these hyper-parameters needs no fourth moments")
        centres, scales = frames_of(statistics)
        steps = dict(zip(_STEPS, apply_steps(statistics)[2], strict=True)) if statistics.steps else {}
        rows = np.atleast_1d(statistics.rows.n)
        header = statistics.header()
        return Content(
            {"classes": header["classes"], "classes_are_objects": header["classes_are_objects"]},
            {
                "centres": centres,
                "scales": scales,
                "rows": rows,
                "rows_told": np.zeros(len(rows)),
                "fourth": np.zeros(len(centres)),
                **steps,
            },
        )

    def state_problems(self, request: RoundRequest) -> list[Problem]:
        """Return what is wrong with frames; see `RequestKind.state_problems`."""
        try:
            classes = _classes_of(request)
            is_twice = classes is not None and len(set(classes.values)) < len(classes)
        except (ConsilienceError, TypeError, ValueError) as error:
            return [Problem("request", f"has no classes that can be distinguished: {error}")]
        arrays = request.content.arrays
        if problems := array_problems("request", arrays, _frame_shapes(arrays, classes), _LARGEST):
            return problems
        if is_twice:
            return [Problem("request", "names a class twice")]
        if arrays["centres"].shape[1] < 1 or len(arrays["rows"]) < 1 or _n_columns(arrays) < 1:
            return [Problem("request", "has frames of no columns, or of no classes")]
        if np.any(arrays["scales"] <= 0.0):
            problems.append(Problem("request", "has scales that are not positive"))
        if any(np.any(arrays[name] < 0.0) for name in ("rows", "rows_told", "fourth")) or not arrays["rows"].sum() > 0:
            problems.append(Problem("request", "has counts or fourth moments that are negative, or no rows"))
        return problems

    def answer(self, request: RoundRequest, data: Any, *, min_count: float, module: Any = None) -> tuple[int, Content]:
        """Return counts and sums of |z|^4 of a site's rows; see `RequestKind.answer`."""
        del module  # of a network; `exchange.answer` refuses one
        arrays = request.content.arrays
        classes, n_columns = _classes_of(request), _n_columns(arrays)
        names = names_within(data, request.features)
        needs: Any = "nothing" if classes is None else "classes"
        rows = read_rows(data, None, n_columns, names, needs, may_be_sparse=False)
        X, numbers, n_withheld = np.asarray(rows.X, dtype=np.float64), None, 0
        if classes is None:
            counts = np.array([len(X)])
        else:
            numbers, n_unknown = _numbers_of(rows.y, classes)
            counts = np.bincount(numbers[numbers >= 0], minlength=len(classes))
            is_thin = (counts > 0) & (counts < min_count)
            n_withheld = int(is_thin.sum()) + n_unknown
            # As in the first message, whose sums these go with.
            is_kept = (numbers >= 0) & ~is_thin[numbers]
            X, numbers, counts = X[is_kept], numbers[is_kept], np.where(is_thin, 0, counts)
        if len(X) < max(min_count, 1.0):
            what = "rows" if classes is None else "class of the request"
            text = f"has no {what} of {max(min_count, 1.0):g} rows or more, and sums over fewer do not leave a site"
            raise few_rows(data, text)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            if "matrix" in arrays:
                X = X @ arrays["matrix"].T + arrays["shift"]
            fourth = fourth_powers(X, numbers, arrays["centres"], arrays["scales"])
        if not np.all(fourth <= _LARGEST):  # NaN is not
            text = "is so far from the frames of the request that its fourth moments are no numbers"
            raise InputError("data", text, code="E-NUMBER")
        return len(X), Content({"withheld": n_withheld}, {"fourth": fourth, "rows": counts})

    def sum_problems(self, request: RoundRequest, answer: Answer) -> list[Problem]:
        """Return what is wrong with sums; see `RequestKind.sum_problems`."""
        counts, fourth = answer.content.arrays["rows"], answer.content.arrays["fourth"]
        if problems := count_problems(counts, answer):
            return problems
        if np.any(fourth < 0.0):
            return [Problem("answer", "has fourth moments that are negative: no rows have them")]
        if np.any(fourth[: len(counts)][counts == 0] > 0.0):
            return [Problem("answer", "has fourth moments of a class without rows")]
        return []

    def sums(self, request: RoundRequest) -> Mapping[str, tuple[tuple[int, ...], int]]:
        """Return the shapes of the sums, which have no units: rows are in frames; see `RequestKind.sums`."""
        return {name: (request.content.arrays[name].shape, 0) for name in ("fourth", "rows")}

    def reduce(
        self, request: RoundRequest, answers: Mapping[str, StandingAnswer], standing: Mapping[str, StandingAnswer]
    ) -> Reduction:
        """Return mean fourth moments of all answers that stand; see `RequestKind.reduce`.

        The objective is the share of the fused rows that they are of.
        """
        chosen, carried = latest_answers(request, answers, standing)
        sent = [one.answer.content.arrays for one in chosen.values()]
        rows_answered = np.sum([arrays["rows"] for arrays in sent], axis=0)
        sums = np.sum([arrays["fourth"] for arrays in sent], axis=0)
        # Rows behind every frame: of each class, and of all together.
        behind = rows_answered if len(sums) == 1 else np.append(rows_answered, rows_answered.sum())
        fourth = np.where(behind > 0, sums / np.maximum(behind, 1.0), 0.0)
        if not np.all(fourth <= _LARGEST):
            raise InputError("the sums of all sites", "are so large that no model has them", code="E-ROUND")
        published = request.content
        return Reduction(
            Content(published.fields, {**published.arrays, "rows_told": rows_answered, "fourth": fourth}),
            _share(published.arrays["rows"], rows_answered),
            _share(published.arrays["rows"], published.arrays["rows_told"]),
            chosen,
            carried,
        )

    def finish(self, fusion: Any, content: Content) -> Any:
        """Return the fusion with the estimator that fourth moments give; see `RequestKind.finish`."""
        statistics = fusion.statistics if isinstance(fusion, EstimatorFusion) else fusion
        statistics = with_fourth_moments(statistics, np.array(content.arrays["fourth"]))
        if not isinstance(fusion, EstimatorFusion):
            return statistics
        rows, rows_answered = content.arrays["rows"], content.arrays["rows_told"]
        names = ["all rows"] if statistics.classes is None else [f"class {name}" for name in statistics.classes.names]
        moments4: FourthMomentDetails = {
            "rows": float(rows_answered.sum()),
            "is_complete": bool(np.array_equal(rows, rows_answered)),
            "unknown": [name for name, count in zip(names, rows_answered, strict=True) if not count > 0],
        }
        fused_details: EstimatorDetails = fusion.details
        details: EstimatorDetails = {**fused_details, "moments4": moments4}
        return replace(
            fusion,
            statistics=statistics,
            details=details,
            provenance={**fusion.provenance, "result": {**fusion.provenance["result"], "moments4": moments4}},
            _model=rebuild(statistics),
            _verdict=judge(statistics, len(fusion.details.get("sites", ())) or len(fusion.matching.names), details),
        )


def _n_columns(arrays: Mapping[str, Array]) -> int:
    """Return the number of columns of a site's rows, before any step."""
    columns = arrays["matrix" if "matrix" in arrays else "centres"]
    return int(columns.shape[-1]) if columns.ndim else 0


def _frame_shapes(arrays: Mapping[str, Array], classes: ClassLabels | None) -> dict[str, tuple[int, ...]]:
    """Return the shapes that the arrays of a request must have: one frame for each class, and one for all rows."""
    n_classes, n_frames = (1, 1) if classes is None else (len(classes), len(classes) + 1)
    d = arrays["centres"].shape[-1] if "centres" in arrays and arrays["centres"].ndim else 0
    frames, rows = (n_frames, d), (n_classes,)
    shapes: dict[str, tuple[int, ...]] = {"centres": frames, "scales": frames, "rows": rows, "rows_told": rows}
    steps: dict[str, tuple[int, ...]] = {"matrix": (d, _n_columns(arrays)), "shift": (d,)}
    return {**shapes, "fourth": (n_frames,), **(steps if "matrix" in arrays else {})}


def _share(rows: Array, rows_answered: Array) -> float:
    """Return the share of rows that answers cover; a class with more than it had counts as covered."""
    return float(np.minimum(rows, rows_answered).sum() / rows.sum())


def _classes_of(request: RoundRequest) -> ClassLabels | None:
    labels = request.content.fields.get("classes")
    if labels is None:
        return None
    return ClassLabels(tuple(labels), bool(request.content.fields.get("classes_are_objects", False)))


def _numbers_of(labels: Any, classes: ClassLabels) -> tuple[Any, int]:
    """Return the number of the class of each row (n,), -1 for those of no site's first message, and how many such.

    A table has texts where an array has numbers, so labels are also known by their text.
    """
    by_value = {value: number for number, value in enumerate(classes.values)}
    by_text = {str(value): number for number, value in enumerate(classes.values)}
    label_list = np.asarray(labels).tolist()
    numbers = {label: by_value.get(label, by_text.get(str(label), -1)) for label in set(label_list)}
    return np.array([numbers[label] for label in label_list], dtype=np.int64), sum(one < 0 for one in numbers.values())
