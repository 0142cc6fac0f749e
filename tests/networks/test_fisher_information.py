"""Fisher information: what a site computes is a sum over its observations, for any network, and no more leaves."""

import math
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn

import consilience as cs
from consilience.core.inputs import name_inputs
from consilience.networks.fisher.inputs import gather_information
from consilience.networks.fisher.sample_gradients import GradientMethod, PerSampleBackward
from consilience.networks.inputs import DescribedNetwork
from consilience.networks.network import Network, complete_orders
from consilience.networks.symmetry.transport import permutation
from tests.networks.fusable_nets import proved, random_orders, raw
from tests.networks.informed_nets import dense, flat, observations, one_by_one, perceptron
from tests.networks.zoo import ZOO
from tests.tolerances import ROUNDING, SINGLE_PRECISION, STANDARD_ERRORS

pytestmark = pytest.mark.covering(2)

CLOSED_FORMS = [
    "mlp", "lenet", "resnet18", "densenet", "squeeze and excitation", "resnext", "depthwise", "group norm",
    "layer norm", "lstm both ways", "projected lstm", "gru", "rnn", "tied embedding",
]  # fmt: skip
VECTORISED = ["transposed in blocks", "instance norm", "gpt", "flattened by view"]
ONE_BY_ONE = ["multi-head attention"]
METHODS = {
    **dict.fromkeys(CLOSED_FORMS, GradientMethod.CLOSED_FORMS),
    **dict.fromkeys(VECTORISED, GradientMethod.VECTORISED),
    **dict.fromkeys(ONE_BY_ONE, GradientMethod.ONE_BY_ONE),
}
without_projections_warning = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported:UserWarning")


@without_projections_warning
@pytest.mark.parametrize("name", METHODS)
def test_the_diagonal_is_that_of_gradients_taken_one_by_one(name):
    module, inputs = ZOO[name].module().double(), ZOO[name].inputs()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    outputs = module(inputs[:1])
    likelihood = "categorical" if outputs.ndim == 2 else "gaussian"
    information = cs.fisher(module, inputs, likelihood=likelihood, minimum=1)
    expected = (one_by_one(module, inputs, likelihood) ** 2).sum(dim=0)
    diagonal = flat({key: information.residual[key] for key, _ in module.named_parameters()})
    assert (diagonal - expected).abs().max() <= 1e3 * ROUNDING * expected.max()


@without_projections_warning
@pytest.mark.parametrize("name", METHODS)
def test_the_usual_layers_have_closed_forms_and_others_are_vectorised(name):
    module = ZOO[name].module()
    trained = {key: values for key, values in module.named_parameters() if values.requires_grad}
    assert PerSampleBackward(module, trained).choose_method(ZOO[name].inputs()) is METHODS[name]


