"""Non-negative matrix factors: components are matched whatever their scales, and the fused model transforms rows."""

import numpy as np
import pandas as pd
import pytest
from sklearn.decomposition import NMF

import consilience as cs

WORDS = [f"word {number}" for number in range(30)]
TOPICS = np.random.default_rng(0).dirichlet(np.full(30, 0.1), 4)


def documents(seed, known=(0, 1, 2, 3), n=120):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        rng.poisson(60.0 * rng.dirichlet(np.full(len(known), 0.3), n) @ TOPICS[list(known)]), columns=WORDS
    )


def fitted(seed, known=(0, 1, 2, 3)):
    return NMF(len(known), init="nndsvda", max_iter=800, random_state=0).fit(documents(seed, known))


def frequencies(model):
    return model.components_ / model.components_.sum(axis=1, keepdims=True)


def test_a_model_is_rebuilt_as_it_was():
    model = fitted(0)
    again = cs.rebuild(cs.describe(model, n_observations=7000))
    np.testing.assert_allclose(again.components_, model.components_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(again.transform(documents(1)), model.transform(documents(1)), rtol=1e-3, atol=1e-4)


def test_components_are_matched_whatever_their_scales_and_sites_may_lack_some():
    sites = {"lund": fitted(0), "oslo": fitted(1, (0, 1, 2)), "riga": fitted(2, (1, 2, 3))}
    sites["oslo"].components_ *= 50.0
    fusion = cs.fuse(sites, n_observations=dict.fromkeys(sites, 7000))
    assert fusion.n_components == 4
    distances = np.abs(frequencies(fusion.model)[:, None] - TOPICS).sum(axis=2)  # (G, 4)
    assert sorted(distances.argmin(axis=1)) == [0, 1, 2, 3]
    assert distances.min(axis=1).max() < 0.35
    assert fusion.model.transform(documents(4)).shape == (120, 4)


def test_without_a_number_of_counts_it_is_refused():
    with pytest.raises(cs.errors.InputError, match="how many observations"):
        cs.fuse([fitted(0), fitted(1)])
    assert cs.fuse([fitted(0), fitted(1)], n_observations="equal", n_components=4).n_components == 4


def test_a_component_of_zeros_is_refused():
    model = fitted(0)
    model.components_[1] = 0.0
    with pytest.raises(cs.errors.InputError, match="components that are negative, not finite or zero"):
        cs.describe(model, n_observations=10)
