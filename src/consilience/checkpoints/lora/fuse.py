"""Fusion of LoRA adapters by the pipeline of all kinds: read, checked, and merged as the command merges them.

Adapters of files stay there. Those in memory are written into a folder of the process for the merge.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from consilience.checkpoints.buffers import non_finite_problem
from consilience.checkpoints.lora.adapter import LoraAdapter, modules_of
from consilience.checkpoints.lora.factors import read_factors, squared_change
from consilience.checkpoints.lora.files import open_adapter_at, read_adapter_header
from consilience.checkpoints.lora.fusion import AdapterDetails, AdapterFusion
from consilience.checkpoints.lora.methods import AdapterAverage, make_adapter_method
from consilience.checkpoints.lora.plan import adapter_problems, prepare_adapters
from consilience.checkpoints.lora.run import run_adapters
from consilience.checkpoints.methods.average import TensorAverage
from consilience.checkpoints.numbers import FLOAT_TYPES
from consilience.checkpoints.request import MergeRequest
from consilience.core.details import Status
from consilience.core.fusion import FusedInput
from consilience.core.gather import Described, Reading, gather
from consilience.core.inputs import NamedInput, in_order, too_few_models
from consilience.core.kind import Prepared, Request
from consilience.core.min_count import MIN_COUNT, checked_min_count
from consilience.core.provenance import make_provenance, result_record, site_digests
from consilience.errors import ConsilienceError, InputError, OptionError, Problem
from consilience.files.document import ADAPTER
from consilience.files.format import Record
from consilience.files.safetensors_file import SafetensorsFile

_OUTPUT = "fused"
_NEEDS_BASE = "give `base=`"


class AdapterReading(Reading[LoraAdapter]):
    """How adapters are read."""

    called = "an adapter file"

    def __init__(self, min_count: float) -> None:
        self.min_count = min_count

    def takes(self, file: NamedInput) -> bool:
        """Return whether a file is an adapter file, or may be a LoRA file of another program."""
        return file.format == ADAPTER or file.is_plain_checkpoint

    def read(self, file: SafetensorsFile) -> tuple[LoraAdapter, Record]:
        """Return what is in an adapter file or a LoRA file, tensors left there, and its provenance."""
        made = None if file.is_plain_checkpoint else read_adapter_header(file).provenance
        return LoraAdapter.of_file(file), None if made is None else made.model_dump(exclude_unset=True)

    def convert(self, one: NamedInput) -> tuple[LoraAdapter, Record]:
        """Return an adapter, or that of a fusion."""
        if isinstance(one.model, AdapterFusion):
            return one.model.adapter, one.model.record
        if isinstance(one.model, LoraAdapter):
            return one.model, None
        raise InputError(one.label, f"is a {type(one.model).__name__}, and others are adapters", code="E-TYPE")

    def settle(self, value: LoraAdapter, one: NamedInput, place: int, problems: list[Problem]) -> LoraAdapter:
        """Return an adapter of enough observations; see `Reading.settle`."""
        number = value.n_observations
        if number is not None and number < self.min_count:
            text = f"is about {number:g} observations, fewer than {self.min_count:g}: nothing may leave"
            problems.append(Problem(one.label, text, "`min_count=0` takes it", "E-FEW"))
        return value


def prepare_fusion(request: Request) -> Prepared:
    """Read and check adapters; see ``Kind.prepare``."""
    options = dict(request.options)
    min_count = checked_min_count(options.pop("min_count", MIN_COUNT))
    method = make_adapter_method(request.method, options)
    if request.n_observations is not None:
        raise OptionError("n_observations", "adapters count by `weights=`; leave it out")
    gathered = gather(request.inputs, AdapterReading(min_count))
    problems = [*too_few_models(len(request.inputs)), *gathered.problems]
    if problems or not gathered.described:
        return Prepared.checked(problems, gathered.doubts)
    weights = _weights(request.weights, [site.name for site in gathered.described])
    with _staged(gathered.described) as paths:
        try:
            prepare_adapters(_merge_request(paths, method, weights), Path(_OUTPUT))
        except InputError as error:
            return Prepared.checked(_by_label(error, gathered.described, paths), gathered.doubts)
    fuse = partial(_fuse, gathered.described, method, weights, request)
    return Prepared([], fuse, doubts=gathered.doubts)


def _weights(given: Any, names: Sequence[str]) -> list[float] | None:
    """Return the weights of adapters in their order."""
    weights = in_order(given, names, "weights")
    return None if weights is None else [float(weight) for weight in weights]


def _merge_request(
    paths: Sequence[Path], method: AdapterAverage, weights: list[float] | None, seed: int = 0
) -> MergeRequest:
    """Return the merge of the adapters at some paths."""
    return MergeRequest(
        models=tuple(paths), method=TensorAverage(), weights=weights, rank=method.rank, seed=seed,
        allow_differences=method.allow_differences,
    )  # fmt: skip


@contextmanager
def _staged(described: Sequence[Described[LoraAdapter]]) -> Iterator[list[Path]]:
    """Yield the files of adapters; those in memory are written into a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="consilience-adapters-") as folder:
        paths = []
        for number, site in enumerate(described):
            if isinstance(site.value.content, bytes):
                paths.append(Path(folder) / f"{number}.safetensors")
                site.value.pack(paths[-1])
            else:
                paths.append(site.value.content)
        yield paths


