"""What is refused of Bayesian networks: made, fused, saved, loaded, compared, drawn, learned."""

from __future__ import annotations

import json
import math

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import load_file
from safetensors.numpy import save as to_safetensors
from torch import nn

import consilience as cs
from tests.cli.bad_files import GOOD, raw
from tests.networks.gaussian.nets import Centred, Twice
from tests.refusals.tables.nets import (
    X,
    bayesian,
    bayesian_files,
    bayesians,
    deeper,
    made,
    mlp,
    network_files,
    normalised,
    recurrent_symmetry,
    symmetry,
)
from tests.refusals.tables.things import by_fuse_and_check, each, normal, option_cases, written


def known(**more):
    """Return options of a fusion that needs no tracing."""
    return {"symmetry": symmetry(), **more}


def bare(seed=0):
    """Return a Bayesian network without a module."""
    own = bayesian(seed)
    return cs.BayesianNetwork(None, own.means, own.variances)


ABC = ("a", "b", "c")
MODELS = by_fuse_and_check({
    "one Bayesian network": lambda: ([bayesian()], known()),
    "a Bayesian network among networks": lambda: ([bayesian(), mlp()], known()),
    "a network before a Bayesian one": lambda: ([mlp(), bayesian()], known()),
    "a Bayesian network and a posterior": lambda: ([bayesian(), normal()], known()),
    "a Bayesian network's file among networks' files": lambda: (
        [*network_files(), renamed(bayesian_files()[0], "bnn.safetensors")], {}),
    "a Bayesian network and a network's file": lambda: ([bayesian(), network_files()[0]], known()),
    "a Bayesian network's file twice": lambda: ([bayesian_files()[0], "one.safetensors"], {}),
    "a Bayesian file not there": lambda: ([bayesian(), "nobody.safetensors"], known()),
    "Bayesian networks of other classes": lambda: (
        [bayesian(0, classes=ABC), bayesian(1, classes=("a", "b", "d"))], known()),
    "Bayesian networks of classes in another order": lambda: (
        [bayesian(0, classes=ABC), bayesian(1, classes=("a", "c", "b"))], known()),
    "Bayesian networks without a symmetry": lambda: ([bare(0), bare(1)], {}),
    "Bayesian networks of another depth": lambda: ([bayesian(), bayesian(1, net=deeper)], known()),
    "Bayesian networks of other buffers": lambda: (
        [bayesian(0, net=Centred), bayesian(5, net=Centred)], {"example": X}),
    "Bayesian networks whose statistics move": lambda: ([bayesian(seed, net=normalised) for seed in (0, 1)],
                                                        {"example": X}),
    "Bayesian networks, a symmetry of another": lambda: (bayesians(), {"symmetry": recurrent_symmetry()}),
    "Bayesian networks, a method that does not exist": lambda: (bayesians(), known(method="mean")),
    "Bayesian networks, a method for posteriors": lambda: (bayesians(), known(method="spahm")),
    "Bayesian networks, a method object for posteriors": lambda: (bayesians(), known(method=cs.methods.SPAHM())),
    "Bayesian networks, a method object for networks": lambda: (bayesians(), known(method=cs.methods.OTFusion())),
    "Bayesian networks, options beside a method": lambda: (
        bayesians(), known(method=cs.methods.KLNetworkFusion(), restarts=3)),
    "Bayesian networks, an option that does not exist": lambda: (bayesians(), known(speed=9)),
    "Bayesian networks, inputs": lambda: (bayesians(), known(method="kl", inputs=X)),
    "Bayesian networks, fishers": lambda: (bayesians(), known(fishers=[1, 2])),
    "Bayesian networks, too few weights": lambda: (bayesians(), known(weights=[1.0])),
    "Bayesian networks, a weight that is NaN": lambda: (bayesians(), known(weights=[1.0, math.nan])),
    "Bayesian networks, a reference beyond": lambda: (bayesians(), known(method="w2", reference=2)),
    "Bayesian networks, a target of no group": lambda: (bayesians(), known(method="w2", target_widths={"x": 3})),
    "Bayesian networks, max_units of no group": lambda: (bayesians(), known(max_units={"x": 3})),
    "Bayesian networks, max_units too few": lambda: (bayesians(), known(max_units=2)),
    "Bayesian networks, other widths by w2": lambda: (
        [bayesian(0), bayesian(1, net=lambda seed: mlp(seed, hidden=4))], known(method="w2")),
    "Bayesian networks, robust and two": lambda: (bayesians(), known(method="w2", robust="median")),
    "Bayesian networks, a module that is none": lambda: (bayesian_files(), {"module": lambda: 5}),
})  # fmt: skip

