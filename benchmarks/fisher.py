"""Speed and memory of Fisher information and merging: ``python benchmarks/fisher.py [part ...]`` (minutes for all).

Writes ``fisher.json`` beside this file; a part that is not named keeps its numbers. What is compared ran in one process
on one thread, round by round.

``information``: the exact diagonal of a ConvNet of 21,840 parameters on 1,000 images, beside a loop that runs the
network once for each image and goes backward once for each class. ``masked``: self-supervised merging of three networks
of 400 parameters, masks fixed, by conjugate gradients and by the 5,000 steps of the published descent, from the same
start. ``low_rank``: three networks of a million parameters with 256 factors each, in a process of its own; *bare* is
what conjugate gradients cannot do without, two products with every site's factors in each iteration. ``gradients``:
squares of per-sample gradients of five kinds of networks, by each of the ways of `GradientMethod` that can do them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from memory import status
from threadpoolctl import threadpool_limits
from timing import interleaved, medians, seconds, write_parts
from torch import nn

import consilience as cs
from consilience.networks.fisher.compute import _observations_at_once
from consilience.networks.fisher.sample_gradients import GradientMethod, PerSampleBackward
from consilience.networks.methods.fisher.masked_objective import MaskedObjective

sys.path.append(str(Path(__file__).resolve().parents[1]))
from experiments.fisher.published import stochastic_descent

RESULTS = Path(__file__).with_suffix(".json")
SEEDS, REPEATS = range(3), 5
IMAGES, CLASSES = 1000, 10
LARGE = {"networks": 3, "inputs": 784, "widths": (1024, 192), "rank": 256}
STEPS, RATE, MOMENTUM = 5000, 0.01, 0.9
MOST = 50
"""Iterations of the low-rank merge, which would go on: each costs the same."""


def convnet() -> nn.Module:
    """Return the ConvNet of 21,840 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, CLASSES),
    ).eval()  # fmt: skip


def loop(network: nn.Module, images: torch.Tensor) -> list[torch.Tensor]:
    """Return the exact diagonal by a forward pass for each image and a backward pass for each of its classes."""
    own = list(network.parameters())
    total = [torch.zeros_like(values) for values in own]
    for image in images:
        logs = network(image[None]).log_softmax(1)[0]
        shares = logs.detach().exp()
        for label in range(CLASSES):
            found = torch.autograd.grad(logs[label], own, retain_graph=True)
            for sums, gradient in zip(total, found, strict=True):
                sums.addcmul_(gradient, gradient, value=float(shares[label]))
    return total


def run_information() -> dict[str, Any]:
    """Compare the exact diagonal with a loop of backward passes."""
    results = []
    for seed in SEEDS:
        torch.manual_seed(seed)
        network, images = convnet(), torch.randn(IMAGES, 1, 28, 28)
        named = cs.fisher(network, images).residual
        worst = max(
            float((found - expected).abs().max() / expected.max())
            for found, expected in zip(named.values(), loop(network, images), strict=True)
        )
        middle = medians(
            interleaved(
                {
                    "library": lambda n=network, x=images: cs.fisher(n, x),  # type: ignore[misc]
                    "one outcome drawn": lambda n=network, x=images: cs.fisher(n, x, n_draws=1),  # type: ignore[misc]
                    "loop": lambda n=network, x=images: loop(n, x),  # type: ignore[misc]
                },
                3,
                {},
            )
        )
        ratio = middle["loop"] / middle["library"]
        results.append({"seed": seed, "seconds": middle, "times_as_fast": ratio, "largest_difference": worst})
    return {"images": IMAGES, "results": results}


def small(seed: int) -> tuple[list[nn.Module], list[cs.results.FisherInformation]]:
    """Return three networks of 400 parameters of one start, and their information on 350 points each."""
    torch.manual_seed(seed)
    start = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 5, bias=False))
    x, networks = torch.randn(350, 2), []
    y = (2.5 + 2.5 * torch.atan2(x[:, 0], x[:, 1]) / torch.pi).long().clamp(0, 4)
    for number in range(3):
        network = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 5, bias=False))
        network.load_state_dict(start.state_dict())
        optimiser = torch.optim.SGD(network.parameters(), lr=0.01 * (number + 1) / 2, weight_decay=0.01)
        for _ in range(100 * (number + 1)):
            for rows in torch.randperm(350).split(100):
                optimiser.zero_grad()
                nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
                optimiser.step()
        networks.append(network.eval())
    return networks, [cs.fisher(one, x, "factors", rank=None, prior_precision=3.5) for one in networks]


