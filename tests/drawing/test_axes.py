"""Axes: where values stand, and what the axes say of them."""

import re

import pytest

from consilience.drawing.axes import Axes, from_zero, left_margin
from consilience.drawing.svg import tick_label, ticks


def attributes(markup, name):
    return [float(value) for value in re.findall(rf'\b{name}="([-\d.]+)"', markup)]


@pytest.fixture(params=[(0.0, 10.0), (10.0, 0.0)], ids=["upward", "downward"])
def axes(request):
    return Axes.over((-1.0, 3.0), request.param, 200.0, inset=(10.0, 4.0))


def test_the_ends_of_the_y_axis_are_where_they_were_asked_for(axes):
    is_upward = axes.y.factor < 0
    assert axes.y(0.0 if is_upward else 10.0) == pytest.approx(axes.bottom)
    assert axes.y(10.0 if is_upward else 0.0) == pytest.approx(axes.top + 4.0)


def test_the_first_of_rows_is_at_the_top():
    rows = Axes.over((0.0, 1.0), (3.0, 0.0), 60.0)
    heights = attributes("".join(rows.y_labels([0.5, 1.5, 2.5], "abc")), "y")
    assert heights == sorted(heights)
    assert rows.top < heights[0] < heights[-1] < rows.bottom


def test_a_tick_stands_at_its_value(axes):
    shown = "".join(axes.x_ticks() + axes.y_ticks())
    labels = dict(re.findall(r'<text x="([-\d.]+)" y="[-\d.]+" class="tick" text-anchor="middle">([^<]+)<', shown))
    assert labels
    assert all(
        axes.x(float(label.replace("−", "-"))) == pytest.approx(float(x), abs=0.05) for x, label in labels.items()
    )
    (dot,) = axes.dots([(3.0, 10.0)], 2.0)
    assert attributes(dot, "cx") == pytest.approx([axes.x(3.0)], abs=0.05)
    assert attributes(dot, "cy") == pytest.approx([axes.y(10.0)], abs=0.05)


def test_values_that_are_all_one_have_one_tick_in_the_middle():
    axes = Axes.over((0.0, 1.0), (2.5, 2.5), 100.0)
    (tick,) = axes.y_ticks(grid=False)
    assert tick.endswith(">2.5</text>")
    assert axes.y(2.5) == pytest.approx((axes.top + axes.bottom) / 2)


def test_a_legend_makes_room_for_itself(axes):
    def height(n_legend):
        return attributes(axes.drawing([], "nothing", n_legend), "height")[0]

    legend = "".join(axes.legend(["a", "b", "c"]))
    assert max(attributes(legend, "y")) < height(3)
    assert height(0) < height(1) < height(3)


def test_a_range_starts_at_zero_only_where_zero_is_near():
    assert from_zero(3.0, 10.0) == (0.0, 10.0)
    assert from_zero(4.0, 10.0) == (4.0, 10.0)
    assert from_zero(-4.0, 10.0) == (-4.0, 10.0)


def test_ticks_far_from_zero_have_labels_of_their_own():
    marks = ticks(1.7e9, 1.7e9 + 3e4)
    labels = [tick_label(mark, marks) for mark in marks]
    assert labels[:2] == ["1,700,000,000", "1,700,010,000"]
    assert len(set(labels)) == len(marks)
    assert [tick_label(mark, [1e6, 2e6]) for mark in (1e6, 2e6)] == ["1e+06", "2e+06"]
    assert left_margin((1.7e9, 1.7e9 + 3e4), 54.0) > 7.0 * len(labels[0])
    assert left_margin((0.0, 1.0), 54.0) == 54.0
