"""
Label switching: posterior draws of mixtures
============================================

Samplers number the components of a mixture as they like, and may switch within a chain.
Draws that state what is exchangeable are relabelled within and between sites.
"""

import matplotlib.pyplot as plt
import numpy as np

import consilience as cs

rng = np.random.default_rng(0)
truth = np.array([-2.0, 1.0, 3.0])


def sample(deviation):
    """Return draws (chains, draws, components) whose labels are mixed up."""
    found = truth + deviation * (rng.normal(size=3) + rng.normal(size=(4, 500, 3)))
    switched = np.cumsum(rng.random((4, 500)) < 0.02, axis=1) % 3
    order = (np.arange(3) + switched[..., None]) % 3
    return {"mu": np.take_along_axis(found, order, axis=2)}


sampled = {name: sample(scale) for name, scale in [("lund", 0.15), ("oslo", 0.25)]}
sent = {
    name: cs.Draws(draws, prior=1 / 2, exchangeable=("mu",))
    for name, draws in sampled.items()
}
fusion = cs.fuse(sent, allow_divergent=True)  # chains that switch do not look mixed
fused = fusion.model["mu"][0]
print("means of the draws of lund:", sampled["lund"]["mu"].mean(axis=(0, 1)).round(1))
print("means of the fused draws:  ", fused.mean(axis=0).round(1))

# %%
# One chain of lund jumps between components. Fused, each component keeps its number.

figure, (left, right) = plt.subplots(
    1, 2, figsize=(9, 3.5), sharey=True, layout="constrained"
)
for component in range(3):
    left.plot(sampled["lund"]["mu"][0, :, component], ".", markersize=3)
    right.plot(
        fused[:500, component], ".", markersize=3, label=f"component {component}"
    )
left.set(title="lund, as sampled", xlabel="draw", ylabel="mean of a component")
right.set(title="fused", xlabel="draw")
right.legend(markerscale=3, loc="center", bbox_to_anchor=(0.5, 0.4))
