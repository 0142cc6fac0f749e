"""LoRA adapters: peft's combinations against the mean of products, five tasks by method and rank, and size.

``python experiments/merging/adapters.py`` writes ``adapters.json`` beside this file; needs peft. Adapters of rank 8 are
trained on five image tasks of ``fine_tunes.py``, from a ViT that was trained briefly on all of them. The score is the
mean accuracy over tasks, in percent, of three seeds. The last part merges and reduces synthetic adapters of the shapes
of a Llama of 7 billion parameters.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
from fine_tunes import Setting, joined, make, score, tasks_of, train
from record import as_text, versions
from safetensors.torch import load_file, save_file
from torch import nn

import consilience as cs

HERE = Path(__file__).parent
SEEDS = (31, 32, 33)
RANK, ALPHA = 8, 16
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2")
COMBINATIONS = ("linear", "cat", "svd", "ties", "ties_svd", "dare_linear", "dare_ties", "dare_linear_svd",
                "dare_ties_svd", "magnitude_prune", "magnitude_prune_svd")  # fmt: skip
MERGES: dict[str, tuple[str, dict[str, Any]]] = {
    "average": ("average", {}),
    "average, rank 8": ("average", {"rank": 8}),
    "average, rank 2": ("average", {"rank": 2}),
    "task_arithmetic 0.3": ("task_arithmetic", {"scaling": 0.3}),
    "task_arithmetic 0.5": ("task_arithmetic", {"scaling": 0.5}),
    "task_arithmetic 1": ("task_arithmetic", {}),
    "ties 0.5": ("ties", {"scaling": 0.5}),
    "ties 1": ("ties", {}),
    "ties 1, rank 8": ("ties", {"rank": 8}),
    "knots 1": ("knots", {}),
    "tsv_m 0.5": ("tsv_m", {"scaling": 0.5}),
    "tsv_m 1": ("tsv_m", {}),
    "wudi 1": ("wudi", {}),
}


def lora(base: nn.Module) -> Any:
    """Return a network with an adapter to train."""
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=list(MODULES))
    return peft.get_peft_model(base, config)


def products(folder: Path) -> dict[str, torch.Tensor]:
    """Return s B A by module."""
    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    found = {}
    for name, a in tensors.items():
        if "lora_A" in name:
            rank = len(a)
            module = name.split(".lora_A")[0]
            patterns = (config.get("alpha_pattern") or {}).items()
            alpha = next((value for key, value in patterns if module.endswith(key)), config["lora_alpha"])
            found[module] = alpha / rank * tensors[name.replace("lora_A", "lora_B")].double() @ a.double()
    return found


def network(state: dict[str, torch.Tensor]) -> nn.Module:
    """Return the ViT with some weights."""
    net = make("vit mnist")
    net.load_state_dict(state)
    return net


def with_adapter(state: dict[str, torch.Tensor], folder: Path) -> nn.Module:
    """Return the ViT with an adapter in it."""
    return with_products(state, products(folder))


def with_products(state: dict[str, torch.Tensor], added: dict[str, torch.Tensor]) -> nn.Module:
    """Return the ViT with products in it."""
    net = network(state)
    weights = dict(net.named_parameters())
    with torch.no_grad():
        for module, product in added.items():
            weights[f"{module.removeprefix('base_model.model.')}.weight"] += product.float()
    return net.eval()


def five_tasks(seed: int, folder: Path) -> dict[str, Any]:
    """Return the scores of one seed, and how far peft's combinations are from the mean of products."""
    setting = Setting("vit", 5, "near", seed)
    rng = np.random.default_rng(seed)
    tasks = tasks_of(setting, rng)
    torch.manual_seed(seed)
    net = make("vit mnist")
    train(net, joined(tasks), 250, 1e-3, rng)
    state = {name: values.clone() for name, values in net.state_dict().items()}
    record: dict[str, Any] = {"seed": seed, "base": score(net, tasks)}
    paths, own = [], []
    for number, task in enumerate([*tasks, joined(tasks)]):
        model = lora(network(state))
        train(model, task, 150 if number < len(tasks) else 150 * len(tasks), 2e-3, rng)
        path = folder / f"adapter {number}"
        model.save_pretrained(path)
        own.append(score(with_adapter(state, path), tasks))
        paths.append(path)
    record["own"], record["joint"] = own[:-1], own[-1]
    paths = paths[:-1]
    record["merges"] = {}
    for name, (method, options) in MERGES.items():
        done = cs.merge(paths, folder / "out", method, overwrite=True, **options)
        told = done.provenance["details"]
        record["merges"][name] = {
            "score": score(with_adapter(state, done.output), tasks),
            "error": told["adapters"]["error"],
            "ratio": told["changes"]["ratio"],
        }
    record["peft"] = _combinations(state, paths, folder, tasks)
    return record


