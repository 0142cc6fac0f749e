"""The number of topics: laws of virtual documents, and of the matchings that they judge."""

import functools
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import adjusted_rand_score

import consilience as cs
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.evidence.search import is_same_partition
from consilience.posteriors.evidence.topic_number import MAX_LOSS, TopicNumber
from consilience.posteriors.evidence.virtual_documents import EM_STEPS, N_OBSERVED, virtual_documents_of
from tests import tolerances

pytestmark = pytest.mark.covering(2)

WORDS = 300


@functools.cache
def site_counts(seed=0, n_sites=4, n_topics=8, per_site=4, tokens=3000):
    """Tokens of every site's topics (K, V), which are some of the common ones with anchor words, and which they are."""
    rng = np.random.default_rng([seed, 31])
    common = rng.dirichlet(np.full(WORDS, 0.2), n_topics)
    held = [np.sort(rng.permutation(n_topics)[:per_site]) for _ in range(n_sites)]
    return [rng.multinomial(tokens, common[own]) for own in held], held


def posterior(counts, prior=0.1):
    family = cs.families.Dirichlet(counts.shape[1])
    return cs.Posterior(
        family, counts + prior - 1.0, prior=np.full(family.dim, prior - 1.0), counts=counts.sum(axis=1).astype(float)
    )


def sites_of(seed=0, prior=0.1, **options):
    return [posterior(counts, prior) for counts in site_counts(seed, **options)[0]]


def documents_of(sites):
    return virtual_documents_of(Ensemble.of(sites))


@pytest.mark.parametrize("seed", range(3))
def test_shared_topics_are_found_and_none_is_left_out(seed):
    fusion = cs.fuse(sites_of(seed))
    assert fusion.matching.labels.min() == 0
    assert adjusted_rand_score(np.concatenate(site_counts(seed)[1]), fusion.matching.labels) == 1.0
    assert fusion.objective <= MAX_LOSS
    assert "probability" not in fusion.details["number"]


@pytest.mark.parametrize("prior", [1e-4, 1e-2, 1.0])
def test_the_word_prior_is_no_evidence(prior):
    """300 pseudo-tokens a topic, on which all sites agree, change nothing of who is who."""
    expected = cs.fuse(sites_of(prior=0.1))
    assert is_same_partition(cs.fuse(sites_of(prior=prior)).matching.labels, expected.matching.labels)


def test_numbers_fall_as_more_may_be_lost():
    curve = cs.fuse(sites_of()).details["number"]["topics_at_loss"]
    assert list(curve) == ["0.01", "0.02", "0.05", "0.1"]
    assert list(curve.values()) == sorted(curve.values(), reverse=True)


def test_all_topics_side_by_side_lose_nothing_and_one_topic_loses_much():
    documents = documents_of(sites_of())
    assert_array_equal(documents.by_document(np.arange(16)), 0.0)
    assert documents.by_document(np.zeros(16, dtype=np.int64)).mean() > 0.5


def test_few_tokens_say_more_together():
    """Topics of 200 tokens are better pooled than side by side."""
    topics = TopicNumber.of(Ensemble.of(sites_of(n_sites=6, n_topics=4, tokens=200)), keeps_apart=False)
    assert topics.selected == 4
    assert topics.loss(topics.labels(4))[0] < 0.0


def test_topics_that_one_site_tells_better_are_not_merged():
    """Two near topics, which every site has: to merge them loses less than 0.02, but each site does better alone."""
    rng = np.random.default_rng(4)
    near = rng.dirichlet(np.full(WORDS, 1.0))
    common = np.stack([near, rng.dirichlet(800 * near), rng.dirichlet(np.full(WORDS, 1.0))])
    sites = [posterior(rng.multinomial(100_000, common)) for _ in range(3)]
    topics = TopicNumber.of(Ensemble.of(sites), keeps_apart=False)
    assert 0.0 < topics.loss(topics.labels(2))[0] < MAX_LOSS
    assert cs.fuse(sites).n_components == 3
    assert cs.fuse(sites).verdict.harmless is not False


