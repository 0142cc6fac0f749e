"""What is refused of networks: fused, traced, permuted, merged by information, drawn, repaired, compared."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import load_file
from safetensors.numpy import save_file as save_arrays
from torch import nn

import consilience as cs
from tests.networks.informed_nets import informed, observations, perceptron
from tests.refusals.tables.nets import (
    SEQUENCE,
    Recurrent,
    Tied,
    Undecided,
    X,
    changed,
    checkpoints,
    deeper,
    filed,
    made,
    mlp,
    mlps,
    network_files,
    normalised,
    orthogonal,
    recurrent,
    recurrent_symmetry,
    scripted,
    symmetry,
    with_nan,
)
from tests.refusals.tables.things import by_fuse_and_check, each, normal, option_cases, written


def known(**more):
    """Return options of a fusion that needs no tracing."""
    return {"symmetry": symmetry(), **more}


def twins(**more):
    """Return a network in two files of one content."""
    paths = network_files(1)
    return [*paths, written("copy.safetensors", open_bytes(paths[0]))]


def open_bytes(path):
    """Return what is in a file."""
    with open(path, "rb") as file:
        return file.read()


def posterior_file(path="mixture.safetensors"):
    """Write a posterior, and return the path."""
    cs.save(normal(), path)
    return path


HINTED = {"module": mlp(), "example": X}
SHORT = {"method": "rebasin", "symmetry": symmetry}

MODELS = by_fuse_and_check({
    "one network": lambda: ([mlp()], known()),
    "a network and a posterior": lambda: ([mlp(), normal()], known()),
    "a posterior and a network": lambda: ([normal(), mlp()], known()),
    "a network and a number": lambda: ([mlp(), 5], known()),
    "a network and a posterior's file": lambda: ([mlp(), posterior_file()], known()),
    "a file of a network and one of a posterior": lambda: ([*network_files(), posterior_file()], {}),
    "a network and Fisher information's file": lambda: ([mlp(), information_files()[1][0]], known()),
    "Fisher information's files alone": lambda: (information_files()[1], {}),
    "a network's file twice": lambda: ([network_files()[0], "one.safetensors"], {}),
    "a copy of a network's file": lambda: (twins(), {}),
    "state dicts with orthogonal layers": lambda: ([orthogonal(), orthogonal(1)], {"method": "average"}),
    "scripted modules with parts of weights": lambda: ([scripted(), scripted(1)], {"method": "average"}),
    "plain checkpoints without a hint": lambda: (checkpoints(), {}),
    "plain checkpoints, a reference alone": lambda: (checkpoints(), {"reference": 0, "method": "consensus"}),
    "a network's file that is not there": lambda: ([*network_files(), "nobody.safetensors"], {}),
    "a module that makes none": lambda: (checkpoints(), {"module": lambda: 5, "example": X}),
    "an example of another width": lambda: (mlps(), {"example": torch.zeros(2, 7)}),
    "a symmetry that is none": lambda: (mlps(), {"symmetry": written("net.json", "{}")}),
    "a symmetry's file that is not there": lambda: (mlps(), {"symmetry": "nowhere.json"}),
    "a symmetry's file without one": lambda: (mlps(), {"symmetry": checkpoints()[0]}),
    "a symmetry of another network": lambda: (mlps(), {"symmetry": recurrent_symmetry()}),
    "a depth more": lambda: ([mlp(), deeper()], known()),
    "batch normalisation more": lambda: ([mlp(), normalised()], known()),
    "other inputs": lambda: ([mlp(), mlp(1, inputs=7)], known()),
    "other classes of networks": lambda: ([mlp(), mlp(1, classes=4)], known()),
    "another activation": lambda: (
        [mlp(), made(lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), 1)], known()),
    "another cell": lambda: ([recurrent(), recurrent(1, nn.GRU)], {"method": "gwb", "symmetry": recurrent_symmetry()}),
    "more recurrent layers": lambda: (
        [recurrent(), recurrent(1, num_layers=2)], {"method": "gwb", "symmetry": recurrent_symmetry()}),
    "a missing array": lambda: (checkpoints(**{"0__bias": lambda _: None}), HINTED),
    "a surplus array": lambda: (checkpoints(more=lambda _: torch.ones(2)), HINTED),
    "an array of another shape": lambda: (checkpoints(**{"0__bias": lambda _: torch.ones(8)}), HINTED),
    "an array with NaN": lambda: (checkpoints(**{"2__weight": with_nan}), HINTED),
    "an array of integers that moves": lambda: (checkpoints(**{"0__weight": lambda v: v.to(torch.int32)}), HINTED),
    "an array of integers": lambda: (checkpoints(**{"2__bias": lambda v: v.to(torch.int64)}), HINTED),
    "a module with NaN": lambda: ([mlp(), loaded(changed(1, **{"2__weight": with_nan}))], known()),
    "files of other architectures": lambda: ([*network_files(1), other_file()], {}),
    "a method for posteriors": lambda: (mlps(), known(method="spahm")),
    "a method object for posteriors": lambda: (mlps(), known(method=cs.methods.SPAHM())),
    "kl for networks without variances": lambda: (mlps(), known(method="kl")),
    "w2 for networks without variances": lambda: (mlps(), known(method="w2")),
    "a method that networks lack": lambda: (mlps(), known(method="mean")),
    "a method object for Bayesian networks, given networks": lambda:
        (mlps(), known(method=cs.methods.KLNetworkFusion())),
    "an option that networks lack": lambda: (mlps(), known(speed=9)),
    "options beside a network method": lambda: (mlps(), known(method=cs.methods.Consensus(), restarts=3)),
    "too few weights of networks": lambda: (mlps(), known(weights=[1.0])),
    "a negative weight of a network": lambda: (mlps(), known(weights=[1.0, -1.0])),
    "a reference beyond": lambda: (mlps(), known(reference=2)),
    "a reference that is a word": lambda: (mlps(), known(reference="first")),
    "a negative reference": lambda: (mlps(), known(reference=-1)),
    "a target that is a number": lambda: (mlps(), known(target=3)),
    "a target and target_widths": lambda: (mlps(), known(target=mlp(2), target_widths={"0": 5})),
    "a target of another architecture": lambda: (mlps(), known(target=deeper())),
    "a target width of zero": lambda: (mlps(), known(target_widths={"0": 0})),
    "a target width of no group": lambda: (mlps(), known(target_widths={"fc1": 3})),
    "a target width that is no number": lambda: (mlps(), known(target_widths={"0": "many"})),
    "other widths by rebasin": lambda: (mlps(), known(method="rebasin", target_widths={"0": 9})),
    "other widths by average": lambda: ([mlp(), mlp(1, hidden=4)], known(method="average")),
    "too narrow for consensus": lambda: ([mlp(), mlp(1, hidden=4)], known(target_widths={"0": 4})),
    "too narrow for fedma": lambda: ([mlp(), mlp(1, hidden=4)], known(method="fedma", target_widths={"0": 4})),
    "class_counts of other models, an ensemble": lambda: (mlps(), known(method="ensemble", class_counts=[[1, 2, 3]])),
    "class_counts that are none, an ensemble": lambda: (
        mlps(), known(method="ensemble", class_counts=[[0, 0, 0], [0, 0, 0]])),
    "a stationary mean without class_counts": lambda: (mlps(), known(method="ensemble", mean="stationary")),
    "class_counts beside another mean": lambda: (
        mlps(), known(method="ensemble", mean="logits", class_counts=[[1, 2, 3], [3, 2, 1]])),
    "class_counts of other models": lambda: (mlps(), known(method="fedma", class_counts=[[1, 2, 3]])),
    "activations without inputs": lambda: (mlps(), known(method="ot", cost="activations")),
    "networks that are robust, two": lambda: (mlps(), known(robust="median")),
    "a robust method that does not average": lambda: (mlps(4), known(method="fedma", robust="trim", shrink=True)),
    "tied arrays that differ": lambda: (
        [filed(tied_state(), "one.safetensors"), filed(tied_state(1), "two.safetensors")],
        {"module": Tied(), "example": torch.zeros(2, 3, dtype=torch.long)}),
    "information for none": lambda: (informed()[0], {"method": "fisher"}),
    "information for too few": lambda: (informed()[0], {"method": "fisher", "fishers": informed()[1][:2]}),
    "information that is one": lambda: (informed()[0], {"method": "fisher", "fishers": informed()[1][0]}),
    "information that is None": lambda: (informed()[0], {"fishers": [informed()[1][0], None, informed()[1][2]]}),
    "information of other networks": lambda: (informed()[0], {"method": "fisher", "fishers": informed()[1][::-1]}),
    "information on another scale": lambda: (
        informed()[0], {"method": "fisher", "structure": "diagonal", "fishers": [diagonals()[0], *informed()[1][1:]]}),
    "information of another likelihood": lambda: (
        informed()[0],
        {"method": "fisher", "fishers": [replace(informed()[1][0], likelihood="gaussian"), *informed()[1][1:]]}),
    "information without a prior": lambda: (
        informed()[0],
        {"method": "fisher", "fishers": [replace(one, prior_precision=None) for one in informed()[1]]}),
    "information of other priors": lambda: (
        informed()[0],
        {"method": "fisher", "prior": "removed",
         "fishers": [replace(informed()[1][0], prior_precision=3.0), *informed()[1][1:]]}),
    "information in a matrix that is too large": lambda: (
        [nn.Linear(100, 90) for _ in range(2)],
        {"method": "fisher", "structure": "full", "prior": "ignored",
         "fishers": [{key: np.ones(v.shape) for key, v in nn.Linear(100, 90).state_dict().items()}] * 2}),
    "information aligned without a symmetry": lambda: (
        informed()[0], {"method": "fisher", "fishers": informed()[1], "aligned": True}),
    "a favourite that is not there": lambda: (
        informed()[0], {"method": "fisher", "fishers": informed()[1], "favor_target": 7}),
    "networks of other widths with information": lambda: (
        [perceptron(), perceptron(hidden=5)], {"method": "fisher", "fishers": informed()[1][:2]}),
    **{
        f"a diagonal, {name}": (partial(lambda change: (informed()[0], {"method": "fisher",
        "fishers": diagonals(change)}),
                                        change))
        for name, change in {
            "negative": lambda one: one["0.weight"].__setitem__((0, 0), -1.0),
            "with NaN": lambda one: one["0.weight"].__setitem__((0, 0), np.nan),
            "of another shape": lambda one: one.update({"0.weight": one["0.weight"].T}),
            "of more": lambda one: one.update({"other": one["0.weight"]}),
            "of less": lambda one: one.pop("0.bias"),
            "of zeros": lambda one: [values.fill(0.0) for values in one.values()],
            "of integers": lambda one: one.update({"0.bias": np.arange(4)}),
            "of no arrays": lambda one: one.update({"0.bias": 3.0}),
            "of nothing": lambda one: one.clear(),
        }.items()
    },
    "information's file that a network lacks": lambda: (both_files(2), {}),
    "information's file of no network": lambda: (both_files(3, 2), {}),
    "information's file twice": lambda: (
        [*both_files(3), written("copy.fisher.safetensors", open_bytes("0.fisher.safetensors"))], {}),
    "networks' files as information": lambda: (network_files(), {"method": "fisher", "fishers": network_files()}),
})  # fmt: skip


def loaded(state):
    """Return a network of this state."""
    net = mlp()
    net.load_state_dict(state)
    return net


def other_file():
    """Write another architecture with its symmetry, and return the path."""
    cs.save(recurrent(), "other.safetensors", symmetry=recurrent_symmetry())
    return "other.safetensors"


def tied_state(shift=0):
    """Return the state of a network whose tied arrays differ."""
    state = {key: values.clone() for key, values in made(Tied).state_dict().items()}
    state["out.weight"] += shift
    return state


def diagonals(change=None):
    """Return diagonals by parameter, the first changed."""
    found = [{key: np.asarray(values).copy() for key, values in one.diagonal.items()} for one in informed()[1]]
    if change is not None:
        change(found[0])
    return found


def information_files(count=3):
    """Write networks and what is known of them, and return the paths of both."""
    models, information = informed()
    paths = [f"{number}.safetensors" for number in range(count)], [f"{n}.fisher.safetensors" for n in range(count)]
    for number in range(count):
        cs.save(models[number], paths[0][number])
        cs.save(information[number], paths[1][number])
    return paths


def both_files(known=3, networks=3):
    """Return the paths of networks and of what is known of them."""
    paths = information_files()
    return [*paths[0][:networks], *paths[1][:known]]


def forged_information(change):
    """Write a file of Fisher information that was tampered with, and return the path."""
    path = information_files(1)[1][0]
    with safe_open(path, "numpy") as file:
        header = json.loads(file.metadata()["consilience"])
    arrays = load_file(path)
    change(header, arrays)
    save_arrays(arrays, path, {"consilience": json.dumps(header)})
    return path


NETWORK_OPTIONS = {
    "consensus": "robust trim restarts max_iterations balance signs refit",
    "wb": "robust trim writers cost epsilon start restarts max_iterations annealing",
    "gwb": "robust trim writers cost epsilon start restarts max_iterations annealing"
           " mode alpha starts sent signs",
    "ot": "robust trim writers cost epsilon start metric normalize",
    "rebasin": "robust trim cost restarts max_iterations",
    "fedma": "robust trim writers sigma sigma0 gamma growth shrink max_iterations class_counts",
    "fisher": "robust trim prior prior_precision shrinkage normalize aligned restarts tolerance max_iterations"
              " structure floor favor_target",
    "ssf": "robust trim prior prior_precision shrinkage normalize aligned restarts tolerance max_iterations mask_rate"
           " masks window",
    "average": "robust trim",
    "ensemble": "robust trim mean class_counts",
}  # fmt: skip

# -- Symmetries.


class Odd(nn.Module):
    """Fails on any input."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        raise RuntimeError("out of order")