def _combinations(state: dict[str, torch.Tensor], paths: list[Path], folder: Path, tasks: Any) -> dict[str, Any]:
    """Return the distance of every combination of peft from the mean of products, and its score."""
    mean: dict[str, torch.Tensor] = {}
    for path in paths:
        for module, product in products(path).items():
            mean[module] = mean.get(module, 0) + product / len(paths)
    size = torch.sqrt(sum(one.square().sum() for one in mean.values()))
    model = peft.PeftModel.from_pretrained(network(state), paths[0], adapter_name="0")
    for number, path in enumerate(paths[1:], 1):
        model.load_adapter(path, adapter_name=str(number))
    found = {}
    for name in COMBINATIONS:
        options = {"density": 0.5} if any(part in name for part in ("ties", "dare", "magnitude")) else {}
        weights = [1 / len(paths)] * len(paths)
        torch.manual_seed(0)
        model.add_weighted_adapter([str(n) for n in range(len(paths))], weights, "merged", name, **options)
        merged = {
            module: one.scaling["merged"] * one.lora_B["merged"].weight.double() @ one.lora_A["merged"].weight.double()
            for module, one in model.named_modules()
            if hasattr(one, "lora_A") and "merged" in one.lora_A
        }
        merged = {module: one.detach() for module, one in merged.items()}
        error = torch.sqrt(sum((merged[module] - one).square().sum() for module, one in mean.items())) / size
        found[name] = {"error": float(error), "score": score(with_products(state, merged), tasks)}
        model.delete_adapter("merged")
    return found


MERGE = """
import re, sys, time
import consilience as cs
start = time.perf_counter()
rank = int(sys.argv[4]) if len(sys.argv) > 4 else None
done = cs.merge(sys.argv[1:3], sys.argv[3], rank=rank, overwrite=True)
peak = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
print(time.perf_counter() - start, peak / 2**20)
"""
"""Prints seconds of a merge, and the peak of the process's memory in GiB."""


def of_size(folder: Path) -> dict[str, Any]:
    """Return seconds and memory of merges of adapters of the shapes of a Llama of 7 billion parameters."""
    shapes = {"self_attn.q_proj": (4096, 4096), "self_attn.k_proj": (4096, 4096), "self_attn.v_proj": (4096, 4096),
              "self_attn.o_proj": (4096, 4096), "mlp.gate_proj": (11008, 4096), "mlp.up_proj": (11008, 4096),
              "mlp.down_proj": (4096, 11008)}  # fmt: skip
    draw = torch.Generator().manual_seed(0)
    for name in ("one", "two"):
        tensors = {}
        for layer in range(32):
            for module, (outputs, inputs) in shapes.items():
                stem = f"base_model.model.model.layers.{layer}.{module}"
                tensors[f"{stem}.lora_A.weight"] = (0.01 * torch.randn(16, inputs, generator=draw)).bfloat16()
                tensors[f"{stem}.lora_B.weight"] = (0.01 * torch.randn(outputs, 16, generator=draw)).bfloat16()
        (folder / name).mkdir()
        save_file(tensors, folder / name / "adapter_model.safetensors")
        modules = [one.split(".")[1] for one in shapes]
        config = {"peft_type": "LORA", "r": 16, "lora_alpha": 32, "target_modules": modules}
        (folder / name / "adapter_config.json").write_text(json.dumps(config))
    found = {}
    for name, rank in (("stacked", []), ("rank 16", ["16"])):
        arguments = [str(folder / "one"), str(folder / "two"), str(folder / "out"), *rank]
        command = [sys.executable, "-c", MERGE, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603  (our own)
        seconds, memory = map(float, done.stdout.split())
        found[name] = {"seconds": seconds, "gib": memory}
    return found


def main() -> None:
    """Run everything and write the results."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    began = time.process_time()
    rows = []
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as name:
            rows.append(five_tasks(seed, Path(name)))
        sys.stdout.write(f"seed {seed}: base {rows[-1]['base']:.1f} joint {rows[-1]['joint']:.1f}\n")
        sys.stdout.flush()
    with tempfile.TemporaryDirectory() as name:
        size = of_size(Path(name))
    record = {"versions": versions() | {"peft": peft.__version__}, "seeds": rows, "size": size,
              "seconds": time.process_time() - began}  # fmt: skip
    (HERE / "adapters.json").write_text(as_text(record))


if __name__ == "__main__":
    main()
