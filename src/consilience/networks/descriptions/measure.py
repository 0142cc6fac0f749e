"""Measure what a site says of its network: one pass over its observations, in bounded memory.

Everything is summed by class, so that what may not leave can be left out at the end: which classes have too few
observations is known only when all have been seen. Each statistic sums and states its own (`statistic.Statistic`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from consilience.checks import is_number
from consilience.core.caller import warn_caller
from consilience.core.min_count import MIN_COUNT
from consilience.errors import InputError, OptionError, UncomparedWarning, UnsupportedError, WithheldWarning, reason_of
from consilience.networks.descriptions.channels import ChannelStatistic, FeatureMeans
from consilience.networks.descriptions.description import Description
from consilience.networks.descriptions.disclosure import MIN_OBSERVATIONS, Leaving, least_class_observations, named
from consilience.networks.descriptions.input_parts import as_arguments
from consilience.networks.descriptions.layers import LayerFactors
from consilience.networks.descriptions.mixtures import MAX_COORDINATES, SplitClasses
from consilience.networks.descriptions.moments import InputMomentStatistic
from consilience.networks.descriptions.observations import (
    Batch,
    LabelsOfOutputs,
    are_binary,
    are_one_hot,
    batches_of_data,
    class_names,
    could_be_classes,
    kind_of_labels,
    numbers_of_classes,
)
from consilience.networks.descriptions.output_labels import OutputLabelStatistic, output_labels_note
from consilience.networks.descriptions.positions import NextTokenLoss, PositionCounts
from consilience.networks.descriptions.statistic import ErrorCounts, RangeStatistic, Setting, Statistic, on_device
from consilience.networks.descriptions.tokens import TokenStatistic
from consilience.networks.descriptions.whole_columns import WholeColumns, columns_of_whole_numbers
from consilience.networks.example import Example, as_example
from consilience.networks.fisher.information import network_digest
from consilience.networks.output_layout import OutputLayout, layout_of, token_table
from consilience.networks.repair.partial_forward import call_module, evaluation_without_gradients
from consilience.networks.torch_modules import aliases_of_module, arrays_of_module, is_module


def measure_network(
    module: nn.Module,
    data: Any,
    *,
    n_observations: float | None,
    classes: int | Sequence[str] | None,
    example: Any,
    min_count: float | None,
    class_prior: Literal["own", "removed"] | None,
    layers: bool | None,
    name: str,
) -> tuple[Description, Any]:
    """Return a network's description and its first inputs, None without data; `WithheldWarning` names what stays.

    Options are as `consilience.describe` takes them; `data` are read once, and the network is left as it is.
    """
    if not is_module(module):
        raise InputError(name, f"expected a torch module, found a {type(module).__name__}", code="E-TYPE")
    min_count = MIN_COUNT if min_count is None else min_count
    class_prior = "own" if class_prior is None else class_prior
    _refuse_options(n_observations, min_count, class_prior, layers)
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
    first_inputs: Any = None
    measured: _Measurement | None = None
    with evaluation_without_gradients(module), ExitStack() as hooks:
        for batch in batches_of_data(data, module):
            if measured is None:
                measured = _Measurement(module, batch, classes, layers, hooks)
                first_inputs = measured.first_inputs
            for piece in batch.pieces(measured.rows_at_once):
                measured.add(piece)
    assert measured is not None  # noqa: S101  (narrows the type; `batches_of_data` raises where there are none)
    leaving = measured.leaving(n_observations, min_count)
    described = measured.description(digest, n_observations, leaving)
    if leaving.left_out:
        warn_caller("; ".join(leaving.left_out), WithheldWarning)
    return replace(described, class_prior=class_prior, name=name), first_inputs


def _refuse_options(n_observations: Any, min_count: Any, class_prior: Any, layers: Any) -> None:
    """Raise for options that have another type or value than they may have."""
    if not is_number(min_count) or min_count < 0:
        raise OptionError("min_count", f"expected a number that is not negative, found {min_count!r}")
    if class_prior not in ("own", "removed"):
        raise OptionError("class_prior", f"expected 'own' or 'removed', found {class_prior!r}")
    if layers is not None and not isinstance(layers, bool):
        raise OptionError("layers", f"expected True, False or None, found {layers!r}")
    if n_observations is not None and not (is_number(n_observations) and n_observations > 0):
        text = f"expected a positive number of observations, found {n_observations!r}"
        raise InputError("n_observations", text, code="E-NUMBER")


class _Measurement:
    """The statistics of a site over its observations so far, by class; the last group has those without a class.

    They hook themselves into the network until `hooks` ends. The first batch is looked at, and not added.
    """

    def __init__(
        self,
        module: nn.Module,
        batch: Batch,
        classes: int | Sequence[str] | None,
        layers: bool | None,
        hooks: ExitStack,
    ) -> None:
        first = as_arguments(batch.parts, on_device(batch.inputs[:2], module), batch.padding)
        layout, notes = _layout_of(module, first, batch)
        self._layout = layout if layout is not None and layout.has_positions else None
        # Observations that pass through the network at once, of many outputs by position; None for all of a batch.
        self.rows_at_once = None if self._layout is None else self._layout.inputs_at_once
        given, batch = batch, _without_other_labels(batch, layout)
        n_outputs = _number_of_outputs(call_module(module, first)) if self._layout is None else self._layout.size
        is_named = batch.labels is not None and kind_of_labels(batch.labels) != "f"
        self._is_taken_for_binary = classes is None and is_named and n_outputs == 1 and are_binary(batch.labels)
        """Whether nobody named classes, and the first labels of the one output were whole numbers 0 and 1."""
        stated = 2 if self._is_taken_for_binary else classes
        names = _names_of_classes(batch, stated, n_outputs)
        is_said = is_named or batch.labels is None or names is not None or self._layout is not None
        self._n_unnamed = 0 if is_said else n_outputs or 0
        """Outputs, where labels are held as real numbers and all so far could be numbers of classes; else 0."""
        are_labelled = names is not None and batch.labels is not None
        has_rows = self._layout is None  # one for each observation
        self._setting = Setting(
            module,
            on_device(batch.inputs[:2], module),
            n_outputs if has_rows else None,
            names,
            are_labelled and has_rows,
            not batch.inputs.is_floating_point(),
            hooks,
            batch.parts,
            batch.padding,
            self._layout,
        )
        self.first_inputs = self._setting.arguments(self._setting.first)
        self._counts = np.zeros(self._setting.n_groups, dtype=np.int64)
        factors = LayerFactors(self._setting, bool(layers))
        self._notes = (*self._label_notes(is_named), *factors.notes, *notes)
        self._statistics = [*_statistics_of(self._setting, batch, are_labelled), factors]
        if layout is not None and len(layout.widths) > 1 and isinstance(given.labels, LabelsOfOutputs):
            self._statistics.append(OutputLabelStatistic(layout, given))

    def _label_notes(self, is_named: bool) -> tuple[str, ...]:
        """Return what is assumed of labels."""
        if self._is_taken_for_binary:
            return ("one output and whole numbers 0 and 1: described as two classes; real numbers are targets",)
        if self._setting.classes is None and is_named:
            return ("labels not counted: the network has one output; `classes=2` counts them",)
        return ()

    def add(self, batch: Batch) -> None:
        """Add observations."""
        without_class = len(self._counts) - 1
        groups = np.full(len(batch.inputs), without_class)
        if self._n_unnamed and not could_be_classes(batch.labels, self._n_unnamed):
            self._n_unnamed = 0
        if self._is_taken_for_binary and not are_binary(batch.labels):
            text = "has labels other than 0 and 1, where all before were 0 or 1: two classes, or numbers to predict?"
            raise InputError(batch.name, text, "give numbers to predict as real numbers")
        if self._setting.are_labelled and self._setting.classes is not None:
            numbers = numbers_of_classes(batch.labels, self._setting.classes, batch.name)
            groups = np.where(numbers < 0, without_class, numbers)
        self._counts += np.bincount(groups, minlength=len(self._counts))
        for statistic in self._statistics:
            statistic.begin(groups)
        asked = as_example(batch.asked).changed(lambda tensor: on_device(tensor, self._setting.module))
        answer = call_module(self._setting.module, asked)
        for statistic in self._statistics:
            statistic.add(batch, groups, answer)

    def leaving(self, n_observations: float | None, min_count: float) -> Leaving:
        """Return what may leave; raise InputError where nothing may."""
        leaving = Leaving(self._counts, self._setting.are_labelled, min_count)
        n_seen, withheld = int(self._counts.sum()), leaving.withheld
        if n_observations is not None and n_observations < n_seen:
            text = f"is {n_observations:g}, but data has {n_seen} observations"
            raise InputError("n_observations", text, "give the number of all that it was trained on", "E-FEW")
        if n_seen < min_count:
            text = f"a description of {n_seen} observations discloses single ones"
            raise InputError("data", text, f"give {min_count:g} at least", "E-FEW")
        # Of observations that are all withheld not even the number may be said.
        if int(leaving.by_class[withheld].sum()) == (n_seen if n_observations is None else n_observations):
            text = f"{n_seen} observations, of every class fewer than {min_count:g}, so that all of them are withheld"
            raise InputError("data", text, "give `n_observations=` alone, without data, or `min_count=0`")
        if self._n_unnamed:
            leaving.left_out.append(
                "labels are real numbers, so that no classes are described; where they are classes, give integers, "
                f"such as `y.astype(int)`, or `classes={max(self._n_unnamed, 2)}`"
            )
        if len(withheld):
            listed = named([(self._setting.classes or ())[number] for number in withheld])
            leaving.left_out.append(
                f"{len(withheld)} of {len(leaving.by_class)} classes have fewer than {min_count:g} observations and are"
                f" withheld: {listed} (`min_count=0` keeps them)"
            )
        if not leaving.is_enough:
            n_said, range_alone = leaving.n_said, "" if leaving.is_described else "moments and "
            of_all = f"{n_said} observations" if n_said else f"none of {n_seen} observations may enter: they"
            leaving.left_out.append(
                f"{of_all} are fewer than {MIN_OBSERVATIONS}, so that {range_alone}range of all inputs "
                "and statistics of channels and layers are left out"
            )
        return leaving

    def description(self, digest: str, n_observations: float | None, leaving: Leaving) -> Description:
        """Return what may leave."""
        setting, names, min_count = self._setting, self._setting.classes or (), leaving.min_count
        n_seen, counts, withheld = int(self._counts.sum()), leaving.by_class, leaving.withheld
        notes = list(self._notes)
        if len(leaving.undescribed) > len(withheld):
            rest = [names[number] for number in leaving.undescribed if number not in withheld]
            least = f"{least_class_observations(min_count):g}"
            notes.append(f"fewer than {least} observations, so that only their count is said: {named(rest)}")
        described = Description(
            digest=digest,
            n_observations=float(n_seen if n_observations is None else n_observations) - int(counts[withheld].sum()),
            input_shape=setting.shape,
            input_kind="tokens" if setting.is_token else "real",
            parts=setting.parts,
            classes=setting.classes,
            class_counts=np.where(counts < min_count, 0, counts).astype(np.float64) if setting.are_labelled else None,
            withheld=tuple(names[number] for number in withheld),
            min_count=float(min_count),
            notes=tuple(notes),
        )
        # In this order: some statistics read what others stated.
        for statistic in self._statistics:
            described = statistic.state(described, leaving)
        return described.stored()


def _number_of_outputs(answer: Any) -> int | None:
    """Return how many numbers an answer has; None where it is no vector."""
    if not isinstance(answer, Tensor) or answer.ndim not in (1, 2):
        return None
    return 1 if answer.ndim == 1 else int(answer.shape[1])  # one number for each input may come without an axis


def _names_of_classes(
    batch: Batch, classes: int | Sequence[str] | None, n_outputs: int | None
) -> tuple[str, ...] | None:
    """Return the names of the classes; None without classes or labels."""
    if classes is not None:
        return class_names(classes, n_outputs)
    if batch.labels is None:
        return None
    if kind_of_labels(batch.labels) == "f":
        if are_one_hot(batch.labels, n_outputs):
            text = "has labels that look one-hot: real numbers, a single 1 in each row"
            raise InputError(batch.name, text, "give numbers of classes: `y.argmax(1)`", "E-SHAPE")
        return None
    if kind_of_labels(batch.labels) in "UO":
        remedy = "give all names as `classes=`, in their order"
        raise InputError(batch.name, "has labels that are names", remedy, "E-NUMBER")
    names = class_names(None, n_outputs)
    if names is None and n_outputs is None:
        text = "needed, since the outputs of this network are no vector"
        raise OptionError("classes", text, "give their number or names, or leave the labels out")
    return names


def _layout_of(module: nn.Module, first: Tensor | Example, batch: Batch) -> tuple[OutputLayout | None, tuple[str, ...]]:
    """Return where a network's outputs have their rows, and notes on what is left out for them.

    None where they have none, so that the default cannot compare such networks: a warning says so before the work.
    """
    try:
        layout = layout_of(module, first)
    except UnsupportedError as error:
        reason = f"{reason_of(error)}: the default will not compare candidates"
        warn_caller(f"network: {reason}; if one of its outputs is meant, name it with `output=`", UncomparedWarning)
        return None, (reason,)
    return layout, output_labels_note(batch, layout) if len(layout.widths) > 1 else ()


def _without_other_labels(batch: Batch, layout: OutputLayout | None) -> Batch:
    """Return observations without labels that do not group them: those of texts, and of several outputs."""
    is_other = layout is not None and (layout.is_next_token or len(layout.widths) > 1)
    is_other = is_other or isinstance(batch.labels, LabelsOfOutputs)
    return replace(batch, labels=None) if is_other else batch


def _statistics_of(setting: Setting, batch: Batch, are_labelled: bool) -> list[Statistic]:
    """Return the statistics of a network, in the order in which they are stated: some read what others stated.

    Whether outputs, also those by position, have classes, `are_labelled` says.
    """
    # First, as the network is asked for them: statistics of channels hook themselves into it.
    columns = None if setting.is_token else columns_of_whole_numbers(setting, batch)
    statistics: list[Statistic] = [ChannelStatistic(setting)]
    if setting.predicts_tokens:
        statistics.append(NextTokenLoss(setting))
    elif setting.layout is not None and are_labelled and setting.classes is not None:
        statistics.append(PositionCounts(setting.classes, setting.layout))
    by_class = False
    if setting.is_token:
        if len(setting.shape) == 1 and (table := token_table(setting.module)) is not None:
            statistics.append(TokenStatistic(setting, table))
    else:
        moments = InputMomentStatistic(setting)
        by_class = moments.class_rank is not None
        statistics += [RangeStatistic(), moments]
        if columns is not None and len(columns):
            statistics.append(WholeColumns(columns))
    if setting.n_classes and setting.n_outputs in (setting.n_classes, 1):
        errors = ErrorCounts(setting.n_groups)
        statistics.append(errors)
        if by_class and len(setting.shape) == 1 and setting.size <= MAX_COORDINATES:
            statistics.append(SplitClasses(setting, errors))
    if setting.are_labelled:
        statistics.append(FeatureMeans(setting))
    return statistics