SYMMETRIES = {
    "symmetry, no module": lambda at: cs.symmetry(5, X),
    "symmetry, a wrong example": lambda at: cs.symmetry(mlp(), torch.zeros(2, 7)),
    "symmetry, an example of none": lambda at: cs.symmetry(mlp(), None),
    "symmetry, decisions": lambda at: cs.symmetry(Undecided(), X),
    "symmetry, out of order": lambda at: cs.symmetry(Odd(), X),
    "permute, no network": lambda at: cs.permute(5, symmetry(), {}),
    "permute, no such group": lambda at: cs.permute(mlp(), symmetry(), {"fc": [0]}),
    "permute, no order": lambda at: cs.permute(mlp(), symmetry(), {"0": [0, 0, 1, 2, 3]}),
    "permute, another length": lambda at: cs.permute(mlp(), symmetry(), {"0": [0, 1]}),
    "permute, a symmetry of another network": lambda at: cs.permute(mlp(), recurrent_symmetry(), {}),
    "network, an array that lacks": lambda at: cs.Network(changed(0, **{"0__bias": lambda _: None}), symmetry()),
    "network, NaN": lambda at: cs.Network(changed(0, **{"0__bias": with_nan}), symmetry()),
    "network, no group": lambda at: cs.Network(mlp().state_dict(), symmetry()).permute({"x": [0]}),
    "load, a checkpoint without symmetry": lambda at: cs.load(checkpoints()[0]),
    **each("fuse, state dicts of which one has ", {
        "other truth values": {"w": torch.ones(2), "mask": torch.tensor([False, True])},
        "other integers": {"w": torch.ones(2), "mask": torch.tensor([2, 1])},
        "complex numbers": {"w": torch.ones(2, dtype=torch.cfloat), "mask": torch.tensor([True, False])},
        "another infinity": {"w": torch.tensor([torch.inf, 1.0]), "mask": torch.tensor([True, False])},
        "a sparse entry": {"w": torch.ones(2).to_sparse(), "mask": torch.tensor([True, False])},
        "an entry that is no tensor": {"w": torch.ones(2), "mask": torch.tensor([True, False]), "epoch": 3},
        "a prefix and more": {"bert.w": torch.ones(2), "bert.mask": torch.tensor([True, False]), "c.w": torch.ones(2)},
    }, lambda other: cs.fuse([{"w": torch.ones(2), "mask": torch.tensor([True, False])}, other], "average")),
    "save, a lazy layer": lambda at: cs.save(torch.nn.LazyLinear(3), "a.safetensors"),
    "save, a symmetry of another": lambda at: cs.save(mlp(), "a.safetensors", symmetry=recurrent_symmetry()),
    "save, NaN in a network": lambda at: cs.save(
        loaded(changed(1, **{"2__weight": with_nan})), "a.safetensors", symmetry=symmetry()),
    "save, a network where there is no folder": lambda at: cs.save(mlp(), "no/a.safetensors"),
}  # fmt: skip

