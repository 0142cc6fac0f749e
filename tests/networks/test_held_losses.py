"""Losses of networks on held-out rows, against what their outputs say directly."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from consilience.errors import InputError
from consilience.networks.held_losses import losses_of_networks
from tests.networks.position_nets import Heads, Maps, language_model, next_token_loss, texts

X = torch.randn(70, 13, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 3, (70,), generator=torch.Generator().manual_seed(1))
T = torch.rand(70, generator=torch.Generator().manual_seed(2))


def net(width, seed=0):
    torch.manual_seed(seed)
    return nn.Linear(13, width).eval()


def test_classes_are_judged_by_the_error_with_cross_entropy_for_ties():
    nets = [net(3), net(3, 1)]
    found = losses_of_networks(nets, (X, Y))
    with torch.no_grad():
        for number, one in enumerate(nets):
            np.testing.assert_array_equal(found.values[number], (one(X).argmax(1) != Y).numpy())
            expected = functional.cross_entropy(one(X).double(), Y, reduction="none")
            np.testing.assert_allclose(found.ties[number], expected, rtol=1e-5)
    assert (found.criterion, found.is_share, found.n_classes) == ("error", True, 3)
    assert np.array_equal(found.labels, Y)


@pytest.mark.parametrize("probabilities", [False, True])
def test_one_output_tells_two_classes_apart(probabilities):
    one = nn.Sequential(net(1), nn.Sigmoid()) if probabilities else net(1)
    found = losses_of_networks([one], (X, (Y > 0).long()))
    with torch.no_grad():
        answers = one(X)[:, 0] > (0.5 if probabilities else 0.0)
    np.testing.assert_array_equal(found.values[0], (answers != (Y > 0)).numpy())


def test_numbers_are_judged_by_the_squared_error():
    found = losses_of_networks([net(1)], (X, T))
    with torch.no_grad():
        expected = (net(1)(X)[:, 0].double() - T.double()) ** 2
    np.testing.assert_allclose(found.values[0], expected, rtol=1e-5)
    assert (found.criterion, found.is_share, found.n_classes) == ("squared error", False, 0)


@pytest.mark.parametrize("form", ["ids", "mask", "loader"])
def test_language_models_are_judged_text_by_text(form):
    model, tokens = language_model(0, texts(300, 0)), texts(120, 5)
    data = {
        "ids": tokens,
        "mask": {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens},
        "loader": list(tokens.split(50)),
    }[form]
    found = losses_of_networks([model], data)
    assert found.values.shape == (1, 120)
    assert found.values.mean() == pytest.approx(next_token_loss(model, tokens), rel=1e-5)


def test_pixels_are_judged_by_the_share_that_is_wrong():
    maps, images = Maps(), torch.rand(60, 1, 8, 8)
    labels = torch.randint(0, 3, (60, 8, 8))
    labels[:, :4] = -100  # pixels without a class
    found = losses_of_networks([maps], (images, labels))
    with torch.no_grad():
        wrong = (maps(images).argmax(1) != labels)[:, 4:].double().mean(dim=(1, 2))
    np.testing.assert_allclose(found.values[0], wrong)
    numbers = torch.rand(60, 3, 8, 8)
    with torch.no_grad():
        expected = ((maps(images) - numbers) ** 2).sum(dim=1).mean(dim=(1, 2))
    np.testing.assert_allclose(losses_of_networks([maps], (images, numbers)).values[0], expected, rtol=1e-5)


@pytest.mark.parametrize("labels", [{"number": T, "classes": Y}, (Y, T)])
def test_several_outputs_are_judged_each_by_its_own(labels):
    heads = Heads().eval()
    found = losses_of_networks([heads], (X, labels))
    with torch.no_grad():
        answer = heads(X)
        wrong = (answer["classes"].argmax(1) != Y).double()
        squared = (answer["number"].double() - T.double()) ** 2 / T.double().var(unbiased=False)
    np.testing.assert_allclose(found.values[0], (wrong + squared) / 2, rtol=1e-5)


def test_a_network_that_answers_nothing_is_always_wrong():
    broken = net(3)
    with torch.no_grad():
        broken.weight.fill_(torch.nan)
    assert losses_of_networks([net(3), broken], (X, Y)).values[1].tolist() == [1.0] * 70
    broken = net(1)
    with torch.no_grad():
        broken.weight.fill_(torch.inf)
    assert np.isfinite(losses_of_networks([net(1), broken], (X, T)).values).all()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (X, "has no labels, by which networks are judged"),
        ((X, (Y, T)), "has labels of 2 outputs, and the networks have one"),
        ((X, T[:, None].expand(-1, 2)), "answer 3 numbers"),
        ((X, Y + 7), "has labels outside the classes 0 to 2"),
    ],
)
def test_data_by_which_nobody_can_judge_are_refused(data, message):
    with pytest.raises(InputError, match=message):
        losses_of_networks([net(3)], data)