BAYESIAN_OPTIONS = {
    "kl": "robust trim regularization max_units restarts max_iterations tolerance outgoing lacking prior_variance",
    "w2": "robust trim metric rho restarts max_iterations",
    "average": "robust trim",
    "ensemble": "robust trim mean class_counts",
}


def renamed(path, name):
    """Write a file's bytes under another name, and return it."""
    with open(path, "rb") as file:
        content = file.read()
    network_files()
    return written(name, content)


def given(**fields):
    """Make a Bayesian network of these fields."""
    own = bayesian()
    return cs.BayesianNetwork(**{"module": mlp(), "means": own.means, "variances": own.variances, **fields})


def put(key, values):
    """Return the means of a Bayesian network, one of them changed."""
    return {**bayesian().means, key: values}


MADE = {
    **each("BayesianNetwork, ", {
        "no module": {"module": 5}, "means that are no dict": {"means": [1]},
        "means of words": {"means": {"0.bias": "a"}},
        "a mean less": {"means": {"0.bias": torch.zeros(5)}},
        "a mean more": {"means": put("more", torch.zeros(5)), "variances": put("more", torch.ones(5))},
        "a mean of another shape": {"means": put("0.bias", torch.zeros(4))},
        "a mean that is NaN": {"means": put("0.bias", torch.full((5,), math.nan))},
        "a mean of integers": {"means": put("0.bias", torch.zeros(5, dtype=torch.int64))},
        "a variance of zero": {"variances": put("0.bias", torch.zeros(5))},
        "a variance that is negative": {"variances": put("0.bias", torch.full((5,), -1.0))},
        "a variance that is infinite": {"variances": put("0.bias", torch.full((5,), math.inf))},
        "a prior of zero": {"prior_variances": 0.0}, "a prior for some": {"prior_variances": {"0.bias": 1.0}},
    }, lambda fields: given(**fields)),
    "fuse, Bayesian networks without modules, side by side": lambda at: cs.fuse([bare(0), bare(1)], "ensemble"),
    "predict, no inputs": lambda at: bayesian().predict(np.zeros((0, 6)), samples=2),
    "predict, inputs of another width": lambda at: bayesian().predict(np.zeros((2, 7)), samples=2),
    "predict, inputs that are a list": lambda at: bayesian().predict([torch.zeros(2, 6), torch.zeros(2, 5)], samples=2),
    "predict, no samples": lambda at: bayesian().predict(X, samples=0),
    "predict, no module": lambda at: bare().predict(X, samples=2),
    "predict, one output": lambda at: bayesian(0, net=lambda seed: made(lambda: nn.Linear(6, 1))).predict(X, samples=2),
    "as_bayesian_network, no kind of it": lambda at: cs.as_bayesian_network(mlp()),
    "as_bayesian_network, a number": lambda at: cs.as_bayesian_network(5),
    "written_like, no Bayesian network": lambda at: cs.written_like(mlp(), bayesian()),
    "save, a Bayesian network with a symmetry of another": lambda at: cs.save(
        bayesian(), "a.safetensors", symmetry=recurrent_symmetry()),
    "save, a Bayesian network where there is no folder": lambda at: cs.save(bayesian(), "no/a.safetensors"),
    "save, an ensemble of Bayesian networks": lambda at: cs.fuse(bayesians(), "ensemble").save("a.safetensors"),
    "load, a Bayesian network asked without its module": lambda at: cs.load(bayesian_files()[0]).predict(X, samples=2),
    "load, a Bayesian network with a module of another architecture": lambda at: cs.load(
        bayesian_files()[0]).with_module(deeper()),
}  # fmt: skip


def honest():
    """Return the document and the tensors of an honest file."""
    fields = {"prior_variances": 2.0, "classes": ABC}
    path = bayesian_files(fields, fields)[0]
    with safe_open(path, framework="numpy") as file:
        return json.loads(file.metadata()["consilience"]), load_file(path)


def with_header(change):
    """Load a file with another value in its header."""
    *keys, value = change
    document, tensors = honest()
    place = document
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return cs.load(written("bnn.safetensors", to_safetensors(tensors, {"consilience": json.dumps(document)})))


