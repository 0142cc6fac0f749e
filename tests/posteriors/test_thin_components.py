"""Components of few observations are withheld by their site and left out of fusions, each by name."""

import warnings

import numpy as np
import pytest
from hmmlearn.hmm import GaussianHMM
from numpy.testing import assert_allclose
from sklearn.cluster import KMeans
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture

import consilience as cs
from tests.tolerances import ROUNDING

RNG = np.random.default_rng(0)
CENTRES = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 30.0]])


def rows(sizes):
    """Return rows around the first centres, as many as asked around each."""
    return np.concatenate([centre + RNG.normal(size=(n, 2)) for centre, n in zip(CENTRES, sizes, strict=False)])


def mixture(sizes):
    """Return a mixture fitted to so many rows around each centre, and the rows."""
    data = rows(sizes)
    means = CENTRES[: len(sizes)]
    return GaussianMixture(len(sizes), means_init=means, random_state=0).fit(data), data


THIN, THIN_ROWS = mixture([60, 50, 3])
FULL, FULL_ROWS = mixture([60, 50, 40])
MODELS = {"thin": THIN, "full": FULL}
NUMBERS = {"thin": len(THIN_ROWS), "full": len(FULL_ROWS)}


def chain(thin_state=True):
    """Return a hidden Markov model of three states in six dimensions, one of them hardly visited."""
    model = GaussianHMM(3, covariance_type="full")
    out = 0.004 if thin_state else 0.2
    model.startprob_ = np.array([0.6, 0.4, 0.0])
    model.transmat_ = np.array([[0.9 - out, 0.1, out], [0.1, 0.9 - out, out], [0.5, 0.5, 0.0]])
    model.means_ = np.arange(3.0)[:, None] * 8.0 + np.zeros((3, 6))
    model.covars_ = np.repeat(np.eye(6)[None], 3, axis=0)
    model.n_features = 6
    return model


def test_describe_and_save_withhold_and_say_which(tmp_path):
    with pytest.warns(cs.errors.WithheldWarning, match=r"1 of 3 components .* 2 \(3\)"):
        posterior = cs.describe(THIN, THIN_ROWS)
    with pytest.warns(cs.errors.WithheldWarning):
        cs.save(THIN, tmp_path / "site.safetensors", data=THIN_ROWS)
    assert cs.load(tmp_path / "site.safetensors").counts.tolist() == posterior.counts.tolist()
    whole = cs.describe(THIN, THIN_ROWS, min_count=0)
    assert whole.n_components == 3
    assert posterior.natural.tobytes() == whole.natural[:2].tobytes()


@pytest.mark.parametrize(("min_count", "left"), [(0, 3), (2, 3), (5, 2), (55, 1)])
def test_min_count_alone_decides(min_count, left):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cs.errors.WithheldWarning)
        assert cs.describe(THIN, THIN_ROWS, min_count=min_count).n_components == left
        assert cs.describe(cs.describe(THIN, THIN_ROWS, min_count=0), min_count=min_count).n_components == left


def test_a_model_of_which_nothing_is_left_is_refused():
    with pytest.raises(cs.errors.InputError, match="none of its 3 components has 1000 effective observations"):
        cs.describe(THIN, THIN_ROWS, min_count=1000)
    problem = cs.check(MODELS, n_observations=NUMBERS, min_count=61)[0]
    assert problem.subject == "thin"
    assert "smaller min_count" in problem.remedy
    with pytest.raises(cs.errors.InputError, match="thin: none of its 3 components"):
        cs.fuse(MODELS, n_observations=NUMBERS, min_count=61)


