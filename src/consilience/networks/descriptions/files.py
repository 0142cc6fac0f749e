"""Files of descriptions, written next to the file of a network: ``site.description.safetensors``.

An ordinary safetensors file of float32 arrays, and one JSON document in the header's metadata, format
"consilience-description". A digest of all arrays binds it to its network, whose own file stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import FailFast

from consilience.checks import AnyArray, Array
from consilience.errors import FileFormatError, InputError, Problem
from consilience.files.arrays import storable_arrays
from consilience.files.document import DESCRIPTION
from consilience.files.format import Format, TensorSpec
from consilience.files.safetensors_file import SafetensorsFile, TensorHeader
from consilience.files.schemas import Chunked, StrictModel
from consilience.networks.descriptions.description import (
    ChannelStatistics,
    Description,
    InputPart,
    Moments,
    OutputLabels,
    PartKind,
    TokenCounts,
)
from consilience.networks.descriptions.parts import REAL, StoredClassTokens, StoredMoments, StoredTokens
from consilience.networks.fisher.kronecker import factor_arrays, factor_tensors, factors_of_arrays, stated_sizes

SUFFIX = ".description"
"""What the name of a description's file has before its suffix."""

_REMEDY = "describe the network again, with consilience.describe"


class StoredPart(StrictModel):
    """One argument of a network of several."""

    name: str | None
    shape: Chunked[list[int]]
    kind: PartKind


class StoredOutputLabels(StrictModel):
    """Statements on the labels of one of several outputs."""

    name: str | None
    width: int
    classes: Chunked[list[str]] | None
    counts: Chunked[list[float]] | None
    own_loss: float | None

    @classmethod
    def of(cls, said: OutputLabels) -> StoredOutputLabels:
        """Return what a file states."""
        classes, counts = (None if one is None else list(one) for one in (said.classes, said.counts))
        return cls(name=said.name, width=said.width, classes=classes, counts=counts, own_loss=said.own_loss)

    def read(self) -> OutputLabels:
        """Return what is said."""
        classes = None if self.classes is None else tuple(self.classes)
        counts = None if self.counts is None else np.array(self.counts, dtype=np.float64)
        return OutputLabels(self.name, self.width, classes, counts, self.own_loss)


class DescriptionHeader(StrictModel):
    """The JSON document in the header of a description's file: what are no arrays, and what the arrays are."""

    format: Literal["consilience-description"]
    format_version: Literal[1]
    library_version: str
    digest: str
    n_observations: float
    input_shape: Chunked[list[int]] | None
    input_kind: Literal["real", "tokens"]
    parts: Annotated[list[StoredPart], FailFast()]
    whole_columns: Chunked[list[int]]
    input_range: Chunked[list[float]] | None
    inputs: StoredMoments | None
    classes: Chunked[list[str]] | None
    class_counts: Chunked[list[float]] | None
    withheld: Chunked[list[str]]
    class_numbers: Chunked[list[int]]
    class_moments: StoredMoments | None
    mixture_sizes: Chunked[list[int]]  # by class with moments, where classes are split
    class_mixtures: StoredMoments | None
    own_error: float | None
    own_loss: float | None
    output: str | int | None
    output_labels: Annotated[list[StoredOutputLabels], FailFast()]
    held_out: str | None
    share_network: bool
    class_prior: Literal["own", "removed"]
    channels: Chunked[list[str]]
    tokens: StoredTokens | None
    class_tokens: StoredClassTokens | None
    has_class_features: bool
    layers: Chunked[dict[str, list[int]]]
    layer_observations: float | None
    layer_likelihood: Literal["categorical", "gaussian"] | None
    min_count: float
    notes: Chunked[list[str]]


_PLAIN = ("digest", "input_kind", "output", "held_out", "share_network", "class_prior", "layer_likelihood")
"""Fields of a description that a file states as they are."""

_TUPLES = ("input_shape", "input_range", "classes", "withheld", "notes")
"""Fields that are tuples, or None; lists in a file."""

_PREFIXES = {
    "inputs": "inputs",
    "class_moments": "classes",
    "class_mixtures": "mixtures",
    "tokens": "tokens",
    "class_tokens": "class_tokens",
}
"""Of every field that is a part of its own, what the names of its tensors begin with."""

_REAL = ("n_observations", "own_error", "own_loss", "layer_observations", "min_count")
"""Fields that are real numbers, or None."""


