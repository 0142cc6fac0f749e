"""Draw `fusion.svg`, the picture of the landing page and the README: three sites, and the model fused from theirs.

``python docs/figures/fusion.py`` writes it anew; it needs the extra ``plots``.
"""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.patches import Ellipse, FancyArrowPatch
from sklearn.mixture import BayesianGaussianMixture

import consilience as cs

MEANS = np.array([[-4.0, 0.0], [1.0, 3.5], [4.0, -2.5]])
FACTORS = np.array([[[1.0, 0.0], [0.8, 0.6]], [[1.0, 0.0], [-0.8, 0.6]], [[0.6, 0.0], [0.3, 1.2]]])
SITES = ("Lund", "Oslo", "Riga")
COLOURS = ("#3b76c4", "#c4613b", "#3f9a63")
GREY = "#808080"  # seen on white and on black


def draw_components(axes, model, colours, width):
    """Draw an ellipse that holds nine tenths of each component of a mixture."""
    for mean, covariance, colour in zip(model.means_, model.covariances_, colours, strict=True):
        values, vectors = np.linalg.eigh(covariance)
        axis = 2 * np.sqrt(4.605 * values)  # the 90 % quantile of chi squared of two degrees of freedom
        angle = np.degrees(np.arctan2(vectors[1, 1], vectors[0, 1]))
        axes.add_patch(Ellipse(mean, axis[1], axis[0], angle=angle, fill=False, edgecolor=colour, linewidth=width))


def main():
    """Fit, fuse, draw."""
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "fusion", "svg.fonttype": "path", "font.size": 10})
    from matplotlib import pyplot

    rng = np.random.default_rng(3)
    rows, models = [], []
    for number in range(3):
        kinds = np.delete(np.arange(3), number)
        rows.append(np.concatenate([MEANS[g] + rng.standard_normal((70, 2)) @ FACTORS[g].T for g in kinds]))
        models.append(BayesianGaussianMixture(n_components=2, random_state=0, max_iter=500).fit(rows[-1]))
    fusion = cs.fuse(dict(zip(SITES, models, strict=True)))
    figure, all_axes = pyplot.subplots(1, 4, figsize=(9.6, 2.5), gridspec_kw={"width_ratios": [1, 1, 1, 1.35]})
    for number, (axes, site) in enumerate(zip(all_axes, SITES, strict=False)):
        colours = [COLOURS[label] for label in fusion.matching.of_site(site)]
        axes.scatter(*rows[number].T, s=3, color=GREY, alpha=0.5, linewidths=0)
        draw_components(axes, models[number], colours, 1.5)
        axes.set_title(f"{site}: rows stay", color=GREY, fontsize=10)
    draw_components(all_axes[3], fusion.model, COLOURS[: fusion.n_components], 2.5)
    all_axes[3].set_title(f"one model: {fusion.n_components} components", color=GREY, fontsize=10)
    for axes in all_axes:
        axes.set(xlim=(-8, 7.5), ylim=(-7, 6.5), xticks=[], yticks=[], aspect="equal", facecolor="none")
        for spine in axes.spines.values():
            spine.set_color(GREY)
    figure.tight_layout(w_pad=2.5)
    left, right = all_axes[2].get_position(), all_axes[3].get_position()
    ends = (left.x1 + 0.004, 0.47), (right.x0 - 0.004, 0.47)
    arrow = FancyArrowPatch(*ends, transform=figure.transFigure, arrowstyle="->", mutation_scale=14, color=GREY)
    figure.add_artist(arrow)
    target = Path(__file__).with_name("fusion.svg")
    figure.savefig(target, transparent=True, metadata={"Date": None})
    target.write_text("\n".join(line.rstrip() for line in target.read_text().splitlines()) + "\n")


if __name__ == "__main__":
    main()
