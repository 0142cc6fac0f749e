"""What tests of networks share."""

from functools import partial

import pytest

from consilience.networks.choice import inputs


@pytest.fixture(scope="module", autouse=True)
def short_distillations():
    """Distil in 60 steps instead of 200 where a test says none, which small networks of digits need no more of."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "STEPS", 60)
        yield


@pytest.fixture
def few_images(monkeypatch, request):
    """Match few images in few steps, but for promises: as many as photographs need are most of the time of a fusion."""
    if request.node.get_closest_marker("promise") is None:
        monkeypatch.setattr(inputs, "matched_images", partial(inputs.matched_images, count=64, steps=40))
        monkeypatch.setattr(inputs, "SHIFTED_COPIES", 2)