def description_path(network: Path) -> Path:
    """Return where the description of a network's file is.

    Examples
    --------
    >>> description_path(Path("site.safetensors")).name
    'site.description.safetensors'
    """
    return network.with_name(f"{network.stem}{SUFFIX}{network.suffix or '.safetensors'}")


def write_description(path: Path, description: Description) -> None:
    """Write a description, whole or not at all; the same bytes for the same statements."""
    # Classes in the order of their numbers, so that the same statements have the same bytes.
    numbers = sorted(description.class_moments)
    mixtures = [description.class_mixtures.get(number, ()) for number in numbers]
    moments: dict[str, list[Moments]] = {
        "inputs": [] if description.inputs is None else [description.inputs],
        "class_moments": [description.class_moments[number] for number in numbers],
        "class_mixtures": [*chain.from_iterable(mixtures)],
    }
    stated: dict[str, StrictModel | None] = {name: StoredMoments.of(groups) for name, groups in moments.items()}
    stated["tokens"] = StoredTokens.of(description.tokens)
    stated["class_tokens"] = StoredClassTokens.of(description.class_tokens)
    fields = {
        **{name: getattr(description, name) for name in (*_PLAIN, *_TUPLES)},
        **{name: None if (one := getattr(description, name)) is None else float(one) for name in _REAL},
        **{name: None if part is None else part.model_dump() for name, part in stated.items()},
        "class_counts": None if description.class_counts is None else description.class_counts.tolist(),
        "parts": [{"name": part.name, "shape": list(part.shape), "kind": part.kind} for part in description.parts],
        "output_labels": [StoredOutputLabels.of(one).model_dump() for one in description.output_labels],
        "whole_columns": sorted(description.whole_columns),
        "class_numbers": [int(number) for number in numbers],
        "mixture_sizes": [len(mixture) for mixture in mixtures] if any(mixtures) else [],
        "channels": list(description.channels),
        "has_class_features": description.class_features is not None,
        "layers": stated_sizes(description.layers),
    }
    DESCRIPTION_FILES.write(path, fields, storable_arrays(path, _arrays(description, moments)))


def _arrays(description: Description, moments: Mapping[str, Sequence[Moments]]) -> dict[str, AnyArray]:
    """Return the tensors of a description in the types of its file: whole numbers, or float32."""
    longest = 0 if description.tokens is None else len(description.tokens.lengths)
    arrays: dict[str, Array] = {
        **{f"channels/{layer}": np.stack([one.mean, one.variance]) for layer, one in description.channels.items()},
        **({} if description.class_features is None else {"class_features": description.class_features}),
        **{f"whole/{column}": counts for column, counts in description.whole_columns.items()},
        **factor_arrays(description.layers),
        **StoredTokens.arrays(_PREFIXES["tokens"], description.tokens),
        **StoredClassTokens.arrays(_PREFIXES["class_tokens"], description.class_tokens, longest),
    }
    for name, groups in moments.items():
        arrays |= StoredMoments.arrays(_PREFIXES[name], groups)
    return {name: one if one.dtype == np.int64 else np.asarray(one, dtype=np.float32) for name, one in arrays.items()}


def remove_description_of_another(network: Path, digest: str) -> None:
    """Remove the description next to a network's file unless its digest is that of what is in the file now."""
    beside = description_path(network)
    if not beside.is_file():
        return
    try:
        header, _ = DESCRIPTION_FILES.read_header(beside)
    except InputError:  # nothing that this library wrote
        return
    if header.digest != digest:
        beside.unlink()


def _tensors(header: DescriptionHeader) -> dict[str, TensorSpec]:
    """Return the tensors that a document announces."""
    expected = {f"channels/{layer}": TensorSpec((2, None), REAL) for layer in header.channels}
    expected |= {f"whole/{column}": TensorSpec((None, 2), REAL) for column in header.whole_columns}
    if header.has_class_features:
        expected["class_features"] = TensorSpec((None, None), REAL)
    for name, prefix in _PREFIXES.items():
        part = getattr(header, name)
        expected |= {} if part is None else part.tensors(prefix)
    return {**expected, **factor_tensors(header.layers)}


