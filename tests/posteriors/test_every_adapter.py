"""Laws of every adapter of the table, whatever the library: those that adapters of others are held to.

What a library's own methods say of rebuilt models is asked in the files of the libraries.
"""

import numpy as np
import pytest
from scipy import sparse

import consilience as cs
from consilience.core.scores import ScoreKind
from consilience.posteriors.adapters.table import ADAPTERS
from consilience.testing import check_adapter
from tests.copies import COPIES
from tests.posteriors.adapters_zoo import COUNTS, KINDS, ROWS, SYMBOLS, WORDS, fitted
from tests.tolerances import ROUNDING


@pytest.mark.parametrize("kind", KINDS)
def test_the_laws_of_adapters(kind):
    check_adapter(ADAPTERS[KINDS.index(kind)], fitted(kind), rounding=ROUNDING)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_a_model_and_of_its_posterior_are_the_same(kind, tmp_path):
    cs.save(fitted(kind), tmp_path / "site.safetensors")
    cs.save(cs.load(tmp_path / "site.safetensors"), tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "site.safetensors").read_bytes()


@COPIES
@pytest.mark.parametrize("kind", KINDS)
def test_fused_models_are_of_the_class_that_was_fused(kind):
    adapter = ADAPTERS[KINDS.index(kind)]
    n_observations = None if adapter.records_n_observations else "equal"
    words = WORDS if kind in ("sklearn.LatentDirichletAllocation", "sklearn.NMF") else None
    fusion = cs.fuse([cs.describe(fitted(kind), features=words)] * 2, "average", n_observations=n_observations)
    assert adapter.accepts(fusion.model)


@pytest.mark.parametrize("kind", KINDS)
def test_every_adapter_says_what_its_scores_are(kind):
    adapter, model = ADAPTERS[KINDS.index(kind)], fitted(kind)
    n_columns = adapter.n_columns(adapter.describe(model, None))
    data = sparse.csr_array(COUNTS) if adapter.takes_counts else SYMBOLS if n_columns == 1 else ROWS
    if n_columns > ROWS.shape[1] and not adapter.takes_counts:
        data = np.random.default_rng(0).normal(size=(20, n_columns))
    assert isinstance(adapter.scores(model, data).kind, ScoreKind)
