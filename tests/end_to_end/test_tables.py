"""Tables in README and docs are those of the results in experiments, and the figure of the rooms that of the walls."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_tables_are_up_to_date():
    command = [sys.executable, str(ROOT / "experiments/write_tables.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_figure_of_the_rooms_shows_the_walls_that_are_checked():
    command = [sys.executable, str(ROOT / "docs/figures/house.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
