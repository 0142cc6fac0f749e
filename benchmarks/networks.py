"""Speed, memory and scaling of network fusion: ``python benchmarks/networks.py [part ...]`` (some minutes for all).

Writes ``networks.json`` beside this file; a part that is not named keeps its numbers. What is compared ran in one
process on one thread, round by round. Networks are copies of one another with units renumbered and as much noise as
weights, so that matching is neither trivial nor hopeless.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import direct_networks
import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits
from timing import interleaved, medians, seconds, versions, write_parts, yardstick
from torch import nn

import consilience as cs
from consilience.networks.tracing.proof import prove
from consilience.networks.tracing.trace import trace

RESULTS = Path(__file__).with_suffix(".json")
SEEDS, REPEATS = range(3), 5
TRANSPORT_REPEATS = 15
"""Of fusions of some milliseconds, whose processor time is taken, since they run beside other work."""
NOISE = 1.0
"""Standard deviation of the noise, as a share of that of the weights."""


def mlp(widths: tuple[int, ...], bias: bool) -> nn.Sequential:
    """Return a perceptron of linear layers and ReLU."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def pair(widths: tuple[int, ...], bias: bool, seed: int, count: int = 2) -> tuple[list[nn.Sequential], cs.Symmetry]:
    """Return noisy copies of a perceptron with units renumbered, and their symmetry."""
    torch.manual_seed(seed)
    base = mlp(widths, bias)
    symmetry = cs.symmetry(base, torch.zeros(2, widths[0]))
    rng = np.random.default_rng(seed)
    models = []
    for _ in range(count):
        model = cs.permute(base, symmetry, {name: rng.permutation(size) for name, size in symmetry.groups.items()})
        with torch.no_grad():
            for values in model.parameters():
                values += NOISE * values.std() * torch.randn_like(values)
        models.append(model)
    return models, symmetry


