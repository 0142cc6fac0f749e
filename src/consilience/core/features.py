"""What the columns of data mean: names, units, scaling, classes, categories, as stated or as a table has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from consilience.checks import Json
from consilience.core.frozen import FrozenDict
from consilience.drawing.display import Displayed, names_in_line
from consilience.drawing.words import format_count
from consilience.errors import InputError
from consilience.files.tables import NamedTable, as_named_table, read_named_table


@dataclass(frozen=True, repr=False)
class Features(Displayed):
    """What the data columns mean, so that models of different columns are not fused by mistake.

    Parameters
    ----------
    names
        Column names in order: features, or the vocabulary of a topic model.
    units
        Unit of each column.
    scaling
        Name -> numbers of a transformation that every site must share, such as ``{"mean": ..., "scale": ...}``.
    classes
        Order of class labels, for models that have them.
    categories
        Column name -> its categories in their order, of columns that are categorical: what a code of 0, 1, ... means.
    from_columns
        Whether the model itself was trained on named columns, so that a rebuilt one expects them too.
    """

    names: tuple[str, ...] | None = None
    units: tuple[str, ...] | None = None
    scaling: Mapping[str, tuple[float, ...]] | None = None
    classes: tuple[str, ...] | None = None
    from_columns: bool = False
    categories: Mapping[str, Sequence[str]] | None = None

    def __post_init__(self) -> None:
        for name in ("names", "units", "classes"):
            values: Sequence[Any] | None = getattr(self, name)
            if values is not None:
                object.__setattr__(self, name, tuple(str(value) for value in values))
        if self.scaling is not None:
            scaling = {str(key): tuple(float(v) for v in values) for key, values in self.scaling.items()}
            object.__setattr__(self, "scaling", FrozenDict(scaling))
        if self.categories is not None:
            categories = {str(key): tuple(str(v) for v in values) for key, values in self.categories.items()}
            object.__setattr__(self, "categories", FrozenDict(categories) or None)

    def _headline(self) -> str:
        return "unnamed" if self.names is None else format_count(len(self.names), "column")

    def _facts(self) -> dict[str, object | None]:
        return {
            "names": names_in_line(self.names or ()),
            "units": names_in_line(self.units or ()),
            "classes": names_in_line(self.classes or ()),
            "scaling": names_in_line(tuple(self.scaling or ())),
            "categories": names_in_line(self.categories_in_words(), 80),
        }

    def to_json(self) -> dict[str, Json]:
        """Return the given fields as JSON values."""
        fields: dict[str, Json] = {
            name: None if getattr(self, name) is None else list(getattr(self, name))
            for name in ("names", "units", "classes")
        }
        fields["scaling"] = None if self.scaling is None else {key: list(v) for key, v in self.scaling.items()}
        fields["categories"] = None if self.categories is None else {key: list(v) for key, v in self.categories.items()}
        fields["from_columns"] = self.from_columns or None
        return {name: value for name, value in fields.items() if value is not None}

    def differences(self, other: Features) -> list[str]:
        """Return how `other` differs in what both state, each with the remedy."""
        texts = []
        for subject, expected, stated in (
            ("features", self.names, other.names),
            ("units", self.units, other.units),
            ("classes", self.classes, other.classes),
        ):
            if expected is None or stated is None or expected == stated:
                continue
            if sorted(expected) == sorted(stated):
                text = f"has the same {subject} in another order"
                texts.append(f"{text}; train with the columns ordered {_first(expected)}")
            elif len(expected) != len(stated):
                texts.append(f"has {len(stated)} {subject}, expected {len(expected)}: {_first(expected)}")
            else:
                index = next(i for i, (a, b) in enumerate(zip(expected, stated, strict=True)) if a != b)
                texts.append(f"has other {subject}: number {index} is {stated[index]!r}, expected {expected[index]!r}")
        if self.scaling is not None and other.scaling is not None and dict(self.scaling) != dict(other.scaling):
            texts.append("was trained on columns scaled by other numbers; agree on one scaling for all sites")
        return texts + self._category_differences(other)

    def categories_in_words(self) -> tuple[str, ...]:
        """Return the categories of each column that has some, in a line for each."""
        columns = (self.categories or {}).items()
        return tuple(f"{name} ({', '.join(values[:8])}{', ...' * (len(values) > 8)})" for name, values in columns)

    def _category_differences(self, other: Features) -> list[str]:
        """Return the columns whose categories `other` has in another order, or has others of, each with the remedy."""
        texts = []
        for name, expected in (self.categories or {}).items():
            stated = (other.categories or {}).get(name, expected)
            if stated == expected:
                continue
            if sorted(stated) == sorted(expected):
                text = f"has the categories of column {name!r} in another order ({_first(stated)})"
                remedy = f"order them {_first(expected)}"
            else:
                lacks, more = (sorted(set(one) - set(two)) for one, two in ((expected, stated), (stated, expected)))
                odd = [f"{word} {_first(found)}" for word, found in (("lacks", lacks), ("also has", more)) if found]
                text = f"has other categories of column {name!r}: {'; '.join(odd) or _first(stated)}"
                text = text.replace(";", " and")
                remedy = f"declare {_first(expected)} at all sites, whoever has rows of them"
            texts.append(f"{text}; {remedy}")
        return texts


def as_features(features: Any) -> Features | None:
    """Return what columns mean: `Features` as they are, or made of names, or of units or categories by name.

    None stays None. A column's unit is a text, and its categories are a sequence of texts.

    Raises
    ------
    InputError
        For anything else.

    Examples
    --------
    >>> as_features({"age": "years", "bmi": "kg/m2"}).units
    ('years', 'kg/m2')
    >>> as_features({"age": "years", "sex": ["f", "m"]}).categories["sex"]
    ('f', 'm')
    """
    if features is None or isinstance(features, Features):
        return features
    if isinstance(features, Mapping) and all(map(_is_unit_or_categories, features.values())):
        return _of_statements(features)
    names = () if isinstance(features, str | bytes | Mapping) or not isinstance(features, Iterable) else tuple(features)
    if names and all(isinstance(name, str) for name in names):
        return Features(names=names)
    expected = "names of the columns, a mapping of names to units or categories, or consilience.Features"
    text = f"expected {expected}, found {type(features).__name__} {features!r:.60}"
    raise InputError("features", text, code="E-NUMBER")


def _of_statements(stated: Mapping[str, Any]) -> Features:
    """Return columns of which a unit, a text, or categories are stated; no units where categories alone are."""
    categories = {name: tuple(values) for name, values in stated.items() if not isinstance(values, str)}
    units = tuple("" if name in categories else unit for name, unit in stated.items())
    has_units = any(units) or not categories
    return Features(names=tuple(stated), units=units if has_units else None, categories=categories or None)


def _is_unit_or_categories(stated: object) -> bool:
    if isinstance(stated, bytes) or not isinstance(stated, Sequence):
        return False
    return isinstance(stated, str) or (len(stated) > 0 and all(isinstance(one, str) for one in stated))


def _first(names: Sequence[str], count: int = 5) -> str:
    return ", ".join(names[:count]) + (", ..." if len(names) > count else "")


def sklearn_features(model: Any) -> Features:
    """Return the column names that scikit-learn recorded, where it did."""
    names = getattr(model, "feature_names_in_", None)
    return Features() if names is None else Features(names=tuple(str(name) for name in names), from_columns=True)


def is_pipeline(model: object) -> bool:
    """Return whether an object is a scikit-learn Pipeline."""
    return any(base.__name__ == "Pipeline" and base.__module__.startswith("sklearn.") for base in type(model).__mro__)


def final_model(pipeline: Any) -> Any:
    """Return the last step of a Pipeline: the model that its other steps scale data for."""
    return pipeline.steps[-1][1]


def features_of(features: Any, model: Any, data: Any) -> Features | None:
    """Return what columns mean as it is stated, or by the names that a table of data has; None where neither says it.

    Categories of columns are taken from a table that has them, also where the model knows the names. A model that was
    fitted to an array does not know the names of its columns, while the table beside it does. They are
    taken where it has as many columns as the model.
    """
    stated = as_features(features)
    n_columns = getattr(model, "n_features_in_", None)
    is_known = n_columns is None if stated is None else stated.categories is not None
    rows, target = data if isinstance(data, tuple) and len(data) == 2 else (data, None)
    table = None if is_known else _table(rows)
    if table is None:
        return stated
    if stated is not None:
        return replace(stated, categories=_categories(table, stated.names or ()))
    names = tuple(name for name in table.header if not (isinstance(target, str) and name == target))
    found = Features(names=names, categories=_categories(table, names))
    known = getattr(model, "feature_names_in_", None)  # its adapter takes the names
    if known is not None:
        return found if found.categories and tuple(map(str, known)) == names else None
    return found if len(set(names)) == len(names) == n_columns else None


def _table(rows: Any) -> NamedTable | None:
    """Return rows, or those in a file, as a table; None where their columns have no names, and for no rows."""
    return read_named_table(Path(rows)) if isinstance(rows, str | Path) else as_named_table(rows)


def _categories(table: NamedTable, names: Sequence[str]) -> dict[str, tuple[str, ...]] | None:
    """Return the categories of the named columns that have some; None where none has."""
    return {name: table.categories[name] for name in names if name in table.categories} or None
