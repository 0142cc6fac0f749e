"""
Logit of statsmodels at three sites
===================================

Fitted results go in as they are. The fused result has ``params``, ``bse`` and
``summary()``, and its probabilities are near those of all rows.
"""

import matplotlib.pyplot as plt
import numpy as np
import statsmodels.api as sm

import consilience as cs

data = sm.datasets.fair.load_pandas().data[::10]
outcome = (data["affairs"] > 0).astype(float)
columns = ["rate_marriage", "age", "yrs_married", "religious"]
exog = sm.add_constant(data[columns])
site = np.random.default_rng(0).choice(3, size=len(data), p=[0.2, 0.3, 0.5])
names = ["lund", "oslo", "turku"]
results = {
    name: sm.Logit(outcome[site == k], exog[site == k]).fit(disp=0)
    for k, name in enumerate(names)
}
pooled = sm.Logit(outcome, exog).fit(disp=0)
fused = cs.fuse(results).model
print(fused.summary())

# %%
# Probability of an affair by how a marriage is rated, at the mean of everything else.

ratings = np.linspace(1, 5, 50)
grid = np.tile(exog.mean(), (50, 1))
grid[:, 1] = ratings
figure, axes = plt.subplots()
for name, result in results.items():
    label = f"{name}, {result.nobs:.0f} rows"
    axes.plot(ratings, result.predict(grid), "--", label=label)
axes.plot(ratings, pooled.predict(grid), "gold", linewidth=5, label="all rows")
axes.plot(ratings, fused.predict(grid), "k", label="fused")
axes.set_xlabel("rating of the marriage")
axes.set_ylabel("probability of an affair")
axes.legend()
