"""MiniBatchKMeans, BisectingKMeans and Birch: a fusion with a verdict, of which no pooled fit is the equal."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.cluster import Birch, BisectingKMeans, MiniBatchKMeans
from sklearn.metrics import adjusted_rand_score

import consilience as cs

CENTRES = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0], [9.0, 9.0]])
MODELS = {
    "MiniBatchKMeans": lambda: MiniBatchKMeans(4, n_init=10, random_state=0),
    "BisectingKMeans": lambda: BisectingKMeans(4, n_init=5, random_state=0),
    "Birch": lambda: Birch(threshold=1.5, n_clusters=4),
}
every_model = pytest.mark.parametrize("name", MODELS)


def rows(seed, n=400):
    rng = np.random.default_rng(seed)
    labels = rng.integers(4, size=n)
    return CENTRES[labels] + rng.normal(size=(n, 2)) * 0.8, labels


@every_model
def test_the_fused_model_finds_the_clusters_of_all_sites(name):
    fusion = cs.fuse({f"site {seed}": MODELS[name]().fit(rows(seed)[0]) for seed in range(4)})
    X, labels = rows(9)
    assert type(fusion.model).__name__ == name
    assert adjusted_rand_score(labels, fusion.model.predict(X)) > 0.99
    assert fusion.verdict.text


@every_model
def test_files_and_evaluation(name, tmp_path):
    paths = []
    for seed in range(2):
        paths.append(tmp_path / f"{seed}.safetensors")
        cs.save(MODELS[name]().fit(rows(seed)[0]), paths[-1])
    fusion = cs.fuse(paths)
    X, _ = rows(9)
    again = cs.rebuild(cs.load(paths[0]))
    np.testing.assert_array_equal(cs.describe(again).counts, cs.load(paths[0]).counts)
    evaluation = cs.evaluate(fusion, paths[0], X)
    assert evaluation.scores[0].name == "squared distance to the nearest centre"


def test_a_site_of_subclusters_alone_keeps_its_predictions():
    X, _ = rows(0)
    model = Birch(threshold=1.5, n_clusters=4).fit(X)
    again = cs.rebuild(cs.describe(model, min_count=0))
    assert adjusted_rand_score(model.predict(X), again.predict(X)) == 1.0


def test_the_leaves_of_birch_hold_the_sums_of_their_rows():
    X, _ = rows(0)
    model = Birch(threshold=1.5, n_clusters=None).fit(X)
    posterior = cs.describe(model, min_count=0)
    assert posterior.counts.sum() == len(X)
    np.testing.assert_allclose(posterior.counts @ posterior.parameters()["mean"], X.sum(axis=0), rtol=1e-10)


def test_a_bisecting_tree_of_two_well_separated_groups_predicts_the_nearest_centre():
    X, _ = rows(0)
    fused = cs.fuse([BisectingKMeans(4, n_init=5, random_state=0).fit(rows(seed)[0]) for seed in range(2)]).model
    nearest = np.argmin(((X[:, None] - fused.cluster_centers_) ** 2).sum(axis=2), axis=1)
    np.testing.assert_array_equal(fused.predict(X), nearest)


def test_models_that_keep_no_labels_are_refused():
    X, _ = rows(0)
    with pytest.raises(cs.errors.InputError, match="fit with `compute_labels=True"):
        cs.describe(MiniBatchKMeans(4, n_init=1, compute_labels=False).fit(X))
