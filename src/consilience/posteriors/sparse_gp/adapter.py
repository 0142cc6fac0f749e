"""Adapters of sparse Gaussian processes: the part common to all, that of our own ``SparseGP``, and of GPyTorch's.

Of GPyTorch's ApproximateGP the variational distribution N(m, S) of the inducing values, whitened or not, with kernel,
mean and noise is the posterior. What a SparseGP cannot say (batches, other kernels, strategies or means, transformed
inputs) is refused with what was found.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, final

import numpy as np

from consilience.checks import Array, Json
from consilience.core.features import Features
from consilience.core.scores import ScoreKind, Scores, row_scores
from consilience.errors import InputError, Problem, UnsupportedError
from consilience.families import Point
from consilience.posteriors.adapters.base import Adapter
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.posterior import Attached, AxisTag, Posterior
from consilience.posteriors.sparse_gp.kernels import Kernel, make_kernel
from consilience.posteriors.sparse_gp.model import SparseGP
from consilience.posteriors.sparse_gp.product import GPPrior, bayes_product, fused_prior

_FIXED: tuple[AxisTag, ...] = ("fixed",)


class InducingPointAdapter(Adapter):
    """Sparse Gaussian processes as sets of atoms: each inducing input with the posterior mean of the function there.

    This is the definition of Yurochkin et al. 2019, section 5. The rest of the process is attached: the covariance of
    its inducing values, the kernel's parameters, noise and mean function. Matching decides the fused inducing inputs;
    the function there then follows from all sites' posteriors by the Bayes product (``product``), whatever the values
    were averaged to. Inducing inputs that nearly coincide are kept apart: jitter keeps the prior covariance invertible.
    """

    recommended: ClassVar[str] = "spahm"
    recommended_options: ClassVar[Mapping[str, Json]] = {"mass": 50.0, "shrink": False}
    """Inducing inputs are rarely shared: the mass is that of Yurochkin et al. 2019 for them. They are not shrunk."""
    recombines: ClassVar[bool] = True

    @abstractmethod
    def to_sparse_gp(self, model: Any, n_observations: float | None) -> SparseGP:
        """Return a fitted `model` as a SparseGP; `n_observations` as in ``describe``."""

    @abstractmethod
    def from_sparse_gp(self, value: SparseGP) -> Any:
        """Return a fitted model of this kind with the parameters of a SparseGP."""

    @final
    def describe(self, model: Any, n_observations: float | None) -> Posterior:
        """Return inducing inputs and values as points (M, d + 1), with the rest of the process attached."""
        if n_observations is not None and not 0 < n_observations < float("inf"):
            text = f"expected a positive number of observations, found {n_observations}"
            raise InputError("n_observations", text, code="E-NUMBER")
        value = self.to_sparse_gp(model, n_observations)
        is_unscaled = not np.any(value.shift) and bool(np.all(value.scale == 1.0))
        scaling = None if is_unscaled else {"shift": tuple(value.shift), "scale": tuple(value.scale)}
        return Posterior(
            Point(value.dim + 1),
            np.column_stack([value.inducing_inputs, value.mean]),  # (M, d + 1): atoms (z, E[f(z)])
            attached=_attached(value),
            features=Features(scaling=scaling),
            source={"kind": self.kind, "kernel": value.kernel.name},
        )

    @final
    def rebuild(self, posterior: Posterior) -> Any:
        """Return a fitted model."""
        return self.from_sparse_gp(self._sparse_gp_of(posterior))

    @final
    def refuse(self, ensemble: Ensemble) -> list[Problem]:
        """Return which models' kernels, noise or standardisation differ beyond reason, a line each."""
        try:
            self._prior(ensemble)
        except InputError as error:
            return list(error.problems)
        return []

    def _prior(self, ensemble: Ensemble) -> GPPrior:
        """Return the prior of the fused process: means over sites, by their observations where all know them."""
        values = [self._sparse_gp_of(site) for site in ensemble.posteriors]
        observed = np.array([value.n_observations for value in values])
        all_known = bool(np.all(observed[ensemble.site_weights > 0] > 0))
        return fused_prior(values, ensemble.site_weights * (observed if all_known else 1.0), ensemble.names)

    @final
    def recombine(self, fused: Posterior, ensemble: Ensemble) -> Posterior:
        """Return `fused` with the Bayes product of all sites at its inducing inputs.

        Kernel parameters and noise are geometric means over sites, weighted by their observations where all know them.
        """
        canonical, _ = ensemble.canonical(relabel=True)  # so that the order of arrival changes no bit
        prior = self._prior(canonical)
        product = bayes_product(
            [self._sparse_gp_of(site) for site in canonical.posteriors],
            fused.natural[:, :-1],
            prior,
            canonical.site_weights,
        )
        if product.clipped:
            warnings.warn(
                f"in {product.clipped} directions a site's posterior is wider than its prior, and is taken to say"
                " nothing there; its optimisation may not have finished [W-WIDE]",
                UserWarning,
                stacklevel=3,
            )
        natural = np.column_stack([product.model.inducing_inputs, product.model.mean])
        return replace(fused, natural=natural, attached=_attached(product.model))

    @final
    def scores(self, model: Any, data: Any) -> Scores:
        """Return the log predictive density of the last column given the others; a row's component is the nearest."""
        value = self.to_sparse_gp(model, None)
        inputs, targets = data[:, :-1], data[:, -1]
        values, labels = value.log_density(inputs, targets), value.nearest(inputs)
        name, unit, kind = "log predictive density", "nats per row", ScoreKind.PREDICTIVE
        return row_scores(name, unit, values, labels, value.n_inducing, larger_is_better=True, kind=kind)

    def _sparse_gp_of(self, posterior: Posterior) -> SparseGP:
        """Return the SparseGP that a posterior describes."""
        self.require_family(posterior, Point)
        arrays = {name: attached.values for name, attached in posterior.attached.items()}
        kernel = make_kernel(posterior.source["kernel"], float(arrays["variance"]), arrays["lengthscales"])
        noise, constant, n, jitter = (float(arrays[k]) for k in ("noise", "constant", "n_observations", "jitter"))
        return SparseGP(
            posterior.natural[:, :-1], posterior.natural[:, -1], arrays["covariance"], kernel, noise=noise,
            constant=constant, shift=arrays["shift"], scale=arrays["scale"], n_observations=n, jitter=jitter,
        )  # fmt: skip


