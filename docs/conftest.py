"""Pages whose examples take seconds are tested among the slow tests."""

from pathlib import Path

import pytest

SLOW = {"bayesian.md", "fisher.md", "networks.md", "scale.md", "scores.md"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the examples of slow pages, before tests are chosen by their marks."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.name in SLOW:
            item.add_marker(pytest.mark.slow)
