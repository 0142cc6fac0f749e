"""Coverage of 95 % intervals of a meta-analysis where sites differ: ``python experiments/exact/meta_coverage.py``.

One effect of sites that differ by tau2, estimated with variances drawn from [0.02, 0.5]: how often the fixed effect's
interval, and Hartung and Knapp's with REML, hold the true mean. Writes ``meta_coverage.json``: shares in percent, by
the number of sites.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import consilience as cs

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from record import as_text, versions

RESULTS = Path(__file__).with_name("meta_coverage.json")
TAU2, VARIANCES, SITES, REPLICATIONS, SEED = 0.15, (0.02, 0.5), (3, 5, 20), 4000, 0


def coverage(n_sites: int, rng: np.random.Generator) -> dict[str, float]:
    """Return how often intervals hold the true mean, 0, in percent."""
    n_held = {"fixed": 0, "hartung_knapp": 0}
    for _ in range(REPLICATIONS):
        variances = rng.uniform(*VARIANCES, size=n_sites)
        estimates = rng.normal(scale=np.sqrt(variances + TAU2))
        analysis = cs.meta_analysis({f"site {k}": (estimates[k], variances[k]) for k in range(n_sites)})
        for name, effects in (("fixed", analysis.fixed), ("hartung_knapp", analysis.random)):
            low, high = effects.intervals[0]
            n_held[name] += bool(low <= 0.0 <= high)
    return {name: 100 * held / REPLICATIONS for name, held in n_held.items()}


def main() -> None:
    """Run all numbers of sites."""
    rng = np.random.default_rng(SEED)
    found = {str(n_sites): coverage(n_sites, rng) for n_sites in SITES}
    settings = {"tau2": TAU2, "variances, uniform": VARIANCES, "replications": REPLICATIONS, "seed": SEED}
    RESULTS.write_text(as_text({"settings": settings, "coverage": found, "versions": versions()}))


if __name__ == "__main__":
    main()
