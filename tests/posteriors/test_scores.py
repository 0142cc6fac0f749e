"""Laws of what every adapter's models say of data, and of comparing two of them."""

from copy import copy
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import sparse

import consilience as cs
from consilience.core.scores import ScoreKind
from consilience.posteriors.adapters.table import ADAPTERS
from tests.posteriors.test_adapters import CASES, described, fitted, halves, site
from tests.tolerances import DIGAMMA_OF_SCIKIT_LEARN, ROUNDING

pytestmark = pytest.mark.covering(2)

BY_KIND = {adapter.kind: adapter for adapter in ADAPTERS}
COUNTS = {kind for kind, adapter in BY_KIND.items() if adapter.takes_counts}


def unrecorded(kind):
    """Return what is said of the observations of models that do not record them: the same for all."""
    return None if BY_KIND[kind].records_n_observations else "equal"


every_model = pytest.mark.parametrize(("kind", "name"), CASES)


def rows(kind):
    new = halves(kind)[2].astype(np.float64)
    return sparse.csr_array(new) if kind in COUNTS else new


def scores(model, kind, data=None):
    return BY_KIND[kind].scores(model, rows(kind) if data is None else data)


def assert_no_difference(evaluation):
    assert (evaluation.difference.mean, evaluation.difference.interval) == (0.0, (0.0, 0.0))
    assert evaluation.better is None
    assert evaluation.verdict.startswith("both are the same on all ") or ("squared units" in evaluation.verdict)


@every_model
def test_every_observation_has_a_score_and_a_component(kind, name):
    found = scores(fitted(kind, name, 0), kind)
    n, size = rows(kind).shape[0], described(kind, name, 0).n_components
    assert found.values.shape == found.weights.shape == found.labels.shape == (n,)
    assert np.all(np.isfinite(found.values))
    assert np.all(found.weights > 0)
    assert found.usage.shape == (size,)
    assert found.usage.dtype == np.int64
    assert found.usage.sum() == (rows(kind).sum() if kind in COUNTS else n)
    assert set(found.labels) <= set(range(size))
    assert found.unit
    assert found.name
    assert_allclose(found.mean, np.average(found.values, weights=found.weights), rtol=ROUNDING)


@every_model
def test_a_score_is_of_its_observation_alone(kind, name):
    """For documents, the split into halves depends on those before: only the labels and their tokens do not."""
    order = np.random.default_rng(0).permutation(rows(kind).shape[0])
    found, expected = (scores(fitted(kind, name, 0), kind, data) for data in (rows(kind)[order], rows(kind)))
    assert found.labels.tolist() == expected.labels[order].tolist()
    assert found.usage.tolist() == expected.usage.tolist()
    if kind not in COUNTS:
        assert_allclose(found.values, expected.values[order], rtol=ROUNDING)


@every_model
def test_the_order_of_components_changes_no_score(kind, name):
    if "dirichlet_process" in name:
        return  # the weights of broken sticks depend on their order
    posterior = described(kind, name, 0)
    order = np.roll(np.arange(posterior.n_components), 1)
    found, expected = (scores(cs.rebuild(one), kind) for one in (posterior.take(order), posterior))
    assert_allclose(found.values, expected.values, rtol=ROUNDING)
    assert found.usage.tolist() == expected.usage[order].tolist()
    assert order[found.labels].tolist() == expected.labels.tolist()


@every_model
def test_a_score_of_the_rebuilt_model_is_that_of_the_model(kind, name):
    found, expected = scores(cs.rebuild(described(kind, name, 0)), kind), scores(fitted(kind, name, 0), kind)
    error = DIGAMMA_OF_SCIKIT_LEARN if kind in COUNTS else ROUNDING
    assert_allclose(found.values, expected.values, rtol=error, atol=error)
    assert found.labels.tolist() == expected.labels.tolist()


@every_model
def test_a_model_is_not_better_than_itself_in_whatever_form_it_comes(kind, name, tmp_path):
    model, posterior = fitted(kind, name, 0), described(kind, name, 0)
    cs.save(model, tmp_path / "own.safetensors")
    for form in (model, posterior, tmp_path / "own.safetensors", str(tmp_path / "own.safetensors")):
        evaluation = cs.evaluate(form, model, rows(kind))
        assert_no_difference(evaluation)
        assert evaluation.usage.fused.tolist() == evaluation.usage.own.tolist()


