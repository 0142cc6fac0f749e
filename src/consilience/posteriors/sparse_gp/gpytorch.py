"""GPyTorch's ApproximateGP, in and out."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from consilience.checks import Array
from consilience.errors import InputError, UnsupportedError
from consilience.posteriors.sparse_gp.adapter import InducingPointAdapter
from consilience.posteriors.sparse_gp.kernels import Kernel, make_kernel
from consilience.posteriors.sparse_gp.model import SparseGP

_STRATEGIES = ("VariationalStrategy", "UnwhitenedVariationalStrategy")
_DISTRIBUTIONS = ("CholeskyVariationalDistribution", "MeanFieldVariationalDistribution")
_MEANS = ("ConstantMean", "ZeroMean")
_AGREES = 1e-4  # of the prior's size, in the precision of single floats
_MATERN = {0.5: "matern12", 1.5: "matern32", 2.5: "matern52"}


class ApproximateGPAdapter(InducingPointAdapter):
    """Variational Gaussian processes of GPyTorch with one function, a stationary kernel and a constant mean.

    The noise is that of ``model.likelihood`` where the model has one; without, it is not known and counts as 0, in
    predictions and in scores. GPyTorch records no number of observations: give it as ``samples``. A rebuilt model is an
    ApproximateGP in float64 and in eval mode, with a whitened VariationalStrategy.
    """

    kind: ClassVar[str] = "gpytorch.ApproximateGP"
    library: ClassVar[str] = "gpytorch"
    class_name: ClassVar[str] = "ApproximateGP"

    def value_of(self, model: Any, samples: float | None) -> SparseGP:
        """Return a fitted ApproximateGP as a SparseGP.

        Raises
        ------
        UnsupportedError
            For strategies, kernels and means other than those that a SparseGP has, naming what was found.
        InputError
            When the variational distribution was never set.
        """
        strategy = model.variational_strategy
        _one_of(strategy, _STRATEGIES, "variational strategy")
        distribution = strategy._variational_distribution
        _one_of(distribution, _DISTRIBUTIONS, "variational distribution")
        if not bool(strategy.variational_params_initialized):
            raise InputError(f"this {self.class_name} is not fitted yet; train it first")
        inputs = _numbers(strategy.inducing_points)
        if inputs.ndim != 2:
            raise UnsupportedError(
                f"expected inducing points of shape (M, d), found {inputs.shape}: a batch of Gaussian processes is"
                " several models; describe them one by one"
            )
        kernel, constant = _kernel_of(model, inputs.shape[1]), _constant_of(model)
        jitter = float(strategy.jitter_val) / kernel.variance
        _check_forward(model, inputs, kernel, constant)
        likelihood = getattr(model, "likelihood", None)
        noise = 0.0 if likelihood is None else _noise_of(likelihood)
        seen = 0.0 if samples is None else samples
        others: Any = {"noise": noise, "constant": constant, "jitter": jitter, "n_observations": seen}
        mean, root = _numbers(distribution.variational_mean), _root_of(distribution)
        if type(strategy).__name__ == "VariationalStrategy":
            return SparseGP.whitened(inputs, mean, root @ root.T, kernel, **others)
        return SparseGP(inputs, mean, root @ root.T, kernel, **others)

    def model_of(self, value: SparseGP) -> Any:
        """Return an ApproximateGP with the same predictions."""
        import torch
        from gpytorch import distributions, kernels, likelihoods, means, variational
        from gpytorch.constraints import Positive
        from gpytorch.models import ApproximateGP

        kernel, name = value.kernel, value.kernel.name
        one = {"ard_num_dims": value.dim}
        base = kernels.RBFKernel(**one) if name == "rbf" else kernels.MaternKernel(nu=int(name[-2]) / 2.0, **one)

        class SparseGaussianProcess(ApproximateGP):  # type: ignore[misc]
            """A sparse Gaussian process rebuilt from its parameters."""

            def __init__(self) -> None:
                distribution = variational.CholeskyVariationalDistribution(value.n_inducing)
                points = torch.tensor(value.inducing_inputs)
                jitter = value.jitter * kernel.variance
                super().__init__(variational.VariationalStrategy(self, points, distribution, jitter_val=jitter))
                self.mean_module = means.ConstantMean()
                self.covar_module = kernels.ScaleKernel(base)
                if value.noise > 0:
                    self.likelihood = likelihoods.GaussianLikelihood(noise_constraint=Positive())

            def forward(self, x: Any) -> Any:
                return distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

        model = SparseGaussianProcess().double()
        base.lengthscale = torch.tensor(kernel.lengthscales)
        model.covar_module.outputscale = torch.tensor(kernel.variance, dtype=torch.float64)
        model.mean_module.initialize(constant=torch.tensor(value.constant, dtype=torch.float64))
        if value.noise > 0:
            model.likelihood.noise = torch.tensor(value.noise, dtype=torch.float64)
        distribution = model.variational_strategy._variational_distribution
        with torch.no_grad():
            distribution.variational_mean.copy_(torch.tensor(value.whitened_mean))
            distribution.chol_variational_covar.copy_(torch.tensor(_lower_root(value.whitened_covariance)))
            model.variational_strategy.variational_params_initialized.fill_(1)
        return model.eval()


def _one_of(thing: Any, known: tuple[str, ...], what: str) -> None:
    """Raise unless the class of `thing` is GPyTorch's own of one of these names: a subclass may mean anything."""
    kind = type(thing)
    if kind.__name__ not in known or kind.__module__.split(".")[0] != "gpytorch":
        raise UnsupportedError(f"{what}: expected {' or '.join(known)} of gpytorch, found {kind.__qualname__}")


