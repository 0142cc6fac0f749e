"""Mean-field variational inference of Bayesian neural networks, with Gaussian or regularised horseshoe priors.

The evidence lower bound, with q the variational posterior of all weights and scales w and p their prior,

    ELBO = sum_n E_q[log p(y_n | x_n, w)] - T KL(q || p),

is maximised by Adam on mini-batches with one sample of w each. The temperature T is 1 unless a tempered posterior is
asked for. A bound that is not finite ends the fit with an error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, final

from consilience.checks import Array, is_count, is_number
from consilience.core.progress import Progress, silent
from consilience.errors import OptionError
from consilience.networks.gaussian.network import BayesianNetwork

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, eq=False)
class FittedBNN:
    """A fitted Bayesian network.

    Parameters
    ----------
    posterior : BayesianNetwork
        The network with a Gaussian for each weight.
    history : array of shape (epochs,)
        The ELBO in nats after each epoch, its likelihood averaged over the epoch's mini-batches. It is that of the
        parameters in training, also where a running average of them is returned.
    scales : dict of str to array of shape (units,)
        By layer, the posterior mean scale of every unit; empty without horseshoe.
    """

    posterior: BayesianNetwork
    history: Array = field(repr=False)
    scales: dict[str, Array] = field(repr=False)


@dataclass(frozen=True)
class WeightPrior:
    """The prior of the weights, and how their posterior is converted to Gaussians."""

    variance: float  # variance of the Gaussian prior of every weight, without its scale
    # Widths b_0 and b_g of the half-Cauchy priors of the scales of units and layers. Default: None, no scales.
    horseshoe: tuple[float, float] | None = None
    # Shape c_a and rate c_b of the inverse gamma prior of the slab's squared width. Default: None, no regularisation.
    slab: tuple[float, float] | None = None
    # Whether products of weights and scales become Gaussians of the same mean and variance. Otherwise scales are taken
    # at their means.
    matches_moments: bool = False
    # Units whose scale is below this share of the largest of their layer are removed. Default: None, all are kept.
    prune: float | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class VariationalBNN(ABC):
    """Options and fitting that learners with any prior share; see `GaussianBNN` and `HorseshoeBNN`."""

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
        self._require(
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
        )

    def _require(self, *requirements: tuple[str, bool, str]) -> None:
        """Raise for the first option that is not valid, saying what was expected."""
        for option, is_valid, expected in requirements:
            if not is_valid:
                raise OptionError(option, f"expected {expected}, found {getattr(self, option)!r}")

    @property
    @abstractmethod
    def prior(self) -> WeightPrior:
        """The prior of the weights."""

    @final
    def fit(self, X: Any, y: Any, classes: int | Sequence[str], progress: Progress = silent) -> FittedBNN:
        """Return the network fitted to a site's data.

        Parameters
        ----------
        X : array_like or Tensor of shape (n, ...)
            Inputs.
        y : array_like of int, shape (n,)
            Number of the class of each input, from 0.
        classes : int or sequence of str
            Number of classes, or their names in order; the same at all sites, also where a site has no data of some.
        progress : callable
            Called after every epoch with its number and the number of all.

        Raises
        ------
        InputError
            For inputs that are not finite, labels that are no classes, or sizes that differ.
        OptionError
            For a `module` that is none.
        UnsupportedError
            For a module with tied parameters, parameters outside of layers, or batch normalisation.
        """
        from consilience.networks.gaussian.learners.variational_training import (
            fit_network,  # here, since it needs torch
        )

        return FittedBNN(*fit_network(self, X, y, classes, progress))


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class GaussianBNN(VariationalBNN):
    """A Bayesian network with a Gaussian prior N(0, v) for each weight.

    Parameters
    ----------
    prior_variance : float
        Variance v. Default: 0.01, that of MLPs on MNIST in table 1 of Rossi et al. 2023.
    **options
        As of `HorseshoeBNN`, from `hidden` on.

    Raises
    ------
    OptionError
        For invalid values of options.

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
        is_positive = is_number(self.prior_variance) and self.prior_variance > 0
        self._require(("prior_variance", is_positive, "a positive number"))

    @property
    def prior(self) -> WeightPrior:
        """The prior of the weights."""
        return WeightPrior(float(self.prior_variance))


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class HorseshoeBNN(VariationalBNN):
    """A Bayesian network whose prior switches off hidden units that the data does not need.

        w_kl | tau, v, c ~ N(0, tau~_kl^2 v_l^2 I),   tau~^2 = c^2 tau^2 / (c^2 + tau^2 v^2),

    tau_kl ~ C+(0, b_0) for unit k of layer l, v_l ~ C+(0, b_g), c^2 ~ Inv-Gamma(c_a, c_b); the output layer has one
    half-Cauchy scale for all of its weights.

    Parameters
    ----------
    unit_width, layer_width : float
        Widths b_0 and b_g; smaller ones switch off more units. Default: 1.
    slab : tuple of float, optional
        (c_a, c_b); None for the horseshoe without regularisation. Default: (2, 6).
    conversion : {"means", "moments"}
        How weights become independent Gaussians. ``"means"`` (the default, and the paper's) takes scales at their
        posterior means; ``"moments"`` matches mean and variance of the products, which includes the uncertainty of the
        scales.
    prune : float, optional
        Units whose scale is below this share of the largest of their layer are removed, where only layers with scales
        compute them. This is right for activations that are zero at zero. Default: None, all units are kept, with
        variances of at least 1e-8 of the typical one of their layer.
    hidden : sequence of int
        Widths of the hidden layers of a network of linear layers and ReLU; without effect with a `module`. Default: one
        layer of 150, as in section 5.4 of Claici et al. 2020.
    module : torch.nn.Module, optional
        A module with logits (n, n_classes) for output, instead: every parameter becomes a Gaussian. Each layer with
        parameters must be called once, with one tensor; weights must not be tied. The module is not changed.
    epochs : int
        Passes over the data. Default: 50.
    batch_size : int
        Observations in a step. Default: 128.
    learning_rate : float
        Initial learning rate of Adam; it falls to zero along a cosine. Default: 0.002.
    estimator : {"local", "weights"}
        ``"local"`` (the default) draws pre-activations of linear layers for every observation, which gives gradients of
        less variance; ``"weights"`` draws weights for every batch, as layers of other types always do.
    deviation : float
        Initial standard deviation of every weight. Default: 0.05.
    logit_adjustment : bool
        Whether logarithms of the site's class shares are added to the logits in training, so that the network learns
        p(y | x) for classes of equal shares, on which sites of different shares can agree (Menon et al. 2021). Outgoing
        weights of a class without data then stay at the prior. Default: False.
    temperature : float
        Temperature T, which multiplies the divergence. Default: 1.
    annealing : int
        Epochs over which the divergence is faded in. Default: 0.
    averaging : float, optional
        Decay of a running average of all variational parameters (Polyak), such as 0.999. Default: None, the last ones.
    device : str
        Device of torch: ``"cpu"`` or ``"cuda"``.
    seed : int
        Seed of initial weights, batches and draws.

    Raises
    ------
    OptionError
        For invalid values of options.

    Notes
    -----
    Defaults of `epochs`, `batch_size`, `learning_rate`, `deviation` and `slab` are chosen by hand; the papers state
    none or others, and the experiments choose their own by validation (docs/evidence/bayesian.md).

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
        self._require(
            ("unit_width", is_number(self.unit_width) and self.unit_width > 0, "a positive number"),
            ("layer_width", is_number(self.layer_width) and self.layer_width > 0, "a positive number"),
            (
                "slab",
                slab is None
                or (
                    isinstance(slab, (tuple, list))
                    and len(slab) == 2
                    and all(is_number(value) and value > 0 for value in slab)
                ),
                "shape and rate, two positive numbers, or None",
            ),
            ("conversion", self.conversion in ("means", "moments"), "'means' or 'moments'"),
            (
                "prune",
                self.prune is None or (is_number(self.prune) and 0 < self.prune < 1),
                "None or a number between 0 and 1",
            ),
        )

    @property
    def prior(self) -> WeightPrior:
        """The prior of the weights."""
        widths = (float(self.unit_width), float(self.layer_width))
        return WeightPrior(1.0, widths, self.slab, self.conversion == "moments", self.prune)
