"""Mixtures whose columns are in another order, and topic models that name no words."""

import numpy as np
import pandas as pd
import pytest
from gensim.corpora import Dictionary
from gensim.models import LdaModel
from sklearn.cluster import KMeans
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.mixture import BayesianGaussianMixture

import consilience as cs

NAMES = ["a", "b", "c"]


def rows(seed):
    rng = np.random.default_rng(seed)
    centres = np.repeat([[0.0, 0.0, 0.0], [9.0, 5.0, 1.0]], 60, axis=0)
    return pd.DataFrame(rng.normal(size=(120, 3)) * [1.0, 2.0, 3.0] + centres, columns=NAMES)


FITS = {
    **{
        kind: lambda data, kind=kind: BayesianGaussianMixture(n_components=2, random_state=0, covariance_type=kind).fit(
            data
        )
        for kind in ("full", "diag", "tied", "spherical")
    },
    "KMeans": lambda data: KMeans(2, n_init=1, random_state=0).fit(data),
}


@pytest.mark.parametrize("kind", FITS)
def test_columns_in_another_order_are_aligned_by_name(kind):
    fit, (first, second) = FITS[kind], (rows(0), rows(1))
    turned = cs.describe(fit(second))
    index = [2, 0, 1]
    names = [NAMES[place] for place in index]
    other = cs.describe(fit(second[names]))
    straight = cs.fuse({"lund": fit(first), "oslo": turned}, n_components=2)
    fusion = cs.fuse({"lund": fit(first), "oslo": other}, n_components=2)
    np.testing.assert_allclose(fusion.posterior.natural, straight.posterior.natural, rtol=1e-6, atol=1e-6)
    assert fusion.posterior.features.names == tuple(NAMES)
    assert fusion.notes[0] == "oslo has its columns in another order: aligned by name"


def test_other_columns_are_still_refused():
    with pytest.raises(cs.errors.InputError, match="has other features: number 2 is 'd'"):
        cs.fuse([FITS["full"](rows(0)), FITS["full"](rows(1).rename(columns={"c": "d"}))])


COUNTS = np.random.default_rng(0).poisson(2.0, (40, 6))
WORDS = [f"word {number}" for number in range(6)]


def topics(seed):
    return LatentDirichletAllocation(2, max_iter=3, random_state=seed).fit(COUNTS)


def test_topics_without_words_are_refused_and_with_words_fused():
    with pytest.raises(cs.errors.InputError, match=r"model 0: does not say which words .*features=words") as caught:
        cs.fuse([topics(0), topics(1)])
    assert len(caught.value.problems) == 2
    assert cs.fuse([cs.describe(topics(seed), features=WORDS) for seed in (0, 1)]).n_components >= 2
    named = [LatentDirichletAllocation(2, max_iter=3, random_state=seed) for seed in (0, 1)]
    frame = pd.DataFrame(COUNTS, columns=WORDS)
    assert cs.fuse([model.fit(frame) for model in named]).posterior.features.names == tuple(WORDS)


def test_one_site_that_names_its_words_does_not_speak_for_the_others():
    with pytest.raises(cs.errors.InputError, match=r"^model 1: does not say which words"):
        cs.fuse([cs.describe(topics(0), features=WORDS), topics(1)])


def test_ids_of_two_dictionaries_are_no_words():
    def fit(seed, words, *, named):
        rng = np.random.default_rng(seed)
        texts = [rng.choice(words, 30).tolist() for _ in range(40)]
        known = Dictionary(texts)
        return LdaModel(
            [known.doc2bow(text) for text in texts], num_topics=2, passes=2, random_state=0,
            id2word=known if named else None,
        )  # fmt: skip

    sky, sea = ["star", "planet", "orbit", "comet"], ["whale", "coral", "star", "wave"]
    with pytest.raises(cs.errors.InputError, match="id2word="):
        cs.fuse([fit(0, sky, named=False), fit(1, sea, named=False)])
    fusion = cs.fuse([fit(0, sky, named=True), fit(1, sea, named=True)])
    assert set(fusion.posterior.features.names) == {*sky, *sea}


def chain_rows(seed, columns, kind):
    rng, state = np.random.default_rng(seed), (np.arange(400) // 20) % 2
    places = np.where(state, 1, 20), np.where(state, 15, 2)
    u, v = (rng.poisson(place) if kind == "PoissonHMM" else place + rng.normal(size=400) for place in places)
    return pd.DataFrame({"u": u, "v": v})[columns]


@pytest.mark.parametrize("kind", ["PoissonHMM", "full", "diag", "tied", "spherical"])
@pytest.mark.parametrize("told", ["data", "file", "features"])
def test_columns_of_hidden_markov_models_are_aligned_by_the_names_of_their_data(kind, told, tmp_path):
    from hmmlearn import hmm

    sites = []
    for seed, columns in enumerate((["u", "v"], ["v", "u"])):
        rows = chain_rows(seed, columns, kind)
        options = {"n_components": 2, "random_state": 0}
        is_counts = kind == "PoissonHMM"
        model = hmm.PoissonHMM(**options) if is_counts else hmm.GaussianHMM(**options, covariance_type=kind)
        rows.to_csv(tmp_path / "rows.csv", index=False)
        said = {
            "data": {"data": rows},
            "file": {"data": tmp_path / "rows.csv"},
            "features": {"n_observations": 400, "features": cs.Features(names=columns)},
        }[told]
        sites.append(cs.describe(model.fit(rows.to_numpy()), **said))
    fusion = cs.fuse(sites)
    assert fusion.notes == ("model 1 has its columns in another order: aligned by name",)
    assert fusion.n_components == 2
    found = fusion.model.lambdas_ if kind == "PoissonHMM" else fusion.model.means_
    np.testing.assert_allclose(sorted(found.tolist()), [[1.0, 15.0], [20.0, 2.0]], atol=1.0)
