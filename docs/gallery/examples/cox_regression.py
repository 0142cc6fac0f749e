"""
Federated Cox regression
========================

Hospitals with hazards of their own estimate the same hazard ratios. The fused Cox model
is stratified: each hospital keeps its own baseline.
"""

import matplotlib.pyplot as plt
import numpy as np
import statsmodels.api as sm

import consilience as cs

truth = np.log([0.5, 1.8])  # of the treatment, and of ten years of age
names = ["treatment", "age"]
baselines = {"bergen": 0.5, "lund": 1.0, "oslo": 2.0, "turku": 4.0}
rng = np.random.default_rng(0)
results = {}
for hospital, baseline in baselines.items():
    X = np.column_stack([rng.integers(2, size=150), rng.normal(size=150)])
    times = rng.exponential(1 / (baseline * np.exp(X @ truth)))
    censored = rng.exponential(1.5 / baseline, size=150)
    results[hospital] = sm.PHReg(
        np.minimum(times, censored), X, status=times < censored
    ).fit()

fusion = cs.fuse(results)
fused = fusion.model
for name, value in zip(names, np.exp(fused.params), strict=True):
    print(f"hazard ratio of {name}: {value:.2f}")

# %%
# Hazard ratios with intervals at 95 %. Dashed lines are the true ones.

figure, panels = plt.subplots(1, 2, figsize=(8, 3.5), sharey=True, layout="constrained")
everyone = {**results, "fused": fused}
for column, axes in enumerate(panels):
    for place, (name, one) in enumerate(everyone.items()):
        low, high = np.exp(one.conf_int()[column])
        colour = "black" if name == "fused" else "tab:blue"
        axes.plot([low, high], [place, place], color=colour)
        axes.plot(np.exp(one.params[column]), place, "o", color=colour)
    axes.axvline(np.exp(truth[column]), linestyle="--", color="grey")
    axes.set_xlabel(f"hazard ratio of {names[column]}")
panels[0].set_yticks(range(5), everyone)
