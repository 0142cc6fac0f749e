"""The methods of fusion: pass an instance as ``method=``, or its name as a text.

Each is imported on first use; `methods.pyi` says where it is defined.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub("consilience", __file__)
