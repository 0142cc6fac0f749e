"""Golden fusions of neural networks: every method on dense, convolutional, recurrent and attending networks.

Weights are drawn by NumPy and put into modules; nothing is trained.
"""

from functools import cache

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import consilience as cs
from tests.golden.table import case, cases, landscape, saved

BATCH, STEPS, FEATURES, CLASSES = 3, 5, 4, 3


def dense(widths=(7, 6)):
    first, second = widths
    return nn.Sequential(
        nn.Linear(FEATURES, first), nn.ReLU(), nn.Linear(first, second), nn.Tanh(), nn.Linear(second, CLASSES)
    )


def shallow(width):
    return nn.Sequential(nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, CLASSES))


def convolutional():
    return nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1, bias=False),
        nn.BatchNorm2d(5),
        nn.ReLU(),
        nn.Conv2d(5, 4, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(36, CLASSES),
    )


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 5, 3, padding=1), nn.BatchNorm2d(5)
        self.inner, self.inner_norm = nn.Conv2d(5, 5, 3, padding=1, bias=False), nn.BatchNorm2d(5)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x):
        x = functional.relu(self.norm(self.first(x)))
        x = functional.relu(x + self.inner_norm(self.inner(x)))
        return self.head(x.mean(dim=(2, 3)))


class Recurrent(nn.Module):
    def __init__(self, cell, **options):
        super().__init__()
        self.rnn = cell(FEATURES, 5, batch_first=True, **options)
        self.out = nn.Linear(10 if self.rnn.bidirectional else 5, CLASSES)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(FEATURES, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 10, batch_first=True, dropout=0.0)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.out(self.layer(self.embed(x)))


NETS = {
    "dense": dense,
    "convolutional": convolutional,
    "residual": Residual,
    "rnn": lambda: Recurrent(nn.RNN),
    "relu rnn": lambda: Recurrent(nn.RNN, nonlinearity="relu"),
    "lstm": lambda: Recurrent(nn.LSTM),
    "lstm both ways": lambda: Recurrent(nn.LSTM, bidirectional=True, num_layers=2),
    "gru": lambda: Recurrent(nn.GRU),
    "attending": Attending,
}


def drawn(module, seed, dtype=torch.float64, near=None):
    """Return a module with parameters drawn by NumPy; with `near`, a little off those of that seed."""
    rng = np.random.default_rng([seed, 10])
    start = None if near is None else np.random.default_rng([near, 10])
    module = module.to(dtype).eval()
    with torch.no_grad():
        for name, array in module.state_dict().items():
            if not array.is_floating_point():
                continue
            values = rng.normal(size=tuple(array.shape))
            if start is not None:
                values = start.normal(size=tuple(array.shape)) + 0.2 * values
            values = np.abs(values) + 0.5 if name.endswith("running_var") else 0.5 * values
            array.copy_(torch.as_tensor(values))
    return module


def example_of(kind, count=BATCH, dtype=torch.float64):
    shape = (count, FEATURES) if kind == "dense" else (count, STEPS, FEATURES)
    if kind in ("convolutional", "residual"):
        shape = (count, 2, 4, 4)
    return torch.as_tensor(np.random.default_rng(12).normal(size=shape)).to(dtype)


@cache
def symmetry_of(kind):
    """Return the proved symmetry of a kind of network; traced once for all cases, and itself on record."""
    return cs.symmetry(drawn(NETS[kind](), 0), example_of(kind))


def nets(kind, number=3, near=None, dtype=torch.float64):
    return [drawn(NETS[kind](), seed, dtype, near) for seed in range(1, number + 1)]


def fused(kind, method, folder, models=None, **options):
    """Fuse networks, save what was fused, and ask it."""
    models = nets(kind) if models is None else models
    fusion = cs.fuse(models, method, symmetry=symmetry_of(kind), example=example_of(kind), **options)
    with torch.no_grad():
        answers = fusion.model(example_of(kind))
    found = {"fused": fusion} if fusion.keeps_models else saved(fusion, folder)
    return {**found, "answers": answers}


@cases("symmetry: {}", {name: name for name in NETS})
def _symmetry(folder, kind):
    net, symmetry = drawn(NETS[kind](), 3), symmetry_of(kind)
    orders = {}
    for group, units in symmetry.groups.items():
        if not any(group == one.name and one.parent for one in symmetry.all_groups):
            orders[group] = np.random.default_rng(units).permutation(units).tolist()
    cs.save(net, folder / "net.safetensors", symmetry=symmetry)
    places = {group: [str(place) for place in symmetry.places(group)] for group in symmetry.groups}
    return {
        "symmetry": symmetry,
        "places": places,
        "permuted": cs.permute(net, symmetry, orders),
        "file": folder / "net.safetensors",
        "loaded": dict(cs.load(folder / "net.safetensors").arrays),
    }


