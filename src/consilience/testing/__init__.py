"""Laws for families, adapters and transports of your own: what this library holds its own members to.

Each function raises `BrokenLawError`, whose text starts with the name of the law, or returns nothing::

    from consilience.testing import check_adapter

    def test_my_adapter():
        check_adapter(MyAdapter(), MyModel().fit(rows), data=rows)

The tests of this library call them for every member of its tables, so a new law is one for all.
"""

from __future__ import annotations

from consilience.testing.adapters import check_adapter
from consilience.testing.families import check_family
from consilience.testing.law import BrokenLawError
from consilience.testing.transports import check_transport

__all__ = ["BrokenLawError", "check_adapter", "check_family", "check_transport"]
