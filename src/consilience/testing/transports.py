"""Laws of transports: how units of one network become units of another."""

from __future__ import annotations

import numpy as np

from consilience.networks.symmetry.axes import Side
from consilience.networks.symmetry.transport import Transport, permutation
from consilience.testing.law import require, require_equal

N_COLUMNS = 3
"""Columns of the arrays that are moved."""


def check_transport(transport: Transport, rng: np.random.Generator | int = 0) -> None:
    """Hold a transport to the laws of transports.

    Parameters
    ----------
    transport : Transport
        From k_old units to k_new.
    rng : Generator or int, optional
        Draws the arrays that are moved. Default: 0.

    Raises
    ------
    BrokenLawError
        Naming the first law that does not hold.

    Examples
    --------
    >>> check_transport(permutation(np.array([2, 0, 1])))
    """
    rng = np.random.default_rng(rng)
    receiving, sending = np.asarray(transport.receiving), np.asarray(transport.sending)
    law = "both sides have the shape (k_new, k_old)"
    require(law, receiving.ndim == 2 and receiving.shape == sending.shape, f"{receiving.shape} and {sending.shape}")
    width, n_old = receiving.shape
    require(law, transport.width == width, f"width is {transport.width}, expected {width}")
    _check_movement(transport, rng)
    owned, labels = np.asarray(transport.owned), np.asarray(transport.labels)
    law = "a unit is owned if anything comes to it"
    require_equal(law, owned, (receiving != 0).any(axis=1), "owned")
    law = "labels are new units, or -1"
    require(law, labels.shape == (n_old,) and labels.dtype.kind == "i", f"labels are {labels.dtype} {labels.shape}")
    require(law, ((labels >= -1) & (labels < width)).all(), f"labels go from {labels.min()} to {labels.max()}")
    law = "a label is a unit to which the old one goes"
    kept = np.flatnonzero(labels >= 0)
    require(law, (sending[labels[kept], kept] != 0).all(), "a labelled unit sends nothing from there")
    _check_measure(transport, rng)
    _check_signs(transport, n_old)
    order = rng.permutation(width)
    later = transport.then(permutation(order))
    law = "a permutation of the new units permutes the rows"
    require_equal(law, later.receiving, receiving[order], "the output side")
    require_equal(law, later.sending, sending[order], "the input side")
    require_equal(law, later.unsigned.receiving, transport.unsigned.receiving[order], "the output side without signs")


def _check_movement(transport: Transport, rng: np.random.Generator) -> None:
    """Hold a transport to moving by its two matrices, along any axis, in the type of the array."""
    sides: tuple[tuple[Side, np.ndarray], ...] = (("output", transport.receiving), ("input", transport.sending))
    for side, matrix in sides:
        values = rng.standard_normal((matrix.shape[1], N_COLUMNS))
        law = f"the {side} side moves by its matrix"
        require_equal(law, transport.move(values, 0, side), matrix @ values, "what is moved")
        require_equal(law, transport.move(values.T, 1, side), values.T @ matrix.T, "what is moved along axis 1")
        moved = transport.move(values.astype(np.float32), 0, side)
        require("arrays keep their type", moved.dtype == np.float32, f"float32 became {moved.dtype}")


def _check_measure(transport: Transport, rng: np.random.Generator) -> None:
    """Hold a transport to its plan being mass, and its cost that of the plan."""
    plan = np.asarray(transport.plan)
    law = "the plan is mass"
    require(law, plan.shape == transport.receiving.shape, f"the plan has shape {plan.shape}")
    total = float(plan.sum())
    expected = 1.0 if (np.asarray(transport.labels) >= 0).any() else 0.0
    is_mass = (plan >= 0).all() and abs(total - expected) < 1e-9
    require(law, is_mass, f"the plan has {plan.min():.3g}, {total:.3g} in all")
    costs = rng.random(plan.shape)
    require_equal("the cost is that of the plan", transport.cost(costs), (costs * plan).sum(), "cost")
    if not transport.is_soft:
        law = "without softness every unit has a place of its own"
        labels = np.asarray(transport.labels)
        places = labels[labels >= 0]
        require(law, len(set(places.tolist())) == len(places), "two units have one place")


def _check_signs(transport: Transport, n_old: int) -> None:
    """Hold a transport to what it says of signs."""
    unsigned = transport.unsigned
    law = "without signs nothing changes sign"
    require(law, unsigned.signs is None, "unsigned has signs")
    if transport.signs is None:
        require(law, unsigned is transport, "a transport without signs has another one without signs")
        return
    signs = transport.unit_signs
    law = "a transport with signs says that of each unit"
    require(law, signs is not None and np.shape(signs) == (n_old,), f"unit_signs is {signs!r:.40}, expected ({n_old},)")
    require_equal(law, np.abs(transport.receiving), np.abs(unsigned.receiving), "the output side without signs")
