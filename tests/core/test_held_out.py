"""Rows that a site holds out: how they are split, and that they were kept apart."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

import consilience as cs
from consilience.core.held_out import MIN_HELD_OUT, digest_of_rows, refuse_trained_on
from consilience.errors import InputError, OptionError

X = np.random.default_rng(0).normal(size=(400, 3))
Y = np.arange(400) % 4


def numbers(values):
    """Return rows as they were given, as plain numbers."""
    return np.asarray(values.toarray() if sparse.issparse(values) else values)


@pytest.mark.parametrize(
    "rows",
    [X, torch.from_numpy(X), pd.DataFrame(X), sparse.csr_array(X), X.tolist()],
    ids=["array", "tensor", "table", "sparse", "list"],
)
def test_every_row_is_in_one_part_with_its_label(rows):
    (train, of_train), (held, of_held) = cs.hold_out(rows, Y)
    assert type(train) is type(held) is type(rows)
    assert len(of_held) == MIN_HELD_OUT
    both = np.concatenate([np.column_stack([numbers(train), of_train]), np.column_stack([numbers(held), of_held])])
    assert np.array_equal(both[np.lexsort(both.T)], (every := np.column_stack([X, Y]))[np.lexsort(every.T)])


def test_arguments_by_name_are_split_together():
    train, held = cs.hold_out({"ids": torch.arange(200), "mask": torch.arange(200)}, share=0.5)
    assert torch.equal(train["ids"], train["mask"])
    assert len(held["ids"]) == 100


def test_the_share_has_bounds_and_the_seed_decides():
    assert len(cs.hold_out(np.zeros(9000)).held_out) == 500
    assert len(cs.hold_out(np.zeros(9000), max_rows=2000).held_out) == 900
    assert np.array_equal(cs.hold_out(X).held_out, cs.hold_out(X).held_out)
    assert not np.array_equal(cs.hold_out(X, rng=1).held_out, cs.hold_out(X).held_out)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((np.zeros(99),), {}, "has 99 rows, of which 50 cannot be held out"),
        ((X, Y[:-1]), {}, "has 399 labels, and X has 400 rows"),
        ((X,), {"share": 1.5}, "expected a number between 0 and 1"),
        ((X,), {"max_rows": 10}, "expected 50 rows or more"),
        (({"a": X, "b": X[:9]},), {}, "has arguments of 9, 400 rows"),
    ],
)
def test_what_cannot_be_split_is_said(arguments, options, message):
    with pytest.raises((InputError, OptionError), match=message):
        cs.hold_out(*arguments, **options)


def test_a_digest_is_of_rows_and_not_of_their_order_or_precision(tmp_path):
    order = np.random.default_rng(1).permutation(400)
    digest = digest_of_rows((X, Y))
    assert digest_of_rows((X[order], Y[order])) == digest
    assert digest_of_rows((torch.from_numpy(X).float(), torch.from_numpy(Y))) == digest
    np.savez(tmp_path / "rows.npz", x=X.astype(np.float32), y=Y)
    assert digest_of_rows(tmp_path / "rows.npz") == digest
    assert digest_of_rows((X, Y[order])) != digest
    assert digest_of_rows(X) != digest
    assert digest_of_rows([(X, Y)]) is None


def test_rows_that_were_trained_on_are_refused_and_rows_that_repeat_are_not():
    train, held = cs.hold_out(X, Y)
    refuse_trained_on(train, held)
    with pytest.raises(InputError, match="100% of its rows are among those that the model was trained on"):
        refuse_trained_on(train, (train[0][:60], train[1][:60]))
    with pytest.raises(OptionError, match="batches are read once"):
        refuse_trained_on([train], held)
    few = np.repeat(np.arange(4.0), 100)[:, None]  # a table whose rows are alike anyway
    refuse_trained_on(*cs.hold_out(few, few[:, 0]))
