"""
Federated k-means clustering
============================

Four sites cluster their own rows by k-means and send the centres. Clusters that sites
share are matched, and the number of clusters over all sites is found.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.cluster import KMeans

import consilience as cs

rng = np.random.default_rng(0)
centres = np.array([[0, 0], [7, 1], [2, 7], [9, 8], [-5, 5], [4, -6]])
sees = {"bergen": [0, 1, 2], "lund": [1, 3], "oslo": [0, 3, 4], "turku": [2, 4, 5]}
rows, models = {}, {}
for name, own in sees.items():
    rows[name] = np.concatenate([centres[k] + rng.normal(size=(100, 2)) for k in own])
    models[name] = KMeans(len(own), n_init=5, random_state=0).fit(rows[name])

fusion = cs.fuse(models)
print(sum(len(own) for own in sees.values()), "clusters of four sites")
print(fusion.n_components, "fused clusters")

# %%
# The colour of a row is its fused cluster. Crosses are the fused centres.

figure, panels = plt.subplots(
    1, 4, figsize=(10, 3), sharex=True, sharey=True, layout="constrained"
)
for axes, (name, points) in zip(panels, rows.items(), strict=True):
    labels = fusion.model.predict(points)
    axes.scatter(*points.T, s=5, c=labels, cmap="tab10", vmin=0, vmax=9)
    axes.scatter(*fusion.model.cluster_centers_.T, marker="x", color="black")
    axes.set_title(name)
figure.suptitle("Rows at their sites, by fused cluster")
