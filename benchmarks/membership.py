"""Membership inference against fused files: whether somebody can tell whose rows were at a site.

    nice python benchmarks/membership.py             writes benchmarks/membership.json, in 20 seconds of processor time
    python experiments/write_tables.py               the table of docs/evidence/security_tests.md

The attack is a likelihood ratio (Carlini et al., S&P 2022, with one reference model): a row is called a member where
the attacked model gives it more log probability than a reference that was fitted to fresh rows of the population. It is
asked of all rows of all sites and of as many fresh ones; stated are the area under the ROC curve, and the share of
members that are found where 1 % of fresh rows are called members wrongly.

Mixtures: five sites of 100 rows in four columns from three groups; one row in fifty lies anywhere (deviation 10), as
mistakes and rare patients do. Each site fits a GaussianMixture of twelve components, so that some sit on single rows.
Attacked are one site's file and the fused one, with and without disclosure control (``min_count``), and the fused one
with noise on the means: of sums of rows clipped to four deviations, at the scale that (epsilon, 1e-6) asks of one
release. The fits see rows without noise, so this is no guarantee, only what the noise does to this attack.

Networks: five sites of 60 of scikit-learn's digits, an MLP 64-32-10 of one start, 80 or 400 steps of Adam. Attacked are
one site's network and the average; ``min_count`` changes no weights. Noise is on every weight of a site's update,
in root mean squares of it.

Descriptions: of such a network, by 60 or 200 digits. The attack knows the label of a row, and asks how far the mean of
its class at the site is from that of others towards the row (Homer et al., PLoS Genetics 2008). Of classes that the
site or the others withhold it takes the mean of all inputs. Attacked are one site's description, and the mean of those
of five sites, weighed by counts, as whoever has all of them knows.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.mixture import GaussianMixture

import consilience as cs
from consilience.estimators.heads.privacy import gaussian_scale

sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))
from record import versions

RESULT = Path(__file__).with_suffix(".json")
SEEDS = (0, 1, 2, 3, 4)
SITES, ROWS, DIM = 5, 100, 4
FALSE_POSITIVES = 0.01
CLIP, DELTA = 4.0, 1e-6
Rows = np.ndarray


def population(rng: np.random.Generator, count: int) -> Rows:
    """Return rows of three groups, one in fifty of them anywhere."""
    centres = 6.0 * np.eye(3, DIM)
    rows = centres[rng.integers(3, size=count)] + rng.normal(size=(count, DIM))
    is_anywhere = rng.random(count) < 0.02
    return np.where(is_anywhere[:, None], 10.0 * rng.normal(size=rows.shape), rows)


def attacked(members: Rows, fresh: Rows) -> dict[str, float]:
    """Return what the attack reaches, from the scores of members and of fresh rows."""
    labels, scores = np.repeat([1, 0], [len(members), len(fresh)]), np.concatenate([members, fresh])
    false, true, _ = roc_curve(labels, scores, drop_intermediate=False)
    return {
        "auc": float(roc_auc_score(labels, scores)),
        "tpr": float(true[np.searchsorted(false, FALSE_POSITIVES, side="right") - 1]),
    }


def log_density(posterior: cs.Posterior, rows: Rows) -> Rows:
    """Return the log density of rows (n,) in the mixture at the means of a posterior."""
    means, covariances = posterior.family.plug_in(posterior.natural)
    differences = rows[:, None] - means  # (n, L, D)
    solved = np.linalg.solve(covariances, differences[..., None])[..., 0]
    logarithms = -0.5 * (differences * solved).sum(axis=2) - 0.5 * np.linalg.slogdet(2 * np.pi * covariances)[1]
    return np.logaddexp.reduce(logarithms + np.log(posterior.shares), axis=1)


def with_noise(site: cs.Posterior, epsilon: float, rng: np.random.Generator) -> cs.Posterior:
    """Return a site's mixture with noise on its means, as of sums of rows clipped to four deviations."""
    parameters = dict(site.family.from_natural(site.natural))
    _, covariances = site.family.plug_in(site.natural)
    deviations = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2).mean(axis=1))  # (L,)
    scale = gaussian_scale(epsilon, DELTA, math.sqrt(CLIP**2 + 1.0)) * deviations / site.counts
    parameters["mean"] = parameters["mean"] + scale[:, None] * rng.normal(size=parameters["mean"].shape)
    natural = site.family.to_natural(**parameters)
    return cs.Posterior(site.family, natural, prior=site.prior, counts=site.counts, weights=site.weights)


def mixtures(seed: int) -> dict[str, dict[str, float]]:
    """Return what the attack reaches on mixtures, by file."""
    rng = np.random.default_rng([seed, 1])
    parts = [population(rng, ROWS) for _ in range(SITES)]
    fresh, others = population(rng, SITES * ROWS), population(rng, SITES * ROWS)
    members = np.concatenate(parts)
    fit = {"n_components": 12, "reg_covar": 1e-3, "random_state": 0, "n_init": 2}
    models = [GaussianMixture(**fit).fit(part) for part in parts]
    reference = GaussianMixture(**fit).fit(others)

    def attack(posterior: cs.Posterior, rows: Rows = members) -> dict[str, float]:
        return attacked(
            log_density(posterior, rows) - reference.score_samples(rows),
            log_density(posterior, fresh) - reference.score_samples(fresh),
        )

    def fused(min_count: float, epsilon: float | None = None) -> cs.Posterior:
        sites = [
            cs.describe(model, n_observations=len(part), min_count=min_count)
            for model, part in zip(models, parts, strict=True)
        ]
        sites = sites if epsilon is None else [with_noise(site, epsilon, rng) for site in sites]
        return cs.fuse(sites, method="kl", min_count=min_count).posterior

    own = {count: cs.describe(models[0], n_observations=len(parts[0]), min_count=count) for count in (0, 5)}
    return {
        "mixture of a site": attack(own[0], parts[0]),
        "mixture of a site, min_count=5": attack(own[5], parts[0]),
        "fused mixture": attack(fused(0)),
        "fused mixture, min_count=5": attack(fused(5)),
        "fused mixture, min_count=5, noise at epsilon 8": attack(fused(5, 8.0)),
        "fused mixture, min_count=5, noise at epsilon 1": attack(fused(5, 1.0)),
    }


