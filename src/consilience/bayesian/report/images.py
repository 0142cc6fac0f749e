"""Images that a network is most and least certain of, as inline SVG."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from consilience.bayesian.report.content import Gallery, Picture
from consilience.bayesian.report.predictions import Predictive
from consilience.checks import Labels
from consilience.drawing.cells import SHADES, cells
from consilience.drawing.svg import WIDTH, drawing, text
from consilience.drawing.words import fixed
from consilience.errors import InputError

SHOWN_AT_MOST = 10
"""Images that stand in one row."""

PIXELS_AT_MOST = 64
"""Larger images are refused: a page holds every pixel."""

_TILE, _GAP, _WORDS = 66.0, 12.0, 40.0


def galleries_of(images: object, predictions: Mapping[str, Predictive]) -> tuple[Gallery, ...]:
    """Return the images that models are most and least certain of.

    Parameters
    ----------
    images
        By model, the images (n, h, w) that its predictions are of, in their order.
    predictions
        What is said of them, by model.

    Raises
    ------
    InputError
        For images of no model whose predictions are known, of another number, or of another form.
    """
    if images is None:
        return ()
    if not isinstance(images, Mapping):
        raise InputError(
            f"images: expected arrays (n, h, w) by name of the model, found {type(images).__name__}; write "
            "{'fused': ...}"
        )
    found = []
    for name, pixels in images.items():
        if name not in predictions:
            raise InputError(f"images: nothing is said of those of {name!r}; give its predictions under the same name")
        scores = predictions[name]
        shades = _shades(pixels, scores.observations, f"images of {name!r}")
        order = np.argsort(scores.entropies, kind="stable").tolist()
        rows = [
            tuple(
                Picture(shades[i], int(scores.predicted[i]), int(scores.labels[i]), float(scores.entropies[i]))
                for i in chosen[:SHOWN_AT_MOST]
            )
            for chosen in (order, order[::-1])
        ]
        found.append(Gallery(str(name), len(order), rows[0], rows[1]))
    return tuple(found)


def _shades(given: Any, count: int, what: str) -> Labels:
    """Return the shade of every pixel (n, h, w), the least of all images blank and the largest darkest."""
    values = given.detach().cpu().numpy() if hasattr(given, "detach") else given
    try:
        pixels = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what}: expected numbers (n, h, w)") from error
    if pixels.ndim != 3 or len(pixels) != count or 0 in pixels.shape:
        raise InputError(f"{what}: expected an array ({count}, h, w), one image for each input, found {pixels.shape}")
    if max(pixels.shape[1:]) > PIXELS_AT_MOST:
        raise InputError(
            f"{what}: have {pixels.shape[1]} × {pixels.shape[2]} pixels, at most {PIXELS_AT_MOST} × {PIXELS_AT_MOST} "
            "can be shown; give smaller ones"
        )
    if not np.isfinite(pixels).all():
        raise InputError(f"{what}: have NaN or infinite values")
    low, high = float(pixels.min()), float(pixels.max())
    scaled = (pixels - low) / (high - low) if high > low else np.zeros_like(pixels)
    return np.minimum((scaled * SHADES).astype(np.int64), SHADES - 1)


def picture_row(pictures: tuple[Picture, ...], said: str) -> Markup:
    """Return a row of images with the class that each is said to be, and the entropy; `said` names the row."""
    height, width = pictures[0].shades.shape
    scale = _TILE / max(height, width)
    parts: list[Markup] = []
    for place, one in enumerate(pictures):
        left = place * (_TILE + _GAP) + 6.0
        parts.append(cells(one.shades, left, 2.0, scale * width, scale * height))
        middle = left + 0.5 * scale * width
        wrong = one.predicted != one.label
        parts.append(text(middle, scale * height + 19, _class(one), "missed" if wrong else "tick", "middle"))
        parts.append(text(middle, scale * height + 35, fixed(one.entropy, 3), "tick", "middle"))
    told = ", ".join(f"{_class(one)} ({fixed(one.entropy, 3)})" for one in pictures)
    return drawing(parts, scale * height + _WORDS, f"{said}, with predicted class and entropy in nats: {told}.", WIDTH)


def _class(one: Picture) -> str:
    return str(one.predicted) if one.predicted == one.label else f"{one.predicted}, not {one.label}"
