"""Labels of classes: typed, matched by value, never by position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.checks import Labels
from consilience.errors import InputError

Label = str | int | float | bool
"""A label as JSON has it."""

_KINDS = {bool: "booleans", int: "integers", float: "real numbers", str: "texts"}


@dataclass(frozen=True)
class ClassLabels:
    """The classes of a classifier, in the order of its arrays.

    Parameters
    ----------
    values : tuple of str, int, float or bool
        The labels, all of one type.
    are_objects : bool, optional
        Whether ``classes_`` is an array of Python objects, as from a table. Default: False.
    """

    values: tuple[Label, ...]
    are_objects: bool = False

    def __post_init__(self) -> None:
        if len(self.kinds()) > 1:
            text = f"expected labels of one type, found {' and '.join(self.kinds())}"
            raise InputError("classes", text, code="E-TYPE")
        if odd := [value for value in self.values if type(value) not in _KINDS]:
            text = f"expected texts or numbers, found {type(odd[0]).__name__} {odd[0]!r:.80}"
            raise InputError("classes", text, code="E-TYPE")
        if any(isinstance(value, float) and not math.isfinite(value) for value in self.values):
            raise InputError("classes", "expected labels that are finite, found one that is not", code="E-NUMBER")
        if len(set(self.values)) < len(self.values):
            raise InputError("classes", "has a class twice", code="E-TWICE")

    @classmethod
    def of(cls, classes: Any) -> ClassLabels:
        """Return the labels of an estimator's ``classes_``."""
        array = np.asarray(classes)
        if array.ndim != 1:
            text = "expected one label for every row; several labels a row cannot be fused"
            raise InputError("classes", text, code="E-SHAPE")
        return cls(tuple(array.tolist()), array.dtype == object)

    def kinds(self) -> list[str]:
        """Return of what type the labels are, in words; one, if they are valid."""
        return sorted({_KINDS.get(type(value), type(value).__name__) for value in self.values})

    def __len__(self) -> int:
        return len(self.values)

    @property
    def names(self) -> tuple[str, ...]:
        """The labels as texts."""
        return tuple(map(str, self.values))

    def array(self) -> Any:
        """Return the labels as ``classes_``."""
        return np.array(self.values, dtype=object if self.are_objects else None)

    def positions_in(self, others: ClassLabels, absent: int | None = None) -> Labels:
        """Return the position of every label among those of `others`, and `absent` of one that is not there."""
        position_of = {value: position for position, value in enumerate(others.values)}
        if absent is not None:
            return np.array([position_of.get(value, absent) for value in self.values], dtype=np.int64)
        return np.array([position_of[value] for value in self.values], dtype=np.int64)

    def numbers_of(self, labels: Any, what: str = "y") -> Labels:
        """Return the position of every row's label (n,)."""
        position_of = {value: position for position, value in enumerate(self.values)}
        present, inverse = np.unique(np.asarray(labels), return_inverse=True)
        if odd := [value for value in present.tolist() if value not in position_of]:
            known = ", ".join(map(repr, self.values[:8]))
            text = f"has the class {odd[0]!r}, which the model does not know; it knows {known}"
            raise InputError(what, text, code="E-MISMATCH")
        return np.array([position_of[value] for value in present.tolist()], dtype=np.int64)[inverse]


def union(sites: Sequence[ClassLabels]) -> ClassLabels:
    """Return the classes that any site knows, sorted as scikit-learn sorts them."""
    values = {value for site in sites for value in site.values}
    are_objects = any(site.are_objects for site in sites)
    return ClassLabels(tuple(np.unique(np.array(sorted(values))).tolist()) if values else (), are_objects)
