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
