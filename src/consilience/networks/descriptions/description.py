"""The description that a site sends with its network: counts and moments of its data, no observation.

A description belongs to the network whose parameters have its digest. Every statement but the number of observations
may be missing; what each is for:

    counts by class          weights of sites, the ensemble that is exact under label shift, rows of the head by class
    moments of the inputs    synthetic inputs of the right scale, on which layers are refitted and candidates compared
    moments by class         labelled synthetic inputs: candidates are judged by their error
    channel statistics       images for networks without batch normalisation, by ``matched_images``; not by default
    token counts             synthetic texts
    token counts by class    labelled synthetic texts: candidates are judged by their error
    next-token loss          how well a language model does on its own texts
    arguments, whole columns synthetic inputs such as networks of several inputs, of masks or of ids take
    features by class        nothing yet
    labels of outputs        the ensemble of networks of several outputs, each by its own counts
    factors of layers        merging by Kronecker factors (K-FAC) and by regression (RegMean)
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from consilience.checks import Array
from consilience.drawing.display import Displayed, names_in_line
from consilience.errors import InputError, Problem
from consilience.networks.fisher.kronecker import KroneckerFactors

PartKind = Literal["real", "whole", "tokens", "mask", "zeros"]

ROUNDING = 1e-6
"""Counts agree that differ by no more than this share: float32 on disk."""

_AGAIN = "describe the network again"


@dataclass(frozen=True)
class InputPart:
    """One argument of a network."""

    name: str | None  # the keyword; None for arguments by position
    shape: tuple[int, ...]  # of one input; of tokens, masks and zeros that of the tokens, which may vary
    kind: PartKind

    @property
    def size(self) -> int:
        """Numbers of an input in a row."""
        return math.prod(self.shape) if self.kind in ("real", "whole") else 0


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
        if (
            self.factor.ndim != 2
            or self.mean.shape != (d,)
            or self.residual.shape != (d,)
            or self.factor.shape != (len(self.factor), d)
        ):
            shapes = f"{self.mean.shape}, {self.factor.shape} and {self.residual.shape}"
            raise InputError("moments", f"expected shapes (d,), (rank, d) and (d,), found {shapes}", code="E-SHAPE")
        if not (np.isfinite(self.n_observations) and self.n_observations > 0):
            text = f"expected a positive number of observations, found {self.n_observations}"
            raise InputError("moments", text, code="E-NUMBER")
        if not all(np.isfinite(values).all() for values in (self.mean, self.factor, self.residual)):
            raise InputError("moments", "have NaN or infinite values", "describe the network again", "E-NUMBER")
        if (self.residual < 0).any():
            raise InputError("moments", f"expected variances, found {self.residual.min():.3g}", code="E-NUMBER")

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

    def stored(self) -> Moments:
        """Return the moments in the precision of their file."""
        return replace(self, mean=_stored(self.mean), factor=_stored(self.factor), residual=_stored(self.residual))


def _stored(values: Array) -> Array:
    """Return an array as it is after it was written in float32."""
    return np.asarray(values, dtype=np.float32).astype(np.float64)


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

    def stored(self) -> ChannelStatistics:
        """Return the statistics in the precision of their file."""
        return ChannelStatistics(_stored(self.mean), _stored(self.variance))


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

    def stored(self) -> TokenCounts:
        """Return the counts in the precision of their file; pairs are whole numbers."""
        return replace(self, unigrams=_stored(self.unigrams), lengths=_stored(self.lengths))


@dataclass(frozen=True, eq=False)
class OutputLabels:
    """What a site says of the labels of one of several outputs."""

    name: str | None  # the output's name; None where outputs are a tuple
    width: int  # numbers of it
    classes: tuple[str, ...] | None = None  # names of the classes; None for an output of numbers
    counts: Array | None = None  # (C,): observations of each class, 0 where withheld; None where all are
    # Share of the site's own labels that the network misses; of numbers the squared error over their variance.
    own_loss: float | None = None

    @property
    def called(self) -> str:
        """The output's name in messages."""
        return "an output" if self.name is None else f"the output {self.name!r}"

    def problems(self, site: str, n_observations: float) -> Iterator[Problem]:
        """Yield what contradicts itself, a line each."""
        counts, n_classes = self.counts, len(self.classes or ())
        if self.width < 1 or (self.classes is not None and n_classes != self.width):
            yield Problem(site, f"has {n_classes} classes for {self.called} of {self.width} numbers", _AGAIN, "E-SHAPE")
        if self.own_loss is not None and not (np.isfinite(self.own_loss) and self.own_loss >= 0):
            yield Problem(site, f"expected the loss of {self.called}, found {self.own_loss}", code="E-NUMBER")
        if counts is None:
            return
        if len(counts) != n_classes or not np.isfinite(counts).all() or (counts < 0).any():
            yield Problem(site, f"has counts of classes of {self.called} that are no counts", _AGAIN, "E-NUMBER")
        elif counts.sum() > n_observations * (1 + ROUNDING):
            text = f"the classes of {self.called} have {counts.sum():g} observations, and it says that it has"
            yield Problem(site, f"{text} {n_observations:g}", _AGAIN, "E-MISMATCH")


