"""What the functions of this library return, for annotations and tests of classes.

Each is imported on first use; `results.pyi` says where it is defined.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub("consilience", __file__)
