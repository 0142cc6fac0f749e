"""
Combine posterior draws of three sites
======================================

Each site samples its posterior with a third of the prior. Fused, the draws are those of
the posterior of all rows, which is known here: the prior is conjugate.
"""

import matplotlib.pyplot as plt
import numpy as np

import consilience as cs

rng = np.random.default_rng(0)
truth = np.array([1.0, -0.5])


def posterior(X, y, power=1.0):
    """Return mean and covariance of coefficients; the prior to a power is N(0, 4 I)."""
    covariance = np.linalg.inv(X.T @ X + power * np.eye(2) / 4)
    return covariance @ X.T @ y, covariance


data, sent = {}, {}
for name, n, tilt in [("lund", 15, 0.9), ("oslo", 20, -0.9), ("turku", 40, 0.0)]:
    X = rng.multivariate_normal([0, 0], [[1, tilt], [tilt, 1]], size=n)
    data[name] = X, X @ truth + rng.normal(size=n)
    draws = rng.multivariate_normal(*posterior(*data[name], power=1 / 3), (4, 500))
    sent[name] = cs.Draws({"beta": draws}, prior=1 / 3)

fused = cs.fuse(sent).model["beta"].reshape(-1, 2)
X, y = (np.concatenate(parts) for parts in zip(*data.values(), strict=True))
mean, covariance = posterior(X, y)
print("means of the fused draws:", fused.mean(axis=0).round(3))
print("means of all rows:       ", mean.round(3))

# %%
# Left the draws of the sites, right the fused ones. The ellipse holds 95 % of the exact
# posterior of all rows.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
for name, draws in sent.items():
    left.plot(*draws.variables["beta"].reshape(-1, 2).T, ".", markersize=2, label=name)
right.plot(*fused.T, ".", markersize=2, color="grey", label="fused")
circle = np.exp(2j * np.pi * np.linspace(0, 1, 100))
unit = np.sqrt(5.99) * np.array([circle.real, circle.imag])
edge = mean[:, None] + np.linalg.cholesky(covariance) @ unit
for axes in (left, right):
    axes.plot(*edge, "black", label="all rows, exact")
    axes.set(xlabel="first coefficient", ylabel="second coefficient")
    axes.legend(markerscale=4)
