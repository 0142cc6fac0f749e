"""
Run a recipe of mergekit
========================

Recipes of mergekit run as they are. Here TIES merges two small checkpoints that were
tuned from one base, one of them less and less from layer to layer.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from safetensors.numpy import load_file, save_file

folder, rng = Path(tempfile.mkdtemp()), np.random.default_rng(0)
names = [f"model.layers.{layer}.mlp.up_proj.weight" for layer in range(8)]
states = {"base": {name: np.zeros((32, 32), dtype=np.float32) for name in names}}
for model in ("law", "medicine"):  # a fifth of all entries was tuned
    tuned = [(rng.random((32, 32)) < 0.2).astype(np.float32) for _ in names]
    states[model] = dict(zip(names, tuned, strict=True))
for model, state in states.items():
    (folder / model).mkdir()
    save_file(state, folder / model / "model.safetensors")
    (folder / model / "config.json").write_text('{"model_type": "llama"}')

(folder / "recipe.yaml").write_text("""
models:
  - model: law
    parameters: {density: 0.5, weight: 1.0}
  - model: medicine
    parameters: {density: 0.5, weight: [1.0, 0.0]}
merge_method: ties
base_model: base
parameters: {normalize: false}
dtype: float32
""")
command = [sys.executable, "-m", "consilience", "merge", "recipe.yaml", "-o", "merged"]
subprocess.run(command, cwd=folder, check=True, capture_output=True)
merged = load_file(folder / "merged" / "model.safetensors")

# %%
# The weight of medicine is a list: it falls from 1 in the first layer to 0 in the last.

figure, axes = plt.subplots()
for model, other in (("law", states["medicine"]), ("medicine", states["law"])):
    kept = [merged[name][states[model][name] > other[name]].mean() for name in names]
    axes.plot(range(8), kept, "o-", label=f"entries that {model} alone changed by 1")
axes.set(xlabel="layer", ylabel="mean change in the merged model")
axes.legend()
