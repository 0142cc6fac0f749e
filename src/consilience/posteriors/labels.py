"""Components with labels, such as the classes of a classifier: the same label is the same component.

Nothing is matched by divergence then. The fused model has the union of the labels of all sites that have weight, sorted
as texts, and the average of the components of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from consilience.checks import Array, Labels
from consilience.posteriors.posterior import Posterior


def label_problems(posterior: Posterior) -> list[str]:
    """Return what is wrong with the labels of a posterior that must have them, a line each."""
    labels, n_components = posterior.features.classes, posterior.n_components
    if labels is None or len(labels) != n_components:
        stated = "no" if labels is None else len(labels)
        return [f"has {stated} labels in features.classes for {n_components} components, expected one for each"]
    return [
        f"has the label {label!r} for {count} components, expected one"
        for label, count in Counter(labels).items()
        if count > 1
    ]


def group_by_label(posteriors: Sequence[Posterior], site_weights: Array) -> Labels:
    """Return the group of every component (L,): the number of its label among the sorted labels of sites with weight.

    A label that only sites without weight have is in no group: -1.
    """
    labels_by_site = [posterior.features.classes or () for posterior in posteriors]
    weighted = {label for labels, w in zip(labels_by_site, site_weights, strict=True) if w > 0 for label in labels}
    number_of_label = {label: number for number, label in enumerate(sorted(weighted))}
    return np.array([number_of_label.get(label, -1) for labels in labels_by_site for label in labels], dtype=np.int64)


def with_labels(fused: Posterior, posteriors: Sequence[Posterior], groups: Labels) -> Posterior:
    """Return a fused posterior with the labels of its components; `groups` (L,) are those of the sites' components."""
    labels = [label for posterior in posteriors for label in posterior.features.classes or ()]
    label_of_group = {int(group): label for group, label in zip(groups, labels, strict=True)}
    classes = tuple(label_of_group[group] for group in range(fused.n_components))
    return replace(fused, features=replace(fused.features, classes=classes))
