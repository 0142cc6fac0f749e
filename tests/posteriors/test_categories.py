"""Categories of columns: taken from tables or stated, compared between sites, stored, and shown."""

import numpy as np
import pytest
from sklearn.mixture import BayesianGaussianMixture
from sklearn.naive_bayes import GaussianNB

import consilience as cs
from consilience.api.kinds import inspect_file

pytestmark = pytest.mark.covering(2)

pd = pytest.importorskip("pandas")

SEXES = ["f", "m"]


def frame(order=SEXES, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame({
        "age": np.concatenate([rng.normal(30.0, 5.0, 60), rng.normal(70.0, 5.0, 60)]),
        "sex": pd.Categorical(rng.choice(["f", "m"], 120), categories=order),
        "stage": pd.Categorical(rng.choice([1, 2, 3], 120), categories=[1, 2, 3], ordered=True),
    })  # fmt: skip


def codes(table):
    return np.column_stack([table["age"], table["sex"].cat.codes, table["stage"].astype(float)])


def mixture(table):
    return BayesianGaussianMixture(n_components=2, random_state=0).fit(codes(table))


def classifier(table):
    return GaussianNB().fit(codes(table), np.repeat(["no", "yes"], 60))


def written(kind, path, order=SEXES, seed=0):
    table = frame(order, seed)
    if kind == "mixture":
        cs.save(mixture(table), path, data=table)
    elif kind == "classifier":
        cs.save(classifier(table), path, data=(table, np.repeat(["no", "yes"], 60)))
    else:
        cs.save(mixture(table), path, features={"age": "years", "sex": order, "stage": ["1", "2", "3"]})
    return path


@pytest.mark.parametrize("kind", ["mixture", "classifier", "stated"])
def test_categories_are_stored_fused_and_shown(kind, tmp_path):
    files = [written(kind, tmp_path / f"{name}.safetensors", seed=seed) for seed, name in enumerate(("lund", "oslo"))]
    expected = {"sex": ("f", "m"), "stage": ("1", "2", "3")}
    assert dict(cs.load(files[0]).features.categories) == expected
    fusion = cs.fuse(files)
    fusion.save(tmp_path / "fused.safetensors")
    fusion.report(tmp_path / "report.html")
    assert dict(cs.load(tmp_path / "fused.safetensors").features.categories) == expected
    shown = [text for name, text in inspect_file(tmp_path / "fused.safetensors").rows if name == "categories"]
    assert shown == ["sex (f, m)", "stage (1, 2, 3)"]
    assert "sex (f, m); stage (1, 2, 3)" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("kind", ["mixture", "classifier", "stated"])
@pytest.mark.parametrize(
    ("order", "text"),
    [
        (["m", "f"], r"b\.safetensors: has the categories of column 'sex' in another order \(m, f\); order them f, m"),
        (["f", "m", "x"], "has other categories of column 'sex': also has x; declare f, m at all sites"),
        (["x", "m", "f"], "has other categories of column 'sex': also has x"),
    ],
    ids=str,
)
def test_another_order_or_set_of_categories_is_refused_by_name(kind, order, text, tmp_path):
    files = [written(kind, tmp_path / "a.safetensors"), written(kind, tmp_path / "b.safetensors", order, 1)]
    with pytest.raises(cs.errors.InputError, match=text):
        cs.fuse(files)


def test_a_site_that_states_no_categories_is_no_contradiction(tmp_path):
    first = written("mixture", tmp_path / "a.safetensors")
    cs.save(mixture(frame(seed=1)), tmp_path / "b.safetensors", features=["age", "sex", "stage"])
    assert cs.check([first, tmp_path / "b.safetensors"]) == []


def test_units_by_option_go_with_categories_of_the_table(tmp_path):
    table = frame()
    cs.save(mixture(table), tmp_path / "a.safetensors", data=table, features={"age": "years", "sex": "", "stage": ""})
    features = cs.load(tmp_path / "a.safetensors").features
    assert features.units == ("years", "", "")
    assert dict(features.categories) == {"sex": ("f", "m"), "stage": ("1", "2", "3")}


def test_codes_are_those_of_the_models_own_table(tmp_path):
    table = frame()
    by_codes = cs.describe(classifier(table), (codes(table), np.repeat(["no", "yes"], 60)))
    by_table = cs.describe(classifier(table), (table, np.repeat(["no", "yes"], 60)))
    np.testing.assert_array_equal(by_codes.rows.mean, by_table.rows.mean)


def test_an_enum_of_polars_has_its_categories(tmp_path):
    polars = pytest.importorskip("polars")
    table = frame()
    same = polars.DataFrame({
        "age": table["age"].to_numpy(),
        "sex": polars.Series(table["sex"].astype(str).tolist(), dtype=polars.Enum(SEXES)),
        "stage": table["stage"].astype(float).to_numpy(),
    })  # fmt: skip
    cs.save(mixture(table), tmp_path / "a.safetensors", data=same)
    assert dict(cs.load(tmp_path / "a.safetensors").features.categories) == {"sex": ("f", "m")}


def test_a_category_that_is_missing_is_named_as_such(tmp_path):
    table = frame()
    model = mixture(table)
    table.loc[3, "sex"] = np.nan
    with pytest.raises(cs.errors.InputError, match="row 3"):
        cs.save(model, tmp_path / "a.safetensors", data=table)
