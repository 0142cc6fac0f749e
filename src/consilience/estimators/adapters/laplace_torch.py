"""Laplace approximations of laplace-torch with a full covariance, of all weights or of those of the last layer.

laplace-torch keeps a mode m (q,), the curvature H (q, q) of the loss there, and a prior N(mu, P^-1) of a diagonal P.
Its posterior is N(m, Lam^-1) with Lam = H / (s^2 T) + P, where s is its sigma_noise and T its temperature. A site sends

    I_j = H_j / (s_j^2 T_j),        b_j = Lam_j m_j - P_j mu_j,

the natural parameters of its posterior with its prior divided out, which add up. With the prior of the fused model,
counted once, the product is N(m, Lam^-1) with Lam = sum I_j + P and Lam m = sum b_j + P mu. For a model that is linear
in its weights, of a normal likelihood, that is the posterior given the rows of all sites (Bishop, 2006, "Pattern
recognition and machine learning", equations 3.50 and 3.51), provided each m_j is the mode of its own posterior.

Weights are matched by name and position. So those of a last layer add up over the same features only, which a digest of
all other weights proves; and those of hidden layers only where sites trained from one start. Kronecker-factored,
diagonal and low-rank curvatures do not add up to one of their kind with this prior, and are refused by name.
"""

from __future__ import annotations

import hashlib
from math import prod
from typing import Any, ClassVar

import numpy as np

from consilience.checks import Array, symmetric_part
from consilience.core.features import Features
from consilience.errors import InputError, Problem
from consilience.estimators.adapters.base import SiteSums
from consilience.estimators.adapters.laplace import LaplaceProductAdapter, solve_positive
from consilience.estimators.fused_laplace import FusedLaplace
from consilience.estimators.hyper_parameters import decode, encode
from consilience.estimators.site_rows import SiteRows
from consilience.estimators.statistics import INFORMATION, PRIOR, ROWS, SHIFT, Statistics

NEGATIVE_CURVATURE = 1e-4
"""Least eigenvalue of a curvature, negative and in units of the largest, that is rounding: sums of Gauss-Newton
products in float32 left 2e-7 and less."""

MIN_COSINE = 0.2
"""Cosine of the weight matrices of two sites below which their networks do not come from one start. On digits in three
skewed sites, networks of one and two hidden layers had 0.24 to 0.57 from one start, after 100 to 3,000 steps, and 0.14
and less from different ones."""


