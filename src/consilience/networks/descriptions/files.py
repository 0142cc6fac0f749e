"""Files of descriptions, written beside the file of a network: ``site.description.safetensors``.

An ordinary safetensors file of float32 arrays (those of moments by class one after another), and one JSON document in
the header's metadata, format "consilience-description". A digest of all arrays binds it to its network, whose own file
stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from consilience.checks import Array
from consilience.errors import FileFormatError, InputError, Problem
from consilience.files.arrays import storable_arrays, write_arrays
from consilience.files.document import check_version, validate_document
from consilience.files.format import document_text
from consilience.files.our_formats import DESCRIPTION
from consilience.files.safetensors_file import SafetensorsFile, as_file
from consilience.files.schemas import Chunked, StrictModel
from consilience.networks.descriptions.description import ChannelStatistics, Description, Moments, TokenCounts
from consilience.networks.fisher.kronecker import factor_arrays, factors_of_arrays, stated_sizes

SUFFIX = ".description"
"""What the name of a description's file has before its suffix."""

WHOLE_NUMBERS = ("tokens/bigrams", "class_tokens/unigrams")
"""Arrays of whole numbers, in int64; the others are float32."""

NEGATIVE_VARIANCE_SHARE = 1e-6
"""Negative residual variances up to this share of the mean variance are rounding, and are set to 0."""

_VERSION = 1
_REMEDY = "describe the network again, with consilience.describe"


class DescriptionHeader(StrictModel):
    """The JSON document in the header of a description's file."""

    format: Literal["consilience-description"]
    format_version: Literal[1]
    library_version: str
    digest: str
    n_observations: float
    input_shape: list[int] | None
    input_kind: Literal["real", "tokens"]
    input_range: list[float] | None
    inputs_n_observations: float | None
    classes: Chunked[list[str]] | None
    class_counts: Chunked[list[float]] | None
    withheld: Chunked[list[str]]
    class_numbers: Chunked[list[int]]
    class_n_observations: Chunked[list[float]]
    class_ranks: Chunked[list[int]]
    mixture_sizes: Chunked[list[int]] = Field(default_factory=list)  # by class, where classes are split
    mixture_n_observations: Chunked[list[float]] = Field(default_factory=list)
    mixture_ranks: Chunked[list[int]] = Field(default_factory=list)
    class_prior: Literal["own", "removed"]
    channels: Chunked[list[str]]
    token_padding: int | None
    n_rare_tokens: float | None
    class_token_numbers: Chunked[list[int]] | None
    class_rare_tokens: Chunked[list[float]] | None
    min_count: float
    notes: list[str]
    own_error: float | None
    layers: Chunked[dict[str, list[int]]] = Field(default_factory=dict)
    layer_observations: float | None = None
    layer_likelihood: Literal["categorical", "gaussian"] | None = None


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
    moments = description.class_moments
    numbers = sorted(moments)
    arrays: dict[str, Array] = {}
    if description.inputs is not None:
        arrays |= {f"inputs/{name}": getattr(description.inputs, name) for name in ("mean", "factor", "residual")}
    if numbers:
        arrays |= {
            "classes/mean": np.stack([moments[number].mean for number in numbers]),  # (K, d)
            "classes/residual": np.stack([moments[number].residual for number in numbers]),
            "classes/factor": np.concatenate([moments[number].factor for number in numbers]),  # (sum of ranks, d)
        }
    parts = [part for number in numbers for part in description.class_mixtures.get(number, ())]
    if parts:
        arrays |= {
            "mixtures/mean": np.stack([part.mean for part in parts]),  # (K, d)
            "mixtures/residual": np.stack([part.residual for part in parts]),
            "mixtures/factor": np.concatenate([part.factor for part in parts]),  # (sum of ranks, d)
        }
    for layer, channels in description.channels.items():
        arrays[f"channels/{layer}"] = np.stack([channels.mean, channels.variance])  # (2, channels)
    if description.class_features is not None:
        arrays["class_features"] = description.class_features
    arrays |= factor_arrays(description.layers)
    tokens = description.tokens
    if tokens is not None:
        arrays |= {"tokens/unigrams": tokens.unigrams, "tokens/lengths": tokens.lengths}
    of_classes = [description.class_tokens[number] for number in sorted(description.class_tokens)]
    if tokens is not None and of_classes:
        longest = max(len(tokens.lengths), *(len(counts.lengths) for counts in of_classes))
        arrays["class_tokens/lengths"] = np.stack(  # (K, L + 1)
            [np.pad(counts.lengths, (0, longest - len(counts.lengths))) for counts in of_classes]
        )
    stored: dict[str, Any] = {name: np.asarray(values, dtype=np.float32) for name, values in arrays.items()}
    if tokens is not None:
        stored["tokens/bigrams"] = np.asarray(tokens.bigrams, dtype=np.int64)
    if tokens is not None and of_classes:
        place, token = np.nonzero(np.stack([counts.unigrams for counts in of_classes]))
        occurrences = np.stack([counts.unigrams for counts in of_classes])[place, token]
        stored["class_tokens/unigrams"] = np.stack([place, token, occurrences], axis=1).astype(np.int64)
    fields = {
        "digest": description.digest,
        "n_observations": float(description.n_observations),
        "input_shape": None if description.input_shape is None else list(description.input_shape),
        "input_kind": description.input_kind,
        "input_range": None if description.input_range is None else list(description.input_range),
        "inputs_n_observations": None if description.inputs is None else float(description.inputs.n_observations),
        "classes": None if description.classes is None else list(description.classes),
        "class_counts": None if description.class_counts is None else description.class_counts.tolist(),
        "withheld": list(description.withheld),
        "class_numbers": [int(number) for number in numbers],
        "class_n_observations": [float(moments[number].n_observations) for number in numbers],
        "class_ranks": [len(moments[number].factor) for number in numbers],
        "own_error": description.own_error,
        "class_prior": description.class_prior,
        "channels": list(description.channels),
        "token_padding": None if tokens is None or tokens.padding is None else int(tokens.padding),
        "n_rare_tokens": None if tokens is None else float(tokens.n_rare),
        "class_token_numbers": [int(number) for number in sorted(description.class_tokens)] or None,
        "class_rare_tokens": [float(counts.n_rare) for counts in of_classes] or None,
        "min_count": float(description.min_count),
        "notes": list(description.notes),
    }
    if description.layers:
        fields |= {
            "layers": stated_sizes(description.layers),
            "layer_observations": description.layer_observations,
            "layer_likelihood": description.layer_likelihood,
        }
    if parts:
        fields |= {
            "mixture_sizes": [len(description.class_mixtures.get(number, ())) for number in numbers],
            "mixture_n_observations": [float(part.n_observations) for part in parts],
            "mixture_ranks": [len(part.factor) for part in parts],
        }
    storable = storable_arrays(path, stored)
    write_arrays(path, storable, document_text(path, DESCRIPTION, _VERSION, fields, storable))


