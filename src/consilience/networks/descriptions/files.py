"""Files of descriptions, written next to the file of a network: ``site.description.safetensors``.

An ordinary safetensors file of float32 arrays, and one JSON document in the header's metadata, format
"consilience-description". A digest of all arrays binds it to its network, whose own file stays as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np

from consilience.checks import AnyArray, Array
from consilience.errors import FileFormatError, InputError, Problem
from consilience.files.arrays import storable_arrays
from consilience.files.format import Format, TensorSpec
from consilience.files.our_formats import DESCRIPTION
from consilience.files.safetensors_file import SafetensorsFile, TensorHeader
from consilience.files.schemas import Chunked, StrictModel
from consilience.networks.descriptions.description import ChannelStatistics, Description, Moments, TokenCounts
from consilience.networks.descriptions.parts import REAL, StoredClassTokens, StoredMoments, StoredTokens
from consilience.networks.fisher.kronecker import (
    factor_arrays,
    factor_tensors,
    factors_of_arrays,
    stated_sizes,
)

SUFFIX = ".description"
"""What the name of a description's file has before its suffix."""

_REMEDY = "describe the network again, with consilience.describe"


class DescriptionHeader(StrictModel):
    """The JSON document in the header of a description's file: what are no arrays, and what the arrays are."""

    format: Literal["consilience-description"]
    format_version: Literal[1]
    library_version: str
    digest: str
    n_observations: float
    input_shape: list[int] | None
    input_kind: Literal["real", "tokens"]
    input_range: list[float] | None
    inputs: StoredMoments | None
    classes: Chunked[list[str]] | None
    class_counts: Chunked[list[float]] | None
    withheld: Chunked[list[str]]
    class_numbers: Chunked[list[int]]
    class_moments: StoredMoments | None
    mixture_sizes: Chunked[list[int]]  # by class with moments, where classes are split
    class_mixtures: StoredMoments | None
    own_error: float | None
    class_prior: Literal["own", "removed"]
    channels: Chunked[list[str]]
    tokens: StoredTokens | None
    class_tokens: StoredClassTokens | None
    has_class_features: bool
    layers: Chunked[dict[str, list[int]]]
    layer_observations: float | None
    layer_likelihood: Literal["categorical", "gaussian"] | None
    min_count: float
    notes: list[str]


_PLAIN = ("digest", "input_kind", "class_prior", "layer_likelihood")
"""Fields of a description that a file states as they are."""

_REAL = ("n_observations", "own_error", "layer_observations", "min_count")
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
    """Write a description, whole or not at all; the same bytes for the same statements.

    Raises
    ------
    InputError
        When the path cannot be written, or an array cannot be stored.
    """
    inputs = [] if description.inputs is None else [description.inputs]
    numbers = sorted(description.class_moments)
    of_classes = [description.class_moments[number] for number in numbers]
    mixtures = [description.class_mixtures.get(number, ()) for number in numbers]
    parts = [part for mixture in mixtures for part in mixture]
    longest = 0 if description.tokens is None else len(description.tokens.lengths)
    arrays: dict[str, Array] = {
        **StoredMoments.arrays("inputs", inputs),
        **StoredMoments.arrays("classes", of_classes),
        **StoredMoments.arrays("mixtures", parts),
        **{f"channels/{layer}": np.stack([one.mean, one.variance]) for layer, one in description.channels.items()},
        **({} if description.class_features is None else {"class_features": description.class_features}),
        **factor_arrays(description.layers),
        **StoredTokens.arrays("tokens", description.tokens),
        **StoredClassTokens.arrays("class_tokens", description.class_tokens, longest),
    }
    stated = {
        "inputs": StoredMoments.of(inputs),
        "class_moments": StoredMoments.of(of_classes),
        "class_mixtures": StoredMoments.of(parts),
        "tokens": StoredTokens.of(description.tokens),
        "class_tokens": StoredClassTokens.of(description.class_tokens),
    }
    fields = {
        **{name: getattr(description, name) for name in _PLAIN},
        **{name: _real(getattr(description, name)) for name in _REAL},
        **{name: None if part is None else part.model_dump() for name, part in stated.items()},
        "input_shape": _listed(description.input_shape),
        "input_range": _listed(description.input_range),
        "classes": _listed(description.classes),
        "class_counts": None if description.class_counts is None else description.class_counts.tolist(),
        "withheld": list(description.withheld),
        "class_numbers": [int(number) for number in numbers],
        "mixture_sizes": [len(mixture) for mixture in mixtures] if parts else [],
        "channels": list(description.channels),
        "has_class_features": description.class_features is not None,
        "layers": stated_sizes(description.layers),
        "notes": list(description.notes),
    }
    stored = {
        name: values if values.dtype == np.int64 else np.asarray(values, dtype=np.float32)
        for name, values in arrays.items()
    }
    DESCRIPTION_FILES.write(path, fields, storable_arrays(path, stored))


def _real(number: float | None) -> float | None:
    return None if number is None else float(number)


