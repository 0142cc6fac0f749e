"""Do more rounds help? Sites go on from the fused model and send again: KL-fusion, WB and SSF, several seeds.

    python experiments/federated/rounds.py [--seeds 10]

Through the shared-folder transport, with a thread for each site, on the examples of the documentation: a mixture of
overlapping blobs whose sites have unlike shares, and scikit-learn's digits with skewed classes. Nothing was tuned on
the held-out rows; settings are the first ones tried. Writes ``rounds.json`` and ``rounds.svg`` beside this file.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.mixture import BayesianGaussianMixture

import consilience as cs

sys.path.append(str(Path(__file__).resolve().parents[1]))
from record import versions

HERE = Path(__file__).parent
ROUNDS = 5
SITES = ("a", "b", "c", "d", "e")


class StartedMixture(BayesianGaussianMixture):
    """A mixture whose fit starts from the components of another, with its own prior."""

    started_from = None

    def _initialize_parameters(self, X, random_state, **more):
        if self.started_from is None:
            super()._initialize_parameters(X, random_state, **more)
        else:
            self._initialize(X, self.started_from.predict_proba(X))


def blobs(seed):
    """Return rows of every site and held-out rows: eight overlapping blobs in the plane, shares by Dirichlet(0.5)."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(-5.0, 5.0, size=(8, 2))
    shares = rng.dirichlet([0.5] * 8, size=len(SITES))
    rows = {
        site: centres[rng.choice(8, 120, p=share)] + rng.normal(size=(120, 2))
        for site, share in zip(SITES, shares, strict=True)
    }
    truth = centres[rng.choice(8, 4000, p=shares.mean(axis=0))] + rng.normal(size=(4000, 2))
    return rows, truth


def mixture_rounds(seed):
    """Return held-out log likelihood of a row by round, of the fused and of the pooled mixture, in nats."""
    rows, held_out = blobs(seed)
    prior = {"mean_prior": np.zeros(2), "covariance_prior": np.eye(2), "mean_precision_prior": 0.05}
    prior |= {"degrees_of_freedom_prior": 4.0, "max_iter": 500, "reg_covar": 1e-6}

    def refine(site, starts=1):
        def step(fused, _number):
            count = 8 if fused is None else fused.n_components
            model = StartedMixture(n_components=count, random_state=seed, n_init=starts, **prior)
            model.started_from = None if fused is None else cs.rebuild(fused)
            return model.fit(rows[site])

        return step

    pooled = BayesianGaussianMixture(n_components=8, n_init=5, random_state=seed, **prior).fit(
        np.vstack([*rows.values()])
    )

    def score(path):
        return float(cs.rebuild(cs.load(path)).score(held_out))

    found = play(refine, score, method="kl")
    once = play(lambda site: refine(site, ROUNDS), score, rounds=1, method="kl")
    return {**found, "pooled": float(pooled.score(held_out)), "once": once["scores"][0]}


def digit_rounds(seed, method):
    """Return the held-out accuracy by round of a network whose sites have skewed digits, and that of a pooled one."""
    digits = load_digits()
    x, y = torch.tensor(digits.data / 8 - 1, dtype=torch.float32), torch.tensor(digits.target)
    rng = np.random.default_rng(seed)
    held_out = rng.random(len(y)) < 0.3
    shares = rng.dirichlet([0.3] * len(SITES), size=10)
    owner = (rng.random((len(y), 1)) > shares.cumsum(axis=1)[digits.target]).sum(axis=1)
    parts = {site: torch.tensor(np.flatnonzero(~held_out & (owner == i))) for i, site in enumerate(SITES)}
    make = lambda: torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))  # noqa: E731
    torch.manual_seed(seed)
    common = make()
    starts = {site: copy.deepcopy(common) if method == "ssf" else make() for site in SITES}
    symmetry = cs.symmetry(common, example=x[:8])
    decay = 1e-3

    def train(net, own, steps=100):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=decay)
        for _ in range(steps):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x[own]), y[own]).backward()
            optimizer.step()
        return net.eval()

    def loaded(arrays):
        net = make().eval()
        net.load_state_dict({name: torch.as_tensor(np.asarray(values)) for name, values in arrays.items()})
        return net

    def refine(site, steps=100):
        def step(fused, _number):
            net = train(copy.deepcopy(starts[site]) if fused is None else loaded(fused.arrays), parts[site], steps)
            network = cs.Network(arrays_of(net), symmetry, site)
            if method != "ssf":
                return network
            own, precision = x[parts[site]], len(parts[site]) * decay  # public digits: few of them betray nobody
            return network, cs.fisher(net, own, kind="factors", rank=64, prior_precision=precision, minimum=10)

        return step

    def accuracy(path):
        with torch.no_grad():
            return float((loaded(cs.load(path).arrays)(x[held_out]).argmax(1) == y[held_out]).float().mean())

    pooled = train(copy.deepcopy(common), torch.tensor(np.flatnonzero(~held_out)), ROUNDS * 100)
    told = {"method": method}
    if method == "wb":
        told["weights"] = {site: float(len(parts[site])) for site in SITES}
    found = play(refine, accuracy, **told)
    once = play(lambda site: refine(site, ROUNDS * 100), accuracy, rounds=1, **told)
    with torch.no_grad():
        correct = (pooled(x[held_out]).argmax(1) == y[held_out]).float()
    return {**found, "pooled": float(correct.mean()), "once": once["scores"][0]}


