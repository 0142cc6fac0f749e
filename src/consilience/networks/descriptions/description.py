"""What a site says of its network beside the weights: a few kilobytes of counts and moments, no observation.

A description belongs to the network whose parameters have its digest. Every statement but the number of observations
may be missing; each unlocks a step of fusion:

    counts by class          weights of sites, the ensemble that is exact under label shift, rows of the head by class
    moments of the inputs    synthetic inputs of the right scale, on which layers are refitted and candidates compared
    moments by class         labelled synthetic inputs: candidates are judged by their error
    channel statistics       images for networks without batch normalisation
    token counts             synthetic texts
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from consilience.checks import Array
from consilience.errors import InputError, Problem


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean and covariance of rows x (n, d), the covariance as low rank plus diagonal.

    With factor F and residual r the covariance is F^T F + diag(r); its diagonal is that of the data.

    Parameters
    ----------
    n_observations : float
        Rows that they were taken from.
    mean : array of shape (d,)
        Mean, in the units of the inputs.
    factor : array of shape (rank, d)
        Leading eigenvectors, each times the root of its eigenvalue; of rank 0 where only variances are said.
    residual : array of shape (d,)
        Variances less those of the factor; not negative.

    Raises
    ------
    InputError
        For shapes that do not fit, values that are not finite, or negative variances.
    """

    n_observations: float
    mean: Array
    factor: Array
    residual: Array

    def __post_init__(self) -> None:
        for name in ("mean", "factor", "residual"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))
        d = self.mean.size
        if self.mean.shape != (d,) or self.residual.shape != (d,) or self.factor.shape != (len(self.factor), d):
            shapes = f"{self.mean.shape}, {self.factor.shape} and {self.residual.shape}"
            raise InputError("moments", f"expected shapes (d,), (rank, d) and (d,), found {shapes}")
        if not all(np.isfinite(values).all() for values in (self.mean, self.factor, self.residual)):
            raise InputError("moments", "have NaN or infinite values", "describe the network again")
        if (self.residual < 0).any():
            raise InputError("moments", f"expected variances, found {self.residual.min():.3g}")

    @property
    def variance(self) -> Array:
        """Variance of every coordinate (d,)."""
        variance: Array = self.residual + np.square(self.factor).sum(axis=0)
        return variance

    @property
    def covariance(self) -> Array:
        """The covariance (d, d)."""
        covariance: Array = self.factor.T @ self.factor + np.diag(self.residual)
        return covariance


@dataclass(frozen=True, eq=False)
class ChannelStatistics:
    """Mean and variance of every channel of a layer's output, in evaluation mode, over all positions and observations.

    Parameters
    ----------
    mean, variance : array of shape (channels,)
        In the units of the output.
    """

    mean: Array
    variance: Array


@dataclass(frozen=True, eq=False)
class TokenCounts:
    """How often a site's inputs have each token, and how long they are.

    Parameters
    ----------
    unigrams : array of shape (vocabulary,)
        Occurrences of every token; those of rare tokens are 0 and are counted in `n_rare`.
    bigrams : array of shape (k, 3), whole numbers
        First token, second token, occurrences; pairs below the minimum count are left out.
    lengths : array of shape (L + 1,)
        Number of inputs of each length, padding at their end not counted.
    padding : int, optional
        The token that fills inputs up; None where there is none.
    n_rare : float
        Occurrences of tokens that are too rare to be said.
    """

    unigrams: Array
    bigrams: Array
    lengths: Array
    padding: int | None = None
    n_rare: float = 0.0


@dataclass(frozen=True, eq=False)
class Description:
    """What a site says of its network.

    Parameters
    ----------
    digest : str
        SHA-256 of the parameters of the network that it belongs to.
    n_observations : float
        Observations that the network was trained on.
    input_shape : tuple of int
        Shape of one input, without the axis of observations.
    input_kind : {"real", "tokens"}
        What inputs are made of.
    input_range : tuple of float, optional
        Quantiles 0.001 and 0.999 of all entries of the inputs.
    inputs : Moments, optional
        Of the inputs, each flattened to a row.
    classes : tuple of str, optional
        Names of the classes, in the order of the outputs; None for networks that do not classify.
    class_counts : array of shape (C,), optional
        Observations of each class; 0 where there are fewer than `min_count`.
    withheld : tuple of str
        Names of the classes of which there are observations, but fewer than `min_count`.
    class_moments : mapping of int to Moments
        By class that has enough observations, those of its inputs.
    class_prior : {"own", "removed"}
        Whether the network's probabilities contain the frequencies of the site's classes, as those of an ordinary loss
        do, or not, as under a logit-adjusted loss.
    channels : mapping of str to ChannelStatistics
        By the path of a layer, of its outputs.
    tokens : TokenCounts, optional
        For inputs of tokens.
    class_features : array of shape (C, h), optional
        Mean by class of what the last layer reads; NaN for classes that are not said.
    min_count : float
        Observations below which something was withheld.
    name : str
        The site's name in messages.

    Raises
    ------
    InputError
        For statements that contradict each other, a line each.
    """

    digest: str
    n_observations: float
    input_shape: tuple[int, ...]
    input_kind: Literal["real", "tokens"] = "real"
    input_range: tuple[float, float] | None = None
    inputs: Moments | None = None
    classes: tuple[str, ...] | None = None
    class_counts: Array | None = None
    withheld: tuple[str, ...] = ()
    class_moments: Mapping[int, Moments] = field(default_factory=dict)
    class_prior: Literal["own", "removed"] = "own"
    channels: Mapping[str, ChannelStatistics] = field(default_factory=dict)
    tokens: TokenCounts | None = None
    class_features: Array | None = None
    min_count: float = 5.0
    name: str = "description"

    def __post_init__(self) -> None:
        if problems := self._problems():
            raise InputError(problems)

    def _problems(self) -> list[Problem]:
        """Return what contradicts itself, a line each."""
        problems = []
        size = int(np.prod(self.input_shape))
        if not (np.isfinite(self.n_observations) and self.n_observations > 0):
            problems.append(
                Problem(self.name, f"expected a positive number of observations, found {self.n_observations}")
            )
        stated = [("its inputs", self.inputs)]
        stated += [(f"class {self._class_name(number)}", moments) for number, moments in self.class_moments.items()]
        problems += [
            Problem(self.name, f"moments of {of} have {moments.mean.size} coordinates, and an input has {size}")
            for of, moments in stated
            if moments is not None and moments.mean.size != size
        ]
        if self.class_counts is None:
            return problems
        if self.classes is None or len(self.classes) != len(self.class_counts):
            n_names = 0 if self.classes is None else len(self.classes)
            problems.append(Problem(self.name, f"has {len(self.class_counts)} counts for {n_names} classes"))
        if not np.isfinite(self.class_counts).all() or (self.class_counts < 0).any():
            problems.append(Problem(self.name, "has counts of classes that are no counts"))
        # Fewer are allowed: classes may be withheld, and labels ignored.
        elif self.class_counts.sum() > self.n_observations * (1 + 1e-9):
            problems.append(
                Problem(
                    self.name,
                    f"its classes have {self.class_counts.sum():g} observations, and it says that it has "
                    f"{self.n_observations:g}",
                    "describe the network again",
                )
            )
        return problems

    def _class_name(self, number: int) -> str:
        return self.classes[number] if self.classes is not None and number < len(self.classes) else str(number)
