"""The entry point of the command ``consilience``, and of ``python -m consilience``.

An interrupt is one line from here on: it is handled before anything else is imported. One that comes while the
interpreter itself starts is Python's own to report.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any, NoReturn
else:
    import _signal as signal  # built in: `signal` imports `enum`, 9 ms in which an interrupt would be a traceback

INTERRUPTED = 130


def main() -> NoReturn:
    """Run the command and exit."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _exit_at_once)
    from consilience.cli import main as run  # here, since importing takes most of the start

    run()


def _exit_at_once(_signal_number: int, _frame: Any) -> None:
    """End before anything was done."""
    os.write(2, b"consilience: interrupted; no file was left half-written [E-SYSTEM]\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
