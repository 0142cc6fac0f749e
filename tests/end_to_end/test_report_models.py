"""What the report shows of sparse Gaussian processes and topics, and of methods that say more than others."""

import re
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

import consilience as cs
from consilience.posteriors.methods import METHODS
from consilience.posteriors.report.gaussian_processes import process_of
from consilience.posteriors.sparse_gp.kernels import RBF
from consilience.posteriors.sparse_gp.model import SparseGP
from consilience.posteriors.topics.gaussian_topics import GaussianTopics
from tests.copies import COPIES
from tests.end_to_end.pages import mixtures, readable, report, safe
from tests.posteriors.hmmlearn_sites import fitted
from tests.posteriors.test_vocabulary import GENSIM, SKLEARN, WORDS
from tests.posteriors.test_vocabulary import site as topics
from tests.tolerances import ROUNDING

# -- Sparse Gaussian processes.


def process(inputs, **others):
    """A process whose values are the sine of the first input, sure of them."""
    inputs = np.asarray(inputs, dtype=np.float64)
    kernel = RBF(1.3, np.arange(inputs.shape[1], 0.0, -1.0))
    covariance = 0.02 * np.eye(len(inputs))
    return SparseGP(inputs, np.sin(inputs[:, 0]), covariance, kernel, noise=0.04, n_observations=50.0, **others)


def processes(**others):
    return [process(np.linspace(*ends)[:, None], **others) for ends in ((0, 4, 5), (3, 7, 6))]


def test_a_function_of_one_input_is_drawn_with_its_band(path):
    x = np.linspace(0, 7, 30)
    rows = np.column_stack([x, np.sin(x)])
    page = report(cs.fuse(processes(), "concatenate"), path, data={"a": rows[:10], "b": rows[10:]})
    safe(page)
    readable(page)
    assert page.sections == ["in", "out", "who", "function", "made"]
    assert "This page shows data" in page.text
    assert page.words.endswith("parameters and the data given with them.")
    description = next(text for text in page.said if "inducing" in text)
    assert description.startswith(
        "11 fused inducing inputs; sites have model 0 5, model 1 6. 30 rows of data. The fused"
    )
    kinds = [attributes.get("class", "") for tag in ("path", "polyline", "polygon") for attributes in page.all(tag)]
    drawn = {kind: kinds.count(kind) for kind in ("fused-point", "fused", "band-wide", "band-narrow")}
    assert drawn == {"fused-point": 11, "fused": 1, "band-wide": 1, "band-narrow": 1}
    assert [kind for kind in kinds if kind.startswith("thin")] == ["thin k0", "thin k1"]
    assert "model 0 rbf 5 1.3 1 0.04 0 50 model 1 rbf 6 1.3 1 0.04 0 50 Fused rbf 11 1.3 1 0.04 0 100" in page.words


def test_the_band_is_the_prediction_of_the_fused_model_in_units_of_the_data():
    fusion = cs.fuse(processes(shift=np.array([10.0, 100.0]), scale=np.array([2.0, 5.0])), "concatenate")
    process = process_of(fusion.posterior, [("a", fusion.inputs[0].value)])
    x = np.array(process.band.x)[:, None]
    mean, variance = fusion.model.predict(x)
    noisy = fusion.model.predict(x, noise=True)[1]
    assert_allclose(process.band.mean, mean, rtol=ROUNDING)
    assert_allclose(process.band.function, 1.96 * np.sqrt(variance), rtol=1e-4)
    assert_allclose(process.band.observation, 1.96 * np.sqrt(noisy), rtol=1e-4)
    assert_allclose(np.array(process.inducing)[:, 0], 10.0 + 2.0 * fusion.model.inducing_inputs[:, 0], rtol=ROUNDING)
    parameters = [*process.fused.lengthscales, process.fused.variance, process.fused.noise, process.fused.constant]
    assert_allclose(parameters, [2.0, 1.3 * 25.0, 1.0, 100.0], rtol=ROUNDING)
    mean_curve = np.array(process.site_processes[0].mean)
    assert_allclose(mean_curve[:, 1], cs.rebuild(fusion.inputs[0].value).predict(mean_curve[:, :1])[0], rtol=ROUNDING)
    assert (mean_curve[0, 0], mean_curve[-1, 0]) == (9.0, 19.0)  # half a length-scale beyond its inducing inputs


def test_several_inputs_have_length_scales_and_the_two_shortest_are_drawn(path):
    rng = np.random.default_rng(0)
    sites = [process(rng.uniform(-2, 2, (8, 3))) for _ in range(3)]
    page = report(cs.fuse(sites, "concatenate"), path, data=rng.normal(size=(20, 4)))
    safe(page)
    readable(page)
    assert any(text.endswith("20 rows of data. Drawn in input 1 and input 2.") for text in page.said)
    assert "Process input 0 input 1 input 2 model 0 3 2 1 " in page.words
    assert not page.all("polygon")


