"""Plots and tables of values: every chart draws or says why not, and nothing needs matplotlib or pandas to be there."""

import sys

import matplotlib as mpl
import numpy as np
import polars
import pyarrow
import pytest
from matplotlib.figure import Figure
from sklearn.linear_model import LinearRegression

import consilience as cs
from consilience.drawing.display import Tabular
from consilience.drawing.plots import Plotted
from consilience.errors import OptionError, UnsupportedError
from tests.copies import COPIES
from tests.core.values_zoo import ALL_VALUES, posterior_fusion

mpl.use("agg")


def axis():
    return Figure(layout="constrained").add_subplot()


def drawn(value, kind):
    """Return the axis of a plot that was rendered whole."""
    ax = axis()
    assert value.plot(kind, ax=ax) is ax
    ax.figure.canvas.draw()
    return ax


def fused_points(dim, n_components=2, names=None):
    family, rng = cs.families.DiagonalGaussian(dim), np.random.default_rng(dim)
    sites = {}
    for name in ("lund", "oslo"):
        natural = family.to_natural(mean=rng.normal(size=(n_components, dim)), variance=np.ones((n_components, dim)))
        features = cs.Features(names=names) if names else cs.Features()
        prior = family.to_natural(mean=np.zeros((1, dim)), variance=9 * np.ones((1, dim)))[0]
        sites[name] = cs.Posterior(family, natural, prior=prior, counts=np.full(n_components, 50.0), features=features)
    return cs.fuse(sites)


@pytest.fixture(scope="module", params=[name for name in ALL_VALUES if name not in ("family", "method")])
def value(request, tmp_path_factory):
    return ALL_VALUES[request.param](tmp_path_factory.mktemp("value"))


def test_every_chart_of_every_value_draws_or_says_why_not(value):
    if not isinstance(value, Plotted):
        return
    charts = value._charts()
    assert charts
    for kind, chart in charts.items():
        if isinstance(chart, str):
            with pytest.raises(OptionError) as caught:
                value.plot(kind, ax=axis())
            assert chart in str(caught.value)
            assert "\n" not in str(caught.value)
        else:
            ax = drawn(value, kind)
            assert ax.get_title()
            assert ax.has_data()


def test_every_table_has_columns_of_one_length_that_all_libraries_read(value):
    if not isinstance(value, Tabular):
        return
    columns = value.to_columns()
    frame = value.to_frame()
    assert list(frame.columns) == list(columns)
    assert len({len(column) for column in columns.values()}) == 1
    assert polars.from_dataframe(frame).columns == list(columns)
    assert polars.DataFrame(columns, strict=False).columns == list(columns)
    assert pyarrow.table(columns).column_names == list(columns)


@pytest.mark.parametrize("dim", [1, 2, 3, 500])
def test_components_of_any_dimension_are_drawn(dim):
    ax = drawn(fused_points(dim), "components")
    assert len(ax.lines) + len(ax.patches) >= 2


@COPIES
def test_components_without_a_place_say_so_and_the_default_is_another_chart():
    family = cs.families.Gamma()
    sites = [cs.Posterior(family, family.to_natural(shape=[2.0, 9.0], rate=[1.0, 1.0])) for _ in range(2)]
    fusion = cs.fuse(sites)
    with pytest.raises(OptionError, match="no place that can be drawn; there are matching"):
        fusion.plot("components", ax=axis())
    assert fusion.plot(ax=axis()).get_title().startswith("Matching")


def test_columns_without_a_model_have_no_chart_of_coefficients():
    fusion = ALL_VALUES["EstimatorFusion"](None)
    with pytest.raises(OptionError, match="has no coefficients"):
        fusion.plot("coefficients", ax=axis())


def test_a_regression_draws_its_coefficients_of_all_sites_and_of_each():
    rng, sites = np.random.default_rng(0), {}
    for name in ("lund", "oslo"):
        x = rng.normal(size=(60, 2))
        y = x @ [1.0, -2.0] + rng.normal(size=60)
        sites[name] = cs.describe(LinearRegression().fit(x, y), data=(x, y), features=["age", "bmi"])
    fusion = cs.fuse(sites)
    rows = [text.get_text() for text in drawn(fusion, "sites").get_yticklabels()]
    assert rows == [f"{column}, {site}" for column in ("age", "bmi") for site in ("all sites", "lund", "oslo")]
    assert fusion.to_columns()["coefficient"] == ["age", "bmi", "intercept"]


@pytest.mark.parametrize("name", ["$\\frac{1", "a$b", "<b>&amp;", "x" * 10_000, "‮abc", "line\nbreak"])
def test_names_are_drawn_as_they_are_and_are_no_formulas(name):
    first, second, _ = posterior_fusion().inputs
    fusion = cs.fuse({name: first.value, "oslo": second.value})
    labels = [text.get_text() for text in drawn(fusion, "matching").get_yticklabels()]
    assert len(labels) == 2
    assert all(len(text) <= 40 and text.isprintable() for text in labels)
    drawn(fusion, "candidates")


def test_means_and_deviations_of_a_table_are_those_of_the_components():
    family = cs.families.DiagonalGaussian(2)
    natural = family.to_natural(mean=np.array([[1.0, 2.0], [3.0, 4.0]]), variance=np.array([[4.0, 9.0], [1.0, 0.25]]))
    features = cs.Features(names=("age", "bmi"), units=("years", "kg/m2"))
    columns = cs.Posterior(family, natural, features=features).to_columns()
    assert columns["age mean"] == pytest.approx([1.0, 3.0])
    assert columns["bmi deviation"] == pytest.approx([3.0, 0.5])


def test_an_unknown_chart_names_those_there_are():
    with pytest.raises(OptionError, match=r"no plot 'heatmap'.*components, matching, number, forest, candidates"):
        posterior_fusion().plot("heatmap")


def test_without_matplotlib_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    with pytest.raises(UnsupportedError, match=r"pip install 'consilience\[plots\]'") as caught:
        posterior_fusion().plot()
    assert len(str(caught.value).splitlines()) == 1
