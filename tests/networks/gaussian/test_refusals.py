"""What Bayesian networks cannot be, said before anything is computed; and inputs of unusual kinds."""

import numpy as np
import pytest
import torch
from torch import nn

import consilience as cs
from consilience.errors import InputError, OptionError, UnsupportedError
from tests.copies import COPIES
from tests.networks.gaussian.nets import Centred, Twice

EXAMPLE = torch.zeros(2, 6)


def bayesian(module, seed=0, spread=1e-2):
    generator = torch.Generator().manual_seed(seed)
    means = {name: torch.randn(p.shape, generator=generator) for name, p in module.named_parameters()}
    return cs.BayesianNetwork(module, means, {name: torch.full_like(m, spread) for name, m in means.items()})


@pytest.mark.parametrize("method", ["kl", "w2"])
def test_networks_with_other_buffers_are_not_fused(method):
    one, other = bayesian(Centred(0.0), 0), bayesian(Centred(5.0), 1)
    for models in ([one, other], [other, one]):
        with pytest.raises(InputError, match="buffer middle differs from that of model 0; give all networks the same"):
            cs.fuse(models, method=method, example=EXAMPLE)
        assert cs.check(models, method=method, example=EXAMPLE)


def test_statistics_that_move_with_units_have_no_posterior():
    nets = [
        bayesian(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)), seed) for seed in (0, 1)
    ]
    with pytest.raises(InputError, match="moves with units, but is no parameter"):
        cs.fuse(nets, example=EXAMPLE)


def test_a_layer_that_is_called_twice_is_not_learned():
    x, y = torch.randn(20, 6), torch.arange(20) % 3
    with pytest.raises(UnsupportedError, match="inner: is called 2 times for one input"):
        cs.learners.GaussianBNN(module=Twice(), epochs=1).fit(x, y, 3)


def test_units_that_a_normalisation_makes_too_are_not_pruned():
    net = nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.InstanceNorm2d(6, affine=True), nn.ReLU(), nn.Flatten(), nn.Linear(96, 3)
    )
    x, y = torch.randn(24, 1, 6, 6), torch.arange(24) % 3
    fitted = cs.learners.HorseshoeBNN(module=net, epochs=2, prune=0.99).fit(x, y, 3)
    assert fitted.posterior.means["0.weight"].shape[0] == 6


@COPIES
def test_a_copy_in_another_order_is_found_beside_parameters_that_are_nearly_points():
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    one = bayesian(net)
    variances = {**one.variances, "0.bias": torch.full((8,), 1e-10)}
    one = cs.BayesianNetwork(net, one.means, variances)
    symmetry = cs.symmetry(net, EXAMPLE)
    order = torch.tensor(np.random.default_rng(0).permutation(8))

    def moved(arrays):
        return {"0.weight": arrays["0.weight"][order], "0.bias": arrays["0.bias"][order],
                "2.weight": arrays["2.weight"][:, order], "2.bias": arrays["2.bias"]}  # fmt: skip

    other = cs.BayesianNetwork(net, moved(one.means), moved(one.variances))
    for metric in ("w2", "kl", "kl_reverse", "hellinger"):
        fusion = cs.fuse([one, other], method="w2", metric=metric, symmetry=symmetry, reference=0)
        assert fusion.details["distance_after"] == pytest.approx(0.0, abs=1e-9), metric
    assert cs.fuse([one, other], method="kl", symmetry=symmetry, regularization=0.1).groups == {"0": 8}


def test_whole_numbers_are_inputs_as_fractions_are():
    net = bayesian(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)))
    x = np.arange(18, dtype=np.uint8).reshape(3, 6)
    assert np.array_equal(net.predict(x, samples=3), net.predict(x.astype(np.float32), samples=3))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (np.zeros((0, 6)), "at least one input"),
        (np.zeros((2, 7)), "does not take inputs of shape"),
        ([torch.zeros(2, 6), torch.zeros(2, 5)], "expected one tensor or array"),
    ],
)
def test_inputs_that_cannot_be_asked_are_named(inputs, message):
    net = bayesian(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)))
    with pytest.raises(InputError, match=message):
        net.predict(inputs, samples=2)


def test_one_output_is_no_distribution_over_classes():
    with pytest.raises(InputError, match="two classes or more"):
        bayesian(nn.Linear(6, 1)).predict(torch.zeros(2, 6), samples=2)


@pytest.mark.parametrize("options", [{"slab": 3}, {"seed": None}, {"seed": 2**70}, {"device": "gpu"}, {"hidden": 5}])
def test_options_of_learners_that_mean_nothing_are_named(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        cs.learners.HorseshoeBNN(**options, epochs=1).fit(torch.randn(9, 6), torch.arange(9) % 3, 3)


def test_classes_must_be_numbers():
    with pytest.raises(InputError, match="classes counted from 0"):
        cs.learners.HorseshoeBNN(epochs=1).fit(torch.randn(3, 6), ["a", "b", "c"], 3)


@pytest.mark.parametrize("order", [(1, 5), (5, 1)])
def test_a_network_of_one_hidden_unit_is_fused_whichever_comes_first(order):
    nets = [bayesian(nn.Sequential(nn.Linear(6, h), nn.ReLU(), nn.Linear(h, 3)), h) for h in order]
    assert cs.fuse(nets, example=EXAMPLE, regularization=0.0).n_components == 6


def test_hellinger_alignment_takes_grouped_convolutions():
    def net(seed):
        module = nn.Sequential(
            nn.Conv2d(2, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
        )
        return bayesian(module, seed)

    fusion = cs.fuse([net(0), net(1)], method="w2", metric="hellinger", example=torch.zeros(2, 2, 2, 2))
    assert fusion.details["distance_after"] <= fusion.details["distance_before"]


@pytest.mark.parametrize("method", ["kl", "w2", "average"])
def test_what_files_say_of_classes_and_priors_stays_with_the_fused_network(method, tmp_path):
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    symmetry = cs.symmetry(net, EXAMPLE)
    paths = [tmp_path / f"{seed}.safetensors" for seed in (0, 1)]
    for seed, path in enumerate(paths):
        own = bayesian(net, seed)
        cs.save(cs.BayesianNetwork(net, own.means, own.variances, 0.5, ("a", "b", "c")), path, symmetry=symmetry)
    fusion = cs.fuse(paths, method=method)
    fusion.save(tmp_path / "fused.safetensors")
    for one in (fusion.model, cs.load(tmp_path / "fused.safetensors")):
        assert isinstance(one, cs.BayesianNetwork)
        assert one.classes == ("a", "b", "c")
        assert set(one.prior.values()) == {0.5}
