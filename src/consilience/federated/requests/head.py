"""The second message: the fused network goes back, and sites answer with sums of its last features by class.

The head that these sums give is that of the rows of all sites together, on features of the fused network, whatever the
skew: ridge regression of indicators of classes. The body need not be good; it is the same at all sites. Scores are
multiplied by one number that changes no decision, so that their softmax is calibrated where scores within a class are
Gaussian with the moments that the sums have.

A site that answers late, or not at all after an earlier answer, loses nothing: requests of one exchange publish the
same body, so that its sums are still those of the published features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from pydantic import Field
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from consilience.checks import Array
from consilience.core.verdict import Verdict
from consilience.errors import InputError, Problem
from consilience.estimators.adapters.heads import ridge_rows
from consilience.estimators.heads.sums import FeatureMoments, sums_of_features
from consilience.families.centred_moments import CentredMoments, merge_moments
from consilience.federated.requests.base import Answer, Content, Reduction, RequestKind, RoundRequest, StandingAnswer
from consilience.federated.requests.message_checks import SCATTER_ROUNDING, count_problems, few_rows, latest_answers
from consilience.federated.requests.network_state import (
    PREFIX,
    array_names,
    module_of_state,
    network_arrays,
    network_problems,
    symmetric_matrix,
    upper_triangle,
    weights_in_order,
)
from consilience.files.schemas import StrictModel

RIDGE = 1e-3
"""Ridge of each row of unit variance. Of 84 features of LeNets, ridge and discriminants were within 2 points of each
other on five settings of images; other values were not compared."""

CALIBRATION_DRAWS = 2_000
"""Draws of Gaussian scores that set the scale of the logits: the scale's error is some 3 %, and moves no decision."""
_LARGEST_LOG_SCALE = 8.0
"""Logarithm of the largest scale of logits: a bound for classes that the head separates without an error."""


class HeadRequestFields(StrictModel):
    """JSON values of a request."""

    head: str
    n_rows: float = Field(ge=0.0, allow_inf_nan=False)


