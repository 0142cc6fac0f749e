"""
Hidden Markov models of activities
==================================

Two clinics segment recordings of a sensor. Each knows three activities; the fused model
of hmmlearn knows all four, and how they follow each other.
"""

import matplotlib.pyplot as plt
import numpy as np
from hmmlearn.vhmm import VariationalGaussianHMM

import consilience as cs

rng = np.random.default_rng(1)
activities = ["rest", "walking", "stairs", "running"]
centres = np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0], [5.0, 5.0]])


def recording(own, length=150):
    """Return rows of a sensor and the activity of each."""
    now, truth = rng.choice(own), []
    for _ in range(length):
        truth.append(now)
        now = now if rng.random() < 0.9 else rng.choice(own)
    return centres[truth] + rng.normal(size=(length, 2)), np.array(truth)


models = {}
for clinic, own in {"lund": [0, 1, 2], "oslo": [1, 2, 3]}.items():
    rows = np.concatenate([recording(own)[0] for _ in range(8)])
    fits = [
        VariationalGaussianHMM(3, random_state=seed).fit(rows, [150] * 8)
        for seed in range(4)
    ]
    models[clinic] = max(fits, key=lambda model: model.score(rows, [150] * 8))

fusion = cs.fuse(models)
print("states:", fusion.n_components)

# %%
# A patient who does all four. The fused states, by the activity that is nearest.

rows, truth = recording([0, 1, 2, 3], length=120)
figure, axes = plt.subplots(figsize=(8, 3.5), layout="constrained")
axes.step(range(120), truth, color="lightgrey", linewidth=6, label="true activity")
for name, model in {"lund": models["lund"], "fused": fusion.model}.items():
    nearest = np.linalg.norm(centres[:, None] - model.means_, axis=2).argmin(axis=0)
    found = nearest[model.predict(rows)]
    axes.step(range(120), found, "--" if name == "lund" else "-", label=name)
    print(f"{name}: {np.mean(found == truth):.0%} of the rows right")
axes.set_yticks(range(4), activities)
axes.set_xlabel("time")
axes.legend(loc="upper left")