def remove_description_of_another(network: Path, digest: str) -> None:
    """Remove the description beside a network's file where it is of the network that the file had before.

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
        described = read_description_header(beside).digest
    except InputError:  # nothing that this library wrote
        return
    if described != digest:
        beside.unlink()


def read_description_header(where: Path | SafetensorsFile) -> DescriptionHeader:
    """Return what the header of a description's file says.

    Raises
    ------
    FileFormatError
        For a file that is no description of a version that this library reads, or whose tensors are not those that
        its header lists.
    """
    file = as_file(where)
    shapes = dict(file.header(_REMEDY).shapes)
    if file.format != DESCRIPTION:
        raise FileFormatError(file, "is no description of a network", _REMEDY)
    check_version(file.label, file.document, _VERSION)
    header = validate_document(file.label, DescriptionHeader, file.document)
    expected = {f"channels/{layer}" for layer in header.channels}
    expected |= {f"layers/{path}/{what}" for path in header.layers for what in ("inputs", "outputs")}
    if header.inputs_n_observations is not None:
        expected |= {"inputs/mean", "inputs/factor", "inputs/residual"}
    if header.class_numbers:
        expected |= {"classes/mean", "classes/factor", "classes/residual"}
    if header.mixture_sizes:
        expected |= {"mixtures/mean", "mixtures/factor", "mixtures/residual"}
    if header.n_rare_tokens is not None:
        expected |= {"tokens/unigrams", "tokens/bigrams", "tokens/lengths"}
    if header.class_token_numbers:
        expected |= {"class_tokens/unigrams", "class_tokens/lengths"}
    if odd := sorted(set(shapes) ^ (expected | ({"class_features"} & set(shapes)))):
        raise FileFormatError(file, f"its tensors are not those of its statements ({', '.join(odd[:3])})", _REMEDY)
    if not len(header.class_numbers) == len(header.class_n_observations) == len(header.class_ranks):
        raise FileFormatError(file, "its classes do not have a number of observations and a rank each", _REMEDY)
    if header.input_range is not None and len(header.input_range) != 2:
        raise FileFormatError(file, f"its range of inputs has {len(header.input_range)} numbers, expected 2", _REMEDY)
    expected_axes = {f"channels/{layer}": 2 for layer in header.channels}
    expected_axes |= {"inputs/mean": 1, "inputs/residual": 1, "tokens/unigrams": 1, "tokens/lengths": 1}
    for name, shape in shapes.items():
        if len(shape) != expected_axes.get(name, 2) or (name.startswith("channels/") and shape[0] != 2):
            raise FileFormatError(file, f"tensor {name} has shape {list(shape)}", _REMEDY)
    n_classes = len(header.class_numbers)
    if n_classes:
        is_fit = min(header.class_ranks) >= 0 and shapes["classes/factor"][0] == sum(header.class_ranks)
        if not is_fit or shapes["classes/mean"][0] != n_classes or shapes["classes/residual"][0] != n_classes:
            raise FileFormatError(file, f"its moments by class are not those of {n_classes} classes", _REMEDY)
    if header.mixture_sizes:
        n_parts = len(header.mixture_n_observations)
        is_fit = len(header.mixture_sizes) == n_classes and min(header.mixture_sizes) >= 0
        is_fit &= sum(header.mixture_sizes) == n_parts == len(header.mixture_ranks)
        is_fit = is_fit and min(header.mixture_ranks) >= 0 and shapes["mixtures/factor"][0] == sum(header.mixture_ranks)
        if not is_fit or shapes["mixtures/mean"][0] != n_parts or shapes["mixtures/residual"][0] != n_parts:
            raise FileFormatError(file, f"its parts of classes are not those of {n_classes} classes", _REMEDY)
    if header.class_token_numbers:
        n_token_classes = len(header.class_token_numbers)
        is_fit = shapes["class_tokens/unigrams"][1] == 3 and shapes["class_tokens/lengths"][0] == n_token_classes
        if not is_fit or header.n_rare_tokens is None or len(header.class_rare_tokens or ()) != n_token_classes:
            raise FileFormatError(file, f"its counts of tokens are not those of {n_token_classes} classes", _REMEDY)
    return header


def read_description(where: Path | SafetensorsFile) -> Description:
    """Return the description in a file, everything checked.

    Raises
    ------
    FileFormatError
        As `read_description_header`.
    InputError
        When its values are not valid or contradict each other.
    """
    file = as_file(where)
    header = read_description_header(file)
    arrays: dict[str, Any] = {
        name: np.asarray(values) if name in WHOLE_NUMBERS else np.asarray(values, dtype=np.float64)
        for name, values in file.arrays(list(file.header(_REMEDY).shapes), _REMEDY).items()
    }
    problems: list[Problem] = []

    def moments(of: str, n: float, mean: Array, factor: Array, residual: Array) -> Moments | None:
        try:
            return Moments(float(n), mean, factor, _without_rounding(residual))
        except InputError as error:
            problems.extend(Problem(file, f"moments of {of} {problem.text}", _REMEDY) for problem in error.problems)
            return None

    inputs = None
    if header.inputs_n_observations is not None:
        parts = (arrays["inputs/mean"], arrays["inputs/factor"], arrays["inputs/residual"])
        inputs = moments("all inputs", header.inputs_n_observations, *parts)

    def several(what: str, called: Sequence[str], numbers: Sequence[float], ranks: Sequence[int]) -> list[Moments]:
        """Return the moments that follow each other in the arrays of a statement."""
        factors = np.split(arrays[f"{what}/factor"], np.cumsum(ranks)[:-1])
        rows = zip(called, numbers, arrays[f"{what}/mean"], factors, arrays[f"{what}/residual"], strict=True)
        every = [moments(*row) for row in rows]
        return [one for one in every if one is not None]

    class_moments: dict[int, Moments] = {}
    class_mixtures: dict[int, tuple[Moments, ...]] = {}
    if header.class_numbers:
        called = [f"class number {number}" for number in header.class_numbers]
        of_classes = several("classes", called, header.class_n_observations, header.class_ranks)
        class_moments = dict(zip(header.class_numbers, of_classes, strict=False))  # where one is bad, none is returned
    if header.mixture_sizes:
        called = [
            f"a part of class number {number}"
            for number, size in zip(header.class_numbers, header.mixture_sizes, strict=True)
            for _ in range(size)
        ]
        of_parts = several("mixtures", called, header.mixture_n_observations, header.mixture_ranks)
        ends = np.cumsum([0, *header.mixture_sizes])
        class_mixtures = {
            number: tuple(of_parts[start:end])
            for number, start, end in zip(header.class_numbers, ends[:-1], ends[1:], strict=True)
            if end > start
        }
    if problems:
        raise InputError(problems)
    tokens = None
    if header.n_rare_tokens is not None:
        counts = (arrays["tokens/unigrams"], arrays["tokens/bigrams"], arrays["tokens/lengths"])
        tokens = TokenCounts(*counts, padding=header.token_padding, n_rare=header.n_rare_tokens)
    low_and_high = header.input_range
    description = Description(
        digest=header.digest,
        n_observations=header.n_observations,
        input_shape=None if header.input_shape is None else tuple(header.input_shape),
        input_kind=header.input_kind,
        input_range=None if low_and_high is None else (low_and_high[0], low_and_high[1]),
        inputs=inputs,
        classes=None if header.classes is None else tuple(header.classes),
        class_counts=None if header.class_counts is None else np.array(header.class_counts, dtype=np.float64),
        withheld=tuple(header.withheld),
        class_moments=class_moments,
        class_mixtures=class_mixtures,
        own_error=header.own_error,
        class_prior=header.class_prior,
        channels={
            layer: ChannelStatistics(arrays[f"channels/{layer}"][0], arrays[f"channels/{layer}"][1])
            for layer in header.channels
        },
        tokens=tokens,
        class_tokens={} if tokens is None else _class_tokens(file, header, arrays, tokens),
        class_features=arrays.get("class_features"),
        layers=factors_of_arrays(header.layers, arrays, file.label),
        layer_observations=header.layer_observations,
        layer_likelihood=header.layer_likelihood,
        min_count=header.min_count,
        notes=tuple(header.notes),
        name=file.label,
    )
    return replace(description, sha256=file.digest)


def _class_tokens(
    file: SafetensorsFile, header: DescriptionHeader, arrays: dict[str, Any], tokens: TokenCounts
) -> dict[int, TokenCounts]:
    """Return the counts of tokens by class.

    Raises
    ------
    FileFormatError
        For counts of classes or tokens that are not there.
    """
    if not header.class_token_numbers or header.class_rare_tokens is None:
        return {}
    place, token, occurrences = arrays["class_tokens/unigrams"].T
    size = (len(header.class_token_numbers), len(tokens.unigrams))
    if len(place) and ((place < 0) | (place >= size[0]) | (token < 0) | (token >= size[1])).any():
        raise FileFormatError(file, f"has counts by class outside {size[0]} classes and {size[1]} tokens", _REMEDY)
    unigrams = np.zeros(size)
    unigrams[place, token] = occurrences
    return {
        number: TokenCounts(of_class, np.zeros((0, 3), dtype=np.int64), lengths, header.token_padding, n_rare)
        for number, of_class, lengths, n_rare in zip(
            header.class_token_numbers, unigrams, arrays["class_tokens/lengths"], header.class_rare_tokens, strict=True
        )
    }


def _without_rounding(residual: Array) -> Array:
    """Return residual variances (d,), 0 where they are negative by rounding."""
    scale = np.abs(residual).mean() if residual.size else 0.0
    is_rounding = (residual < 0) & (residual >= -NEGATIVE_VARIANCE_SHARE * scale)
    cleaned: Array = np.where(is_rounding, 0.0, residual)
    return cleaned
