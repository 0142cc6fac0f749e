"""Consilience: models trained apart, fused into one. No row of data travels, only parameters and sums.

Public names are imported on first use; `__init__.pyi` says where each is defined.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def __getattr__(name: str) -> Any:
    """Import what a public name stands for."""
    if name == "__version__":
        from importlib.metadata import version  # here and below, so that a start loads no more than it needs

        return version("consilience")
    import lazy_loader

    of_stub, _, names = lazy_loader.attach_stub(__name__, __file__)
    known = [*names, "__version__"]
    if name == "__all__":
        globals()[name] = known
        return known
    if name in names:
        globals()[name] = value = of_stub(name)
        return value
    from consilience import errors, methods, results
    from consilience.catalogue import no_attribute

    place = next((module for module in (errors, methods, results) if name in dir(module)), None)
    remedy = "" if place is None else f"it is {place.__name__}.{name}"
    raise no_attribute(f"module {__name__!r}", name, remedy, known=known)


def __dir__() -> list[str]:
    return sorted(__getattr__("__all__"))
