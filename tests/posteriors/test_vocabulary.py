"""Laws of fusing topic models by word: whatever order or part of the vocabulary a site has."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import consilience as cs
from consilience.posteriors.vocabulary import expand_vocabulary, restrict_vocabulary
from tests.tolerances import ROUNDING

pytestmark = pytest.mark.covering(2)

WORDS = tuple(f"w{number:02d}" for number in range(24))
PRIOR, TOKENS = 0.1, 300
METHODS = {
    "kl": {"n_components": 3},
    "product": {"method": "kl", "n_components": 3, "combine": "product"},
    "kmeans": {"method": "kmeans", "n_components": 3},
    "spahm": {"method": "spahm"},
    "amps": {"method": "amps"},
    "average": {"method": "average"},
    "concatenate": {"method": "concatenate"},
}
SOURCES = {
    "sklearn.LatentDirichletAllocation": {"doc_topic_prior": "given"},
    "gensim.LdaModel": {},
}
EXTRA = {
    "sklearn.LatentDirichletAllocation": {},
    "gensim.LdaModel": {
        "doc_topic_prior_is_default": cs.Attached(np.array(1.0), (), "mean"),
        "doc_topic_prior_parts": cs.Attached(np.ones(3), ("component",), "mean"),
        "documents": cs.Attached(np.array(20.0), (), "sum"),
    },
}
SKLEARN, GENSIM = SOURCES

every_method = pytest.mark.parametrize("method", METHODS)
every_kind = pytest.mark.parametrize("kind", SOURCES)


@cache
def counts(site):
    """Tokens (3, V) of each word in each topic of a site; the topics are planted."""
    rng = np.random.default_rng(site)
    topics = np.full((3, len(WORDS)), 0.2)
    for topic in range(3):
        topics[topic, 8 * topic : 8 * topic + 8] = 2.0
    return np.array([rng.multinomial(TOKENS, row / row.sum()) for row in topics]).astype(float)


def site(number, words=WORDS, kind=SKLEARN, prior=PRIOR):
    """What a site sends that has only these words, in this order."""
    family = cs.families.Dirichlet(len(words))
    places = [WORDS.index(word) for word in words]
    own = counts(number)[:, places]
    return cs.Posterior(
        family,
        family.to_natural(concentration=own + prior),
        prior=np.full(len(words), prior) - 1.0,
        counts=own.sum(axis=1),
        attached={"doc_topic_prior": cs.Attached(np.array(0.2), (), "mean"), **EXTRA[kind]},
        features=cs.Features(names=words),
        source={"kind": kind, **SOURCES[kind]},
    )


def shuffled(words, seed):
    return tuple(np.random.default_rng(seed).permutation(words).tolist())


def some(kind=SKLEARN):
    """Three sites with parts of the vocabulary, each in an order of its own; the last word is nowhere."""
    parts = (WORDS[:20], WORDS[4:23], WORDS[:8] + WORDS[12:22])
    return [site(number, shuffled(words, number), kind) for number, words in enumerate(parts)]


# -- The same words in another order


@every_kind
@every_method
def test_sites_with_permuted_vocabularies_give_the_same_as_with_equal_ones(kind, method):
    equal = [site(number, kind=kind) for number in range(3)]
    permuted = [site(number, shuffled(WORDS, number), kind) for number in range(3)]
    expected, found = cs.fuse(equal, **METHODS[method]), cs.fuse(permuted, **METHODS[method])
    assert found.posterior.natural.tobytes() == expected.posterior.natural.tobytes()
    assert found.posterior.features.names == WORDS
    assert_array_equal(found.matching.labels, expected.matching.labels)
    assert "vocabulary" not in expected.details
    assert found.details["vocabulary"] == {"size": len(WORDS), "missing": {}}
    assert {k: v for k, v in found.details.items() if k != "vocabulary"} == dict(expected.details)


@every_method
def test_equal_vocabularies_stay_as_they_are_whatever_their_order(method):
    """Not sorted, and nothing is said."""
    words = shuffled(WORDS, 7)
    named = [site(number, words) for number in range(3)]
    found = cs.fuse(named, **METHODS[method])
    assert found.posterior.features.names == words
    assert "vocabulary" not in found.details
    assert all(one.value is given for one, given in zip(found.inputs, named, strict=True))
    with pytest.raises(cs.errors.InputError, match="model 1: does not say which words"):
        cs.fuse([named[0], replace(named[1], features=cs.Features()), named[2]], **METHODS[method])


# -- Words that a site does not have


@every_kind
def test_a_missing_word_has_its_prior_and_no_token(kind):
    sites = some(kind)
    fusion = cs.fuse(sites, "concatenate")
    names = fusion.posterior.features.names
    assert names == tuple(sorted(set().union(*(one.features.names for one in sites))))
    concentration = fusion.posterior.parameters()["concentration"]
    for number, one in enumerate(sites):
        rows = fusion.matching.of_site(number)
        own = concentration[rows]
        assert_allclose(fusion.posterior.counts[rows], one.counts, rtol=ROUNDING)
        for place, word in enumerate(names):
            if word in one.features.names:
                expected = one.parameters()["concentration"][:, one.features.names.index(word)]
            else:
                expected = np.full(3, PRIOR)
            assert_allclose(own[:, place], expected, rtol=ROUNDING)
    assert fusion.details["vocabulary"] == {"size": 23, "missing": {"model 0": 3, "model 1": 4, "model 2": 5}}


@every_method
def test_an_alignment_is_the_fusion_of_sites_that_say_so_themselves(method):
    """The oracle: the sites' counts with zeros where they have no word, written out over all words by hand."""
    sites = some()
    union = WORDS[:23]
    by_hand = []
    for number, one in enumerate(sites):
        whole = site(number, union)
        seen = np.array([word in one.features.names for word in union])
        own = np.where(seen, counts(number)[:, :23], 0.0)
        natural = whole.family.to_natural(concentration=own + PRIOR)
        by_hand.append(replace(whole, natural=natural, counts=own.sum(axis=1)))
    found, expected = cs.fuse(sites, **METHODS[method]), cs.fuse(by_hand, **METHODS[method])
    assert_allclose(found.posterior.natural, expected.posterior.natural, rtol=ROUNDING, atol=ROUNDING)
    assert_allclose(found.posterior.counts, expected.posterior.counts, rtol=ROUNDING)
    assert_array_equal(found.matching.labels, expected.matching.labels)


