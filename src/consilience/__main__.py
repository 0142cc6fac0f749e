"""The entry point of the command ``consilience``, and of ``python -m consilience``.

An interrupt is one line from the first moment on: it is handled before anything else is imported.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

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
