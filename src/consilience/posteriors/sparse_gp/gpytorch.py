"""Adapter of GPyTorch's ApproximateGP: sparse variational Gaussian processes.

The variational distribution N(m, S) of the inducing values, whitened or not, with kernel, mean and noise is the
posterior. What a SparseGP cannot say (batches, other kernels, strategies or means, transformed inputs) is refused with
what was found.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from consilience.checks import Array
from consilience.errors import InputError, UnsupportedError
from consilience.posteriors.sparse_gp.adapter import InducingPointAdapter
from consilience.posteriors.sparse_gp.kernels import Kernel, make_kernel
from consilience.posteriors.sparse_gp.model import SparseGP

STRATEGIES = ("VariationalStrategy", "UnwhitenedVariationalStrategy")
DISTRIBUTIONS = ("CholeskyVariationalDistribution", "MeanFieldVariationalDistribution")
MEANS = ("ConstantMean", "ZeroMean")
PRIOR_TOLERANCE = 1e-4
"""Difference between a model's prior and that of its mean and kernel, relative to its size, that counts as rounding.

Models are often in float32, of relative precision 1e-7; chosen by hand, with room for what a kernel sums up.
"""

MATERN_NAMES = {0.5: "matern12", 1.5: "matern32", 2.5: "matern52"}


class ApproximateGPAdapter(InducingPointAdapter):
    """Variational Gaussian processes of GPyTorch with one function, a stationary kernel and a constant mean.

    The noise is that of ``model.likelihood`` where the model has one; without, it is not known and counts as 0, in
    predictions and in scores. GPyTorch records no number of observations: give ``n_observations``. A rebuilt model is
    an ApproximateGP in float64 and in eval mode, with a whitened VariationalStrategy.
    """

    kind: ClassVar[str] = "gpytorch.ApproximateGP"
    library: ClassVar[str] = "gpytorch"
    class_name: ClassVar[str] = "ApproximateGP"

    def to_sparse_gp(self, model: Any, n_observations: float | None) -> SparseGP:
        """Return a fitted ApproximateGP as a SparseGP.

        Raises
        ------
        UnsupportedError
            For strategies, kernels and means other than those that a SparseGP has, naming what was found.
        InputError
            When the variational distribution was never set.
        """
        strategy = model.variational_strategy
        _require_class(strategy, STRATEGIES, "variational strategy")
        distribution = strategy._variational_distribution
        _require_class(distribution, DISTRIBUTIONS, "variational distribution")
        if not bool(strategy.variational_params_initialized):
            raise InputError("", f"this {self.class_name} is not fitted yet", "train it first", "E-UNFITTED")
        inputs = _to_array(strategy.inducing_points)
        if inputs.ndim != 2:
            raise UnsupportedError(
                f"expected inducing points of shape (M, d), found {inputs.shape}: a batch of Gaussian processes is"
                " several models; describe them one by one"
            )
        kernel, constant = _kernel_of(model, inputs.shape[1]), _constant_of(model)
        jitter = float(strategy.jitter_val) / kernel.variance  # GPyTorch's is absolute, ours relative to v
        _check_forward(model, inputs, kernel, constant)
        likelihood = getattr(model, "likelihood", None)
        noise = 0.0 if likelihood is None else _noise_of(likelihood)
        n_observations = 0.0 if n_observations is None else n_observations
        fields: Any = {"noise": noise, "constant": constant, "jitter": jitter, "n_observations": n_observations}
        mean, root = _to_array(distribution.variational_mean), _root_of(distribution)
        if type(strategy).__name__ == "VariationalStrategy":
            return SparseGP.whitened(inputs, mean, root @ root.T, kernel, **fields)
        return SparseGP(inputs, mean, root @ root.T, kernel, **fields)

    def from_sparse_gp(self, value: SparseGP) -> Any:
        """Return an ApproximateGP with the same predictions."""
        import torch
        from gpytorch import distributions, kernels, likelihoods, means, variational
        from gpytorch.constraints import Positive
        from gpytorch.models import ApproximateGP

        kernel, name = value.kernel, value.kernel.name
        options = {"ard_num_dims": value.dim}
        base = (
            kernels.RBFKernel(**options) if name == "rbf" else kernels.MaternKernel(nu=int(name[-2]) / 2.0, **options)
        )

        class SparseGaussianProcess(ApproximateGP):  # type: ignore[misc]
            """A sparse Gaussian process rebuilt from its parameters."""

            def __init__(self) -> None:
                distribution = variational.CholeskyVariationalDistribution(value.n_inducing)
                points = torch.tensor(value.inducing_inputs)
                jitter = value.jitter * kernel.variance  # GPyTorch's is absolute, ours relative to v
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


def _require_class(component: Any, accepted: tuple[str, ...], role: str) -> None:
    """Raise unless the class of `component` is GPyTorch's own of one of these names: a subclass may mean anything."""
    kind = type(component)
    if kind.__name__ not in accepted or kind.__module__.split(".")[0] != "gpytorch":
        raise UnsupportedError(role, f"expected {' or '.join(accepted)} of gpytorch, found {kind.__qualname__}")