# -- Fisher information.


class Summed(nn.Linear):
    """Answers one row for all observations."""

    def forward(self, x):
        return super().forward(x).sum(dim=0, keepdim=True)


class Heads(nn.Linear):
    """Answers twice."""

    def forward(self, x):
        return {"age": super().forward(x), "sex": super().forward(x)}


def informing(module=None, batches=None, **options):
    """Compute Fisher information."""
    batches = observations(0) if batches is None else batches
    return cs.fisher(perceptron() if module is None else module, batches, **{"minimum": 1, **options})


def saturated():
    """Return a network that is sure of everything."""
    net = nn.Linear(3, 2)
    with torch.no_grad():
        net.bias += torch.tensor([1e4, 0.0])
    return net


INFORMATION = {
    **each("fisher, ", {
        "another kind": {"kind": "full"}, "another likelihood": {"likelihood": "poisson"}, "no samples": {"n_draws": 0},
        "no rank": {"rank": 0}, "negative observations": {"n_observations": -3.0},
        "a negative prior": {"prior_precision": -1.0}, "no noise": {"noise": 0.0},
        "noise that is a word": {"noise": "a"},
        "no minimum": {"minimum": 0}, "rng": {"rng": -1},
        "too few observations": {"minimum": 100}, "fewer than seen": {"n_observations": 39.0},
    }, lambda options: informing(**options)),
    "fisher, no module": lambda at: informing("a network"),
    "fisher, nothing to inform": lambda at: informing(perceptron().requires_grad_(False)),
    "fisher, NaN inputs": lambda at: informing(batches=observations(0) * np.nan),
    "fisher, one class": lambda at: informing(perceptron(classes=1)),
    "fisher, no batch": lambda at: informing(batches=observations(0)[:0]),
    "fisher, a tuple": lambda at: informing(batches=(observations(0), torch.zeros(40))),
    "fisher, an array": lambda at: informing(batches=observations(0).numpy()),
    "fisher, inputs of another width": lambda at: informing(batches=observations(0, 40, 5)),
    "fisher, one row for all": lambda at: informing(Summed(3, 2), observations(0).float()),
    "fisher, two heads": lambda at: informing(Heads(3, 2), observations(0).float()),
    "fisher, normalised over the batch": lambda at: informing(
        nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, track_running_stats=False)), observations(0).float()),
    "fisher, saturated": lambda at: informing(saturated(), observations(0).float()),
    "FisherInformation, factors of rank zero": lambda at: cs.results.FisherInformation(
        {"weight": np.ones((2, 3))}, {"weight": np.ones((0, 2, 3))}),
    "FisherInformation, factors of another shape": lambda at: cs.results.FisherInformation(
        {"weight": np.ones((2, 3))}, {"weight": np.ones((4, 3, 2))}),
    "FisherInformation, no observations": lambda at: cs.results.FisherInformation(
        {"weight": np.ones(2)}, observations=-1.0),
    "FisherInformation, a negative prior": lambda at: cs.results.FisherInformation({"weight": np.ones(2)},
    prior_precision=-1.0),
    "FisherInformation, another likelihood": lambda at: cs.results.FisherInformation(
        {"weight": np.ones(2)}, likelihood="x"),
    **each("load, Fisher information ", {
        "of a newer version": lambda header, arrays: header.update(format_version=2),
        "of another likelihood": lambda header, arrays: header.update(likelihood="poisson"),
        "of other parameters": lambda header, arrays: header.update(parameters=["0.weight"]),
        "with more": lambda header, arrays: header.update(extra=1),
        "without a tensor": lambda header, arrays: arrays.pop("residual/0.bias"),
        "that is negative": lambda header, arrays: arrays["residual/0.bias"].fill(-1.0),
        "of other factors": lambda header, arrays: arrays.update({"factors/0.bias": np.ones((2, 4))}),
        "of a factor alone": lambda header, arrays: arrays.update({"factors/0.weight": np.array(1.0)}),
    }, lambda change: cs.load(forged_information(change))),
    "load, Fisher information that is cut": lambda at: cs.load(
        written("cut.safetensors", open_bytes(information_files(1)[1][0])[:200])),
}  # fmt: skip

