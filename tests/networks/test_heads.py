"""Heads of classifiers: found by what they compute, averaged by counts of classes, refitted by ridge regression."""

import numpy as np
import pytest
import torch
from torch import nn

import consilience as cs
from consilience.networks.classes.heads import centred_head, class_heads, find_head, refit_head
from consilience.networks.classes.shares import class_shares
from tests.networks.zoo import ZOO
from tests.tolerances import ROUNDING, SINGLE_PRECISION

COUNTS = np.array([[80.0, 20, 0], [0, 30, 40], [10, 0, 90]])


def seeded(make, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().double()


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTM(4, 5, batch_first=True)
        self.out = nn.Linear(5, 3)

    def forward(self, x):
        return self.out(self.cell(x)[0][:, -1])


class Transformer(nn.Module):
    """Answers every position, the logits of all in one long axis of rows."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, 0.3, batch_first=True), 2)
        self.norm = nn.LayerNorm(4)
        self.out = nn.Linear(4, 3, bias=False)

    def forward(self, x):
        return self.out(self.norm(self.encoder(x))).reshape(-1, 3)


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 3), nn.Linear(5, 2)

    def forward(self, x):
        h = self.body(x).relu()
        return self.a(h), self.b(h)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x):
        return self.out(self.words(x).mean(1))


class Repeated(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = nn.Linear(4, 4)

    def forward(self, x):
        return self.step(self.step(x).relu())


def mlp(classes=3, bias=True):
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, classes, bias=bias))


def rows(*shape, seed=1):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


HEADS = {
    "a perceptron": (mlp, rows(5, 4), "3"),
    "a layer alone": (lambda: nn.Linear(4, 3), rows(5, 4), ""),
    "dropout after it": (lambda: nn.Sequential(mlp(), nn.Dropout(0.5)), rows(5, 4), "0.3"),
    "a recurrent network": (Recurrent, rows(5, 6, 4), "out"),
    "a transformer": (Transformer, rows(5, 6, 4), "out"),
    "arguments by name": (Recurrent, {"x": rows(5, 6, 4)}, "out"),
    "a tuple of arguments": (Recurrent, (rows(5, 6, 4),), "out"),
    "a softmax at the end": (lambda: nn.Sequential(mlp(), nn.LogSoftmax(1)), rows(5, 4), None),
    "two heads": (TwoHeads, rows(5, 4), None),
    "tied weights": (Tied, torch.arange(6).reshape(2, 3), None),
    "a layer that runs twice": (Repeated, rows(5, 4), None),
    "no linear layer": (lambda: nn.Sequential(nn.Conv1d(4, 3, 1), nn.Flatten()), rows(5, 4, 1), None),
    "weight normalisation": (
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), rows(5, 4), None),
}  # fmt: skip


@pytest.mark.parametrize("case", HEADS)
def test_the_head_is_the_linear_layer_whose_outputs_are_the_logits(case):
    make, inputs, expected = HEADS[case]
    module = seeded(make).train()
    before = {name: values.clone() for name, values in module.state_dict().items()}
    assert find_head(module, inputs) == expected
    assert module.training
    assert all(torch.equal(values, before[name]) for name, values in module.state_dict().items())
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in module.modules())


def test_a_rectifier_after_the_last_layer_is_noticed_where_all_outputs_are_positive():
    module = seeded(lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU()))
    with torch.no_grad():
        module[0].bias.fill_(100.0)
    assert torch.equal(module(rows(5, 4)), module[0](rows(5, 4)))
    assert find_head(module, rows(5, 4)) is None


@pytest.mark.parametrize("name", ["mlp", "lenet", "resnet18", "gru"])
def test_networks_of_the_zoo_have_their_head(name):
    module, inputs = ZOO[name].module(), ZOO[name].inputs()
    assert isinstance(module.get_submodule(find_head(module, inputs)), nn.Linear)


# -- Rows by counts of classes.


def state(seed, bias=True):
    return seeded(lambda: mlp(bias=bias), seed).state_dict()


def with_head(seed, head):
    module = seeded(mlp, seed).eval()
    module.load_state_dict({**module.state_dict(), **{name: torch.as_tensor(values) for name, values in head.items()}})
    return module(rows(20, 4)).softmax(1).detach()


def test_rows_are_the_means_of_centred_rows_by_shares():
    states = [state(seed) for seed in range(3)]
    head = class_heads(states, "3", class_shares(COUNTS))
    for name in ("3.weight", "3.bias"):
        arrays = np.stack([of_site[name].numpy() for of_site in states])  # (J, C, ...)
        centred = arrays - arrays.mean(axis=1, keepdims=True)
        shares = COUNTS / COUNTS.sum(axis=0)
        np.testing.assert_allclose(head[name].numpy(), np.einsum("jc,jc...->c...", shares, centred), rtol=ROUNDING)


def test_a_class_of_one_site_has_its_row():
    states = [state(seed) for seed in range(2)]
    head = class_heads(states, "3", class_shares([[5, 5, 0], [5, 0, 5]]))
    torch.testing.assert_close(head["3.weight"][1], centred_head(states[0]["3.weight"])[0][1])
    torch.testing.assert_close(head["3.weight"][2], centred_head(states[1]["3.weight"])[0][2])


def test_a_constant_added_to_all_rows_of_a_site_changes_nothing():
    states = [state(seed) for seed in range(3)]
    head = class_heads(states, "3", class_shares(COUNTS))
    states[1] = {
        **states[1], "3.weight": states[1]["3.weight"] + torch.arange(6), "3.bias": states[1]["3.bias"] - 7
    }  # fmt: skip
    moved = class_heads(states, "3", class_shares(COUNTS))
    for name, values in head.items():
        torch.testing.assert_close(moved[name], values, rtol=0, atol=1e-13)


def test_equal_networks_keep_their_function():
    probabilities = with_head(0, class_heads([state(0)] * 3, "3", class_shares(COUNTS)))
    torch.testing.assert_close(probabilities, with_head(0, {}), rtol=0, atol=1e-13)


def test_equal_class_distributions_give_the_average_by_observations():
    sizes = np.array([1.0, 2, 5])
    states = [state(seed) for seed in range(3)]
    head = class_heads(states, "3", class_shares(np.outer(sizes, [10, 20, 30])))
    average = {
        name: sum(n * of_site[name] for n, of_site in zip(sizes / 8, states, strict=True))
        for name in ("3.weight", "3.bias")
    }
    torch.testing.assert_close(with_head(0, head), with_head(0, average), rtol=0, atol=1e-13)


def test_arrays_of_numpy_and_of_half_precision_are_averaged():
    states = [state(seed, bias=False) for seed in range(3)]
    expected = class_heads(states, "3", class_shares(COUNTS))
    assert list(expected) == ["3.weight"]
    of_numpy = class_heads([{"3.weight": s["3.weight"].numpy()} for s in states], "3", class_shares(COUNTS))
    np.testing.assert_allclose(of_numpy["3.weight"], expected["3.weight"].numpy(), rtol=ROUNDING)
    halves = class_heads([{"3.weight": s["3.weight"].bfloat16()} for s in states], "3", class_shares(COUNTS))
    assert halves["3.weight"].dtype == torch.float32
    torch.testing.assert_close(halves["3.weight"].double(), expected["3.weight"], rtol=0, atol=1e-2)


def test_heads_that_do_not_fit_are_refused():
    states = [state(seed) for seed in range(3)]
    with pytest.raises(cs.errors.InputError, match=r"model 0: has no array 2\.weight"):
        class_heads(states, "2", class_shares(COUNTS))
    with pytest.raises(cs.errors.InputError, match="3 networks by 3 classes"):
        class_heads(states, "3", class_shares(COUNTS[:2]))
    with pytest.raises(cs.errors.InputError, match="2 or more classes, found 1"):
        centred_head(torch.ones(1, 4))


# -- Regression of the head.


@pytest.mark.parametrize("ridge", [0.0, 1e-3, 0.5])
@pytest.mark.parametrize("bias", [True, False])
def test_the_refitted_head_is_the_ridge_regression(bias, ridge):
    module, inputs, targets = seeded(lambda: mlp(bias=bias)), rows(50, 4), rows(50, 3, seed=2)
    refitted = refit_head(module, inputs, targets, ridge)
    h = module.eval()[:3](inputs).detach().numpy()
    y = targets.numpy() - targets.numpy().mean(axis=1, keepdims=True)
    start = module[3].weight.detach().numpy() - module[3].weight.detach().numpy().mean(axis=0)
    penalty = max(ridge, 1e-9) * np.mean(h**2) * len(h)
    design = np.hstack([h, np.ones((len(h), 1))]) if bias else h
    shrinkage = np.diag([penalty] * 6 + [0.0] * bias)
    pull = np.vstack([penalty * start.T, np.zeros((int(bias), 3))])
    solution = np.linalg.solve(design.T @ design + shrinkage, design.T @ y + pull)  # (d + 1, C)
    np.testing.assert_allclose(refitted[3].weight.detach().numpy(), solution[:6].T, rtol=1e-8, atol=1e-10)
    if bias:
        np.testing.assert_allclose(refitted[3].bias.detach().numpy(), solution[6], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("make", [mlp, Recurrent, Transformer], ids=["mlp", "lstm", "transformer"])
def test_no_other_layer_is_touched_and_own_logits_change_no_probability(make):
    module = seeded(make).train()
    inputs = rows(30, 4) if make is mlp else rows(30, 6, 4)
    module.eval()
    logits = module(inputs).detach()
    module.train()
    refitted = refit_head(module, inputs, logits, ridge=0.1)
    head = find_head(module, inputs)
    for name, values in refitted.state_dict().items():
        if not name.startswith(head):
            assert torch.equal(values, module.state_dict()[name])
    answered = refitted.eval()(inputs)
    torch.testing.assert_close(answered.softmax(-1), logits.softmax(-1), rtol=0, atol=1e-7)


def test_precision_and_mode_stay():
    module = seeded(mlp).float().train()
    refitted = refit_head(module, rows(30, 4).float(), rows(30, 3))
    assert refitted.training
    assert all(values.dtype == torch.float32 for values in refitted.state_dict().values())


def test_targets_at_every_position_may_have_the_shape_of_positions():
    module, inputs = seeded(Transformer), rows(5, 6, 4)
    targets = rows(5, 6, 3)
    one, other = (refit_head(module, inputs, t) for t in (targets, targets.reshape(30, 3)))
    torch.testing.assert_close(one.out.weight, other.out.weight, rtol=SINGLE_PRECISION, atol=0)


@pytest.mark.parametrize("given", [lambda x: x, lambda x: (x,), lambda x: {"x": x}], ids=["tensor", "tuple", "dict"])
def test_many_inputs_are_taken_in_parts(given):
    module, inputs, targets = seeded(Recurrent), rows(600, 6, 4), rows(600, 3, seed=2)
    seen = []
    module.register_forward_pre_hook(lambda _, arguments: seen.append(len(arguments[0])) if arguments else None)
    refitted = refit_head(module, given(inputs), targets)
    assert max(seen, default=0) <= 256
    with torch.no_grad():
        h = module.eval().cell(inputs)[0][:, -1].numpy()
    y = targets.numpy() - targets.numpy().mean(axis=1, keepdims=True)
    start = module.out.weight.detach().numpy() - module.out.weight.detach().numpy().mean(axis=0)
    centred, penalty = h - h.mean(axis=0), 1e-3 * np.mean(h**2) * len(h)
    solution = np.linalg.solve(centred.T @ centred + penalty * np.eye(5), centred.T @ y + penalty * start.T)
    np.testing.assert_allclose(refitted.out.weight.detach().numpy(), solution.T, rtol=1e-8, atol=1e-10)


def test_what_cannot_be_refitted_is_refused():
    module, inputs = seeded(mlp), rows(5, 4)
    with pytest.raises(cs.errors.InputError, match="expected 5 rows of 3 logits"):
        refit_head(module, inputs, rows(4, 3))
    with pytest.raises(cs.errors.InputError, match="NaN or infinite"):
        refit_head(module, inputs, rows(5, 3).log())
    with pytest.raises(cs.errors.InputError, match="has no last linear layer"):
        refit_head(nn.Sequential(module, nn.Softmax(1)), inputs, rows(5, 3))
    with pytest.raises(cs.errors.OptionError, match="ridge"):
        refit_head(module, inputs, rows(5, 3), -1)