def _by_label(
    error: ConsilienceError, described: Sequence[Described[LoraAdapter]], paths: Sequence[Path]
) -> list[Problem]:
    """Return problems of a merge with what messages call its inputs in place of paths."""
    problems = list(error.problems)
    for site, path in zip(described, paths, strict=True):
        problems = [problem.renamed(path, site.label) for problem in problems]
    remedy = "merge them with their base: `consilience merge ... --base BASE`"
    return [one if one.remedy != _NEEDS_BASE else one.with_parts(remedy=remedy) for one in problems]


def _raise_by_label(
    error: ConsilienceError, described: Sequence[Described[LoraAdapter]], paths: Sequence[Path]
) -> NoReturn:
    raise InputError(_by_label(error, described, paths)) from error


def _fuse(
    described: Sequence[Described[LoraAdapter]], method: AdapterAverage, weights: list[float] | None, request: Request
) -> AdapterFusion:
    """Merge adapters, and return the fusion with its record."""
    with _staged(described) as paths, tempfile.TemporaryDirectory(prefix="consilience-fused-") as folder:
        output = Path(folder) / _OUTPUT
        try:
            prepared = prepare_adapters(_merge_request(paths, method, weights), output)
            finished, _ = run_adapters(prepared, output, request.progress)
        except InputError as error:
            _raise_by_label(error, described, paths)
        adapter = LoraAdapter.read(output)
        counts = [len(modules_of(path)) for path in paths]
    names = [site.name for site in described]
    notes = list(finished.notes)
    for site, path in zip(described, paths, strict=True):
        notes = [note.replace(str(path), site.label) for note in notes]
    found: Any = finished.provenance["details"]
    details = _details(found, names, notes)
    shares = [1.0] * len(names) if weights is None else weights
    records = [site.record(count, share, []) for site, count, share in zip(described, counts, shares, strict=True)]
    rests_on = site_digests(site.rests_on for site in described)
    result = result_record(len(details["ranks"]), Status.CONVERGED, details, site_digests=rests_on)
    options = {"rank": method.rank, "allow_differences": method.allow_differences}
    return AdapterFusion(
        adapter=adapter,
        matching=None,
        details=details,
        provenance=make_provenance(method.name, options, request.seed, records, result),
        inputs=tuple(
            FusedInput(site.name, site.value, site.digest, weight)
            for site, weight in zip(described, shares, strict=True)
        ),
    )


def _details(found: Mapping[str, Any], names: Sequence[str], notes: Sequence[str]) -> AdapterDetails:
    """Return what a merge found, its models by the names of the sites."""
    lost = found["adapters"]
    errors = next(value for key, value in lost.items() if key.endswith("rounding"))
    details: AdapterDetails = {"ranks": dict(lost["ranks"]), "errors": dict(errors), "error": lost["error"]}
    changes = dict(found.get("changes") or {})
    if "models" in changes:
        details["changes"] = {**changes, "models": dict(zip(names, changes["models"].values(), strict=True))}
    return {**details, "notes": list(notes)} if notes else details


def sizes_of(file: SafetensorsFile) -> tuple[int, float]:
    """Return the modules of an adapter file, and the size of its products, every value looked at.

    Raises InputError for adapters that cannot be merged.
    """
    try:
        adapter = LoraAdapter.of_file(file)
        known = read_factors(open_adapter_at(file.path))
        if problems := adapter_problems(known):
            raise InputError(problems)
    except InputError as error:
        raise InputError(problem.renamed(file.path, file) for problem in error.problems) from error
    values = {name: _values(adapter, name) for name in adapter.tensors}
    if odd := [name for name, found in values.items() if found is not None and not np.isfinite(found).all()]:
        raise InputError(non_finite_problem(odd[0], str(file)))
    total = 0.0
    for module in known.factors:
        a, b = known.read(module, lambda name: np.asarray(values[name]))
        total += known.scale(module) ** 2 * squared_change(a, b, a, b)[1]
    return len(known.factors), float(np.sqrt(total))


def _values(adapter: LoraAdapter, name: str) -> Any:
    """Return a tensor in float64; None where it has no floats."""
    stored = adapter.tensors[name]
    if stored.dtype not in FLOAT_TYPES:
        return None
    values = np.empty(stored.size)
    FLOAT_TYPES[stored.dtype].decode(np.frombuffer(adapter.bytes_of(name), dtype=np.uint8), values)
    return values.reshape(stored.shape)
