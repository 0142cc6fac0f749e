"""A dictionary that refuses to be changed, and that travels: it can be pickled, copied and written as JSON."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class FrozenDict(dict[Key, Value]):
    """A dictionary that refuses to be changed.

    It stands where ``types.MappingProxyType`` would, which cannot be pickled, so that a value that holds one could go
    to no other process.

    Examples
    --------
    >>> from copy import deepcopy
    >>> deepcopy(FrozenDict(a=[1]))  # made again as another process makes it
    {'a': [1]}
    >>> FrozenDict(a=1)["a"] = 2
    Traceback (most recent call last):
    TypeError: this mapping cannot be changed; change a copy: `dict(mapping)`
    """

    def _refuse(self, *_args: Any, **_named: Any) -> NoReturn:
        raise TypeError("this mapping cannot be changed; change a copy: `dict(mapping)`")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how it is made again: pickling and deep copies would else set one item after another."""
        return type(self), (dict(self),)
