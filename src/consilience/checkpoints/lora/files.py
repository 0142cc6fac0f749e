"""Adapters on disk: folders of peft, and LoRA files of kohya's trainer, LyCORIS and diffusers, recognised by names.

A file states no rank and no configuration: the rank of a module is that of its arrays, and its scale alpha / r, with
alpha the tensor of that name, or of the peft configuration in diffusers' metadata; without either alpha is r.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from consilience.catalogue import unreadable
from consilience.checkpoints.folder import Checkpoint, adapter_folder, open_adapter, open_checkpoint
from consilience.checkpoints.header import read_header
from consilience.checkpoints.lora.config import config_problems, merged_config, module_scale
from consilience.checkpoints.lora.names import (
    ALPHA,
    Convention,
    LoraNames,
    component_of,
    module_in_component,
    read_names,
)
from consilience.checkpoints.numbers import FLOAT_TYPES
from consilience.checks import Json
from consilience.errors import FileFormatError, InputError, Problem
from consilience.files.document import ADAPTER, METADATA_KEY
from consilience.files.format import read_document
from consilience.files.opening import open_file
from consilience.files.safetensors_file import SafetensorsFile
from consilience.files.schemas import Chunked, FiniteJSON, MadeHeader, StrictModel

LORA_FILE = "pytorch_lora_weights.safetensors"
"""The file of diffusers in a folder."""

METADATA_OF_DIFFUSERS = "lora_adapter_metadata"
"""The entry of a file's metadata in which diffusers keeps configurations of peft, their fields behind a component."""

_KEPT_OF_KOHYA = ("ss_base_model_version", "ss_network_module", "ss_v2")
"""Metadata of kohya's trainer that say what an adapter is; others describe its training."""

FORMAT_VERSION = 1
"""Version of the format, stated by every file; another one is refused."""

_SUFFIX = ".safetensors"
_AGAIN = "save the adapter again"


class AdapterHeader(StrictModel):
    """The JSON document in the header of an adapter file."""

    format: Literal["consilience-adapter"]
    format_version: Literal[1]
    library_version: str
    config: FiniteJSON | None = None
    metadata: Chunked[dict[str, str]] = Field(default_factory=dict)
    n_observations: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    provenance: MadeHeader | None = None


def read_adapter_header(file: SafetensorsFile) -> AdapterHeader:
    """Return the document of an adapter file, checked; raises FileFormatError for other files."""
    return read_document(file, ADAPTER, AdapterHeader, FORMAT_VERSION, "an adapter file")[0]


@dataclass(frozen=True, eq=False)
class LoraFile(Checkpoint):
    """A LoRA file of which only header and alphas have been read."""

    convention: Convention = "kohya"  # whose names it has
    modules: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # names of tensors by module and part
    unknown: tuple[str, ...] = ()  # tensors that are not understood
    alphas: Mapping[str, float] = field(default_factory=dict)  # of the modules that have one
    settings: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)  # configurations of peft, by component
    metadata: Mapping[str, str] = field(default_factory=dict)  # texts of the writer

    @property
    def needed_metadata(self) -> dict[str, str]:
        """What loaders read of its metadata."""
        return {name: text for name, text in self.metadata.items() if name in (*_KEPT_OF_KOHYA, METADATA_OF_DIFFUSERS)}

    def scale(self, module: str, rank: int) -> float:
        """Return what the product of a module's factors of some rank is multiplied by."""
        if module in self.alphas:
            return self.alphas[module] / rank
        config = self.settings.get(component_of(self.convention, module))
        if config is None:
            return 1.0
        return module_scale(config, module_in_component(self.convention, module), rank)


def adapter_at(path: Path) -> Path | None:
    """Return the folder of an adapter of peft, or a file of LoRA, from a path; None for anything else."""
    if (folder := adapter_folder(path)) is not None:
        return folder
    file = path / LORA_FILE if os.path.isdir(path) else path
    if file.suffix != _SUFFIX or not os.path.isfile(file):
        return None
    try:
        header = read_header(file)
        is_packed = f'"{ADAPTER}"' in header.metadata.get(METADATA_KEY, "")
        return file if is_packed or read_names(header.tensors) is not None else None
    except FileFormatError:
        return None  # whoever opens it as a checkpoint says what is wrong


def open_adapter_at(path: Path) -> Checkpoint:
    """Return the adapter in a folder or a file, its header and its configuration read."""
    return _open_file(path) if os.path.isfile(path) else open_adapter(path)