def _to_array(tensor: Any) -> Array:
    """Return a tensor as a float64 array."""
    return np.asarray(tensor.detach().cpu().numpy(), dtype=np.float64)


def _required_attribute(model: Any, name: str) -> Any:
    """Return an attribute of a model, or raise where it has none."""
    attribute = getattr(model, name, None)
    if attribute is None:
        raise UnsupportedError(f"expected a model with a {name}, found {type(model).__qualname__} without")
    return attribute


def _kernel_of(model: Any, dim: int) -> Kernel:
    """Return the kernel in ``covar_module``: RBF or Matern, scaled or not, with one length-scale or one per input."""
    module, variance = _required_attribute(model, "covar_module"), 1.0
    if type(module).__name__ == "ScaleKernel":
        variance = float(module.outputscale.detach()) if module.outputscale.numel() == 1 else np.nan
        module = module.base_kernel
    _require_class(module, ("RBFKernel", "MaternKernel"), "kernel")
    if module.active_dims is not None or module.lengthscale.numel() not in (1, dim) or not np.isfinite(variance):
        raise UnsupportedError(
            "kernel",
            f"expected one {type(module).__name__} of all {dim} inputs, found active_dims or a batch of kernels",
        )
    name = "rbf" if type(module).__name__ == "RBFKernel" else MATERN_NAMES[float(module.nu)]
    return make_kernel(name, variance, np.broadcast_to(_to_array(module.lengthscale).ravel(), (dim,)))


def _constant_of(model: Any) -> float:
    """Return the constant of the mean function."""
    module = _required_attribute(model, "mean_module")
    _require_class(module, MEANS, "mean")
    if type(module).__name__ == "ZeroMean":
        return 0.0
    if module.constant.numel() != 1:
        raise UnsupportedError("mean", f"expected one constant, found {module.constant.numel()}")
    return float(module.constant.detach())


def _noise_of(likelihood: Any) -> float:
    """Return the noise variance of a Gaussian likelihood."""
    _require_class(likelihood, ("GaussianLikelihood",), "likelihood")
    if likelihood.noise.numel() != 1:
        raise UnsupportedError("likelihood", f"expected one noise variance, found {likelihood.noise.numel()}")
    return float(likelihood.noise.detach())


def _root_of(distribution: Any) -> Array:
    """Return a root of the covariance of a variational distribution (M, M)."""
    if type(distribution).__name__ == "MeanFieldVariationalDistribution":
        return np.diag(_to_array(distribution.variational_stddev))
    return np.tril(_to_array(distribution.chol_variational_covar))


def _check_forward(model: Any, inputs: Array, kernel: Kernel, constant: float) -> None:
    """Raise when the model's prior is not that of its mean and kernel alone, as when it transforms its inputs."""
    import torch

    with torch.no_grad():
        prior = model.forward(model.variational_strategy.inducing_points)
        mean, covariance = _to_array(prior.mean), _to_array(prior.covariance_matrix)
    error = max(np.abs(mean - constant).max(), np.abs(covariance - kernel.matrix(inputs)).max())
    if not error <= PRIOR_TOLERANCE * max(kernel.variance, abs(constant)):
        raise UnsupportedError(
            "expected a model whose forward returns mean_module(x) and covar_module(x), found one whose prior differs"
            f" from these by {error:.3g}; inputs that it transforms must be transformed before"
        )


def _lower_root(covariance: Array) -> Array:
    """Return the lower triangular root of a positive semi-definite matrix."""
    values, vectors = np.linalg.eigh(covariance)
    upper = np.asarray(np.linalg.qr((vectors * np.sqrt(np.maximum(values, 0.0))).T, mode="r"))
    return np.asarray((upper * np.where(np.diag(upper) < 0, -1.0, 1.0)[:, None]).T)
