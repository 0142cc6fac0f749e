"""
Federated linear regression equals the pooled fit
=================================================

Three sites whose patients differ in body-mass index send sums of squares and products.
The fused regression equals the fit on the rows of all of them.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression

import consilience as cs

data = load_diabetes()
X, y = data.data, data.target
by_index = np.argsort(X[:, 2], kind="stable")
sites = dict(zip(["lund", "oslo", "turku"], np.array_split(by_index, 3), strict=True))
own = {name: LinearRegression().fit(X[rows], y[rows]) for name, rows in sites.items()}
sent = {
    name: cs.describe(own[name], data=(X[rows], y[rows]))
    for name, rows in sites.items()
}
fused = cs.fuse(sent).model
pooled = LinearRegression().fit(X, y)
difference = np.abs(fused.coef_ - pooled.coef_).max()
print(f"largest difference from the fit on all rows: {difference:.0e}")

# %%
# Coefficients of the sites scatter. The fused ones lie on the pooled ones.

figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
places = np.arange(X.shape[1])
for name, model in own.items():
    axes.plot(places, model.coef_, "_", markersize=18, markeredgewidth=2, label=name)
axes.plot(places, pooled.coef_, "ko", fillstyle="none", markersize=11, label="pooled")
axes.plot(places, fused.coef_, "rx", label="fused")
axes.axhline(0, color="grey", linewidth=0.5)
axes.set_xticks(places, data.feature_names)
axes.set_ylabel("coefficient")
axes.legend()
