"""Options of methods: frozen fields that are checked, and methods made by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from typing import Any, ClassVar, TypeVar

from consilience.core.deprecated import renamed_keyword
from consilience.errors import OptionError


class Options:
    """What has a name and fields that are its options."""

    name: ClassVar[str]

    def require(self, *requirements: tuple[str, bool, str]) -> None:
        """Raise for the first option that is not valid.

        Parameters
        ----------
        *requirements : (str, bool, str)
            Name of an option, whether it is valid, and what it must be.

        Raises
        ------
        OptionError
            Naming the option, what it must be, and what it is.
        """
        for option, is_valid, expected in requirements:
            if not is_valid:
                raise OptionError(f"{self.name}: option {option} must be {expected}, found {getattr(self, option)!r}")


_Method = TypeVar("_Method", bound=type[Any])


def renamed_options(**renamed: str) -> Callable[[_Method], _Method]:
    """Let a method's class take options under old names too, deprecated since 0.2, as ``old="new"``."""

    def decorate(method: _Method) -> _Method:
        original = method.__init__

        @wraps(original)
        def initialise(self: Any, *args: Any, **options: Any) -> None:
            for old, new in renamed.items():
                if old in options:
                    value = renamed_keyword(old, options.pop(old), new, options.get(new))
                    options[new] = value
            original(self, *args, **options)

        method.__init__ = initialise
        method.renamed_options = renamed
        return method

    return decorate


_Kind = TypeVar("_Kind", bound=Options)


def refuse_options(method: Options, options: Mapping[str, Any]) -> None:
    """Raise if there are options beside a method that has its own."""
    if options:
        raise OptionError(f"options {sorted(options)} belong inside {type(method).__name__}(...)")


def find_method(
    kinds: Sequence[type[_Kind]], name: object, options: Mapping[str, Any], where: str = ""
) -> Callable[..., _Kind]:
    """Return the class of the method of a name, which has these options.

    Raises
    ------
    OptionError
        For a name or an option that does not exist, saying which do.
    """
    by_name = {kind.name: kind for kind in kinds}
    if not any(name == known for known in by_name):
        raise OptionError(f"method {name!r} does not exist{where}; there are {', '.join(by_name)}")
    method: Any = by_name[str(name)]
    known = [option.name for option in fields(method)]
    old_names = getattr(method, "renamed_options", {})
    if unknown := sorted(set(options) - {*known, *old_names}):
        raise OptionError(f"method {name!r} has no option {', '.join(unknown)}; it has {', '.join(sorted(known))}")
    constructor: Callable[..., _Kind] = method
    return constructor