def _checked(file: SafetensorsFile, header: DescriptionHeader, tensors: TensorHeader) -> DescriptionHeader:
    """Return the document, if its statements go together."""
    stated = (header.inputs, header.class_moments, header.class_mixtures)
    n_inputs, n_moments, n_parts = (0 if moments is None else len(moments.ranks) for moments in stated)
    n_classes, sizes = len(header.class_numbers), header.mixture_sizes
    has_sizes = len(sizes) in (n_classes, 0) and min(sizes, default=0) >= 0
    are_moments = all(one is None or 0 < len(one.n_observations) == len(one.ranks) for one in stated)
    n_ends = 2 if header.input_range is None else len(header.input_range)
    n_rare, numbers = (
        ((), ()) if header.class_tokens is None else (header.class_tokens.n_rare, header.class_tokens.numbers)
    )
    is_token_class = header.class_tokens is None or (header.tokens is not None and len(n_rare) == len(numbers))
    faults = {
        f"its range of inputs has {n_ends} numbers, expected 2": n_ends != 2,
        f"its moments by class are not those of {n_classes} classes": n_classes != n_moments,
        f"its parts of classes are not those of {n_classes} classes": not has_sizes or sum(sizes) != n_parts,
        "its moments do not have a number of observations and a rank each": not are_moments,
        f"its inputs have {n_inputs} moments, expected 1": n_inputs > 1,
        f"its counts of tokens are not those of {len(numbers)} classes": not is_token_class,
    }
    # The first fault is told.
    for text, is_fault in faults.items():
        if is_fault:
            raise FileFormatError(file, text, _REMEDY)
    return header


def _make(file: SafetensorsFile, header: DescriptionHeader, arrays: dict[str, AnyArray]) -> tuple[Description, None]:
    """Return the description of a file."""
    values = {
        name: np.asarray(array) if array.dtype == np.int64 else np.asarray(array, dtype=np.float64)
        for name, array in arrays.items()
    }
    try:
        inputs, class_moments, class_mixtures = _moments(header, values)
        tokens = None if header.tokens is None else header.tokens.read("tokens", values)
        class_tokens: dict[int, TokenCounts] = {}
        if tokens is not None and header.class_tokens is not None:
            class_tokens = header.class_tokens.read("class_tokens", values, tokens)
    except InputError as error:
        raise type(error)(Problem(file, problem.text, _REMEDY) for problem in error.problems) from error
    # JSON has lists where a description has tuples.
    stated = {name: getattr(header, name) for name in (*_PLAIN, *_TUPLES, *_REAL)}
    fields: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in stated.items()}
    description = Description(
        **fields,
        parts=tuple(InputPart(part.name, tuple(part.shape), part.kind) for part in header.parts),
        output_labels=tuple(one.read() for one in header.output_labels),
        whole_columns={column: values[f"whole/{column}"] for column in header.whole_columns},
        inputs=inputs,
        class_counts=None if header.class_counts is None else np.array(header.class_counts, dtype=np.float64),
        class_moments=class_moments,
        class_mixtures=class_mixtures,
        channels={layer: ChannelStatistics(*values[f"channels/{layer}"]) for layer in header.channels},
        tokens=tokens,
        class_tokens=class_tokens,
        class_features=values.get("class_features"),
        layers=factors_of_arrays(header.layers, values, file.label),
        name=file.label,
        sha256=file.digest,
    )
    return description, None


def _moments(
    header: DescriptionHeader, arrays: dict[str, AnyArray]
) -> tuple[Moments | None, dict[int, Moments], dict[int, tuple[Moments, ...]]]:
    """Return the moments of all inputs, of every class, and of the parts of classes."""
    numbers, sizes = header.class_numbers, header.mixture_sizes or [0] * len(header.class_numbers)
    of_parts = [number for number, size in zip(numbers, sizes, strict=True) for _ in range(size)]
    called = {
        "inputs": ["all inputs"],
        "class_moments": [f"class number {number}" for number in numbers],
        "class_mixtures": [f"a part of class number {number}" for number in of_parts],
    }
    moments: dict[str, list[Moments]] = {}
    problems: list[Problem] = []
    # All moments are read before any is refused, so that all faults are told.
    for name, names in called.items():
        part = getattr(header, name)
        try:
            moments[name] = [] if part is None else part.read(_PREFIXES[name], arrays, names)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    class_mixtures: dict[int, tuple[Moments, ...]] = {}
    for number, one in zip(of_parts, moments["class_mixtures"], strict=True):
        class_mixtures[number] = (*class_mixtures.get(number, ()), one)
    class_moments = dict(zip(numbers, moments["class_moments"], strict=bool(moments["class_moments"])))
    return next(iter(moments["inputs"]), None), class_moments, class_mixtures


DESCRIPTION_FILES = Format(
    DESCRIPTION, 1, DescriptionHeader, "a description of a network", _make, _tensors, _checked, remedy=_REMEDY
)
read_description = DESCRIPTION_FILES.load
"""Returns the description in a file, everything checked."""
