"""Bayesian neural networks at a site: mean-field variational inference with Gaussian or regularised horseshoe priors.

The evidence lower bound, with q the variational posterior of all weights and scales,

    ELBO = sum_n E_q[log p(y_n | x_n, w)] - T KL(q || p),

is climbed by Adam on mini-batches, T being 1 unless a tempered posterior is asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, final

from consilience.bayesian.network import BayesianNetwork
from consilience.checks import Array, is_count, is_number
from consilience.core.progress import Progress, silent
from consilience.errors import OptionError

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, eq=False)
class FittedBNN:
    """A fitted Bayesian network.

    Parameters
    ----------
    posterior
        The network with a Gaussian for each weight.
    history
        The bound in nats after each epoch (epochs,), its likelihood averaged over the epoch's mini-batches; of the
        parameters as they are climbed, also where a running average of them is returned.
    scales
        By layer, the posterior mean scale of every unit (units,); empty without horseshoe.
    """

    posterior: BayesianNetwork
    history: Array = field(repr=False)
    scales: dict[str, Array] = field(repr=False)


@dataclass(frozen=True)
class Prior:
    """The prior of the weights.

    Parameters
    ----------
    variance
        Of the Gaussian prior of every weight, its scale apart.
    horseshoe
        Widths b_0 and b_g of the half-Cauchy priors of the scales of units and layers; None for no scales.
    slab
        Shape and rate of the inverse gamma prior of the slab's squared width; None without regularisation.
    moments
        Whether products of weights and scales become Gaussians by their moments; scales are taken at their means
        otherwise.
    prune
        Units whose scale is below this share of the largest of their layer are taken out; None keeps all.
    """

    variance: float
    horseshoe: tuple[float, float] | None = None
    slab: tuple[float, float] | None = None
    moments: bool = False
    prune: float | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class VariationalBNN(ABC):
    """What Bayesian networks with any prior share; see `GaussianBNN` and `HorseshoeBNN`."""

    hidden: Sequence[int] = (150,)
    module: nn.Module | None = None
    epochs: int = 50
    batch_size: int = 128
    learning_rate: float = 2e-3
    estimator: Literal["local", "weights"] = "local"
    deviation: float = 0.05
    logit_adjustment: bool = False
    temperature: float = 1.0
    annealing: int = 0
    averaging: float | None = None
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        hidden: Any = self.hidden
        seed: Any = self.seed
        for option, valid, expected in (
            ("hidden", isinstance(hidden, (tuple, list)) and all(map(is_count, hidden)), "a tuple of widths"),
            ("epochs", is_count(self.epochs), "a positive integer"),
            ("batch_size", is_count(self.batch_size), "a positive integer"),
            ("learning_rate", is_number(self.learning_rate) and self.learning_rate > 0, "a positive number"),
            ("estimator", self.estimator in ("local", "weights"), "'local' or 'weights'"),
            ("deviation", is_number(self.deviation) and self.deviation > 0, "a positive number"),
            ("temperature", is_number(self.temperature), "a number that is not negative"),
            ("seed", isinstance(seed, int) and 0 <= seed < 2**63, "a whole number from 0"),
            ("annealing", self.annealing == 0 or is_count(self.annealing), "a number of epochs"),
            (
                "averaging",
                self.averaging is None or (is_number(self.averaging) and 0 < self.averaging < 1),
                "None or a number between 0 and 1",
            ),
        ):
            if not valid:
                raise OptionError(f"{option}: expected {expected}, found {getattr(self, option)!r}")

    @property
    @abstractmethod
    def prior(self) -> Prior:
        """The prior of the weights."""

    @final
    def fit(self, X: Any, y: Any, classes: int | Sequence[str], progress: Progress = silent) -> FittedBNN:
        """Return the network fitted to a site's data.

        Parameters
        ----------
        X
            Inputs (N, ...), an array or tensor.
        y
            Class of each (N,), whole numbers from 0. Classes that this site never saw may be among `classes`.
        classes
            How many classes there are, or their names in order; the same at all sites.
        progress
            Told about epochs.

        Raises
        ------
        InputError
            For inputs that are not finite, labels that are no classes, or sizes that differ.
        OptionError
            For a `module` that is none.
        UnsupportedError
            For a module with tied parameters, parameters outside of layers, or batch normalisation.
        """
        from consilience.bayesian.learners.variational_training import fit_network  # here, since it needs torch

        return fit_network(self, X, y, classes, progress)


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class GaussianBNN(VariationalBNN):
    """A Bayesian network with a Gaussian prior N(0, v) for each weight.

    Parameters
    ----------
    prior_variance
        v.
    **options
        As of `HorseshoeBNN`, from `hidden` on.

    Raises
    ------
    OptionError
        For options that mean nothing.

    References
    ----------
    Appendix D of Rossi, Singh, Hannagan (2023), "On permutation symmetries in Bayesian neural network posteriors".

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> learner = GaussianBNN(prior_variance=1.0, hidden=(16,), epochs=60, batch_size=32, learning_rate=0.01)
    >>> fitted = learner.fit(X, y, classes=3)
    >>> bool((fitted.posterior.predict(X).argmax(axis=1) == y).mean() > 0.9)
    True
    """

    prior_variance: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (is_number(self.prior_variance) and self.prior_variance > 0):
            raise OptionError(f"prior_variance: expected a positive number, found {self.prior_variance!r}")

    @property
    def prior(self) -> Prior:
        """The prior of the weights."""
        return Prior(float(self.prior_variance))


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class HorseshoeBNN(VariationalBNN):
    """A Bayesian network whose prior switches off hidden units that the data does not need.

        w_kl | tau, v, c ~ N(0, tau~_kl^2 v_l^2 I),   tau~^2 = c^2 tau^2 / (c^2 + tau^2 v^2),

    tau_kl ~ C+(0, b_0) for unit k of layer l, v_l ~ C+(0, b_g), c^2 ~ Inv-Gamma(c_a, c_b); the output layer has one
    half-Cauchy scale for all of its weights.

    Parameters
    ----------
    unit_width, layer_width
        b_0 and b_g: smaller ones switch off more units.
    slab
        (c_a, c_b); None for the horseshoe without regularisation.
    conversion
        How weights become independent Gaussians: ``"means"`` takes scales at their posterior means (the paper);
        ``"moments"`` matches mean and variance of the products, which also counts what is not known of the scales.
    prune
        Units whose scale is below this share of the largest of their layer are taken out of the network, where nothing
        but layers with scales makes them; right for activations that are zero at zero. None keeps all, their variances
        no smaller than 1e-8 of what is usual in their layer.
    hidden
        Widths of the hidden layers of a network of linear layers and ReLU; of no effect with a `module`.
    module
        A torch module instead, with logits (n, classes) for output: every parameter becomes a Gaussian. Each layer
        with parameters is called once, with one tensor; weights are not tied. It is left as it is.
    epochs
        Passes over the data.
    batch_size
        Observations in a step.
    learning_rate
        Of Adam; it falls to zero along a cosine.
    estimator
        ``"local"`` draws what the units of linear layers receive, for every observation, which trains with less noise;
        ``"weights"`` draws weights, for every batch, as other layers always do.
    deviation
        First standard deviation of every weight.
    logit_adjustment
        Whether the site's own shares of the classes are added to the logits while it learns, so that what is learned is
        p(y | x) for classes of equal shares: what sites of different shares can agree on. Outgoing weights of a class
        that a site never saw then stay as the prior has them.
    temperature
        T, by which the divergence is multiplied.
    annealing
        Epochs over which the divergence is faded in.
    averaging
        Decay of a running average of all variational parameters (Polyak), such as 0.999; None takes the last ones.
    device
        Where torch computes: ``"cpu"`` or ``"cuda"``.
    seed
        Of first weights, batches and draws.

    Raises
    ------
    OptionError
        For options that mean nothing.

    References
    ----------
    Ghosh, Yao, Doshi-Velez (2019), "Model selection in Bayesian neural networks via horseshoe priors"; (14) of Claici
    et al. (2020).

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> fitted = HorseshoeBNN(hidden=(16,), epochs=60, batch_size=32, learning_rate=0.01).fit(X, y, classes=3)
    >>> bool((fitted.posterior.predict(X).argmax(axis=1) == y).mean() > 0.9)
    True
    """

    unit_width: float = 1.0
    layer_width: float = 1.0
    slab: tuple[float, float] | None = (2.0, 6.0)
    conversion: Literal["means", "moments"] = "means"
    prune: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        slab: Any = self.slab
        for option, valid, expected in (
            ("unit_width", is_number(self.unit_width) and self.unit_width > 0, "a positive number"),
            ("layer_width", is_number(self.layer_width) and self.layer_width > 0, "a positive number"),
            (
                "slab",
                slab is None
                or (
                    isinstance(slab, (tuple, list))
                    and len(slab) == 2
                    and all(is_number(one) and one > 0 for one in slab)
                ),
                "shape and rate, two positive numbers, or None",
            ),
            ("conversion", self.conversion in ("means", "moments"), "'means' or 'moments'"),
            (
                "prune",
                self.prune is None or (is_number(self.prune) and 0 < self.prune < 1),
                "None or a number between 0 and 1",
            ),
        ):
            if not valid:
                raise OptionError(f"{option}: expected {expected}, found {getattr(self, option)!r}")

    @property
    def prior(self) -> Prior:
        """The prior of the weights."""
        widths = (float(self.unit_width), float(self.layer_width))
        return Prior(1.0, widths, self.slab, self.conversion == "moments", self.prune)