METHODS = {
    "consensus": {"method": "consensus"},
    "consensus, no refit": {"method": "consensus", "refit": False, "weights": [3.0, 1.0, 2.0]},
    "consensus, as scaled": {"method": "consensus", "refit": False, "balance": False, "signs": False, "restarts": 1},
    "consensus, median": {"method": "consensus", "robust": "median", "reference": 1},
    "ot": {"method": "ot"},
    "ot, soft": {"method": "ot", "epsilon": 0.1, "metric": "euclidean", "normalize": True},
    "ot, first writers": {"method": "ot", "writers": "first"},
    "ot, trim": {"method": "ot", "robust": "trim", "trim": 0.4},
    "wb": {"method": "wb"},
    "wb, soft": {"method": "wb", "epsilon": 0.1, "restarts": 2},
    "wb, random": {"method": "wb", "start": "random"},
    "wb, weights": {"method": "wb", "weights": [1.0, 2.0, 3.0], "reference": 2},
    "gwb": {"method": "gwb"},
    "rebasin": {"method": "rebasin"},
    "rebasin, restarts": {"method": "rebasin", "restarts": 3, "weights": [1.0, 2.0, 3.0]},
    "fedma": {"method": "fedma"},
    "fedma, growth": {"method": "fedma", "growth": True, "gamma": 20.0, "sigma": 0.5},
    "fedma, shrunk": {"method": "fedma", "shrink": True, "max_iterations": 1},
    "average": {"method": "average"},
    "average, trim": {"method": "average", "robust": "trim", "trim": 0.4},
    "average, median": {"method": "average", "robust": "median"},
    "ensemble": {"method": "ensemble"},
    "ensemble of logits": {"method": "ensemble", "mean": "logits", "weights": [1.0, 2.0, 3.0]},
}


@cases("dense networks: {}", METHODS)
def _dense(folder, options):
    return fused("dense", folder=folder, **options)


ACTIVATIONS = {
    "consensus, refit on inputs": {"method": "consensus"},
    "ot, activations": {"method": "ot", "cost": "activations"},
    "wb, activations": {"method": "wb", "cost": "activations"},
    "rebasin, activations": {"method": "rebasin", "cost": "activations"},
    "rebasin, correlation": {"method": "rebasin", "cost": "correlation"},
}


@cases("dense networks with inputs: {}", ACTIVATIONS)
def _dense_with_inputs(folder, options):
    return fused("dense", folder=folder, inputs=example_of("dense", 60), **options)


WIDTHS = {
    "consensus, wider": {"method": "consensus", "target_widths": {"0": 9, "2": 8}},
    "consensus, all side by side": {"method": "consensus", "target_widths": {"0": 15, "2": 12}},
    "ot, wider": {"method": "ot", "target_widths": {"0": 9, "2": 8}},
    "wb, narrower": {"method": "wb", "target_widths": {"0": 5, "2": 4}},
    "wb, like a module": {"method": "wb", "target": (6, 6)},
    "fedma": {"method": "fedma"},
    "gwb, narrower": {"method": "gwb", "target_widths": {"0": 5, "2": 4}},
    "ensemble": {"method": "ensemble"},
}


@cases("networks of different widths: {}", WIDTHS)
def _widths(folder, options):
    models = [drawn(dense(widths), seed) for seed, widths in enumerate(((7, 5), (8, 7)))]
    more = dict(options)
    if "target" in more:
        more["target"] = drawn(dense(more["target"]), 5)
    fusion = cs.fuse(models, example=example_of("dense"), **more)
    with torch.no_grad():
        answers = fusion.model(example_of("dense"))
    return {**({"fused": fusion} if fusion.keeps_models else saved(fusion, folder)), "answers": answers}


KINDS = {
    f"{kind}, {method}": (kind, method)
    for kind, methods in {
        "convolutional": ("consensus", "ot", "wb", "fedma", "rebasin", "average"),
        "residual": ("consensus", "ot", "wb", "rebasin"),
        "rnn": ("consensus", "gwb", "fedma"),
        "relu rnn": ("consensus", "gwb"),
        "lstm": ("consensus", "gwb", "wb"),
        "lstm both ways": ("consensus", "gwb"),
        "gru": ("consensus", "gwb", "rebasin"),
        "attending": ("consensus", "ot", "wb", "rebasin", "average"),
    }.items()
    for method in methods
}


