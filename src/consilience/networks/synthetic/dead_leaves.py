"""Dead leaves: images of ellipses that cover each other, which have the edges and the spectrum of pictures.

Ellipses have random positions, colours and sizes (by a power law). (Lee, Mumford, Huang 2001, "Occlusion models for
natural images"; that networks learn from them: Baradad, Wulff, Wang, Isola, Torralba 2021, "Learning to See by Looking
at Noise", NeurIPS.)
"""

from __future__ import annotations

import numpy as np

_N_LEAVES = 80
"""Ellipses in an image. The settings of images were judged by the refit of VGG11 and ResNet20 on validation images of
one seed (docs/evidence/networks.md); which other values were tried is not recorded."""
_LEAF_RADII = (0.058, 0.78)
"""Radii of the smallest and the largest ellipse, as shares of the image's side; chosen as `_N_LEAVES`."""
_CHANNEL_CORRELATION = 0.9
"""Correlation of the channels of a colour: pictures are more bright or dark than coloured. Chosen as `_N_LEAVES`."""


def dead_leaves(count: int, shape: tuple[int, ...], rng: np.random.Generator, covered: bool = False) -> np.ndarray:
    """Return images (count, channels, height, width) of ellipses that cover each other, float32.

    What no leaf covers, about a sixth of a square image, is 0; or, if `covered`, has a colour too, one for each image,
    so that values have unit variance.
    """
    channels, height, width = shape
    side = max(height, width)
    rows, columns = np.arange(height, dtype=np.float32)[:, None], np.arange(width, dtype=np.float32)
    # Colours are normal, of unit variance and equal correlation between channels.
    covariance = np.full((channels, channels), _CHANNEL_CORRELATION) + (1 - _CHANNEL_CORRELATION) * np.eye(channels)
    colour_factor = np.linalg.cholesky(covariance)
    smallest, largest = (side * radius for radius in _LEAF_RADII)
    images = np.zeros((count, *shape), dtype=np.float32)
    if covered:
        images += (rng.standard_normal((count, channels)) @ colour_factor.T).astype(np.float32)[:, :, None, None]
    for _ in range(_N_LEAVES):
        # Centres lie up to an eighth of the side outside of the image, so that its edge is covered as its middle is.
        centre = (rng.random((2, count, 1, 1)) * 1.25 - 0.125) * np.array([height, width]).reshape(2, 1, 1, 1)
        # Areas with a density of 1 / area^2 beside the limits: radii of 1 / sqrt(uniform).
        radius = smallest / (np.sqrt(rng.random((count, 1, 1))) + smallest / largest)
        # Axes are stretched by 0.6 to 1.4 and shrunk by as much, so that the area stays; chosen as the other settings.
        angle, stretch = rng.random((count, 1, 1)) * np.pi, 0.6 + 0.8 * rng.random((count, 1, 1))
        y, x = rows - centre[0].astype(np.float32), columns - centre[1].astype(np.float32)  # (count, height, width)
        cosine, sine = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        along, across = (x * cosine + y * sine) * stretch, (y * cosine - x * sine) / stretch
        is_inside = along**2 + across**2 < radius**2
        colour = (rng.standard_normal((count, channels)) @ colour_factor.T).astype(np.float32)
        # (count, 1, height, width) and (count, channels, 1, 1): a later leaf covers earlier ones.
        images = np.where(is_inside[:, None], colour[:, :, None, None], images)
    return images