def test_columns_have_their_names_and_many_sites_are_drawn_alike(path):
    features = cs.Features(names=("hour", "<b>degrees</b>"))
    sites = [cs.describe(process([[0.1 * site], [3.0]]), features=features) for site in range(12)]
    page = report(cs.fuse(sites, "kmeans", n_components=2), path)
    safe(page)
    readable(page)
    assert {"hour", "&lt;b&gt;degrees&lt;/b&gt;"} <= set(re.findall(r'class="axis"[^>]*>([^<]*)<', page.source))
    assert "Circles are those of the sites, all in grey" in page.words


@pytest.mark.parametrize("wrong", ["nothing attached", "not positive definite", "no number"])
def test_what_only_says_that_it_is_a_process_is_shown_as_points(path, wrong):
    fusion = cs.fuse(processes(), "concatenate")
    attached = dict(fusion.posterior.attached)
    if wrong == "nothing attached":
        attached = {}
    elif wrong == "not positive definite":
        attached["covariance"] = cs.Attached(-np.eye(11), ("component", "component"), "mean")
    else:
        attached["variance"] = cs.Attached(np.ones(3), ("fixed",), "mean")
    page = report(replace(fusion, posterior=replace(fusion.posterior, attached=attached)), path)
    readable(page)
    assert "function" not in page.sections
    assert "components" in page.sections


def test_data_of_another_width_or_with_a_truth_are_refused(path):
    fusion = cs.fuse(processes(), "concatenate")
    with pytest.raises(cs.errors.InputError, match=r"^data 'a': has 3 columns, expected 2"):
        fusion.report(path, data={"a": np.ones((5, 3))})
    with pytest.raises(cs.errors.InputError, match=r"^truth: a sparse Gaussian process has no states; leave it out"):
        fusion.report(path, data=np.ones((5, 2)), truth=[1] * 5)
    assert not path.exists()


# -- Topics.


@pytest.mark.parametrize("kind", [SKLEARN, GENSIM])
def test_topics_show_words_sites_and_what_is_missing(kind, path):
    sites = [topics(0, WORDS[:20], kind), topics(1, WORDS[4:], kind), topics(2, WORDS, kind)]
    page = report(cs.fuse(sites, n_components=3), path)
    safe(page)
    readable(page)
    assert "24 words in all; model 0 lacks 4; model 1 lacks 4." in page.words
    sources = re.findall(r'<td [^>]*class="from"[^>]*>(.*?)</td>', page.source)
    assert len(sources) == 3
    assert all(re.fullmatch(r"model 0 \(\d\), model 1 \(\d\), model 2 \(\d\)", source) for source in sources)
    assert re.search(r"w\d\d \d+\.\d, w\d\d \d+\.\d", page.words)


@pytest.mark.parametrize("space", ["glove.6B.50d", None])
def test_gaussian_topics_say_where_their_words_are(space, path):
    rng = np.random.default_rng(0)
    embeddings = np.repeat(4 * np.eye(3), 5, axis=0) + 0.1 * rng.normal(size=(15, 3))
    learner = GaussianTopics(n_topics=3, space=space)
    sites = [learner.fit(rng.poisson(2.0, (20, 15)), embeddings) for _ in "ab"]
    page = report(cs.fuse(sites, "kmeans", n_components=3), path)
    readable(page)
    where = f"the space of the embeddings {space}" if space else "a space of word embeddings"
    assert f"These topics are centres in {where}." in page.words
    assert "Each dot is a component" in page.text


# -- Methods.


def test_the_law_of_spahm_is_told_in_plain_words(path):
    fusion = cs.fuse(mixtures(), "spahm")
    page = report(fusion, path)
    readable(page)
    inside, between = (np.sqrt(fusion.details[name]) for name in ("within_variance", "between_variance"))
    assert (
        f"Copies of a component differ from it by {inside:.4g}, components from their mean by {between:.4g}"
        in page.words
    )
    deviation = np.sqrt(fusion.atoms.parameters()["variance"].mean())
    assert f"known to a standard deviation of {deviation:.4g} on average" in page.words
    assert "within variance" not in page.words  # it is not told twice


@COPIES
@pytest.mark.parametrize("method", [kind.name for kind in METHODS])
def test_every_method_has_a_report_of_every_kind_that_it_fuses(method, path):
    states, curve = fitted("VariationalGaussianHMM", "diag", 0, (0, 1)), processes()[0]
    kinds = {"components": mixtures(2), "chain": [states] * 2, "function": [curve] * 2}
    if method == "amps":
        del kinds["function"]  # points have no width
    for section, models in kinds.items():
        fusion = cs.fuse(models, method, **({"n_components": 2} if method == "kmeans" else {}))
        page = report(fusion, path)
        safe(page)
        readable(page)
        assert section in page.sections
        assert ("asks every site’s model by itself" in page.text) == (method == "ensemble")
