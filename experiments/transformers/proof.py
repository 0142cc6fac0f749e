"""Seconds and memory of tracing and proving: ``python experiments/transformers/proof.py`` writes proof.json.

Memory is the peak of the process over what it had before, in sizes of the model in float32. Each size runs in a process
of its own.
"""

from __future__ import annotations

import importlib.metadata
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

sys.path.append(str(Path(__file__).resolve().parents[1]))
from record import versions

from consilience.networks.tracing.proof import prove
from consilience.networks.tracing.trace import trace

MODELS = {
    "GPT-2, 2 layers": lambda: _gpt2(2),
    "GPT-2, 12 layers": lambda: _gpt2(12),
    "Llama 7B, one layer": lambda: LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, use_cache=False)),
    "Llama 7B, no weights": lambda: LlamaForCausalLM(LlamaConfig(use_cache=False)),
}
"""What is measured: GPT-2 of width 768 and 8,000 words, one layer of Llama 7B with random weights, and all of it traced
on the meta device."""


def _gpt2(layers: int) -> GPT2LMHeadModel:
    """Return a GPT-2 of width 768."""
    config = GPT2Config(n_layer=layers, n_embd=768, n_head=12, vocab_size=8000, n_positions=64, bos_token_id=None,
                        eos_token_id=None)  # fmt: skip
    return GPT2LMHeadModel(config)


def measured(name: str) -> dict[str, Any]:
    """Return what tracing and proving a model took."""
    torch.set_num_threads(1)
    is_empty = name.endswith("no weights")
    with torch.device("meta" if is_empty else "cpu"):
        net = MODELS[name]().eval()
    n_parameters = sum(parameter.numel() for parameter in net.parameters())
    example = {"input_ids": torch.arange(16).reshape(2, 8)}
    start = time.process_time()
    traced = trace(net, example)
    record = {"model": name, "parameters": n_parameters, "trace seconds": time.process_time() - start}
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    if not is_empty:
        start = time.process_time()
        prove(net, traced, example)
        record["proof seconds"] = time.process_time() - start
    record["peak"] = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    record["memory"] = (record["peak"] - before) / (4 * n_parameters)
    return record


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.stdout.write(json.dumps(measured(sys.argv[1])))
    else:
        command = [sys.executable, __file__]
        runs = [subprocess.run([*command, name], check=True, capture_output=True) for name in MODELS]  # noqa: S603
        packages = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
        document = {
            "versions": versions() | packages,
            "rows": [json.loads(one.stdout.splitlines()[-1]) for one in runs],
        }
        (Path(__file__).parent / "proof.json").write_text(json.dumps(document, indent=1) + "\n")
