"""Numbers of files that keep to every rule of their format, and with which nothing can be calculated."""

from __future__ import annotations

import numpy as np

from consilience.errors import FileFormatError, Problem
from consilience.files.safetensors_file import SafetensorsFile

LARGEST, SMALLEST = 1e100, 1e-100
"""Sizes of numbers between which cubes and their inverses are finite in float64. Physical quantities in SI units lie
within 1e-40 and 1e60."""


def extreme_number(file: SafetensorsFile) -> Problem | None:
    """Return that a file has a number that is not finite, or so large or small that powers of it overflow."""
    try:
        arrays = file.arrays()
    except FileFormatError:  # said by whoever reads it
        return None
    for name, array in arrays.items():
        values = np.abs(np.asarray(array.double() if hasattr(array, "double") else array, np.float64).reshape(-1))
        is_extreme = ~((values == 0) | ((values >= SMALLEST) & (values <= LARGEST)))
        if is_extreme.any():
            place = int(np.flatnonzero(is_extreme)[0])
            text = f"has a number too extreme to calculate with in {name!r:.60}: {values[place]:.3g} in size"
            return Problem(file, text, "fit it again, with columns in other units", "E-NUMBER")
    return None
