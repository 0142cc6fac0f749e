"""Sparse Gaussian processes, in and out: what the adapters of all libraries' share, and the one for our own."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, final

import numpy as np

from consilience.errors import InputError
from consilience.families import Point
from consilience.posteriors.adapters.base import Adapter
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.posterior import Attached, AxisTag, Features, Posterior
from consilience.posteriors.scores import Scores, row_scores
from consilience.posteriors.sparse_gp.kernels import make_kernel
from consilience.posteriors.sparse_gp.model import SparseGP
from consilience.posteriors.sparse_gp.product import Prior, bayes_product, common_prior

_FIXED: tuple[AxisTag, ...] = ("fixed",)


class InducingPointAdapter(Adapter):
    """Sparse Gaussian processes as sets of atoms: each inducing input beside the posterior mean of the function there.

    So defined by Yurochkin et al. 2019, section 5. What else the process is goes along: the covariance of its inducing
    values, the kernel's parameters, noise and mean function. Matching decides the fused inducing inputs; what the
    function is there then follows from all sites' posteriors by the Bayes product, whatever the values were averaged
    to. Inducing inputs that nearly coincide are kept apart: jitter keeps the prior covariance invertible.
    """

    recommended: ClassVar[str] = "spahm"
    recommended_options: ClassVar[Mapping[str, Any]] = {"mass": 50.0, "shrink": False}
    """Inducing inputs are rarely shared (the paper has this mass), and stay where sites have them."""
    recombines: ClassVar[bool] = True

    @abstractmethod
    def value_of(self, model: Any, samples: float | None) -> SparseGP:
        """Return a fitted `model` as a SparseGP; `samples` as in ``describe``."""

    @abstractmethod
    def model_of(self, value: SparseGP) -> Any:
        """Return a fitted model of this kind that says what `value` says."""

    @final
    def describe(self, model: Any, samples: float | None) -> Posterior:
        """Return inducing inputs and values as points, with all else attached."""
        if samples is not None and not 0 < samples < float("inf"):
            raise InputError(f"samples: expected a positive number of observations, found {samples}")
        value = self.value_of(model, samples)
        standard = not np.any(value.shift) and bool(np.all(value.scale == 1.0))
        scaling = None if standard else {"shift": tuple(value.shift), "scale": tuple(value.scale)}
        return Posterior(
            Point(value.dim + 1),
            np.column_stack([value.inducing_inputs, value.mean]),
            attached=_attached(value),
            features=Features(scaling=scaling),
            source={"kind": self.kind, "kernel": value.kernel.name},
        )

    @final
    def rebuild(self, posterior: Posterior) -> Any:
        """Return a fitted model."""
        return self.model_of(self._value(posterior))

    @final
    def refuse(self, ensemble: Ensemble) -> list[str]:
        """Return which models' kernels, noise or standardisation differ beyond reason."""
        try:
            self._prior(ensemble)
        except InputError as error:
            return list(error.problems)
        return []

    def _prior(self, ensemble: Ensemble) -> Prior:
        """Return the prior of the fused process: means over sites, by their observations where all know them."""
        values = [self._value(site) for site in ensemble.posteriors]
        observed = np.array([value.n_observations for value in values])
        known = bool(np.all(observed[ensemble.site_weights > 0] > 0))
        return common_prior(values, ensemble.site_weights * (observed if known else 1.0), ensemble.names)

    @final
    def recombine(self, fused: Posterior, ensemble: Ensemble) -> Posterior:
        """Return `fused` with the Bayes product of all sites at its inducing inputs.

        Kernel parameters and noise are geometric means over sites, weighted by their observations where all know them.
        """
        canonical, _ = ensemble.canonical(relabel=True)  # so that the order of arrival changes no bit
        prior = self._prior(canonical)
        product = bayes_product(
            [self._value(site) for site in canonical.posteriors], fused.natural[:, :-1], prior, canonical.site_weights
        )
        if product.clipped:
            warnings.warn(
                f"in {product.clipped} directions a site's posterior is wider than its prior, and is taken to say"
                " nothing there; its optimisation may not have finished",
                UserWarning,
                stacklevel=3,
            )
        natural = np.column_stack([product.model.inducing_inputs, product.model.mean])
        return replace(fused, natural=natural, attached=_attached(product.model))

    @final
    def scores(self, model: Any, data: Any) -> Scores:
        """Return the log predictive density of the last column given the others; a row's component is the nearest."""
        value = self.value_of(model, None)
        inputs, targets = data[:, :-1], data[:, -1]
        values, labels = value.log_density(inputs, targets), value.nearest(inputs)
        return row_scores("log density", "nats per row", values, labels, value.n_inducing, larger_is_better=True)

    def _value(self, posterior: Posterior) -> SparseGP:
        """Return the SparseGP that was described."""
        self.require_family(posterior, Point)
        held = {name: attached.values for name, attached in posterior.attached.items()}
        kernel = make_kernel(posterior.source["kernel"], float(held["variance"]), held["lengthscales"])
        return SparseGP(
            posterior.natural[:, :-1],
            posterior.natural[:, -1],
            held["covariance"],
            kernel,
            noise=float(held["noise"]),
            constant=float(held["constant"]),
            shift=held["shift"],
            scale=held["scale"],
            n_observations=float(held["n_observations"]),
            jitter=float(held["jitter"]),
        )


def _attached(value: SparseGP) -> dict[str, Attached]:
    """Return everything but inducing inputs and mean as arrays that travel; ``recombine`` replaces what is fused."""
    shared = {
        "variance": value.kernel.variance,
        "lengthscales": value.kernel.lengthscales,
        "noise": value.noise,
        "constant": value.constant,
        "jitter": value.jitter,
        "shift": value.shift,
        "scale": value.scale,
    }
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

    def value_of(self, model: SparseGP, samples: float | None) -> SparseGP:
        """Return the process itself, told the number of its observations where it does not know."""
        return replace(model, n_observations=samples) if samples is not None and not model.n_observations else model

    def model_of(self, value: SparseGP) -> SparseGP:
        """Return the process itself."""
        return value