class LaplaceTorchAdapter(LaplaceProductAdapter):
    """What approximations of all weights and of the last layer have in common."""

    module: ClassVar[str] = "laplace"
    says_all: ClassVar[str | None] = ""
    sum_parameters: ClassVar[tuple[str, ...]] = ("likelihood", "n_outputs", "weights", "frozen")
    follows_units: ClassVar[bool] = False
    has_score: ClassVar[bool] = False
    unrefined: ClassVar[str] = "has no likelihood here without its network"
    has_prior_share: ClassVar[bool] = False
    """Rows say nothing of some direction of a network's weights, so that the largest share is always that of priors."""

    def is_fitted(self, model: Any) -> bool:
        """Return whether ``fit`` was called."""
        return isinstance(model, FusedLaplace) or bool(model.n_data)

    def parameters_of(self, model: Any) -> dict[str, Any]:
        """Return the likelihood, the weights that are covered, the digest of all others, and the prior."""
        if isinstance(model, FusedLaplace):
            return dict(model.parameters)
        if not self.is_fitted(model):  # a last layer is not known before
            return {}
        shapes = self.shapes_of(model)
        values = {
            "likelihood": str(getattr(model.likelihood, "value", model.likelihood)),
            "n_outputs": int(model.n_outputs),
            "weights": {name: list(shape) for name, shape in shapes.items()},
            "frozen": self.frozen_digest(model),
            "sigma_noise": float(model.sigma_noise),
            "temperature": float(model.temperature),
            "prior_precision": _one_or_more(model.prior_precision),
            "prior_mean": _one_or_more(model.prior_mean),
        }
        return {name: encode(name, value) for name, value in values.items()}

    def n_columns_of(self, model: Any) -> int:
        """Return the number q of weights."""
        return int(np.shape(model.mean)[0])

    def features_of(self, model: Any) -> Features:
        """Return nothing: columns are those of no table."""
        return Features()

    def network_of(self, model: Any) -> Any:
        """Return the network, as its user made it."""
        return model.model

    def covered(self, model: Any) -> list[Any]:
        """Return the parameters that the approximation covers, in its order."""
        return [values for values in model.model.parameters() if values.requires_grad]

    def shapes_of(self, model: Any) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the parameters that the approximation covers, by name and in its order."""
        ids = {id(values) for values in self.covered(model)}
        named = self.network_of(model).named_parameters()
        return {name: tuple(values.shape) for name, values in named if id(values) in ids}

    def frozen_digest(self, model: Any) -> str:
        """Return SHA-256 of all weights and buffers that are not covered, which all sites must share."""
        network, ids = self.network_of(model), {id(values) for values in self.covered(model)}
        aliases = network.named_parameters(remove_duplicate=False)
        covered = {name for name, values in aliases if id(values) in ids}
        digest = hashlib.sha256()
        for name, values in sorted(network.state_dict().items()):
            if name in covered or name.endswith("num_batches_tracked"):  # a counter of training, of no effect
                continue
            array = np.ascontiguousarray(values.detach().cpu().numpy())
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(array.tobytes())
        return digest.hexdigest()

    def sums_of_rows(self, rows: SiteRows) -> SiteSums:
        """Raise: a fitted approximation says all."""
        raise AssertionError("a fitted approximation says all")

    def sums_of_fitted(self, model: Any, n_observations: float | None) -> SiteSums:
        """Return the natural parameters of the posterior without its prior."""
        name = f"this {self.class_name}"
        if isinstance(model, FusedLaplace):
            raise InputError(name, "was fused before", "give the fusion, or its saved file")
        mean = _numbers(model.mean)
        sizes = {key: prod(shape) for key, shape in self.shapes_of(model).items()}
        if mean.shape != (sum(sizes.values()),):
            text = f"has a mean of shape {mean.shape}, and covers {sum(sizes.values())} weights"
            raise InputError(name, text, "fit it again", "E-SHAPE")
        curvature = _numbers(model.H)
        if curvature.shape != (len(mean), len(mean)) or not (np.isfinite(curvature).all() and np.isfinite(mean).all()):
            text = f"has no finite mean and curvature of its {len(mean)} weights"
            raise InputError(name, text, "train it again, and fit", "E-NUMBER")
        precision = np.broadcast_to(_numbers(model.prior_precision_diag), mean.shape)
        centre = np.broadcast_to(_numbers(model.prior_mean), mean.shape)
        scale = float(model.sigma_noise) ** 2 * float(model.temperature)  # H is that of the loss alone
        information = _positive_part(curvature / scale, name)
        counts = {
            ROWS: np.array(float(model.n_data)),
            INFORMATION: information,
            SHIFT: information @ mean + precision * (mean - centre),
            PRIOR: precision.copy(),
        }
        return SiteSums(counts=counts)

    def natural(self, statistics: Statistics) -> tuple[Array, Array, Array, Array]:
        """Return sum I_j (q, q), sum b_j (q,), sum P_j (q,) and P (q,)."""
        counts = statistics.counts
        precision = _by_weight(statistics, "prior_precision")
        if not np.all(precision >= 0.0):
            raise InputError("prior_precision", "has negative values, expected none", code="E-NUMBER")
        return counts[INFORMATION], counts[SHIFT], counts[PRIOR], precision

    def prior_shift(self, statistics: Statistics) -> Array:
        """Return P mu (q,)."""
        return _by_weight(statistics, "prior_precision") * _by_weight(statistics, "prior_mean")

    def coefficient_names(self, statistics: Statistics) -> tuple[str, ...]:
        """Return a name for every weight (q,), such as ``2.weight[0, 3]``."""
        return tuple(
            f"{name}[{', '.join(map(str, index))}]"
            for name, shape in _shapes(statistics).items()
            for index in np.ndindex(*shape)
        )

    def contradictions(self, first_label: str, first: Statistics, site: Statistics) -> list[Problem]:
        """Return why the weights of two sites are not those of one network, a line each."""
        ours, its = _shapes(first), _shapes(site)
        if ours != its:
            odd = next(name for name in (*its, *ours) if ours.get(name) != its.get(name))
            text = (
                f"has {odd} of shape {_shape(its.get(odd))}, expected {_shape(ours.get(odd))} as in {first_label}:"
                " weights are matched by name and position"
            )
            return [Problem("", text, "train one architecture at all sites, from one start", "E-MISMATCH")]
        if first.parameters.get("frozen") != site.parameters.get("frozen"):
            return [self.other_frozen(first_label)]
        return []

    def other_frozen(self, first_label: str) -> Problem:
        """Return that weights or buffers which the approximation does not cover differ from those of another site."""
        text = (
            f"has other frozen weights or buffers than {first_label}, such as running means of a batch normalisation,"
            " which no posterior covers"
        )
        remedy = "train with layer or group normalisation, or freeze the same values at all sites"
        return Problem("", text, remedy, "E-MISMATCH")

    def rebuild(self, statistics: Statistics) -> FusedLaplace:
        """Return the product as a normal distribution, which ``written_like`` puts into laplace-torch's class."""
        information, _, _, prior = self.natural(statistics)
        return FusedLaplace(
            self.kind,
            _shapes(statistics),
            self.coefficients(statistics),
            information,
            prior,
            _by_weight(statistics, "prior_mean"),
            statistics.n_observations,
            dict(statistics.parameters),
        )

    def written_like(self, fused: Any, like: Any) -> Any:
        """Return a copy of a fitted approximation that holds a fused one.

        `like` is of the same class, of a network of the same weights, or is refused; it is not changed.
        """
        self._require_same_network(fused, like)
        written = fused.copy_into(like)
        network, ids = self.network_of(written), {id(values) for values in self.covered(written)}
        values_of = {name: values for name, values in network.named_parameters() if id(values) in ids}
        fused.write_weights(values_of)
        return written

    def _require_same_network(self, fused: FusedLaplace, like: Any) -> None:
        if isinstance(like, FusedLaplace) or not self.accepts(like):
            text = f"is a {type(like).__name__}, expected a fitted {self.class_name} of laplace-torch"
            raise InputError("like", text, code="E-TYPE")
        if not self.is_fitted(like):
            text = f"this {self.class_name} is not fitted"
            raise InputError("like", text, "call `fit(train_loader)` first", "E-UNFITTED")
        if self.shapes_of(like) != dict(fused.weights):
            text = f"covers other weights than the fused {self.class_name}"
            raise InputError("like", text, "give one that was fused", "E-MISMATCH")
        if self.frozen_digest(like) != fused.parameters["frozen"]:
            text = "has other frozen weights or buffers than what was fused"
            raise InputError("like", text, "give one that was fused", "E-MISMATCH")