def test_scores_are_those_of_one_token_after_another():
    """A plain loop over documents, tokens, groups and topics, with each token out of the counts before it is scored."""
    sites = sites_of(n_sites=2, n_topics=3, per_site=2, tokens=300)
    documents, labels = documents_of(sites), np.array([0, 1, 1, 2])
    site_of, words, topics = documents._drawn
    tokens, beta, of_row = documents.tokens, documents.prior, labels[documents.order]
    for document in (0, 200, 399):
        rows = np.arange(*documents.offsets[site_of[document] : site_of[document] + 2])
        phi = np.empty((len(words[document]), 3))
        for t, (v, topic) in enumerate(zip(words[document], topics[document], strict=True)):
            removed = np.zeros(len(tokens))
            removed[topic] = min(tokens[topic, v], 1.0)
            others = [row for row in rows if row != topic]
            rest = min(1.0 - removed[topic], tokens[others, v].sum())
            for row in others:
                if rest > 0:
                    removed[row] = rest * tokens[row, v] / tokens[others, v].sum()
            for g in range(3):
                own = of_row == g
                phi[t, g] = (tokens[own, v].sum() - removed[own].sum() + beta[v]) / (
                    tokens[own].sum() - removed[own].sum() + beta.sum()
                )
        theta = np.full(3, 1 / 3)
        for _ in range(EM_STEPS):
            share = phi[:N_OBSERVED] * theta
            theta = (share / share.sum(axis=1, keepdims=True)).sum(axis=0) + 1 / 3
            theta /= theta.sum()
        expected = np.log(phi[N_OBSERVED:] @ theta).mean()
        assert_allclose(documents.scores(labels)[document], expected, rtol=tolerances.ROUNDING)


def test_a_bayesian_average_of_alike_sites_scores_as_its_groups():
    documents, labels = documents_of(sites_of()), np.concatenate(site_counts()[1])
    counts = np.concatenate(site_counts()[0])
    fused = np.stack([counts[labels == g].sum(axis=0) for g in range(8)]) + 0.1
    assert_allclose(documents.scores(labels, 3.0 * fused), documents.scores(labels), rtol=tolerances.ROUNDING)


def test_the_order_of_sites_and_rounding_change_nothing():
    sites, rng = sites_of(), np.random.default_rng(2)
    order = rng.permutation(len(sites))
    moved = [
        replace(sites[site], natural=sites[site].natural * (1 + 1e-12 * rng.normal(size=sites[site].natural.shape)))
        for site in order
    ]
    there, here = cs.fuse(moved), cs.fuse(sites, rng=5)
    labels = np.concatenate([there.matching.of_site(place) for place in np.argsort(order)])
    assert is_same_partition(labels, here.matching.labels)


@pytest.mark.parametrize("n_topics", [4, 6, 9, 16])
def test_a_given_number_is_kept(n_topics):
    fusion = cs.fuse(sites_of(), n_components=n_topics)
    assert fusion.n_components == n_topics
    assert fusion.details["number"]["topics_at_loss"]["0.02"] == cs.fuse(sites_of()).n_components


def test_two_topics_of_a_site_become_one_unless_they_are_to_stay_apart():
    (counts, *_), _ = site_counts()
    halved = np.concatenate([counts[:1] // 2, counts[:1] - counts[:1] // 2, counts[1:]])
    sites = [posterior(halved), *sites_of()[1:]]
    fusion = cs.fuse(sites)
    assert fusion.matching.labels[0] == fusion.matching.labels[1]
    assert fusion.details["violations"] == 1
    apart = cs.fuse(sites, exclusive=True)
    assert apart.matching.labels[0] != apart.matching.labels[1]
    assert "violations" not in apart.details


def test_a_limit_that_costs_more_than_may_be_lost_is_told():
    fusion = cs.fuse(sites_of(), max_components=4)
    assert fusion.n_components == 4
    assert fusion.status is cs.results.Status.AT_CAPACITY


def test_sites_of_one_topic_words_that_a_site_lacks_and_topics_that_nobody_used():
    counts = np.array(site_counts()[0])
    counts[1][:, :100] = 0
    counts[2][3] = 0
    sites = [posterior(counts[0][:1]), posterior(counts[1]), posterior(counts[2]), posterior(counts[3])]
    fusion = cs.fuse(sites, min_count=0)
    assert np.isfinite(fusion.posterior.natural).all()
    assert np.isfinite(fusion.verdict.loss)
    assert fusion.details["left_out"] == 1


def test_very_many_topics_begin_with_parts(monkeypatch):
    monkeypatch.setattr("consilience.posteriors.evidence.topic_number.MAX_AGGLOMERATED_ROWS", 20)
    monkeypatch.setattr("consilience.posteriors.evidence.topic_number.PART_GROUPS", 10)
    sites = sites_of(n_sites=10)
    fusion = cs.fuse(sites)
    assert adjusted_rand_score(np.concatenate(site_counts(n_sites=10)[1]), fusion.matching.labels) > 0.95
