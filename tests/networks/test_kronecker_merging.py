"""Laws of Kronecker-factored information and of the merges that read it."""

import copy
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import consilience as cs
from consilience.networks.fisher.kronecker import KroneckerFactors, moved_factors
from consilience.networks.symmetry.transport import permutation
from tests.copies import COPIES
from tests.networks.fusable_nets import deviation, outputs, proved, random_orders
from tests.networks.informed_nets import informed, observations, perceptron
from tests.networks.zoo import ZOO
from tests.tolerances import ROUNDING, SINGLE_PRECISION

pytestmark = pytest.mark.covering(2)

MERGES = [cs.methods.KFAC(damping=0.1), cs.methods.FedLPA(), cs.methods.FedFisher(steps=50)]
every_merge = pytest.mark.parametrize("method", MERGES, ids=lambda method: method.name)


@cache
def known():
    """Return three networks of one start and their Kronecker-factored information."""
    return informed("kronecker")


def answers(fusion, inputs=None):
    with torch.no_grad():
        return fusion.model(observations(9) if inputs is None else inputs).numpy()


def parameters(module):
    return np.concatenate([values.detach().numpy().ravel() for values in module.parameters()])


# -- What the merge is.


@COPIES
@every_merge
def test_equal_networks_come_back_to_the_last_bit(method):
    models, infos = known()
    fused = cs.fuse([models[0]] * 3, method, fishers=[infos[0]] * 3, weights=[0.5, 0.3, 0.2])
    np.testing.assert_array_equal(parameters(fused.model), parameters(models[0]))


def test_much_damping_gives_the_average_and_little_the_least_increase():
    models, infos = known()
    average = cs.fuse(models, "average", weights=[0.5, 0.3, 0.2])
    dampings = [1e-6, 1e-2, 1.0, 1e2, 1e12]
    merged = [cs.fuse(models, cs.methods.KFAC(damping=m), fishers=infos, weights=[0.5, 0.3, 0.2]) for m in dampings]
    np.testing.assert_allclose(parameters(merged[-1].model), parameters(average.model), rtol=1e-9)
    assert np.all(np.diff([one.objective for one in merged]) > 0)
    away = [np.abs(parameters(one.model) - parameters(average.model)).max() for one in merged]
    assert np.all(np.diff(away) < 0)


@every_merge
def test_sites_of_the_same_factors_are_averaged(method):
    models, infos = known()
    same = [info_with(info, infos[0].layers) for info in infos]
    merged = cs.fuse(models, method, fishers=same, weights=[0.5, 0.3, 0.2])
    average = cs.fuse(models, "average", weights=[0.5, 0.3, 0.2])
    np.testing.assert_allclose(parameters(merged.model), parameters(average.model), rtol=1e-9, atol=1e-12)


def info_with(info, layers):
    return replace(info, layers=layers)


def test_sites_count_by_their_observations_unless_weights_say_otherwise():
    models, _ = known()
    infos = [
        cs.fisher(model, observations(seed, 120), "kronecker", n_observations=n)
        for seed, (model, n) in enumerate(zip(models, (500, 300, 200), strict=True))
    ]
    by_observations = cs.fuse(models, "kfac", damping=0.1, fishers=infos)
    by_weights = cs.fuse(models, "kfac", damping=0.1, fishers=infos, weights=[5, 3, 2])
    alike = cs.fuse(models, "kfac", damping=0.1, fishers=infos, weights=[1, 1, 1])
    np.testing.assert_allclose(parameters(by_observations.model), parameters(by_weights.model), rtol=ROUNDING)
    assert np.abs(parameters(alike.model) - parameters(by_weights.model)).max() > 1e-4


