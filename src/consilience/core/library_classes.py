"""Classes of objects by their names, so that models are recognised before libraries and rooms are imported."""

from __future__ import annotations

from functools import lru_cache


def library_classes(model: object) -> frozenset[tuple[str, str]]:
    """Return the (library, name) of the class of a model and of all its bases.

    Examples
    --------
    >>> ("builtins", "dict") in library_classes({})
    True
    """
    return _library_classes(type(model))  # type: ignore[arg-type]  # classes are hashable, which mypy does not see


@lru_cache(maxsize=256)  # every adapter asks the same of every model
def _library_classes(kind: type) -> frozenset[tuple[str, str]]:
    return frozenset((base.__module__.split(".")[0], base.__name__) for base in kind.__mro__)


def defined_in(model: object) -> frozenset[str]:
    """Return the packages that define the class of an object and its bases; of ours the room, "consilience.networks".

    Examples
    --------
    >>> import consilience as cs
    >>> sorted(defined_in(cs.KLFusion()))
    ['abc', 'builtins', 'consilience.core', 'consilience.posteriors']
    """
    return _defined_in(type(model))  # type: ignore[arg-type]  # as above


@lru_cache(maxsize=256)
def _defined_in(kind: type) -> frozenset[str]:
    parts = [base.__module__.split(".") for base in kind.__mro__]
    return frozenset(".".join(one[:2]) if one[0] == "consilience" else one[0] for one in parts)
