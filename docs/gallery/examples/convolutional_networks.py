"""
Fuse convolutional networks
===========================

Two small convolutional networks are trained apart on digits of their own. The fused one
has their size, and is trained without a label to answer as both together.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import ConfusionMatrixDisplay
from torch import nn

import consilience as cs

data = load_digits()
X = torch.tensor(data.images / 16, dtype=torch.float32)[:, None]
y = torch.tensor(data.target)
held_out = torch.arange(len(y)) % 3 == 0


def train(rows, seed):
    """Return a network of two convolutions."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        *(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(12, 16, 3, padding=1), nn.ReLU(), nn.Flatten()),
        nn.Linear(256, 10),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(X[rows]), y[rows]).backward()
        optimizer.step()
    return net.eval()


described = {}
for seed, (site, own) in enumerate({"lund": y < 6, "oslo": y > 3}.items()):
    rows = own & ~held_out
    described[site] = cs.describe(train(rows, seed), (X[rows], y[rows]), classes=10)

nets = {site: one.module for site, one in described.items()}
nets["fused"] = cs.fuse(described).model

# %%
# Digits that were held out, by what each network takes them for.

figure, panels = plt.subplots(1, 3, figsize=(10, 3.5), layout="constrained")
for axes, (name, net) in zip(panels, nets.items(), strict=True):
    found = net(X[held_out]).argmax(1)
    ConfusionMatrixDisplay.from_predictions(
        y[held_out], found, ax=axes, colorbar=False, include_values=False, cmap="Blues"
    )
    axes.set_title(f"{name}: {(found == y[held_out]).float().mean():.0%} right")
