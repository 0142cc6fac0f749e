"""Recipes with the settings of mergekit's examples, merged by mergekit 0.1.5 and here, on a Llama of forty layers.

``python experiments/merging/mergekit_examples.py --mergekit MERGEKIT_YAML`` writes ``mergekit_examples.json`` beside
this file. In float32 the two must agree to rounding, but where thresholds and signs are chosen otherwise; in the type
of the example the share of entries is told that are the exact value rounded once.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

import consilience as cs
from consilience.checkpoints.recipe import read_merge_recipe

sys.path.append(str(Path(__file__).resolve().parents[1]))
from record import as_text, versions

HERE = Path(__file__).parent
LAYERS = 40
GRADIENT = {
    "t": [
        {"filter": "self_attn", "value": [0, 0.5, 0.3, 0.7, 1]},
        {"filter": "mlp", "value": [1, 0.5, 0.7, 0.3, 0]},
        {"value": 0.5},
    ]
}


def model(name: str, **parameters: Any) -> dict[str, Any]:
    """Return an entry of a recipe."""
    return {"model": f"./{name}", **({"parameters": parameters} if parameters else {})}


def part(name: str, first: int, stop: int) -> dict[str, Any]:
    """Return layers of a model in a slice."""
    return {"model": f"./{name}", "layer_range": [first, stop]}


EXAMPLES: dict[str, dict[str, Any]] = {
    "linear": {
        "models": [model("a", weight=1.0), model("b", weight=0.3), model("c", weight=0.5)],
        "merge_method": "linear", "dtype": "float16",
    },
    "gradient-slerp": {
        "slices": [{"sources": [part("a", 0, LAYERS), part("b", 0, LAYERS)]}], "merge_method": "slerp",
        "base_model": "./a", "parameters": GRADIENT, "dtype": "float16",
    },
    "ties": {
        "models": [
            model("a", density=[1, 0.7, 0.1], weight=1.0),
            model("b", density=0.5, weight=[0, 0.3, 0.7, 1]),
            model("c", density=0.33, weight=[{"filter": "mlp", "value": 0.5}, {"value": 0}]),
        ],
        "merge_method": "ties", "base_model": "./base", "parameters": {"normalize": True, "int8_mask": True},
        "dtype": "float16",
    },
    "bio-merge": {
        "models": [model("a", density=0.5, weight=0.5), model("b", density=0.5, weight=0.5)],
        "merge_method": "ties", "base_model": "./base", "parameters": {"normalize": False, "int8_mask": True},
        "dtype": "float16",
    },
    "orcamini-platy-44layer": {
        "slices": [{"sources": [part("a", 0, 24)]}, {"sources": [part("b", 20, 40)]}],
        "merge_method": "passthrough", "dtype": "float16",
    },
    "arcee_fusion": {
        "models": [model("a"), model("b")], "merge_method": "arcee_fusion", "base_model": "./a", "dtype": "bfloat16",
    },
    "mega, second": {
        "models": [
            model("a", density=[1, 0.7, 0.1], weight=1.0),
            model("b", density=0.33, weight=[{"filter": "mlp", "value": 0.5}, {"value": 0}]),
        ],
        "merge_method": "ties", "base_model": "./base", "parameters": {"normalize": True, "int8_mask": True},
        "dtype": "float16",
    },
}  # fmt: skip
"""By mergekit's names; models are called a, b, c and base."""


def write_models(folder: Path) -> None:
    """Write a base and three fine-tunes of it."""
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=LAYERS,
                         num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False)  # fmt: skip
    net = LlamaForCausalLM(config)
    start = {name: values.clone() for name, values in net.state_dict().items()}
    for name in ("base", "a", "b", "c"):
        state = {
            key: v if name == "base" else v + 0.1 * v.std().nan_to_num(0.1).clamp(min=0.01) * torch.randn_like(v)
            for key, v in start.items()
        }
        net.load_state_dict(state)
        net.save_pretrained(folder / name)


def by_mergekit(command: str, folder: Path, recipe: dict[str, Any], out: Path) -> dict[str, torch.Tensor]:
    """Return mergekit's merge."""
    (folder / "theirs.yml").write_text(yaml.safe_dump(recipe))
    done = subprocess.run(  # noqa: S603  (given on the command line)
        [command, str(folder / "theirs.yml"), str(out)], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return {name: values for path in out.glob("*.safetensors") for name, values in load_file(path).items()}


def ours(folder: Path, recipe: dict[str, Any], out: Path) -> dict[str, torch.Tensor]:
    """Return our merge."""
    (folder / "ours.yml").write_text(yaml.safe_dump(recipe))
    read = read_merge_recipe(folder / "ours.yml")
    cs.merge(read.models, out, read.method, base=read.base, weights=read.weights, dtype=read.dtype,
             patterns=read.tensors, slices=read.slices, overwrite=True, **read.options)  # fmt: skip
    return {name: values for path in out.glob("*.safetensors") for name, values in load_file(path).items()}


def main() -> None:
    """Merge all examples both ways."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mergekit", required=True)
    options = parser.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_models(folder)
        for example, recipe in EXAMPLES.items():
            single = {**recipe, "dtype": "float32"}
            theirs, mine = (
                by_mergekit(options.mergekit, folder, single, folder / "t"),
                ours(folder, single, folder / "m"),
            )
            if theirs.keys() != mine.keys():
                raise RuntimeError(f"{example}: other tensors")
            size = max(float(one.abs().max()) for one in theirs.values())
            differing = {key: float((theirs[key] - mine[key]).abs().max()) / size for key in theirs}
            counts = sum(int(((theirs[key] - mine[key]).abs() > 1e-6 * size).sum()) for key in theirs)
            short = ours(folder, recipe, folder / "m")
            narrow = by_mergekit(options.mergekit, folder, recipe, folder / "t16")
            entries = sum(one.numel() for one in theirs.values())
            exact = ours(folder, {**recipe, "dtype": "float64"}, folder / "m64")

            def share(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], n: int = entries) -> float:
                return 100 * sum(int((found[key] == wanted[key]).sum()) for key in found) / n

            # torch rounds float64 to float32 on the way to 16 bits, NumPy to float16 at once.
            rounded = {
                key: torch.from_numpy(exact[key].numpy().astype(np.float16))
                if one.dtype == torch.float16
                else exact[key].to(one.dtype)
                for key, one in short.items()
            }
            rows[example] = {
                "largest difference in float32": max(differing.values()),
                "entries that differ by more than rounding, %": 100 * counts / entries,
                "rounded once, ours, %": share(short, rounded),
                "rounded once, mergekit, %": share(narrow, rounded),
            }
            sys.stdout.write(f"{example}: {rows[example]}\n")
            sys.stdout.flush()
            for path in ("t", "m", "t16", "m64"):
                subprocess.run(["/bin/rm", "-r", str(folder / path)], check=True)  # noqa: S603
    (HERE / "mergekit_examples.json").write_text(as_text({"versions": versions(), "examples": rows}))


if __name__ == "__main__":
    main()
