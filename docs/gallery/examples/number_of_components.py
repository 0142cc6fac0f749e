"""
Choose the number of mixture components
=======================================

How many components do the sites have together? The default finds the number without
rows. Rows that were held out confirm it.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.mixture import BayesianGaussianMixture

import consilience as cs

rng = np.random.default_rng(0)
means = 4.0 * np.array([[0, 0], [2, 0], [0, 2], [2, 2], [1, 3.5]])


def draw(kinds, n):
    """Return n rows of each of these groups."""
    return np.concatenate([means[k] + rng.normal(size=(n, 2)) for k in kinds])


sees = {"bergen": [0, 1, 2], "lund": [1, 2, 3], "oslo": [0, 3, 4], "turku": [1, 2, 4]}
models = {}
for name, own in sees.items():
    model = BayesianGaussianMixture(n_components=3, random_state=0)
    models[name] = model.fit(draw(own, 100))
held_out = draw(range(5), 200)


def score(fusion):
    """Return the mean log density of the rows that were held out."""
    return cs.log_density(fusion, held_out).mean()


default = cs.fuse(models)
numbers = range(3, 10)
scores = [score(cs.fuse(models, n_components=number)) for number in numbers]
print("found by the default:", default.n_components)

# %%
# With fewer components than five, groups are blended; more of them gain nothing.

figure, axes = plt.subplots()
axes.plot(numbers, scores, marker="o", label="number given")
place = default.n_components, score(default)
axes.plot(*place, "*", markersize=18, label="default")
axes.set_xlabel("components of the fused model")
axes.set_ylabel("log density of held-out rows, nats")
axes.legend()
