"""Kronecker factors of a network's layers for its description, from a random sample of the site's observations.

Which observations may enter is known only when all have been seen (``disclosure``), so a uniform sample of the inputs
is kept while they pass (reservoir sampling; Vitter 1985, algorithm R), and the factors are computed at the end, over
some of it that may enter.

How many they are follows from the number of all that may enter, which is said: else it would tell how many others took
places in the sample. The moments of the inputs are of all that may enter, so that a difference gives the ones that the
factors leave out: none, or as many as a class must have to be described.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from consilience.checks import Labels
from consilience.errors import InputError, UnsupportedError
from consilience.networks.classes.heads import find_head
from consilience.networks.classes.logits import TwoClasses
from consilience.networks.descriptions.description import Description
from consilience.networks.descriptions.disclosure import MIN_OBSERVATIONS, Leaving, least_class_observations
from consilience.networks.descriptions.observations import Batch
from consilience.networks.descriptions.statistic import Setting, Statistic
from consilience.networks.fisher.information import Likelihood
from consilience.networks.fisher.kronecker import KroneckerFactors, few_observations_text
from consilience.networks.fisher.kronecker_sums import kronecker_factors
from consilience.networks.fisher.sample_gradients import PerSampleBackward
from consilience.networks.module_inputs import first_line
from consilience.networks.repair.partial_forward import call_module, is_layer
from consilience.networks.torch_modules import evaluating

MAX_LAYER_OBSERVATIONS = 2000
"""Observations that factors are computed from, at most: whole factors of up to 1,000 inputs need as many. The passes
over more would take longer than all else of a description."""

SPARE_SHARE = 0.25
"""Inputs that are kept beyond those that factors are computed from, as a share of these: places for observations that
may not enter. Chosen by hand; where more than a fifth of all may not, the factors may be left out."""

MAX_SAMPLE_ENTRIES = 2**26
"""Entries of the inputs that are kept, at most (256 MiB in float32). Chosen by hand, for memory."""


def factor_bytes(module: nn.Module) -> int:
    """Return the bytes of the factors of all linear layers and convolutions that are trained, in a file."""
    total = 0
    for part in module.modules():
        if not is_layer(part) or not part.weight.requires_grad:
            continue
        groups = 1 if isinstance(part, nn.Linear) else part.groups
        d = int(np.prod(part.weight.shape[1:])) + (part.bias is not None and part.bias.requires_grad)
        o = part.weight.shape[0] // groups
        total += 4 * groups * (d * (d + 1) + o * (o + 1)) // 2
    return total


@dataclass(eq=False)
class InputSample:
    """A uniform random sample of the inputs that pass, with the group of each."""

    capacity: int  # inputs that are kept at most
    inputs: list[Tensor] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    n_seen: int = 0
    is_ragged: bool = False
    _rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def add(self, inputs: Tensor, groups: Labels) -> None:
        """Let inputs (n, ...) pass, of groups (n,)."""
        if self.inputs and inputs.shape[1:] != self.inputs[0].shape:
            self.is_ragged = True
            return
        # Input t of all takes a place with probability capacity / t, at random.
        numbers = np.arange(self.n_seen, self.n_seen + len(inputs))
        places = np.where(numbers < self.capacity, numbers, self._rng.integers(0, numbers + 1))
        self.n_seen += len(inputs)
        for row in np.flatnonzero(places < self.capacity).tolist():
            place, of_row = int(places[row]), inputs[row].detach().to("cpu", copy=True)
            if place < len(self.inputs):
                self.inputs[place], self.groups[place] = of_row, int(groups[row])
            else:
                self.inputs.append(of_row)
                self.groups.append(int(groups[row]))

    def labelled_rows(self, groups: Labels, n: int) -> tuple[Tensor, Labels] | None:
        """Return n of the kept inputs of some groups, drawn at random, and the groups of each."""
        of_groups = np.flatnonzero(np.isin(self.groups, groups))
        if len(of_groups) < n:
            return None
        # Places in the sample are no random order: whoever passed early keeps an early one.
        drawn = np.sort(self._rng.choice(of_groups, n, replace=False))
        return torch.stack([self.inputs[place] for place in drawn.tolist()]), np.asarray(self.groups)[drawn]


def sample_size(n_said: int, most: int, min_count: float) -> int:
    """Return how many of the n observations that may enter factors are computed from, `most` at most."""
    return n_said if n_said <= most else max(0, min(most, n_said - ceil(least_class_observations(min_count))))


class LayerFactors(Statistic):
    """Kronecker factors of the layers over a random sample of the inputs, where they are asked for."""

    def __init__(self, setting: Setting, are_asked: bool) -> None:
        self._module = setting.module
        # Outputs without classes are means, of which only the scale of B depends on a deviation.
        is_classifier = setting.classes is not None or setting.predicts_tokens
        self._likelihood: Literal["categorical", "gaussian"] = "categorical" if is_classifier else "gaussian"
        self._sample: InputSample | None = None
        self.notes: tuple[str, ...] = ()
        has_layers = are_asked and bool(factor_bytes(setting.module))
        if has_layers and setting.parts:
            self.notes = ("second moments of layers are left out: the network takes several inputs",)
        elif has_layers:
            capacity = min(int((1 + SPARE_SHARE) * MAX_LAYER_OBSERVATIONS), MAX_SAMPLE_ENTRIES // max(setting.size, 1))
            self._sample = InputSample(max(1, capacity))

    def add(self, batch: Batch, groups: Labels, answer: Any) -> None:
        """Let the inputs of a batch pass."""
        if self._sample is not None:
            self._sample.add(batch.inputs, groups)

    def state(self, described: Description, leaving: Leaving) -> Description:
        """Return a description with the factors of all layers that may leave."""
        if self._sample is None or not leaving.is_enough:
            return described
        n = sample_size(leaving.n_said, int(self._sample.capacity / (1 + SPARE_SHARE)), leaving.min_count)
        layers, notes = layer_factors(self._module, self._sample, leaving.said, n, leaving.min_count, self._likelihood)
        described = replace(described, notes=(*described.notes, *notes))
        if not layers:
            return described
        return replace(described, layers=layers, layer_observations=float(n), layer_likelihood=self._likelihood)


def _as_classifier(module: nn.Module, inputs: Tensor, likelihood: Likelihood) -> tuple[nn.Module, str]:
    """Return a network with an output for every class, and what the names of its parameters begin with then."""
    with torch.no_grad():
        answer = call_module(module, inputs[:2])
    if likelihood != "categorical" or not isinstance(answer, Tensor) or (answer.ndim > 1 and answer.shape[-1] > 1):
        return module, ""
    if find_head(module, inputs[:4]) is None:
        raise UnsupportedError("the one output is not the log odds of two classes")
    return TwoClasses(module, "logits"), "network."


def layer_factors(
    module: nn.Module, sample: InputSample, groups: Labels, n: int, min_count: float, likelihood: Likelihood
) -> tuple[dict[str, KroneckerFactors], tuple[str, ...]]:
    """Return the factors of a network's layers by path over n inputs of some groups, and what was left out.

    Fewer than `min_count` observations are not told of by a column of a factor either.
    """
    drawn = None
    parameters = {name: values for name, values in module.named_parameters() if values.requires_grad}
    reason = ""
    if sample.is_ragged:
        reason = "inputs have several lengths"
    elif n < MIN_OBSERVATIONS:
        reason = f"{n} observations are fewer than {MIN_OBSERVATIONS}"
    elif not parameters:
        reason = "no parameter is trained"
    elif (drawn := sample.labelled_rows(groups, n)) is None:
        reason = "too many of a random sample of the observations may not enter"
    if reason or drawn is None:
        return {}, (f"second moments of layers are left out: {reason}",)
    inputs = drawn[0]
    try:
        with evaluating(module, keeps_gradients=True), torch.enable_grad():
            asked, prefix = _as_classifier(module, inputs, likelihood)
            backward = PerSampleBackward(asked, {f"{prefix}{name}": values for name, values in parameters.items()})
            layers, only_diagonals = kronecker_factors(
                backward, inputs, likelihood, 1.0, torch.Generator().manual_seed(0), min_count
            )
        layers = {path.removeprefix(prefix): factors for path, factors in layers.items()}
    except (InputError, UnsupportedError, RuntimeError) as error:
        # Networks that answer no tensor, or that autograd cannot follow, are described without.
        return {}, (f"second moments of layers are left out: {first_line(error)}",)
    return layers, (few_observations_text(n, only_diagonals),) if only_diagonals else ()
