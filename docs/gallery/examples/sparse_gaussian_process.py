"""
Sparse Gaussian processes of two sites
======================================

Two sites measure one curve on two stretches of a road. Their Gaussian processes are
fused by inducing points, and the fused one knows the whole road.
"""

import matplotlib.pyplot as plt
import numpy as np

import consilience as cs

rng = np.random.default_rng(0)
agreed = {"shift": [5.0, 25.0], "scale": [2.5, 5.0]}  # known before anyone has data
learner = cs.learners.TitsiasGP(n_inducing=12, kernel="rbf", **agreed)
columns = cs.Features(names=["kilometre", "level"], scaling=agreed)


def curve(x):
    """Return the true level."""
    return 20.0 + x + 3.0 * np.sin(x)


rows, models, sent = {}, {}, {}
for site, stretch in {"lund": (0.5, 6.0), "oslo": (4.5, 9.5)}.items():
    x = rng.uniform(*stretch, (80, 1))
    rows[site] = x, curve(x[:, 0]) + 0.5 * rng.normal(size=80)
    models[site] = learner.fit(*rows[site])
    sent[site] = cs.describe(models[site], features=columns)

models["fused"] = cs.fuse(sent, "spahm", mass=50.0, shrink=False).model

# %%
# Bands hold 95 % of the predictions.

road = np.linspace(0, 10, 200)
figure, panels = plt.subplots(
    1, 3, figsize=(10, 3.5), sharey=True, layout="constrained"
)
for axes, (name, model) in zip(panels, models.items(), strict=True):
    mean, variance = model.predict(road[:, None], noise=True)
    reach = 1.96 * np.sqrt(variance)
    axes.fill_between(road, mean - reach, mean + reach, alpha=0.3)
    axes.plot(road, mean, label="prediction")
    axes.plot(road, curve(road), "k--", linewidth=1, label="truth")
    if name in rows:
        axes.plot(*rows[name], ".", color="grey", markersize=3, label="rows")
    axes.set(title=name, xlabel="kilometre")
panels[0].legend()
