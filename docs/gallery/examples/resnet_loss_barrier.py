"""
Two ResNets and a loss barrier
==============================

Two residual networks that were trained apart are loaded from files. To pass the barrier
between them, match channels and measure the statistics of batch normalisation anew.
"""

import matplotlib.pyplot as plt
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from torch import nn

import consilience as cs
from consilience.networks import landscape, repair

data = load_digits()
X = torch.tensor(data.images / 8 - 1, dtype=torch.float32)[:, None]
y, part = torch.tensor(data.target), torch.arange(len(X)) % 3
held_out, of_lund = part == 0, part == 1  # the others are oslo's


def conv(inputs):
    """Return a convolution with batch normalisation."""
    return nn.Conv2d(inputs, 48, 3, padding=1, bias=False), nn.BatchNorm2d(48)


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(*conv(48), nn.ReLU(), *conv(48))

    def forward(self, x):
        """Return the rectified sum of both paths."""
        return torch.relu(x + self.body(x))


def load(site):
    """Return a network that experiments/gallery_weights/train.py wrote."""
    layers = [*conv(1), nn.ReLU(), nn.MaxPool2d(2), Block(), Block()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10)]
    net = nn.Sequential(*layers)
    net.load_state_dict(load_file(f"../weights/resnet-{site}.safetensors"))
    return net.eval()


def measure(net):
    """Set statistics of batch normalisation to those of lund's unlabelled images."""
    net.load_state_dict(repair.reestimate_batch_norm(net, X[of_lund]).state_dict())


trained = load("lund"), load("oslo")
matched = cs.fuse(trained, "rebasin", example=X[:2]).aligned_models
scores = landscape.Classification(X[held_out], y[held_out])

# %%
# Sites with digits of one distribution have little to gain from each other: the average
# of the matched networks comes close to theirs, and is not better than either.

figure, axes = plt.subplots(figsize=(8, 4))
for pair, nets, style in (("trained", trained, ":"), ("matched", matched, "-")):
    for name, refresh in (("as it is", None), ("statistics measured", measure)):
        curve = cs.barrier(*nets, scores, points=9, refresh=refresh)
        axes.plot(curve.t, curve.values["error"], style, label=f"{pair}, {name}")
        first, middle, last = 100 - curve.values["error"][[0, 4, 8]]
        print(f"{pair}, {name}: {first:.1f}, {last:.1f}, average {middle:.1f} % right")
axes.set_xticks([0, 0.5, 1], ["lund's network", "average", "oslo's network"])
axes.set_ylabel("error on held-out digits, %")
axes.legend(loc="upper left", fontsize="small")