# -- Landscapes, repair, reports, comparison.

LABELLED = (torch.randn(12, 6, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3)


def fused(**options):
    """Return two networks fused without refitting."""
    return cs.fuse(mlps(), **known(method="rebasin", **options))


def compared(data, labels=None, models=None, **more):
    """Compare two networks on data."""
    fused_one, own = mlps() if models is None else models
    return cs.evaluate(fused_one, own, data, labels, **more)


def scored(net):
    """Return what is drawn of a network."""
    with torch.no_grad():
        return {"sum": float(net(LABELLED[0]).sum())}


ROWS, CLASSES = LABELLED[0].numpy(), LABELLED[1].numpy()
LANDSCAPES = {
    **each("barrier, ", {
        "one point": {"points": 1}, "points that are no number": {"points": "many"},
        "other widths": {"net_b": mlp(1, hidden=4)}, "no module": {"net_b": 5},
        "an evaluation of no names": {"evaluate": lambda net: 0.3},
    }, lambda given: cs.barrier(**{"net_a": mlp(), "net_b": mlp(1), "evaluate": scored, **given})),
    **each("plane, ", {
        "one point": {"points": 1}, "a negative margin": {"margin": -1.0}, "names that are equal": {"names": ("a", "a",
        "b")},
        "networks on a line": {"net_c": mlp(1)}, "one network": {"net_b": mlp(0), "net_c": mlp(0)},
        "marked of another width": {"marked": {"fused": mlp(3, hidden=4)}},
    }, lambda given: cs.plane(**{"net_a": mlp(), "net_b": mlp(1), "net_c": mlp(2), "evaluate": scored, **given})),
    **each("repair, ", {
        "another kind": {"kind": "mend"}, "nothing": {"batches": None}, "both": {"moments": []},
        "regmean of inputs": {"kind": "regmean"}, "refit of moments": {"kind": "refit", "moments": [], "batches": None},
        "moments of too few": {"kind": "regmean", "moments": [1], "batches": None}, "no batch": {"batches": []},
        "models of another number": {"models": [mlp()]}, "refit, a negative ridge": {"kind": "refit", "ridge": -1.0},
    }, lambda given: cs.repair(fused(), **{"batches": LABELLED[0], **given})),
    "repair, files without a module": lambda at: cs.repair(cs.fuse(network_files(), "rebasin"), LABELLED[0]),
    "fuse, an ensemble of files": lambda at: cs.fuse(network_files(), "ensemble"),
    "save, an ensemble of networks": lambda at: cs.fuse(mlps(), method="ensemble").save("a.safetensors"),
    **each("fusion of networks, reported with ", {
        "a barrier that is none": {"barriers": {"a": 3}}, "barriers that are no names": {"barriers": [1]},
        "a plane that is none": {"planes": {"a": 3}},
    }, lambda shown: fused().report("a.html", **shown)),
    "fusion of networks, reported into no folder": lambda at: fused().report("no/a.html"),
    **each("evaluate networks, ", {
        "no labels": (ROWS,), "labels of another length": (ROWS, [1, 2]), "labels that are fractions": (ROWS,
        CLASSES + 0.5),
        "labels that are words": (ROWS, ["a"] * 12), "labels beyond the classes": (ROWS, CLASSES + 7),
        "inputs of another width": (np.ones((12, 7)), CLASSES), "inputs with NaN": (ROWS * np.nan, CLASSES),
        "inputs that are words": (np.array(["a"] * 12), CLASSES), "inputs not there": ("nowhere.npz",),
        "inputs of a strange name": ("data.txt",), "labels not there": (ROWS, "nowhere"),
        "a posterior": (ROWS, CLASSES, (mlp(), normal())), "other classes": (ROWS, CLASSES, (mlp(), mlp(1, classes=4))),
        "no module": (ROWS, CLASSES, (cs.Network(mlp().state_dict(), symmetry()), mlp())),
    }, lambda given: compared(*given)),
    "evaluate networks, a module that is none": lambda at: cs.evaluate(*network_files(), ROWS, CLASSES, module=5),
    "evaluate networks, a module of another architecture": lambda at: cs.evaluate(
        *network_files(), ROWS, CLASSES, module=deeper()),
    "evaluate networks, a sequence of answers": lambda at: compared(
        np.zeros((4, 5, 3), np.float32), np.zeros(4, int), (made(Recurrent), made(Recurrent, 1))),
}  # fmt: skip

ASKED = {
    "fuse networks, rng": lambda at: cs.fuse(mlps(), **known(rng=-1)),
    "fuse networks, an engine": lambda at: cs.fuse(mlps(), **known(engine="local")),
    "fuse networks, widths of a recurrent layer that differ": lambda at: cs.fuse(
        [recurrent(), recurrent(1)], method="gwb", symmetry=recurrent_symmetry(), example=SEQUENCE,
        target_widths={"rnn": 0}),
    "fuse networks, a wrong symmetry with an example": lambda at: cs.fuse(
        mlps(), symmetry=cs.symmetry(normalised(), X), example=X),
}  # fmt: skip

CASES = (
    MODELS | option_cases(NETWORK_OPTIONS, "networks", lambda **asked: cs.fuse(mlps(), **known(**asked)))
    | SYMMETRIES | INFORMATION | LANDSCAPES | ASKED
)  # fmt: skip
