"""Evaluation of estimators on arrays, tables, files and labels beside them: the same rows give the same numbers."""

import numpy as np
import pytest
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.linear_model import LinearRegression, RidgeClassifier
from sklearn.metrics import accuracy_score, log_loss, r2_score
from sklearn.naive_bayes import CategoricalNB, GaussianNB

import consilience as cs
from consilience.errors import InputError
from tests.estimators.estimators_zoo import class_rows, code_rows, regression_rows


def two(make, rows):
    X, y = rows(0)
    return X, y, make().fit(X[::2], y[::2]), make().fit(X[1::4], y[1::4])


def numbers(evaluation):
    return [(score.name, score.fused, score.own) for score in evaluation.scores]


def test_scores_are_those_of_scikit_learn():
    X, y, fused, own = two(GaussianNB, class_rows)
    found = {name: (a, b) for name, a, b in numbers(cs.evaluate(fused, own, X, y))}
    expected = [100 * accuracy_score(y, model.predict(X)) for model in (fused, own)]
    np.testing.assert_allclose(found["accuracy"], expected)
    np.testing.assert_allclose(
        found["cross-entropy"], [log_loss(y, model.predict_proba(X)) for model in (fused, own)], rtol=1e-6
    )
    X, y, fused, own = two(LinearRegression, regression_rows)
    found = {name: (a, b) for name, a, b in numbers(cs.evaluate(fused, own, (X, y)))}
    np.testing.assert_allclose(found["R^2"], [r2_score(y, model.predict(X)) for model in (fused, own)])


def test_rows_in_arrays_and_files_give_the_same_numbers(tmp_path):
    X, y, fused, own = two(GaussianNB, class_rows)
    expected = numbers(cs.evaluate(fused, own, (X, y)))
    assert numbers(cs.evaluate(fused, own, X, y)) == expected
    np.savez(tmp_path / "rows.npz", x=X, y=y)
    assert numbers(cs.evaluate(fused, own, tmp_path / "rows.npz")) == expected
    np.save(tmp_path / "rows.npy", X)
    (tmp_path / "labels.csv").write_text("\n".join(y) + "\n")
    assert numbers(cs.evaluate(fused, own, tmp_path / "rows.npy", tmp_path / "labels.csv")) == expected
    lines = [
        ",".join([*"abcd", "tree"]),
        *(",".join([*map(repr, map(float, row)), t]) for row, t in zip(X, y, strict=True)),
    ]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    assert numbers(cs.evaluate(fused, own, tmp_path / "rows.csv", "tree")) == expected


def test_targets_in_a_table_are_numbers(tmp_path):
    X, y, fused, own = two(LinearRegression, regression_rows)
    lines = [
        ",".join([*"abcde", "y"]),
        *(",".join(map(repr, map(float, [*row, t]))) for row, t in zip(X, y, strict=True)),
    ]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    assert numbers(cs.evaluate(fused, own, tmp_path / "rows.csv", "y")) == numbers(cs.evaluate(fused, own, (X, y)))


def test_a_class_that_a_model_does_not_know_is_a_note():
    X, y = class_rows(0)
    own = GaussianNB().fit(X[y != "elm"], y[y != "elm"])
    evaluation = cs.evaluate(GaussianNB().fit(X, y), own, (X, y))
    assert "your own model does not know the class elm" in evaluation.notes
    assert [score.name for score in evaluation.scores] == ["accuracy"]
    assert evaluation.better == "fused"
    assert "the fused model is better by" in str(evaluation)
    assert evaluation.to_json()["better"] == "fused"


def test_classes_in_a_table_are_those_of_the_models_by_value(tmp_path):
    X, y, fused, own = two(GaussianNB, lambda seed: (lambda X, y: (X, (y == y[0]) * 1))(*class_rows(seed)))
    expected = numbers(cs.evaluate(fused, own, (X, y)))
    for written in (float, str, lambda one: "no" if one == 0 else "yes"):
        labels = [written(one) for one in y.tolist()]
        table = "\n".join(",".join(map(str, [*row, label])) for row, label in zip(X.tolist(), labels, strict=True))
        (tmp_path / "rows.csv").write_text(f"a,b,c,d,tree\n{table}\n")
        for data in ((X, np.array(labels)), tmp_path / "rows.csv"):
            if written in (float, str):
                assert numbers(cs.evaluate(fused, own, data)) == expected
            else:
                with pytest.raises(InputError, match="classes no, yes, of which no model knows any; they know 0, 1"):
                    cs.evaluate(fused, own, data)


def test_each_class_has_its_own_score():
    X, y, fused, own = two(CategoricalNB, code_rows)
    assert cs.evaluate(fused, own, (X, y)).scores[0].name == "accuracy"
    X, y, fused, own = two(RidgeClassifier, class_rows)
    assert [score.name for score in cs.evaluate(fused, own, (X, y)).scores] == ["accuracy"]
    X, _ = regression_rows(0)
    models = [PCA(2).fit(X[::2]), PCA(2).fit(X[1::2])]
    score = cs.evaluate(*models, X).scores[0]
    assert score.name == "log-likelihood"
    np.testing.assert_allclose(score.fused, models[0].score(X))
    models = [IncrementalPCA(2).fit(X[::2]), IncrementalPCA(2).fit(X[1::2])]
    assert cs.evaluate(*models, X).scores[0].name == "squared distance to the projection"


def test_models_of_other_columns_are_not_compared():
    X, y, fused, _ = two(LinearRegression, regression_rows)
    with pytest.raises(cs.errors.InputError, match="your own model: has 4 columns, expected 5"):
        cs.evaluate(fused, LinearRegression().fit(X[:, :4], y), (X, y))
