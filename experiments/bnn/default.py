"""The default fusion of Bayesian networks on handwritten digits, all described: docs/evidence/bayesian.md.

    python experiments/bnn/default.py three            three sites, Dirichlet 0.8, sevens at one of them only
    python experiments/bnn/default.py five             five sites, Dirichlet 0.5

Each prints accuracy (%), log likelihood and accuracy on sevens, on held-out digits, of the best site, every candidate
but sites, of what was chosen and of the ensemble: mean and standard deviation over five seeds, with and without logit
adjustment, and what the verdicts said. The first seeds are taken at which every site has 20 observations.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import consilience as cs

SITES = {"three": (3, 0.8), "five": (5, 0.5)}
LEARNER = {"hidden": (32,), "epochs": 40, "batch_size": 64, "learning_rate": 0.02, "temperature": 0.1}
SEEDS, LEAST, SAMPLES, SEVEN = 5, 20, 32, 7


def rows_of_sites(y: np.ndarray, which: str, seed: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return which rows are held out (n,), and the rows of every site."""
    n_sites, concentration = SITES[which]
    rng = np.random.default_rng(seed)
    is_held = rng.random(len(y)) < 0.3
    shares = rng.dirichlet([concentration] * n_sites, size=10)
    if which == "three":
        shares[SEVEN] = np.eye(n_sites)[-1]
    site = (rng.random((len(y), 1)) > shares.cumsum(axis=1)[y]).sum(axis=1)
    return is_held, [np.flatnonzero(~is_held & (site == number)) for number in range(n_sites)]


def run(which: str, seed: int, adjusted: bool) -> tuple[dict[str, Any], str] | None:
    """Return scores by name of the model and what the verdict said; None where a site has too few observations."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    is_held, sites = rows_of_sites(y, which, seed)
    if min(map(len, sites)) < LEAST:
        return None
    learners = [cs.learners.HorseshoeBNN(**LEARNER, logit_adjustment=adjusted, seed=n) for n in range(len(sites))]
    bnns = [learner.fit(x[own], y[own], classes=10).posterior for learner, own in zip(learners, sites, strict=True)]
    prior = "removed" if adjusted else "own"
    described = [cs.describe(bnn, (x[own], y[own]), class_prior=prior) for bnn, own in zip(bnns, sites, strict=True)]
    fusion = cs.fuse(described)

    def scores(model: Any) -> tuple[float, float, float]:
        found = cs.predictive_scores(model.predict(x[is_held], samples=SAMPLES), y[is_held])
        sevens = float(np.mean(found.predicted[found.labels == SEVEN] == SEVEN))
        return 100 * found.accuracy, found.log_likelihood, 100 * sevens

    of_models = {
        "best site": max(map(scores, bnns)),
        "chosen": scores(fusion.model),
        "ensemble": scores(fusion.ensemble),
    }
    of_models |= {name: scores(bnn) for name, bnn in fusion.candidates.items() if not name.startswith("site:")}
    over = of_models["chosen"][0] - of_models["best site"][0]
    return of_models, f"{fusion.details['chosen']}, harmless {fusion.verdict.harmless}, {over:+.1f} over the best site"


def main() -> None:
    """Print the tables."""
    warnings.simplefilter("ignore", cs.errors.WithheldWarning)
    for adjusted in (True, False):
        runs = (run(sys.argv[1], seed, adjusted) for seed in itertools.count())
        found = list(itertools.islice((one for one in runs if one is not None), SEEDS))
        lines = [f"adjusted: {adjusted}", *(said for _, said in found)]
        for name in found[0][0]:
            values = np.array([of_models[name] for of_models, _ in found])
            cells = zip(values.mean(axis=0), values.std(axis=0, ddof=1), (1, 2, 0), strict=True)
            lines.append(f"| {name} | {' | '.join(f'{mean:.{n}f} ± {std:.{n}f}' for mean, std, n in cells)} |")
        sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
