"""Score a fused Bayesian network and a site's own on labeled data: accuracy, log likelihood, entropy, calibration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.bayesian.ensemble import BayesianEnsemble
from consilience.bayesian.file_format import FORMAT
from consilience.bayesian.files import read_bayesian_network
from consilience.bayesian.fusion import BayesianFusion
from consilience.bayesian.network import BayesianNetwork
from consilience.bayesian.predictive import FLOOR, predictive_scores
from consilience.bayesian.readers.table import as_bayesian_network, is_bayesian
from consilience.checks import Array
from consilience.core.inputs import NamedInput
from consilience.errors import InputError, OptionError
from consilience.networks.evaluate import LabeledInputs, as_template, labeled_inputs, module_of
from consilience.networks.evaluation import NetworkEvaluation, compare_networks
from consilience.posteriors.evaluation import Score

if TYPE_CHECKING:
    from torch import nn

SAMPLES = 128
"""Samples of the weights that predictions are means over."""


def evaluate_bayesian(fused: NamedInput, local: NamedInput, data: Any, labels: Any, module: Any) -> NetworkEvaluation:
    """Compare a fused Bayesian network with a site's own; see ``evaluate`` for what it takes.

    Raises
    ------
    InputError
        For networks or data that do not fit.
    OptionError
        For networks without a module to load them into.
    """
    template = as_template(module)
    both = [_predictor(one, template) for one in (fused, local)]
    name = str(data) if isinstance(data, str | Path) else "data"
    rows = labeled_inputs(data, labels, _module_of(both[0]))
    found = [_predictions(one, rows, name) for one in both]
    logs = [np.log(np.maximum(one, FLOOR)) for one in found]
    result = compare_networks(logs[0], logs[1], rows.labels)
    scores = [predictive_scores(one, rows.labels) for one in found]
    return NetworkEvaluation(
        scores=(
            *result.scores,
            Score("predictive entropy", "nats", None, scores[0].entropy, scores[1].entropy),
            Score("calibration error", "", False, scores[0].calibration_error, scores[1].calibration_error),
        ),
        difference=result.difference,
        loss_difference=result.loss_difference,
        classes=result.classes,
        notes=(*result.notes, f"probabilities are means over {SAMPLES} samples of the weights"),
    )


def _predictor(one: NamedInput, template: nn.Module | None) -> BayesianNetwork | BayesianEnsemble:
    """Return a Bayesian network that can be asked, whatever form it came in."""
    name = one.label
    model = one.model.model if isinstance(one.model, BayesianFusion) else one.model
    if isinstance(model, BayesianEnsemble):
        return model
    if one.format != FORMAT and not is_bayesian(model):
        raise InputError(f"{name}: is no Bayesian network, expected one as the other model")
    found = as_bayesian_network(model, None, name) if one.file is None else read_bayesian_network(one.file)
    if found.module is None and template is not None:
        found = found.with_module(_with_widths(found, template))
    if found.module is None:
        raise OptionError(f"{name}: is a network without code; give a module of its architecture (module=, --module)")
    return found


def _with_widths(bnn: BayesianNetwork, template: nn.Module) -> nn.Module:
    """Return a copy of a module with as many units as the network has; its buffers are taken as they are."""
    parameters = dict(template.named_parameters(remove_duplicate=False))
    buffers = {key: values for key, values in template.state_dict().items() if key not in parameters}
    return module_of({**buffers, **bnn.means}, template, bnn.name)


def _module_of(model: BayesianNetwork | BayesianEnsemble) -> nn.Module:
    one = model.members[0] if isinstance(model, BayesianEnsemble) else model
    assert one.module is not None  # noqa: S101  (narrows the type; a network without one was refused)
    return one.module


def _predictions(model: BayesianNetwork | BayesianEnsemble, rows: LabeledInputs, name: str) -> Array:
    found = model.predict(rows.inputs, SAMPLES, 0)
    if not np.isfinite(found).all():
        row = int(np.flatnonzero(~np.isfinite(found).all(axis=1))[0])
        raise InputError(f"{name}: row {row}, counted from 0: the network's answer is not finite")
    if int(rows.labels.max()) >= found.shape[1]:
        raise InputError(f"labels: found {int(rows.labels.max())}, but the network has {found.shape[1]} classes")
    return found
