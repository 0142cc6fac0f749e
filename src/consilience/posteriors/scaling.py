"""Scalings of data at a site: scikit-learn Pipelines of affine steps and a model, told in the data's own units.

A site that scales its columns by its own moments fits z = M x + t. Its components are laws of z, and no two sites' z
are the same. With A = M^-1 and b = -A t, x = A z + b, and every Gaussian component has an exact image in units of x:
means A m + b, covariances A S A^T, for posterior and prior alike (``Family.affine_image``). So a Pipeline is described
by the image of its model, and posteriors of sites with different scalings can be matched. Priors then differ between
sites by their scalings; the fused prior is their mean, as always.

What comes out is a Pipeline too. Its StandardScaler has the moments of the fused mixture itself, which every site's
data went into, rather than those of one site; the model in it is the fused posterior in these units, so it predicts of
raw data what the fused posterior says of them (docs/adr/0026).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from consilience.checks import Array
from consilience.core.features import Features, final_model, sklearn_features
from consilience.errors import ConsilienceError, InputError, UnsupportedError
from consilience.families.linalg import isotropic_square, variances_of
from consilience.posteriors.adapters.base import Adapter
from consilience.posteriors.origin import origin_of
from consilience.posteriors.posterior import ORIGIN, Attached, Posterior, shares_of

PIPELINE = "pipeline"
"""Key of a posterior's source that says that its model was the last step of a Pipeline."""
OWN_UNITS = "own units"
"""The value of `PIPELINE`: components are in the units of the data, before any scaling."""

SMALLEST_RECIPROCAL_CONDITION = 1e-12
"""Of a scaling, below which it cannot be undone: less than four of sixteen digits would be left. Chosen by hand."""


@dataclass(frozen=True, eq=False)
class AffineMap:
    """z = M x + t, M the `matrix` (D, D) and t the `shift` (D,)."""

    matrix: Array
    shift: Array

    def then(self, other: AffineMap) -> AffineMap:
        """Return this map followed by another."""
        return AffineMap(other.matrix @ self.matrix, other.matrix @ self.shift + other.shift)

    def inverse(self) -> AffineMap:
        """Return x = M^-1 z - M^-1 t; diagonal matrices are inverted as such, so that zeros stay zeros."""
        diagonal = np.diagonal(self.matrix)
        is_diagonal = np.array_equal(self.matrix, np.diag(diagonal))
        back: Array = np.diag(1.0 / diagonal) if is_diagonal else np.asarray(np.linalg.inv(self.matrix))
        return AffineMap(back, -back @ self.shift)


def scaling_of(pipeline: Any) -> AffineMap | None:
    """Return the map z = M x + t of all steps of a fitted Pipeline but the last; None where no step does anything.

    Steps that are not affine, or not known to be, that are not fitted, or that lose columns are refused by name.
    """
    whole: AffineMap | None = None
    for name, step in pipeline.steps[:-1]:
        subject = f"step {name!r}"
        if step is None or (isinstance(step, str) and step == "passthrough"):
            continue
        maker = next((_STEPS[base.__name__] for base in type(step).__mro__ if base.__name__ in _STEPS), None)
        if maker is None:
            raise UnsupportedError(
                subject,
                f"is a {type(step).__name__}, and only affine scalings can be undone: {', '.join(_STEPS)}",
                "scale the data in the same way at all sites before, and describe the model alone",
            )
        try:
            part = maker(step)
        except AttributeError as error:
            raise InputError(
                subject, f"this {type(step).__name__} is not fitted yet", "call fit first", "E-UNFITTED"
            ) from error
        except ConsilienceError as error:
            raise type(error)(problem.about(subject) for problem in error.problems) from error
        made, taken = part.matrix.shape
        if made != taken:
            raise InputError(
                subject, f"makes {made} columns of {taken}, and what is lost cannot be undone", "keep all columns"
            )
        if _is_singular(part.matrix):
            text, remedy = "is singular: what it does cannot be undone", "leave out columns that do not vary"
            raise InputError(subject, text, remedy)
        whole = part if whole is None else whole.then(part)
    return whole


def _is_singular(matrix: Array) -> bool:
    """Return whether a map cannot be undone in float64, in whatever units its columns are."""
    lengths = np.linalg.norm(matrix, axis=1)  # of rows (D,)
    if not np.all(np.isfinite(matrix)) or not np.all(lengths > 0.0):
        return True
    singular_values = np.linalg.svd(matrix / lengths[:, None], compute_uv=False)
    return bool(singular_values[-1] < SMALLEST_RECIPROCAL_CONDITION * singular_values[0])


def _per_column(scale: Array, shift: Array) -> AffineMap:
    return AffineMap(np.diag(scale), shift)


