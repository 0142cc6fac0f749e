"""A site's observations as checked batches: arrays, a file, or a loader that is read once.

Labels become numbers of classes, -1 where there is none. What is wrong with a batch is said with its number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from consilience.checks import Array, Labels
from consilience.errors import InputError
from consilience.files.labelled_arrays import read_labelled_arrays
from consilience.networks.descriptions.description import InputPart
from consilience.networks.descriptions.input_parts import as_arguments, as_rows, parts_of, reads_tokens
from consilience.networks.example import Example, inputs_together, split_batch
from consilience.networks.module_inputs import precision_of, refuse_unfit
from consilience.networks.output_layout import padding_of, token_table

IGNORED_LABEL = -100
"""The label that torch's losses leave out (``ignore_index``): an observation without a class."""

ROWS_AT_ONCE = 512
"""Observations of arrays in one forward pass. Chosen by hand; nobody has measured other values."""

MAX_NAMED_LABELS = 5
"""Labels that a message names. Chosen by hand for short messages."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Some observations."""

    inputs: Tensor  # (n, ...): the inputs, several arguments as one (`input_parts`)
    labels: Any  # (n,): what was given beside them: numbers or names of classes, or targets of a regression
    name: str  # in messages
    asked: Tensor | Example  # as the network takes them
    parts: tuple[InputPart, ...] = ()  # the arguments that the inputs are; none for a single one
    padding: int | None = None  # the token that fills texts up

    @cached_property
    def rows(self) -> Any:
        """The inputs as rows (n, d) of float64."""
        return self.inputs.reshape(len(self.inputs), -1).to(device="cpu", dtype=torch.float64).numpy()

    def pieces(self, n_rows: int | None) -> Iterator[Batch]:
        """Yield so many observations after others; all at once for None."""
        if n_rows is None or n_rows >= len(self.inputs):
            yield self
            return
        for start in range(0, len(self.inputs), n_rows):
            rows = slice(start, start + n_rows)
            labels = None if self.labels is None else self.labels[rows]
            yield replace(self, inputs=self.inputs[rows], labels=labels, asked=self.asked[rows])


@dataclass(frozen=True, eq=False)
class LabelsOfOutputs:
    """Labels of several outputs, each (n, ...)."""

    parts: tuple[Any, ...]
    names: tuple[str, ...] | None = None  # the outputs that they belong to; None where they are in their order

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, rows: slice) -> LabelsOfOutputs:
        return LabelsOfOutputs(tuple(part[rows] for part in self.parts), self.names)

    @property
    def ndim(self) -> int:
        """Axes of the first."""
        return int(self.parts[0].ndim)

    def in_order(self, names: Sequence[str] | None) -> tuple[Any, ...]:
        """Return the labels in the order of the outputs of these names."""
        if names is None or self.names is None or set(names) != set(self.names):
            return self.parts
        return tuple(self.parts[self.names.index(name)] for name in names)


def batches_of_data(data: Any, module: nn.Module) -> Iterator[Batch]:
    """Yield the observations of a site, batch by batch; the first rows are tried on the network.

    Data are inputs (n, ...) with or without labels (n,), the path of a .npz or .npy file of them, or batches: each
    inputs, or a tuple or list (inputs, labels). Several inputs are a mapping by the names of arguments, labels under
    "labels", or a tuple; labels of several outputs are a mapping or a tuple too.
    """
    name = str(data) if isinstance(data, str | Path) else "data"
    if isinstance(data, str | Path):
        arrays = read_labelled_arrays(Path(data))
        data = (arrays.inputs, arrays.labels)
    if isinstance(data, Mapping) or (isinstance(data, tuple) and len(data) >= 1):
        inputs, labels = split_batch(data, inputs_together(data, module))
        if isinstance(data, tuple) and len(data) != 2 and not isinstance(inputs, Example):
            raise InputError(name, f"expected (X, y), X or batches, found {len(data)} parts", code="E-SHAPE")
        pieces = _rows_of_arrays(inputs, labels, name)
    elif hasattr(data, "shape") and hasattr(data, "dtype"):  # dense or sparse
        pieces = _rows_of_arrays(data, None, name)
    elif isinstance(data, Iterable) or hasattr(data, "__getitem__"):
        pieces = _batches_of_loader(data, module)
    else:
        raise InputError(name, f"expected (X, y), X or batches, found {type(data).__name__}", code="E-TYPE")
    yield from _checked(pieces, module, name)


