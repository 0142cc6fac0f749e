"""Charts of predictive probabilities: shapes stand where the scores say, in values of the axes."""

from types import SimpleNamespace

import numpy as np
import pytest

from consilience.networks.gaussian.report.sections import class_entropy_figure, reliability_figure
from tests.drawing.shapes import DECIMALS, shapes, ticks


def scores(points=(), entropies=(), outside=None):
    bins = [SimpleNamespace(confidence=x, accuracy=y) for x, y in points]
    classes = [SimpleNamespace(label=k, mean=m, lower=m - 0.1, upper=m + 0.3) for k, m in enumerate(entropies)]
    return SimpleNamespace(
        reliability=bins, calibration_error=0.0, class_entropies=classes, entropy=0.4, outside=outside
    )


def test_reliability_curves_stand_on_the_diagonal_where_confidence_is_accuracy():
    points = [(0.0, 0.0), (0.25, 0.6), (0.5, 0.5), (0.9, 0.3), (1.0, 1.0)]
    figure = reliability_figure({"one": scores(points), "other": scores(points[1:2])})
    (diagonal,) = shapes(figure, "line", "honest")
    start, end = (np.array([diagonal[f"x{i}"], diagonal[f"y{i}"]]) for i in (1, 2))
    assert start[0] < end[0]
    assert start[1] > end[1]  # down the page
    for axis, name in enumerate("xy"):
        (first, *_, last) = ticks(figure, name)
        np.testing.assert_allclose((first, last), [(start[axis], 0.0), (end[axis], 1.0)], atol=DECIMALS)
    expected = [start + np.array(point) * (end - start) for point in [*points, points[1]]]
    found = [(dot["cx"], dot["cy"]) for dot in shapes(figure, "circle", "spot")]
    np.testing.assert_allclose(found, expected, atol=2 * DECIMALS)


@pytest.mark.parametrize("outside", [False, True])
def test_entropies_stand_above_and_below_the_mean_inside(outside):
    means = [0.2, 0.9, 0.4]
    inside = scores(entropies=means)
    one = scores(entropies=means, outside=inside) if outside else inside
    figure = class_entropy_figure({"one": one, "other": one}, outside)
    (zero,) = shapes(figure, "line", "honest")
    dots, ranges = shapes(figure, "circle", "spot"), shapes(figure, "line", "range")
    assert len(dots) == len(ranges) == 2 * len(means)
    heights = np.array([zero["y1"] - dot["cy"] for dot in dots]).reshape(2, -1)
    scale = heights[0, 1] / (means[1] - 0.4)
    assert scale > 0
    np.testing.assert_allclose(heights, np.tile(scale * (np.array(means) - 0.4), (2, 1)), atol=2 * DECIMALS)
    for dot, stroke in zip(dots, ranges, strict=True):
        assert stroke["x1"] == stroke["x2"] == dot["cx"]
        assert stroke["y1"] - dot["cy"] == pytest.approx(0.1 * scale, abs=2 * DECIMALS)
        assert dot["cy"] - stroke["y2"] == pytest.approx(0.3 * scale, abs=2 * DECIMALS)
    places = np.array([dot["cx"] for dot in dots]).reshape(2, -1)
    assert np.all(places[1] > places[0])  # models stand beside each other, in the middle of their class
    assert np.ptp(np.diff(places.mean(axis=0))) <= 2 * DECIMALS
