"""
One-shot federated learning by linear heads
===========================================

Sites share features and fit a linear head on them by sums. The fused head is the one of
all rows, in one message, although no site knows all digits.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import consilience as cs

X, y = load_digits(return_X_y=True)
is_test = np.arange(len(y)) % 4 == 0
sees = {"bergen": [0, 1, 2], "lund": [2, 3, 4, 5], "oslo": [6, 7], "turku": [8, 9, 0]}
counts = [10, 20, 50, 100, 200, 400, 800]


def errors(count):
    """Return the errors of the fused head and of the best site, in percent."""
    features = cs.features.random_fourier(64, count=count, length=30.0)
    sent = {}
    for site, digits in sees.items():
        rows = np.isin(y, digits) & ~is_test
        head = cs.learners.Head("ridge", features=features)
        sent[site] = head.fit(X[rows], y[rows], classes=10)
    wrong = [
        np.mean(one.predict(X[is_test]) != y[is_test])
        for one in [cs.fuse(sent).model, *sent.values()]
    ]
    return 100 * wrong[0], 100 * min(wrong[1:])


fused, best = zip(*map(errors, counts), strict=True)
print(f"error of the fused head: {fused[-1]:.1f} %; of the best site: {best[-1]:.1f} %")

# %%
# More random features describe digits better, and travel as more sums.

figure, axes = plt.subplots()
axes.plot(counts, best, "o-", label="best site alone")
axes.plot(counts, fused, "o-", label="fused")
axes.set(xscale="log", ylim=(0, None), xlabel="random features", ylabel="error, %")
axes.legend()