def networks(seed: int, steps: int) -> dict[str, dict[str, float]]:
    """Return what the attack reaches on networks, by file, and the test error of the average."""
    inputs, labels = load_digits(return_X_y=True)
    order = np.random.default_rng([seed, 2]).permutation(len(inputs))
    inputs, labels = torch.tensor(inputs[order] / 16.0, dtype=torch.float32), torch.tensor(labels[order])
    parts, fresh, others = torch.arange(300).chunk(SITES), torch.arange(300, 600), torch.arange(600, 900)

    def network() -> torch.nn.Module:
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))

    def trained(rows: torch.Tensor) -> torch.nn.Module:
        net = network()
        optimiser = torch.optim.Adam(net.parameters(), 1e-2)
        for _ in range(steps):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(net(inputs[rows]), labels[rows]).backward()
            optimiser.step()
        return net

    def losses(net: torch.nn.Module, rows: torch.Tensor) -> Rows:
        with torch.no_grad():
            return torch.nn.functional.cross_entropy(net(inputs[rows]), labels[rows], reduction="none").numpy()

    reference = trained(others)

    def attack(net: torch.nn.Module, rows: torch.Tensor) -> dict[str, float]:
        ratio: Callable[[torch.Tensor], Rows] = lambda chosen: losses(reference, chosen) - losses(net, chosen)  # noqa: E731
        with torch.no_grad():
            error = float((net(inputs[900:]).argmax(1) != labels[900:]).float().mean())
        return {**attacked(ratio(rows), ratio(fresh)), "error": error}

    nets, members = [trained(part) for part in parts], torch.cat(list(parts))
    start = torch.nn.utils.parameters_to_vector(network().parameters()).detach()
    generator = torch.Generator().manual_seed(seed)

    def average(noise: float) -> torch.nn.Module:
        sent = []
        for net in nets:
            update = torch.nn.utils.parameters_to_vector(net.parameters()).detach() - start
            update = update + noise * update.square().mean().sqrt() * torch.randn(len(update), generator=generator)
            torch.nn.utils.vector_to_parameters(start + update, (noisy := network()).parameters())
            sent.append(noisy)
        return cs.fuse(sent, method="average", n_observations=[60] * SITES).model

    name = f"{steps} steps"
    return {
        f"network of a site, {name}": attack(nets[0], parts[0]),
        f"average of five, {name}": attack(average(0.0), members),
        f"average of five, {name}, noise of 0.5": attack(average(0.5), members),
        f"average of five, {name}, noise of 2": attack(average(2.0), members),
    }


def descriptions(seed: int, count: int, sites: int) -> dict[str, dict[str, float]]:
    """Return what the attack reaches on descriptions of sites of so many digits."""
    inputs, labels = load_digits(return_X_y=True)
    order = np.random.default_rng([seed, 3]).permutation(len(inputs))
    inputs, labels = np.asarray(inputs[order] / 16.0, dtype=np.float32), labels[order]
    members, fresh, others = np.arange(3 * sites * count).reshape(3, -1)
    net = torch.nn.Linear(64, 10)

    def moments(rows: Rows) -> dict[int | None, Any]:
        data = torch.tensor(inputs[rows]), torch.tensor(labels[rows])
        found = cs.describe(net, data, classes=10).description
        return {None: found.inputs, **found.class_moments}

    of_sites = [moments(rows) for rows in members.reshape(sites, -1)]
    reference = moments(others)

    def towards(rows: Rows) -> Rows:
        """Return how far the mean of the row's class is from that of others in the row's direction (n,)."""
        scores = []
        for x, label in zip(inputs[rows], labels[rows], strict=True):
            group = label if label in reference and any(label in one for one in of_sites) else None
            told, other = [one[group] for one in of_sites if group in one], reference[group]
            variances = other.residual + (other.factor**2).sum(axis=0) + 1e-2
            mean = np.average([one.mean for one in told], axis=0, weights=[one.n_observations for one in told])
            scores.append(float((mean - other.mean) @ ((x - other.mean) / variances)))
        return np.array(scores)

    whose = "description of a site" if sites == 1 else f"descriptions of {sites} sites"
    return {f"{whose}, {count} digits": attacked(towards(members), towards(fresh))}


def main() -> None:
    """Attack all files of all seeds, and write the results."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of what is withheld
    results: dict[str, dict[str, Any]] = {}
    for seed in SEEDS:
        described = {**descriptions(seed, 60, 1), **descriptions(seed, 200, 1), **descriptions(seed, 60, SITES)}
        for name, found in {**mixtures(seed), **networks(seed, 80), **networks(seed, 400), **described}.items():
            results.setdefault(name, {})[str(seed)] = found
    RESULT.write_text(json.dumps({"files": results, "versions": versions()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
