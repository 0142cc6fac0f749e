"""Networks of different classes: each is given a head of all classes that any of them knows.

A site that never saw a class has no row for it. Its network gets one that hardly ever answers: with w_c and b_c the
rows and biases of its own C classes,

    w_new = mean_c w_c,    b_new = mean_c b_c - 10,

so that the probability of a new class is below exp(-10) / C for every input (the mean of logits is at most the
logarithm of the mean of their exponentials), and the others keep their proportions. Its share in such a class is 0, and
so is its part in the head by class and in the stationary ensemble.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.drawing.words import natural_key
from consilience.errors import InputError, Problem
from consilience.networks.descriptions.description import Description
from consilience.networks.inputs import DescribedNetwork
from consilience.networks.torch_modules import arrays_of_module

if TYPE_CHECKING:
    from torch import Tensor, nn

LOG_ODDS_OF_NEW = 10.0
"""By how much a new class is less likely than the geometric mean of a network's own: 1 in 22,000. Chosen by hand."""


def unite_classes(networks: Sequence[DescribedNetwork], example: Any) -> list[DescribedNetwork]:
    """Return networks with heads of the union of their classes, in natural order of the names.

    `example` is an input that they take. Raises InputError, naming networks that are no modules, do not name their
    classes, or do not end in a linear layer with a bias.
    """
    text, remedy = "is no module, so its head cannot be given other classes", "give `module=`, or its module"
    problems = [Problem(network.label, text, remedy, "E-TYPE") for network in networks if network.module is None]
    problems += [
        Problem(network.label, "does not name its classes", "describe it with `classes=`, a list of names")
        for network in networks
        if network.description is None or network.description.classes is None
    ]
    if problems:
        raise InputError(problems)
    if example is None:
        raise InputError("example", "needed to find the networks' heads", "give an input that they take", "E-NEEDED")
    names = {
        name for network in networks if network.description is not None for name in network.description.classes or ()
    }
    union = tuple(sorted(names, key=natural_key))
    united: list[DescribedNetwork] = []
    for network in networks:
        try:
            description = network.description
            assert description is not None  # noqa: S101  (checked above)
            places = np.array([union.index(name) for name in description.classes or ()])
            module, head = _widened(network, places, len(union), example)
            renumbered = _renumbered(description, places, union, head)
            # Its symmetry is traced anew, for a head of another size.
            arrays = arrays_of_module(module)
            united.append(replace(network, module=module, arrays=arrays, symmetry=None, description=renumbered))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return united


def _widened(network: DescribedNetwork, places: Any, n_classes: int, example: Any) -> tuple[nn.Module, str]:
    """Return a copy of a module whose head has a row for every class, its own in their places, and the head's path."""
    import torch  # here, since networks of NumPy arrays need none

    from consilience.networks.classes.heads import find_head

    path = find_head(network.module, example)  # type: ignore[arg-type]
    layer = None if path is None or network.module is None else network.module.get_submodule(path)
    if path is None or not isinstance(layer, torch.nn.Linear) or "bias" not in layer.state_dict():
        raise InputError(network.label, "does not end in a linear layer with a bias, which could take more classes")
    if len(places) != layer.out_features:
        text = f"names {len(places)} classes, and its head has {layer.out_features}"
        raise InputError(network.label, text, code="E-SHAPE")
    module = copy.deepcopy(network.module)
    index = torch.as_tensor(places, device=layer.weight.device)
    head = torch.nn.Linear(layer.in_features, n_classes).to(layer.weight)
    with torch.no_grad():
        head.weight.copy_(_placed(layer.weight, layer.weight.mean(dim=0, keepdim=True), index, n_classes))
        head.bias.copy_(_placed(layer.bias, layer.bias.mean(dim=0, keepdim=True) - LOG_ODDS_OF_NEW, index, n_classes))
    if not path:
        return head.train(layer.training), path
    parent, _, name = path.rpartition(".")
    setattr(module.get_submodule(parent), name, head.train(layer.training))  # type: ignore[union-attr]
    return module, path  # type: ignore[return-value]


def _placed(rows: Tensor, new: Tensor, places: Tensor, n_classes: int) -> Tensor:
    """Return rows (C, ...) in their places of n_classes rows, the others of a new one (1, ...)."""
    placed = new.repeat(n_classes, *([1] * (rows.ndim - 1)))
    placed[places] = rows
    return placed


def _renumbered(description: Description, places: Any, union: tuple[str, ...], head: str) -> Description:
    """Return a description in the order of the union; it has no observations of the new classes.

    Nor has it information on their rows of the head at a path, whose probabilities are nearly 0.
    """
    counts = features = None
    if description.class_counts is not None:
        counts = np.zeros(len(union))
        counts[places] = description.class_counts
    if description.class_features is not None:
        features = np.full((len(union), description.class_features.shape[1]), np.nan)
        features[places] = description.class_features
    moments = {int(places[label]): of_class for label, of_class in description.class_moments.items()}
    mixtures = {int(places[label]): parts for label, parts in description.class_mixtures.items()}
    tokens = {int(places[label]): of_class for label, of_class in description.class_tokens.items()}
    layers = dict(description.layers)
    if head in layers:  # its factor of the outputs (1, classes, classes) is zero for new ones
        outputs = np.zeros((1, len(union), len(union)))
        outputs[np.ix_([0], places, places)] = layers[head].outputs
        layers[head] = replace(layers[head], outputs=outputs)
    return replace(
        description,
        classes=union,
        class_counts=counts,
        class_features=features,
        class_moments=moments,
        class_mixtures=mixtures,
        class_tokens=tokens,
        layers=layers,
    )
