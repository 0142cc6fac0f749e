"""Adapters of sparse Gaussian processes: the part common to all libraries, and the adapter of our own ``SparseGP``."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, final

import numpy as np

from consilience.checks import Json
from consilience.core.features import Features
from consilience.core.scores import ScoreKind, Scores, row_scores
from consilience.errors import InputError, Problem
from consilience.families import Point
from consilience.posteriors.adapters.base import Adapter
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.posterior import Attached, AxisTag, Posterior
from consilience.posteriors.sparse_gp.kernels import make_kernel
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
            raise InputError(
                "n_observations", f"expected a positive number of observations, found {n_observations}", code="E-NUMBER"
            )
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