def with_tensors(change):
    """Load a file with other tensors."""
    document, tensors = honest()
    change(tensors)
    return cs.load(written("bnn.safetensors", to_safetensors(tensors, {"consilience": json.dumps(document)})))


def filled(tensor, value):
    """Return a change of one number of a tensor."""
    return lambda tensors: tensors[tensor].reshape(-1).__setitem__(0, value)


def claiming(dtype, shape, size):
    """Return a file whose header claims this of the mean and variance of its only parameter."""
    document = {"format": "consilience-bayesian", "format_version": 1, "library_version": "1", "parameters": ["a"]}
    document |= {"prior_variances": None, "classes": None, "symmetry": None, "provenance": None}
    header = {"__metadata__": {"consilience": json.dumps(document)}}
    for number, name in enumerate(("mean/a", "variance/a")):
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [number * size, (number + 1) * size]}
    return raw(header, b"\x3c" * (2 * size))


FILES = {
    **each("load, Bayesian network, ", {
        "newer": ("format_version", 2), "version zero": ("format_version", 0), "version text": ("format_version", "1"),
        "surplus": ("surprise", 1), "no parameters": ("parameters", []), "parameters": ("parameters", {"0.weight": 1}),
        "parameter number": ("parameters", 0, 5), "parameter twice": ("parameters", 0, "2.bias"),
        "other parameter": ("parameters", 0, "x"), "prior zero": ("prior_variances", "2.bias", 0.0),
        "prior text": ("prior_variances", "2.bias", "1"), "prior surplus": ("prior_variances", "x", 1.0),
        "classes": ("classes", "abc"), "class twice": ("classes", 1, "a"), "provenance": ("provenance", []),
        "symmetry": ("symmetry", []), "symmetry empty": ("symmetry", {}),
        "symmetry of more": ("symmetry", "arrays", "x", {"axes": [], "blocks": 1}),
        "symmetry of other shapes": ("symmetry", "arrays", "2.bias", "axes", 0, "segments", 0, 2, 4),
        "alias of a parameter": ("symmetry", "aliases", "0.bias", "2.bias"),
        "group that is not there": ("symmetry", "arrays", "0.bias", "axes", 0, "segments", 0, 0, "lost"),
    }, with_header),
    **each("load, Bayesian tensors, ", {
        "nan mean": filled("mean/2.bias", math.nan), "infinite mean": filled("mean/2.bias", math.inf),
        "nan variance": filled("variance/2.bias", math.nan), "zero variance": filled("variance/2.bias", 0.0),
        "negative variance": filled("variance/0.weight", -2.0),
        "no variance": lambda tensors: tensors.pop("variance/0.bias"),
        "no mean": lambda tensors: tensors.pop("mean/0.bias"), "nothing": lambda tensors: tensors.clear(),
        "surplus": lambda tensors: tensors.update({"mean/x": np.ones(2)}),
        "shape": lambda tensors: tensors.update({"variance/0.bias": np.ones((5, 1), np.float32)}),
        "integers": lambda tensors: tensors.update({"mean/0.bias": np.zeros(5, np.int64)}),
    }, with_tensors),
    **each("load, Bayesian claims, ", {
        "four bits": claiming("F4", (8,), 4), "eight bits": claiming("F8_E4M3", (4,), 4),
        "endless": claiming("F32", (2**62, 0), 0), "lying": claiming("F32", (3,), 8),
        "text": to_safetensors({"mean/a": np.ones(2)}, {"consilience": '{"format": "consilience-bayesian"}'}),
        "text twice": to_safetensors({"mean/a": np.ones(2)},
        {"consilience": '{"format": "consilience-bayesian", "format": "x"}'}),
    }, lambda content: cs.load(written("bnn.safetensors", content))),
    "fuse, a posterior's file among Bayesian networks": lambda at: cs.fuse([bayesian(), written("a.safetensors",
    GOOD)]),
}  # fmt: skip

DATA = (np.random.default_rng(0).normal(size=(12, 6)).astype(np.float32), np.arange(12) % 3)


def drawn(**more):
    """Draw the barrier between two Bayesian networks."""
    options = {"bnn_a": bayesian(0), "bnn_b": bayesian(1), "inputs": DATA[0], "labels": DATA[1], "points": 3}
    return cs.predictive_barrier(**{**options, "samples": 2, "repeats": 1, **more})


def fused():
    """Return two Bayesian networks fused."""
    return cs.fuse(bayesians(), "average", **known())


