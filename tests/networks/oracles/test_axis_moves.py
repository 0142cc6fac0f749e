"""Moves of axes against dense matrices, entry positions of units against loops: copies, stretches, signs, blocks."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import block_diag

from consilience.networks.symmetry.axes import Axis, Layout, Place, Segment
from consilience.networks.symmetry.transport import Injection, Spread, Transport, move, permutation
from consilience.networks.symmetry.unit_rows import take_units, unit_rows
from tests.tolerances import ROUNDING

pytestmark = pytest.mark.covering(2)

UNITS = {"a": 3, "b": 2}
SEGMENTS = {
    "units": (Segment("a"),),
    "two copies": (Segment("a", outer=2),),
    "stretches of two": (Segment("a", inner=2),),
    "two copies of stretches of two": (Segment("a", outer=2, inner=2),),
    "copies of which one is odd": (Segment("a", outer=3, inner=2, odd=(1,)),),
    "copies of which none is odd": (Segment("a", outer=2, odd=()),),
    "two groups and what stays": (Segment("a", inner=2), Segment(None, inner=4), Segment("b", outer=2, odd=(0,))),
    "one group twice": (Segment("a"), Segment("a", outer=2, inner=2, odd=(1,))),
}
every_axis = pytest.mark.parametrize("segments", SEGMENTS.values(), ids=list(SEGMENTS))


def random_transports(kind, rng):
    """A transport of every group: reordered, turned, padded, or spread over more units."""
    transports = {}
    for group, size in UNITS.items():
        signs = rng.choice([-1.0, 1.0], size)
        signs[0] = -1.0
        if kind == "permutation":
            transports[group] = permutation(rng.permutation(size))
        elif kind == "signs":
            transports[group] = Injection(rng.permutation(size), size, signs)
        elif kind == "padded":
            transports[group] = Injection(rng.permutation(size + 2)[:size], size + 2, signs)
        else:
            coupling = rng.gamma(1.0, size=(size + 1, size))
            transports[group] = Spread(coupling / coupling.sum(), signs=rng.choice([-1.0, 1.0], coupling.shape))
    return transports


def dense(transport, size, side, is_odd=True):
    """The matrix (k_new, k_old) of a transport, from its slots or its coupling, without signs for what is not odd."""
    signs = transport.signs if is_odd else None
    if isinstance(transport, Injection):
        matrix = np.zeros((transport.width, size))
        for old, new in enumerate(transport.slots):
            matrix[new, old] = 1.0 if signs is None else signs[old]
        return matrix
    sums = transport.coupling.sum(axis=1 if side == "output" else 0, keepdims=True)
    return transport.coupling / sums * (1.0 if signs is None else signs)


def axis_matrix(axis, transports):
    """The matrix of an axis: for each segment, copies side by side, each a unit's matrix times its stretch."""
    parts = []
    for segment in axis.segments:
        if segment.group is None:
            parts.append(np.eye(segment.outer * segment.inner))
            continue
        transport, side = transports[segment.group], "input" if axis.side == "input" else "output"
        for copy in range(segment.outer):
            is_odd = segment.odd is None or copy in segment.odd
            matrix = dense(transport, UNITS[segment.group], side, is_odd)
            parts.append(np.kron(matrix, np.eye(segment.inner)))
    return block_diag(*parts)


