"""Merges of fine-tunes of one start: how far they go, and whether they are better than the start.

``python experiments/merging/fine_tunes.py`` trains what is missing into ``CONSILIENCE_CACHE``; ``--write`` writes
``fine_tunes.json`` beside this file. A start is trained briefly on all tasks together; every model goes on from it on
one task, for a short time with small steps (near) or a longer one with large steps (far). Every method of changes is
merged at several scales. The score is the mean over tasks, accuracy in percent or minus the loss in nats; of the joint
model, which goes on on all tasks, it is what there is to gain. Rules that warn of merges were set on other fine-tunes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

sys.path.append(str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[1] / "transformers"))
from networks import CACHE, LENGTH, images, losses, make, texts
from record import as_text, versions

import consilience as cs

HERE = Path(__file__).parent
FOLDER = CACHE.parent / "merging"
STEPS = {"near": (60, 1e-4), "far": (300, 1e-3)}
"""Steps of a fine-tune and their size."""
MERGES: dict[str, tuple[str, dict[str, Any]]] = {
    "model_stock": ("model_stock", {}),
    "multislerp": ("multislerp", {}),
    **{f"task_arithmetic {s:g}": ("task_arithmetic", {"scaling": s}) for s in (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)},
    **{f"ties {s:g}": ("ties", {"scaling": s}) for s in (0.3, 0.5, 0.7, 1.0, 1.5)},
    "ties, all": ("ties", {"density": 1.0}),
    **{f"dare {s:g}": ("dare", {"scaling": s}) for s in (0.5, 1.0)},
    **{f"dare ties {s:g}": ("dare", {"combine": "ties", "scaling": s}) for s in (0.3, 1.0)},
    **{f"breadcrumbs {s:g}": ("breadcrumbs", {"scaling": s}) for s in (0.3, 1.0)},
    **{f"della {s:g}": ("della", {"scaling": s}) for s in (0.3, 1.0)},
    **{f"sce {s:g}": ("sce", {"scaling": s}) for s in (0.5, 1.0)},
    **{f"tsv_m {s:g}": ("tsv_m", {"scaling": s}) for s in (0.3, 0.5, 1.0)},
    **{f"iso {s:g}": ("iso", {"scaling": s}) for s in (0.3, 0.5, 1.0)},
    **{f"knots {s:g}": ("knots", {"scaling": s}) for s in (0.5, 1.0)},
    **{f"wudi {s:g}": ("wudi", {"scaling": s}) for s in (0.5, 1.0)},
    **{f"ram {s:g}": ("ram", {"scaling": s}) for s in (0.5, 1.0)},
}
"""What is merged, by the name in tables."""


@dataclass(frozen=True)
class Setting:
    """One start and its fine-tunes."""

    kind: str  # "vit" or "gpt"
    n_tasks: int
    far: str  # "near" or "far"
    seed: int

    @property
    def name(self) -> str:
        """Name of its file."""
        return f"{self.kind}, {self.n_tasks} tasks, {self.far}, seed {self.seed}"


SETTINGS = [
    Setting(kind, n_tasks, far, seed)
    for seed in (21, 22, 23)
    for kind, n_tasks in (("vit", 3), ("vit", 6), ("gpt", 3))
    for far in ("near", "far")
]


@dataclass(frozen=True, eq=False)
class Task:
    """Training rows and test rows of a task."""

    train: tuple[Tensor, Tensor] | Tensor
    test: tuple[Tensor, Tensor] | Tensor


def tasks_of(setting: Setting, rng: np.random.Generator) -> list[Task]:
    """Return the tasks of a setting."""
    if setting.kind == "gpt":
        return [Task(train[rng.permutation(len(train))[:4000]], test[:400]) for train, test in _text_tasks()]
    made = []
    for source, change in _image_tasks()[: setting.n_tasks]:
        x, y, x_test, y_test = images(source)
        rows = torch.as_tensor(rng.permutation(len(x))[:4000])
        made.append(Task((change(x[rows]), y[rows]), (change(x_test[:1000]), y_test[:1000])))
    return made


def _image_tasks() -> list[tuple[str, Any]]:
    return [
        ("mnist", lambda x: x),
        ("fashion_mnist", lambda x: x),
        ("mnist", lambda x: torch.rot90(x, 1, (2, 3))),
        ("fashion_mnist", lambda x: torch.flip(x, (2,))),
        ("mnist", lambda x: -x),
        ("fashion_mnist", lambda x: torch.rot90(x, 1, (2, 3))),
    ]


def _text_tasks() -> list[tuple[Tensor, Tensor]]:
    """Return training and test texts: of two sources, and of one with its words in reverse order."""
    (news, news_test), (groups, groups_test) = texts("ag_news"), texts("newsgroups")
    return [(news, news_test), (groups, groups_test), (news.flip(1), news_test.flip(1))]


def train(net: nn.Module, task: Task, steps: int, rate: float, rng: np.random.Generator) -> None:
    """Train a network on a task, in place."""
    optimizer = torch.optim.AdamW(net.parameters(), rate)
    inputs = task.train if isinstance(task.train, Tensor) else task.train[0]
    net.train()
    for _ in range(steps):
        rows = torch.as_tensor(rng.integers(len(inputs), size=64))
        optimizer.zero_grad()
        if isinstance(task.train, Tensor):
            loss = losses(net, inputs[rows]).mean()
        else:
            loss = functional.cross_entropy(net(inputs[rows]).logits, task.train[1][rows])
        loss.backward()
        optimizer.step()
    net.eval()


def joined(tasks: list[Task]) -> Task:
    """Return all tasks as one."""
    if isinstance(tasks[0].train, Tensor):
        return Task(torch.cat([task.train for task in tasks]), tasks[0].test)
    return Task(tuple(torch.cat([task.train[i] for task in tasks]) for i in (0, 1)), tasks[0].test)


def score(net: nn.Module, tasks: list[Task]) -> float:
    """Return the mean over tasks: accuracy in percent, or minus the loss in nats."""
    found = []
    with torch.no_grad():
        for task in tasks:
            if isinstance(task.test, Tensor):
                found.append(-float(losses(net, task.test).mean()))
            else:
                answers = torch.cat([net(part).logits.argmax(1) for part in task.test[0].split(500)])
                found.append(100 * float((answers == task.test[1]).float().mean()))
    return float(np.mean(found))


def run(setting: Setting) -> dict[str, Any]:
    """Return the scores of all merges of a setting, and how far they went."""
    rng = np.random.default_rng(setting.seed)
    tasks = tasks_of(setting, rng)
    torch.manual_seed(setting.seed)
    net = make("vit mnist" if setting.kind == "vit" else "gpt ag_news")
    train(net, joined(tasks), 250, 1e-3, rng)
    start = {name: values.clone() for name, values in net.state_dict().items()}
    steps, rate = STEPS[setting.far]
    record: dict[str, Any] = {"setting": vars(setting), "start": score(net, tasks), "merges": {}}
    states = []
    for task, times in [*((task, 1) for task in tasks), (joined(tasks), len(tasks))]:
        net.load_state_dict(start)
        train(net, task, steps * times, rate, rng)
        states.append({name: values.clone() for name, values in net.state_dict().items()})
    record["joint"] = score(net, tasks)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, state in enumerate([start, *states[:-1]]):
            save_file({key: one.contiguous() for key, one in state.items()}, folder / f"{number}.safetensors")
        models = [folder / f"{number}.safetensors" for number in range(1, len(states))]
        record["own"] = [_of(net, path, tasks) for path in models]
        for called, (method, options) in MERGES.items():
            out = folder / "out.safetensors"
            done = cs.merge(models, out, method, base=folder / "0.safetensors", overwrite=True, **options)
            changes = done.provenance["details"]["changes"]
            record["merges"][called] = {"score": _of(net, out, tasks), "ratio": changes["ratio"]}
            record["cosine"], record["of base"] = changes["cosine"], changes["of_base"]
    return record


def _of(net: nn.Module, path: Path, tasks: list[Task]) -> float:
    net.load_state_dict(load_file(path))
    return score(net, tasks)


def main() -> None:
    """Run what is missing, or write what is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    FOLDER.mkdir(parents=True, exist_ok=True)
    if options.write:
        rows = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
        (HERE / "fine_tunes.json").write_text(as_text({"versions": versions(), "length": LENGTH, "settings": rows}))
        return
    for setting in SETTINGS:
        path = FOLDER / f"{setting.name}.json"
        if path.exists():
            continue
        began = time.process_time()
        record = run(setting)
        path.write_text(json.dumps(record | {"seconds": time.process_time() - began}))
        sys.stdout.write(f"{setting.name} start {record['start']:.3f} joint {record['joint']:.3f}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