@cases("networks: {}", KINDS)
def _kinds(folder, chosen):
    kind, method = chosen
    return fused(kind, method, folder, models=nets(kind, 2))


GROMOV = {
    "paper": {"mode": "paper", "alpha": 0.3},
    "one start": {"starts": ("uniform",), "sent": False, "signs": False},
    "soft": {"mode": "paper", "epsilon": 0.1},
    "mirror": {"mode": "mirror", "starts": ("input",), "max_iterations": 3},
    "narrower": {"target_widths": {"rnn.l0": 4}},
}


@cases("recurrent networks by gwb: {}", GROMOV)
def _gromov(folder, options):
    # Mirror descent between unlike networks has no end within reach, and its course amplifies every rounding.
    near = 3 if options.get("mode") == "mirror" else None
    return fused("rnn", "gwb", folder, models=nets("rnn", 2, near), **options)


@cases("networks in files: {}", {"consensus": "consensus", "wb": "wb", "rebasin": "rebasin", "average": "average"})
def _files(folder, method):
    """Fuse files in float32 with their symmetry: first nothing but these, then with the module and an example."""
    paths = []
    for number, net in enumerate(nets("dense", dtype=torch.float32)):
        paths.append(folder / f"net-{number}.safetensors")
        cs.save(net, paths[-1], symmetry=symmetry_of("dense"))
    plain = cs.fuse(paths, method)
    made, example = (lambda: drawn(dense(), 9, torch.float32)), example_of("dense", dtype=torch.float32)
    asked = cs.fuse(paths, method, module=made, example=example)
    return {"site saved": paths[0], **saved(plain, folder, "plain"), **saved(asked, folder, "with a module")}


def informed(kind, number=3):
    models = nets("dense", number, near=0)
    known = []
    for place, model in enumerate(models):
        inputs = torch.as_tensor(np.random.default_rng([place, 13]).normal(size=(40 + 10 * place, FEATURES)) + place)
        known.append(cs.fisher(model, inputs, kind, prior_precision=0.5, minimum=1, rank=8))
    return models, known


INFORMED = {
    "fisher, diagonal": ("diagonal", {"method": "fisher"}),
    "by default": ("diagonal", {}),
    "fisher, favored": ("diagonal", {"method": "fisher", "favor_target": 1, "normalize": True, "prior": "removed"}),
    "fisher, low rank": ("factors", {"method": "fisher"}),
    "fisher, low rank, shrunk": ("factors", {"method": "fisher", "shrinkage": 0.3}),
    "fisher, full": ("factors", {"method": "fisher", "structure": "full"}),
    "fisher, isotropic": ("factors", {"method": "fisher", "structure": "isotropic"}),
    "fisher, weights": ("factors", {"method": "fisher", "weights": [3.0, 1.0, 1.0]}),
    "ssf": ("factors", {"method": "ssf"}),
    "ssf, windows": (
        "factors",
        {"method": "ssf", "window": 20, "masks": 5, "mask_rate": 0.4, "prior": "kept", "rng": 3},
    ),
    "kfac": ("kronecker", {"method": "kfac", "damping": 0.1}),
    "fedfisher": ("kronecker", {"method": "fedfisher", "steps": 20, "learning_rate": 0.01}),
    "fedlpa": ("kronecker", {"method": "fedlpa"}),
}


@cases("networks with information: {}", INFORMED)
def _informed(folder, chosen):
    kind, options = chosen
    models, known = informed(kind)
    paths, informations = [], []
    for number, (model, information) in enumerate(zip(models, known, strict=True)):
        paths.append(folder / f"net-{number}.safetensors")
        informations.append(folder / f"net-{number}.fisher.safetensors")
        cs.save(model, paths[-1], symmetry=symmetry_of("dense"))
        cs.save(information, informations[-1])
    fusion = cs.fuse(models, fishers=known, **options)
    of_files = cs.fuse(paths, fishers=informations, **options)
    return {
        "information": known[0],
        "information saved": informations[0],
        **saved(fusion, folder),
        "of files": dict(of_files.network.arrays),
    }


DISTILLED = {"inputs": {}, "narrower": {"target": (4, 6)}, "another architecture": {"target": (5,)}}


@cases("networks by distill: {}", DISTILLED)
def _distilled(folder, options):
    """Fuse networks by training on given inputs, into their widths, narrower ones and another network."""
    widths = options.get("target")
    target = None if widths is None else drawn(dense(widths) if len(widths) == 2 else shallow(*widths), 9)
    inputs = torch.as_tensor(np.random.default_rng(19).normal(size=(200, FEATURES)))
    models = nets("dense", 3)
    return saved(
        cs.fuse(models, "distill", inputs=inputs, example=example_of("dense"), target=target, steps=60), folder
    )


