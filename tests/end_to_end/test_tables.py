"""Tables in README and docs are those of the results in experiments."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_tables_are_up_to_date():
    command = [sys.executable, str(ROOT / "experiments/write_tables.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