def _refuse_constant(spread: Any, what: str) -> None:
    """Raise InputError for a column without spread, which a scaler leaves as it is, and no covariance can describe."""
    constant = np.flatnonzero(~(np.asarray(spread) > 0))
    if len(constant):
        text = f"column {constant[0]}, counted from 0, has {what} 0: it does not vary"
        raise InputError("", text, "leave that column out", "E-NUMBER")


def _standard(step: Any) -> AffineMap:
    """Return z = (x - mean) / scale of a StandardScaler."""
    n_columns = int(step.n_features_in_)
    if step.with_std:
        _refuse_constant(step.var_, "variance")
    scale = np.asarray(step.scale_, dtype=np.float64) if step.with_std else np.ones(n_columns)
    mean = np.asarray(step.mean_, dtype=np.float64) if step.with_mean else np.zeros(n_columns)
    return _per_column(1.0 / scale, -mean / scale)


def _min_max(step: Any) -> AffineMap:
    """Return z = scale x + min of a MinMaxScaler."""
    _refuse_constant(step.data_range_, "range")
    if step.clip:
        raise UnsupportedError("", "clips, so what lies outside its range is lost", "fit it with `clip=False`")
    return _per_column(np.asarray(step.scale_, dtype=np.float64), np.asarray(step.min_, dtype=np.float64))


def _max_abs(step: Any) -> AffineMap:
    """Return z = x / scale of a MaxAbsScaler."""
    _refuse_constant(step.max_abs_, "greatest absolute value")
    scale = np.asarray(step.scale_, dtype=np.float64)
    return _per_column(1.0 / scale, np.zeros(len(scale)))


def _robust(step: Any) -> AffineMap:
    """Return z = (x - centre) / scale of a RobustScaler."""
    n_columns = int(step.n_features_in_)
    scale = np.asarray(step.scale_, dtype=np.float64) if step.with_scaling else np.ones(n_columns)
    centre = np.asarray(step.center_, dtype=np.float64) if step.with_centering else np.zeros(n_columns)
    return _per_column(1.0 / scale, -centre / scale)


def _principal_components(step: Any) -> AffineMap:
    """Return z = V (x - mean), divided by the deviations where it whitens, of a PCA."""
    rotation = np.asarray(step.components_, dtype=np.float64)  # (k, D)
    if step.whiten and len(rotation) == rotation.shape[1]:
        _refuse_constant(step.explained_variance_, "variance after rotation")
        rotation = rotation / np.sqrt(step.explained_variance_)[:, None]
    return AffineMap(rotation, -rotation @ np.asarray(step.mean_, dtype=np.float64))


def _identity(step: Any) -> AffineMap:
    """Return z = x of a FunctionTransformer without a function."""
    if step.func is not None:
        text = "applies a function, of which nothing is known"
        raise UnsupportedError("", text, "give it no function, or leave it out")
    n_columns = int(step.n_features_in_)
    return AffineMap(np.eye(n_columns), np.zeros(n_columns))


_STEPS: dict[str, Callable[[Any], AffineMap]] = {
    "StandardScaler": _standard,
    "MinMaxScaler": _min_max,
    "MaxAbsScaler": _max_abs,
    "RobustScaler": _robust,
    "PCA": _principal_components,
    "FunctionTransformer": _identity,
}
"""The map of a fitted step, by the name of its class."""


def affine_image(adapter: Adapter, posterior: Posterior, to_units: AffineMap) -> Posterior:
    """Return the posterior of components of A z + b from that of components of z: parameters, prior, what is attached.

    Models that are none of Gaussian data, and covariances that leave their type, are refused.
    """
    if not adapter.follows_units:
        raise UnsupportedError(
            f"Pipeline of a {adapter.class_name}",
            "only models of Gaussian data can be converted to other units than they were fitted in",
            "scale the data in the same way at all sites before, and describe the model alone",
        )
    return _image(posterior, to_units, adapter.in_squared_units)


def _image(posterior: Posterior, to_units: AffineMap, in_squared_units: Collection[str]) -> Posterior:
    """Return the posterior of components of A z + b, with the arrays of some names in squared units of the data."""
    matrix, prior, family = to_units.matrix, posterior.prior, posterior.family
    zero = np.zeros(len(to_units.shift))
    shift = to_units.shift + matrix @ (zero + posterior.origin)  # to where the image of z = origin is
    parts = family.plug_in(family.affine_image(posterior.natural, matrix, zero))
    origin = {} if parts is None else origin_of(parts[0] + shift, variances_of(parts[1]), posterior.shares)
    shift = shift - (origin[ORIGIN].values if origin else zero)
    attached = {
        name: _squared_units(array, matrix) if name in in_squared_units else array
        for name, array in posterior.attached.items()
        if name != ORIGIN
    }
    return replace(
        posterior,
        natural=family.affine_image(posterior.natural, matrix, shift),
        prior=None if prior is None else family.affine_image(prior[None], matrix, shift)[0],
        attached={**attached, **origin},
    )


