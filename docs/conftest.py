"""Pages whose examples take seconds are tested among the slow tests."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
SLOW = {
    "guides/bayesian.md", "guides/fisher.md", "guides/matching_units.md", "guides/networks.md", "sites/scale.md",
    "concepts/scores.md",
}  # fmt: skip


collect_ignore = ["gallery/examples", "gallery/generated"]  # which building the pages runs


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the examples of slow pages, before tests are chosen by their marks."""
    for item in items:
        if HERE in item.path.parents and item.path.relative_to(HERE).as_posix() in SLOW:
            item.add_marker(pytest.mark.slow)
