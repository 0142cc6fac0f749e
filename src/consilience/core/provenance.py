"""How a fused file came to be: enough to make it again, and nothing that changes between two identical runs."""

from __future__ import annotations

import hashlib
import math
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from consilience.checks import Array, Json
from consilience.core.details import Details, Status
from consilience.core.frozen import FrozenDict
from consilience.errors import ConsilienceError, FileFormatError, InputError, Problem
from consilience.files.opening import open_file
from consilience.files.safetensors_file import SafetensorsFile

Content = TypeVar("Content")


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with open_file(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@cache
def library_versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    names = ("consilience", "numpy", "scipy", "scikit-learn")
    return {**{name: version(name) for name in names}, "python": platform.python_version()}


def make_provenance(
    method: str,
    options: Mapping[str, Any],
    seed: int | None,
    inputs: list[dict[str, Any]],
    result: Mapping[str, object],
) -> dict[str, Json]:
    """Return the record that a fused file carries, as JSON values.

    `seed` is None when a Generator was given. `inputs` has a record for each model: ``name``, ``components``,
    ``weight``, ``labels`` (fused component of each of its own), and where known ``confidence`` of these and ``sha256``
    of its file. `result` is what came out: ``status``, ``objective``, its ``history`` and the method's own details.
    """
    return {
        "method": method,
        "options": {name: value.item() if isinstance(value, np.generic) else value for name, value in options.items()},
        "seed": seed,
        "inputs": _storable(inputs),
        "result": _storable(dict(result)),
        "versions": dict(library_versions()),
    }


def result_record(
    n_components: int,
    status: Status,
    details: Details,
    objective: float | None = None,
    history: Array | None = None,
    site_digests: Mapping[str, str] | None = None,
) -> dict[str, Json]:
    """Return the record of a fused model, as its provenance states it.

    An objective that is not a number is recorded as null, a history (iterations,) in twelve digits. `site_digests` are
    names by digest of all that it rests on, by which a fusion knows what counts twice. What is None is not recorded.
    """
    descent: dict[str, Json] = {}
    if history is not None:
        is_known = objective is not None and math.isfinite(objective)
        descent = {"objective": objective if is_known else None, "history": history_values(history)}
    counted = {} if site_digests is None else {"site_digests": dict(site_digests)}
    document = _storable(details)
    return {"n_components": n_components, "status": status.name.lower(), **descent, **document, **counted}


NO_ANCESTORS: Mapping[str, str] = FrozenDict({})
"""Of what was not fused from others."""

_ATTRIBUTE = "_consilience_provenance"
MAX_BOUND = 256
"""Fused models without attributes whose provenance a process keeps. Chosen by hand."""
_WITHOUT_ATTRIBUTES: dict[str, Mapping[str, Json]] = {}
"""Provenance of such models, by the digest of their contents."""


def ancestors_of(provenance: Mapping[str, Json] | None) -> Mapping[str, str]:
    """Return the names of what a model was fused from, by their digests; empty for one that was not fused."""
    if provenance is None:
        return NO_ANCESTORS
    inputs, result = provenance.get("inputs"), provenance.get("result")  # of networks, any JSON values
    records = [record for record in inputs if isinstance(record, Mapping)] if isinstance(inputs, list | tuple) else []
    recorded = result.get("site_digests") if isinstance(result, Mapping) else None
    of_sites = recorded if isinstance(recorded, Mapping) else {}
    files = {record["sha256"]: record.get("name") for record in records if record.get("sha256")}
    return {str(digest): str(name) for digest, name in {**of_sites, **files}.items()}


def site_digests(inputs: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the names, by digests, of all that a fusion rests on, fused inputs' own sites included.

    `inputs` say what each rests on. Contents with two names keep the first in alphabetical order, whoever came first.
    """
    names: dict[str, str] = {}
    for rests_on in inputs:
        for digest, name in rests_on.items():
            names[digest] = min(name, names.get(digest, name))
    return names


def bind_provenance(
    model: Content, provenance: Mapping[str, Json] | None, digest_of: Callable[[Content], str]
) -> Content:
    """Return a fused model in memory that carries its provenance.

    So that `fuse` refuses it beside its own parts, after a pickle too, and `save` writes how it was made. It is bound
    to the digest of the model's contents, as its kind reads it: what is trained further is a model of its own. For a
    model that can carry nothing, such as a dictionary of arrays, this process keeps it. What was not fused, and what is
    no model to be fused, stays as it is.
    """
    ancestors = ancestors_of(provenance)
    if provenance is None or not ancestors:
        return model
    with suppress(ConsilienceError):
        digest = digest_of(model)
        if digest in ancestors:  # one of the parts as it is, such as the network of the best site
            return model
        try:
            object.__setattr__(model, _ATTRIBUTE, (digest, provenance))
        except (AttributeError, TypeError):
            _WITHOUT_ATTRIBUTES[digest] = provenance
            for oldest in list(_WITHOUT_ATTRIBUTES)[:-MAX_BOUND]:
                del _WITHOUT_ATTRIBUTES[oldest]
    return model


def bound_provenance(model: Content, digest_of: Callable[[Content], str]) -> Mapping[str, Json] | None:
    """Return the provenance that a model in memory carries; None where it was not fused, or was changed since."""
    with suppress(ConsilienceError):  # what is no model has no digest, and whoever reads it says so
        if hasattr(model, "__dict__"):
            digest, provenance = vars(model).get(_ATTRIBUTE, (None, None))
            return provenance if digest is not None and digest == digest_of(model) else None
        if _WITHOUT_ATTRIBUTES and model is not None:
            return _WITHOUT_ATTRIBUTES.get(digest_of(model))
    return None


def history_values(history: Array) -> list[float | None]:
    """Return a history as JSON values of twelve digits; None for values that are not finite.

    Twelve of float64's sixteen, because the last ones may be rounding. Chosen by hand.
    """
    return [float(f"{value:.12g}") if math.isfinite(value) else None for value in history.tolist()]


def read_inputs_of(
    fused: SafetensorsFile,
    recorded_digests: Sequence[str | None],
    sites: Sequence[SafetensorsFile],
    read: Callable[[SafetensorsFile], Content],
) -> list[Content | None]:
    """Return what is in the file of every input of a fused file; None for an input whose file is not at hand.

    Digests are as its provenance records them, None for an input that was in memory; `sites` are files that it was made
    from, in any order, not necessarily all. Raises InputError listing the files that cannot be read, that it was not
    made from, and that are there more than once.
    """
    input_of_digest = {digest: number for number, digest in enumerate(recorded_digests) if digest is not None}
    contents: list[Content | None] = [None] * len(recorded_digests)
    file_of_input: dict[int, SafetensorsFile] = {}
    problems: list[Problem] = []
    for site in sites:
        try:
            content, digest = read(site), site.digest
        except InputError as error:
            problems += error.problems
            continue
        number = input_of_digest.get(digest)
        if not input_of_digest:
            text = f"{fused} was made from models in memory, so no file can be known to be one of them"
            problems.append(Problem(site, text))
        elif number is None:
            text = f"is not one of the files that {fused} was made from: none has SHA-256 {digest[:12]}…"
            problems.append(Problem(site, text, code="E-MISMATCH"))
        elif number in file_of_input:
            problems.append(Problem(site, f"is the same file as {file_of_input[number]}", "leave one out", "E-TWICE"))
        else:
            contents[number], file_of_input[number] = content, site
    if problems:
        raise InputError(problems)
    return contents


def read_fused(
    fused: SafetensorsFile,
    sites: Sequence[SafetensorsFile],
    read: Callable[[SafetensorsFile], tuple[Content, dict[str, Any] | None]],
) -> tuple[Content, dict[str, Json], list[tuple[str, Content]]]:
    """Return what is in a fused file, its provenance, and by name what is in those of its inputs that are at hand.

    `read` returns what is in a file, and its provenance or None. FileFormatError for a first file that cannot be read,
    or that no fusion wrote; InputError as `read_inputs_of`.
    """
    content, record = read(fused)
    if record is None:
        raise FileFormatError(fused, "does not say how it was made, so there is nothing to report", "give a fused file")
    digests = [one.get("sha256") for one in record["inputs"]]
    contents = read_inputs_of(fused, digests, sites, lambda site: read(site)[0])
    names = [str(one["name"]) for one in record["inputs"]]
    return content, record, [(name, site) for name, site in zip(names, contents, strict=True) if site is not None]


def _storable(value: Any) -> Any:
    """Return JSON values of any depth with texts that any reader takes: file names may have bytes that are no text."""
    if value is None or isinstance(value, int | float):  # first, since most values are numbers
        return value
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_storable(key): _storable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(one) for one in value]
    return value
