"""A specimen of every public value: what the laws of showing, pickling and copying run on."""

from functools import cache

import numpy as np
import torch
from sklearn.mixture import BayesianGaussianMixture
from sklearn.naive_bayes import GaussianNB

import consilience as cs
from tests.api.kinds_zoo import adapter, bayesian_network, estimator, network, packed, posterior, symmetry
from tests.specimens import Specimens

ROWS = torch.randn(120, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(120) % 2
SITES = ("lund", "oslo", "rome")


def mixture(seed):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(90, 2)) + np.repeat([[0.0, 0.0], [8.0, 0.0], [0.0, 8.0]], 30, axis=0)
    return BayesianGaussianMixture(n_components=3, random_state=0).fit(rows)


def mixture_rows():
    rng = np.random.default_rng(9)
    return rng.normal(size=(60, 2)) + np.repeat([[0.0, 0.0], [8.0, 0.0], [0.0, 8.0]], 20, axis=0)


@cache
def posterior_fusion(method=None):
    return cs.fuse({name: mixture(seed) for seed, name in enumerate(SITES)}, method)


@cache
def network_fusion(method="rebasin"):
    nets = {name: network(seed) for seed, name in enumerate(SITES)}
    return cs.fuse(nets, method, example=ROWS[:2])


@cache
def default_network_fusion():
    described = {name: cs.describe(network(seed), (ROWS, LABELS), example=ROWS[:2]) for seed, name in enumerate(SITES)}
    return cs.fuse(described)


@cache
def bayesian_fusion(method="kl"):
    return cs.fuse({name: bayesian_network(seed) for seed, name in enumerate(SITES)}, method, example=ROWS[:2])


@cache
def estimator_fusion():
    return cs.fuse({name: estimator(seed) for seed, name in enumerate(SITES)})


def draws(seed):
    rng = np.random.default_rng(seed)
    values = {"beta": rng.normal(size=(2, 400, 2)), "sigma": rng.gamma(9.0, size=(2, 400))}
    return cs.Draws(values, prior="flat", constraints={"sigma": "positive"})


@cache
def draws_fusion():
    return cs.fuse({name: draws(seed) for seed, name in enumerate(SITES)})


@cache
def pooled():
    rng = np.random.default_rng(0)
    estimates = {name: ({"age": rng.normal(), "bmi": rng.normal()}, np.diag([0.1, 0.2])) for name in SITES}
    return cs.meta_analysis(estimates)


def shards(folder):
    packed(folder)
    return cs.shards(folder / "packed")


def merge(folder):
    for seed in range(2):
        cs.save(network(seed), folder / f"{seed}.safetensors")
    return cs.merge([folder / "0.safetensors", folder / "1.safetensors"], folder / "merged.safetensors")


def evaluate_loss(module):
    with torch.no_grad():
        return {"loss": float(module(ROWS).square().mean())}


def predictive_scores(_folder):
    return cs.predictive_scores(bayesian_network().predict(ROWS, samples=8), LABELS)


VALUES = Specimens(
    "VALUES in tests/core/values_zoo.py",
    {
        "Attached": lambda _: cs.Attached(np.eye(3), ("component", "component"), "sum"),
        "AdapterFusion": lambda _: cs.fuse({site: adapter(seed) for seed, site in enumerate(SITES)}),
        "BayesianFusion": lambda _: bayesian_fusion(),
        "BayesianNetwork": lambda _: bayesian_network(),
        "Description": lambda _: cs.describe(network(), (ROWS, LABELS)).description,
        "Draws": lambda _: draws(0),
        "DrawsFusion": lambda _: draws_fusion(),
        "EstimatorFusion": lambda _: estimator_fusion(),
        "Evaluation": lambda _: cs.evaluate(posterior_fusion().posterior, mixture(0), mixture_rows()),
        "Features": lambda _: cs.Features(names=("age", "bmi"), units=("years", "kg/m2"), scaling={"mean": (1.0, 2.0)}),
        "FisherInformation": lambda _: cs.fisher(network(), ROWS, minimum=1),
        "MatrixNormalWishart": lambda _: cs.MatrixNormalWishart(np.zeros((2, 1)), np.eye(2), [[1.0]], 1.0),
        "LoraAdapter": lambda _: adapter(),
        "Matching": lambda _: posterior_fusion().matching,
        "Merge": merge,
        "MetaAnalysis": lambda _: pooled(),
        "Network": lambda _: cs.describe(network(), (ROWS, LABELS)),
        "NetworkFusion": lambda _: network_fusion(),
        "Posterior": lambda _: posterior_fusion().posterior,
        "PosteriorFusion": lambda _: posterior_fusion(),
        "PredictiveScores": predictive_scores,
        "Shards": shards,
        "Statistics": lambda _: cs.describe(GaussianNB().fit(ROWS, LABELS), data=(ROWS, LABELS)),
        "Symmetry": lambda _: symmetry(),
        "Verdict": lambda _: posterior_fusion().verdict,
    },
)
"""By the class's public name, what makes one in an empty folder; a new public value is a new entry here."""

MORE_VALUES = {
    "ensemble of mixtures": lambda _: posterior_fusion("ensemble"),
    "its model": lambda _: posterior_fusion("ensemble").model,
    "ensemble of networks": lambda _: network_fusion("ensemble"),
    "chosen network": lambda _: default_network_fusion(),
    "ensemble of Bayesian networks": lambda _: bayesian_fusion("ensemble"),
    "its predictor": lambda _: bayesian_fusion("ensemble").model,
    "network evaluation": lambda _: cs.evaluate(network_fusion().model, network(), ROWS, labels=LABELS),
    "estimator evaluation": lambda _: cs.evaluate(
        estimator_fusion(), estimator(), ROWS[:, :2], labels=["ash", "elm"] * 60
    ),
    "draws evaluation": lambda _: cs.evaluate(draws_fusion(), draws(0), draws(3).variables),
    "intervals": lambda _: posterior_fusion().intervals(),
    "barrier": lambda _: cs.barrier(network(0), network(1), evaluate_loss, points=3),
    "plane": lambda _: cs.plane(network(0), network(1), network(2), evaluate_loss, points=3),
    "posterior by hand": lambda _: posterior(),
    "family": lambda _: cs.families.NormalWishart(dim=2),
    "method": lambda _: cs.methods.KLFusion(regularization=0.3),
}
"""Further values that public functions give back, and other ways for those above to come about."""

ALL_VALUES = {**VALUES, **MORE_VALUES}