class FullLaplaceAdapter(LaplaceTorchAdapter):
    """All weights, whose networks must come from one start."""

    kind: ClassVar[str] = "laplace.FullLaplace"

    def described(self, statistics: Statistics) -> str:
        """Return what a fit on all rows is called."""
        if self.is_linear(statistics):
            return super().described(statistics)
        return "FullLaplace that training from the sites' one start, and fit, give on"

    def is_linear(self, statistics: Statistics) -> bool:
        """Return whether there is one weight matrix only, so that no hidden units can be permuted."""
        return sum(len(shape) > 1 for shape in _shapes(statistics).values()) < 2

    def contradictions(self, first_label: str, first: Statistics, site: Statistics) -> list[Problem]:
        """Return why two networks cannot be averaged weight by weight: another shape, or another start."""
        if problems := super().contradictions(first_label, first, site):
            return problems
        states_start = isinstance(first.parameters.get("prior_mean"), list)
        if self.is_linear(first) or (
            states_start and site.parameters.get("prior_mean") == first.parameters.get("prior_mean")
        ):
            return []
        # Matrices alone tell a start: biases, and scales of normalisations, are near 0 and 1 from any.
        is_matrix = np.concatenate([np.full(prod(shape), len(shape) > 1) for shape in _shapes(first).values()])
        weights, others = (self._own_mean(one)[is_matrix] for one in (first, site))
        length = float(np.linalg.norm(weights) * np.linalg.norm(others))
        cosine = float(weights @ others) / length if length > 0.0 else 0.0
        if cosine >= MIN_COSINE:
            return []
        text = (
            f"has a network of another start than {first_label} (cosine of weights {cosine:.2f}, expected"
            f" {MIN_COSINE:g} or more): hidden units are not in the same order, so that their posteriors"
            " are of different modes"
        )
        remedy = (
            "train all sites from one start (and say so by prior_mean, its weights), fit the last layer of one"
            ' network everywhere, or fuse `hessian_structure="diag"`, whose units are matched'
        )
        return [Problem("", text, remedy, "E-MISMATCH")]

    def _own_mean(self, site: Statistics) -> Array:
        """Return the mode of a site (q,)."""
        information, shift, precision, _ = self.natural(site)
        return solve_positive(
            information + np.diag(precision), shift + self.prior_shift(site), f"this {self.class_name}"
        )