class ExactHead(RequestKind):
    """The head of a fused network from the sums of all sites' last features."""

    name: ClassVar[str] = "head"
    summary: ClassVar[str] = "the exact head of a fused network on all sites' data, from sums of its last features"
    supports: ClassVar[str] = "classifying networks whose last layer is linear"
    models: ClassVar[str] = "networks"
    needs_module: ClassVar[bool] = True
    request_fields: ClassVar[type[StrictModel]] = HeadRequestFields
    no_request: ClassVar[str] = "is no network with a head"

    def start(self, fusion: Any) -> Content:
        """Return the fused network, and which layer is its head; see `RequestKind.start`."""
        arrays = network_arrays(fusion, self.name)
        outputs = [path for path, is_output in weights_in_order(fusion.network) if is_output]
        if len(outputs) != 1:
            found = ", ".join(outputs) or "none"
            text = f"the symmetry of this network has {len(outputs)} linear output layers ({found}), expected one"
            raise self.unsupported(text)
        if arrays[PREFIX + array_names(outputs[0])[0]].shape[0] < 2:
            raise self.unsupported("this network has one output")
        return Content({"head": outputs[0], "n_rows": 0.0}, arrays)

    def state_problems(self, request: RoundRequest) -> list[Problem]:
        """Return what is wrong with a network; see `RequestKind.state_problems`."""
        problems, head = network_problems(request.content.arrays), request.content.fields["head"]
        weight = request.content.arrays.get(PREFIX + array_names(head)[0])
        if weight is None or weight.ndim != 2 or weight.shape[0] < 2:
            problems.append(Problem("request", f"its network has no head {head!r:.80}"))
        return problems

    def answer(self, request: RoundRequest, data: Any, *, min_count: float, module: Any = None) -> tuple[int, Content]:
        """Return counts, sums and moments of the last features of a site's rows; see `RequestKind.answer`."""
        network = module_of_state(module, request.content.arrays)
        head = str(request.content.fields["head"])
        n_classes = request.content.arrays[PREFIX + array_names(head)[0]].shape[0]
        features, numbers = _last_features(network, head, data, n_classes)
        counts = np.bincount(numbers, minlength=n_classes)
        thin = (counts > 0) & (counts < min_count)
        if np.any(thin):
            is_kept = ~thin[numbers]
            features, numbers = features[is_kept], numbers[is_kept]
        if not len(features):
            text = f"has no class of {max(min_count, 1):g} rows or more, and sums over fewer do not leave a site"
            raise few_rows(None, text)
        counts_kept, sums, record = sums_of_features(features, numbers, n_classes)
        arrays = {"counts": counts_kept, "sums": sums, "mean": record.mean, "scatter": upper_triangle(record.scatter)}
        return len(features), Content({"withheld": int(thin.sum())}, arrays)

    def answer_shapes(self, request: RoundRequest) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of the sums; see `RequestKind.answer_shapes`."""
        n_classes, h = request.content.arrays[PREFIX + array_names(str(request.content.fields["head"]))[0]].shape
        return {"counts": (n_classes,), "sums": (n_classes, h), "mean": (h,), "scatter": (h * (h + 1) // 2,)}

    def sum_problems(self, request: RoundRequest, answer: Answer) -> list[Problem]:
        """Return what is wrong with sums; see `RequestKind.sum_problems`."""
        arrays = answer.content.arrays
        counts, sums = arrays["counts"], arrays["sums"]
        if problems := count_problems(counts, answer):
            return problems
        scale = np.abs(sums).sum(axis=0) + counts.sum() * np.abs(arrays["mean"])
        if np.any(np.abs(sums.sum(axis=0) - counts.sum() * arrays["mean"]) > 1e-8 * scale + 1e-300):
            return [Problem("answer", "its sums by class do not add up to the sum of all rows")]
        if np.any(np.abs(sums[counts == 0]) > 0):
            return [Problem("answer", "it has sums of a class without rows")]
        moments = _joined([arrays])
        trace = float(np.trace(moments.scatter))
        if np.linalg.eigvalsh(moments.within)[0] < -SCATTER_ROUNDING * max(trace, np.finfo(np.float64).tiny):
            return [Problem("answer", "its scatter within classes is not positive semidefinite: no rows have it")]
        return []

    def reduce(
        self, request: RoundRequest, answers: Mapping[str, StandingAnswer], standing: Mapping[str, StandingAnswer]
    ) -> Reduction:
        """Return the network with the head of all sums that stand; see `RequestKind.reduce`.

        The objective is the negative mean squared error of the head's indicators of classes on the rows of all sites.
        """
        chosen, carried = latest_answers(request, answers, standing)
        moments = _joined([one.answer.content.arrays for one in chosen.values()])
        head = str(request.content.fields["head"])
        weight_name, bias_name = (PREFIX + name for name in array_names(head))
        arrays = dict(request.content.arrays)
        has_bias = bias_name in arrays
        rows, intercepts = solve_head(moments, has_bias)
        objective = -moments.squared_error(rows, intercepts)
        # Logits have no scale in which indicators could be compared: what is lost before is that of a head of zeros.
        published = -moments.squared_error(np.zeros_like(rows), moments.shares if has_bias else np.zeros(len(rows)))
        factor = logit_scale(moments, rows, intercepts)
        arrays[weight_name] = factor * rows
        if has_bias:
            arrays[bias_name] = factor * intercepts
        return Reduction(Content({"head": head, "n_rows": moments.n}, arrays), objective, published, chosen, carried)

    def finish(self, fusion: Any, content: Content) -> Any:
        """Return the fusion with the network of a state; see `RequestKind.finish`."""
        text = (
            f"its head is exact: that of the {content.fields['n_rows']:,.0f} rows of all sites that answered, on the"
            " last features of the fused network."
        )
        return with_network(fusion, content, Verdict("exact head", text, None), "head from sums of all sites")


def with_network(fusion: Any, content: Content, verdict: Verdict, repaired: str) -> Any:
    """Return a fusion of networks with the network of a state and its verdict."""
    own = {name.removeprefix(PREFIX): values for name, values in content.arrays.items() if name.startswith(PREFIX)}
    like = {
        name: _like(values, fusion.network.arrays[name])
        for name, values in own.items()
        if name in fusion.network.arrays
    }
    before = fusion.verdict
    joined = replace(verdict, text=f"{before.text} Then {verdict.text}", candidates=before.candidates)
    changed: dict[str, Any] = {}
    if (chosen := fusion.details.get("chosen")) is not None:  # which stays a candidate
        changed = {
            "details": {**fusion.details, "chosen": f"{repaired}: {chosen}"},
            "candidates": {**fusion.candidates, chosen: fusion.module_of(fusion.network)},
        }
    return replace(fusion, network=fusion.network.with_arrays(like), judgement=joined, repaired=repaired, **changed)


def _like(values: Array, original: Any) -> Any:
    """Return an array in the library of another one."""
    if hasattr(original, "detach"):
        import torch

        return torch.from_numpy(values.copy()).to(original.device)
    return values


def solve_head(moments: FeatureMoments, has_bias: bool) -> tuple[Array, Array]:
    """Return rows (C, h) and intercepts (C,) of the ridge head of these sums; intercepts of zero for one without."""
    if has_bias:
        rows = ridge_rows(moments, RIDGE)
        intercepts: Array = moments.shares - rows @ moments.mean
        return rows, intercepts
    raw = replace(
        moments,
        mean=np.zeros_like(moments.mean),
        scatter=moments.scatter + moments.n * np.outer(moments.mean, moments.mean),
    )
    return ridge_rows(raw, RIDGE), np.zeros(len(moments.n_by_class))


def logit_scale(moments: FeatureMoments, rows: Array, intercepts: Array) -> float:
    """Return the factor of scores whose softmax has the least cross-entropy, on Gaussian scores of these moments.

    Scores of class c are N(W m_c + b, W Sigma W^T), Sigma the covariance within classes; the draws are always the same.
    """
    rng = np.random.default_rng(0)
    covariance = rows @ (moments.within / moments.n) @ rows.T  # (C, C)
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2.0)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    numbers = rng.choice(len(moments.n_by_class), CALIBRATION_DRAWS, p=moments.shares)
    means = moments.means @ rows.T + intercepts  # (C, C)
    scores = means[numbers] + rng.standard_normal((CALIBRATION_DRAWS, len(rows))) @ root.T

    def cross_entropy(log_scale: float) -> float:
        scaled = np.exp(log_scale) * scores
        return float((logsumexp(scaled, axis=1) - scaled[np.arange(len(scaled)), numbers]).mean())

    minimum = minimize_scalar(cross_entropy, bounds=(0.0, _LARGEST_LOG_SCALE), method="bounded")
    return float(np.exp(minimum.x))


def _record(arrays: Mapping[str, Array]) -> CentredMoments:
    n = np.array(float(arrays["counts"].sum()))
    return CentredMoments(n, n, np.array(0.0), arrays["mean"], symmetric_matrix(arrays["scatter"], len(arrays["mean"])))


def _joined(answers: list[Mapping[str, Array]]) -> FeatureMoments:
    """Return the moments of the rows of all answers, in their order."""
    total = merge_moments(_record(arrays) for arrays in answers)
    counts = np.sum([arrays["counts"] for arrays in answers], axis=0)
    sums = np.sum([arrays["sums"] for arrays in answers], axis=0)
    safe = np.where(counts > 0, counts, 1.0)[:, None]
    means = np.where(counts[:, None] > 0, sums / safe, total.mean)
    return FeatureMoments(counts, means, total.mean, total.scatter)


def _last_features(network: Any, head: str, data: Any, n_classes: int) -> tuple[Array, Any]:
    """Return what the head reads of each row (n, h), and the class of each.

    Raises InputError for data without labels or with others than classes, and a network whose logits another layer
    makes.
    """
    from consilience.networks.classes.heads import find_head
    from consilience.networks.descriptions.observations import LabelsOfOutputs, batches_of_data
    from consilience.networks.repair.partial_forward import evaluation_without_gradients

    layer = network.get_submodule(head)
    rows: list[Any] = []
    hook = layer.register_forward_pre_hook(lambda _, arguments: rows.append(arguments[0].detach().cpu().double()))
    labels: list[Any] = []
    try:
        for batch in batches_of_data(data, network):
            if batch.labels is None or isinstance(batch.labels, LabelsOfOutputs):
                text = "has no labels, and sums are by class"
                raise InputError(batch.name, text, "give (X, y), or a .npz with x and y", "E-NEEDED")
            if not labels and find_head(network, batch.inputs[:4]) != head:
                text = f"does not answer with the layer {head!r}, whose rows are to be exact"
                raise InputError("module", text, "give its logits", "E-ROUND")
            rows.clear() if not labels else None  # of the trial
            before = len(rows)
            with evaluation_without_gradients(network):
                network(batch.inputs)
            if len(rows) != before + 1 or rows[-1].ndim != 2 or len(rows[-1]) != len(batch.inputs):
                text = f"reads no single row of features for each input in layer {head!r}"
                raise InputError("module", text, code="E-ROUND")
            labels.append(np.asarray(batch.labels.cpu() if hasattr(batch.labels, "cpu") else batch.labels).reshape(-1))
    finally:
        hook.remove()
    import torch

    features = torch.cat(rows).numpy()
    numbers = _class_numbers(np.concatenate(labels), len(features), n_classes)
    if not np.all(np.isfinite(features)):
        raise InputError("data", "gives features that are NaN or infinite", code="E-NUMBER")
    return features, numbers


def _class_numbers(labels: Array, n_rows: int, n_classes: int) -> Any:
    """Return the labels of so many rows as whole numbers of classes; raise for any others."""
    if len(labels) != n_rows:
        raise InputError("data", f"has {n_rows} rows and {len(labels)} labels", code="E-ROUND")
    is_whole = labels.dtype.kind in "iu" or (labels.dtype.kind == "f" and bool(np.all(labels == np.rint(labels))))
    if not is_whole or labels.min() < 0 or labels.max() >= n_classes:
        text = f"expected labels 0 to {n_classes - 1}, the numbers of the network's outputs"
        raise InputError("data", text, code="E-ROUND")
    return labels.astype(np.int64)