def arrays_of(net):
    """Return a module's arrays."""
    return {name: values.detach().numpy().copy() for name, values in net.state_dict().items()}


def play(refine, score, rounds=ROUNDS, **told):
    """Run the rounds in a folder, and return scores and the change by round."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "round"
        sites = [
            threading.Thread(target=cs.federated.take_part, args=(place, site, refine(site)), kwargs={"timeout": 120})
            for site in SITES
        ]
        for site in sites:
            site.start()
        result = cs.federated.serve_folder(
            place, Path(folder) / "fused", sites=SITES, rounds=rounds, tolerance=0.0, deadline=120, poll=0.05, **told
        )
        for site in sites:
            site.join()
        paths = [place / "server" / str(number) / "fused.safetensors" for number in range(1, len(result.reports) + 1)]
        scores = [score(path) for path in paths]
    rows = [dict(one.convergence or {}) for one in result.reports]
    return {"scores": scores, **{key: [row.get(key) for row in rows] for key in ("change", "divergence", "components")}}


def summary(runs):
    """Return means by round, and the paired difference of the last and the first round with a 95 % interval."""
    scores = np.array([run["scores"] for run in runs])
    gain = scores[:, -1] - scores[:, 0]
    once = scores[:, -1] - np.array([run["once"] for run in runs])
    return {
        "mean": scores.mean(axis=0).round(4).tolist(),
        "gain": interval(gain),
        "gain_over_one_round_of_the_same_work": interval(once),
        "once": round(float(np.mean([run["once"] for run in runs])), 4),
        "better_in": int((gain > 0).sum()),
        "pooled": round(float(np.mean([run["pooled"] for run in runs])), 4),
        **{key: means([run[key] for run in runs]) for key in ("change", "divergence", "components")},
    }


def interval(differences):
    """Return the mean of paired differences and its 95 % interval (normal)."""
    half = 1.96 * differences.std(ddof=1) / np.sqrt(len(differences))
    return [round(float(one), 4) for one in (differences.mean(), differences.mean() - half, differences.mean() + half)]


def means(rows):
    """Return means by round over the runs that have a figure; None where none has."""
    by_round = [[one for one in column if one is not None] for column in zip(*rows, strict=True)]
    return [round(float(np.mean(column)), 4) if column else None for column in by_round]


def draw(results):
    """Draw scores and changes by round."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = {
        "kl": "mixture, KL-fusion\nlog likelihood, nats a row",
        "wb": "digits, WB\naccuracy",
        "ssf": "digits, SSF\naccuracy",
    }
    figure, axes = plt.subplots(1, 3, figsize=(9, 2.8), layout="constrained")
    for axis, (name, title) in zip(axes, names.items(), strict=True):
        for run in results[name]["runs"]:
            axis.plot(range(1, ROUNDS + 1), run["scores"], color="0.75", linewidth=0.8)
        axis.plot(range(1, ROUNDS + 1), results[name]["summary"]["mean"], color="C0", linewidth=2, label="mean")
        axis.axhline(results[name]["summary"]["pooled"], color="C1", linestyle=":", label="pooled data")
        axis.set(title=title, xlabel="round", xticks=range(1, ROUNDS + 1))
    axes[0].legend(fontsize=7)
    figure.savefig(HERE / "rounds.svg", metadata={"Date": None})


def main():
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    kinds = {
        "kl": mixture_rounds,
        "wb": lambda seed: digit_rounds(seed, "wb"),
        "ssf": lambda seed: digit_rounds(seed, "ssf"),
    }
    results = {}
    for name, run in kinds.items():
        runs = [run(seed) for seed in range(seeds)]
        results[name] = {"summary": summary(runs), "runs": runs}
        print(name, results[name]["summary"], flush=True)  # noqa: T201
    (HERE / "rounds.json").write_text(json.dumps(results | {"versions": versions()}, indent=1) + "\n")
    draw(results)


if __name__ == "__main__":
    main()