class FullLLLaplaceAdapter(LaplaceTorchAdapter):
    """The last layer of one network whose other layers all sites share."""

    kind: ClassVar[str] = "laplace.FullLLLaplace"

    def network_of(self, model: Any) -> Any:
        """Return the network within laplace-torch's extractor of features."""
        return model.model.model

    def covered(self, model: Any) -> list[Any]:
        """Return the parameters of the last layer."""
        return list(model.model.last_layer.parameters())

    def other_frozen(self, first_label: str) -> Problem:
        """Return that two last layers are of different features."""
        text = f"has the last layer of other features than {first_label}: the layers before it differ by their digest"
        remedy = "fit the last layer on one network whose other layers are the same at all sites"
        return Problem("", text, remedy, "E-MISMATCH")


def _numbers(values: Any) -> Array:
    """Return a tensor as an array of float64."""
    array: Array = np.asarray(values.detach().cpu().double().numpy(), dtype=np.float64)
    return array


def _one_or_more(values: Any) -> float | list[float]:
    """Return a tensor of one entry as a number, others as a list."""
    numbers = _numbers(values).ravel().tolist()
    return numbers[0] if len(numbers) == 1 else numbers


def _shapes(statistics: Statistics) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights by name."""
    try:
        stated = decode(statistics.parameters["weights"])
        shapes = {str(name): tuple(int(length) for length in shape) for name, shape in stated.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InputError("weights", "expected the shapes of weights by name", code="E-SHAPE") from None
    if min((length for shape in shapes.values() for length in shape), default=1) < 1 or (
        sum(map(prod, shapes.values())) != statistics.n_columns
    ):
        raise InputError("weights", f"have shapes that are not of {statistics.n_columns} weights", code="E-SHAPE")
    return shapes


def _shape(shape: tuple[int, ...] | None) -> str:
    return "none" if shape is None else str(list(shape))


def _by_weight(statistics: Statistics, name: str) -> Array:
    """Return a part of the prior for every weight (q,): one number for all, for each tensor, or for each weight."""
    shapes = _shapes(statistics)
    sizes = [prod(shape) for shape in shapes.values()]
    q = sum(sizes)
    try:
        values = np.atleast_1d(np.asarray(decode(statistics.parameters[name]), dtype=np.float64))
    except (KeyError, TypeError, ValueError):
        raise InputError(name, "expected a number, or one for each weight", code="E-SHAPE") from None
    if values.ndim != 1 or not np.isfinite(values).all() or len(values) not in (1, len(sizes), q):
        text = f"expected 1, {len(sizes)} or {q} finite numbers, found shape {values.shape}"
        raise InputError(name, text, code="E-NUMBER")
    if len(values) == 1:
        return np.full(q, values[0])
    return values if len(values) == q else np.repeat(values, sizes)


def _positive_part(curvature: Array, name: str) -> Array:
    """Return a curvature (q, q) without the negative eigenvalues that rounding leaves."""
    curvature = symmetric_part(curvature)
    values, vectors = np.linalg.eigh(curvature)
    if values[0] >= 0.0:
        return curvature
    if values[0] < -NEGATIVE_CURVATURE * max(float(values[-1]), 0.0):
        text = "has a curvature that is not positive semidefinite: it is no normal distribution without its prior"
        raise InputError(name, text, "fit with a Gauss-Newton backend, which is laplace-torch's default", "E-NUMBER")
    positive: Array = (vectors * np.maximum(values, 0.0)) @ vectors.T
    return symmetric_part(positive)
