"""
Loss barrier between two networks
=================================

Networks of other initialisations number their units differently. On the line between
two of them the loss rises; after alignment it hardly does.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import consilience as cs
from consilience.networks import landscape

data = load_digits()
X, y = torch.tensor(data.data / 8 - 1, dtype=torch.float32), torch.tensor(data.target)
held_out = torch.arange(len(y)) % 4 == 0


def train(seed):
    """Return a perceptron with two hidden layers."""
    torch.manual_seed(seed)
    layers = [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Linear(128, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3, weight_decay=1e-4)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(X[~held_out]), y[~held_out]).backward()
        optimizer.step()
    return net.eval()


nets = train(1), train(2)
aligned = cs.fuse(nets, "rebasin", example=X[:2]).aligned_models
scores = landscape.Classification(X[held_out], y[held_out])
curves = {
    "as they were trained": cs.barrier(*nets, scores),
    "aligned": cs.barrier(*aligned, scores),
}

# %%
# The ends are the two networks, the middle is their average.

figure, axes = plt.subplots()
for name, curve in curves.items():
    axes.plot(curve.t, curve.values["error"], label=name)
    print(f"{name}: barrier {curve.height('error'):.1f} points of error")
axes.set_xticks([0, 0.5, 1], ["first network", "average", "second network"])
axes.set_ylabel("error on held-out digits, %")
axes.legend()
