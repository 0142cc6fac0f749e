"""
Fuse neural networks that know different digits
===============================================

Three sites train perceptrons on digits of their own. Each describes its network by
counts and moments; the fused network, of the same size, knows all ten digits.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import consilience as cs

data = load_digits()
X, y = torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)
held_out = torch.arange(len(y)) % 3 == 0


def train(rows, seed):
    """Return a perceptron with one hidden layer."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(X[rows]), y[rows]).backward()
        optimizer.step()
    return net.eval()


sees = {"lund": [0, 1, 2, 3], "oslo": [3, 4, 5, 6], "turku": [6, 7, 8, 9, 0]}
described = {}
for seed, (site, digits) in enumerate(sees.items()):
    rows = ~held_out & torch.isin(y, torch.tensor(digits))
    described[site] = cs.describe(train(rows, seed), (X[rows], y[rows]), classes=10)

nets = {site: one.module for site, one in described.items()}
nets["fused"] = cs.fuse(described).model

# %%
# The share of each digit that is recognised, among rows that were held out.

figure, axes = plt.subplots(figsize=(8, 3.5), layout="constrained")
with torch.no_grad():
    right = [
        (net(X[held_out]).argmax(1) == y[held_out]).float() for net in nets.values()
    ]
share = [
    [100 * float(one[y[held_out] == k].mean()) for k in range(10)] for one in right
]
image = axes.imshow(share, cmap="Greens", aspect="auto")
figure.colorbar(image, label="recognised, %")
axes.set_xticks(range(10))
axes.set_xlabel("digit")
axes.set_yticks(range(4), nets)
for name, one in zip(nets, right, strict=True):
    print(f"{name:6}{one.mean():.0%} of all digits")