def test_a_product_is_the_posterior_of_all_tokens_whoever_has_the_word():
    fusion = cs.fuse(some(), **METHODS["product"])
    pooled = np.zeros((3, 23))
    for number, one in enumerate(some()):
        seen = np.array([word in one.features.names for word in WORDS[:23]])
        np.add.at(pooled, fusion.matching.of_site(number), np.where(seen, counts(number)[:, :23], 0.0))
    assert_allclose(fusion.posterior.parameters()["concentration"], pooled + PRIOR, rtol=1e-10)


@every_kind
@every_method
def test_the_order_of_sites_changes_no_byte(kind, method, tmp_path):
    for number, one in enumerate(some(kind)):
        cs.save(one, tmp_path / f"{number}.safetensors")
    files = [str(tmp_path / f"{number}.safetensors") for number in range(3)]
    written = []
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        cs.fuse([files[number] for number in order], **METHODS[method]).save(tmp_path / "fused")
        written.append((tmp_path / "fused").read_bytes())
    assert len(set(written)) == 1


@every_kind
@every_method
def test_the_model_that_comes_back_has_all_words(kind, method):
    fusion = cs.fuse(some(kind), **METHODS[method])
    again = cs.describe(fusion.model)
    assert again.family == cs.families.Dirichlet(23)
    if kind == GENSIM:
        assert [fusion.model.id2word[number] for number in range(23)] == list(WORDS[:23])
    columns = [replace(one, features=replace(one.features, from_columns=True)) for one in some()]
    assert cs.fuse(columns).model.feature_names_in_.tolist() == list(WORDS[:23])


def test_what_was_aligned_can_be_fused_again_with_a_site_that_has_other_words():
    first = cs.fuse(some()[:2], n_components=3).posterior
    fusion = cs.fuse([first, some()[2]], n_components=3)
    assert fusion.posterior.features.names == WORDS[:23]


# -- Evaluating at a site that has only some of the words


@every_kind
def test_a_site_evaluates_the_fused_topics_on_its_own_words(kind):
    sites = some(kind)
    fusion = cs.fuse(sites, n_components=3)
    documents = np.random.default_rng(5).poisson(2.0, (30, 20))
    evaluation = cs.evaluate(fusion, sites[0], documents)
    same = cs.evaluate(restrict_vocabulary(fusion.posterior, sites[0].features.names), sites[0], documents)
    assert str(evaluation) == str(same)
    assert evaluation.usage.fused.sum() == documents.sum()


def test_topics_given_some_words_are_the_fused_ones_renormalised():
    fused = cs.fuse(some(), n_components=3).posterior
    words = some()[1].features.names
    part = restrict_vocabulary(fused, words).parameters()["concentration"]
    whole = fused.parameters()["concentration"][:, [fused.features.names.index(word) for word in words]]
    assert_array_equal(part, whole)
    assert expand_vocabulary(
        restrict_vocabulary(fused, fused.features.names[::-1]), fused.features.names
    ).natural.tobytes() == (fused.natural.tobytes())


def test_a_site_with_a_word_that_the_fused_model_lacks_is_told():
    fusion = cs.fuse([site(0, WORDS[:20]), site(1, WORDS[:19])], n_components=3)
    with pytest.raises(cs.errors.InputError, match="your own model: has 24 columns, expected 20"):
        cs.evaluate(fusion, site(2), np.ones((4, 24)))
