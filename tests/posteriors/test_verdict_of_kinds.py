"""What the verdict says of cluster centres, against the sites' rows, and of hidden Markov chains."""

import re

import numpy as np
import pytest
from sklearn.cluster import Birch, BisectingKMeans, KMeans, MiniBatchKMeans

import consilience as cs
from consilience.posteriors.verdict_of_kinds import known_of_chain
from tests.posteriors.hmmlearn_sites import by_hand

CENTRES = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]])
SITES = ("lund", "oslo", "york")


def rows_of(shift=0.0, n=300):
    rng = np.random.default_rng(0)
    return {
        site: CENTRES[rng.integers(3, size=n)] + shift * place + rng.normal(size=(n, 2))
        for place, site in enumerate(SITES)
    }


def clusters(rows, **options):
    return {site: KMeans(3, n_init=3, tol=0.0, random_state=0).fit(x) for site, x in rows.items()} | options


def squares(x, centres):
    return np.square(x[:, None] - centres).sum(axis=2).min(axis=1).sum()


def stated_share(verdict):
    return float(re.search(r"at most (\S+) % more", verdict.text)[1]) / 100


@pytest.mark.parametrize("shift", [0.0, 0.2, 1.5])
def test_the_sum_of_squares_is_within_what_is_stated(shift):
    rows = rows_of(shift)
    models = clusters(rows)
    fusion = cs.fuse(models, n_components=3)
    centres = fusion.model.cluster_centers_
    own = sum(model.inertia_ for model in models.values())
    by_cluster = 0.0  # every row to the fused centre nearest to the centre of its own cluster: what the bound is of
    for site, x in rows.items():
        nearest = np.square(models[site].cluster_centers_[:, None] - centres).sum(axis=2).argmin(axis=1)
        by_cluster += np.square(x - centres[nearest[models[site].labels_]]).sum()
    share = stated_share(fusion.verdict)
    assert sum(squares(x, centres) for x in rows.values()) / own - 1 <= share
    assert 0 <= share - (by_cluster / own - 1) <= (0.001 if share < 0.1 else 0.01) + 1e-12
    assert fusion.verdict.harmless is None
    assert fusion.verdict.standing in fusion.in_short
    assert ("further from" in fusion.verdict.standing) == (share > 0.1)
    assert "is not known" not in fusion.verdict.text
    assert "held_out=" in fusion.verdict.text
    assert "consilience evaluate" in fusion.verdict.text


def test_centres_side_by_side_are_no_further():
    fusion = cs.fuse(clusters(rows_of()), "concatenate")
    assert "add up to no more than those to each site's own centres" in fusion.verdict.text
    assert fusion.verdict.standing.endswith("as each site's own are")


def test_trees_have_their_sums_and_batches_none():
    rows = rows_of()
    for make in (lambda: BisectingKMeans(3, random_state=0), lambda: Birch(threshold=3.0, n_clusters=None)):
        fusion = cs.fuse({site: make().fit(x) for site, x in rows.items()})
        assert "at most" in fusion.verdict.text
    batches = cs.fuse({site: MiniBatchKMeans(3, random_state=0).fit(x) for site, x in rows.items()})
    assert "no sum of squares is known" in batches.verdict.text
    assert batches.verdict.standing is None


def test_sites_that_are_not_trusted_are_not_believed():
    fusion = cs.fuse(clusters(rows_of()), robust=True)
    assert "squared distances" not in fusion.verdict.text
    assert fusion.verdict.standing is None


def test_a_chain_is_judged_without_the_order_of_its_states():
    stay = np.full((3, 3), 0.05) + 0.85 * np.eye(3)
    fusion = cs.fuse(
        [by_hand(stay), by_hand(stay + 0.01 * np.eye(3) - 0.01 / 3)], n_components=3, n_observations="equal"
    )
    verdict = fusion.verdict
    start = "The states of the fused chain, compared without their order, lose less than 0.02 nats per observation"
    assert verdict.text.startswith(start)
    assert "held_out=" in verdict.text
    assert (
        verdict.standing
        == "Its states, compared without their order, lose less than 0.02 nats per observation against"
        + (" keeping both")
    )
    assert verdict.standing in fusion.in_short
    assert cs.Verdict.read(verdict.to_json()).standing == verdict.standing


def test_a_chain_of_which_no_loss_is_known_has_no_number():
    known = known_of_chain(None, "")
    assert not re.search(r"\d", known.text)
    assert not known.standing
    assert known_of_chain("loses at most 0.3 nats per word against keeping both", "word").standing == (
        "Its states, compared without their order, lose at most 0.3 nats per word against keeping both"
    )
