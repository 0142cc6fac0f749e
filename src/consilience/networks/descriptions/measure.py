"""Measure what a site says of its network: one pass over its observations, in bounded memory.

Everything is summed by class, so that what may not leave can be left out at the end: which classes have too few
observations is known only when all have been seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from consilience.checks import Array, Labels, is_number
from consilience.core.caller import warn_caller
from consilience.errors import InputError, OptionError, WithheldWarning
from consilience.networks.descriptions.description import ChannelStatistics, Description, Moments, TokenCounts
from consilience.networks.descriptions.digest import network_digest
from consilience.networks.descriptions.disclosure import (
    MAX_CLASS_RANK,
    MAX_RANK,
    MIN_OBSERVATIONS,
    MIN_TOKENS,
    allowed_rank,
    is_remainder_said,
    least_class_observations,
    named,
    undescribed_classes,
    withheld_classes,
)
from consilience.networks.descriptions.layers import (
    MAX_LAYER_BYTES,
    MAX_LAYER_OBSERVATIONS,
    MAX_SAMPLE_ENTRIES,
    SPARE_SHARE,
    InputSample,
    factor_bytes,
    layer_statement,
    sample_size,
)
from consilience.networks.descriptions.mixtures import MAX_COORDINATES, MAX_ROWS, with_mixtures
from consilience.networks.descriptions.moments import MomentAccumulator
from consilience.networks.descriptions.observations import (
    Batch,
    are_binary,
    batches_of_data,
    class_names,
    could_be_classes,
    numbers_of_classes,
    reads_tokens,
    token_table,
)
from consilience.networks.descriptions.ranges import RangeAccumulator
from consilience.networks.descriptions.token_statistics import MAX_PAIRS, TokenAccumulator
from consilience.networks.fisher.information import Likelihood
from consilience.networks.module_inputs import precision_of
from consilience.networks.repair.partial_forward import evaluation_without_gradients, layer_order, not_finite_problem
from consilience.networks.synthetic.draws import SyntheticInputs
from consilience.networks.torch_modules import aliases_of_module, arrays_of_module, is_module

MAX_SCATTER_ENTRIES = 2**24
"""Entries of scatter matrices of all classes together that are kept whole (128 MiB); beyond, they are sketched. Chosen
by hand, for memory."""

MAX_CLASS_ENTRIES = 2**22
"""Numbers of the moments by class that leave at most (16 MiB in float32); beyond, their rank is reduced. Chosen by
hand: 26 classes of 784 numbers take a ninth of it."""

MIN_CLASS_RANK = 5
"""Moments by class whose rank would have to be less than this for their size are left out. Chosen by hand."""

MAX_TOKEN_ENTRIES = 2**24
"""Classes times vocabulary at most for counts of tokens by class (256 MiB while they are summed); beyond, tokens are
counted over all classes. Chosen by hand, for memory."""

MAX_CHANNEL_SUMS = 2**23
"""Sums of channels by class at most; beyond, channels are summed over all classes. Chosen by hand, for memory."""

CHANNEL_LAYERS = (_ConvNd, nn.Linear, _NormBase, nn.GroupNorm, nn.LayerNorm)
"""Layers whose outputs have channels: convolutions, linear layers, and normalisations."""


def measure_network(
    module: nn.Module,
    data: Any,
    *,
    n_observations: float | None,
    classes: int | Sequence[str] | None,
    example: Any,
    min_count: float,
    class_prior: Literal["own", "removed"],
    layers: bool | None,
    name: str,
) -> tuple[Description, Tensor | None]:
    """Return a network's description and its first inputs, None without data; `WithheldWarning` names what stays.

    Parameters
    ----------
    module : Module
        The network, as it will be sent. It is run in evaluation mode, and left as it is.
    data : (X, y), X, path, or iterable of batches
        The observations that it was trained on; see ``batches_of_data``. Read once. Default: only what is stated.
    n_observations : float
        Number of observations that it was trained on, where the data are some of them. Default: those in the data.
    classes : int or sequence of str
        Number or names of the classes, in the order of the outputs. Default: as many as there are outputs, named "0",
        "1", ...; two for one output with whole numbers 0 and 1; none without labels, or where labels are real numbers.
    example : Tensor
        An input, which says the shape where there are no data.
    min_count : float
        Fewer observations are not told of; 0 withholds nothing.
    class_prior : {"own", "removed"}
        Whether probabilities contain the frequencies of the site's classes, or not, as after training with a
        logit-adjusted loss.
    layers : bool
        Whether the Kronecker factors of the layers are said. Default: where all of them take 4 MiB at most.
    name : str
        Name in messages.

    Raises
    ------
    InputError
        For data that the network does not take, labels outside the classes, or fewer observations than `min_count`.
    OptionError
        For options that have another type or value.
    """
    if not is_module(module):
        raise InputError(name, f"expected a torch module, found a {type(module).__name__}", code="E-TYPE")
    if not is_number(min_count) or min_count < 0:
        raise OptionError("min_count", f"expected a number that is not negative, found {min_count!r}")
    if class_prior not in ("own", "removed"):
        raise OptionError("class_prior", f"expected 'own' or 'removed', found {class_prior!r}")
    if layers is not None and not isinstance(layers, bool):
        raise OptionError("layers", f"expected True, False or None, found {layers!r}")
    if n_observations is not None and not (is_number(n_observations) and n_observations > 0):
        raise InputError(
            "n_observations", f"expected a positive number of observations, found {n_observations!r}", code="E-NUMBER"
        )
    digest = network_digest(arrays_of_module(module), aliases_of_module(module))
    if data is None:
        if n_observations is None:
            raise OptionError("data", "needed to describe a network", "give (X, y), X or a loader, or n_observations")
        shape = tuple(example.shape[1:]) if isinstance(example, Tensor) else None
        names = class_names(classes, None)
        stated = Description(
            digest, float(n_observations), shape, classes=names, class_prior=class_prior, min_count=min_count, name=name
        )
        return stated, None
    first_inputs: Tensor | None = None
    measured: _Measurement | None = None
    with evaluation_without_gradients(module), ExitStack() as stack:
        for batch in batches_of_data(data, module):
            if measured is None:
                measured, first_inputs = _Measurement.start(module, batch, classes, stack, layers), batch.inputs[:2]
            measured.add(module, batch)
    assert measured is not None  # noqa: S101  (narrows the type; `batches_of_data` raises where there are none)
    described, left_out = measured.description(module, digest, n_observations, min_count)
    if left_out:
        warn_caller("; ".join(left_out), WithheldWarning)
    return replace(described, class_prior=class_prior, name=name), first_inputs


class _ChannelSums:
    """Sums over the output of a layer by class (groups, channels), about the means of the first batch.

    Within an observation mean and variance are those of torch, over observations sums are float64.
    """

    def __init__(self, means: Tensor, n_groups: int) -> None:
        """Start without values; `means` (n, channels) of some observations say about what sums are taken."""
        self.centre = means.mean(dim=0)  # (channels,)
        self.counts = torch.zeros(n_groups, dtype=torch.float64)  # of observations times positions
        self.sums = torch.zeros(n_groups, len(self.centre), dtype=torch.float64)
        self.squares = torch.zeros_like(self.sums)

    def add(self, means: Tensor, variances: Tensor, n_positions: int, groups: Tensor) -> None:
        """Add means and variances (n, channels) over the positions of observations of some groups (n,)."""
        centred = means - self.centre
        self.sums.index_add_(0, groups, n_positions * centred)
        self.squares.index_add_(0, groups, n_positions * (variances + centred.square()))
        self.counts.index_add_(0, groups, torch.full((len(means),), float(n_positions), dtype=torch.float64))

    def statistics(self, groups: Labels) -> ChannelStatistics:
        """Return mean and variance over some groups; over all where they are not told apart."""
        if len(self.counts) == 1:
            groups = np.zeros(1, dtype=np.int64)
        count = self.counts[groups].sum()
        shift = self.sums[groups].sum(dim=0) / count
        variance = self.squares[groups].sum(dim=0) / count - shift.square()
        mean = self.centre + shift
        return ChannelStatistics(mean.numpy(), variance.clamp(min=0.0).numpy())


def _over_positions(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance (n, channels) of outputs (n, channels, positions), float64 on the CPU."""
    means = values.mean(dim=2)
    # Twice as fast as torch.var_mean.
    variances = torch.linalg.vector_norm(values - means[:, :, None], dim=2).square() / values.shape[2]
    return means.to(device="cpu", dtype=torch.float64), variances.to(device="cpu", dtype=torch.float64)


