"""
Merge LoRA adapters
===================

The mean of two adapters is the mean of their products B A, for which ranks are stacked.
Means of A and of B apart are another matrix.
"""

import json
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from safetensors.numpy import load_file, save_file

import consilience as cs

folder, rng = Path(tempfile.mkdtemp()), np.random.default_rng(0)
config = {"peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": ["q_proj"]}
name = "base_model.model.layers.0.q_proj.lora_{}.weight"


def read(path):
    """Return B and A of an adapter, scaled."""
    state = load_file(path / "adapter_model.safetensors")
    settings = json.loads((path / "adapter_config.json").read_text())
    scale = settings["lora_alpha"] / settings["r"]
    return scale * state[name.format("B")], state[name.format("A")]


paths = [folder / "law", folder / "medicine"]
for path in paths:
    path.mkdir()
    state = {
        name.format(part): rng.normal(size=shape).astype(np.float32)
        for part, shape in [("A", (4, 24)), ("B", (16, 4))]
    }
    save_file(state, path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text(json.dumps(config))

(B, A), (B2, A2) = map(read, paths)
mean = (B @ A + B2 @ A2) / 2


def error(product):
    """Return the distance from the mean product, as a share of its size."""
    return np.linalg.norm(product - mean) / np.linalg.norm(mean)


apart = error((B + B2) / 2 @ (A + A2) / 2)
ranks = range(1, 9)
merged = [cs.merge(paths, folder / f"rank-{rank}", rank=rank) for rank in ranks]
errors = [error(np.matmul(*read(one.output))) for one in merged]
print(f"of rank 8, {errors[-1]:.0e} of the mean is lost; of factors apart, {apart:.2f}")

# %%
# Of rank 8 nothing is lost; a lower rank keeps the nearest product.

figure, axes = plt.subplots()
axes.plot(ranks, errors, "o-", label="merged")
axes.plot(4, apart, "rx", markersize=10, label="mean of B times mean of A")
axes.set(xlabel="rank of the merged adapter", ylabel="error, share of the mean product")
axes.legend()