@pytest.mark.parametrize("combine", ["barycenter", "product"])
def test_fuse_leaves_out_by_name_what_a_site_would_withhold(combine):
    fusion = cs.fuse(MODELS, n_observations=NUMBERS, combine=combine)
    with pytest.warns(cs.errors.WithheldWarning):
        described = {name: cs.describe(model, n_observations=NUMBERS[name]) for name, model in MODELS.items()}
    withheld = cs.fuse(described, combine=combine)
    assert fusion.posterior.natural.tobytes() == withheld.posterior.natural.tobytes()
    assert fusion.posterior.counts.tobytes() == withheld.posterior.counts.tobytes()
    assert fusion.matching.of_site("thin")[2] == -1
    assert np.all(fusion.matching.of_site("thin")[:2] >= 0)
    record = fusion.details["withheld"]
    assert (record["min_count"], record["count"]) == (5.0, 1)
    assert (record["components"][0]["model"], record["components"][0]["component"]) == ("thin", 2)
    assert set(record["components"][0]) == {"model", "component"}  # and not how few there are
    assert "withheld" not in withheld.details


def test_nothing_is_left_out_at_zero():
    fusion = cs.fuse(MODELS, n_observations=NUMBERS, min_count=0, n_components=3)
    assert "withheld" not in fusion.details
    assert np.all(fusion.matching.labels >= 0)


@pytest.mark.parametrize("method", ["kl", "spahm", "dp", "kmeans", "concatenate"])
def test_every_method_leaves_out_the_same(method):
    models = {
        name: BayesianGaussianMixture(n_components=3, random_state=0, weight_concentration_prior=1.0).fit(data)
        for name, data in (("thin", THIN_ROWS), ("full", FULL_ROWS))
    }
    fusion = cs.fuse(models, method)
    left_out = {(one["model"], one["component"]) for one in fusion.details["withheld"]["components"]}
    counts = {name: cs.describe(model, min_count=0).counts for name, model in models.items()}
    assert left_out == {(name, k) for name, of_site in counts.items() for k in np.flatnonzero(of_site < 5)}
    assert left_out
    assert all(fusion.matching.of_site(name)[k] == -1 for name, k in left_out)


@pytest.mark.parametrize("method", ["average", "amps"])
def test_methods_for_models_of_equal_size_match_thin_components_and_leave_them_out(method):
    """Component 2 of the thin model has no part in the average, which is then what the other model says."""
    fusion = cs.fuse(MODELS, method, n_observations=NUMBERS)
    assert fusion.matching.of_site("thin")[2] == -1
    assert fusion.details["withheld"]["count"] == 1
    alone = cs.describe(FULL, FULL_ROWS)
    (group,) = set(range(3)) - set(fusion.matching.of_site("thin")[:2])
    (component,) = np.flatnonzero(fusion.matching.of_site("full") == group)
    assert_allclose(fusion.posterior.natural[group], alone.natural[component], rtol=ROUNDING)
    assert_allclose(fusion.posterior.counts[group], alone.counts[component], rtol=ROUNDING)


def test_files_say_nothing_of_what_was_withheld_and_shards_leave_out_alike(tmp_path):
    for name, model in MODELS.items():
        cs.save(model, tmp_path / f"{name}.safetensors", n_observations=NUMBERS[name], min_count=0)
    cs.pack(tmp_path, tmp_path / "packed")
    packed, files = cs.fuse(tmp_path / "packed"), cs.fuse(sorted(tmp_path.glob("*.safetensors")))
    assert packed.posterior.natural.tobytes() == files.posterior.natural.tobytes()
    for fusion, suffix in ((packed, ".safetensors"), (files, "")):
        (one,) = fusion.details["withheld"]["components"]
        assert (one["model"], one["component"]) == (f"thin{suffix}", 2)
    assert cs.check(tmp_path / "packed", min_count=61)[0].text.startswith("none of its 3 components")


def test_passes_over_shards_leave_out_by_name(tmp_path):
    for site in range(8):
        model, data = mixture([40, 40, 3 if site == 5 else 30])
        cs.save(model, tmp_path / f"site-{site}.safetensors", data=data, min_count=0)
    files, packed = sorted(tmp_path.glob("*.safetensors")), tmp_path / "packed"
    cs.pack(tmp_path, packed)
    fusion = cs.fuse(packed, n_components=3, pilot_sites=4)
    record = fusion.details["withheld"]
    assert [(one["model"], one["component"]) for one in record["components"]] == [("site-5.safetensors", 2)]
    assert_allclose(fusion.posterior.counts.sum(), sum(cs.fuse(files).posterior.counts), rtol=ROUNDING)
    with pytest.raises(cs.errors.InputError, match=r"site-\d.safetensors: none of its 3 components"):
        cs.fuse(packed, n_components=3, pilot_sites=4, min_count=41)