def _channel_axis(layer: nn.Module) -> int:
    """Return the axis of the channels in the output of a layer."""
    if isinstance(layer, nn.Linear):
        return -1
    return -len(layer.normalized_shape) if isinstance(layer, nn.LayerNorm) else 1


@dataclass(eq=False)
class _Measurement:
    """Sums over the observations of a site so far, by class; the last group has those without a class.

    Parameters
    ----------
    classes
        Names of the classes; None without classes or labels.
    are_labelled
        Whether there are labels of classes.
    shape
        Of an input.
    is_token
        Whether inputs are tokens.
    class_rank
        Directions that the moments of a class may have for their size; None where there are no moments by class.
    counts
        Observations of every class, and at the end those without one (C + 1,).
    notes
        What is not measured, a line each.
    make_accumulator
        Makes what sums the moments of a class.
    sample
        Inputs that the factors of layers are computed from; None where they are not said.
    table : InputSample or None
        Inputs that classes are split by, where they are rows of numbers.
    moments, ranges, tokens, channels, feature_sums
        What was summed so far, by class where it can be.
    wrong
        Observations of every class that the network takes for another, of one output as log odds and as a probability
        (2, C + 1); None where outputs are of no class.
    groups
        The class of every observation of the batch that passes through the network, for what is hooked into it.
    n_channel_sums
        Sums of channels in memory.
    has_log_odds
        Whether one output of two classes is no probability.
    n_unnamed
        Outputs, where labels are held as real numbers and all so far could be numbers of classes; else 0.
    is_taken_for_binary
        Whether nobody named classes, and the first labels of the one output were whole numbers 0 and 1.
    """

    classes: tuple[str, ...] | None
    are_labelled: bool
    shape: tuple[int, ...]
    is_token: bool
    class_rank: int | None
    counts: Labels
    notes: tuple[str, ...]
    make_accumulator: Callable[[], MomentAccumulator]
    moments: dict[int, MomentAccumulator] = field(default_factory=dict)
    ranges: dict[int, RangeAccumulator] = field(default_factory=dict)
    tokens: TokenAccumulator | None = None
    sample: InputSample | None = None
    table: InputSample | None = None
    channels: dict[str, _ChannelSums] = field(default_factory=dict)
    feature_sums: Tensor | None = None
    wrong: Array | None = None
    groups: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    n_channel_sums: int = 0
    n_unnamed: int = 0
    is_taken_for_binary: bool = False
    has_log_odds: bool = False

    @classmethod
    def start(
        cls,
        module: nn.Module,
        batch: Batch,
        classes: int | Sequence[str] | None,
        stack: ExitStack,
        layers: bool | None,
    ) -> _Measurement:
        """Return a measurement without observations, hooked into a module until `stack` ends."""
        outputs = output_tensor(module(_on_device(batch.inputs[:2], module)))
        n_outputs = None
        if outputs is not None and outputs.ndim in (1, 2):  # one number for each input may come without an axis
            n_outputs = 1 if outputs.ndim == 1 else int(outputs.shape[1])
        are_real = batch.labels is not None and _kind(batch.labels) == "f"
        names, is_taken_for_binary = None, False
        if classes is not None:
            names = class_names(classes, n_outputs)
        elif batch.labels is not None and _kind(batch.labels) in "UO":
            raise InputError(
                batch.name, "has labels that are names", "give all names as classes=, in their order", "E-NUMBER"
            )
        elif batch.labels is not None and not are_real:
            names = class_names(None, n_outputs)
            if names is None and n_outputs is None:
                text = "needed, since the outputs of this network are no vector"
                raise OptionError("classes", text, "give their number or names, or leave the labels out")
            if n_outputs == 1 and are_binary(batch.labels):
                names, is_taken_for_binary = class_names(2, n_outputs), True
        notes = []
        if is_taken_for_binary:
            notes.append("one output and whole numbers 0 and 1: described as two classes; real numbers are targets")
        elif names is None and batch.labels is not None and not are_real:
            notes.append("labels not counted: the network has one output; classes=2 counts them")
        shape, is_token = tuple(batch.inputs.shape[1:]), reads_tokens(module, batch.inputs)
        n_classes = 0 if names is None or batch.labels is None else len(names)
        d = int(np.prod(shape))
        class_rank = min(MAX_CLASS_RANK, MAX_CLASS_ENTRIES // (n_classes * d) - 2) if n_classes else None
        if class_rank is not None and class_rank < min(MIN_CLASS_RANK, d):
            class_rank = None
        n_accumulators = 1 if class_rank is None else n_classes
        is_whole = n_accumulators * d**2 <= MAX_SCATTER_ENTRIES
        sketch_rank = None if is_whole else MAX_RANK if class_rank is None else class_rank
        measured = cls(
            classes=names,
            are_labelled=n_classes > 0,
            shape=shape,
            is_token=is_token,
            class_rank=class_rank,
            counts=np.zeros(n_classes + 1, dtype=np.int64),
            notes=tuple(notes),
            make_accumulator=lambda: MomentAccumulator(d, sketch_rank),
            n_unnamed=n_outputs if are_real and names is None and n_outputs is not None else 0,
            is_taken_for_binary=is_taken_for_binary,
        )
        if is_token and len(shape) == 1:
            table = token_table(module)
            assert table is not None  # noqa: S101  (narrows the type; whoever reads tokens has a table)
            n_groups = len(measured.counts)
            is_by_class = n_groups * table.num_embeddings <= MAX_TOKEN_ENTRIES
            measured.tokens = TokenAccumulator(table.num_embeddings, table.padding_idx, n_groups if is_by_class else 1)
        if n_classes and n_outputs in (n_classes, 1):
            measured.wrong = np.zeros((2, n_classes + 1))
            if class_rank is not None and not is_token and len(shape) == 1 and d <= MAX_COORDINATES:
                measured.table = InputSample(int((1 + SPARE_SHARE) * MAX_ROWS))
        measured._sample_inputs(module, d, layers)
        measured._hook(module, batch, n_outputs, stack)
        return measured

    def _sample_inputs(self, module: nn.Module, d: int, layers: bool | None) -> None:
        """Keep a sample of inputs (n, d) for the factors of layers, where these are asked for or small."""
        if layers is False:
            return
        n_bytes = factor_bytes(module)
        if layers is None and n_bytes > MAX_LAYER_BYTES:
            text = (
                f"second moments of layers would take {n_bytes / 2**20:.3g} MiB and are left out; layers=True says them"
            )
            self.notes = (*self.notes, text)
        elif n_bytes:
            capacity = min(int((1 + SPARE_SHARE) * MAX_LAYER_OBSERVATIONS), MAX_SAMPLE_ENTRIES // max(d, 1))
            self.sample = InputSample(max(1, capacity))

    def _hook(self, module: nn.Module, batch: Batch, n_outputs: int | None, stack: ExitStack) -> None:
        """Record the outputs of layers with channels, and what the last layer reads."""
        layers = {path: part for path, part in module.named_modules() if isinstance(part, CHANNEL_LAYERS)}
        for path, part in layers.items():
            stack.callback(part.register_forward_hook(self._recorder(path, _channel_axis(part))).remove)
        if not self.are_labelled:
            return
        with torch.no_grad():
            last = layer_order(module, _on_device(batch.inputs[:2], module)).outputs
        head = module.get_submodule(next(iter(last))) if len(last) == 1 else None
        if isinstance(head, nn.Linear) and head.out_features == n_outputs:
            self.feature_sums = torch.zeros(len(self.counts), head.in_features, dtype=torch.float64)
            stack.callback(head.register_forward_pre_hook(self._record_features).remove)

    def _recorder(self, path: str, axis: int) -> Callable[..., None]:
        """Return a hook that adds the outputs of a layer to its sums."""

        def record(_part: nn.Module, _arguments: Any, output: Any) -> None:
            n = len(self.groups)
            if not isinstance(output, Tensor) or not n or output.ndim < 2:
                return
            if len(output) != n:  # the first axis is not that of the observations
                return
            values = output.movedim(axis, 1).flatten(2) if output.ndim > 2 else output[:, :, None]
            means, variances = _over_positions(values)  # (n, channels) each
            if not torch.isfinite(means).all():
                raise InputError(not_finite_problem(path))
            groups = self.groups
            if path not in self.channels:
                self.n_channel_sums += values.shape[1] * len(self.counts)
                n_groups = len(self.counts) if self.n_channel_sums <= MAX_CHANNEL_SUMS else 1
                self.channels[path] = _ChannelSums(means, n_groups)
            if len(self.channels[path].counts) == 1:
                groups = torch.zeros_like(groups)
            self.channels[path].add(means, variances, values.shape[2], groups)

        return record

    def _record_features(self, _part: nn.Module, arguments: tuple[Any, ...]) -> None:
        """Add what the last layer reads to the sums of its class."""
        features = arguments[0]
        if self.feature_sums is not None and features.ndim == 2 and len(features) == len(self.groups):
            self.feature_sums.index_add_(0, self.groups, features.to(device="cpu", dtype=torch.float64))

    def add(self, module: nn.Module, batch: Batch) -> None:
        """Add observations."""
        n = len(batch.inputs)
        if self.n_unnamed and not could_be_classes(batch.labels, self.n_unnamed):
            self.n_unnamed = 0
        without_class = len(self.counts) - 1
        groups = np.full(n, without_class)
        if self.is_taken_for_binary and not are_binary(batch.labels):
            text = "has labels beside 0 and 1, which were all before: two classes, or numbers to predict?"
            raise InputError(batch.name, text, "give numbers to predict as real numbers")
        if self.are_labelled and self.classes is not None:
            numbers = numbers_of_classes(batch.labels, self.classes, batch.name)
            groups = np.where(numbers < 0, without_class, numbers)
        self.counts += np.bincount(groups, minlength=len(self.counts))
        self.groups = torch.from_numpy(groups)
        self._count_errors(module(_on_device(batch.inputs, module)), groups)
        for sample in (self.sample, self.table):
            if sample is not None:
                sample.add(batch.inputs, groups)
        if self.is_token:
            if self.tokens is not None:
                self.shape = (max(self.shape[0], batch.inputs.shape[1]),)
                self.tokens.add(batch.inputs.cpu().numpy(), groups)
            return
        rows = batch.inputs.reshape(n, -1).to(device="cpu", dtype=torch.float64).numpy()  # (n, d)
        for group in np.unique(groups).tolist():
            self.ranges.setdefault(group, RangeAccumulator()).add(rows[groups == group])
        for group in np.unique(groups) if self.class_rank is not None else [without_class]:
            in_group = rows[groups == group] if self.class_rank is not None else rows
            if int(group) not in self.moments:
                self.moments[int(group)] = self.make_accumulator()
            self.moments[int(group)].add(in_group)

    def _count_errors(self, answer: Any, groups: Labels) -> None:
        """Count the observations that the network takes for another class than theirs."""
        if self.wrong is None:
            return
        outputs = output_tensor(answer)
        if outputs is None or len(outputs) != len(groups):
            self.wrong = None
            return
        outputs = outputs.reshape(len(groups), -1)
        if outputs.shape[1] == 1 and bool(((outputs < 0) | (outputs > 1)).any()):
            self.has_log_odds = True
        for row, classes in zip(self.wrong, _taken(outputs), strict=True):
            row += np.bincount(groups[classes.cpu().numpy() != groups], minlength=len(row))

    def _split_classes(self, module: nn.Module, described: Description, min_count: float) -> Description:
        """Return a description whose classes are split where one Gaussian for each says too little."""
        if self.table is None or not described.class_moments:
            return described
        groups = np.array(sorted(described.class_moments))
        n = sample_size(int(self.counts[groups].sum()), int(self.table.capacity / (1 + SPARE_SHARE)), min_count)
        drawn = self.table.labelled_rows(groups, n)
        if drawn is None:
            return described

        def error_on(synthetic: SyntheticInputs) -> float:
            inputs = _on_device(synthetic.inputs.to(precision_of(module)), module)
            with evaluation_without_gradients(module):
                outputs = output_tensor(module(inputs))
            assert outputs is not None  # noqa: S101  (narrows the type; its errors were counted)
            labels = np.asarray(synthetic.labels)
            taken = _taken(outputs.reshape(len(labels), -1))[0 if self.has_log_odds else 1]
            return float(np.mean(taken.cpu().numpy() != labels))

        rows = drawn[0].to(torch.float64).numpy()
        return with_mixtures(described, rows, drawn[1], error_on, min_count)

    def _own_error(self, labels: Sequence[int]) -> float | None:
        """Return the share of errors in some classes, to three digits; None where nothing is known of any."""
        if self.wrong is None or not len(labels):
            return None
        of_output = self.wrong[0 if self.has_log_odds else 1]
        return float(f"{of_output[list(labels)].sum() / self.counts[list(labels)].sum():.3g}")

    def description(
        self, module: nn.Module, digest: str, n_observations: float | None, min_count: float
    ) -> tuple[Description, list[str]]:
        """Return what may leave, and what does not, a line each."""
        n_seen, counts = int(self.counts.sum()), self.counts[:-1]
        if n_observations is not None and n_observations < n_seen:
            text = f"is {n_observations:g}, but data has {n_seen} observations"
            raise InputError("n_observations", text, "give the number of all that it was trained on", "E-FEW")
        if n_seen < min_count:
            raise InputError(
                "data",
                f"a description of {n_seen} observations tells of single ones",
                f"give {min_count:g} at least",
                "E-FEW",
            )
        withheld = withheld_classes(counts, min_count)
        n_withheld = int(counts[withheld].sum())
        if n_withheld == (n_seen if n_observations is None else n_observations):
            text = f"{n_seen} observations, of every class fewer than {min_count:g}, so that all of them are withheld"
            raise InputError("data", text, "give n_observations= alone, without data, or min_count=0")
        left_out: list[str] = []
        notes = list(self.notes)
        names = () if self.classes is None else self.classes
        if self.n_unnamed:
            left_out.append(
                "labels are real numbers, so that no classes are described; where they are classes, give integers, "
                f"such as y.astype(int), or classes={max(self.n_unnamed, 2)}"
            )
        if len(withheld):
            listed = named([names[number] for number in withheld])
            left_out.append(
                f"{len(withheld)} of {len(counts)} classes have fewer than {min_count:g} observations and are withheld:"
                f" {listed} (min_count=0 keeps them)"
            )
        undescribed = undescribed_classes(counts, min_count)
        if len(undescribed) > len(withheld):
            rest = [names[number] for number in undescribed if number not in withheld]
            notes.append(
                f"fewer than {least_class_observations(min_count):g} observations, so that only their count is said: "
                f"{named(rest)}"
            )
        # Groups that all other statistics are of: those not withheld, or those whose classes are described.
        said = np.setdiff1d(np.arange(len(self.counts)), withheld)
        if self.are_labelled and not is_remainder_said(counts, int(self.counts[-1]), min_count):
            said = np.setdiff1d(np.flatnonzero(self.counts[:-1]), undescribed)
        n_said = int(self.counts[said].sum())
        # Sums that do not tell classes apart, for want of memory, leave the site whole or not at all.
        is_all = len(np.setdiff1d(np.flatnonzero(self.counts), said)) == 0
        is_described = n_said >= least_class_observations(min_count)
        has_moments = is_described and not self.is_token and (is_all or self.class_rank is not None)
        if is_enough := n_said >= MIN_OBSERVATIONS:
            channels = {
                path: sums.statistics(said) for path, sums in self.channels.items() if is_all or len(sums.counts) > 1
            }
            if not is_all and self.class_rank is None and not self.is_token:
                left_out.append(
                    "classes are too many and inputs too large to leave some out of the moments of all inputs"
                )
        else:
            channels = {}
            range_alone = "" if is_described else "moments and "
            of_all = f"{n_said} observations" if n_said else f"none of {n_seen} observations may enter: they"
            left_out.append(
                f"{of_all} are fewer than {MIN_OBSERVATIONS}, so that {range_alone}range of all inputs "
                "and statistics of channels and layers are left out"
            )
        tokens, class_tokens = self._token_counts(said, is_all, min_count, left_out)
        if self.tokens is not None and self.tokens.has_too_many_pairs:
            notes.append(f"pairs of neighbouring tokens are left out: there are more than {MAX_PAIRS:,}")
        class_moments = self._class_moments(counts, min_count, notes)
        said_of_layers: dict[str, Any] = {}
        if self.sample is not None and is_enough:
            # Outputs without classes are means, of which only the scale of B depends on a deviation.
            likelihood: Likelihood = "gaussian" if self.classes is None else "categorical"
            n_entering = sample_size(n_said, int(self.sample.capacity / (1 + SPARE_SHARE)), min_count)
            statement = layer_statement(module, self.sample, said, n_entering, MIN_OBSERVATIONS, min_count, likelihood)
            notes += statement.notes
            if statement.layers:
                said_of_layers = {
                    "layers": statement.layers,
                    "layer_observations": float(statement.n_observations),
                    "layer_likelihood": likelihood,
                }
        described = Description(
            digest=digest,
            n_observations=float(n_seen if n_observations is None else n_observations) - n_withheld,
            input_shape=self.shape,
            input_kind="tokens" if self.is_token else "real",
            input_range=self._range(said, min_count) if is_enough and not self.is_token else None,
            inputs=self._all_moments(said, n_said) if has_moments else None,
            classes=self.classes,
            class_counts=np.where(counts < min_count, 0, counts).astype(np.float64) if self.are_labelled else None,
            withheld=tuple(names[number] for number in withheld),
            class_moments=class_moments,
            channels=channels,
            tokens=tokens,
            class_tokens=class_tokens,
            class_features=self._class_features(counts, min_count),
            own_error=self._own_error(sorted({*class_moments, *class_tokens})),
            min_count=float(min_count),
            notes=tuple(notes),
            **said_of_layers,
        )
        described = self._split_classes(module, described, min_count)
        return as_stored(described), left_out

    def _range(self, said: Labels, min_count: float) -> tuple[float, float] | None:
        """Return the range of the inputs of some groups together."""
        total = RangeAccumulator()
        for group, of_group in self.ranges.items():
            if group in said:
                total.merge(of_group)
        return total.range(min_count)

    def _all_moments(self, said: Labels, n: int) -> Moments:
        """Return the moments of the inputs of some groups together."""
        if self.class_rank is None:
            (whole,) = self.moments.values()
            return whole.moments(allowed_rank(whole.n, MAX_RANK))
        groups = [group for group in sorted(self.moments) if group in said]
        total = self.make_accumulator()
        total.widen(MAX_RANK)
        for group in groups:
            total.merge(self.moments[group])
        return total.moments(allowed_rank(n, MAX_RANK))

    def _class_moments(self, counts: Labels, min_count: float, notes: list[str]) -> dict[int, Moments]:
        """Return the moments of every class that has enough observations, and note where their rank is reduced."""
        names = () if self.classes is None else self.classes
        if self.is_token or not self.are_labelled:
            return {}
        if self.class_rank is None:
            notes.append("no moments by class, which would be too large")
            return {}
        numbers = np.flatnonzero(counts >= least_class_observations(min_count))
        moments = {
            int(number): self.moments[int(number)].moments(allowed_rank(counts[number], self.class_rank))
            for number in numbers
        }
        most = min(MAX_CLASS_RANK, int(np.prod(self.shape)))
        if reduced := [f"{names[n]} ({len(m.factor)})" for n, m in moments.items() if len(m.factor) < most]:
            notes.append(f"directions of the moments of classes reduced from {most}: {named(reduced)}")
        return moments

    def _token_counts(
        self, said: Labels, is_all: bool, min_count: float, left_out: list[str]
    ) -> tuple[TokenCounts | None, dict[int, TokenCounts]]:
        """Return the counts of tokens of some groups together and of every class, and note what is left out."""
        if self.tokens is None:
            return None, {}
        # Observations without a class are the last group, and the only one where classes are not told apart.
        described = np.setdiff1d(self.tokens.described_groups(min_count), [self.tokens.n_groups - 1])
        if self.tokens.n_groups < len(self.counts):
            if not is_all:
                left_out.append("classes and tokens are too many to leave some classes out of the counts of tokens")
                return None, {}
            said = np.zeros(1, dtype=np.int64)
        tokens, class_tokens = self.tokens.result(said, described, min_count)
        if tokens is None:
            left_out.append(f"fewer than {MIN_TOKENS} tokens, so that their counts are left out")
        return tokens, class_tokens

    def _class_features(self, counts: Labels, min_count: float) -> Array | None:
        """Return the means (C, h) of what the last layer reads; NaN for classes of too few observations."""
        is_enough = counts >= least_class_observations(min_count)
        if self.feature_sums is None or not is_enough.any():
            return None
        means = self.feature_sums[:-1].numpy() / np.maximum(counts, 1)[:, None]
        return np.where(is_enough[:, None], means, np.nan)


def _taken(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the classes (n,) that outputs (n, k) stand for; one output is log odds, or a probability."""
    if outputs.shape[1] > 1:
        return (outputs.argmax(dim=1),) * 2
    return (outputs[:, 0] > 0.0).long(), (outputs[:, 0] > 0.5).long()


def output_tensor(output: Any) -> Tensor | None:
    """Return the tensor of outputs in what a network returns: itself, its ``logits``, or the first of several."""
    if isinstance(output, Mapping):
        output = output.get("logits", next(iter(output.values()), None))
    elif isinstance(output, tuple | list) and output:
        output = output[0]
    output = getattr(output, "logits", output)
    return output if isinstance(output, Tensor) else None


def as_stored(description: Description) -> Description:
    """Return a description in the precision of its file, so that a fusion of objects is that of their files."""

    def stored(values: Array) -> Array:
        return np.asarray(values, dtype=np.float32).astype(np.float64)

    def stored_moments(moments: Moments) -> Moments:
        return replace(
            moments, mean=stored(moments.mean), factor=stored(moments.factor), residual=stored(moments.residual)
        )

    def stored_tokens(tokens: TokenCounts) -> TokenCounts:
        return replace(tokens, unigrams=stored(tokens.unigrams), lengths=stored(tokens.lengths))

    features = description.class_features
    return replace(
        description,
        inputs=None if description.inputs is None else stored_moments(description.inputs),
        class_moments={number: stored_moments(moments) for number, moments in description.class_moments.items()},
        class_mixtures={
            number: tuple(map(stored_moments, parts)) for number, parts in description.class_mixtures.items()
        },
        channels={
            path: ChannelStatistics(stored(channels.mean), stored(channels.variance))
            for path, channels in description.channels.items()
        },
        tokens=None if description.tokens is None else stored_tokens(description.tokens),
        class_tokens={number: stored_tokens(tokens) for number, tokens in description.class_tokens.items()},
        class_features=None if features is None else stored(features),
    )


def _on_device(inputs: Tensor, module: nn.Module) -> Tensor:
    """Return inputs on the device of a module."""
    like = next((tensor for tensor in (*module.parameters(), *module.buffers())), inputs)
    return inputs.to(like.device)


def _kind(labels: Any) -> str:
    """Return NumPy's letter for the type of labels."""
    if isinstance(labels, Tensor):
        return "f" if labels.is_floating_point() else "i"
    return str(np.asarray(labels).dtype.kind)
