"""Files of barrier curves and plane surfaces: safetensors of float64 arrays, to redraw figures without evaluation.

The header's metadata has one key, ``consilience``, whose value is a JSON document: what it is, and lists of names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np

from consilience.checks import Array
from consilience.errors import FileFormatError, InputError
from consilience.files.arrays import write_arrays as write_file
from consilience.files.safetensors_file import SafetensorsFile

T = TypeVar("T")
Arrays = dict[str, Array]
Names = dict[str, list[str]]
_FORMAT_VERSION = 1
"""Version of the format of curves and surfaces; a file of another version is refused."""


def write_arrays(path: str | Path, kind: str, arrays: Mapping[str, Array], names: Mapping[str, list[str]]) -> None:
    """Write arrays and lists of names, whole or not at all.

    Parameters
    ----------
    path : str or Path
        The file.
    kind : str
        What it holds: ``barrier`` or ``plane``; part of the format's name.
    arrays : mapping of str to ndarray
        Written as float64.
    names : mapping of str to list of str
        Names that belong to the arrays, such as those of markers.
    """
    header = {"format": f"consilience-{kind}", "format_version": _FORMAT_VERSION, "names": dict(names)}
    rows = {name: np.asarray(values, dtype=np.float64, order="C") for name, values in arrays.items()}
    write_file(Path(path), rows, json.dumps(header, sort_keys=True))


def read_arrays(path: str | Path, kind: str, build: Callable[[Arrays, Names], T]) -> T:
    """Return what `build` makes of the arrays and names in a file.

    Parameters
    ----------
    path, kind
        As for `write_arrays`.
    build : callable
        Function of the arrays and the lists of names.

    Raises
    ------
    FileFormatError
        When the file is missing, no such file, or `build` finds an array or name missing or of another shape.
    """
    file = SafetensorsFile(path)
    try:
        header = file.document
        arrays = {name: np.asarray(values, dtype=np.float64) for name, values in file.arrays().items()}
    except FileFormatError as error:
        reason = "; ".join(problem.without_subject() for problem in error.problems)
        raise FileFormatError(path, f"cannot be read as a {kind} file: {reason}") from error
    expected_format = {"format": f"consilience-{kind}", "format_version": _FORMAT_VERSION}
    file_format = {name: header.get(name) for name in expected_format} if isinstance(header, dict) else {}
    if file_format != expected_format:
        raise FileFormatError(
            path, f"expected a file of format {expected_format}, found {file_format}", "write it with .save(path)"
        )
    try:
        return build(arrays, {key: [str(name) for name in names] for key, names in header["names"].items()})
    except (KeyError, AttributeError, TypeError, InputError) as error:
        raise FileFormatError(path, f"is damaged: {error}") from error
