"""Progress is shown where somebody looks: in terminals and notebooks, and to functions, with the time that is left."""

import io
import sys
from types import SimpleNamespace

import pytest

import consilience as cs
from consilience.core import progress
from tests.core.values_zoo import mixture


def fuse(shown):
    return cs.fuse([mixture(0), mixture(1)], cs.methods.SPAHM(restarts=2), progress=shown)


def test_a_function_of_two_arguments_gets_steps_done_and_in_all():
    calls = []
    fuse(lambda done, total: calls.append((done, total)))
    assert calls
    assert all(0 <= done <= total for done, total in calls)


def test_a_function_of_three_arguments_gets_the_seconds_that_are_left(monkeypatch):
    clock = iter(range(0, 1000, 2))
    monkeypatch.setattr(progress, "monotonic", lambda: next(clock))
    calls = []
    with progress.shown(lambda done, total, left: calls.append((done, total, left)), "fusing", "step") as report:
        for done in range(5):
            report(done, 4)
    assert calls == [(0, 4, None), (1, 4, 12.0), (2, 4, 6.0), (3, 4, pytest.approx(8 / 3)), (4, 4, 0.0)]


def notebook(monkeypatch, widgets):
    """Let the process look like the kernel of a notebook, with widgets or without."""
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(progress, "find_spec", lambda name: object() if widgets else None)


def test_a_notebook_without_widgets_gets_a_line_of_text_with_an_estimate(monkeypatch):
    notebook(monkeypatch, widgets=False)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    fuse(True)
    assert "fusing" in sys.stdout.getvalue()
    assert max(map(len, sys.stdout.getvalue().split("\r"))) <= 80


def test_a_notebook_with_widgets_gets_the_bar_of_tqdm_auto(monkeypatch):
    notebook(monkeypatch, widgets=True)
    made = []

    class Bar(io.StringIO):
        def __init__(self, **options):
            super().__init__()
            made.append(options)
            self.refresh = lambda: None

    monkeypatch.setitem(sys.modules, "tqdm.auto", SimpleNamespace(tqdm=Bar))
    fuse(True)
    assert made == [{"total": 1, "leave": False, "desc": "fusing", "unit": "step"}]


def test_nothing_is_written_where_nobody_looks(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    fuse(True)
    assert capsys.readouterr() == ("", "")
