"""Laws of every adapter: what is described can be rebuilt, predicts the same, and survives its file to the last bit."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.datasets import load_digits, load_wine
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from sklearn.preprocessing import scale
from sklearn.utils.validation import check_is_fitted

import consilience as cs
from consilience.posteriors.adapters.base import ASSUMED_SAMPLES
from consilience.posteriors.adapters.table import ADAPTERS
from tests.tolerances import DIGAMMA_OF_SCIKIT_LEARN, ROUNDING

pytestmark = pytest.mark.covering(2)

WINE = scale(load_wine().data)[:, [0, 6, 9, 12]]
COUNTS = load_digits().data[:90]
TYPES = ("full", "tied", "diag", "spherical")
PRIORS = ("dirichlet_process", "dirichlet_distribution")

MODELS = {
    "sklearn.BayesianGaussianMixture": {
        f"{kind}, {prior}": BayesianGaussianMixture(
            n_components=3,
            covariance_type=kind,
            weight_concentration_prior_type=prior,
            weight_concentration_prior=0.5,
            mean_precision_prior=0.1,
            max_iter=500,
            random_state=0,
        )
        for kind in TYPES
        for prior in PRIORS
    },
    "sklearn.GaussianMixture": {kind: GaussianMixture(3, covariance_type=kind, random_state=0) for kind in TYPES},
    "sklearn.KMeans": {"": KMeans(3, n_init=1, random_state=0)},
    "sklearn.MiniBatchKMeans": {"": MiniBatchKMeans(3, n_init=1, random_state=0)},
    "sklearn.LatentDirichletAllocation": {
        "priors left": LatentDirichletAllocation(4, max_iter=3, random_state=0),
        "priors given": LatentDirichletAllocation(
            4, doc_topic_prior=0.2, topic_word_prior=0.1, max_iter=3, random_state=0
        ),
    },
}
"""Models to fit, by the adapter that knows them; a new adapter is a new entry here."""

CASES = [(kind, name) for kind, models in MODELS.items() for name in models]
SAYS = ("predict", "predict_proba", "score_samples", "transform", "score", "perplexity")


def data(kind):
    return COUNTS if kind == "sklearn.LatentDirichletAllocation" else WINE


def halves(kind):
    """Two sites' data, and new data."""
    rows = data(kind)
    return rows[0::3], rows[1::3], rows[2::3]


@cache
def fitted(kind, name, part=None):
    rows = data(kind) if part is None else halves(kind)[part]
    return clone(MODELS[kind][name]).fit(rows)


@cache
def described(kind, name, part=None):
    return cs.describe(fitted(kind, name, part))


def site(kind, name, part):
    """What a site gives to be fused: its model, and of topics the words too."""
    words = [f"word {number}" for number in range(COUNTS.shape[1])]
    model = fitted(kind, name, part)
    return cs.describe(model, features=words) if kind == "sklearn.LatentDirichletAllocation" else model


def answers(model, rows):
    return {method: getattr(model, method)(rows) for method in SAYS if hasattr(model, method)}


def assert_same_answers(found, expected, rows):
    found, expected = answers(found, rows), answers(expected, rows)
    assert sorted(found) == sorted(expected)
    assert len(expected) >= 2
    error = DIGAMMA_OF_SCIKIT_LEARN if "perplexity" in expected else ROUNDING
    for method, values in expected.items():
        assert_allclose(found[method], values, rtol=error, atol=error * np.abs(values).max(), err_msg=method)


def arrays(posterior):
    """Every array of a posterior, by name."""
    found = {name: getattr(posterior, name) for name in ("natural", "prior", "counts", "weights")}
    found |= {f"attached {name}": attached.values for name, attached in posterior.attached.items()}
    return {name: values for name, values in found.items() if values is not None}


def assert_same_labels(found, expected):
    """Everything but the numbers is equal."""
    assert (found.family, found.features) == (expected.family, expected.features)
    assert dict(found.source) == dict(expected.source)
    assert {name: (a.axes, a.rule) for name, a in found.attached.items()} == {
        name: (a.axes, a.rule) for name, a in expected.attached.items()
    }
    assert sorted(arrays(found)) == sorted(arrays(expected))