DEFAULTS = {"described": True, "not described": False}


@cases("networks by default: {}", DEFAULTS)
def _default(folder, is_described):
    """Fuse networks by a choice among candidates, and without anything to choose by."""
    models = nets("dense", 3)
    if is_described:
        described = []
        for place, model in enumerate(models):
            rng = np.random.default_rng([place, 19])
            labels = rng.integers(0, CLASSES, 150)
            inputs = torch.as_tensor(rng.normal(size=(150, FEATURES)) + labels[:, None])
            described.append(cs.describe(model, (inputs, torch.as_tensor(labels)), example=example_of("dense")))
        fusion = cs.fuse(described, n_inputs=200, steps=50)
    else:
        fusion = cs.fuse(models, example=example_of("dense"))
    return saved(fusion, folder)


INFORMATION = {
    "diagonal": {"kind": "diagonal"},
    "factors": {"kind": "factors", "rank": 4},
    "sampled": {"kind": "diagonal", "n_draws": 2, "rng": 5},
    "gaussian": {"kind": "factors", "likelihood": "gaussian", "noise": 0.5},
    "bernoulli": {"kind": "diagonal", "likelihood": "bernoulli", "n_observations": 400.0},
}


@cases("Fisher information: {}", INFORMATION)
def _information(folder, options):
    net, inputs = drawn(dense(), 2), example_of("dense", 60)
    information = cs.fisher(net, inputs, minimum=10, **options)
    cs.save(information, folder / "fisher.safetensors")
    return {"information": information, "file": folder / "fisher.safetensors"}


@cases("Fisher information of layers: {}", {kind: kind for kind in ("convolutional", "lstm", "attending")})
def _information_of(_folder, kind):
    likelihood = "categorical" if kind == "convolutional" else "gaussian"
    return {"information": cs.fisher(drawn(NETS[kind](), 2), example_of(kind, 12), "factors", likelihood, minimum=1)}


REPAIRS = {"repair": {}, "statistics": {"kind": "statistics"}, "refit": {"kind": "refit"}}


@cases("repair: {} on inputs", REPAIRS)
def _repair(folder, options):
    models = nets("convolutional", 2)
    fusion = cs.fuse(models, "rebasin", symmetry=symmetry_of("convolutional"), example=example_of("convolutional"))
    repaired = cs.repair(fusion, example_of("convolutional", 40), **options)
    return saved(repaired, folder)


MOMENTS = {"regmean": {"kind": "regmean"}}


@cases("repair: {} from moments", MOMENTS)
def _moments(folder, options):
    models = nets("convolutional", 2)
    fusion = cs.fuse(models, "rebasin", symmetry=symmetry_of("convolutional"), example=example_of("convolutional"))
    moments = [landscape("layer_moments")(model, example_of("convolutional", 120)) for model in models]
    moments[0].save(folder / "moments.safetensors")
    repaired = cs.repair(fusion, moments=moments, **options)
    return {"moments": folder / "moments.safetensors", **saved(repaired, folder)}


def labels(count):
    return torch.as_tensor(np.random.default_rng(14).integers(CLASSES, size=count))


@case("networks compared: barrier, plane and evaluation")
def _compared(folder):
    models = nets("dense", 3)
    inputs, truth = example_of("dense", 40), labels(40)
    scores = landscape("Classification")(inputs, truth)
    fusion = cs.fuse(models, "rebasin", symmetry=symmetry_of("dense"), example=example_of("dense"), reference=0)
    barrier, plane = cs.barrier(*models[:2], scores, points=5), cs.plane(*models, scores, points=3)
    barrier.save(folder / "barrier.safetensors")
    plane.save(folder / "plane.safetensors")
    evaluation = cs.evaluate(fusion, models[0], inputs, truth)
    return {
        "barrier": {"t": barrier.t, "values": barrier.values, "summary": barrier.summary()},
        "plane": {"values": plane.values, "alphas": plane.alphas, "betas": plane.betas},
        "barrier saved": folder / "barrier.safetensors",
        "plane saved": folder / "plane.safetensors",
        "scores": np.array([[score.fused, score.own] for score in evaluation.scores]),
        "classes": np.array([[one.label, one.rows, one.fused, one.own] for one in evaluation.classes]),
        # The arrays of a group are summed in the order of a set of names, which PYTHONHASHSEED decides.
        "distances": {name: round(quality.distance, 12) for name, quality in fusion.quality.items()},
    }
