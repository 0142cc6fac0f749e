"""Parts of classes in descriptions: where classes are no Gaussians, inputs drawn from parts are like the site's own."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import consilience as cs
from consilience.networks.descriptions.description import Description, Moments
from consilience.networks.descriptions.files import read_description, write_description
from consilience.networks.descriptions.inspect import inspect_description
from consilience.networks.descriptions.mixtures import MAX_ENTRIES, densest_number, mixture_moments, split_class
from consilience.networks.synthetic.draws import draw_inputs
from tests.networks.described_nets import describe_network


class Rings(nn.Module):
    """Two classes inside and outside the unit circle, known exactly."""

    def __init__(self, n_outputs: int = 2) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.ones(1, n_outputs))

    def forward(self, x):
        beyond = (x[:, :2].square().sum(dim=1, keepdim=True) - 1.0) * self.slope
        return beyond if self.slope.shape[1] == 1 else beyond * torch.tensor([-1.0, 1.0])


def rings(n=600, d=2, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    angles, radii = rng.uniform(0, 2 * np.pi, n), np.where(labels, 1.5, 0.5) + rng.uniform(-0.2, 0.2, n)
    inputs = np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)
    return np.hstack([inputs, rng.standard_normal((n, d - 2))]).astype(np.float32), labels


def drawn_error(net, described):
    drawn = draw_inputs([described], 2000, 1, labelled=True)
    with torch.no_grad():
        outputs = net(drawn.inputs)
    taken = outputs.argmax(dim=1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0).long()
    return float((taken != drawn.labels).float().mean())


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_drawn_inputs_are_like_those_of_classes_that_are_no_gaussians(n_outputs):
    net = Rings(n_outputs)
    described = describe_network(net, rings())
    assert set(described.class_mixtures) == {0, 1}
    assert described.own_error == 0.0
    assert drawn_error(net, replace(described, class_mixtures={})) > 0.15
    assert drawn_error(net, described) < 0.05


def test_parts_are_of_enough_observations_and_all_of_the_class():
    inputs, labels = rings(n=300)
    described = describe_network(Rings(), (inputs, labels))
    for number, parts in described.class_mixtures.items():
        assert min(part.n_observations for part in parts) >= 20
        assert sum(part.n_observations for part in parts) == pytest.approx(described.class_counts[number])
        whole = described.class_moments[number]
        np.testing.assert_allclose(whole.mean, inputs[labels == number].mean(axis=0), atol=1e-6)
        np.testing.assert_allclose(whole.covariance, np.cov(inputs[labels == number].T, bias=True), atol=1e-5)
    withheld = describe_network(Rings(), (inputs, labels), min_count=60)
    assert min(part.n_observations for parts in withheld.class_mixtures.values() for part in parts) >= 60


def test_one_gaussian_is_left_where_it_does():
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 2
    inputs = (rng.standard_normal((400, 2)) * 0.3 + np.where(labels, 3.0, 0.0)[:, None]).astype(np.float32)
    assert describe_network(Rings(), (inputs, labels)).class_mixtures == {}


@pytest.mark.parametrize("d", [128, 129])
def test_long_rows_are_not_split(d):
    described = describe_network(Rings(), rings(d=d, n=1200))
    assert bool(described.class_mixtures) == (d <= 128)
    assert (
        sum(p.factor.size + 2 * p.mean.size for parts in described.class_mixtures.values() for p in parts)
        <= MAX_ENTRIES
    )


def test_a_sample_of_many_observations_is_split(monkeypatch):
    monkeypatch.setattr("consilience.networks.descriptions.mixtures.MAX_ROWS", 400)
    inputs, labels = rings(n=2000)
    described = describe_network(Rings(), [(inputs[start::4], labels[start::4]) for start in range(4)], min_count=5)
    assert described.class_counts.tolist() == [1000, 1000]
    for number, parts in described.class_mixtures.items():
        assert sum(part.n_observations for part in parts) == pytest.approx(1000)
        # The moments of the class are those of its parts, so that no difference tells of rows outside the sample.
        total = mixture_moments(parts, 20)
        np.testing.assert_allclose(described.class_moments[number].mean, total.mean, atol=1e-6)
    assert drawn_error(Rings(), described) < 0.08


def test_one_part_draws_what_its_class_draws():
    said = Moments(50, np.array([0.0, 5.0]), np.array([[1.0, 0.5]]), np.array([1.0, 0.01]))
    plain = Description("a", 50, (2,), classes=("x", "y"), class_counts=np.array([50.0, 0.0]), class_moments={0: said})
    split = replace(plain, class_mixtures={0: (said,)})
    drawn, of_split = (draw_inputs([one], 40, 3, labelled=True) for one in (plain, split))
    assert torch.equal(drawn.inputs, of_split.inputs)
    assert torch.equal(drawn.labels, of_split.labels)


def test_parts_together_are_the_class():
    rows = np.random.default_rng(0).standard_normal((500, 3)) ** 3
    parts = split_class(rows, 500.0, 8, 40.0)
    assert len(parts) > 1
    together = mixture_moments(parts, 20)
    assert together.n_observations == pytest.approx(500)
    np.testing.assert_allclose(together.mean, rows.mean(axis=0))
    np.testing.assert_allclose(together.covariance, np.cov(rows.T, bias=True), atol=1e-10)
    assert len(split_class(np.ones((100, 3)), 100.0, 8, 20.0)) == 1


def test_parts_go_through_a_file_and_are_told_of(tmp_path):
    described = describe_network(Rings(), rings())
    path = tmp_path / "site.description.safetensors"
    write_description(path, described)
    read = read_description(path)
    for number, parts in described.class_mixtures.items():
        for part, again in zip(parts, read.class_mixtures[number], strict=True):
            np.testing.assert_array_equal(part.factor, again.factor)
            np.testing.assert_array_equal(part.mean, again.mean)
            assert part.n_observations == again.n_observations
    from consilience.files.safetensors_file import as_file

    texts = dict(inspect_description(as_file(path)).rows)
    assert "parts of these classes" in texts["parts"]
    assert "groups that are alike" in texts["parts of classes"]
    plain = replace(described, class_mixtures={})
    write_description(path, plain)
    assert read_description(path).class_mixtures == {}
    assert as_file(path).document["class_mixtures"] is None


def test_parts_that_are_not_of_the_class_are_refused():
    described = describe_network(Rings(), rings())
    parts = described.class_mixtures[0]
    with pytest.raises(cs.errors.InputError, match=r"parts of class 0 have .* observations, and it has 300"):
        replace(described, class_mixtures={0: parts[:-1]})
    narrow = Moments(300, np.zeros(1), np.zeros((0, 1)), np.ones(1))
    with pytest.raises(cs.errors.InputError, match="parts of class 0 are not those of its moments"):
        replace(described, class_mixtures={0: (narrow,)})


def test_columns_that_vary_by_rounding_alone_have_no_density():
    rng = np.random.default_rng(3)
    rows = np.concatenate([rng.normal(-3.0, 0.5, (200, 2)), rng.normal(3.0, 0.5, (200, 2))])
    assert densest_number([rows], 20) == 2
    assert densest_number([np.column_stack([rows, 1e-47 * rng.normal(size=(400, 3))])], 20) > 1