def arrays_of(model: nn.Sequential) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return weights and biases of a perceptron."""
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    biases = [np.zeros(len(one.weight)) if one.bias is None else one.bias.detach().numpy() for one in layers]
    return [one.weight.detach().numpy() for one in layers], biases


def transport_runs(models: list[nn.Sequential], symmetry: Any) -> dict[str, Callable[[], Any]]:
    """Return the direct OT fusion of two perceptrons, and ours without tracing."""
    (one, _), (two, _) = (arrays_of(model) for model in models)
    return {
        "direct": lambda: direct_networks.ot_fusion(one, two),
        "ot": lambda: cs.fuse(models, "ot", symmetry=symmetry, reference=0).network,
    }


def run_transport() -> dict[str, Any]:
    """Compare OT and WB fusion of an MLPNet pair, without tracing, with the direct implementation."""
    results = []
    for seed in SEEDS:
        models, symmetry = pair((784, 400, 200, 100, 10), False, seed)
        runs = transport_runs(models, symmetry)
        runs["wb"] = lambda m=models, s=symmetry: cs.fuse(m, "wb", symmetry=s, reference=0).network
        times = medians(interleaved(runs, TRANSPORT_REPEATS, {}, time.process_time))
        same = [
            float(np.abs(mine.numpy() - theirs).max())
            for mine, theirs in zip(runs["ot"]().arrays.values(), runs["direct"](), strict=True)
        ]
        iterations = cs.fuse(models, "wb", symmetry=symmetry, reference=0).details["groups"]
        results.append({"seed": seed, "medians": times, "largest_difference": max(same), "wb": iterations})
    return {"results": results, "wide": _wide_transport()}


def _wide_transport() -> dict[str, float]:
    """Return median seconds of OT fusion of three layers of 1024, where products and assignments take the time."""
    models, symmetry = pair((784, 1024, 1024, 1024, 10), False, 0)
    return medians(interleaved(transport_runs(models, symmetry), REPEATS, {}, time.process_time))


def run_tiny_transport() -> dict[str, Any]:
    """Compare OT fusion of perceptrons of four to six units, where numbers cost nothing, with the direct one."""
    results = []
    for seed in SEEDS:
        runs = transport_runs(*pair((4, 6, 5, 6, 4), False, seed))
        times = medians(interleaved(runs, TRANSPORT_REPEATS, dict.fromkeys(runs, 20), time.process_time))
        results.append({"seed": seed, "medians": times})
    return {"results": results, "versions": versions(), "yardstick": yardstick()}


SKEWED_SITES, SKEW = 5, 0.1
IMAGE_WIDTHS, IMAGE_ROWS, IMAGE_SKEW = (784, 100, 50, 10), 10_000, 0.05


def run_skewed() -> dict[str, Any]:
    """Compare the seconds of matching perceptrons of sites with skewed classes with those of sites of all classes.

    Five sites share scikit-learn's digits, by a Dirichlet distribution with parameter 0.1 or at random; every site
    starts from weights of its own.
    """
    return _skewed(lambda seed, skew: digits_sites(seed, skew), SKEW, 64)


def run_skewed_images() -> dict[str, Any]:
    """Compare the same for perceptrons of 10,000 images of Fashion-MNIST (28 x 28) and a parameter of 0.05.

    Needs ``fashion_mnist.npz`` in the folder ``CONSILIENCE_DATA`` (default ``../shared/data`` beside the repository).
    """
    folder = Path(os.environ.get("CONSILIENCE_DATA", Path(__file__).parents[2] / "shared/data"))
    with np.load(folder / "fashion_mnist.npz") as stored:
        x = stored["x_train"][:IMAGE_ROWS].reshape(IMAGE_ROWS, -1).astype(np.float32) / 255
        y = stored["y_train"][:IMAGE_ROWS].astype(np.int64)

    def sites(seed: int, skew: float | None) -> list[nn.Sequential]:
        return trained_sites(torch.tensor(x), torch.tensor(y), IMAGE_WIDTHS, 4, seed, skew)

    return _skewed(sites, IMAGE_SKEW, IMAGE_WIDTHS[0])


def _skewed(sites_of: Callable[[int, float | None], list[nn.Sequential]], skew: float, n_inputs: int) -> dict[str, Any]:
    """Return seconds and passes of matching sites' networks with and without skew, three seeds."""
    results = []
    for seed in SEEDS:
        models = {"iid": sites_of(seed, None), "skewed": sites_of(seed, skew)}
        symmetry = cs.symmetry(models["iid"][0], torch.zeros(2, n_inputs))
        for method, told in (("rebasin", {"restarts": 1}), ("consensus", {"refit": False}), ("ot", {})):
            runs = {
                name: (lambda m=sites, s=symmetry, n=method, o=told: cs.fuse(m, n, symmetry=s, rng=0, **o))
                for name, sites in models.items()
            }
            times = medians(interleaved(runs, REPEATS, {}))
            fusions = {name: run() for name, run in runs.items()}
            passes = {name: max(1, len(fusion.history) - 1) for name, fusion in fusions.items()}
            results.append({"seed": seed, "method": method, "medians": times, "passes": passes})
    return {"results": results}


def digits_sites(seed: int, skew: float | None) -> list[nn.Sequential]:
    """Return a perceptron for each site, trained on its share of the digits."""
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16.0, dtype=torch.float32), torch.tensor(digits.target)
    return trained_sites(x, y, (64, 100, 50, 10), 12, seed, skew)


def trained_sites(
    x: torch.Tensor, y: torch.Tensor, widths: tuple[int, ...], epochs: int, seed: int, skew: float | None
) -> list[nn.Sequential]:
    """Return a perceptron for each site, trained on its share of the rows: a Dirichlet share of each class, or any."""
    rng = np.random.default_rng(seed)
    site_of_row = rng.integers(SKEWED_SITES, size=len(y))
    if skew is not None:
        for label in range(10):
            of_class = np.flatnonzero(y.numpy() == label)
            shares = rng.dirichlet([skew] * SKEWED_SITES)
            site_of_row[of_class] = rng.choice(SKEWED_SITES, size=len(of_class), p=shares)
    networks = []
    for site in range(SKEWED_SITES):
        torch.manual_seed(1000 * seed + site)
        network = mlp(widths, True)
        optimiser = torch.optim.Adam(network.parameters(), 3e-3)
        rows = torch.tensor(np.flatnonzero(site_of_row == site))
        for _ in range(epochs):
            for batch in rows[torch.randperm(len(rows))].split(32):
                loss = nn.functional.cross_entropy(network(x[batch]), y[batch])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        networks.append(network.eval())
    return networks


