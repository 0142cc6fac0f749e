"""Very many rows are worked on in chunks: whatever the chunks, the answer is that of all rows at once."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import consilience as cs
from consilience.families import DiagonalGaussian, FixedSide, base, chunks, evidence
from consilience.matching import conjugate_groups, group_sparse
from consilience.matching.groups import carried_sums, group_sums
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.evidence import diagnostics, random_effects, virtual_loss
from consilience.posteriors.evidence.likelihoods import likelihood_stack, virtual_loss_of
from consilience.posteriors.evidence.matching_prior import strict_prior
from consilience.posteriors.evidence.random_effects import RandomEffects

N_ROWS, DIM, N_GROUPS, ROUNDING = 60, 3, 4, 1e-10


@pytest.fixture
def tiny_chunks(monkeypatch):
    """Return a function that makes everything be done in chunks of a few rows."""

    def shrink():
        for module in (chunks, base, conjugate_groups, group_sparse):
            monkeypatch.setattr(module, "CHUNK_BYTES", 200)
        monkeypatch.setattr(virtual_loss, "PART_BYTES", 200)
        monkeypatch.setattr(virtual_loss, "MAX_DENSE_ROWS", 0)
        for module in (evidence, random_effects):
            monkeypatch.setattr(module, "MAX_KEPT_ROWS", 0)

    return shrink


def sites(noise=0.1):
    """Return twenty sites of three of four diagonal Gaussians each, and which ones."""
    rng = np.random.default_rng(0)
    family, centres = DiagonalGaussian(dim=DIM), 3.0 * rng.standard_normal((N_GROUPS, DIM))
    truth = np.array([rng.permutation(N_GROUPS)[:3] for _ in range(N_ROWS // 3)])
    means = centres[truth] + noise * rng.standard_normal((*truth.shape, DIM))
    variances = 0.1 * rng.gamma(10.0, 0.1, size=means.shape)
    return [
        cs.Posterior(family, family.to_natural(mean=m, variance=v)) for m, v in zip(means, variances, strict=True)
    ], truth.ravel()


@pytest.mark.parametrize("options", [{}, {"n_components": N_GROUPS}, {"regularization": 0.1}])
def test_a_fusion_in_chunks_is_that_of_all_rows_at_once(tiny_chunks, options):
    posteriors, _ = sites(noise=0.5)
    whole = cs.fuse(posteriors, rng=0, min_count=0, **options)
    tiny_chunks()
    parts = cs.fuse(posteriors, rng=0, min_count=0, **options)
    assert_array_equal(parts.matching.labels, whole.matching.labels)
    assert_allclose(parts.posterior.natural, whole.posterior.natural, rtol=ROUNDING)


def test_sums_go_on_where_the_chunk_before_left_off(tiny_chunks):
    rng = np.random.default_rng(1)
    rows, labels = 10.0 ** rng.uniform(-8, 8, size=(N_ROWS, DIM)), rng.integers(-1, N_GROUPS, size=N_ROWS)
    whole, total = group_sums(rows, labels, np.ones(N_ROWS), N_GROUPS).sums, rows.sum(axis=0)
    tiny_chunks()
    sums = np.zeros((N_GROUPS, DIM))
    parts = list(chunks.row_chunks(N_ROWS, DIM))
    for part in parts:
        sums = carried_sums(sums, rows[part], labels[part])
    assert len(parts) > 2
    assert_array_equal(sums, whole)
    assert_array_equal(chunks.sum_of_rows(N_ROWS, DIM, lambda part: rows[part]), total)
    assert_array_equal(chunks.map_rows(N_ROWS, DIM, lambda part: rows[part] ** 2), rows**2)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_divergences_in_chunks_are_those_of_all_rows(tiny_chunks, direction):
    natural = Ensemble.of(sites()[0]).natural
    whole = FixedSide(DiagonalGaussian(dim=DIM), natural, direction).costs(natural[:5])
    tiny_chunks()
    parts = FixedSide(DiagonalGaussian(dim=DIM), natural, direction).costs(natural[:5])
    assert_allclose(parts, whole, rtol=ROUNDING, atol=ROUNDING * whole.max())


def test_evidence_losses_and_outliers_in_chunks_are_those_of_all_rows(tiny_chunks):
    posteriors, truth = sites()
    ensemble = Ensemble.of(posteriors, np.arange(1.0, 1.0 + len(posteriors)))
    labels = truth.copy()
    labels[7] = -1  # components that are left out are in no sum

    def found():
        stack = likelihood_stack(ensemble)[0]
        problem, prior = RandomEffects(stack), strict_prior(stack.n_sites)
        h = 0.3 * problem.unit
        total = problem.total(labels, h, prior)
        assert total == pytest.approx(problem.groups(h, prior).total(labels), rel=ROUNDING)
        loss = virtual_loss_of(ensemble)
        far = diagnostics.find_far_sites(stack, labels)
        fitted = problem.fit_heterogeneity(labels, h, prior)
        return [problem.evidence(labels, h, prior), total, *h, *fitted, *loss(labels)], far

    whole, far = found()
    tiny_chunks()
    parts, far_in_chunks = found()
    assert_allclose(parts, whole, rtol=1e-8)
    assert far_in_chunks == far


def test_losses_of_some_components_are_those_of_an_ensemble_of_these():
    posteriors, truth = sites()
    rows = np.arange(0, N_ROWS, 3)[:10]
    some = virtual_loss_of(Ensemble.of(posteriors), rows)
    first = virtual_loss_of(Ensemble.of([posterior.take(np.array([0])) for posterior in posteriors[:10]]))
    labels = np.unique(truth[rows], return_inverse=True)[1]
    assert_allclose(some(labels)[0], first(labels)[0], atol=5 * (some(labels)[1] + first(labels)[1]))
