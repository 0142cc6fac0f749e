"""Fusions to report on."""

import pytest

import consilience as cs
from tests.end_to_end.pages import mixtures, telling


@pytest.fixture(scope="module")
def fused():
    return telling(cs.fuse(mixtures(), n_components=3))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "report.html"
