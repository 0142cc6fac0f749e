"""Tables of every library, and CSV and Parquet files, mean the same as the array that they hold."""

import re
import sys

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet
from sklearn.linear_model import LinearRegression
from sklearn.mixture import BayesianGaussianMixture
from sklearn.naive_bayes import GaussianNB

import consilience as cs
from consilience.errors import FileFormatError, InputError, UnsupportedError

RNG = np.random.default_rng(0)
NAMES = ["age", "bmi"]
X = RNG.normal(size=(80, 2)) + np.repeat([[0.0, 0.0], [6.0, 6.0]], 40, axis=0)
Y = X @ [1.0, -2.0] + RNG.normal(size=80)
CLASSES = np.repeat([0, 1], 40)
FRAME = pd.DataFrame(X, columns=NAMES)


class Stream:
    """What DuckDB and others give: the Arrow interface and nothing else."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


TABLES = {
    "pandas": lambda frame, _: frame,
    "polars": lambda frame, _: pl.DataFrame(dict(frame.items())),
    "polars, lazy": lambda frame, _: pl.DataFrame(dict(frame.items())).lazy(),
    "Arrow": lambda frame, _: pa.Table.from_pandas(frame),
    "Arrow, a batch": lambda frame, _: pa.RecordBatch.from_pandas(frame),
    "Arrow interface": lambda frame, _: Stream(pa.Table.from_pandas(frame)),
    "CSV": lambda frame, folder: (frame.to_csv(folder / "rows.csv", index=False), folder / "rows.csv")[1],
    "Parquet": lambda frame, folder: (
        parquet.write_table(pa.Table.from_pandas(frame), folder / "rows.parquet"), folder / "rows.parquet"
    )[1],
}  # fmt: skip


@pytest.fixture(params=TABLES)
def table(request, tmp_path):
    return lambda frame: TABLES[request.param](frame, tmp_path)


def test_a_table_beside_a_regression_is_its_array_and_gives_names(table):
    model = LinearRegression().fit(X, Y)
    described = cs.describe(model, data=(table(FRAME), Y))
    assert described.features.names == tuple(NAMES)
    assert described.digest == cs.describe(model, data=(X, Y), features=NAMES).digest


def test_y_may_be_the_name_of_a_column(table):
    model = LinearRegression().fit(X, Y)
    described = cs.describe(model, data=(table(FRAME.assign(outcome=Y)), "outcome"))
    assert described.features.names == tuple(NAMES)
    assert cs.rebuild(described).coef_ == pytest.approx(model.coef_, rel=1e-9)


def test_classes_may_be_the_name_of_a_column(table):
    model = GaussianNB().fit(X, CLASSES)
    described = cs.describe(model, data=(table(FRAME.assign(ill=CLASSES)), "ill"))
    assert cs.rebuild(described).theta_ == pytest.approx(model.theta_, rel=1e-9)


def test_a_mixture_is_evaluated_on_any_table_by_the_names_of_its_columns(table):
    own = BayesianGaussianMixture(n_components=2, random_state=0).fit(FRAME)
    fusion = cs.fuse({"lund": own, "oslo": BayesianGaussianMixture(n_components=2, random_state=1).fit(FRAME + 0.1)})
    expected = cs.evaluate(fusion, own, FRAME).scores
    turned = FRAME[["bmi", "age"]].assign(ward=1.0)
    assert cs.evaluate(fusion, own, table(turned)).scores == expected


def test_classifiers_are_evaluated_with_a_column_of_labels(table):
    own = GaussianNB().fit(X, CLASSES)
    fusion = cs.fuse({"lund": own, "oslo": GaussianNB().fit(X + 0.1, CLASSES)})
    shown = cs.evaluate(fusion, own, table(FRAME.assign(ill=CLASSES)), labels="ill")
    assert shown.scores == cs.evaluate(fusion, own, X, labels=CLASSES).scores


def test_names_and_units_are_given_as_a_list_or_a_mapping(tmp_path):
    model = GaussianNB().fit(X, CLASSES)
    assert cs.describe(model, features=NAMES).features.names == tuple(NAMES)
    units = {"age": "years", "bmi": "kg/m2"}
    cs.save(model, tmp_path / "a.safetensors", features=units)
    assert cs.load(tmp_path / "a.safetensors").features.units == ("years", "kg/m2")
    with pytest.raises(InputError, match=r"features: expected names of the columns.*found str 'age'"):
        cs.describe(model, features="age")


def test_names_that_the_model_records_win_over_none_and_contradict_others():
    model = GaussianNB().fit(FRAME, CLASSES)
    assert cs.describe(model).features.names == tuple(NAMES)
    with pytest.raises(InputError, match="another order"):
        cs.describe(model, features=["bmi", "age"])


def test_a_table_without_the_column_of_y_says_which_it_has():
    with pytest.raises(InputError, match=r"X: has 0 columns 'outcome', expected one; found age, bmi"):
        cs.describe(LinearRegression().fit(X, Y), data=(FRAME, "outcome"))


def test_a_csv_without_a_stated_y_says_how_to_state_it(tmp_path):
    FRAME.to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(InputError, match=re.escape('data=("rows.csv", "outcome")')):
        cs.describe(LinearRegression().fit(X, Y), data=tmp_path / "rows.csv")


def test_a_parquet_file_that_is_none_is_refused_in_one_line(tmp_path):
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(FileFormatError, match="is no Parquet file") as caught:
        cs.describe(BayesianGaussianMixture(n_components=2, random_state=0).fit(X), data=tmp_path / "rows.parquet")
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(FileFormatError, match="cannot be read: No such file"):
        cs.describe(BayesianGaussianMixture(n_components=2, random_state=0).fit(X), data=tmp_path / "none.parquet")


def test_a_csv_of_a_spreadsheet_with_decimal_commas_says_how_to_write_it(tmp_path):
    FRAME.to_csv(tmp_path / "rows.csv", index=False, sep=";", decimal=",")
    with pytest.raises(InputError, match=r"line 2: .*; write it with commas between cells.*\[E-SHAPE\]$"):
        cs.describe(LinearRegression().fit(X, Y), data=(tmp_path / "rows.csv", "bmi"))


def test_without_pyarrow_one_line_says_what_to_install(tmp_path, monkeypatch):
    model = BayesianGaussianMixture(n_components=2, random_state=0).fit(X)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'consilience\[scale\]'"):
        cs.describe(model, data=tmp_path / "rows.parquet")
