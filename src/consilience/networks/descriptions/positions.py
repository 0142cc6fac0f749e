"""What a site says of networks that answer every token or pixel: classes of positions, and losses of next tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from consilience.checks import Labels
from consilience.errors import InputError
from consilience.networks.descriptions.description import Description
from consilience.networks.descriptions.disclosure import Leaving
from consilience.networks.descriptions.observations import Batch, numbers_of_classes
from consilience.networks.descriptions.statistic import Setting, Statistic
from consilience.networks.output_layout import OutputLayout, have_next_token


class PositionCounts(Statistic):
    """Tokens or pixels of every class, in units of observations: its share of the positions times their number."""

    def __init__(self, classes: tuple[str, ...], layout: OutputLayout) -> None:
        self._classes, self._layout = classes, layout
        self._counts = np.zeros(len(classes))
        self._observations = np.zeros(len(classes), dtype=np.int64)  # that have a class somewhere

    def add(self, batch: Batch, groups: Labels, answer: Any) -> None:
        """Count the classes of a batch, whose labels are by position."""
        n = len(batch.inputs)
        labels = batch.labels.cpu().numpy() if isinstance(batch.labels, Tensor) else np.asarray(batch.labels)
        if labels.size != n * (n_positions := self._layout.n_positions):
            text = f"has labels of shape {labels.shape}, expected one for each of {n_positions} positions of {n} inputs"
            raise InputError(batch.name, text, code="E-SHAPE")
        numbers = numbers_of_classes(labels.reshape(-1), self._classes, batch.name).reshape(n, -1)
        rows, _ = np.nonzero(numbers >= 0)
        by_input = np.zeros((n, len(self._classes)))
        np.add.at(by_input, (rows, numbers[numbers >= 0]), 1.0)
        self._counts += by_input.sum(axis=0) / n_positions
        self._observations += (by_input > 0).sum(axis=0)

    def state(self, described: Description, leaving: Leaving) -> Description:
        """Return a description with the counts of the classes that `min_count` observations have."""
        is_said = self._observations >= leaving.min_count
        withheld = tuple(self._classes[k] for k in np.flatnonzero((self._observations > 0) & ~is_said))
        if withheld:
            leaving.left_out.append(f"fewer than {leaving.min_count:g} observations have {', '.join(withheld)}")
        counts = np.where(is_said, self._counts, 0.0)
        return replace(described, class_counts=counts, withheld=(*described.withheld, *withheld))


class NextTokenLoss(Statistic):
    """The mean loss of a language model on the next tokens of the texts, in nats."""

    def __init__(self, setting: Setting) -> None:
        self._module = setting.module
        self._total, self._n = 0.0, 0

    def add(self, batch: Batch, groups: Labels, answer: Any) -> None:
        """Add the losses of a batch."""
        logits, tokens = answer[:, :-1].float().cpu(), batch.inputs.cpu()
        is_said = have_next_token(self._module, batch.asked).cpu()
        losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        self._total += float(losses[is_said.flatten()].double().sum())
        self._n += int(is_said.sum())

    def state(self, described: Description, leaving: Leaving) -> Description:
        """Return a description with the loss to four digits."""
        if not leaving.is_described or not self._n:
            return described
        return replace(described, own_loss=float(f"{self._total / self._n:.4g}"))