def _numbers(tensor: Any) -> Array:
    return np.asarray(tensor.detach().cpu().numpy(), dtype=np.float64)


def _part(model: Any, name: str) -> Any:
    part = getattr(model, name, None)
    if part is None:
        raise UnsupportedError(f"expected a model with a {name}, found {type(model).__qualname__} without")
    return part


def _kernel_of(model: Any, dim: int) -> Kernel:
    """Return the kernel in ``covar_module``: RBF or Matern, scaled or not, with one length-scale or one per input."""
    module, variance = _part(model, "covar_module"), 1.0
    if type(module).__name__ == "ScaleKernel":
        variance = float(module.outputscale.detach()) if module.outputscale.numel() == 1 else np.nan
        module = module.base_kernel
    _one_of(module, ("RBFKernel", "MaternKernel"), "kernel")
    if module.active_dims is not None or module.lengthscale.numel() not in (1, dim) or not np.isfinite(variance):
        raise UnsupportedError(
            f"kernel: expected one {type(module).__name__} of all {dim} inputs, found active_dims or a batch of kernels"
        )
    name = "rbf" if type(module).__name__ == "RBFKernel" else _MATERN[float(module.nu)]
    return make_kernel(name, variance, np.broadcast_to(_numbers(module.lengthscale).ravel(), (dim,)))


def _constant_of(model: Any) -> float:
    module = _part(model, "mean_module")
    _one_of(module, _MEANS, "mean")
    if type(module).__name__ == "ZeroMean":
        return 0.0
    if module.constant.numel() != 1:
        raise UnsupportedError(f"mean: expected one constant, found {module.constant.numel()}")
    return float(module.constant.detach())


def _noise_of(likelihood: Any) -> float:
    _one_of(likelihood, ("GaussianLikelihood",), "likelihood")
    if likelihood.noise.numel() != 1:
        raise UnsupportedError(f"likelihood: expected one noise variance, found {likelihood.noise.numel()}")
    return float(likelihood.noise.detach())


def _root_of(distribution: Any) -> Array:
    """Return a root of the covariance of a variational distribution (M, M)."""
    if type(distribution).__name__ == "MeanFieldVariationalDistribution":
        return np.diag(_numbers(distribution.variational_stddev))
    return np.tril(_numbers(distribution.chol_variational_covar))


def _check_forward(model: Any, inputs: Array, kernel: Kernel, constant: float) -> None:
    """Raise when the model's prior is not that of its mean and kernel alone, as when it transforms its inputs."""
    import torch

    with torch.no_grad():
        prior = model.forward(model.variational_strategy.inducing_points)
        mean, covariance = _numbers(prior.mean), _numbers(prior.covariance_matrix)
    error = max(np.abs(mean - constant).max(), np.abs(covariance - kernel.matrix(inputs)).max())
    if not error <= _AGREES * max(kernel.variance, abs(constant)):
        raise UnsupportedError(
            "expected a model whose forward returns mean_module(x) and covar_module(x), found one whose prior differs"
            f" from these by {error:.3g}; inputs that it transforms must be transformed before"
        )


def _lower_root(covariance: Array) -> Array:
    """Return the lower triangular root of a positive semi-definite matrix."""
    values, vectors = np.linalg.eigh(covariance)
    upper = np.asarray(np.linalg.qr((vectors * np.sqrt(np.maximum(values, 0.0))).T, mode="r"))
    return np.asarray((upper * np.where(np.diag(upper) < 0, -1.0, 1.0)[:, None]).T)