def run_matching() -> dict[str, Any]:
    """Compare weight matching with the direct implementation, and a wide one with its bare products and assignments."""
    results = []
    for seed in SEEDS:
        models, symmetry = pair((784, 512, 512, 512, 10), True, seed)
        (one, first), (two, second) = (arrays_of(model) for model in models)
        biases = (first, second)
        runs = {
            "direct": lambda one=one, two=two, b=biases, seed=seed: direct_networks.weight_matching(
                one, two, b, np.random.default_rng(seed)
            ),
            "rebasin": lambda m=models, s=symmetry, seed=seed: cs.fuse(m, "rebasin", symmetry=s, reference=0, rng=seed),
        }
        times = medians(interleaved(runs, REPEATS, {}))
        results.append(
            {
                "seed": seed,
                "medians": times,
                "direct": runs["direct"]()[1],
                "rebasin": 4.0 * runs["rebasin"]().objective,  # E has a factor a (1 - a) for each pair
            }
        )
    return {"results": results, "wide": _wide()}


def _wide() -> dict[str, Any]:
    """Return seconds of matching three layers of 2048, and of the products and assignments alone."""
    models, symmetry = pair((784, 2048, 2048, 2048, 10), True, 0)
    visits: list[np.ndarray] = []
    import consilience.networks.methods.weight_matching.state as slots

    assign = slots.assign_block

    def counted(costs: np.ndarray) -> np.ndarray:
        visits.append(costs)
        return assign(costs)

    slots.assign_block = counted
    try:
        whole, _ = seconds(lambda: cs.fuse(models, "rebasin", restarts=1, symmetry=symmetry, reference=0))
    finally:
        slots.assign_block = assign
    solving = sum(seconds(lambda c=costs: linear_sum_assignment(c))[0] for costs in visits)
    left, right = torch.randn(2048, 784 + 2048), torch.randn(784 + 2048, 2048)
    hidden = torch.randn(2048, 2 * 2048), torch.randn(2 * 2048, 2048)
    product = (seconds(lambda: left @ right)[0] + 2 * seconds(lambda: hidden[0] @ hidden[1])[0]) / 3
    return {"visits": len(visits), "seconds": whole, "assignments": solving, "products": product * len(visits)}


def run_models() -> dict[str, Any]:
    """Return seconds of fusing more and more MLPNets into the width of one."""
    found = {}
    for count in (2, 4, 8, 16, 32):
        models, symmetry = pair((784, 400, 200, 100, 10), False, 0, count)
        runs = {
            name: (lambda m=models, s=symmetry, n=name, o=told: cs.fuse(m, n, symmetry=s, **o))
            for name, told in (
                ("ot", {}),
                ("wb", {"max_iterations": 5}),
                ("rebasin", {"restarts": 1, "max_iterations": 3}),
            )
        }
        found[str(count)] = medians(interleaved(runs, 3, {}))
    return {"results": found}


def run_tracing() -> dict[str, Any]:
    """Return seconds of tracing and proving ResNet18, in a process that has imported everything."""
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    from tests.networks.zoo import ResNet

    network, example = ResNet((64, 128, 256, 512), 2), torch.randn(2, 3, 32, 32)
    trace(nn.Sequential(nn.Linear(2, 2)), torch.zeros(1, 2))
    tracing, found = seconds(lambda: trace(network, example))
    proving, _ = seconds(lambda: prove(network, found, example))
    parameters = sum(values.numel() for values in network.parameters())
    return {"parameters": parameters, "trace": tracing, "prove": proving, "groups": len(found.groups)}


MEMORY = """
import sys, torch
sys.path.append({root!r})
from tests.networks.zoo import ResNet
import consilience as cs
from consilience.networks.tracing import trace
models = [ResNet((64, 128, 256, 512), 2) for _ in range({count})]
symmetry = cs.Symmetry(**{{k: getattr(trace(models[0], torch.randn(2, 3, 32, 32)), k) for k in
    ("layouts", "all_groups", "aliases", "notes")}})
import gc, pathlib, warnings
warnings.simplefilter("ignore")
def peak():
    line = next(one for one in pathlib.Path("/proc/self/status").read_text().splitlines() if one.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
gc.collect()
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
before = peak()
fusion = cs.fuse(models, {method!r}, symmetry=symmetry, **{told!r})
print(before, peak(), sum(v.numel() * v.element_size() for m in models for v in m.state_dict().values()))
"""