@every_axis
@pytest.mark.parametrize("side", ["output", "input", "both"])
@pytest.mark.parametrize("kind", ["permutation", "signs", "padded", "spread"])
def test_an_array_is_moved_by_the_matrices_of_its_axes(segments, side, kind):
    rng = np.random.default_rng([len(segments), len(kind)])
    transports = random_transports(kind, rng)
    axes = (Axis((Segment("b", inner=2),), "output"), Axis(segments, side), Axis((Segment(None, inner=3),), "output"))
    layout = Layout(axes)
    values = rng.normal(size=layout.shape(UNITS))
    expected = np.einsum("xa,yb,abc->xyc", *(axis_matrix(axis, transports) for axis in axes[:2]), values)
    assert_allclose(move(values, layout, transports, UNITS), expected, rtol=ROUNDING, atol=ROUNDING)
    if all(segment.group != "b" for segment in segments):  # groups without a transport stay
        alone = np.einsum("yb,abc->ayc", axis_matrix(axes[1], transports), values)
        found = move(values, layout, {"a": transports["a"]}, UNITS)
        assert_allclose(found, alone, rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("side", ["output", "input"])
@pytest.mark.parametrize("later_kind", ["permutation", "signs"])
@pytest.mark.parametrize("kind", ["permutation", "signs", "padded", "spread", "spread without signs"])
def test_a_transport_and_a_permutation_after_it_are_the_product_of_their_matrices(kind, later_kind, side):
    rng = np.random.default_rng([len(kind), len(later_kind)])
    first = random_transports(kind, rng)["a"]
    if kind == "spread without signs":
        first = Spread(first.coupling)
    signs = np.where(np.arange(first.width) % 2, 1.0, -1.0) if later_kind == "signs" else None
    later = Injection(rng.permutation(first.width), first.width, signs)
    expected = dense(later, first.width, side) @ dense(first, UNITS["a"], side)
    assert_allclose(dense(first.then(later), UNITS["a"], side), expected, rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("scale", [1.0, 2.0, 0.5])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_squares_of_units_that_are_split_evenly_are_the_squares_of_the_parts(parts, scale):
    """A unit spread over m new ones sends w / m from each, times the scale; signs play no part in squares."""
    coupling = np.repeat(np.eye(4), parts, axis=0) / (4 * parts)
    signs = np.random.default_rng(parts).choice([-1.0, 1.0], coupling.shape)
    weights = np.random.default_rng(0).normal(size=(3, 4))
    for spread in (Spread(coupling, scale), Spread(coupling, scale, signs)):
        squared = spread.squared.move(weights**2, 1, "input")
        assert_allclose(squared, spread.move(weights, 1, "input") ** 2, rtol=ROUNDING)
        assert_allclose(squared, np.repeat((scale * weights / parts) ** 2, parts, axis=1), rtol=ROUNDING)


class Dense(Transport):
    """A transport that states its two matrices and leaves all else to the base."""

    receiving = property(lambda self: self.matrix)
    sending = property(lambda self: self.matrix)

    def __init__(self, matrix):
        self.matrix = matrix


@pytest.mark.parametrize("shape", [(5, 3), (2, 4), (3, 3)], ids=str)
def test_a_unit_has_the_label_of_the_new_unit_that_takes_most_of_it_or_none(shape):
    matrix = np.random.default_rng(shape).normal(size=shape)
    matrix[:, 1] = 0.0
    labels = [max(range(shape[0]), key=lambda new: abs(matrix[new, old])) for old in range(shape[1])]
    labels[1] = -1
    assert_array_equal(Dense(matrix).labels, labels)


def positions(segments, number, unit):
    """The positions on an axis of the entries of a unit in one segment: copies first, then its stretch."""
    start = sum(segment.length(UNITS) for segment in segments[:number])
    segment = segments[number]
    k = UNITS[segment.group]
    return [
        start + (copy * k + unit) * segment.inner + entry
        for copy, entry in itertools.product(range(segment.outer), range(segment.inner))
    ]


@every_axis
@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_row_of_a_unit_holds_its_entries(segments, number):
    """On the first, the second or the last of three axes."""
    axes = [Axis((Segment(None, inner=size),), "output") for size in (2, 3)]
    axes.insert(number, Axis(segments, "output"))
    layout = Layout(tuple(axes))
    values = np.random.default_rng(number).normal(size=layout.shape(UNITS))
    for place, segment in enumerate(segments):
        if segment.group is None:
            continue
        rows = unit_rows(values, layout, Place("array", number, place, "output"), UNITS)
        expected = [
            np.take(values, positions(segments, place, unit), axis=number).ravel()
            for unit in range(UNITS[segment.group])
        ]
        assert_array_equal(rows, expected)


@every_axis
def test_units_that_are_taken_keep_their_entries_and_their_order(segments):
    layout = Layout((Axis(segments, "output"), Axis((Segment(None, inner=2),), "output")))
    values = np.random.default_rng(3).normal(size=layout.shape(UNITS))
    masks = {"a": np.array([True, False, True]), "b": np.array([False, True])}
    kept = set()
    for number, segment in enumerate(segments):
        start = sum(other.length(UNITS) for other in segments[:number])
        if segment.group is None:
            kept |= set(range(start, start + segment.length(UNITS)))
        else:
            for unit in np.flatnonzero(masks[segment.group]).tolist():
                kept |= set(positions(segments, number, unit))
    assert_array_equal(take_units(values, layout, masks), values[sorted(kept)])