def _rows_of_arrays(inputs: Any, labels: Any, name: str) -> Iterator[tuple[Any, Any, str]]:
    """Yield some rows of arrays after others."""
    inputs = _as_array(inputs, name)
    labels = _labels_of(labels, name)
    if isinstance(inputs, Example):
        _refuse_other_lengths(inputs, name)
    elif inputs.ndim == 0:
        raise InputError(name, "expected an array of observations, found a number", code="E-SHAPE")
    if labels is not None and (labels.ndim == 0 or len(labels) != len(inputs)):
        found = "a number" if labels.ndim == 0 else f"{len(labels)} labels"
        raise InputError(name, f"has {len(inputs)} observations and {found}", "give a label for each", "E-SHAPE")
    for start in range(0, len(inputs), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        yield inputs[rows], None if labels is None else labels[rows], name


def _refuse_other_lengths(inputs: Example, name: str) -> None:
    """Raise InputError for arguments without tensors, or that are not of as many observations each."""
    lengths = {len(tensor) if tensor.ndim else 0 for tensor in inputs.tensors}
    if len(lengths) != 1 or 0 in lengths:
        found = "no tensors" if not lengths else f"arguments of {', '.join(map(str, sorted(lengths)))} observations"
        raise InputError(name, f"has {found}", "give every argument a row for each observation", "E-SHAPE")


def _batches_of_loader(loader: Iterable[Any], module: nn.Module) -> Iterator[tuple[Any, Any, str]]:
    """Yield the batches of a loader; all of them with labels, or none."""
    has_labels: bool | None = None
    n_inputs: int | None = None
    for number, batch in enumerate(loader):
        name = f"data: batch {number}"
        if n_inputs is None:  # asked once, before anything looks at what the network answers
            n_inputs = inputs_together(batch, module)
        inputs, labels = split_batch(batch, n_inputs)
        is_pair = isinstance(batch, tuple | list) and not isinstance(inputs, Example)
        if is_pair and not 1 <= len(batch) <= 2:
            raise InputError(name, f"has {len(batch)} parts, expected inputs, or (inputs, labels)", code="E-SHAPE")
        inputs = _as_array(inputs, name)
        labels = _labels_of(labels, name)
        if has_labels not in (None, labels is not None):
            text = f"has {'no labels' if has_labels else 'labels'}, unlike those before"
            raise InputError(name, text, code="E-MISMATCH")
        has_labels = labels is not None
        if isinstance(inputs, Example):
            _refuse_other_lengths(inputs, name)
        elif inputs.ndim == 0 or (labels is not None and labels.ndim == 0):
            text = "is a single observation, expected a batch"
            raise InputError(name, text, "wrap the data in a DataLoader", "E-SHAPE")
        if labels is not None and len(labels) != len(inputs):
            raise InputError(name, f"has {len(inputs)} observations and {len(labels)} labels", code="E-SHAPE")
        yield inputs, labels, name


def _labels_of(labels: Any, name: str) -> Any:
    """Return labels as an array, or those of several outputs; None where there are none."""
    if labels is None:
        return None
    called = f"labels of {name}"
    if isinstance(labels, Mapping):
        parts = tuple(_as_array(one, called) for one in labels.values())
        return LabelsOfOutputs(parts, tuple(map(str, labels))) if parts else None
    is_several = (
        isinstance(labels, tuple | list) and labels and all(hasattr(one, "shape") and one.shape for one in labels)
    )
    return LabelsOfOutputs(tuple(_as_array(one, called) for one in labels)) if is_several else _as_array(labels, called)


def _as_array(values: Any, name: str) -> Any:
    """Return values as a tensor, or as an array of NumPy; several arguments as they are."""
    if isinstance(values, Example):
        return values.changed(Tensor.detach)
    if isinstance(values, Tensor):
        return values.detach()
    listed = values if isinstance(values, tuple | list) else ()
    shapes = {tuple(one.shape) for one in listed if isinstance(one, Tensor | np.ndarray)}  # alike of observations
    if isinstance(values, Mapping) or len(shapes) > 1:
        text = "is of arrays of several shapes, and the network does not take them together"
        remedy = "give several inputs as a tuple, in the order of the arguments, or as a mapping by their names"
        raise InputError(name, text, remedy, "E-SHAPE")
    array = np.asarray(values.toarray() if hasattr(values, "toarray") else values)
    if array.dtype.kind not in "biufUO" or (array.dtype.kind in "UO" and not name.startswith("labels")):
        raise InputError(name, f"expected numbers, found an array of type {array.dtype}", code="E-TYPE")
    return array


def _checked(pieces: Iterable[tuple[Any, Any, str]], module: nn.Module, data_name: str) -> Iterator[Batch]:
    """Yield batches whose inputs are finite, of one shape, and such as the network takes."""
    shape: tuple[int, ...] | None = None
    is_token, precision = False, precision_of(module)
    parts: tuple[InputPart, ...] = ()
    padding: int | None = None
    for inputs, labels, name in pieces:
        if not len(inputs):
            continue
        asked = (
            inputs.changed(partial(_as_tensor, precision=precision, name=name))
            if isinstance(inputs, Example)
            else _as_tensor(inputs, precision, name)
        )
        _refuse_not_finite_labels(labels, name)
        if shape is None:
            if isinstance(asked, Example):
                refuse_unfit_in_evaluation(module, asked[:2], name)
            is_token, parts = reads_tokens(module, asked), parts_of(module, asked, name)
            padding = padding_of(module)
            if padding is None and any(part.kind == "mask" for part in parts):
                padding = 0
        if is_token:
            _refuse_hidden(asked, name)
        values = as_rows(parts, asked, padding)
        if is_token:
            _refuse_unknown_tokens(values, module, name)
        if not values.is_floating_point() and not is_token:  # such as images of 0 to 255
            values = values.to(precision)
        if shape is None:
            shape = tuple(values.shape[1:])
            refuse_unfit_in_evaluation(module, as_arguments(parts, values[:2], padding), name)
        # Sequences of tokens are filled up batch by batch.
        elif tuple(values.shape[1:]) != shape and not (is_token and values.ndim == 1 + len(shape)):
            text = f"has inputs of shape {tuple(values.shape[1:])}, and the first ones have {shape}"
            raise InputError(name, text, "give one shape", "E-SHAPE")
        yield Batch(values, labels, name, asked if parts else values, parts, padding)
    if shape is None:
        raise InputError(data_name, "has no observations", code="E-NEEDED")


def _refuse_hidden(inputs: Tensor | Example, name: str) -> None:
    """Raise InputError for texts whose mask hides all tokens."""
    for key, tensor in (inputs.kwargs or {}).items() if isinstance(inputs, Example) else ():
        if key.endswith("mask") and isinstance(tensor, Tensor) and not bool((tensor != 0).any(dim=1).all()):
            text = f"has a text of which {key} hides all tokens"
            raise InputError(name, text, "take such texts out, or give masks that are 1 where a token counts", "E-FEW")


def _as_tensor(inputs: Any, precision: torch.dtype, name: str) -> Tensor:
    """Return finite inputs (n, ...) as a tensor: real numbers in a precision, whole ones as int64."""
    values = inputs if isinstance(inputs, Tensor) else torch.from_numpy(np.ascontiguousarray(_native(inputs)))
    if not values.numel():
        raise InputError(name, f"expected inputs with entries, found shape {tuple(values.shape)}", code="E-SHAPE")
    if not values.is_floating_point():
        return values if values.dtype == torch.bool else values.to(torch.int64)
    if not torch.isfinite(values).all():
        raise InputError(name, "has NaN or infinite inputs", "take them out", "E-NUMBER")
    return values.to(precision)


def _refuse_not_finite_labels(labels: Any, name: str) -> None:
    """Raise InputError for labels (n,) or targets (n, ...) that are NaN or infinite."""
    if isinstance(labels, LabelsOfOutputs):
        for part in labels.parts:
            _refuse_not_finite_labels(part, name)
        return
    if labels is None or (not isinstance(labels, Tensor) and labels.dtype.kind != "f"):
        return
    is_finite = torch.isfinite(labels).cpu().numpy() if isinstance(labels, Tensor) else np.isfinite(labels)
    n = int((~is_finite).reshape(len(is_finite), -1).any(axis=1).sum())
    if n:
        text = f"has NaN or infinite labels ({n} observations)"
        raise InputError(name, text, "take these observations out", "E-NUMBER")


def _refuse_unknown_tokens(tokens: Tensor, module: nn.Module, name: str) -> None:
    """Raise InputError for tokens that the network's table of them does not have."""
    table = token_table(module)
    assert table is not None  # noqa: S101  (narrows the type; whoever reads tokens has a table)
    outside = tokens[(tokens < 0) | (tokens >= table.num_embeddings)]
    if len(outside):
        listed = ", ".join(map(str, sorted(set(outside.tolist()))[:MAX_NAMED_LABELS]))
        text = f"has tokens outside the vocabulary of {table.num_embeddings}: {listed}"
        raise InputError(name, text, "use the tokenizer that the network was trained with")


def _native(array: Any) -> Any:
    """Return an array in types and byte order that torch has."""
    if array.dtype.kind == "f":
        return array.astype(np.float64 if array.dtype.itemsize > 4 else np.float32, copy=False)
    return array.astype(np.int64, copy=False) if array.dtype.kind in "iu" else array


def refuse_unfit_in_evaluation(module: nn.Module, inputs: Tensor | Example, name: str) -> None:
    """Raise InputError when a network, in evaluation mode, does not take inputs."""
    from consilience.networks.torch_modules import evaluating

    with evaluating(module, keeps_gradients=True):
        refuse_unfit(module, inputs if isinstance(inputs, Example) else (inputs,), name)


def class_names(classes: int | Sequence[Any] | None, n_outputs: int | None) -> tuple[str, ...] | None:
    """Return the names of the classes, in the order of the outputs; None where there are none.

    Without a number or names there are as many as outputs; one output may stand for two classes.
    """
    if classes is None:
        return None if n_outputs is None or n_outputs < 2 else tuple(map(str, range(n_outputs)))
    if isinstance(classes, (int, np.integer)) and not isinstance(classes, bool):
        names = tuple(map(str, range(int(classes))))
    elif isinstance(classes, str) or not isinstance(classes, Iterable):
        raise InputError("classes", f"expected a number or names, found {classes!r}", code="E-TYPE")
    else:
        names = tuple(map(str, classes))
    if len(names) < 2:
        raise InputError("classes", f"expected at least two, found {len(names)}")
    if repeated := [name for name, n in Counter(names).items() if n > 1]:
        raise InputError("classes", f"{repeated[0]!r} stands twice", "give every class a name of its own", "E-TWICE")
    if n_outputs not in (None, len(names)) and (n_outputs, len(names)) != (1, 2):
        raise InputError("classes", f"are {len(names)}, but the network has {n_outputs} outputs", code="E-SHAPE")
    return names


def are_binary(labels: Any) -> bool:
    """Return whether labels (n,) or (n, 1) are all 0, 1, or `IGNORED_LABEL`, as those of two classes are."""
    values = label_array(labels)
    return values.size == len(values) and bool(np.isin(values, (0, 1, IGNORED_LABEL)).all())


def could_be_classes(labels: Any, n_outputs: int) -> bool:
    """Return whether labels (n,) or (n, 1) are whole numbers as those of classes would be, counted from 0 or from 1."""
    values = label_array(labels)
    is_number = (values == np.round(values)) & (values >= 0) & (values <= n_outputs)
    return values.size == len(values) and bool((is_number | (values == IGNORED_LABEL)).all())


def are_one_hot(labels: Any, n_outputs: int | None) -> bool:
    """Return whether labels (n, n_outputs) are 0 but for a single 1 in each row, as those of classes are encoded."""
    values = label_array(labels)
    is_wide = values.ndim == 2 and values.shape[1] == n_outputs and values.shape[1] > 1
    return is_wide and bool(np.isin(values, (0, 1)).all() and (values.sum(axis=1) == 1).all())


def numbers_of_classes(labels: Any, classes: Sequence[str], name: str) -> Labels:
    """Return the number of the class of every observation (n,), -1 where it has none.

    Labels (n,) or (n, 1) are numbers from 0, `IGNORED_LABEL` for none, or names of classes.
    """
    values = label_array(labels)
    # A column of labels is one for each observation too.
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        text = f"has labels of shape {values.shape}, expected one for each observation"
        remedy = "give numbers of classes (`y.argmax(1)` of one-hot labels), or `y.float()` where several may hold"
        raise InputError(name, text, remedy, "E-SHAPE")
    if values.dtype.kind in "UO":
        number_of = {text: number for number, text in enumerate(classes)}
        texts = [str(value) for value in values]
        if unknown := sorted(set(texts) - set(number_of)):
            listed = ", ".join(unknown[:MAX_NAMED_LABELS])
            raise InputError(
                name, f"has labels that are no class: {listed}", "give all names as `classes=`", "E-NUMBER"
            )
        return np.array([number_of[text] for text in texts], dtype=np.int64)
    if values.dtype.kind == "f" and not (np.isfinite(values).all() and (values == np.round(values)).all()):
        raise InputError(name, "has labels that are no whole numbers", "give numbers of classes from 0", "E-NUMBER")
    numbers = values.astype(np.int64)
    is_ignored = numbers == IGNORED_LABEL
    outside = ~is_ignored & ((numbers < 0) | (numbers >= len(classes)))
    if outside.any():
        listed = ", ".join(map(str, np.unique(numbers[outside])[:MAX_NAMED_LABELS]))
        text = f"has labels outside the classes 0 to {len(classes) - 1}: {listed} ({int(outside.sum())} observations)"
        remedy = f"count classes from 0; {IGNORED_LABEL} marks an observation without a class"
        raise InputError(name, text, remedy, "E-NUMBER")
    return np.where(is_ignored, -1, numbers)


def kind_of_labels(labels: Any) -> str:
    """Return NumPy's letter for the type of labels."""
    if isinstance(labels, Tensor):
        return "f" if labels.is_floating_point() else "i"
    return str(np.asarray(labels).dtype.kind)


def are_classes(labels: Any) -> bool:
    """Return whether labels are of classes: whole numbers or names, one for each row."""
    values = label_array(labels)
    if values.ndim > 2 or (values.ndim == 2 and values.shape[1] != 1):
        return False
    return values.dtype.kind != "f" or bool((values == np.round(values)).all())


def targets_of(labels: Any, width: int, name: str) -> Array:
    """Return targets (n, width)."""
    values: Array = label_array(labels).astype(np.float64).reshape(len(labels), -1)
    if values.shape[1] != width:
        text = f"has targets of shape {values.shape}, and the networks answer {width} numbers"
        raise InputError(name, text, "give a number for each output", "E-SHAPE")
    return values


def label_array(labels: Any) -> Any:
    """Return labels as an array of NumPy."""
    return np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels)