def test_every_adapter_is_tested():
    """Those of other libraries have files of their own, since their models do not share scikit-learn's interface.

    So have trees, whose components are not what they predict by: ``test_clustering_adapters``; and factors, which are
    kept but for their scales: ``test_nmf``.
    """
    elsewhere = {"sklearn.Birch", "sklearn.BisectingKMeans", "sklearn.NMF"}
    assert {*MODELS} | elsewhere == {adapter.kind for adapter in ADAPTERS if adapter.library == "sklearn"}
    for kind, models in MODELS.items():
        for model in models.values():
            assert [other.kind for other in ADAPTERS if other.accepts(model)] == [kind]


every_model = pytest.mark.parametrize(("kind", "name"), CASES)


@every_model
def test_rebuilt_models_give_the_same_answers(kind, name):
    rebuilt = cs.rebuild(described(kind, name))
    assert type(rebuilt) is type(fitted(kind, name))
    check_is_fitted(rebuilt)
    assert rebuilt.n_features_in_ == data(kind).shape[1]
    assert_same_answers(rebuilt, fitted(kind, name), halves(kind)[2])


@every_model
def test_describing_what_was_rebuilt_gives_the_same_posterior(kind, name):
    expected = described(kind, name)
    found = cs.describe(cs.rebuild(expected))
    assert_same_labels(found, expected)
    for key, values in arrays(expected).items():
        assert_allclose(arrays(found)[key], values, rtol=ROUNDING, atol=ROUNDING * np.abs(values).max(), err_msg=key)


@every_model
def test_files_keep_every_bit(kind, name, tmp_path):
    expected = described(kind, name)
    cs.save(fitted(kind, name), tmp_path / "site.safetensors")
    found = cs.load(tmp_path / "site.safetensors")
    assert_same_labels(found, expected)
    for key, values in arrays(expected).items():
        assert arrays(found)[key].dtype == np.float64
        assert arrays(found)[key].tobytes() == values.tobytes(), key
    cs.save(found, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "site.safetensors").read_bytes()


@every_model
def test_counts_add_up_to_the_observations(kind, name):
    counts = described(kind, name).counts
    total = {
        "sklearn.LatentDirichletAllocation": data(kind).sum(),  # tokens
        "sklearn.GaussianMixture": ASSUMED_SAMPLES,  # which it does not record
    }.get(kind, len(data(kind)))
    assert_allclose(counts.sum(), total, rtol=ROUNDING)


@pytest.mark.slow
@every_model
@pytest.mark.parametrize("method", ["kl", "average", "concatenate"])
def test_a_fused_model_is_an_estimator_like_the_others(kind, name, method):
    first, _, new = halves(kind)
    sites = [site(kind, name, part) for part in (0, 1)]
    n_observations = "equal" if kind == "sklearn.GaussianMixture" else None  # which it does not record
    fusion = cs.fuse(sites, method, n_observations=n_observations)
    model = fusion.model
    assert type(model) is type(fitted(kind, name, 0))
    check_is_fitted(model)
    for values in answers(model, new).values():
        assert np.all(np.isfinite(values))
    if hasattr(model, "predict"):
        labels = model.predict(new)
        assert labels.shape == (len(new),)
        assert set(labels) <= set(range(fusion.n_components))
    if hasattr(model, "weights_"):
        assert_allclose(model.weights_.sum(), 1.0, rtol=ROUNDING)
    assert cs.describe(model).n_components == fusion.n_components  # so that it can be fused again
    swapped = cs.fuse([sites[1], sites[0]], method, n_observations=n_observations)
    assert_same_answers(swapped.model, model, new)
    steps = 1 if kind == "sklearn.LatentDirichletAllocation" else 500
    check_is_fitted(clone(model).set_params(max_iter=steps, random_state=0).fit(first))


@every_model
def test_models_that_are_not_fitted_are_refused(kind, name):
    with pytest.raises(cs.errors.InputError, match=f"^this {kind.split('.')[1]} is not fitted yet; call fit first"):
        cs.describe(clone(MODELS[kind][name]))


@every_model
def test_subclasses_are_accepted(kind, name):
    model = clone(MODELS[kind][name])
    model.__class__ = type("Mine", (type(model),), {})
    model.__dict__.update(fitted(kind, name).__dict__)
    assert cs.describe(model).natural.tobytes() == described(kind, name).natural.tobytes()


