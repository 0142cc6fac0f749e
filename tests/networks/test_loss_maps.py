"""Maps of loss surfaces: every cell has the class of the surface at its middle, and networks and ticks their places."""

import re

import numpy as np
import pytest

from consilience.networks.landscape.plane import Marker, Plane
from consilience.networks.report.planes import ContourLevels, plane_map
from tests.drawing.shapes import DECIMALS, shapes, ticks

EDGES = (1.0, 2.0, 3.0)


def plane_of(surface, places=(), dx=2.0, dy=1.5):
    """Return a plane with a surface of two coordinates from 0 to 1 and 2, that is linear in each."""
    alphas, betas = np.linspace(0.0, 1.0, 4), np.linspace(0.0, 2.0, 5)
    markers = tuple(Marker(f"at {a:g}", a, b, distance, {"loss": 1.0}) for a, b, distance in places)
    values = surface(alphas[None, :], betas[:, None])
    return Plane(alphas, betas, dx, dy, {"loss": values}, markers)


def classes_of(figure):
    """Return the shade (rows, columns) of every cell of the map, read back from its strokes."""
    covered = {}
    for strokes, shade in re.findall(r'<path d="([^"]*)" class="h(\d)"', figure):
        for x, y, n in re.findall(r"M(\d+) (\d+)h(\d+)", strokes):
            covered |= {(int(y), column): int(shade) for column in range(int(x), int(x) + int(n))}
    rows, columns = (1 + max(place[axis] for place in covered) for axis in (0, 1))
    assert len(covered) == rows * columns
    return np.array([[covered[row, column] for column in range(columns)] for row in range(rows)])


@pytest.mark.parametrize("surface", [lambda a, b: 2.5 * a + 0.7 * b, lambda a, b: 3 * a - b + 1.3 + 0.9 * a * b])
def test_cells_have_the_class_of_the_surface_at_their_middle(surface):
    figure = str(plane_map(plane_of(surface), "loss", ContourLevels(EDGES, ratios=False)))
    shades = classes_of(figure)
    rows, columns = shades.shape
    a, b = (np.arange(columns) + 0.5) / columns, 2.0 * (np.arange(rows)[::-1] + 0.5) / rows  # the first row is on top
    expected = np.digitize(surface(a[None, :], b[:, None]), EDGES)
    legend = np.unique(shades)
    assert len(legend) == len(EDGES) + 1
    np.testing.assert_array_equal(np.searchsorted(legend, shades), expected)


def test_networks_and_ticks_stand_at_their_distances():
    places = [(0.0, 0.0, 0.0), (1.0, 2.0, 0.0), (0.25, 0.5, 0.3)]
    figure = str(plane_map(plane_of(lambda a, b: 4 * a + 0 * b, places), "loss", ContourLevels(EDGES, ratios=False)))
    start, end, beside = ((one["cx"], one["cy"]) for one in shapes(figure, "circle", "marker"))
    assert len(shapes(figure, "circle", "marker off")) == 1
    size = np.subtract(end, start)
    assert size[0] > 0 > size[1]  # to the right, and up
    np.testing.assert_allclose(beside, start + 0.25 * size, atol=2 * DECIMALS)
    for axis, name, length in ((0, "x", 2.0), (1, "y", 3.0)):
        places, values = np.array(ticks(figure, name)).T
        assert (values.min(), values.max()) == (0.0, length)
        np.testing.assert_allclose(places, start[axis] + size[axis] * values / length, atol=2 * DECIMALS)