@dataclass(frozen=True, eq=False, repr=False)
class Description(Displayed):
    """What a site says of its network.

    Parameters
    ----------
    digest : str
        SHA-256 of the parameters of the network that it belongs to.
    n_observations : float
        Observations that the network was trained on.
    input_shape : tuple of int, optional
        Shape of one input, without the axis of observations; of tokens, the longest. None where nobody gave inputs.
    input_kind : {"real", "tokens"}
        What inputs are made of.
    parts : tuple of InputPart
        The arguments of a network of several; `input_shape` is then that of a row of all their numbers, or of tokens.
    whole_columns : mapping of int to array of shape (k, 2)
        By column of a row that the network reads as whole numbers, its values and how many observations have each.
    input_range : tuple of float, optional
        Lower and upper end, to 0.05 %, of what the inputs' entries reach: quantile 0.001 of the least entry of every
        observation, 0.999 of the greatest. At least `min_count` observations lie at or beyond either end, none of them
        of a class that is withheld.
    inputs : description.Moments, optional
        Of the inputs, each flattened to a row.
    classes : tuple of str, optional
        Names of the classes, in the order of the outputs; None for networks that do not classify.
    class_counts : array of shape (C,), optional
        Observations of each class; 0 where there are fewer than `min_count`.
    withheld : tuple of str
        Names of the classes of which there are observations, but fewer than `min_count`.
    class_moments : mapping of int to description.Moments
        By class that has enough observations, those of its inputs.
    class_mixtures : mapping of int to tuple of description.Moments
        By class, those of its parts, where one Gaussian for each class says too little of them (``mixtures``).
    own_error : float, optional
        Share of the observations of the classes that are described by moments or tokens which the network takes for
        another class. Inputs drawn as the site describes them stand for real ones as far as it errs as often on them.
    own_loss : float, optional
        Mean loss in nats of a language model on the next tokens of its own texts.
    output : str or int, optional
        Which of the network's outputs is described, by its name or its place; None where it has one, or logits.
    output_labels : tuple of OutputLabels
        Of a network of several outputs, what is said of the labels of each; empty where nobody gave them.
    held_out : str, optional
        Digest of the rows that the site held out of training; None where it did not say.
    share_network : bool
        Whether the other sites may get the network, to compare it with fused ones on rows that they held out, where all
        sites say so.
    class_prior : {"own", "removed"}
        Whether the network's probabilities contain the frequencies of the site's classes, as those of an ordinary loss
        do, or not, as under a logit-adjusted loss.
    channels : mapping of str to ChannelStatistics
        By the path of a layer, of its outputs.
    tokens : TokenCounts, optional
        For inputs of tokens.
    class_tokens : mapping of int to TokenCounts
        By class that has enough observations and tokens, those of its inputs; without pairs.
    class_features : array of shape (C, h), optional
        Mean by class of what the last layer reads; NaN for classes that are not said.
    layers : mapping of str to KroneckerFactors
        By the path of a linear layer or convolution: second moments of what it reads, and of the gradients at what it
        answers.
    layer_observations : float, optional
        Observations that these are means over.
    layer_likelihood : {"categorical", "gaussian"}, optional
        What the outputs were taken for: logits of classes, or means of deviation 1.
    min_count : float
        Observations below which something was withheld.
    notes : tuple of str
        What was left out or reduced for want of observations, a line each.
    name : str
        The site's name in messages.
    sha256 : str, optional
        Digest of the file that it was read from.

    Raises
    ------
    InputError
        For statements that contradict each other, a line each.
    """

    digest: str
    n_observations: float
    input_shape: tuple[int, ...] | None = None
    input_kind: Literal["real", "tokens"] = "real"
    parts: tuple[InputPart, ...] = ()
    whole_columns: Mapping[int, Array] = field(default_factory=dict)
    input_range: tuple[float, float] | None = None
    inputs: Moments | None = None
    classes: tuple[str, ...] | None = None
    class_counts: Array | None = None
    withheld: tuple[str, ...] = ()
    class_moments: Mapping[int, Moments] = field(default_factory=dict)
    class_mixtures: Mapping[int, tuple[Moments, ...]] = field(default_factory=dict)
    own_error: float | None = None
    own_loss: float | None = None
    output: str | int | None = None
    output_labels: tuple[OutputLabels, ...] = ()
    held_out: str | None = None
    share_network: bool = False
    class_prior: Literal["own", "removed"] = "own"
    channels: Mapping[str, ChannelStatistics] = field(default_factory=dict)
    tokens: TokenCounts | None = None
    class_tokens: Mapping[int, TokenCounts] = field(default_factory=dict)
    class_features: Array | None = None
    layers: Mapping[str, KroneckerFactors] = field(default_factory=dict)
    layer_observations: float | None = None
    layer_likelihood: Literal["categorical", "gaussian"] | None = None
    min_count: float = 5.0
    notes: tuple[str, ...] = ()
    name: str = "description"
    sha256: str | None = None

    def __post_init__(self) -> None:
        if problems := [*self._problems()]:
            raise InputError(problems)

    def stored(self) -> Description:
        """Return the description in the precision of its file, so that a fusion of objects is that of their files."""
        return replace(
            self,
            inputs=None if self.inputs is None else self.inputs.stored(),
            class_moments={number: moments.stored() for number, moments in self.class_moments.items()},
            class_mixtures={n: tuple(part.stored() for part in parts) for n, parts in self.class_mixtures.items()},
            channels={path: channels.stored() for path, channels in self.channels.items()},
            tokens=None if self.tokens is None else self.tokens.stored(),
            whole_columns={column: _stored(counts) for column, counts in self.whole_columns.items()},
            class_tokens={number: tokens.stored() for number, tokens in self.class_tokens.items()},
            class_features=None if self.class_features is None else _stored(self.class_features),
        )

    def _headline(self) -> str:
        return f"{self.n_observations:,.0f} observations"

    def _facts(self) -> dict[str, object | None]:
        counts = self.class_counts
        classes = self.classes or (() if counts is None else tuple(map(str, range(len(counts)))))
        named = [] if counts is None else [f"{name} {count:,.0f}" for name, count in zip(classes, counts, strict=False)]
        parts = {
            "moments of inputs": self.inputs is not None,
            "moments by class": bool(self.class_moments),
            "statistics of channels": bool(self.channels),
            "statistics of layers": bool(self.layers),
            "counts of tokens": self.tokens is not None or bool(self.class_tokens),
            "labels of outputs": bool(self.output_labels),
        }
        return {
            "inputs": None if self.input_shape is None else f"{self.input_kind} of shape {self.input_shape}",
            "rows by class": names_in_line(named, 40),
            "says": ", ".join(name for name, is_said in parts.items() if is_said) or "nothing more",
            "withheld": names_in_line(self.withheld),
            "own error": None if self.own_error is None else f"{self.own_error:.4g}",
            "own next-token loss": None if self.own_loss is None else f"{self.own_loss:.4g} nats",
        }

    def _problems(self) -> Iterator[Problem]:
        """Yield what contradicts itself, a line each."""
        n = self.n_observations
        if not (np.isfinite(n) and n > 0):
            yield Problem(self.name, f"expected a positive number of observations, found {n}", code="E-NUMBER")
        if not (np.isfinite(self.min_count) and self.min_count >= 0):
            text = f"expected a least number of observations, found {self.min_count}"
            yield Problem(self.name, text, code="E-NUMBER")
        if self.input_shape is not None and min(self.input_shape, default=1) < 1:
            yield Problem(self.name, f"expected the shape of an input, found {self.input_shape}", code="E-SHAPE")
        # Moments must fit the shape of an input, and are of no more observations than there are.
        size = None if self.input_shape is None else math.prod(self.input_shape)
        stated = [] if self.inputs is None else [("its inputs", self.inputs)]
        stated += [(f"class {self._class_name(number)}", moments) for number, moments in self.class_moments.items()]
        for of, moments in stated:
            if moments.mean.size != size:
                text = f"moments of {of} have {moments.mean.size} coordinates, and an input has {size}"
                yield Problem(self.name, text, code="E-SHAPE")
            if moments.n_observations > n * (1 + ROUNDING):
                text = f"moments of {of} are of {moments.n_observations:g} observations, and it says that it has {n:g}"
                yield Problem(self.name, text, _AGAIN)
        yield from self._part_problems(size)
        for of_output in self.output_labels:
            yield from of_output.problems(self.name, n)
        yield from self._channel_problems()
        yield from self._class_problems()
        yield from [*self._token_problems()] or self._class_token_problems()
        yield from self._layer_problems()

    def _part_problems(self, size: int | None) -> Iterator[Problem]:
        """Yield what is wrong with arguments, for inputs of so many numbers, and with columns of whole numbers."""
        if self.input_kind == "real" and self.parts and sum(part.size for part in self.parts) != size:
            text = f"its arguments have {sum(part.size for part in self.parts)} numbers, and an input has {size}"
            yield Problem(self.name, text, _AGAIN, "E-SHAPE")
        for column, counts in self.whole_columns.items():
            is_table = counts.ndim == 2 and counts.shape[1] == 2 and len(counts) > 0 and np.isfinite(counts).all()
            if not 0 <= column < (size or 0) or not is_table or not (counts[:, 1] > 0).all():
                yield Problem(self.name, f"values of column {column} are no counts of values", code="E-NUMBER")
        if self.held_out is not None and re.fullmatch(r"[0-9a-f]{64}", self.held_out) is None:
            yield Problem(self.name, "has no digest of the rows that were held out", _AGAIN, "E-VALUE")
        if self.own_loss is not None and not (np.isfinite(self.own_loss) and self.own_loss >= 0):
            yield Problem(self.name, f"expected a loss in nats, found {self.own_loss}", code="E-NUMBER")

    def _layer_problems(self) -> Iterator[Problem]:
        """Yield what is wrong with factors of layers."""
        for layer, factors in self.layers.items():
            yield from factors.problems(self.name, layer)
        n = self.layer_observations
        if self.layers and (n is None or not 0 < n <= self.n_observations * (1 + ROUNDING)):
            stated = "no number of" if n is None else f"{n:g}"
            own = f"{self.n_observations:g}"
            text = f"second moments of layers are of {stated} observations, and it says that it has {own}"
            yield Problem(self.name, text, _AGAIN)

    def _channel_problems(self) -> Iterator[Problem]:
        """Yield what is wrong with statistics of channels and with the range of the inputs."""
        for layer, channels in self.channels.items():
            if (
                channels.mean.ndim != 1
                or channels.mean.shape != channels.variance.shape
                or not np.isfinite(channels.mean + channels.variance).all()
                or (channels.variance < 0).any()
            ):
                yield Problem(self.name, f"statistics of {layer} are no means and variances of its channels")
        ends = self.input_range
        if ends is not None and not (np.isfinite(ends).all() and ends[0] <= ends[1]):
            yield Problem(self.name, f"expected the range of the inputs, found {ends}", code="E-NUMBER")

    def _token_problems(self) -> Iterator[Problem]:
        """Yield what is wrong with counts of tokens."""
        for tokens in [*([] if self.tokens is None else [self.tokens]), *self.class_tokens.values()]:
            counts = (tokens.unigrams, tokens.bigrams, tokens.lengths, np.array(tokens.n_rare))
            are_counts = all(np.isfinite(values).all() and (values >= 0).all() for values in counts)
            if not are_counts or tokens.unigrams.ndim != 1 or tokens.bigrams.ndim != 2 or tokens.bigrams.shape[1] != 3:
                yield Problem(self.name, "has counts of tokens that are no counts", code="E-NUMBER")
            elif len(tokens.bigrams) and tokens.bigrams[:, :2].max() >= len(tokens.unigrams):
                yield Problem(self.name, f"has pairs of tokens outside its vocabulary of {len(tokens.unigrams)}")

    def _class_token_problems(self) -> Iterator[Problem]:
        """Yield what is wrong with token counts by class, compared with the counts of all tokens."""
        whole, counts = self.tokens, self.class_counts
        if whole is None or counts is None:
            if self.class_tokens:
                missing = "of all" if whole is None else "of its classes"
                yield Problem(self.name, f"has counts of tokens by class, but no counts {missing}")
            return
        for number, tokens in self.class_tokens.items():
            of_class = f"tokens of class {self._class_name(number)}"
            if not 0 <= number < len(counts):
                yield Problem(self.name, f"has tokens of class number {number}, of {len(counts)} classes")
            elif tokens.unigrams.shape != whole.unigrams.shape or tokens.padding != whole.padding:
                text = f"{of_class} are of another vocabulary than those of all"
                yield Problem(self.name, text, code="E-MISMATCH")
            elif (tokens.unigrams > whole.unigrams * (1 + ROUNDING)).any():
                yield Problem(self.name, f"{of_class} are more than those of all", _AGAIN, "E-MISMATCH")
            elif (n := tokens.lengths.sum()) > counts[number] * (1 + ROUNDING):
                text = f"{of_class} are of {n:g} observations, and it says that there are {counts[number]:g}"
                yield Problem(self.name, text, _AGAIN)

    def _class_problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the statements by class."""
        n_classes = 0 if self.classes is None else len(self.classes)
        if len(set(self.classes or ())) < n_classes:
            yield Problem(self.name, "has a class twice", "give every class a name of its own", "E-TWICE")
        if unknown := [number for number in self.class_moments if not 0 <= number < n_classes]:
            yield Problem(self.name, f"has moments of class number {unknown[0]}, of {n_classes} classes")
        features = self.class_features
        if features is not None and (features.ndim != 2 or len(features) != n_classes):
            text = f"has features of shape {features.shape} for {n_classes} classes"
            yield Problem(self.name, text, code="E-SHAPE")
        if self.class_counts is not None:
            yield from self._count_problems(self.class_counts, n_classes)

    def _count_problems(self, counts: Array, n_classes: int) -> Iterator[Problem]:
        """Yield what is wrong with counts (C,) of the classes' observations, and with what is compared with them."""
        if len(counts) != n_classes:
            yield Problem(self.name, f"has {len(counts)} counts for {n_classes} classes", code="E-SHAPE")
        if self.own_error is not None and not 0 <= self.own_error <= 1:
            yield Problem(self.name, f"expected the share of its errors, found {self.own_error}", code="E-NUMBER")
        if not np.isfinite(counts).all() or (counts < 0).any():
            yield Problem(self.name, "has counts of classes that are no counts", code="E-NUMBER")
            return
        # Fewer are allowed: labels may be ignored.
        if counts.sum() > self.n_observations * (1 + ROUNDING):
            text = f"its classes have {counts.sum():g} observations, and it says that it has {self.n_observations:g}"
            yield Problem(self.name, text, _AGAIN, "E-MISMATCH")
        for number, moments in self.class_moments.items():
            n = moments.n_observations
            if 0 <= number < len(counts) and abs(n - counts[number]) > ROUNDING * n:
                text = (
                    f"moments of class {self._class_name(number)} are of {n:g} observations, and it says that there are"
                )
                yield Problem(self.name, f"{text} {counts[number]:g}", _AGAIN, "E-MISMATCH")
        yield from self._mixture_problems()

    def _mixture_problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the mixtures of classes, compared with the moments of the classes."""
        for number, parts in self.class_mixtures.items():
            whole, of_class = self.class_moments.get(number), f"parts of class {self._class_name(number)}"
            if whole is None or not parts or any(part.mean.shape != whole.mean.shape for part in parts):
                yield Problem(self.name, f"{of_class} are not those of its moments", _AGAIN)
                continue
            n = sum(part.n_observations for part in parts)
            if abs(n - whole.n_observations) > ROUNDING * whole.n_observations:
                text = f"{of_class} have {n:g} observations, and it has {whole.n_observations:g}"
                yield Problem(self.name, text, _AGAIN)

    def _class_name(self, number: int) -> str:
        return self.classes[number] if self.classes is not None and 0 <= number < len(self.classes) else str(number)
