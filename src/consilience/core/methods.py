"""The methods of a kind: a table of their classes, and how one is made, the same for every kind."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from consilience.core.options import FUSE_KEYWORDS, Options, make_named_method, refuse_options
from consilience.errors import OptionError

AnyMethod = TypeVar("AnyMethod", bound=Options)


@dataclass(frozen=True)
class MethodTable(Generic[AnyMethod]):
    """All methods of a kind.

    Parameters
    ----------
    classes : tuple of type
        Every method, the recommended one first.
    base : type, or tuple of types
        What methods of the kind are, those of a user's own included.
    fuses : str, optional
        What they fuse, in the plural, for messages. Default: not said.
    like : callable, optional
        Returns a method of another kind as one of this, or None where there is none. Default: none is.
    keywords : collection of str, optional
        What the caller takes beside options, for suggestions. Default: the keywords of ``fuse``.
    """

    classes: tuple[type[AnyMethod], ...]
    base: type[AnyMethod] | tuple[type[AnyMethod], ...]
    fuses: str = ""
    like: Callable[[Options], AnyMethod | None] = lambda _method: None
    keywords: Collection[str] = FUSE_KEYWORDS

    def make(self, method: object, options: Mapping[str, Any]) -> AnyMethod:
        """Return the method of a name with these options, a method with its own as it is, the recommended one for None.

        Raises
        ------
        OptionError
            For a name, an option or a value that does not exist, saying which do; for options beside a method; and for
            a method of another kind.
        """
        if isinstance(method, Options):
            refuse_options(method, options)
            own = method if isinstance(method, self.base) else self.like(method)
            if own is not None:
                return own
            names = [one.name for one in self.classes]
            remedy = f"method={method.name!r}" if method.name in names else f"one of {', '.join(map(repr, names))}"
            raise OptionError(f"{type(method).__name__} does not fuse {self.fuses or 'such models'}; give {remedy}")
        name = self.classes[0].name if method is None else method
        where = f" for {self.fuses}" if self.fuses else ""
        return make_named_method(self.classes, name, options, where, self.keywords)
