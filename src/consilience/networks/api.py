"""Public functions for networks: symmetry, permutation of units, loss barriers and planes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.errors import InputError
from consilience.networks.network import Network
from consilience.networks.parametrised_layers import plain_module
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.torch_modules import arrays_of_module, is_module, module_with, unwrapped

if TYPE_CHECKING:
    from torch import nn

    from consilience.networks.landscape.barrier import Barrier
    from consilience.networks.landscape.plane import Plane


def symmetry(
    module: nn.Module, example: Any, rng: int | np.random.Generator = 0, *, output: str | int | None = None
) -> Symmetry:
    """Return which axes of a module's arrays move together, traced from what it computes, and proved.

    Parameters
    ----------
    module : Module
        Any torch module; it is left as it is.
    example : Tensor, tuple or dict
        Example input: a tensor, a tuple of arguments, or a dict of keyword arguments.
    rng : int or Generator, optional
        Draws the changes of the proof. Default: 0.
    output : str or int, optional
        Which output is meant, by its name or its place in a tuple, where the module returns several: what the others
        show may move. Default: its logits if it names any, else all.

    Returns
    -------
    Symmetry
        ``.groups`` has the number of units by group, ``.roles`` what each is (heads, a residual stream, units),
        ``.notes`` the operations that could not be looked through.

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
    from consilience.networks.module_outputs import with_output
    from consilience.networks.tracing.proof import symmetry as traced_and_proved

    if not is_module(module):
        raise InputError("module", f"expected a torch module, found {type(module).__name__}", code="E-TYPE")
    return traced_and_proved(with_output(plain_module(unwrapped(module)), output), example, rng)


def permute(net: Any, symmetry: Symmetry, orders: Mapping[str, Sequence[int]]) -> Any:
    """Return the same function with the units of some groups in another order.

    Parameters
    ----------
    net : Module or Network
        The network; it is left as it is.
    symmetry : Symmetry
        Its symmetry.
    orders : mapping of str to sequence of int, shape (k,)
        By group, the old number of each new unit.

    Returns
    -------
    Module or Network
        Of the same kind as `net`.

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
        raise InputError("net", f"expected a torch module or a Network, found {type(net).__name__}", code="E-TYPE")
    net = unwrapped(net)
    moved = Network(arrays_of_module(plain_module(net)), symmetry, type(net).__name__).permute(orders)
    return module_with(net, moved.arrays, symmetry).train(net.training)


def barrier(net_a: nn.Module, net_b: nn.Module, evaluate: Any, points: int = 25, **options: Any) -> Barrier:
    """Return the loss barrier between two networks of the same shape: see `consilience.networks.landscape.barrier`.

    Parameters
    ----------
    net_a, net_b : Module
        torch modules; after alignment, say ``fusion.aligned_models``.
    evaluate : callable or Classification
        A function of a module that returns numbers by name, such as ``{"loss": ..., "error": ...}``; with a
        `consilience.networks.landscape.Classification` many networks are evaluated at once.
    points : int, optional
        Points on the line, ends included. Default: 25.
    **options
        ``refine``, ``refresh`` and ``include_frozen``.

    Raises
    ------
    InputError
        For networks that are not of the same shape.
    """
    from consilience.networks.landscape.barrier import barrier as loss_barrier

    return loss_barrier(_plain(net_a), _plain(net_b), evaluate, points, **options)


def plane(net_a: nn.Module, net_b: nn.Module, net_c: nn.Module, evaluate: Any, **options: Any) -> Plane:
    """Return the loss on the plane through three networks: see `consilience.networks.landscape.plane`.

    Parameters
    ----------
    net_a, net_b, net_c : Module
        torch modules of the same shape.
    evaluate : callable or Classification
        As for `barrier`.
    **options
        ``points``, ``margin``, ``refresh``, ``marked``, ``names`` and ``include_frozen``.

    Raises
    ------
    InputError
        For networks that are not of the same shape, or that lie on one line.
    """
    from consilience.networks.landscape.plane import plane as loss_plane

    return loss_plane(_plain(net_a), _plain(net_b), _plain(net_c), evaluate, **options)


def _plain(net: Any) -> Any:
    """Return a module whose layers have their weights as parameters, on which losses are computed."""
    return plain_module(net) if is_module(net) else net
