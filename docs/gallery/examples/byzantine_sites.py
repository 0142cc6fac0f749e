"""
Byzantine sites in federated learning
=====================================

Ten sites send what they know of a regression; three of them lie. ``robust=True`` names
the sites that it left out, and fits the rows of the others.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LinearRegression

import consilience as cs

rng = np.random.default_rng(0)
truth = np.array([2.0, -1.0])
sent = {}
for number in range(10):
    X = rng.normal(size=(200, 2))
    y = X @ truth + rng.normal(size=200)
    if number >= 7:
        y = y + X @ rng.normal([-2, 1], 0.5)  # what hostile sites make of the outcome
    name = f"site {number}"
    sent[name] = cs.describe(LinearRegression().fit(X, y), data=(X, y))

plain, robust = cs.fuse(sent), cs.fuse(sent, robust=True)
left_out = [one["model"] for one in robust.details["robust"]["left_out"]]
print("left out:", ", ".join(left_out))

# %%
# The sum of all sites is pulled far away. Without the three, the fit is near the truth.

figure, axes = plt.subplots()
for name, statistics in sent.items():
    own = cs.rebuild(statistics).coef_
    axes.plot(*own, "o", color="red" if name in left_out else "darkgrey")
    if name in left_out:
        axes.annotate(name, own, xytext=(6, 6), textcoords="offset points")
axes.plot(*plain.model.coef_, "kx", markersize=10, label="plain")
axes.plot(*robust.model.coef_, "k+", markersize=14, label="robust")
axes.plot(*truth, "ko", markersize=14, fillstyle="none", label="truth")
axes.set(xlabel="first coefficient", ylabel="second coefficient")
axes.set_title("Fits of the sites; red ones were left out")
axes.margins(0.15)
axes.legend()