def _attached(value: SparseGP) -> dict[str, Attached]:
    """Return everything but inducing inputs and mean as attached arrays; ``recombine`` replaces the fused ones."""
    of_kernel = {name: getattr(value.kernel, name) for name in ("variance", "lengthscales")}
    shared = of_kernel | {name: getattr(value, name) for name in ("noise", "constant", "jitter", "shift", "scale")}
    arrays = {name: np.asarray(values, dtype=np.float64) for name, values in shared.items()}
    return {
        **{name: Attached(values, _FIXED[: values.ndim], "mean") for name, values in arrays.items()},
        "covariance": Attached(value.covariance, ("component", "component"), "mean"),
        "n_observations": Attached(np.array(value.n_observations), (), "sum"),
    }


class SparseGPAdapter(InducingPointAdapter):
    """Our own sparse Gaussian processes, such as ``consilience.learners.TitsiasGP`` fits."""

    kind: ClassVar[str] = "consilience.SparseGP"
    library: ClassVar[str] = "consilience"
    class_name: ClassVar[str] = "SparseGP"

    def to_sparse_gp(self, model: SparseGP, n_observations: float | None) -> SparseGP:
        """Return the process itself, with the given number of observations where it states none."""
        if n_observations is None or model.n_observations:
            return model
        return replace(model, n_observations=n_observations)

    def from_sparse_gp(self, value: SparseGP) -> SparseGP:
        """Return the process itself."""
        return value


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

        Strategies, kernels and means other than those that a SparseGP has are refused, and a variational distribution
        that was never set.
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
        rbf, matern = kernels.RBFKernel, kernels.MaternKernel
        base = rbf(**options) if name == "rbf" else matern(nu=int(name[-2]) / 2.0, **options)

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
        text = f"expected one {type(module).__name__} of all {dim} inputs, found active_dims or a batch of kernels"
        raise UnsupportedError("kernel", text)
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
            "expected a model whose forward returns `mean_module(x)` and `covar_module(x)`, found one whose prior"
            f" differs from these by {error:.3g}; inputs that it transforms must be transformed before"
        )


def _lower_root(covariance: Array) -> Array:
    """Return the lower triangular root of a positive semi-definite matrix."""
    values, vectors = np.linalg.eigh(covariance)
    upper = np.asarray(np.linalg.qr((vectors * np.sqrt(np.maximum(values, 0.0))).T, mode="r"))
    return np.asarray((upper * np.where(np.diag(upper) < 0, -1.0, 1.0)[:, None]).T)
