"""Laws of the adapter of GPyTorch's ApproximateGP, with GPyTorch's own predictions as oracle."""

import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.testing import assert_allclose

import consilience as cs
from consilience.posteriors.adapters.table import ADAPTERS
from consilience.posteriors.sparse_gp.adapter import ApproximateGPAdapter
from consilience.posteriors.sparse_gp.kernels import RBF
from consilience.posteriors.sparse_gp.learner import TitsiasGP
from tests.tolerances import GPYTORCH_JITTER, ROUNDING

pytestmark = pytest.mark.covering(2)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what torch says while it is imported
    import gpytorch
    import torch
    from gpytorch import kernels, likelihoods, means, variational

RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, (120, 2))
Y = np.sin(X[:, 0]) + 0.3 * X[:, 1] ** 2 + 0.1 * RNG.normal(size=120)
NEW = RNG.uniform(-3.0, 3.0, (40, 2))
ADAPTER = ApproximateGPAdapter()


class Regression(gpytorch.models.ApproximateGP):
    """What a user writes, as GPyTorch's tutorials do."""

    def __init__(self, Z, kernel, mean, strategy, distribution, likelihood=None):
        points = torch.as_tensor(Z)
        super().__init__(strategy(self, points, distribution(len(points)), learn_inducing_locations=True))
        self.mean_module, self.covar_module = mean, kernel
        if likelihood is not None:
            self.likelihood = likelihood

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


CHOLESKY, MEAN_FIELD = variational.CholeskyVariationalDistribution, variational.MeanFieldVariationalDistribution
WHITENED, UNWHITENED = variational.VariationalStrategy, variational.UnwhitenedVariationalStrategy
KERNELS = {
    "scaled rbf": lambda: kernels.ScaleKernel(kernels.RBFKernel(ard_num_dims=2)),
    "scaled matern 5/2": lambda: kernels.ScaleKernel(kernels.MaternKernel(nu=2.5, ard_num_dims=2)),
    "matern 3/2, one length-scale": lambda: kernels.MaternKernel(nu=1.5),
    "matern 1/2": lambda: kernels.MaternKernel(nu=0.5, ard_num_dims=2),
    "rbf": lambda: kernels.RBFKernel(),
}
CASES = [(kernel, WHITENED, CHOLESKY) for kernel in KERNELS]
CASES += [("scaled rbf", UNWHITENED, CHOLESKY), ("scaled rbf", WHITENED, MEAN_FIELD)]
CASES += [("matern 1/2", UNWHITENED, MEAN_FIELD)]
every_case = pytest.mark.parametrize(("kernel", "strategy", "distribution"), CASES)


def trained(kernel, strategy, distribution, seed=0, mean=None, steps=30, double=True):
    torch.manual_seed(seed)
    Z = np.random.default_rng([seed, 1]).uniform(-2.0, 2.0, (8, 2))
    mean = means.ConstantMean() if mean is None else mean
    model = Regression(Z, KERNELS[kernel](), mean, strategy, distribution, likelihoods.GaussianLikelihood())
    model = model.double() if double else model.float()
    x, y = (torch.as_tensor(values).to(torch.float64 if double else torch.float32) for values in (X, Y))
    objective = gpytorch.mlls.VariationalELBO(model.likelihood, model, num_data=len(y))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    model.train()
    for _ in range(steps):
        optimiser.zero_grad()
        loss = -objective(model(x), y)
        loss.backward()
        optimiser.step()
    return model.eval()


fitted = cache(trained)


def predictions(model, noise=False, dtype=torch.float64):
    with torch.no_grad():
        found = model(torch.as_tensor(NEW).to(dtype))
        found = model.likelihood(found) if noise else found
        return found.mean.numpy(), found.variance.numpy()


def assert_same(found, expected, error=GPYTORCH_JITTER):
    for mine, theirs in zip(found, expected, strict=True):
        assert_allclose(mine, theirs, rtol=error, atol=error)