@every_merge
def test_a_constant_on_all_rows_of_a_head_changes_no_probability(method):
    models, infos = known()
    fused = answers(cs.fuse(models, method, fishers=infos))
    shifted = copy.deepcopy(models[1])
    with torch.no_grad():
        shifted[2].weight += torch.tensor([0.7, -0.3, 0.2, 0.1], dtype=torch.float64)
        shifted[2].bias += 0.4
    information = cs.fisher(shifted, observations(1) + 1, "kronecker", minimum=1)
    again = answers(cs.fuse([models[0], shifted, models[2]], method, fishers=[infos[0], information, infos[2]]))
    softmax = [torch.as_tensor(of).softmax(1).numpy() for of in (fused, again)]
    # Factors are single precision: their rows sum to zero but for its rounding, which Adam's signs enlarge.
    np.testing.assert_allclose(softmax[0], softmax[1], atol=1e-2 if method.name == "fedfisher" else 1e-5)


def test_a_descent_never_ends_above_the_average():
    models, infos = known()
    start = cs.fuse(models, cs.methods.KFAC(damping=1e12), fishers=infos).objective
    wild = cs.fuse(models, cs.methods.FedFisher(steps=3, learning_rate=100.0), fishers=infos)
    assert wild.objective <= start * (1 + 1e-9)
    least = cs.fuse(models, cs.methods.KFAC(damping=1e-9), fishers=infos).objective
    assert cs.fuse(
        models, cs.methods.FedFisher(steps=3000, learning_rate=0.01), fishers=infos
    ).objective == pytest.approx(least, rel=1e-2)


def test_parameters_without_factors_are_merged_by_their_damped_diagonals():
    base, x = ZOO["resnet18"].module().double(), torch.randn(120, *ZOO["resnet18"].inputs().shape[1:]).double()
    nets = [copy.deepcopy(base) for _ in range(2)]
    for seed, net in enumerate(nets):
        torch.manual_seed(seed)
        for values in net.parameters():
            values.data += 0.01 * torch.randn_like(values)
    with pytest.warns(cs.errors.WithheldWarning, match="only its diagonal"):
        infos = [cs.fisher(net, x, "kronecker", n_draws=1, prior_precision=0) for net in nets]
    fused = cs.fuse(nets, "kfac", damping=0.1, fishers=infos)
    key = max(infos[0].residual, key=lambda key: float(infos[0].residual[key].sum()))
    assert nets[0].get_parameter(key).ndim == 1  # gains and shifts of norms
    f = [info.residual[key].numpy().astype(float) / 120 for info in infos]
    theta = [net.get_parameter(key).detach().numpy() for net in nets]
    mu = 0.1 * (f[0] + f[1]).mean() / 2
    start = (theta[0] + theta[1]) / 2
    expected = ((f[0] * theta[0] + f[1] * theta[1]) / 2 + mu * start) / ((f[0] + f[1]) / 2 + mu)
    np.testing.assert_allclose(fused.model.get_parameter(key).detach().numpy(), expected, rtol=1e-7)


# -- Renumbering.


@pytest.mark.parametrize("name", ["mlp", "lenet", "depthwise", "densenet", "resnext", "transformer encoder", "gpt"])
def test_factors_move_with_the_units_of_their_network(name):
    module, inputs, symmetry = proved(name)
    orders = random_orders(symmetry, np.random.default_rng(0))
    permuted = cs.permute(module, symmetry, orders)
    with pytest.warns(cs.errors.WithheldWarning):  # of two inputs only diagonals leave
        before, after = (
            cs.fisher(net, inputs, "kronecker", "gaussian", n_draws=4, minimum=1) for net in (module, permuted)
        )
    assert before.layers
    transports = {group: permutation(order) for group, order in orders.items()}
    rng = np.random.default_rng(1)
    whole = {path: filled(factors, rng) for path, factors in before.layers.items()}
    for layers in (before.layers, whole):
        moved = moved_factors(layers, symmetry.layouts, transports, symmetry.groups)
        for path, factors in moved.items():
            # The information of the permuted weight is the permuted information, entry by entry.
            weight = f"{path}.weight"
            shape = tuple(module.state_dict()[weight].shape)
            diagonal = factors.diagonal[:, :, : factors.sizes[2] - factors.has_bias].reshape(shape)
            own = layers[path].diagonal[:, :, : factors.sizes[2] - factors.has_bias].reshape(shape)
            state = {**module.state_dict(), weight: torch.as_tensor(own)}
            by_network = cs.Network(state, symmetry, "state").permute(orders).arrays[weight]
            np.testing.assert_allclose(diagonal, by_network.numpy(), rtol=ROUNDING, err_msg=path)
            np.testing.assert_allclose(
                np.linalg.eigvalsh(factors.inputs).sum(), np.linalg.eigvalsh(layers[path].inputs).sum(), rtol=1e-9
            )
    if name in ("mlp", "lenet", "depthwise"):  # deterministic: compare with what the permuted network is told
        moved = moved_factors(before.layers, symmetry.layouts, transports, symmetry.groups)
        for path, factors in after.layers.items():
            scale = np.abs(factors.inputs).max()
            np.testing.assert_allclose(moved[path].inputs, factors.inputs, atol=1e-4 * scale, err_msg=path)


