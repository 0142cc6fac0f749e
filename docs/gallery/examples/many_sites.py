"""
A thousand sites in shards
==========================

Posteriors of many sites are packed into shards, which are read a piece at a time. A
sample of the sites starts the fusion, and passes over all shards finish it.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import consilience as cs

rng = np.random.default_rng(0)
family = cs.families.DiagonalGaussian(dim=2)
groups = np.array([[0, 0], [5, 1], [1, 6], [7, 7], [-5, 4], [4, -5]])
folder = Path(tempfile.mkdtemp())
(folder / "sites").mkdir()
centres = []
for site in range(1000):
    own = groups[rng.permutation(6)[:3]] + 0.7 * rng.normal(size=(3, 2))
    natural = family.to_natural(mean=own, variance=np.full((3, 2), 0.1))
    posterior = cs.Posterior(family, natural, counts=rng.uniform(20, 60, size=3))
    cs.save(posterior, folder / "sites" / f"{site:04d}.safetensors")
    centres.append(own)

packed = cs.pack(folder / "sites", folder / "packed", dtype="float32")
print(packed.n_sites, "sites,", packed.n_components, "components")
fusion = cs.fuse(folder / "packed", "spahm", pilot_sites=100)
print(fusion.n_components, "fused components")

# %%
# A dot is a component of a site, in the colour of the fused one that it became.

figure, axes = plt.subplots()
labels = fusion.matching.labels
order = np.concatenate(centres)
axes.scatter(*order.T, s=4, c=labels, cmap="tab10", vmax=9)
means = fusion.posterior.parameters()["mean"]
axes.scatter(*means.T, marker="x", s=100, color="black", label="fused")
axes.set_title("Components of a thousand sites")
axes.legend()
