"""What holds for all tests: collection without garbage collection, seeds, and terminals of no stated width."""

import gc
import os
import sys

import pytest

from tests.budget import Clock, in_part, law_of, mark_beyond
from tests.covering import mark_uncovered
from tests.quick import split_items

os.environ.pop("COLUMNS", None)  # workers inherit that of the terminal in which all tests were started


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Collect tests, of which none is garbage: that takes 11 s of processor time, and 18 s with the collector on."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()  # what was collected stays to the end, so that no later pass looks at it again


@pytest.fixture(autouse=True)
def global_seed():
    """Let torch draw the same in a test whatever ran before it: which tests run differs between commands.

    On the processor alone: `torch.manual_seed` keeps a stack trace for each accelerator that may yet be started.
    """
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(0)


def pytest_addoption(parser):
    """Add the options of ``make quick``, ``make test`` and ``make times``."""
    parser.addoption(
        "--quick", action="store_true", help="tests of what changed and above, and first cases of the rest"
    )
    parser.addoption("--budget", type=float, help="processor seconds of all tests; what is beyond counts as slow")
    parser.addoption("--part", help='one of parts of like size of the slow tests, such as "0/3"')
    parser.addoption("--times", help="file to which the processor seconds of every case are appended")


def pytest_configure(config):
    """Measure the cases that this process runs, where that is asked for."""
    if config.getoption("--times"):
        config.pluginmanager.register(Clock(config.getoption("--times")))


@pytest.hookimpl(tryfirst=True)  # before markers decide which tests are run
def pytest_collection_modifyitems(config, items):
    """Run the covering array of a law by default, of it what a budget pays for, with ``--quick`` what its rule says."""
    mark_uncovered(items)
    if config.getoption("--budget") is not None:
        mark_beyond(items, config.getoption("--budget"))
    if config.getoption("--part"):
        slow = [item for item in items if item.get_closest_marker("slow") is not None]
        kept = in_part([law_of(item.nodeid) for item in slow], config.getoption("--part"))
        left_out = set(slow) - {slow[place] for place in kept}
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))
    if config.getoption("--quick"):
        items[:], others = split_items(items)
        config.hook.pytest_deselected(items=others)
