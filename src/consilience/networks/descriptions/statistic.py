"""A statistic of a site's observations: summed over batches, and stated as far as it may leave."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from consilience.checks import Labels
from consilience.networks.descriptions.description import Description
from consilience.networks.descriptions.disclosure import Leaving
from consilience.networks.descriptions.observations import Batch


@dataclass(frozen=True, eq=False)
class Setting:
    """What is known of a network and its observations with the first batch."""

    module: nn.Module  # the network
    first: Tensor  # (2, ...): two inputs, on the network's device
    n_outputs: int | None  # numbers of an answer; None where it is no vector
    classes: tuple[str, ...] | None  # names of the classes
    are_labelled: bool  # whether there are labels of classes
    is_token: bool  # whether inputs are tokens
    hooks: ExitStack  # what removes hooks from the network in the end

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an input."""
        return tuple(self.first.shape[1:])

    @property
    def size(self) -> int:
        """Numbers d of an input."""
        return int(np.prod(self.shape))

    @property
    def n_classes(self) -> int:
        """Number of classes by which observations are distinguished."""
        return len(self.classes) if self.are_labelled and self.classes is not None else 0

    @property
    def n_groups(self) -> int:
        """The classes, and those without one."""
        return self.n_classes + 1


class Statistic(ABC):
    """What is summed over the observations of a site, by class."""

    def begin(self, groups: Labels) -> None:
        """Learn the groups (n,) of the observations that pass through the network next."""
        del groups

    def add(self, batch: Batch, groups: Labels, answer: Any) -> None:
        """Add observations of some groups (n,), and what the network answers."""
        del batch, groups, answer

    @abstractmethod
    def state(self, described: Description, leaving: Leaving) -> Description:
        """Return a description with what may leave of this statistic, and add what does not to ``leaving.left_out``."""


def output_tensor(output: Any) -> Tensor | None:
    """Return the tensor of outputs in what a network returns: itself, its ``logits``, or the first of several."""
    if isinstance(output, Mapping):
        output = output.get("logits", next(iter(output.values()), None))
    elif isinstance(output, tuple | list) and output:
        output = output[0]
    output = getattr(output, "logits", output)
    return output if isinstance(output, Tensor) else None


def on_device(inputs: Tensor, module: nn.Module) -> Tensor:
    """Return inputs on the device of a module."""
    like = next((tensor for tensor in (*module.parameters(), *module.buffers())), inputs)
    return inputs.to(like.device)
