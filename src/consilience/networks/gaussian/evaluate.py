"""Evaluation of a fused Bayesian network against a site's own: accuracy, log likelihood, entropy, calibration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.checks import Array
from consilience.core.evaluation import Evaluation, Score
from consilience.core.inputs import NamedInput
from consilience.core.scores import ScoreKind
from consilience.errors import InputError, OptionError
from consilience.files.document import BAYESIAN
from consilience.networks.evaluate import LabeledInputs, compare_networks, labeled_inputs, module_of
from consilience.networks.gaussian.file_format import read_bayesian
from consilience.networks.gaussian.fusion import BayesianEnsemble, BayesianFusion
from consilience.networks.gaussian.network import BayesianNetwork
from consilience.networks.gaussian.predictive import MIN_PROBABILITY, predictive_scores
from consilience.networks.gaussian.readers.table import as_bayesian_network, is_bayesian
from consilience.networks.torch_modules import make_template

if TYPE_CHECKING:
    from torch import nn

SAMPLES = 128
"""Samples of the weights in a prediction: the test samples of table 1 of Rossi et al. 2023."""


def evaluate_bayesian(fused: NamedInput, local: NamedInput, data: Any, labels: Any, module: Any) -> Evaluation:
    """Compare a fused Bayesian network with a site's own on the same labelled data.

    Both are Bayesian networks, ensembles of them, fusions or files; `data` and `labels` are as for `labeled_inputs`;
    `module` is for networks that came without one. Raises InputError for networks or data that do not fit. Raises
    OptionError for networks without a module to load them into.
    """
    template = make_template(module)
    models = [_predictor(named, template) for named in (fused, local)]
    name = str(data) if isinstance(data, str | Path) else "data"
    rows = labeled_inputs(data, labels, _module_of(models[0]))
    probabilities = [_predictions(model, rows, name) for model in models]  # (n, n_classes) each
    log_p = [np.log(np.maximum(p, MIN_PROBABILITY)) for p in probabilities]
    kind = ScoreKind.PREDICTIVE  # means over draws of the weights
    result = compare_networks(log_p[0], log_p[1], rows.labels, kind)
    scores = [predictive_scores(p, rows.labels) for p in probabilities]
    return replace(
        result,
        scores=(
            *result.scores,
            Score("predictive entropy", "nats", None, scores[0].entropy, scores[1].entropy, kind),
            Score("calibration error", "", False, scores[0].calibration_error, scores[1].calibration_error, kind),
        ),
        notes=(*result.notes, f"probabilities are means over {SAMPLES} samples of the weights"),
    )


def _predictor(named: NamedInput, template: nn.Module | None) -> BayesianNetwork | BayesianEnsemble:
    """Return a Bayesian network with a module, whatever form the model came in."""
    name = named.label
    model = named.model.model if isinstance(named.model, BayesianFusion) else named.model
    if isinstance(model, BayesianEnsemble):
        return model
    if named.format != BAYESIAN and not is_bayesian(model):
        raise InputError(name, "is no Bayesian network, expected one as the other model", code="E-TYPE")
    bnn = as_bayesian_network(model, None, name) if named.file is None else read_bayesian(named.file)
    if bnn.module is None and template is not None:
        bnn = bnn.with_module(with_widths(bnn, template))
    if bnn.module is None:
        raise OptionError(name, "is a network without code", "give a module of its architecture (`module=`)")
    return bnn


def with_widths(bnn: BayesianNetwork, template: nn.Module) -> nn.Module:
    """Return a copy of a module with as many units as the network has; its buffers are taken as they are."""
    parameters = dict(template.named_parameters(remove_duplicate=False))
    buffers = {key: values for key, values in template.state_dict().items() if key not in parameters}
    return module_of({**buffers, **bnn.means}, template, bnn.name)


def _module_of(model: BayesianNetwork | BayesianEnsemble) -> nn.Module:
    bnn = model.members[0] if isinstance(model, BayesianEnsemble) else model
    assert bnn.module is not None  # noqa: S101  (narrows the type; a network without one was refused)
    return bnn.module


def _predictions(model: BayesianNetwork | BayesianEnsemble, rows: LabeledInputs, name: str) -> Array:
    """Return class probabilities (n, n_classes), or raise where they are not finite or the labels are no classes."""
    probabilities = model.predict(rows.inputs, SAMPLES, 0)
    if not np.isfinite(probabilities).all():
        row = int(np.flatnonzero(~np.isfinite(probabilities).all(axis=1))[0])
        raise InputError(name, f"row {row}, counted from 0: the network's answer is not finite", code="E-NUMBER")
    n_classes = probabilities.shape[1]
    if int(rows.labels.max()) >= n_classes:
        raise InputError("labels", f"found {int(rows.labels.max())}, but the network has {n_classes} classes")
    return probabilities
