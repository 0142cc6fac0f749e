"""
Robust fusion with one broken site
==================================

Eight hospitals fit the same three groups. One shifts its columns, and ``robust=True``
leaves it out.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.mixture import BayesianGaussianMixture

import consilience as cs

rng = np.random.default_rng(0)
centres = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]])


def fit(shift=0.0):
    """Return the mixture of a site."""
    rows = shift + np.concatenate([c + rng.normal(size=(100, 2)) for c in centres])
    return BayesianGaussianMixture(n_components=3, random_state=0).fit(rows)


names = ["bergen", "espoo", "lund", "malmo", "oslo", "riga", "tartu"]
sites = {name: fit() for name in names}
sites["turku"] = fit(shift=2.5)

fusions = {
    "plain": cs.fuse(sites, n_components=3),
    "robust": cs.fuse(sites, robust=True),
}
for one in fusions["robust"].details["robust"]["left_out"]:
    print("left out:", one["model"])

# %%
# Turku pulls the plain fusion towards itself, but not the robust one.

figure, axes = plt.subplots()
for name, model in sites.items():
    colour = "red" if name == "turku" else "lightgrey"
    axes.scatter(*model.means_.T, color=colour)
axes.scatter([], [], color="red", label="turku, broken")
axes.scatter([], [], color="lightgrey", label="the other seven")
for (name, fusion), marker in zip(fusions.items(), "x+", strict=True):
    means = fusion.posterior.parameters()["mean"]
    gap = np.linalg.norm(centres[:, None] - means, axis=2).min(axis=1).max()
    print(f"{name}: a group is off by at most {gap:.2f}")
    axes.scatter(*means.T, marker=marker, s=100, zorder=3, label=name)
axes.set_title("Means of the three components")
axes.legend()
