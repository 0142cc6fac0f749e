"""The table of kinds: what is this model, and who fuses it? Nothing outside this file asks.

Objects are recognised by their classes, files by the format that their document states, each read once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consilience.checkpoints.kind import Adapters
from consilience.checks import Json
from consilience.core.fusion import Fusion
from consilience.core.inputs import defined_in
from consilience.core.provenance import bind_provenance, bound_provenance
from consilience.draws.kind import PosteriorDraws
from consilience.errors import FileFormatError, InputError, OptionError
from consilience.estimators.kind import Estimators
from consilience.files.document import DESCRIPTION, PARQUET, SHARD
from consilience.files.opening import open_file
from consilience.files.remote import is_remote, list_files
from consilience.files.safetensors_file import SafetensorsFile, as_file
from consilience.files.tables import is_frame
from consilience.networks.gaussian.kind import BayesianNetworks
from consilience.networks.kind import Networks
from consilience.posteriors.kind import Posteriors
from consilience.posteriors.sharded.kind import ShardedPosteriors

if TYPE_CHECKING:
    from consilience.core.inputs import NamedInput
    from consilience.core.kind import FileFormat, Inspection, Kind, Request

POSTERIORS, NETWORKS, BAYESIAN, SHARDS = Posteriors(), Networks(), BayesianNetworks(), ShardedPosteriors()
ESTIMATORS, DRAWS, ADAPTERS = Estimators(), PosteriorDraws(), Adapters()

KINDS: tuple[Kind, ...] = (POSTERIORS, ESTIMATORS, DRAWS, ADAPTERS, BAYESIAN, NETWORKS)
"""Every kind, in the order in which an object is shown to them: cheap tests first."""

_KIND_OF_FORMAT = {form.tag: kind for kind in (*KINDS, SHARDS) for form in kind.formats if form.tag is not None}

FORMATS: tuple[FileFormat, ...] = tuple(form for kind in KINDS for form in kind.formats)
"""Every format of files."""


def list_models(models: Any, engine: Any = None) -> Any:
    """Return the files in folders or patterns of networks, statistics or draws as a list of paths; other models as is.

    Sums are added one file after another, and networks are read one array at a time, so that folders of them need no
    shards. Descriptions are found beside their networks. CSV files of CmdStan are read as draws, by site.
    """
    if engine is not None or SHARDS.may_be(models):
        return models
    paths = _paths_among(models)
    for kind in KINDS:
        if any(kind.expands_path(path) for path in paths) and (expanded := kind.expand(models)) is not models:
            return expanded
    if not are_shards(models):
        return models
    try:
        paths = [file.path for file in list_files(models, (".safetensors",))]
        listed = None if is_remote(paths[0]) else _listed(paths)
    except (InputError, OptionError):  # whoever opens them says it
        return models
    return models if listed is None else listed


def _listed(paths: Sequence[str]) -> list[str] | None:
    """Return the models among files of kinds that are listed; None where another file is among them, or no such one."""
    forms = [form for kind in KINDS if kind.is_listed for form in kind.formats]
    taken: list[str] = []
    is_listed = False
    for path in paths:  # which ends at the first posterior, of which there may be very many
        try:
            form = _stated_format(path)
        except FileFormatError:  # beside files of a listed kind, the reader of that kind says why
            taken.append(path)
            continue
        if form not in forms:
            return None
        is_listed = True
        if form.tag != DESCRIPTION:
            taken.append(path)
    return taken if is_listed else None


def are_shards(models: Any, engine: Any = None) -> bool:
    """Return whether models are posteriors of very many sites, by how they are written; see `ShardedPosteriors`."""
    return (SHARDS.may_be(models) or bool(_paths_among(models))) and SHARDS.are_given(models, engine)


def _paths_among(models: Any) -> list[str]:
    """Return the paths that models are or have among them, those in lists of paths too."""
    if isinstance(models, str | Path):
        return [str(models)]
    several = models.values() if isinstance(models, Mapping) else models if isinstance(models, Sequence) else ()
    listed = [part for model in several for part in (model if isinstance(model, list | tuple) else [model])]
    return [str(one) for one in listed if isinstance(one, str | Path)]


def _stated_format(path: str) -> FileFormat | None:
    """Return the format that a file's document states; None where it states none of a kind in memory.

    Raises FileFormatError for what is no safetensors file.
    """
    tag = as_file(path).format
    return next((form for form in FORMATS if form.tag == tag), None)


def _kinds_of_inputs(inputs: Sequence[NamedInput]) -> list[Kind | None]:
    """Return the kind of each input; None for an object that nobody knows, a broken file, and a plain checkpoint.

    A kind is asked once for all that none before it knew.
    """
    kinds = [None if one.file is None else _kind_of_opened(one, one.file) for one in inputs]
    waiting = [position for position, one in enumerate(inputs) if one.file is None]
    for kind in KINDS:
        if waiting:
            recognised = kind.recognises([inputs[position].model for position in waiting])
            for position, is_known in zip(waiting, recognised, strict=True):
                kinds[position] = kind if is_known else None
            waiting = [position for position in waiting if kinds[position] is None]
    return kinds


def _kind_of_opened(one: NamedInput, file: SafetensorsFile) -> Kind | None:
    """Return the kind of a file by its document, without one by the names of its tensors; None where neither says."""
    if one.is_plain_checkpoint:
        return next((kind for kind in KINDS if kind.is_plain(file)), None)
    return _KIND_OF_FORMAT.get(str(one.format))


def kind_of(inputs: Sequence[NamedInput], method: object = None, options: Mapping[str, Any] | None = None) -> Kind:
    """Return the kind of models that inputs are together; of several kinds, the one whose reader says what is odd.

    Plain checkpoints say nothing of themselves: they are networks, beside posteriors if an argument is for networks.
    Dictionaries of arrays are posterior draws where their prior or constraints are stated.
    """
    kinds = _kinds_of_inputs(inputs)
    if SHARDS in kinds and all(one.file is not None for one in inputs):
        return SHARDS
    for kind in (BAYESIAN, NETWORKS, DRAWS, ADAPTERS, ESTIMATORS):
        if kind in kinds:
            return kind
    return _kind_by_statements(inputs, POSTERIORS in kinds, method, set(options or ()))


def _kind_by_statements(inputs: Sequence[NamedInput], has_posteriors: bool, method: object, keywords: set[str]) -> Kind:
    """Return the kind of inputs of which none but posteriors were recognised, by the method and the keywords."""
    if not has_posteriors and not NETWORKS.packages.isdisjoint(defined_in(method)):
        return NETWORKS
    if any(one.is_plain_checkpoint for one in inputs):
        is_of_networks = not keywords.isdisjoint(NETWORKS.statements)
        return NETWORKS if is_of_networks or not has_posteriors else POSTERIORS
    # Arrays could be anything, until a keyword states what networks or draws alone have.
    if "module" in keywords and _are_all(inputs, lambda model: isinstance(model, Mapping | list)):
        return NETWORKS  # by name or in order, as federated frameworks hold them
    are_arrays = _are_all(inputs, lambda model: isinstance(model, Mapping) or is_frame(model))
    return DRAWS if are_arrays and not keywords.isdisjoint(DRAWS.statements) else POSTERIORS


def _are_all(inputs: Sequence[NamedInput], holds: Callable[[object], bool]) -> bool:
    """Return whether something holds of all models of a call, of which there are some."""
    return bool(inputs) and all(holds(one.model) for one in inputs)


def are_recognised(request: Request) -> bool:
    """Return whether every model of a request is of a kind that is known; else its reader says what is wrong."""
    if request.is_sharded:
        return all(is_remote(path) or glob(path, recursive=True) for path in _paths_among(request.source))
    kinds = _kinds_of_inputs(request.inputs)
    return all(kind is not None or one.is_plain_checkpoint for kind, one in zip(kinds, request.inputs, strict=True))


def format_of(where: str | Path | SafetensorsFile) -> FileFormat:
    """Return the format of a safetensors file, from its header alone.

    Raises FileFormatError for what is no safetensors file, and for documents of ours that say nothing of a known
    format.
    """
    file = as_file(where)
    if file.header().text is None:
        return next(form for form in FORMATS if form.tag is None)
    tag = file.format
    if tag == SHARD:
        raise FileFormatError(file, "is a shard of many posteriors", "fuse it, or open it with consilience.shards")
    for form in FORMATS:
        if tag is not None and form.tag == tag:
            return form
    known = ", ".join(form.tag for form in FORMATS if form.tag is not None)
    text = f"its metadata is not valid at format: found {tag!r}, expected one of {known}"
    raise FileFormatError(file, text, "write it with consilience.save")


def kind_of_file(where: str | Path | SafetensorsFile) -> Kind:
    """Return the kind of model in a file; a broken one is left to the reader of posteriors, which says why."""
    try:
        form = format_of(where)
    except InputError:
        return POSTERIORS
    return next(kind for kind in KINDS if form in kind.formats)


def load_file(where: str | Path | SafetensorsFile, module: Any = None) -> Any:
    """Return what is in a file of any format, or in the folder of an ensemble, whose members are made by `module`."""
    if not isinstance(where, SafetensorsFile) and os.path.isdir(where):
        from consilience.networks.ensemble_files import read_ensemble  # here, since it needs torch

        return read_ensemble(Path(where), module)
    if module is not None:
        raise OptionError("module", f"is for the folder of an ensemble, and {where} is none; leave it out")
    file = as_file(where)
    form = format_of(file)
    content = form.load(file)
    if form.is_companion:
        return content
    kind = next(kind for kind in KINDS if form in kind.formats)
    return bind_provenance(content, file.document.get("provenance"), kind.digest_of)


def packed(path: Path, target: Path) -> Path:
    """Return the file to send of what is at a path: `target`, where a kind writes there what others wrote."""
    return target if any(kind.pack(path, target) for kind in KINDS) else path


def provenance_of(kind: Kind, model: Any) -> Mapping[str, Json] | None:
    """Return how a model in memory came to be; None for one that was not fused, or was trained further since."""
    return model.record if isinstance(model, Fusion) else bound_provenance(model, kind.digest_of)


def inspect_file(path: Path) -> Inspection:
    """Return what is inside a file of any format, or a folder of weights, from headers alone."""
    from consilience.checkpoints.inspect import inspect_checkpoint  # here, so that fusing starts without them
    from consilience.networks.files import read_symmetry
    from consilience.networks.inspect import inspect_symmetry
    from consilience.posteriors.sharded.file import is_shard
    from consilience.posteriors.sharded.inspect import inspect_shard

    if (foreign := ADAPTERS.inspect_foreign(path) or inspect_checkpoint(path)) is not None:
        return foreign
    if _starts_like_json(path):
        return inspect_symmetry(read_symmetry(path), str(path))
    if path.suffix == ".csv":
        from consilience.draws.inspect import inspect_cmdstan

        return inspect_cmdstan(path)
    if path.suffix == PARQUET or (os.path.isfile(path) and is_shard(path)):
        return inspect_shard(as_file(path))
    file = as_file(path)
    try:
        form = format_of(file)
    except InputError:  # the reader of posteriors says it better
        form = POSTERIORS.formats[0]
    return form.inspect(file)


def _starts_like_json(path: Path) -> bool:
    try:
        with open_file(path) as stream:
            return stream.read(1) == b"{"
    except (OSError, ValueError):  # said by whoever reads it
        return False