@every_model
def test_column_names_are_kept(kind, name, tmp_path):
    model = clone(MODELS[kind][name])
    model.__dict__.update(fitted(kind, name).__dict__)
    names = [f"column {i}" for i in range(data(kind).shape[1])]
    model.feature_names_in_ = np.array(names, dtype=object)
    cs.save(model, tmp_path / "site.safetensors")
    posterior = cs.load(tmp_path / "site.safetensors")
    assert posterior.features == cs.Features(names=names, from_columns=True)
    assert cs.rebuild(posterior).feature_names_in_.tolist() == names


@every_model
def test_names_given_by_hand_are_not_asked_of_new_data(kind, name):
    names = [f"column {i}" for i in range(data(kind).shape[1])]
    posterior = cs.describe(fitted(kind, name), features=cs.Features(names=names))
    assert posterior.features.names == tuple(names)
    assert not hasattr(cs.rebuild(posterior), "feature_names_in_")


def test_units_given_by_hand_do_not_lose_the_names_of_the_model():
    model = KMeans(2, n_init=1, random_state=0).fit(WINE)
    model.feature_names_in_ = np.array(["a", "b", "c", "d"], dtype=object)
    posterior = cs.describe(model, features=cs.Features(units=("g", "g", "g", "g")))
    assert posterior.features == cs.Features(names="abcd", units="gggg", from_columns=True)
    assert cs.rebuild(posterior).feature_names_in_.tolist() == list("abcd")


@pytest.mark.parametrize("thing", [None, 5, b"text", object(), np.ones(3), type("KMeans", (), {})()])
def test_what_no_adapter_knows_is_refused_with_what_to_hand_in(thing):
    with pytest.raises(cs.errors.UnsupportedError) as refused:
        cs.describe(thing)
    assert type(thing).__qualname__ in str(refused.value)
    (problem,) = refused.value.problems
    assert problem.code == ("E-DATA" if isinstance(thing, np.ndarray) else "E-MODEL")
    assert "consilience." in problem.remedy


def test_a_posterior_of_an_unknown_kind_is_refused():
    posterior = replace(described("sklearn.KMeans", ""), source={"kind": "prophet.Oracle"})
    with pytest.raises(cs.errors.UnsupportedError, match=r"cannot rebuild a 'prophet.Oracle'; known: sklearn"):
        cs.rebuild(posterior)


@every_model
def test_a_posterior_that_is_not_of_its_kind_is_refused(kind, name):
    expected = described(kind, name)
    family = cs.families.Gamma()
    other = cs.Posterior(family, family.to_natural(shape=[2.0, 3.0], rate=[1.0, 1.0]), source=expected.source)
    with pytest.raises(cs.errors.InputError, match=r"components, found Gamma\(\) \[E-TYPE\]$"):
        cs.rebuild(other)
    for lost in set(expected.source) - {"kind", "samples"}:
        source = {key: value for key, value in expected.source.items() if key != lost}
        with pytest.raises(cs.errors.InputError, match=rf"lacks '{lost}', which rebuilding needs \[E-NEEDED\]$"):
            cs.rebuild(replace(expected, source=source))
    if expected.attached and kind != "sklearn.LatentDirichletAllocation":
        with pytest.raises(cs.errors.InputError, match=f"lacks '{next(iter(expected.attached))}'"):
            cs.rebuild(replace(expected, attached={}))


@pytest.mark.parametrize("samples", [0, -3, float("nan"), float("inf")])
def test_impossible_numbers_of_samples_are_refused(samples):
    with pytest.raises(cs.errors.InputError, match="n_observations: expected a positive number of observations"):
        cs.describe(fitted("sklearn.GaussianMixture", "full"), n_observations=samples)


def test_neighbouring_centres_can_be_rebuilt():
    """Rebuilding fits a KMeans to as many points as centres, which must differ whatever the centres are."""
    model = KMeans(2, n_init=1, init=[[1.0], [0.0]]).fit([[1.0], [0.0]])
    assert (
        cs.rebuild(cs.describe(model, min_count=0)).predict([[0.1], [0.9]]).tolist()
        == model.predict([[0.1], [0.9]]).tolist()
    )
