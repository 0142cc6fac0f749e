"""Consilience: models trained apart, fused into one. No row of data travels, only parameters and sums.

Public names are imported on first use; `__init__.pyi` says where each is defined.
"""

from typing import Any

import lazy_loader

_of_stub, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__.append("__version__")


def __getattr__(name: str) -> Any:
    """Import what a public name stands for."""
    if name in __all__ and name != "__version__":
        return _of_stub(name)
    if name == "__version__":
        from importlib.metadata import version  # here, since reading metadata takes as long as starting Python

        return version("consilience")
    from consilience.catalogue import no_attribute  # here, so that a start loads no more than it needs

    raise no_attribute(f"module {__name__!r}", name, known=__all__)
