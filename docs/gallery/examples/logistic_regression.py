"""
Federated logistic regression with a forest plot
================================================

Clinics send what they know of the coefficients. Requests refine the fused model until
it is the fit on all rows, with its standard errors.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

import consilience as cs

data = load_breast_cancer()
X, y = data.data[:, [0, 1, 4, 8]], data.target
X = (X - X.mean(axis=0)) / X.std(axis=0)  # constants that all clinics know
rows = {f"clinic {k}": (X[k::3], y[k::3]) for k in range(3)}


def fit(X, y):
    """Return a fitted model; the penalty is weak."""
    return LogisticRegression(C=20.0, tol=1e-8).fit(X, y)


sent = {name: cs.describe(fit(*own), data=own) for name, own in rows.items()}
fusion = cs.fuse(sent)
refined = cs.federated.exchange("refine", fusion, rows, rounds=5)
pooled = fit(X, y)
for name, one in {"fused": fusion, "refined": refined}.items():
    gap = np.abs(one.model.coef_ - pooled.coef_).max()
    print(f"{name}: largest difference from the fit on all rows {gap:.0e}")

# %%
# Log odds ratios with intervals at 95 %.

figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
tables = {**sent, "refined": refined.statistics}
for shift, (name, statistics) in enumerate(tables.items()):
    table = statistics.coefficients()
    reach = np.abs(table.intervals[:4].T - table.values[:4])
    places = np.arange(4) + 0.15 * shift
    axes.errorbar(table.values[:4], places, xerr=reach, fmt="o", label=name)
axes.axvline(0, color="grey", linewidth=0.5)
axes.set_yticks(np.arange(4) + 0.2, data.feature_names[[0, 1, 4, 8]])
axes.set_xlabel("log odds ratio of a benign tumour, by standard deviation")
axes.legend()