@every_case
def test_what_is_described_predicts_as_gpytorch_does(kernel, strategy, distribution):
    model = fitted(kernel, strategy, distribution)
    value = ADAPTER.to_sparse_gp(model, None)
    assert_same(value.predict(NEW), predictions(model))
    assert_same(value.predict(NEW, noise=True), predictions(model, noise=True))


@every_case
def test_what_is_rebuilt_is_an_approximate_gp_with_the_same_predictions(kernel, strategy, distribution, tmp_path):
    model = fitted(kernel, strategy, distribution)
    cs.save(model, tmp_path / "site.safetensors", n_observations=120)
    posterior = cs.load(tmp_path / "site.safetensors")
    rebuilt = cs.rebuild(posterior)
    assert isinstance(rebuilt, gpytorch.models.ApproximateGP)
    assert not rebuilt.training
    assert ADAPTER.accepts(rebuilt)
    assert_same(predictions(rebuilt), predictions(model))
    assert_same(predictions(rebuilt, noise=True), predictions(model, noise=True))
    again = cs.describe(rebuilt, n_observations=120)
    assert_allclose(again.natural, posterior.natural, rtol=1e-8, atol=1e-8)
    for name, attached in posterior.attached.items():
        assert_allclose(again.attached[name].values, attached.values, rtol=1e-6, atol=1e-8, err_msg=name)


def test_zero_means_and_models_in_single_precision_are_taken():
    model = fitted("scaled rbf", WHITENED, CHOLESKY, mean=means.ZeroMean(), double=False)
    value = ADAPTER.to_sparse_gp(model, None)
    assert value.constant == 0.0
    assert_same(
        value.predict(NEW), predictions(model, dtype=torch.float32), error=3e-3
    )  # jitter of 1e-4, and its digits


def test_without_a_likelihood_the_noise_is_not_known():
    model = trained("scaled rbf", WHITENED, CHOLESKY)
    del model.likelihood
    value = ADAPTER.to_sparse_gp(model, None)
    assert value.noise == 0.0
    assert_same(value.predict(NEW), predictions(model))
    assert not hasattr(cs.rebuild(cs.describe(model)), "likelihood")


@pytest.mark.parametrize("method", ["concatenate", "kmeans", "spahm"])
def test_fusing_gives_an_approximate_gp_that_predicts_as_the_product(method):
    models = [fitted("scaled rbf", WHITENED, CHOLESKY, seed=seed) for seed in range(2)]
    fusion = cs.fuse(models, method)
    model = fusion.model
    assert isinstance(model, gpytorch.models.ApproximateGP)
    assert model.variational_strategy.inducing_points.shape == (fusion.n_components, 2)
    assert_same(predictions(model, noise=True), ADAPTER.to_sparse_gp(model, None).predict(NEW, noise=True))
    mean = predictions(model)[0]
    near = np.all(np.abs(NEW) < 1.7, axis=1)
    target = np.sin(NEW[near, 0]) + 0.3 * NEW[near, 1] ** 2
    if method != "spahm":
        assert np.sqrt(np.mean((mean[near] - target) ** 2)) < 0.3
    model.train()  # and it can be trained on
    loss = -gpytorch.mlls.VariationalELBO(model.likelihood, model, num_data=120)(
        model(torch.tensor(X)), torch.tensor(Y)
    )
    loss.backward()
    assert torch.isfinite(loss)


def test_gpytorch_and_our_own_meet_as_posteriors_of_one_kind():
    model = fitted("scaled rbf", WHITENED, CHOLESKY)
    value = ADAPTER.to_sparse_gp(model, 120)
    own = TitsiasGP(8, kernel=value.kernel, noise=value.noise, constant=value.constant, learn_parameters=False).fit(
        X, Y
    )
    (problem,) = cs.check([own, model], "concatenate")
    assert "has kind 'gpytorch.ApproximateGP', expected 'consilience.SparseGP'" in problem
    fused = cs.fuse([own, replace(value, jitter=own.jitter)], "concatenate")
    assert fused.n_components == 16
    back = ADAPTER.from_sparse_gp(fused.model)
    assert_same(predictions(back), fused.model.predict(NEW))


