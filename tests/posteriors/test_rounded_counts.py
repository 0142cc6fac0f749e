"""Word counts of topics are rounded on request, so that they do not say how often one text has a word."""

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.preprocessing import StandardScaler

import consilience as cs
from consilience.api.kinds import inspect_file
from consilience.errors import ConsilienceError, OptionError

WORDS = [f"w{n}" for n in range(30)]


@pytest.fixture(scope="module")
def model():
    texts = np.random.default_rng(0).poisson(0.4, (80, 30))
    texts[:, 7] = 0
    texts[3, 7] = 3  # a name that one text has, three times
    return LatentDirichletAllocation(4, random_state=0).fit(texts)


def test_word_counts_are_rounded_on_request_and_inspection_says_so(tmp_path, model):
    exact, rounded = cs.describe(model, features=WORDS), cs.describe(model, features=WORDS, round_counts=10)
    assert (exact.natural - exact.prior)[:, 7].sum() == pytest.approx(3.0)
    counts = rounded.natural - rounded.prior
    np.testing.assert_allclose(counts / 10, np.rint(counts / 10), atol=1e-12)
    np.testing.assert_allclose(rounded.counts, counts.sum(axis=1))
    assert np.abs(counts - (exact.natural - exact.prior)).max() <= 5.0 + 1e-9
    assert np.abs(counts[:, 7]).max() < 1e-12
    for step, said in ((None, "to the last digit"), (10, "multiples of 10")):
        cs.save(model, tmp_path / "a", features=WORDS, round_counts=step, overwrite=True)
        assert dict(inspect_file(tmp_path / "a").rows)["word counts"].startswith(said)
    assert cs.fuse([exact, rounded]).model.n_components >= 1  # sites need not agree on it


@pytest.mark.parametrize(("step", "said"), [(1, "2 or more"), (float("nan"), "2 or more"), (1e9, "leaves no word")])
def test_steps_of_rounding_that_make_no_sense_are_refused(model, step, said):
    with pytest.raises(ConsilienceError, match=said):
        cs.describe(model, round_counts=step)


def test_rounding_is_for_topics():
    rows = np.arange(20.0)[:, None]
    with pytest.raises(OptionError, match="is for topic models"):
        cs.describe(KMeans(2, n_init=1, random_state=0).fit(rows), round_counts=5)
    with pytest.raises(OptionError, match="is for topic models"):
        cs.describe(StandardScaler().fit(rows), data=rows, round_counts=5)