def run_memory() -> dict[str, Any]:
    """Return how far the peak of memory rises in fusing two and four ResNet18s, as a multiple of the models.

    Linux only: the kernel tells the peak.
    """
    found = {}
    root = str(Path(__file__).resolve().parents[1])
    for count in (2, 4):
        for method, told in (
            ("ot", {}),
            ("wb", {}),
            ("rebasin", {"restarts": 1, "max_iterations": 1}),
            ("average", {}),
        ):
            script = MEMORY.format(root=root, count=count, method=method, told=told)
            line = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout  # noqa: S603
            before, after, size = map(int, line.split())
            found[f"{method}, {count}"] = {"rise_over_models": (after - before) / size, "models": size}
    return {"results": found}


REFIT = """
import gc, json, pathlib, sys, time, warnings, torch
sys.path.append({root!r})
torch.set_num_threads(1)
warnings.simplefilter("ignore")
from tests.networks.zoo import ResNet
import consilience as cs
from consilience.networks.choice.inputs import SHIFTED_COPIES, shifted_copies
from consilience.networks.repair import refit
from consilience.networks.synthetic.matched_images import matched_images
import numpy as np
torch.manual_seed(0)
models = [ResNet((16, 32, 64), 1) for _ in range({count})]
images, labels = torch.randn({images}, 3, 16, 16), torch.randint(5, ({images},))
with torch.no_grad():
    for model in models:
        model.train()
        for batch in images[:1280].split(128):
            model(batch)
        model.eval()
fused = cs.fuse(models, "consensus", refit=False, example=images[:2])
aligned, start = fused.aligned_models, fused.model
copies = shifted_copies(torch.randn(192, 3, 16, 16), SHIFTED_COPIES, np.random.default_rng(0))
def epoch():
    model = ResNet((16, 32, 64), 1)
    optimiser = torch.optim.Adam(model.parameters())
    for x, y in zip(images.split(64), labels.split(64)):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
work = {{"epoch": epoch, "images": lambda: matched_images(models, (3, 16, 16)),
         "refit": lambda: refit(start, aligned, None, copies)}}
def peak():
    line = next(one for one in pathlib.Path("/proc/self/status").read_text().splitlines() if one.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
gc.collect()
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
before, started = peak(), time.process_time()
work[{what!r}]()
print(json.dumps([time.process_time() - started, peak() - before]))
"""
REFITTED_MODELS, REPLACED_IMAGES, TIMED_IMAGES = 2, 20_000, 2_000
"""Networks, their sites' images, which a refit without data replaces, and how many of these an epoch is timed on."""


def run_refit() -> dict[str, Any]:
    """Return processor time and rise of memory of matched images and the refit on them, and of one epoch of training.

    Two residual networks of three stages on 16 x 16 images; the epoch is that of one such network on the images of two
    sites. Linux only.
    """
    root = str(Path(__file__).resolve().parents[1])
    found: dict[str, Any] = {}
    for what in ("epoch", "images", "refit"):
        script = REFIT.format(root=root, count=REFITTED_MODELS, images=TIMED_IMAGES, what=what)
        line = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout  # noqa: S603
        taken, rise = json.loads(line)
        found[what] = {"seconds": taken * (REPLACED_IMAGES / TIMED_IMAGES if what == "epoch" else 1), "bytes": rise}
    over_epoch = {
        what: {name: found[what][name] / found["epoch"][name] for name in ("seconds", "bytes")}
        for what in ("images", "refit")
    }
    return {"results": {**found, "over_epoch": over_epoch, "replaced": REPLACED_IMAGES, "models": REFITTED_MODELS}}


PARTS = {
    "transport": run_transport,
    "tiny_transport": run_tiny_transport,
    "matching": run_matching,
    "skewed": run_skewed,
    "skewed_images": run_skewed_images,
    "models": run_models,
    "tracing": run_tracing,
    "memory": run_memory,
    "refit": run_refit,
}


def main(parts: list[str]) -> None:
    """Run the named parts, or all."""
    torch.set_num_threads(1)
    with threadpool_limits(1):
        write_parts(RESULTS, PARTS, parts, {"torch": torch.__version__})


if __name__ == "__main__":
    main(sys.argv[1:])