class Unusual(nn.Module):
    """A parameter that no layer owns, a layer used twice, an activation in place, a frozen and a tied layer."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))
        self.first, self.again, self.last = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3, bias=False)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.last.weight = self.first.weight

    def forward(self, x):
        x = nn.functional.relu_(self.first(x * self.gain))
        return self.last(self.frozen(self.again(self.again(x))))


@pytest.mark.parametrize("left_out", [(), ("gain",)], ids=["torch.func", "closed forms"])
def test_shared_frozen_and_bare_parameters_are_counted_once_and_right(left_out):
    torch.manual_seed(0)
    module = Unusual().double()
    for key in left_out:
        getattr(module, key).requires_grad_(False)
    trained = {key: values for key, values in module.named_parameters() if values.requires_grad}
    x = observations(0, 12)
    expected_method = GradientMethod.CLOSED_FORMS if left_out else GradientMethod.VECTORISED
    assert PerSampleBackward(module, trained).choose_method(x) is expected_method
    information = cs.fisher(module, x, "factors", rank=None, minimum=1)
    expected = one_by_one(module, x)
    assert list(information.residual) == list(trained)
    assert (dense(information) - expected.T @ expected).abs().max() < 1e2 * ROUNDING * (expected**2).sum()
    assert information.aliases == {"last.weight": "first.weight"}


class Branching(nn.Module):
    """A scale of its own, and another path for inputs of a negative sum, which no vectorised network can take."""

    def __init__(self):
        super().__init__()
        self.scale, self.out = nn.Parameter(torch.tensor([0.5, -1.0, 2.0])), nn.Linear(3, 3)

    def forward(self, x):
        return self.out(x * self.scale if float(x.sum()) > 0 else x - self.scale)


def test_control_flow_that_depends_on_inputs_is_followed_one_by_one():
    torch.manual_seed(0)
    module, x = Branching().double(), observations(0, 12)
    assert PerSampleBackward(module, dict(module.named_parameters())).choose_method(x) is GradientMethod.ONE_BY_ONE
    expected = (one_by_one(module, x) ** 2).sum(dim=0)
    diagonal = flat(cs.fisher(module, x, minimum=1).residual)
    assert (diagonal - expected).abs().max() <= 1e3 * ROUNDING * expected.max()


class WithTable(nn.Module):
    """Rows are looked up in a table that all observations share, and scaled by a parameter that no layer owns."""

    def __init__(self):
        super().__init__()
        self.scale, self.out = nn.Parameter(torch.tensor([0.5, -1.0, 2.0])), nn.Linear(3, 3)

    def forward(self, rows, table=None, doubled=False):
        return self.out(table[rows] * self.scale) * (2.0 if doubled else 1.0)


def test_keyword_arguments_that_serve_all_observations_are_not_split():
    torch.manual_seed(0)
    module, table = WithTable().double(), observations(0, 5)
    batch = {"rows": torch.arange(12) % 5, "table": table, "doubled": True}
    backward = PerSampleBackward(module, dict(module.named_parameters()))
    assert backward.choose_method(batch) is GradientMethod.VECTORISED
    (outputs, together), (_, alone) = (
        backward.forward(batch, method) for method in (GradientMethod.VECTORISED, GradientMethod.ONE_BY_ONE)
    )
    column = torch.ones_like(outputs)
    for name in backward.parameters:
        expected = alone(column).gradients(name)
        assert (together(column).gradients(name) - expected).abs().max() <= 1e3 * ROUNDING * expected.abs().max()


@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli", "gaussian"])
def test_factors_are_the_whole_matrix_unless_they_are_cut(likelihood):
    module, x = perceptron(), observations(1)
    rows = one_by_one(module, x, likelihood, 0.5)
    whole = cs.fisher(module, x, "factors", likelihood, rank=None, noise=0.5, minimum=1)
    assert (dense(whole) - rows.T @ rows).abs().max() < 1e2 * ROUNDING * (rows**2).sum()
    cut = cs.fisher(module, x, "factors", likelihood, rank=5, noise=0.5, minimum=1)
    assert cut.rank == 5
    lengths = torch.linalg.eigvalsh(dense(whole))
    assert torch.allclose(torch.linalg.eigvalsh(dense(cut) - torch.diag(flat(cut.residual)))[-5:], lengths[-5:])
    assert torch.allclose(flat(cut.diagonal), flat(whole.diagonal), rtol=1e-10)
    assert all((values >= 0).all() for values in cut.residual.values())


def test_no_factor_is_the_gradient_of_an_observation():
    module, x = perceptron(), observations(2, 200)
    rows = one_by_one(module, x)
    information = cs.fisher(module, x, "factors", rank=None)
    factors = torch.cat([values.reshape(information.rank, -1) for values in information.factors.values()], dim=1)
    cosines = nn.functional.normalize(factors) @ nn.functional.normalize(rows).T
    assert (cosines.abs() < 1 - 1e-6).all()
    assert information.rank <= sum(values.numel() for values in module.parameters())
    products = factors @ factors.T
    assert (products - torch.diag(products.diagonal())).abs().max() < 1e-9 * products.max()


@pytest.mark.parametrize(("n_draws", "classes"), [(1, 10), (None, 2)])
def test_inputs_cannot_be_taken_out_of_factors(n_draws, classes):
    """Rows of the first layer are products of a gradient and an input: enough directions are taken apart into them.

    (Two random projections of the directions to matrices have the rows' parts as common eigenvectors.)
    """
    x = torch.rand(120, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    module = perceptron(inputs=16, hidden=128, classes=classes)

    def recovered(rank):
        information = cs.fisher(module, x, "factors", n_draws=n_draws, rank=rank)
        arrays = torch.cat([information.factors["0.weight"], information.factors["0.bias"][:, :, None]], dim=2).numpy()
        rng = np.random.default_rng(0)
        first, second = (arrays @ rng.normal(size=17) for _ in range(2))
        _, parts = np.linalg.eig(first @ np.linalg.pinv(second))
        rows = np.linalg.pinv(parts) @ arrays.reshape(len(arrays), -1)
        right_vectors = [np.linalg.svd(row.reshape(128, 17))[2][0] for row in rows]
        inputs = np.array([np.real(row[:16] / row[16]) for row in right_vectors])
        distance = np.sqrt(((x.numpy()[:, None] - inputs) ** 2).mean(axis=2)).min(axis=1)
        return int((distance < 0.01).sum())

    assert recovered(rank=None) > 60
    assert recovered(rank=256) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_weight_that_is_used_twice_is_noticed_in_any_precision(dtype):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return nn.functional.linear(self.layer(x).tanh(), self.layer.weight)

    torch.manual_seed(0)
    module, x = Twice(), observations(8).float()
    expected = flat(cs.fisher(module, x, minimum=1).residual)
    diagonal = flat(cs.fisher(module.to(dtype), x, minimum=1).residual)
    assert (diagonal - expected).abs().max() < 0.1 * expected.max()


def test_a_first_batch_of_one_observation_hides_nothing():
    class Centred(nn.Linear):
        def forward(self, x):
            outputs = super().forward(x)
            return outputs - outputs.mean(dim=0)

    torch.manual_seed(0)
    module, x = Centred(3, 2), observations(0).float()
    with pytest.raises(cs.errors.InputError, match="is zero for every parameter"):
        cs.fisher(module, [x[:1], x[1:]], minimum=1)


def test_information_is_additive_and_batches_change_nothing():
    module, x = perceptron(), observations(3, 60)
    whole = cs.fisher(module, x, minimum=1)
    labels = torch.zeros(20)
    parts = [cs.fisher(module, part, minimum=1) for part in x.split(20)]
    loaded = cs.fisher(module, [(part, labels) for part in x.split(20)], minimum=1)
    for key, values in whole.residual.items():
        assert torch.allclose(values, sum(part.residual[key] for part in parts), rtol=1e-10)
        assert torch.allclose(values, loaded.residual[key], rtol=1e-10)
    assert (whole.observations, parts[0].observations, loaded.seen) == (60.0, 20.0, 60)


def test_some_observations_stand_for_all():
    module, x = perceptron(), observations(4)
    some, all_of_them = (cs.fisher(module, x, "factors", n_observations=n, minimum=1) for n in (None, 4000))
    assert torch.allclose(dense(all_of_them), 100 * dense(some), rtol=1e-9)
    assert (all_of_them.observations, all_of_them.seen) == (4000.0, 40)


@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli", "gaussian"])
def test_outcomes_drawn_from_the_model_give_the_same_on_average(likelihood):
    module, x = perceptron(), observations(5, 30)
    exact = flat(cs.fisher(module, x, likelihood=likelihood, minimum=1).residual)
    runs = [cs.fisher(module, x, likelihood=likelihood, n_draws=4, rng=seed, minimum=1) for seed in range(40)]
    drawn = torch.stack([flat(run.residual) for run in runs])
    error = drawn.std(dim=0) / math.sqrt(len(runs))
    assert ((drawn.mean(dim=0) - exact).abs() <= STANDARD_ERRORS * error).all()
    again = cs.fisher(module, x, likelihood=likelihood, n_draws=4, rng=0, minimum=1)
    assert raw(again.residual) == raw(runs[0].residual)


def test_positions_of_a_sequence_add_up():
    module, x = nn.Conv1d(2, 3, 2).double(), observations(6, 30).reshape(10, 1, 9).expand(10, 2, 9)
    rows = one_by_one(module, x)
    information = cs.fisher(module, x, minimum=1)
    assert torch.allclose(flat(information.residual), (rows**2).sum(dim=0))


def test_the_network_is_left_as_it_was():
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)).train()
    before, generator = deepcopy(module.state_dict()), torch.random.get_rng_state()
    cs.fisher(module, observations(0).float(), "factors", minimum=1)
    assert raw(module.state_dict()) == raw(before)
    assert all(part.training for part in module.modules())
    assert not any(part._forward_hooks or "forward" in vars(part) for part in module.modules())
    assert all(values.grad is None for values in module.parameters())
    assert torch.equal(torch.random.get_rng_state(), generator)


def test_it_is_known_which_networks_are_linear_in_their_parameters():
    x = observations(0).float()
    linear = nn.Sequential(nn.Flatten(), nn.Linear(3, 2))
    deep = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    product = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    assert [cs.fisher(module, x, minimum=1).linear for module in (linear, deep, product)] == [True, False, False]


@pytest.mark.parametrize("name", ["mlp", "depthwise", "gru", "lstm both ways"])
@pytest.mark.parametrize("kind", ["diagonal", "factors"])
def test_information_moves_with_the_units(name, kind):
    module, inputs, symmetry = proved(name)
    likelihood = "gaussian" if isinstance(module(inputs), torch.Tensor) and module(inputs).ndim > 2 else "categorical"
    orders = random_orders(symmetry, np.random.default_rng(0))
    permuted = cs.permute(module, symmetry, orders)
    expected = cs.fisher(permuted, inputs, kind, likelihood, rank=None, minimum=1)
    network = Network(module.state_dict(), symmetry)
    transports = {key: permutation(order) for key, order in complete_orders(symmetry, network.units, orders).items()}
    moved = cs.fisher(module, inputs, kind, likelihood, rank=None, minimum=1).moved(network, transports)
    for key, values in expected.diagonal.items():
        assert torch.allclose(moved.diagonal[key], values, atol=1e2 * SINGLE_PRECISION * float(values.max()))
    if kind == "factors":
        names = list(expected.residual)
        rows, expected_rows = (
            torch.cat([information.factors[key].flatten(1) for key in names], dim=1)
            for information in (moved, expected)
        )
        rounding = 1e2 * SINGLE_PRECISION * float((expected_rows**2).sum())
        assert torch.allclose(rows.T @ rows, expected_rows.T @ expected_rows, atol=rounding)


@pytest.mark.parametrize("kind", ["diagonal", "factors"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_file_gives_back_what_was_saved(tmp_path, kind, dtype):
    module, x = perceptron().to(dtype), observations(0).to(dtype)
    information = cs.fisher(module, x, kind, prior_precision=2.5, n_draws=2, minimum=1)
    for name in ("one", "two"):
        cs.save(information, tmp_path / name)
    read = cs.load(tmp_path / "one")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert isinstance(read, cs.results.FisherInformation)
    fields = ("observations", "prior_precision", "likelihood", "noise", "seen", "samples", "linear", "digest")
    assert [getattr(read, field) for field in fields] == [getattr(information, field) for field in fields]
    for key, values in information.diagonal.items():
        assert np.array_equal(torch.as_tensor(read.diagonal[key]).float().numpy(), values.float().numpy())


def test_a_tied_parameter_is_known_by_its_other_name_alone(tmp_path):
    net = Unusual()
    information = cs.fisher(net, observations(0, 12).float(), minimum=1)
    state = {key: values for key, values in net.state_dict().items() if key != "first.weight"}
    network = DescribedNetwork("lund", "lund", state, None, None, None)
    cs.save(information, tmp_path / "lund.fisher.safetensors")
    (gathered,) = gather_information([network], None, name_inputs([tmp_path / "lund.fisher.safetensors"]))
    assert gathered.digest == information.digest