COMPARED = {
    **each("predictive_barrier, ", {
        "one point": {"points": 1}, "no samples": {"samples": 0}, "a batch of a fraction": {"batch_size": 2.5},
        "no repeats": {"repeats": 0}, "another path": {"path": "straight"}, "a network": {"bnn_b": mlp()},
        "other widths": {"bnn_b": bayesian(1, net=lambda seed: mlp(seed, hidden=4))}, "no module": {"bnn_a": bare()},
        "other classes": {"bnn_a": bayesian(0, classes=ABC), "bnn_b": bayesian(1, classes=("a", "c", "b"))},
        "labels of another length": {"labels": [1, 2]}, "labels that are fractions": {"labels": DATA[1] + 0.5},
        "labels beyond the classes": {"labels": DATA[1] + 5}, "inputs of another width": {"inputs": np.zeros((12, 7))},
    }, lambda options: drawn(**options)),
    **each("Bayesian fusion, reported with ", {
        "predictions in a list": {"predictions": [1]}, "predictions that are numbers": {"predictions": {"fused": 0.9}},
        "barriers that are none": {"barriers": {"a": 3}},
    }, lambda shown: fused().report("a.html", **shown)),
    **each("evaluate Bayesian networks, ", {
        "no labels": (bayesian(0), bayesian(1), DATA[0]), "a posterior": (bayesian(0), normal(), *DATA),
        "a network": (bayesian(0), mlp(), *DATA), "labels of another length": (bayesian(0), bayesian(1), DATA[0], [1,
        2]),
        "no module": (bare(0), bayesian(1), *DATA), "labels beyond": (bayesian(0), bayesian(1), DATA[0], DATA[1] + 9),
        "inputs of another width": (bayesian(0), bayesian(1), np.zeros((12, 7), np.float32), DATA[1]),
    }, lambda arguments: cs.evaluate(*arguments)),
}  # fmt: skip

ROWS = torch.randn(9, 6, generator=torch.Generator().manual_seed(0))


def learned(y=None, classes=3, x=None, learner=cs.learners.GaussianBNN, **options):
    """Fit a learner."""
    y = torch.arange(9) % 3 if y is None else y
    return learner(**{"epochs": 1, **options}).fit(ROWS if x is None else x, y, classes)


LEARNED = {
    **each("learners, ", {
        "a layer called twice": {"module": Twice()}, "classes that are words": {"y": ["a"] * 9},
        "one class": {"classes": 1},
        "X with NaN": {"x": ROWS * math.nan}, "y of another length": {"y": torch.arange(4)},
        "y beyond": {"y": torch.arange(9)},
        "y of fractions": {"y": torch.arange(9) % 3 + 0.5}, "a module that is none": {"module": 5},
        "a module without layers": {"module": nn.ReLU()}, "a module of other outputs": {"module": mlp(classes=4)},
        "batch normalisation": {"module": normalised()}, "a seed of None": {"seed": None}, "no epochs": {"epochs": 0},
        "no device": {"device": "gpu"}, "hidden that is a number": {"hidden": 5},
        "a negative prior_variance": {"prior_variance": -1.0}, "a negative learning_rate": {"learning_rate": -1.0},
        "a slab that is a number": {"slab": 3, "learner": cs.learners.HorseshoeBNN},
    }, lambda options: learned(**options)),
    "learners, TitsiasGP, no kernel": lambda at: cs.learners.TitsiasGP(kernel="cubic").fit(ROWS.numpy(), ROWS[:,
    0].numpy()),
    "learners, TitsiasGP, no noise": lambda at: cs.learners.TitsiasGP(noise=-1.0).fit(ROWS.numpy(), ROWS[:, 0].numpy()),
    "learners, TitsiasGP, NaN": lambda at: cs.learners.TitsiasGP().fit(ROWS.numpy() * np.nan, ROWS[:, 0].numpy()),
    "learners, StickyHDPHMM, no states": lambda at: cs.learners.StickyHDPHMM(n_states=0).fit(ROWS.numpy()),
    "learners, GaussianTopics, no topics": lambda at: cs.learners.GaussianTopics(n_topics=0).fit([["a"]], np.eye(2),
    ["a", "b"]),
}  # fmt: skip

CASES = (
    MODELS | option_cases(BAYESIAN_OPTIONS, "Bayesian networks", lambda **asked: cs.fuse(bayesians(), **known(**asked)))
    | MADE | FILES | COMPARED | LEARNED
)  # fmt: skip