def test_a_thin_state_takes_its_transitions_with_it():
    with pytest.warns(cs.errors.WithheldWarning, match="1 of 3"):
        posterior = cs.describe(chain(), n_observations=600)
    whole = cs.describe(chain(), n_observations=600, min_count=0)
    kept = whole.attached["transition_counts"].values[:2, :2]
    assert posterior.attached["transition_counts"].values.tolist() == kept.tolist()
    rebuilt = cs.rebuild(posterior)
    assert_allclose(rebuilt.transmat_, kept / kept.sum(axis=1, keepdims=True), rtol=ROUNDING)
    assert_allclose(rebuilt.transmat_.sum(axis=1), 1.0, rtol=ROUNDING)


@pytest.mark.parametrize("broken", ["mean", "covariance"])
def test_a_state_without_parameters_is_left_out_by_name(broken):
    """hmmlearn leaves NaN where a state was never visited, and singular covariances where rows are too few."""
    model = chain(thin_state=False)
    if broken == "mean":
        model.means_[1] = np.nan
    else:
        model._covars_[1] = np.zeros((6, 6))
    with pytest.warns(cs.errors.WithheldWarning, match="1 components have no usable parameters and were left out: 1"):
        posterior = cs.describe(model, n_observations=600)
    assert posterior.n_components == 2
    fusion = cs.fuse({"broken": model, "sound": chain(thin_state=False)}, n_observations=[600, 600])
    assert fusion.details["unusable"] == {"broken": [1]}
    assert fusion.n_components == 3
    assert_allclose(fusion.model.transmat_.sum(axis=1), 1.0, rtol=ROUNDING)


def test_a_model_without_any_usable_state_is_refused():
    model = chain()
    model.means_[:] = np.nan
    with pytest.raises(cs.errors.InputError, match="means_: expected finite numbers"):
        cs.describe(model, n_observations=600)


def kmeans_with_outlier(seed):
    """Return a fitted KMeans whose third cluster is one row, far away."""
    rng = np.random.default_rng(seed)
    rows = np.concatenate([rng.normal(size=(150, 2)), rng.normal(size=(150, 2)) + 9.0, [[500.0, 500.0 + seed]]])
    return KMeans(3, n_init=10, random_state=0).fit(rows)


def test_one_row_leaves_by_no_door_and_nothing_tells_that_it_was_there(tmp_path):
    model = kmeans_with_outlier(0)
    with pytest.warns(cs.errors.WithheldWarning, match="1 of 3 components"):
        cs.save(model, tmp_path / "site")
    cs.save(model, tmp_path / "all", min_count=0)
    sent = cs.load(tmp_path / "site")
    assert_allclose(np.sort(sent.counts), [150.0, 150.0])
    assert_allclose(sent.weights.sum(), 1.0)
    means, variance = sent.parameters()["mean"], sent.parameters()["variance"] * sent.counts
    assert np.abs(means).max() < 20.0
    # What inertia and widths say together is the number of rows that stay, 300, and not the 301 of the fit.
    assert_allclose(sent.attached["inertia"].values / (2 * variance), 300.0)
    others = [kmeans_with_outlier(seed) for seed in (1, 2)]
    for method in ("kmeans", "kl"):
        fusion = cs.fuse([model, *others], method=method)
        assert np.abs(fusion.posterior.parameters()["mean"]).max() < 20.0
        of_files = cs.fuse([tmp_path / "all", *others], method=method)
        assert np.abs(of_files.posterior.parameters()["mean"]).max() < 20.0