def in_order_of(posterior: Posterior, names: Sequence[str], adapter: Adapter | None) -> Posterior | None:
    """Return a posterior with its columns in the order of some names, those of its own in another order.

    None where it has other names, or components that do not follow: those that are not of Gaussian data, and such as
    have an attached array that is not known to follow its columns.
    """
    own, units = posterior.features.names, posterior.features.units
    if own is None or sorted(own) != sorted(names) or len(set(own)) < len(own):
        return None
    in_squared_units = () if adapter is None else adapter.in_squared_units
    others = [array for name, array in posterior.attached.items() if name not in (*in_squared_units, ORIGIN)]
    if adapter is not None and not (adapter.follows_units or adapter.follows_order):
        return None
    if any("fixed" in array.axes and len(own) in array.values.shape for array in others):
        return None
    index = [own.index(name) for name in names]
    try:
        image = _image(posterior, AffineMap(np.eye(len(own))[index], np.zeros(len(own))), in_squared_units)
    except ConsilienceError:
        return None
    features = replace(
        posterior.features, names=tuple(names), units=None if units is None else tuple(units[i] for i in index)
    )
    return replace(image, features=features)


def _squared_units(attached: Attached, matrix: Array) -> Attached:
    """Return a number, or matrices (..., D, D), in squared units of the data, in those of A times the data."""
    if attached.values.ndim < 2:
        return replace(attached, values=attached.values * isotropic_square(matrix))
    return replace(attached, values=matrix @ attached.values @ matrix.T)


def describe_pipeline(pipeline: Any, adapter: Adapter, n_observations: float | None) -> Posterior:
    """Return the posterior of a fitted Pipeline in the units of the data, before any of its steps.

    Steps that cannot be undone, and models that cannot follow, are refused by name.
    """
    scaling = scaling_of(pipeline)
    inner = adapter.describe(final_model(pipeline), n_observations)
    try:
        image = inner if scaling is None else affine_image(adapter, inner, scaling.inverse())
    except UnsupportedError as error:
        steps = ", ".join(repr(name) for name, _ in pipeline.steps[:-1])
        raise UnsupportedError(
            problem if problem.subject else problem.about(f"steps {steps}") for problem in error.problems
        ) from error
    return replace(image, features=sklearn_features(pipeline), source={**inner.source, PIPELINE: OWN_UNITS})


def is_of_pipeline(posterior: Posterior) -> bool:
    """Return whether a posterior is that of a Pipeline."""
    return posterior.source.get(PIPELINE) is not None


def without_pipeline(posterior: Posterior) -> Posterior:
    """Return the posterior of the model of the data's own units, without a Pipeline around it."""
    if not is_of_pipeline(posterior):
        return posterior
    return replace(posterior, source={key: value for key, value in posterior.source.items() if key != PIPELINE})


def rebuild_pipeline(posterior: Posterior, adapter: Adapter) -> Any:
    """Return a fitted Pipeline of a StandardScaler with the mixture's own moments and the model in these units.

    Where covariances are spherical, all columns are divided by the same number, so that they stay so.
    """
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import StandardScaler

    posterior = without_pipeline(posterior)
    mean, deviation = _mixture_moments(posterior)
    scaling = AffineMap(np.diag(1.0 / deviation), -mean / deviation)
    inner = affine_image(adapter, replace(posterior, features=Features()), scaling)
    scaler = StandardScaler()
    scaler.mean_, scaler.scale_, scaler.var_ = mean, deviation, deviation**2
    scaler.n_features_in_ = len(mean)
    scaler.n_samples_seen_ = 0 if posterior.counts is None else round(float(posterior.counts.sum()))
    if posterior.features.from_columns:
        scaler.feature_names_in_ = np.array(posterior.features.names, dtype=object)
    return Pipeline([("standardscaler", scaler), (adapter.class_name.lower(), adapter.rebuild(inner))])


def _mixture_moments(posterior: Posterior) -> tuple[Array, Array]:
    """Return mean and standard deviation (D,) of the mixture of all components, by counts where these are known."""
    parameters = posterior.family.plug_in(posterior.natural)
    assert parameters is not None  # noqa: S101  (narrows the type; adapters of other data do not follow units)
    means, variances = parameters[0] + posterior.origin, variances_of(parameters[1])  # (L, D) each
    stated = [values for values in (posterior.counts, posterior.weights) if values is not None and values.sum() > 0]
    shares = shares_of(stated[0] if stated else np.ones(len(means)))
    mean = shares @ means
    variance = shares @ (variances + (means - mean) ** 2)
    deviation = np.sqrt(variance)
    try:
        posterior.family.affine_image(posterior.natural[:1], np.diag(deviation), mean)
    except UnsupportedError:  # spherical covariances follow one number for all columns only
        deviation = np.full(len(mean), np.sqrt(variance.mean()))
    return mean, deviation
