"""
Gaussian mixtures of three sites
================================

Each site fits a mixture of the groups that it has seen. Fused, they are the mixture of
all groups.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.mixture import BayesianGaussianMixture

import consilience as cs

rng = np.random.default_rng(0)
means = np.array([[-4.0, 0.0], [1.0, 4.0], [4.0, -3.0]])
sites, rows = {}, {}
for number, name in enumerate(["lund", "oslo", "turku"]):
    own = np.delete(means, number, axis=0)  # two of the three groups
    rows[name] = np.concatenate([centre + rng.normal(size=(150, 2)) for centre in own])
    model = BayesianGaussianMixture(n_components=2, random_state=0)
    sites[name] = model.fit(rows[name])

fusion = cs.fuse(sites)
print(fusion.n_components, "components")

# %%
# Dots are rows, which stay at their sites; crosses are the fused means.

figure, axes = plt.subplots()
for name, points in rows.items():
    axes.scatter(*points.T, s=4, label=name)
axes.scatter(*fusion.model.means_.T, marker="x", color="black", s=80, label="fused")
axes.set_title("Three groups, of which each site has two")
axes.legend()