@every_model
def test_the_difference_changes_sign_with_the_roles(kind, name):
    models = [copy(fitted(kind, name, part)) for part in (0, 1)]
    for model in models if kind in COUNTS else ():
        model.feature_names_in_ = np.array([f"word {n}" for n in range(rows(kind).shape[1])], dtype=object)
    fusion = cs.fuse(models, "concatenate", n_observations=unrecorded(kind))
    own = models[0]
    there, back = cs.evaluate(fusion, own, rows(kind)), cs.evaluate(own, fusion, rows(kind))
    assert there.difference.mean == -back.difference.mean
    assert there.difference.standard_error == back.difference.standard_error
    assert there.difference.interval == tuple(-end for end in back.difference.interval[::-1])
    assert {there.better, back.better} in ({"fused", "own"}, {None})
    first, other = there.scores[0], back.scores[0]
    assert (first.fused, first.own) == (other.own, other.fused)
    assert_allclose(first.fused - first.own, there.difference.mean, rtol=1e-9)


@pytest.mark.slow
@every_model
def test_a_fusion_its_model_its_posterior_and_its_file_score_the_same(kind, name, tmp_path):
    n_observations = "equal" if kind == "sklearn.GaussianMixture" else None  # which it does not record
    sites = [site(kind, name, part) for part in (0, 1)]
    fusion = cs.fuse(sites, n_observations=n_observations)
    fusion.save(tmp_path / "fused.safetensors")
    found = {
        str(cs.evaluate(form, sites[0], rows(kind)))
        for form in (fusion, fusion.model, fusion.posterior, tmp_path / "fused.safetensors")
    }
    assert len(found) == 1


@every_model
def test_columns_are_taken_by_name_and_nothing_warns(kind, name, tmp_path):
    """Warnings are errors: an estimator that knows names must not complain of the array that it is given."""
    data = rows(kind).toarray() if kind in COUNTS else rows(kind)
    names = [f"column {i}" for i in range(data.shape[1])]
    model = cs.rebuild(replace(described(kind, name, 0), features=cs.Features(names=names, from_columns=True)))
    assert hasattr(model, "feature_names_in_")
    expected = cs.evaluate(model, fitted(kind, name, 1), data)
    lines = [
        ",".join(["id", *names[::-1]]),
        *(f"no. {i}," + ",".join(map(repr, row[::-1].tolist())) for i, row in enumerate(data)),
    ]
    (tmp_path / "data.csv").write_text("\n".join(lines))
    assert str(cs.evaluate(model, fitted(kind, name, 1), tmp_path / "data.csv")) == str(expected)
    assert hasattr(model, "feature_names_in_")


@every_model
def test_dense_and_sparse_data_are_the_same_data(kind, name):
    dense = rows(kind).toarray() if kind in COUNTS else rows(kind)
    forms = [dense, dense.tolist(), np.asfortranarray(dense), sparse.csr_array(dense), sparse.coo_matrix(dense)]
    assert len({str(cs.evaluate(fitted(kind, name, 0), fitted(kind, name, 1), form)) for form in forms}) == 1


@every_model
def test_labels_that_are_the_components_have_full_information(kind, name):
    model = fitted(kind, name, 0)
    labels = scores(model, kind).labels
    evaluation = cs.evaluate(model, fitted(kind, name, 1), rows(kind), labels=[f"class {label}" for label in labels])
    (information,) = (score for score in evaluation.scores if score.kind is ScoreKind.AGREEMENT)
    assert information.name == "adjusted mutual information with the classes"
    assert_allclose(information.fused, 1.0, rtol=ROUNDING)
    assert information.own <= 1.0


@every_model
def test_every_score_says_what_it_is(kind, name):
    evaluation = cs.evaluate(fitted(kind, name, 0), fitted(kind, name, 1), rows(kind))
    assert all(isinstance(score.kind, ScoreKind) for score in evaluation.scores)
    lines = str(evaluation).splitlines()
    assert all(any(score.name in line and str(score.kind) in line for line in lines) for score in evaluation.scores)
    assert [score["kind"] for score in evaluation.to_json()["scores"]] == [str(s.kind) for s in evaluation.scores]
