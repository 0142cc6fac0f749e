"""Seconds and memory of tracing and proving a GPT-2: ``python experiments/transformers/proof.py`` writes proof.json.

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
from transformers import GPT2Config, GPT2LMHeadModel

from consilience.networks.tracing.proof import prove
from consilience.networks.tracing.trace import trace

SIZES = ((2, 768), (12, 768))
"""Layers and widths, of heads of 64."""


def measured(layers: int, width: int) -> dict[str, Any]:
    """Return what tracing and proving a network took."""
    torch.set_num_threads(1)
    config = GPT2Config(n_layer=layers, n_embd=width, n_head=width // 64, vocab_size=8000, n_positions=64,
                        bos_token_id=None, eos_token_id=None)  # fmt: skip
    net = GPT2LMHeadModel(config).eval()
    n_parameters = sum(parameter.numel() for parameter in net.parameters())
    example = {"input_ids": torch.arange(16).reshape(2, 8)}
    start = time.process_time()
    traced = trace(net, example)
    traced_at = time.process_time()
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    prove(net, traced, example)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "layers": layers, "width": width, "parameters": n_parameters, "trace seconds": traced_at - start,
        "proof seconds": time.process_time() - traced_at, "memory": (peak - before) / (4 * n_parameters),
    }  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.stdout.write(json.dumps(measured(*map(int, sys.argv[1:]))))
    else:
        command = [sys.executable, __file__]
        runs = [subprocess.run([*command, *map(str, size)], check=True, capture_output=True) for size in SIZES]  # noqa: S603
        versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
        document = {"versions": versions, "rows": [json.loads(one.stdout.splitlines()[-1]) for one in runs]}
        (Path(__file__).parent / "proof.json").write_text(json.dumps(document, indent=1) + "\n")
