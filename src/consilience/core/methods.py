"""The methods of a kind: a table of their classes, and how one is made, the same for every kind."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from importlib import import_module
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

from consilience.catalogue import suggestion, with_suggestions
from consilience.core.arguments import CALL_KEYWORDS
from consilience.drawing.words import shorten
from consilience.errors import OptionError

Requirement = tuple[str, bool, str]
"""Name of an option, whether its value is valid, and what it must be."""


MAX_VALUE, MAX_REPR = 40, 400
"""Letters of one option, and of all of a method, in its repr: arrays may be given as options."""


class Options:
    """What has a name and fields that are its options."""

    name: ClassVar[str]

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        if "__repr__" not in vars(cls):  # before ``dataclass`` makes one, which it leaves out where there is one
            cls.__repr__ = Options.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        """Return what makes it again: the class and the options that are not the default."""
        stated = [f"{name}={shorten(repr(value), MAX_VALUE)}" for name, value in self.stated_options().items()]
        return shorten(f"{type(self).__name__}({', '.join(stated)})", MAX_REPR)

    def stated_options(self) -> dict[str, Any]:
        """Return the options that are not the default, by name."""
        stated = {}
        for option in fields(cast(Any, self)):
            value = getattr(self, option.name)
            default = option.default_factory() if option.default_factory is not MISSING else option.default
            if value is not default and repr(value) != repr(default):
                stated[option.name] = value
        return stated

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the options by name, as scikit-learn's tools ask for them.

        Parameters
        ----------
        deep : bool, default True
            Without a meaning here: no option is an estimator.
        """
        del deep
        return {option.name: getattr(self, option.name) for option in fields(cast(Any, self))}

    def set_params(self, **options: Any) -> Self:
        """Return a method with these options changed; methods are frozen, so that this one stays what it is.

        Raises
        ------
        OptionError
            For an option that does not exist, or a value that is not valid.

        Examples
        --------
        >>> import consilience as cs
        >>> cs.methods.KLFusion().set_params(regularization=0.3)
        KLFusion(regularization=0.3)
        """
        return make_named_method([type(self)], self.name, {**self.get_params(), **options})

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be; the first that is not valid is refused, and none after it is asked for.

        That an option annotated as ``bool`` is one need not be said.
        """
        yield from ()

    def __post_init__(self) -> None:
        for option in fields(cast(Any, self)):
            if option.type in ("bool", bool) and not isinstance(getattr(self, option.name), bool):
                raise self.invalid(option.name, "true or false")
        try:
            for name, is_valid, expected in self.requirements():
                if not is_valid:
                    raise self.invalid(name, expected)
        except OptionError:
            raise
        except (TypeError, ValueError, AttributeError, OverflowError) as error:  # of values that cannot be compared
            stated = ", ".join(f"{option}={value!r:.80}" for option, value in vars(self).items())
            raise OptionError(self.name, f"an option has a value of a type that it does not take: {stated}") from error

    def invalid(self, option: str, expected: str) -> OptionError:
        """Return the error for an option that is not what it must be."""
        return OptionError(self.name, f"option {option} must be {expected}, found {getattr(self, option)!r}")


_Kind = TypeVar("_Kind", bound=Options)


def refuse_options(method: Options, options: Mapping[str, Any]) -> None:
    """Raise OptionError for options given along with a method object, which has its own."""
    if options:
        raise OptionError(f"options {sorted(options)} belong inside {type(method).__name__}(...)")


def make_named_method(
    kinds: Sequence[type[_Kind]],
    name: object,
    options: Mapping[str, Any],
    where: str = "",
    keywords: Collection[str] = CALL_KEYWORDS,
) -> _Kind:
    """Return the method of a name with these options.

    `where` says in messages what the methods are for, and `keywords` what the caller takes beside options. Raises
    OptionError for a name or an option that does not exist, saying which do, and for a value that is not valid.
    """
    by_name = {kind.name: kind for kind in kinds}
    if not isinstance(name, str) or name not in by_name:
        if others := _kinds_with(name):
            text = f"method {name!r} is for {others}, not{where or ' for such models'}; give one of"
            raise OptionError("", f"{text} {', '.join(by_name)}", "", "E-METHOD")
        text = f"method {name!r} does not exist{where}{suggestion(name, by_name)}; there are {', '.join(by_name)}"
        raise OptionError("", text, "", "E-METHOD")
    method: Any = by_name[name]
    known = [option.name for option in fields(method)]
    if unknown := sorted(set(options) - set(known)):
        hints = with_suggestions(unknown, [*known, *keywords])
        text = f"method {name!r} has no option {hints}; it has {', '.join(sorted(known)) or 'none'}"
        raise OptionError("", text, _methods_that_have(unknown, kinds), "E-OPTION")
    made: _Kind = method(**options)
    return made


_ROOMS = {
    "posteriors": "posteriors of statistical models", "networks.gaussian": "Bayesian networks", "networks": "networks",
    "draws": "posterior draws", "checkpoints": "checkpoints (`consilience.merge(...)`)", "estimators": "estimators",
}  # fmt: skip
"""What the methods of a package fuse, by its name; one inside of another stands before it."""


def _kinds_with(name: object) -> str:
    """Return what the methods of a name fuse, among all of this library; "" where there is no such method."""
    table = import_module("consilience.methods")  # by name: it lists the methods of all rooms, which import this file
    methods = [getattr(table, one) for one in table.__all__]
    places = [one.__module__ for one in methods if getattr(one, "name", None) == name]
    rooms = {next(room for room in _ROOMS if place.startswith(f"consilience.{room}.")) for place in places}
    return " and ".join(text for room, text in _ROOMS.items() if room in rooms)


def _methods_that_have(options: Sequence[str], kinds: Sequence[type[Options]]) -> str:
    """Return which methods have options that another one lacks; empty where none has all of them."""
    having = [repr(kind.name) for kind in kinds if set(options) <= {option.name for option in fields(cast(Any, kind))}]
    return f"methods with {'it' if len(options) == 1 else 'them'}: {', '.join(having)}" if having else ""


AnyMethod = TypeVar("AnyMethod", bound=Options)


@dataclass(frozen=True)
class MethodTable(Generic[AnyMethod]):
    """All methods of a kind."""

    classes: tuple[type[AnyMethod], ...]  # every method, the recommended one first
    base: type[AnyMethod] | tuple[type[AnyMethod], ...]  # what methods of the kind are, those of a user's own included
    fuses: str = ""  # what they fuse, in the plural, for messages
    keywords: Collection[str] = CALL_KEYWORDS  # what the caller takes beside options, for suggestions

    def make(self, method: object, options: Mapping[str, Any]) -> AnyMethod:
        """Return the method of a name with these options, a method with its own as it is, the recommended one for None.

        One name means one thing whatever the kind: ``"auto"`` is the recommended method of any, and a method of ours
        for another kind is taken for that of its name here, with those of its options that are not at their defaults.
        Raises OptionError for a name, an option or a value that does not exist, saying which do; for options beside a
        method; and for a method of another kind.
        """
        names = [one.name for one in self.classes]
        if isinstance(method, Options):
            refuse_options(method, options)
            is_ours = type(method).__module__.startswith("consilience.")
            is_of_another_kind = is_ours and method.name in names and type(method) not in self.classes
            if isinstance(method, self.base) and not is_of_another_kind:
                return method
            # Of another kind. A class of a user's own may do more than its name says, so that it is none of ours.
            if not is_ours or method.name not in (*names, "auto"):
                text = f"{type(method).__name__} does not fuse {self.fuses or 'such models'}"
                raise OptionError(f"{text}; give one of {', '.join(map(repr, names))}")
            options, method = method.stated_options(), method.name
        name = names[0] if method is None or (method == "auto" and "auto" not in names) else method
        where = f" for {self.fuses}" if self.fuses else ""
        return make_named_method(self.classes, name, options, where, self.keywords)


def is_robust_option(value: object) -> bool:
    """Return whether a value is one of the option `robust`."""
    return value is None or isinstance(value, bool) or value in ("trim", "median")