def solved(method: cs.methods.SelfSupervisedFisher, networks: Any, known: Any) -> tuple[MaskedObjective, Any]:
    """Return the objective that a fusion solved, and where it started."""
    with mock.patch.object(type(method), "_solve", autospec=True, side_effect=type(method)._solve) as call:
        cs.fuse(networks, method, fishers=known)
    return call.call_args.args[1], call.call_args.args[2]


def run_masked() -> dict[str, Any]:
    """Compare conjugate gradients for fixed masks with 5,000 steps of descent."""
    results = []
    for seed in SEEDS:
        networks, known = small(seed)
        for shrinkage in (0.0, 0.9):
            method = cs.methods.SelfSupervisedFisher(shrinkage=shrinkage, mask_rate=0.2)
            objective, start = solved(method, networks, known)

            def exact(objective: MaskedObjective = objective, start: Any = start, method: Any = method) -> Any:
                fresh = MaskedObjective(objective.sites, objective.masks, objective.excess)  # nothing factorised yet
                return method._solve(fresh, start, lambda *_: None, {})

            def published(objective: MaskedObjective = objective, start: Any = start) -> Any:
                fresh = MaskedObjective(objective.sites, objective.masks, objective.excess)
                return stochastic_descent(lambda: fresh, start, RATE, MOMENTUM, STEPS, 0.0, lambda *_: None)

            taken, (theta, _, _) = seconds(published)
            reached = objective.value(theta)
            found = exact()
            iterations = int(np.argmax(found.history <= reached)) + 1
            early = replace(method, max_iterations=iterations)
            middle = medians(interleaved({"to 1e-8": exact, "as low": lambda m=early: exact(method=m)}, REPEATS, {}))
            results.append(
                {
                    "seed": seed,
                    "shrinkage": shrinkage,
                    "seconds": {**middle, "descent": taken},
                    "times_as_fast": {name: taken / value for name, value in middle.items()},
                    "objective": {
                        "to 1e-8": found.objective,
                        "as low": exact(method=early).objective,
                        "descent": reached,
                    },
                    "iterations": {"to 1e-8": len(found.history), "as low": iterations},
                }
            )
    return {"steps": STEPS, "rate": RATE, "momentum": MOMENTUM, "repeats": REPEATS, "results": results}


def large() -> tuple[list[nn.Module], list[cs.results.FisherInformation]]:
    """Return three networks of a million parameters and factors of random sites, of what such sites look like."""
    torch.manual_seed(0)
    first, second = LARGE["widths"]
    sizes = [(LARGE["inputs"], first), (first, second), (second, CLASSES)]
    networks, known = [], []
    start = nn.Sequential(*(nn.Linear(*size) for size in sizes))
    for _ in range(LARGE["networks"]):
        network = nn.Sequential(*(nn.Linear(*size) for size in sizes))
        network.load_state_dict(start.state_dict())
        factors, residual = {}, {}
        lengths = torch.logspace(1.5, -1.0, LARGE["rank"])
        for name, values in network.named_parameters():
            values.data += 0.01 * torch.randn_like(values)
            made = torch.randn(LARGE["rank"], *values.shape)
            made *= lengths.reshape(-1, *[1] * values.ndim)
            factors[name], residual[name] = made, 0.01 * torch.rand_like(values.data)
        networks.append(network)
        known.append(cs.results.FisherInformation(residual, factors, 1e4, 1.0, "categorical"))
    return networks, known


def merge_large(shrinkage: float) -> dict[str, Any]:
    """Return seconds, the peak of the process's memory, and the same for bare products."""
    networks, known = large()
    options = {"shrinkage": shrinkage, "max_iterations": MOST}
    taken, found = seconds(lambda: cs.fuse(networks, "fisher", fishers=known, **options))
    peak = status("VmHWM")
    blocks = [[values.reshape(LARGE["rank"], -1) for values in one.factors.values()] for one in known]
    vectors = [torch.randn(block.shape[1]) for block in blocks[0]]
    iterations = len(found.history)

    def bare() -> None:
        for _ in range(iterations):
            for own in blocks:
                along = sum(block @ vector for block, vector in zip(own, vectors, strict=True))
                for block in own:
                    along @ block

    products = seconds(bare)[0]
    return {
        "parameters": sum(len(vector) for vector in vectors),
        "shrinkage": shrinkage,
        "iterations": iterations,
        "seconds": {"merge": taken, "bare": products},
        "ratio": taken / products,
        "peak_gib": peak / 2**30,
    }


