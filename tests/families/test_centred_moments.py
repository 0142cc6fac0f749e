"""Laws of centred moments: merging is exact, in any grouping; removing undoes it, or is refused."""

from fractions import Fraction

import numpy as np
import pytest

from consilience.errors import InputError
from consilience.families.centred_moments import CentredMoments, merge_moments

ROUNDING = 1e-12


def rows_and_weights(seed, n=200, p=3, offset=0.0, weighted=True):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p)) @ rng.normal(size=(p, p)) + offset
    return X, rng.uniform(0.1, 4.0, n) if weighted else None


def parts_of(X, weights, n_parts, seed, diagonal):
    owner = np.random.default_rng(seed).integers(0, n_parts, len(X))
    return [
        CentredMoments.of_rows(X[owner == j], None if weights is None else weights[owner == j], diagonal=diagonal)
        for j in range(n_parts)
    ]


def oracle(X, weights):
    """Return weight, mean and scatter by NumPy's own weighted moments."""
    w = np.ones(len(X)) if weights is None else weights
    return w.sum(), np.average(X, axis=0, weights=w), np.cov(X.T, aweights=w, ddof=0) * w.sum()


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_parts", [1, 3, 60])
def test_parts_merge_to_the_moments_of_all_rows(n_parts, weighted, diagonal):
    X, weights = rows_and_weights(n_parts, weighted=weighted)
    merged = merge_moments(parts_of(X, weights, n_parts, 0, diagonal))  # of 60, some are empty
    weight, mean, scatter = oracle(X, weights)
    assert merged.n == len(X)
    np.testing.assert_allclose(merged.weight, weight, rtol=ROUNDING)
    np.testing.assert_allclose(merged.mean, mean, rtol=0, atol=ROUNDING * np.abs(mean).max())
    expected = np.diag(scatter) if diagonal else scatter
    np.testing.assert_allclose(merged.scatter, expected, rtol=0, atol=ROUNDING * np.abs(scatter).max())
    assert merged.is_diagonal == diagonal
    log_weight = 0.0 if weights is None else np.log(weights).sum()
    np.testing.assert_allclose(merged.log_weight, log_weight, atol=1e-10)


def test_the_empty_record_is_the_identity():
    record = CentredMoments.of_rows(*rows_and_weights(0))
    merged = merge_moments([CentredMoments.empty((), 3), record, CentredMoments.empty((), 3)])
    assert np.array_equal(merged.mean, record.mean)
    assert np.array_equal(merged.scatter, record.scatter)


def test_columns_far_from_zero_keep_their_digits():
    X, _ = rows_and_weights(1, weighted=False, offset=1e6)
    merged = merge_moments(parts_of(X, None, 8, 0, False))
    exact = [[Fraction(float(value)) for value in column] for column in X.T]
    means = [sum(column) / len(column) for column in exact]
    scatter = [
        [float(sum((a - means[i]) * (b - means[j]) for a, b in zip(exact[i], exact[j], strict=True))) for j in range(3)]
        for i in range(3)
    ]
    np.testing.assert_allclose(merged.scatter, scatter, rtol=1e-9, atol=1e-9 * np.abs(scatter).max())


@pytest.mark.parametrize("diagonal", [False, True])
def test_removing_a_part_leaves_the_others(diagonal):
    X, weights = rows_and_weights(2)
    parts = parts_of(X, weights, 6, 1, diagonal)
    left, others = merge_moments(parts).remove(parts[2]), merge_moments([*parts[:2], *parts[3:]])
    for name in ("n", "weight", "log_weight", "mean", "scatter"):
        a, b = getattr(left, name), getattr(others, name)
        np.testing.assert_allclose(a, b, rtol=0, atol=ROUNDING * max(np.abs(b).max(), 1.0), err_msg=name)


def test_adding_and_removing_is_the_identity_to_the_size_of_what_was_there():
    small = CentredMoments.of_rows(*rows_and_weights(3))
    for size in (1e2, 1e4):
        X, weights = rows_and_weights(4)
        large = CentredMoments.of_rows(size**0.5 * X, weights)
        left = merge_moments([small, large]).remove(large)
        ratio = np.linalg.norm(merge_moments([small, large]).scatter) / np.linalg.norm(small.scatter)
        assert np.abs(left.scatter - small.scatter).max() <= ROUNDING * ratio * np.abs(small.scatter).max()


def test_a_removal_that_leaves_only_rounding_is_refused():
    small = CentredMoments.of_rows(*rows_and_weights(3))
    X, weights = rows_and_weights(4)
    large = CentredMoments.of_rows(1e6 * X, weights)
    with pytest.raises(InputError, match=r"so much larger than what would be left .* fuse the statistics"):
        merge_moments([small, large]).remove(large)


def test_what_is_no_part_is_not_removed():
    small, large = (CentredMoments.of_rows(*rows_and_weights(3, n=n)) for n in (50, 80))
    with pytest.raises(InputError, match="has more rows than there are"):
        small.remove(large)


def test_removing_all_rows_leaves_the_empty_record():
    record = CentredMoments.of_rows(*rows_and_weights(5))
    left = record.remove(record)
    assert left.n == left.weight == 0
    assert not np.any(left.scatter)
    assert not np.any(left.mean)


def test_a_removed_scatter_has_no_negative_eigenvalues():
    X, _ = rows_and_weights(6, weighted=False)
    X[:, 2] = X[:, 0] + X[:, 1]  # singular, so that rounding decides the sign
    parts = parts_of(X, None, 4, 0, False)
    left = merge_moments(parts).remove(parts[0])
    assert np.linalg.eigvalsh(left.scatter).min() >= -1e-13 * np.trace(left.scatter)


def test_an_affine_image_is_the_record_of_the_images():
    X, weights = rows_and_weights(7)
    rng = np.random.default_rng(0)
    A, b = rng.normal(size=(2, 3)), rng.normal(size=2)
    image, expected = (
        CentredMoments.of_rows(X, weights).affine_image(A, b),
        CentredMoments.of_rows(X @ A.T + b, weights),
    )
    np.testing.assert_allclose(image.mean, expected.mean, atol=1e-12)
    np.testing.assert_allclose(image.scatter, expected.scatter, atol=1e-10)
    with pytest.raises(InputError, match="cannot follow a map that mixes columns"):
        CentredMoments.of_rows(X, weights, diagonal=True).affine_image(A, b)


def test_rows_of_weight_zero_are_no_rows():
    X, weights = rows_and_weights(8)
    weights[:50] = 0.0
    record, expected = CentredMoments.of_rows(X, weights), CentredMoments.of_rows(X[50:], weights[50:])
    assert record.n == expected.n == 150
    np.testing.assert_allclose(record.scatter, expected.scatter)
