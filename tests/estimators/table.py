"""The table of docs/guides/estimators.md: every estimator, how far the fused one is from the pooled one, and its bytes.

``python -m tests.estimators.table`` prints it; differences are the largest over the cases of the zoo, split into 5, 30
and 100 sites, of any fitted attribute that has a definite sign, relative to its largest entry.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest

import consilience as cs
from consilience.estimators.adapters.table import ESTIMATORS
from tests.estimators.estimators_zoo import SPECIMENS
from tests.estimators.sites import ZERO, fitted, fused_of, has_classes, owners, site_statistics, weights_of

SITES = (5, 30, 100)


def largest_difference(fused, pooled, ignored):
    """Return the largest relative difference of numeric fitted attributes."""
    ours, its, worst = fitted(fused), fitted(pooled), 0.0
    for name, value in its.items():
        pairs = zip(ours[name], value, strict=True) if isinstance(value, list) else [(ours[name], value)]
        for a, b in pairs:
            if name in ignored or b is None or np.asarray(b).dtype.kind in "OUSb":
                continue
            a, b = np.asarray(a, float), np.asarray(b, float)
            worst = max(worst, float(np.abs(a - b).max(initial=0.0)) / max(float(np.abs(b).max(initial=0.0)), ZERO))
    return worst


def measure(adapter):
    """Return the largest difference of an estimator from the pooled one, and the bytes that a site sends."""
    worst, n_bytes = 0.0, 0
    for case in SPECIMENS[adapter.kind]:
        X, y = case.rows(0)
        weights = weights_of(case, len(X), 0)
        pooled = case.pooled(X, y, weights)
        for n_sites in SITES:
            owner = owners(np.random.default_rng(n_sites), len(X), n_sites, y if has_classes(y) else None)
            with pytest.MonkeyPatch.context() as patch:
                sites = site_statistics(patch, case.fit(X, y, weights), X, y, weights, owner)
            worst = max(worst, largest_difference(fused_of(sites), pooled, case.ignored))
        whole = cs.describe(case.fit(X, y, weights), X if y is None else (X, y), sample_weight=weights, min_count=0)
        n_bytes = max(n_bytes, sum(values.nbytes for _, values in whole.tensors()))
    return worst, n_bytes


def row(adapter):
    """Return the line of an estimator."""
    worst, n_bytes = measure(adapter)
    needs = "the object" if adapter.lacks is None else "data"
    return f"| `{adapter.class_name}` | {adapter.mark} | {worst:.0e} | {needs} | {n_bytes:,} |"


if __name__ == "__main__":
    sys.stdout.write("| estimator | mark | difference | a site gives | bytes |\n| --- | --- | ---: | --- | ---: |\n")
    for adapter in (adapter for adapter in ESTIMATORS if SPECIMENS[adapter.kind]):
        sys.stdout.write(row(adapter) + "\n")