def _open_file(path: Path) -> Checkpoint:
    """Return the adapter in a file, with its configuration where it is of peft and travels in a file of ours."""
    checkpoint = open_checkpoint(path, takes_other_formats=True)
    metadata = checkpoint.files[0].header.metadata
    if METADATA_KEY in metadata:
        packed = read_adapter_header(SafetensorsFile(path))
        if packed.config is not None:
            return replace(checkpoint, config=packed.config)
        metadata = packed.metadata
    names = read_names(checkpoint.tensors)
    if names is None:
        raise FileFormatError(path, "has no factors of LoRA")
    kinds = {part.partition("_")[0] for parts in names.modules.values() for part in parts}
    kind = "LORA" if kinds == {"lora"} else "LOKR" if "lokr" in kinds else "LOHA"
    opened = LoraFile(
        checkpoint.name, checkpoint.files, checkpoint.tensors,
        config={"peft_type": kind, "base_model_name_or_path": metadata.get("ss_base_model_version")},
        convention=names.convention, modules=names.modules, unknown=names.unknown, metadata=metadata,
    )  # fmt: skip
    try:
        alphas = {module: _number(opened, name) for module, name in names.alphas.items()}
    except OSError as error:
        raise FileFormatError(unreadable(path, error)) from error
    opened = replace(opened, alphas=alphas, settings=_settings(opened, metadata))
    if problems := [*_problems(opened, names)]:
        raise InputError(problems)
    return opened


def _number(checkpoint: LoraFile, name: str) -> float:
    """Return a tensor of one number, or NaN where it is none."""
    number, stored = checkpoint.tensors[name]
    if stored.size != 1:
        return float("nan")
    with open_file(checkpoint.files[number].path) as stream:
        stream.seek(stored.start)
        data = np.frombuffer(stream.read(stored.nbytes), dtype=np.uint8)
    if stored.dtype in FLOAT_TYPES:
        values = np.empty(1)
        FLOAT_TYPES[stored.dtype].decode(data, values)
        return float(values[0])
    integer = {"I64": np.int64, "I32": np.int32, "I16": np.int16}.get(stored.dtype)
    return float("nan") if integer is None else float(data.view(integer)[0])


def _settings(checkpoint: LoraFile, metadata: Mapping[str, str]) -> dict[str, dict[str, Json]]:
    """Return the configurations of peft in the metadata of diffusers, by component."""
    if METADATA_OF_DIFFUSERS not in metadata:
        return {}
    try:
        document = json.loads(metadata[METADATA_OF_DIFFUSERS])
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        text = f"its metadata {METADATA_OF_DIFFUSERS} is no JSON object"
        raise FileFormatError(checkpoint.name, text, _AGAIN)
    found: dict[str, dict[str, Json]] = {}
    for module in checkpoint.modules:
        component = component_of(checkpoint.convention, module)
        prefix = module.removesuffix(module_in_component(checkpoint.convention, module))
        fields = {key.removeprefix(prefix): value for key, value in document.items() if key.startswith(prefix)}
        if component not in found and "r" in fields:
            found[component] = {"lora_alpha": fields["r"], **fields, "peft_type": "LORA"}
    return found


def _problems(checkpoint: LoraFile, names: LoraNames) -> Iterator[Problem]:
    """Yield what is wrong with the alphas and settings of a file."""
    for module, alpha in checkpoint.alphas.items():
        if not (isfinite(alpha) and alpha > 0):
            text = f"{names.alphas[module]} must be a positive number"
            yield Problem(checkpoint.name, text, _AGAIN, "E-NUMBER")
            return
    for config in checkpoint.settings.values():
        yield from config_problems(checkpoint.name, config)
    if checkpoint.settings and checkpoint.alphas:
        text = f"has alphas both as tensors and in {METADATA_OF_DIFFUSERS}"
        yield Problem(checkpoint.name, text, "take one of them away", "E-MISMATCH")


def file_metadata(files: list[LoraFile], ranks: Mapping[str, int], alphas: Mapping[str, float]) -> dict[str, str]:
    """Return the metadata of a merged file: what its convention reads, and nothing of the training.

    `ranks` and `alphas` are those of the merged modules. Kohya's trainer writes names of folders and tags of all images
    into its files; they are left behind.
    """
    first = files[0]
    if first.convention == "kohya":
        kept = {key: first.metadata[key] for key in _KEPT_OF_KOHYA if key in first.metadata}
        same = len(set(ranks.values())) == 1
        sizes = {"dim": str(max(ranks.values())) if same else "Dynamic", ALPHA: str(max(alphas.values()))}
        return {"format": "pt", **kept, **{f"ss_network_{key}": value for key, value in sizes.items()}}
    if not any(file.settings for file in files):
        return {"format": "pt"}
    document: dict[str, Any] = {}
    for component in dict.fromkeys(component_of(first.convention, module) for module in ranks):
        own_ranks = {module: rank for module, rank in ranks.items() if component_of("diffusers", module) == component}
        prefix = next(module.removesuffix(module_in_component("diffusers", module)) for module in own_ranks)
        config = _component_config({module.removeprefix(prefix): rank for module, rank in own_ranks.items()})
        document |= {f"{prefix}{key}": value for key, value in config.items()}
    return {"format": "pt", METADATA_OF_DIFFUSERS: json.dumps(document, indent=2, sort_keys=True)}


def _component_config(ranks: Mapping[str, int]) -> dict[str, Json]:
    """Return the configuration of peft of merged modules, which diffusers loads them by."""
    start: dict[str, Any] = {"target_modules": sorted(ranks), "bias": "none", "use_dora": False, "lora_dropout": 0.0}
    merged = merged_config([start], [list(ranks)], ranks)
    return {key: value for key, value in merged.items() if key not in ("inference_mode", "modules_to_save")}