def run_low_rank() -> dict[str, Any]:
    """Merge large networks, each setting in a process of its own."""
    results = []
    for shrinkage in (0.0, 0.9):
        for _ in range(3):
            command = [sys.executable, __file__, "--large", str(shrinkage)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
            results.append(json.loads(done.stdout))
    return {**LARGE, "results": results}


class Encoder(nn.Module):
    """An embedding and a layer of attention, written with linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.first_norm, self.second_norm = nn.Embedding(500, 32), nn.LayerNorm(32), nn.LayerNorm(32)
        self.projections, self.mixed = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down, self.out = nn.Linear(32, 128), nn.Linear(128, 32), nn.Linear(32, CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return logits (n, classes) of sequences of words (n, positions)."""
        states = self.embedding(words)
        query, key, value = self.projections(self.first_norm(states)).chunk(3, dim=-1)
        shares = (query @ key.transpose(1, 2) / 32**0.5).softmax(dim=-1)
        states = states + self.mixed(shares @ value)
        states = states + self.down(self.up(self.second_norm(states)).relu())
        return self.out(states.mean(dim=1))


class Recurrent(nn.Module):
    """An LSTM and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTM(16, 32, batch_first=True), nn.Linear(32, CLASSES)

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        """Return logits (n, classes) of sequences (n, steps, 16)."""
        return self.out(self.cell(sequences)[0][:, -1])


class OwnWeights(nn.Module):
    """A perceptron whose first layer is written by hand, so that no layer of a known kind owns its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(0.05 * torch.randn(784, 64)), nn.Parameter(torch.zeros(64))
        self.out = nn.Linear(64, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (n, classes) of images (n, 784)."""
        return self.out((images @ self.weight + self.bias).relu())


def gradient_networks() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """Return networks of ten classes by name, each with 256 inputs."""
    n = 256
    perceptron = nn.Sequential(
        nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, CLASSES)
    )  # fmt: skip
    normalised = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, groups=4), nn.GroupNorm(4, 32), nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, CLASSES),
    )  # fmt: skip
    return {
        "perceptron": (perceptron, torch.randn(n, 784)),
        "ConvNet": (convnet(), torch.randn(n, 1, 28, 28)),
        "ConvNet with normalisation": (normalised, torch.randn(n, 3, 32, 32)),
        "attention": (Encoder(), torch.randint(500, (n, 24))),
        "LSTM": (Recurrent(), torch.randn(n, 12, 16)),
        "weights of its own": (OwnWeights(), torch.randn(n, 784)),
    }


def squared_gradients(backward: PerSampleBackward, inputs: torch.Tensor, method: GradientMethod) -> list[torch.Tensor]:
    """Return the sum over observations and classes of the squared gradients of logits, by parameter."""
    n_parameters = sum(values.numel() for values in backward.parameters.values())
    total = [torch.zeros_like(values) for values in backward.parameters.values()]
    for rows in inputs.split(_observations_at_once(backward, inputs, method, n_parameters, factors=False)):
        outputs, pullback = backward.forward(rows, method)
        for label in range(CLASSES):
            column = torch.zeros_like(outputs)
            column[:, label] = 1.0
            gradients = pullback(column)
            for sums, name in zip(total, backward.parameters, strict=True):
                sums += gradients.squares(name)
    return total


def run_gradients() -> dict[str, Any]:
    """Compare the ways to take per-sample gradients on the same networks."""
    results = []
    for seed in SEEDS:
        torch.manual_seed(seed)
        for name, (network, inputs) in gradient_networks().items():
            backward = PerSampleBackward(network.eval(), dict(network.named_parameters()))
            chosen = backward.choose_method(inputs)
            expected = squared_gradients(backward, inputs, GradientMethod.ONE_BY_ONE)
            ways = {}
            for method in GradientMethod:
                try:
                    found = squared_gradients(backward, inputs, method)
                except (KeyError, RuntimeError):  # no closed form of a parameter; no rule of torch.func
                    continue
                ways[method.name] = lambda m=method, b=backward, x=inputs: squared_gradients(b, x, m)
                for one, other in zip(found, expected, strict=True):
                    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * float(other.max()))
            results.append(
                {
                    "seed": seed,
                    "network": name,
                    "parameters": sum(values.numel() for values in network.parameters()),
                    "chosen": chosen.name,
                    "seconds": medians(interleaved(ways, REPEATS, {})),
                }
            )
    return {"observations": 256, "classes": CLASSES, "repeats": REPEATS, "results": results}


PARTS = {"gradients": run_gradients, "information": run_information, "masked": run_masked, "low_rank": run_low_rank}


def main(parts: list[str]) -> None:
    """Run the named parts, or all."""
    torch.set_num_threads(1)
    with threadpool_limits(1):
        if parts[:1] == ["--large"]:
            sys.stdout.write(json.dumps(merge_large(float(parts[1]))) + "\n")
        else:
            write_parts(RESULTS, PARTS, parts, {"torch": torch.__version__})


if __name__ == "__main__":
    main(sys.argv[1:])
