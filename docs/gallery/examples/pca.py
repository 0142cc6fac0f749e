"""
Federated PCA and scaling
=========================

Principal components follow from a mean and a covariance. Sites with digits of their own
send these, and the fused Pipeline scales and projects as one of all rows would.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import consilience as cs

X, y = load_digits(n_class=6, return_X_y=True)
X = X[:, np.mean(X > 0, axis=0) > 0.2]  # pixels that often have ink
sees = {"bergen": [0, 1], "lund": [1, 2, 3], "oslo": [3, 4], "turku": [4, 5, 0]}


def fit(rows):
    """Return a fitted Pipeline."""
    return make_pipeline(StandardScaler(), PCA(n_components=2)).fit(rows)


rows = {name: X[np.isin(y, digits)] for name, digits in sees.items()}
models = {name: fit(own) for name, own in rows.items()}
fused = cs.fuse({name: cs.describe(models[name], rows[name]) for name in sees}).model

pooled = fit(np.concatenate(list(rows.values())))
gap = np.abs(np.abs(fused.transform(X)) - np.abs(pooled.transform(X))).max()
print(f"largest difference from the PCA of all rows: {gap:.0e}")

# %%
# Digits on the first two components. Bergen has only 0 and 1, and confuses the others.

figure, panels = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
shown = {"bergen": models["bergen"], "all sites, fused": fused}
for axes, (name, model) in zip(panels, shown.items(), strict=True):
    for digit in range(6):
        axes.scatter(*model.transform(X[y == digit]).T, s=4, label=digit)
    axes.set_title(f"Components of {name}")
panels[1].legend(title="digit", markerscale=3, bbox_to_anchor=(1, 1))
