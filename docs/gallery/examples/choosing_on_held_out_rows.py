"""
Let sites choose among fused networks
=====================================

Each site holds rows out before training. The sites compare the fused candidates with
their own networks on these rows, and answer with sums of losses.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import consilience as cs

X, y = load_digits(return_X_y=True)
X = (X / 16).astype("float32")
order = np.random.default_rng(0).permutation(len(X))


def train(X, y, seed):
    """Return a perceptron with one hidden layer."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    X, y = torch.from_numpy(X), torch.from_numpy(y)
    for _ in range(80):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(X), y).backward()
        optimizer.step()
    return net.eval()


own, sent, held_out = {}, {}, {}
for seed, site in enumerate(["lund", "oslo", "turku"]):
    rows = order[seed::3]
    rest, held_out[site] = cs.hold_out(X[rows], y[rows], share=0.6)
    own[site] = train(*rest, seed)
    sent[site] = cs.describe(own[site], rest, held_out=held_out[site])

fusion = cs.fuse(sent)
chosen = cs.federated.exchange("choose", fusion, held_out, module=own)
print("verdict:", chosen.verdict.code, "| harmless:", chosen.verdict.harmless)

# %%
# The mean over sites of the errors on rows that were held out.

losses = dict(chosen.details["held_out"]["losses"])
names = sorted(losses, key=losses.get)
figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
colours = ["tab:orange" if name == "own" else "tab:blue" for name in names]
bars = axes.barh(names, [100 * losses[name] for name in names], color=colours)
axes.bar_label(bars, fmt="%.1f %%", padding=3)
axes.margins(x=0.1)
axes.set_xlabel("error on held-out rows, %; the sites' own networks in orange")
print("chosen:", chosen.details["held_out"]["chosen"])