def test_scores_are_those_of_gpytorch():
    model = fitted("scaled rbf", WHITENED, CHOLESKY)
    scores = ADAPTER.scores(model, np.column_stack([X, Y]))
    with torch.no_grad():
        law = model.likelihood(model(torch.tensor(X)))
        expected = torch.distributions.Normal(law.mean, law.stddev).log_prob(torch.tensor(Y)).numpy()
    assert_allclose(scores.values, expected, rtol=1e-3, atol=1e-3)


def unfitted(kernel=None, mean=None, strategy=WHITENED, distribution=CHOLESKY, likelihood=None):
    kernel = KERNELS["scaled rbf"]() if kernel is None else kernel
    Z = X[:8] + 0.1
    return Regression(
        Z, kernel, means.ConstantMean() if mean is None else mean, strategy, distribution, likelihood
    ).double()


def used(model):
    model.variational_strategy.variational_params_initialized.fill_(1)
    return model.eval()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            lambda: unfitted(kernel=kernels.PeriodicKernel()),
            "kernel: expected RBFKernel or MaternKernel .*PeriodicKernel",
        ),
        (lambda: unfitted(kernel=kernels.RBFKernel() + kernels.RBFKernel()), "found AdditiveKernel"),
        (lambda: unfitted(kernel=kernels.RBFKernel(active_dims=(0,))), "found active_dims or a batch of kernels"),
        (lambda: unfitted(mean=means.LinearMean(2)), "mean: expected ConstantMean or ZeroMean .*, found LinearMean"),
        (lambda: unfitted(distribution=variational.DeltaVariationalDistribution), "found DeltaVariationalDistribution"),
        (lambda: unfitted(strategy=variational.CiqVariationalStrategy), "found CiqVariationalStrategy"),
        (lambda: unfitted(likelihood=likelihoods.StudentTLikelihood()), "found StudentTLikelihood"),
    ],
)
def test_what_a_sparse_gp_is_not_is_refused_by_name(model, message):
    with pytest.raises(cs.errors.UnsupportedError, match=message):
        cs.describe(used(model()))


class Deep(Regression):
    """A model that transforms its inputs on the way, as deep kernels do."""

    def forward(self, x):
        return super().forward(torch.tanh(x))


def test_models_that_transform_their_inputs_are_refused():
    model = Deep(X[:8], KERNELS["scaled rbf"](), means.ConstantMean(), WHITENED, CHOLESKY).double()
    with pytest.raises(cs.errors.UnsupportedError, match="forward returns `mean_module"):
        cs.describe(used(model))


def test_models_that_were_never_trained_are_refused():
    with pytest.raises(
        cs.errors.InputError, match=r"^this ApproximateGP is not fitted yet; train it first \[E-UNFITTED\]$"
    ):
        cs.describe(unfitted())


def test_kernels_of_other_names_are_not_fused():
    models = [fitted("scaled rbf", WHITENED, CHOLESKY), fitted("scaled matern 5/2", WHITENED, CHOLESKY)]
    assert cs.check(models, "concatenate") == [
        "model 1: has kernel 'matern52', expected 'rbf' as in model 0 [E-MISMATCH]"
    ]


def test_only_this_adapter_knows_it():
    model = fitted("scaled rbf", WHITENED, CHOLESKY)
    assert [adapter.kind for adapter in ADAPTERS if adapter.accepts(model)] == ["gpytorch.ApproximateGP"]
    assert ADAPTER.to_sparse_gp(model, None).kernel.dim == RBF(1.0, [1.0, 1.0]).dim
    assert_allclose(ADAPTER.to_sparse_gp(model, 7).n_observations, 7, rtol=ROUNDING)
