"""How far a merge is from its base, and how far its models are: sums over the entries of every tensor.

With delta_k = theta_k - base and change = theta - base, one Gram matrix of (delta_1, ..., delta_J, change, base) gives
all norms and cosines. With it goes a count of entries that several models changed, and of those of them where signs
disagree. Both are added up in the pass that merges, of large tensors over some blocks alone.

What it is worth: on fine-tunes that set no limit, whether a merge went farther than `MAX_RATIO` (`MAX_ALIGNED` where
changes point the same way in part) said of three merges in four whether they were worse than the start
(docs/evidence/checkpoints.md). That is an alarm and no measure: nothing but data says how well a merge answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from consilience.checkpoints.layers import LAYER
from consilience.checkpoints.methods.base import Floats, TensorBlock
from consilience.checks import Array, Json

SAMPLED = 8
"""Of a tensor of more blocks, one in so many is looked at, the first of them always."""
LOOKED_ENTRIES = 2**15
"""Of such a block, so many entries: with 8 blocks, norms are known to 0.2 %."""
MAX_RATIO = 1.0
"""Change over the largest change of a model from which most merges were worse than their start, where changes are about
orthogonal: between 0.8 and 1.2 on two sets of fine-tunes (docs/evidence/checkpoints.md)."""
MAX_ALIGNED = 0.5
"""The same where the mean cosine of changes is `ALIGNED` or more: there models overwrite the same directions."""
ALIGNED = 0.1
"""Of fine-tunes whose merges helped, cosines were below it; set with `MAX_ALIGNED` on one seed of three."""
MAX_OF_BASE = 0.5
"""Change of a model over its base from which, with `MIN_COSINE`, the base is none: fine-tunes had 0.1, models of other
starts 1.4."""
MIN_COSINE = 0.9
"""Cosine between changes from which, with `MAX_OF_BASE`, the base is none: 0.995 where it was another model's, 0.006 of
fine-tunes."""


def looked_at(block: TensorBlock, n_blocks: int) -> slice:
    """Return the entries of a block of so many that count in the sums: all, none, or the first ones."""
    if block.base is None or (n_blocks > SAMPLED and block.number % SAMPLED):
        return slice(0, 0)
    return slice(0, len(block.base) if n_blocks <= SAMPLED else LOOKED_ENTRIES)


def changes_of(block: TensorBlock, entries: slice) -> list[Floats]:
    """Return the changes of the models (J arrays of n), and the base last, before a method overwrites them."""
    assert block.base is not None  # noqa: S101  (`looked_at` has asked)
    base = block.base[entries].astype(np.float64)
    return [*(model[entries] - base for model in block.models), base]


def gram_of(changes: Sequence[Floats], merged: Floats) -> Array:
    """Return the Gram matrix of the models' changes, of the merge's, and of the base, and counts (J + 3, J + 2).

    The counts, first in the last row, are of entries that several models changed, and of those with both signs.
    """
    *deltas, base = changes
    rows = [*(np.asarray(delta, dtype=np.float64) for delta in deltas), np.subtract(merged, base, dtype=np.float64)]
    rows.append(np.asarray(base, dtype=np.float64))
    sums = np.zeros((len(rows) + 1, len(rows)))
    for i, one in enumerate(rows):
        for j, other in enumerate(rows[: i + 1]):
            sums[i, j] = sums[j, i] = np.dot(one, other)
    up, down, once, twice = np.zeros((4, len(base)), dtype=np.bool_)
    for delta in deltas:
        rises, falls = delta > 0, delta < 0
        up |= rises
        down |= falls
        changed = rises | falls
        twice |= once & changed
        once |= changed
    sums[-1, :2] = np.count_nonzero(twice), np.count_nonzero(up & down)
    return sums


def of_all(gram: Array, n_models: int) -> Array:
    """Return the sums of a tensor that the first models alone have, among those of all models (J + 3, J + 2)."""
    n = gram.shape[1] - 2
    if n == n_models:
        return gram
    rows = [*range(n), n_models, n_models + 1]
    every = np.zeros((n_models + 3, n_models + 2))
    every[np.ix_(rows, rows)] = gram[: n + 2]
    every[-1, :2] = gram[-1, :2]
    return every


def summary(grams: Mapping[str, Array], names: Sequence[str]) -> dict[str, Json]:
    """Return norms, cosines, ratios and conflicts of signs over all tensors, as JSON values rounded to four digits.

    `grams` are by tensor, `names` those of the models. Empty where nothing was summed.
    """
    if not grams:
        return {}
    total = np.sum([grams[name] for name in sorted(grams)], axis=0)
    n = len(names)
    norms = np.sqrt(np.diagonal(total))
    n_shared, n_conflicts = total[n + 2, :2]
    largest, base = float(norms[:n].max()), float(norms[n + 1])
    cosines = [
        float(total[i, j] / (norms[i] * norms[j])) for i in range(n) for j in range(i) if norms[i] > 0 and norms[j] > 0
    ]
    ratios = {name: _ratio(gram, n) for name, gram in grams.items()}
    furthest = sorted((name for name, one in ratios.items() if one is not None), key=lambda name: (-ratios[name], name))  # type: ignore[operator]
    return {
        "models": {name: _rounded(norm) for name, norm in zip(names, norms[:n], strict=False)},
        "merge": _rounded(norms[n]),
        "base": _rounded(base),
        "ratio": _rounded(norms[n] / largest) if largest > 0 else None,
        "of_base": _rounded(largest / base) if base > 0 else None,
        "cosine": _rounded(float(np.mean(cosines))) if cosines else None,
        "conflicts": _rounded(n_conflicts / n_shared) if n_shared else None,
        "layers": _by_layer(grams, n),
        "furthest": {name: _rounded(ratios[name] or 0.0) for name in furthest[:3]},
    }


def _by_layer(grams: Mapping[str, Array], n: int) -> dict[str, Json]:
    """Return of every layer how far the merge is from the base, over the furthest model, and conflicts of signs.

    Layers are named by their numbers, in models of several towers after what stands before these.
    """
    layers: dict[tuple[str, int], Array] = {}
    for name, gram in grams.items():
        if (match := LAYER.match(name)) is not None:
            place = match["stem"], int(match["number"])
            layers[place] = layers[place] + gram if place in layers else gram
    has_towers = len({stem for stem, _ in layers}) > 1
    found: dict[str, Json] = {}
    for stem, number in sorted(layers):
        gram = layers[stem, number]
        ratio, (n_shared, n_conflicts) = _ratio(gram, n), gram[n + 2, :2]
        found[f"{stem}{number}" if has_towers else str(number)] = {
            "ratio": None if ratio is None else _rounded(ratio),
            "conflicts": _rounded(n_conflicts / n_shared) if n_shared else None,
        }
    return found


def _ratio(gram: Array, n: int) -> float | None:
    """Return the change of the merge over the largest of the models, of one tensor."""
    largest = float(np.sqrt(np.diagonal(gram)[:n].max()))
    return float(np.sqrt(gram[n, n])) / largest if largest > 0 else None


def _rounded(value: float) -> float:
    return float(f"{float(value):.4g}")


def limit_of(found: Mapping[str, Json]) -> float:
    """Return the ratio from which most merges were worse than their start."""
    cosine = found.get("cosine")
    return MAX_ALIGNED if isinstance(cosine, float) and cosine >= ALIGNED else MAX_RATIO


def is_far(found: Mapping[str, Json]) -> bool:
    """Return whether a merge is beyond the limit."""
    ratio = found.get("ratio")
    return isinstance(ratio, float) and ratio > limit_of(found)


def sentences(found: Mapping[str, Json]) -> list[str]:
    """Return what a user should know, a sentence each."""
    ratio, of_base, cosine = (found.get(name) for name in ("ratio", "of_base", "cosine"))
    told = []
    if isinstance(ratio, float):
        told.append(f"the merge is {ratio:.2f} times as far from the base as the model that is furthest")
        limit = limit_of(found)
        if ratio > limit:
            told[-1] += (
                f": most fine-tunes merged so far were worse than their start; {limit / ratio:.2g} times this scaling"
                " is where they were not"
            )
    is_unrelated = isinstance(of_base, float) and of_base > MAX_OF_BASE
    if is_unrelated and isinstance(cosine, float) and cosine > MIN_COSINE:
        told.append(
            f"the models are {of_base:.2f} times as far from the base as it is large, and the cosine of their changes "
            f"is {cosine:.3f}: it is hardly what they were trained from"
        )
    return told
