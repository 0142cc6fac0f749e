"""Files of barrier curves, plane surfaces and moments of layers: float64 arrays with lists of names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from consilience.checks import Array
from consilience.errors import FileFormatError, InputError
from consilience.files.format import Format
from consilience.files.safetensors_file import SafetensorsFile
from consilience.files.schemas import Chunked, StrictModel

T = TypeVar("T")
Arrays = dict[str, Array]
Names = dict[str, list[str]]


class NamesHeader(StrictModel):
    """The JSON document in the header: what it is, and names that belong to the arrays, such as those of markers."""

    format: str
    format_version: Literal[1]
    library_version: str
    names: Chunked[dict[str, list[str]]]


def format_of_arrays(kind: str, build: Callable[[Arrays, Names], T]) -> Format[NamesHeader, T]:
    """Return the format of files of some kind, whose content `build` makes of arrays and lists of names.

    It may find an array or name missing or of another shape.
    """
    tag = f"consilience-{kind}"

    def make(file: SafetensorsFile, header: NamesHeader, arrays: dict[str, Any]) -> tuple[T, None]:
        rows = {name: np.asarray(values, dtype=np.float64) for name, values in arrays.items()}
        try:
            return build(rows, dict(header.names)), None
        except (KeyError, AttributeError, TypeError, InputError) as error:
            raise FileFormatError(file, f"is damaged: {error}") from error

    return Format(tag, 1, NamesHeader, f"a {kind} file", make, remedy=_REMEDY)


_REMEDY = "write it with .save(path)"


def write_arrays(
    form: Format[NamesHeader, Any], path: str | Path, arrays: Mapping[str, Array], names: Mapping[str, list[str]]
) -> None:
    """Write arrays, as float64, and lists of names, whole or not at all."""
    rows = {name: np.asarray(values, dtype=np.float64, order="C") for name, values in arrays.items()}
    form.write(Path(path), {"names": dict(names)}, rows)
