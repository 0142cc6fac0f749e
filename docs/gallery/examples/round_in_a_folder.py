"""
A federated round in a shared folder
====================================

Hospitals put what they learned into a folder that all reach. A server checks and fuses
it, and the hospitals fetch the fused model. One hospital is late and left out.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.mixture import BayesianGaussianMixture

import consilience as cs

home = Path(tempfile.mkdtemp())
place = home / "round"
centres = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]])
sees = {"lund": [0, 1], "oslo": [1, 2], "riga": [0, 2], "turku": [0, 1]}
rng, rows = np.random.default_rng(0), {}
for site, own in sees.items():
    rows[site] = np.concatenate([centres[k] + rng.normal(size=(80, 2)) for k in own])
    model = BayesianGaussianMixture(n_components=2, random_state=0).fit(rows[site])
    cs.save(model, home / f"{site}.safetensors")

for site in ["lund", "oslo", "riga"]:  # turku sends nothing
    cs.federated.send_folder(home / f"{site}.safetensors", place, site)

result = cs.federated.serve_folder(
    place,
    home / "fused.safetensors",
    sites=list(sees),
    quorum=3,
    deadline=0.5,
    poll=0.1,
)
print("took part:", *result.report.sites, "| missing:", *result.report.missing)

# %%
# Turku sent nothing, and fetches the fused model all the same.

cs.federated.receive_folder(place, home / "turku-fused.safetensors", timeout=5)
fused = cs.rebuild(cs.load(home / "turku-fused.safetensors"))
figure, axes = plt.subplots()
for site, points in rows.items():
    missing = site in result.report.missing
    style = {"facecolors": "none", "edgecolors": "grey"} if missing else {}
    axes.scatter(*points.T, s=8, label=f"{site}, late" if missing else site, **style)
axes.scatter(*fused.means_.T, marker="x", s=100, color="black", label="fused")
axes.legend()
