"""The drawing of components in a plane."""

import re

import pytest

from consilience.drawing.svg import Scale
from consilience.posteriors.report.charts import _ellipse
from consilience.posteriors.report.planar_components import ComponentEllipse


@pytest.mark.parametrize(("kind", "radius"), [("fused", "3.5"), ("thin c0", "2")])
def test_a_component_smaller_than_a_dot_is_a_dot_at_its_centre(kind, radius):
    x, y = Scale(0.0, 10.0, 0.0, 500.0), Scale(0.0, 10.0, 300.0, 0.0)
    drawn = str(_ellipse(ComponentEllipse(0, (5.0, 2.0), (1e-6, 0.0, 1e-6)), x, y, kind, "plane"))
    assert drawn.startswith("<circle")
    found = {name: re.search(rf' {name}="([^"]*)"', drawn)[1] for name in ("cx", "cy", "r")}
    assert found == {"cx": "250", "cy": "240", "r": radius}
