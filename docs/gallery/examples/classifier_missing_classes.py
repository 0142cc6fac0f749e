"""
Naive Bayes when sites lack classes
===================================

No site has all three kinds of wine. Naive Bayes is a function of sums, so the fused
classifier is the one that all rows together give, and it knows every kind.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine
from sklearn.metrics import recall_score
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB

import consilience as cs

X, y = load_wine(return_X_y=True)
X, X_test, y, y_test = train_test_split(X, y, random_state=0, stratify=y)
lacks = {"lund": 0, "oslo": 1, "turku": 2}
site = np.random.default_rng(0).permuted(np.arange(len(y)) % 3)

models = {}
for number, (name, kind) in enumerate(lacks.items()):
    rows = (site == number) & (y != kind)
    models[name] = GaussianNB().fit(X[rows], y[rows])

fusion = cs.fuse(models)
models["fused"] = fusion.model
print("classes of the fused model:", fusion.model.classes_)

# %%
# A row of the figure is a model, a column a kind of wine. Each site misses one kind.

share = [
    recall_score(y_test, model.predict(X_test), labels=[0, 1, 2], average=None)
    for model in models.values()
]
figure, axes = plt.subplots(figsize=(5, 4), layout="constrained")
axes.imshow(share, cmap="Greens", vmin=0, vmax=1.3)
for (row, column), value in np.ndenumerate(share):
    axes.text(column, row, f"{100 * value:.0f} %", ha="center", va="center")
axes.set_xticks(range(3), ["wine 0", "wine 1", "wine 2"])
axes.set_yticks(range(4), models)
axes.set_title("Wines recognised, of those held out")
