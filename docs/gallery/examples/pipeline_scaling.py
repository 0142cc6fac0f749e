"""
Pipelines with a scaler of their own
====================================

Each site scales its columns by its own rows before it fits a mixture. Pipelines are
fused in the units of the data, so the scalings need not agree.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.mixture import BayesianGaussianMixture
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

import consilience as cs

rng = np.random.default_rng(0)
centres = {"A": (60, 1.2), "B": (80, 2.0), "C": (130, 1.6)}
kinds = {
    name: centre + rng.normal(size=(200, 2)) * [5, 0.1]
    for name, centre in centres.items()
}
rows = {
    "lund": np.concatenate([kinds["A"][::2], kinds["B"]]),
    "oslo": np.concatenate([kinds["A"][1::2], kinds["C"]]),
}
scalers = {"lund": StandardScaler(), "oslo": MinMaxScaler()}
models = {}
for name, scaler in scalers.items():
    mixture = BayesianGaussianMixture(n_components=2, random_state=0)
    models[name] = make_pipeline(scaler, mixture).fit(rows[name])

fusion = cs.fuse(models)
print("steps:", [name for name, _ in fusion.model.steps])
print("components:", fusion.n_components)

# %%
# Scaled by the sites, the group that both have lies in two places. In the units of the
# data it is one; colours are the fused components there.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
for (name, own), marker in zip(rows.items(), "o^", strict=True):
    left.scatter(*models[name][0].transform(own).T, s=8, marker=marker, label=name)
    colours = fusion.model.predict(own)
    right.scatter(*own.T, s=8, marker=marker, c=colours, cmap="Dark2", vmax=3)
left.set_title("Scaled by each site")
left.legend()
right.set_title("In the units of the data, by fused component")
