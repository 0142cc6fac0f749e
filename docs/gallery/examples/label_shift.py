"""
Label shift: ensembles by counts of classes
===========================================

Five sites see digits in other proportions. How many digits of each kind every site had
says which networks the ensemble should follow for which digit.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import consilience as cs

data = load_digits()
X, y = torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)
held_out = torch.arange(len(y)) % 3 == 0
rng = np.random.default_rng(0)


def train(rows):
    """Return a perceptron with one hidden layer."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 10))
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(50):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(X[rows]), y[rows]).backward()
        optimizer.step()
    return net.eval()


def errors(concentration):
    """Return the errors of ensembles by rows and by counts, in percent."""
    shares = rng.dirichlet([concentration] * 5, size=10)  # of digits, over sites
    site = (rng.random((len(y), 1)) > shares.cumsum(axis=1)[data.target]).sum(axis=1)
    own = [~held_out & torch.tensor(site == k) for k in range(5)]
    counts = np.array([np.bincount(y[rows], minlength=10) for rows in own])
    nets = [train(rows) for rows in own]
    by_rows = cs.fuse(nets, "ensemble", weights=counts.sum(axis=1)).model
    by_counts = cs.fuse(nets, "ensemble", class_counts=counts).model
    wrong = [(net(X).argmax(1) != y)[held_out] for net in (by_rows, by_counts)]
    return [100 * float(one.float().mean()) for one in wrong]


concentrations = [0.05, 0.1, 0.3, 1.0, 3.0]
found = np.array([errors(one) for one in concentrations])

# %%
# To the left each digit is at few sites, to the right sites are nearly IID.

figure, axes = plt.subplots()
for column, name in enumerate(["rows", "counts of classes"]):
    axes.plot(concentrations, found[:, column], "o-", label=f"by {name}")
axes.set(xscale="log", xlabel="concentration of the Dirichlet distribution")
axes.set(ylabel="error on held-out digits, %", ylim=(0, None))
axes.legend()
