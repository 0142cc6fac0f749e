"""Public functions for networks: their symmetry, their units in another order, and the loss between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.errors import InputError
from consilience.networks.network import Network
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.torch_modules import arrays_of_module, is_module, module_with

if TYPE_CHECKING:
    from torch import nn

    from consilience.networks.landscape.barrier import Barrier
    from consilience.networks.landscape.plane import Plane


def symmetry(module: nn.Module, example: Any, rng: int | np.random.Generator = 0) -> Symmetry:
    """Return which axes of a module's arrays move together, traced from what it computes, and proved.

    Parameters
    ----------
    module
        Any torch module; it is left as it is.
    example
        What it is called with: a tensor, a tuple of arguments, or a dict of keyword arguments.
    rng
        Draws the changes of the proof.

    Returns
    -------
    Symmetry
        ``.groups`` has the number of units by group, ``.notes`` what could not be looked through.

    Raises
    ------
    UnsupportedError
        If the module cannot be exported.
    InputError
        If what was traced does not hold, naming the groups.

    Examples
    --------
    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
    >>> symmetry(net, torch.zeros(3, 4)).groups
    {'0': 6}
    """
    from consilience.networks.tracing.proof import symmetry as traced_and_proved

    if not is_module(module):
        raise InputError(f"module: expected a torch module, found {type(module).__name__}")
    return traced_and_proved(module, example, rng)


def permute(net: Any, symmetry: Symmetry, orders: Mapping[str, Sequence[int]]) -> Any:
    """Return the same function with the units of some groups in another order.

    Parameters
    ----------
    net
        A torch module or a Network; it is left as it is.
    symmetry
        Its symmetry.
    orders
        By group, the old number of each new unit.

    Raises
    ------
    OptionError
        For groups that do not exist and orders that are not permutations.
    InputError
        If the symmetry is of another network.

    Examples
    --------
    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    >>> x = torch.ones(1, 4)
    >>> other = permute(net, symmetry(net, x), {"0": [2, 0, 1]})
    >>> bool(torch.equal(other[0].weight, net[0].weight[[2, 0, 1]])), bool(torch.allclose(other(x), net(x)))
    (True, True)
    """
    if isinstance(net, Network):
        return net.permute(orders)
    if not is_module(net):
        raise InputError(f"net: expected a torch module or a Network, found {type(net).__name__}")
    moved = Network(arrays_of_module(net), symmetry, type(net).__name__).permute(orders)
    return module_with(net, moved.arrays, symmetry).train(net.training)


def barrier(net_a: nn.Module, net_b: nn.Module, evaluate: Any, points: int = 25, **options: Any) -> Barrier:
    """Return how high the way is between two networks of the same shape: see `consilience.networks.landscape.barrier`.

    Parameters
    ----------
    net_a, net_b
        torch modules; after alignment, say ``fusion.aligned_models``.
    evaluate
        A function of a module that returns numbers by name, such as ``{"loss": ..., "error": ...}``; with a
        `consilience.networks.landscape.Classification` many networks are evaluated at once.
    points
        Points on the line, ends included.
    **options
        ``refine``, ``refresh`` and ``include_frozen``.

    Raises
    ------
    InputError
        For networks that are not of the same shape.
    """
    from consilience.networks.landscape.barrier import barrier as between

    return between(net_a, net_b, evaluate, points, **options)


def plane(net_a: nn.Module, net_b: nn.Module, net_c: nn.Module, evaluate: Any, **options: Any) -> Plane:
    """Return what networks give on the plane through three of them: see `consilience.networks.landscape.plane`.

    Parameters
    ----------
    net_a, net_b, net_c
        torch modules of the same shape.
    evaluate
        As for `barrier`.
    **options
        ``points``, ``margin``, ``refresh``, ``marked``, ``names`` and ``include_frozen``.

    Raises
    ------
    InputError
        For networks that are not of the same shape, or that lie on one line.
    """
    from consilience.networks.landscape.plane import plane as through

    return through(net_a, net_b, net_c, evaluate, **options)
