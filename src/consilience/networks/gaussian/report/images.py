"""Galleries of the images that a network is most and least certain of, as inline SVG; ordered by predictive entropy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from consilience.checks import Labels
from consilience.drawing.cells import N_SHADES, cell_map
from consilience.drawing.svg import WIDTH, drawing, text
from consilience.drawing.words import format_fixed
from consilience.errors import InputError
from consilience.networks.gaussian.predictive_scores import PredictiveScores
from consilience.networks.gaussian.report.content import Gallery, Picture

MAX_IMAGES = 10
"""Images that stand in one row: as many tiles as fit into `WIDTH`."""

MAX_PIXELS = 64
"""Height and width from which on images are refused: a page holds every pixel. Chosen by hand."""

_TILE_SIZE, _GAP, _CAPTION_HEIGHT = 66.0, 12.0, 40.0
"""Longer side of a tile, gap between tiles, and height of the two lines below each. Chosen by eye."""


def galleries_of(images: object, predictions: Mapping[str, PredictiveScores]) -> tuple[Gallery, ...]:
    """Return the images that models are most and least certain of.

    `images` (n, h, w) are by model those that its predictions are of, in their order. Raises InputError for images of
    no model whose predictions are known, of another number, or of another form.
    """
    if images is None:
        return ()
    if not isinstance(images, Mapping):
        text = f"expected arrays (n, h, w) by name of the model, found {type(images).__name__}"
        raise InputError("images", text, "write {'fused': ...}", "E-TYPE")
    galleries = []
    for name, pixels in images.items():
        if name not in predictions:
            remedy = "give its predictions under the same name"
            raise InputError("images", f"nothing is said of those of {name!r}", remedy, "E-NEEDED")
        scores = predictions[name]
        shades = _pixel_shades(pixels, scores.observations, f"images of {name!r}")
        order = np.argsort(scores.entropies, kind="stable").tolist()
        rows = [
            tuple(
                Picture(shades[i], int(scores.predicted[i]), int(scores.labels[i]), float(scores.entropies[i]))
                for i in ranked[:MAX_IMAGES]
            )
            for ranked in (order, order[::-1])
        ]
        galleries.append(Gallery(str(name), len(order), rows[0], rows[1]))
    return tuple(galleries)


def _pixel_shades(pixel_values: Any, n_images: int, argument: str) -> Labels:
    """Return the shade of every pixel (n, h, w), the least of all images blank and the largest darkest."""
    values = pixel_values.detach().cpu().numpy() if hasattr(pixel_values, "detach") else pixel_values
    try:
        pixels = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(argument, "expected numbers (n, h, w)", code="E-TYPE") from error
    if pixels.ndim != 3 or len(pixels) != n_images or 0 in pixels.shape:
        text = f"expected an array ({n_images}, h, w), one image for each input, found {pixels.shape}"
        raise InputError(argument, text, code="E-SHAPE")
    if max(pixels.shape[1:]) > MAX_PIXELS:
        text = f"have {pixels.shape[1]} × {pixels.shape[2]} pixels, at most {MAX_PIXELS} × {MAX_PIXELS} can be shown"
        raise InputError(argument, text, "give smaller ones", "E-SHAPE")
    if not np.isfinite(pixels).all():
        raise InputError(argument, "have NaN or infinite values", code="E-NUMBER")
    low, high = float(pixels.min()), float(pixels.max())
    scaled = (pixels - low) / (high - low) if high > low else np.zeros_like(pixels)
    return np.minimum((scaled * N_SHADES).astype(np.int64), N_SHADES - 1)


def picture_row(pictures: tuple[Picture, ...], row_name: str) -> Markup:
    """Return a row of images with their predicted classes and entropies; `row_name` says which images these are."""
    height, width = pictures[0].shades.shape
    scale = _TILE_SIZE / max(height, width)
    parts: list[Markup] = []
    for index, picture in enumerate(pictures):
        left = index * (_TILE_SIZE + _GAP) + 6.0
        parts.append(cell_map(picture.shades, left, 2.0, scale * width, scale * height))
        centre_x = left + 0.5 * scale * width
        is_wrong = picture.predicted != picture.label
        parts.append(
            text(centre_x, scale * height + 19, _class_text(picture), "missed" if is_wrong else "tick", "middle")
        )
        parts.append(text(centre_x, scale * height + 35, format_fixed(picture.entropy, 3), "tick", "middle"))
    descriptions = ", ".join(f"{_class_text(picture)} ({format_fixed(picture.entropy, 3)})" for picture in pictures)
    return drawing(
        parts,
        scale * height + _CAPTION_HEIGHT,
        f"{row_name}, with predicted class and entropy in nats: {descriptions}.",
        WIDTH,
    )


def _class_text(picture: Picture) -> str:
    return str(picture.predicted) if picture.predicted == picture.label else f"{picture.predicted}, not {picture.label}"
