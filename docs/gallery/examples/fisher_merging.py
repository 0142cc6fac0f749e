"""
Fisher merging of fine-tuned networks
=====================================

Three sites fine-tune one network on digits of their own. Weighted by their Fisher
information, its parameters are taken from the sites whose data touched them.
"""

import copy

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import consilience as cs

data = load_digits()
X, y = torch.tensor(data.data / 8 - 1, dtype=torch.float32), torch.tensor(data.target)
part = torch.arange(len(y)) % 10  # 0 is public, 1 to 3 are held out
held_out = (part > 0) & (part < 4)


def tune(net, rows, steps):
    """Return a copy of a network that was trained further."""
    net = copy.deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(X[rows]), y[rows]).backward()
        optimizer.step()
    return net.eval()


torch.manual_seed(0)
start = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
common = tune(start, part == 0, 50)
models, information = {}, []
for site, own in {"lund": y < 4, "oslo": (y > 2) & (y < 8), "turku": y > 5}.items():
    rows = own & (part > 3)
    models[site] = tune(common, rows, 150)
    prior = 1e-3 * float(rows.sum())  # the weight decay, over all rows
    information += [cs.fisher(models[site], X[rows], "factors", prior_precision=prior)]

nets = list(models.values())
fused = {
    "average": cs.fuse(nets, "fisher", structure="isotropic"),
    "diagonal": cs.fuse(nets, "fisher", fishers=information, structure="diagonal"),
    "low rank": cs.fuse(nets, "fisher", fishers=information),
}
models |= {name: fusion.model for name, fusion in fused.items()}

# %%
# Accuracy on digits that were held out: of the sites, and of three averages.

right = [(net(X).argmax(1) == y)[held_out].float().mean() for net in models.values()]
figure, axes = plt.subplots()
bars = axes.bar(list(models), [100 * float(one) for one in right])
axes.bar_label(bars, fmt="%.0f %%")
axes.set_ylabel("accuracy on held-out digits, %")