def _listed(values: tuple[Any, ...] | None) -> list[Any] | None:
    return None if values is None else list(values)


def remove_description_of_another(network: Path, digest: str) -> None:
    """Remove the description next to a network's file where it describes the network that the file had before.

    Parameters
    ----------
    network : Path
        The network's file.
    digest : str
        Of what is in it now.
    """
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
    parts = {
        "inputs": header.inputs,
        "classes": header.class_moments,
        "mixtures": header.class_mixtures,
        "tokens": header.tokens,
        "class_tokens": header.class_tokens,
    }
    expected = {f"channels/{layer}": TensorSpec((2, None), REAL) for layer in header.channels}
    if header.has_class_features:
        expected["class_features"] = TensorSpec((None, None), REAL)
    for prefix, part in parts.items():
        expected |= {} if part is None else part.tensors(prefix)
    return {**expected, **factor_tensors(header.layers)}


def _checked(file: SafetensorsFile, header: DescriptionHeader, tensors: TensorHeader) -> DescriptionHeader:
    """Return the document, if its statements go together."""
    del tensors
    if header.input_range is not None and len(header.input_range) != 2:
        raise FileFormatError(file, f"its range of inputs has {len(header.input_range)} numbers, expected 2", _REMEDY)
    n_classes, class_tokens = len(header.class_numbers), header.class_tokens
    if n_classes != len(header.class_moments.ranks if header.class_moments is not None else ()):
        raise FileFormatError(file, f"its moments by class are not those of {n_classes} classes", _REMEDY)
    n_parts = 0 if header.class_mixtures is None else len(header.class_mixtures.ranks)
    has_sizes = len(header.mixture_sizes) in (n_classes, 0) and min(header.mixture_sizes, default=0) >= 0
    if not has_sizes or sum(header.mixture_sizes) != n_parts:
        raise FileFormatError(file, f"its parts of classes are not those of {n_classes} classes", _REMEDY)
    for moments in (header.inputs, header.class_moments, header.class_mixtures):
        if moments is not None and not 0 < len(moments.n_observations) == len(moments.ranks):
            raise FileFormatError(file, "its moments do not have a number of observations and a rank each", _REMEDY)
    if header.inputs is not None and len(header.inputs.ranks) != 1:
        raise FileFormatError(file, f"its inputs have {len(header.inputs.ranks)} moments, expected 1", _REMEDY)
    if class_tokens is not None and (header.tokens is None or len(class_tokens.n_rare) != len(class_tokens.numbers)):
        text = f"its counts of tokens are not those of {len(class_tokens.numbers)} classes"
        raise FileFormatError(file, text, _REMEDY)
    return header


def _make(file: SafetensorsFile, header: DescriptionHeader, arrays: dict[str, AnyArray]) -> tuple[Description, None]:
    """Return the description of a file.

    Raises
    ------
    InputError
        When its values are not valid or contradict each other.
    """
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
    description = Description(
        **{name: getattr(header, name) for name in (*_PLAIN, *_REAL)},
        input_shape=None if header.input_shape is None else tuple(header.input_shape),
        input_range=None if header.input_range is None else (header.input_range[0], header.input_range[1]),
        inputs=inputs,
        classes=None if header.classes is None else tuple(header.classes),
        class_counts=None if header.class_counts is None else np.array(header.class_counts, dtype=np.float64),
        withheld=tuple(header.withheld),
        class_moments=class_moments,
        class_mixtures=class_mixtures,
        channels={layer: ChannelStatistics(*values[f"channels/{layer}"]) for layer in header.channels},
        tokens=tokens,
        class_tokens=class_tokens,
        class_features=values.get("class_features"),
        layers=factors_of_arrays(header.layers, values, file.label),
        notes=tuple(header.notes),
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
    groups = (
        ("inputs", header.inputs, ["all inputs"]),
        ("classes", header.class_moments, [f"class number {number}" for number in numbers]),
        ("mixtures", header.class_mixtures, [f"a part of class number {number}" for number in of_parts]),
    )
    moments: dict[str, list[Moments]] = {prefix: [] for prefix, _, _ in groups}
    problems: list[Problem] = []
    for prefix, part, called in groups:
        try:
            moments[prefix] = [] if part is None else part.read(prefix, arrays, called)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    class_mixtures: dict[int, tuple[Moments, ...]] = {}
    for number, one in zip(of_parts, moments["mixtures"], strict=True):
        class_mixtures[number] = (*class_mixtures.get(number, ()), one)
    class_moments = dict(zip(numbers, moments["classes"], strict=True)) if moments["classes"] else {}
    inputs = moments["inputs"][0] if moments["inputs"] else None
    return inputs, class_moments, class_mixtures


DESCRIPTION_FILES = Format(
    DESCRIPTION, 1, DescriptionHeader, "a description of a network", _make, _tensors, _checked, remedy=_REMEDY
)
read_description = DESCRIPTION_FILES.load
"""Returns the description in a file, everything checked."""
