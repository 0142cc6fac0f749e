"""What tests of networks share."""

from functools import partial

import pytest

from consilience.networks.choice import inputs


@pytest.fixture
def few_images(monkeypatch):
    """Match few images in few steps, which are for images of photographs and most of the time of a fusion of digits."""
    monkeypatch.setattr(inputs, "matched_images", partial(inputs.matched_images, count=64, steps=40))
    monkeypatch.setattr(inputs, "SHIFTED_COPIES", 2)
