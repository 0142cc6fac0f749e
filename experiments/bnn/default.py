"""The default fusion of Bayesian networks on handwritten digits, all described: docs/evidence/bayesian.md.

    python experiments/bnn/default.py three            three sites, Dirichlet 0.8, sevens at one of them only
    python experiments/bnn/default.py five             five sites, Dirichlet 0.5

Each writes into ``default.json`` accuracy, log likelihood and accuracy on sevens, on held-out digits, by seed, with and
without logit adjustment: of the best site, every candidate but sites, KL-fusion with outgoing weights as in the paper,
what was chosen and the ensemble; and how far predictions by few samples of the weights are from those by many. The
first seeds are taken at which every site has 20 observations. ``adjusted`` or ``plain`` behind the name runs one of the
two.
"""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import consilience as cs

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from record import as_text, versions

RESULTS = Path(__file__).with_name("default.json")
SITES = {"three": (3, 0.8), "five": (5, 0.5)}
LEARNER = {"hidden": (32,), "epochs": 40, "batch_size": 64, "learning_rate": 0.02, "temperature": 0.1}
SEEDS, LEAST, SAMPLES, SEVEN = 5, 20, 32, 7
FEW, MANY = (16, 32, 64), 4096


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


def run(which: str, seed: int, adjusted: bool) -> dict[str, Any] | None:
    """Return scores by name of the model and what the verdict says; None where a site has too few observations."""
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

    def scores(model: Any) -> dict[str, float]:
        found = cs.predictive_scores(model.predict(x[is_held], samples=SAMPLES), y[is_held])
        sevens = float(np.mean(found.predicted[found.labels == SEVEN] == SEVEN))
        return {"accuracy": found.accuracy, "log_likelihood": found.log_likelihood, "sevens": sevens}

    models = {
        "best site": max(map(scores, bnns), key=lambda one: one["accuracy"]),
        **{name: scores(bnn) for name, bnn in fusion.candidates.items() if not name.startswith("site:")},
        "kl, outgoing sum": scores(cs.fuse(bnns, method="kl", outgoing="sum").model),
        "chosen": scores(fusion.model),
        "ensemble": scores(fusion.ensemble),
    }
    verdict = {"chosen": fusion.details["chosen"], "code": fusion.verdict.code, "harmless": fusion.verdict.harmless}
    errors = [sampling_errors(bnn, x[is_held]) for bnn in bnns]
    sampling = {kind: np.mean([of_site[kind] for of_site in errors], axis=0).tolist() for kind in errors[0]}
    return {"seed": seed, "models": models, **verdict, "sampling errors": sampling}


def sampling_errors(bnn: cs.BayesianNetwork, x: np.ndarray) -> dict[str, list[float]]:
    """Return root mean squared errors of probabilities by numbers of samples, in antithetic pairs and independent."""
    truth = bnn.predict(x, samples=MANY, rng=1)

    def independent(samples: int) -> np.ndarray:
        firsts = itertools.islice(bnn.noise(2 * samples), 0, None, 2)
        return np.mean([bnn.logits(x, bnn.state(noise)).softmax(dim=1).numpy() for noise in firsts], axis=0)

    def error(found: np.ndarray) -> float:
        return float(np.sqrt(np.square(found - truth).mean()))

    return {
        "in pairs": [error(bnn.predict(x, samples=samples)) for samples in FEW],
        "independent": [error(independent(samples)) for samples in FEW],
    }


def main() -> None:
    """Run one division, with and without logit adjustment, and keep the others' results."""
    warnings.simplefilter("ignore", cs.errors.WithheldWarning)
    which, *kinds = sys.argv[1:]
    for kind in kinds or ("adjusted", "plain"):
        runs = (run(which, seed, kind == "adjusted") for seed in itertools.count())
        found = list(itertools.islice((one for one in runs if one is not None), SEEDS))
        stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        settings = {"learner": LEARNER, "sites, Dirichlet": SITES, "samples of a prediction": SAMPLES}
        settings |= {"samples of sampling errors": FEW, "samples for the truth": MANY}
        chosen = "nothing by these results; the best site is that of the most accurate network on the held-out digits"
        stored |= {"settings": settings | {"chosen": chosen}, f"{which}, {kind}": {"runs": found, **versions()}}
        RESULTS.write_text(as_text(stored))


if __name__ == "__main__":
    main()
