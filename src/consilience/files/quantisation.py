"""Quantisation metadata of a checkpoint: fields of its configuration, and files next to its weights."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from consilience.checks import Json
from consilience.errors import FileFormatError
from consilience.files.document import parse_document
from consilience.files.opening import read_file

QUANTISATION_FIELDS = ("quantization_config", "compression_config", "quantization")
"""Fields of config.json: of transformers, of earlier compressed-tensors, and of MLX and ModelOpt."""

QUANTISATION_FILES: Mapping[str, str] = {
    "quantize_config.json": "GPTQ",
    "quant_config.json": "AWQ",
    "hf_quant_config.json": "ModelOpt",
    "quanto_qmap.json": "quanto",
    "quantization_map.json": "quanto",
}
"""Files beside the weights, and the library that writes each: AutoGPTQ, AutoAWQ, ModelOpt, optimum-quanto."""

_MAX_BYTES = 2**24
"""Longest configuration that is looked at: honest ones have kilobytes. Chosen by hand."""

_METHOD = re.compile(r"[\w.+-]{1,40}")


def quantisation_in(config: Mapping[str, Json]) -> str | None:
    """Return the method of quantisation that a configuration states, of a part of the model too; None for none.

    Examples
    --------
    >>> quantisation_in({"model_type": "llama", "quantization_config": {"quant_method": "gptq", "bits": 4}})
    'gptq'
    >>> quantisation_in({"text_config": {"quantization_config": {"load_in_4bit": True}}})
    'quantization_config'
    """
    for name, value in config.items():
        if name in QUANTISATION_FIELDS and isinstance(value, Mapping) and value:
            stated = [value.get(key) for key in ("quant_method", "quant_algo", "format", "mode")]
            return next((one for one in stated if isinstance(one, str) and _METHOD.fullmatch(one)), name)
        if name.endswith("_config") and isinstance(value, Mapping) and (inner := quantisation_in(value)):
            return inner
    return None


def without_quantisation(config: Mapping[str, Json]) -> dict[str, Any]:
    """Return a configuration that states no quantisation, for weights that are plain floats.

    Examples
    --------
    >>> without_quantisation({"text_config": {"quantization_config": {"bits": 4}, "hidden_size": 8}})
    {'text_config': {'hidden_size': 8}}
    """
    return {
        name: without_quantisation(value) if name.endswith("_config") and isinstance(value, Mapping) else value
        for name, value in config.items()
        if name not in QUANTISATION_FIELDS
    }


def quantisation_beside(folder: Path) -> str | None:
    """Return the method of quantisation that the files of a folder state; None for none, and what cannot be read."""
    config = _json(folder / "config.json")
    if stated := quantisation_in(config):
        return stated
    for name, library in QUANTISATION_FILES.items():
        if document := _json(folder / name):
            return quantisation_in(document) or library
    return None


def _json(path: Path) -> Mapping[str, Json]:
    """Return the JSON object in a file; an empty one for what is none."""
    try:
        if not os.path.isfile(path) or path.stat().st_size > _MAX_BYTES:
            return {}
        document = parse_document(path, read_file(path), "content")
    except (OSError, ValueError, FileFormatError):
        return {}
    return document if isinstance(document, Mapping) else {}