def filled(factors, rng):
    """Return factors of the same sizes with random numbers everywhere."""

    def moments(groups, size):
        roots = rng.normal(size=(groups, size, size))
        return roots @ roots.transpose(0, 2, 1)

    groups, o, d = factors.sizes
    return KroneckerFactors(moments(groups, d), moments(groups, o), factors.has_bias)


@pytest.mark.parametrize("method", MERGES[:2], ids=lambda method: method.name)
def test_renumbering_a_sites_units_with_its_information_changes_nothing(method):
    base = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Conv2d(4, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(54, 5), nn.Tanh(),
        nn.Linear(5, 3),
    ).double().eval()  # fmt: skip
    x = torch.randn(150, 1, 7, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    nets = [copy.deepcopy(base) for _ in range(3)]
    for seed, net in enumerate(nets):
        torch.manual_seed(seed)
        for values in net.parameters():
            values.data += 0.02 * torch.randn_like(values)
    symmetry = cs.symmetry(nets[0], x[:2])
    orders = random_orders(symmetry, np.random.default_rng(3))
    with torch.no_grad():
        permuted = cs.permute(nets[1], symmetry, orders)
        # Tanh is odd, so signs of units are free too.
        permuted[0].weight[2] *= -1
        permuted[0].bias[2] *= -1
        permuted[2].weight[:, 2] *= -1
    assert deviation(permuted, nets[1], x[:4]) < 1e-12

    def merged(models):
        with pytest.warns(cs.errors.WithheldWarning):  # 55 numbers, 150 observations are enough; 54 + 1 of 100 are not
            infos = [cs.fisher(net, x[:100], "kronecker") for net in models]
        return cs.fuse(models, method, fishers=infos, symmetry=symmetry).model

    plain, renumbered = merged(nets), merged([nets[0], permuted, nets[2]])
    np.testing.assert_allclose(outputs(plain, x[:9]), outputs(renumbered, x[:9]), atol=1e-6)


# -- What leaves, files.


def test_of_few_observations_only_diagonals_leave():
    net = perceptron(inputs=30)
    with pytest.warns(
        cs.errors.WithheldWarning, match="59 observations are fewer than 2 for each row of a factor of 0"
    ):
        few = cs.fisher(net, observations(0, 59, 30), "kronecker", minimum=1)
    enough = cs.fisher(net, observations(0, 62, 30), "kronecker", minimum=1)
    off = 1 - np.eye(31)
    assert not (few.layers["0"].inputs * off).any()
    assert few.layers["2"].inputs[0, 0, 1] != 0
    assert (enough.layers["0"].inputs * off).any()
    with pytest.raises(cs.errors.InputError, match="may betray single ones"):
        cs.fisher(net, observations(0, 99, 30), "kronecker")


def test_more_than_twenty_outputs_are_drawn_and_the_draws_are_unbiased():
    net, x = perceptron(classes=21), observations(0, 300)
    drawn = cs.fisher(net, x, "kronecker")
    assert drawn.samples == 1
    exact = cs.fisher(net, x, "diagonal")
    many = cs.fisher(net, x, "kronecker", n_draws=400)
    share = np.sum(many.diagonal["2.bias"]) / np.sum(exact.diagonal["2.bias"].numpy())
    assert share == pytest.approx(1, abs=0.02)
    assert cs.fisher(perceptron(classes=20), x, "kronecker").samples is None


def test_weights_of_several_layers_and_frozen_ones_are_told_apart():
    net = perceptron(hidden=3)
    net[2].weight = net[0].weight
    net[0].bias.requires_grad_(False)
    information = cs.fisher(net, observations(0, 120), "kronecker")
    assert not information.layers
    assert set(information.residual) == {"0.weight", "2.bias"}
    net = perceptron()
    net[0].bias.requires_grad_(False)
    information = cs.fisher(net, observations(0, 120), "kronecker")
    assert [factors.has_bias for factors in information.layers.values()] == [False, True]
    assert not information.residual
    assert information.layers["0"].sizes == (1, 4, 3)


def test_files_say_the_same(tmp_path):
    models, infos = known()
    path = tmp_path / "a.safetensors"
    cs.save(infos[0], path)
    read = cs.load(path)
    assert (read.kind, read.record()["kind"]) == ("kronecker", "kronecker")
    for layer, factors in infos[0].layers.items():
        np.testing.assert_array_equal(read.layers[layer].inputs, factors.inputs)
        np.testing.assert_array_equal(read.layers[layer].outputs, factors.outputs)
    again = tmp_path / "b.safetensors"
    cs.save(read, again)
    assert path.read_bytes() == again.read_bytes()
    by_file = cs.fuse(models, "kfac", damping=0.1, fishers=[path, *infos[1:]])
    np.testing.assert_array_equal(answers(by_file), answers(cs.fuse(models, "kfac", damping=0.1, fishers=infos)))


def test_methods_without_factors_read_their_diagonal():
    models, infos = known()
    merged = cs.fuse(models, "fisher", fishers=infos)
    assert merged.details["structure"] == "diagonal"
    by_hand = cs.fuse(models, "fisher", fishers=[{k: v.reshape(models[0].get_parameter(k).shape)
                                                   for k, v in info.diagonal.items()} for info in infos])  # fmt: skip
    np.testing.assert_allclose(parameters(merged.model), parameters(by_hand.model), rtol=1e-6)


# -- Bad input.


def factors_of(path="0", **changed):
    _, infos = known()
    own = infos[0].layers[path]
    values = {"inputs": own.inputs.copy(), "outputs": own.outputs.copy(), "has_bias": own.has_bias} | changed
    return info_with(infos[0], {**infos[0].layers, path: KroneckerFactors(**values)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": np.full((1, 4, 4), np.nan)}, "second moments of the inputs of 0 have NaN"),
        ({"outputs": -np.eye(4)[None]}, "output gradients of 0 have a negative eigenvalue"),
        ({"inputs": np.eye(4)}, "have shape .4, 4., expected .groups, size, size."),
        ({"inputs": np.triu(np.ones((4, 4)))[None]}, "of 0 are not symmetric"),
        ({"inputs": np.repeat(np.eye(4)[None], 2, axis=0)}, "factors of 0 are of 2 groups of inputs, and 1 of outputs"),
    ],
)
def test_factors_that_contradict_themselves_are_refused_by_name(change, message):
    with pytest.raises(cs.errors.InputError, match=message):
        factors_of(**change)


def test_other_information_is_refused():
    models, infos = known()
    plain = informed("diagonal")[1]
    with pytest.raises(cs.errors.InputError, match="has no Kronecker factors, which method 'kfac' needs"):
        cs.fuse(models, "kfac", fishers=plain)
    one = cs.fisher(models[1], observations(1) + 1, minimum=1)
    with pytest.raises(cs.errors.InputError, match="other layers"):
        cs.fuse(models, "kfac", fishers=[infos[0], one, infos[2]])
    with pytest.raises(cs.errors.InputError, match="factors of 0 are those of another layer"):
        cs.fuse(models, "kfac", fishers=[factors_of(inputs=np.eye(7)[None]), *infos[1:]])
    with pytest.raises(cs.errors.OptionError, match="damping"):
        cs.methods.KFAC(damping=-1.0)
    with pytest.raises(cs.errors.OptionError, match="damping"):
        cs.methods.KFAC(damping=0.0)
    assert np.allclose(infos[0].layers["0"].inputs[0, -1, -1], 1.0, rtol=SINGLE_PRECISION)
