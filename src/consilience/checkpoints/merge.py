"""The public function merge: checkpoints larger than memory into one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any

from consilience.checkpoints.methods.base import TensorMethod, make_tensor_method
from consilience.checkpoints.methods.table import TENSOR_METHODS
from consilience.checkpoints.numbers import DTYPES
from consilience.checkpoints.output import refuse_full, refuse_output
from consilience.checkpoints.plan import Plan
from consilience.checkpoints.recipe import Rule, as_rules
from consilience.checkpoints.request import Request, prepare
from consilience.checkpoints.run import run
from consilience.core.progress import Progress, shown
from consilience.errors import InputError, OptionError
from consilience.files.sizes import as_bytes
from consilience.networks.api import symmetry as traced_symmetry
from consilience.networks.files import read_symmetry
from consilience.networks.symmetry.symmetry import Symmetry

SHARD_BYTES = 5 * 10**9


@dataclass(frozen=True, eq=False)
class Merge:
    """A merge of checkpoints, done or planned.

    Parameters
    ----------
    output
        The folder or file.
    plan
        What is done with every tensor, in which files, how many bytes that reads, writes and allocates.
    digests
        SHA-256 of every file of weights that was written; empty for a plan alone.
    provenance
        What ``merge.json`` says: recipe, inputs with their digests, versions. Empty for a plan alone.
    notes
        What one should know of it, a line each.
    resumed
        How many files an interrupted run had finished before.
    """

    output: Path
    plan: Plan
    digests: Mapping[str, str] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    resumed: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of the files of weights."""
        return self.plan.bytes_out


def merge(
    models: Sequence[str | Path],
    output: str | Path,
    method: str | TensorMethod = "average",
    *,
    base: str | Path | None = None,
    weights: Sequence[float] | None = None,
    dtype: str | None = None,
    shard_bytes: int | str = SHARD_BYTES,
    fishers: Sequence[str | Path] | None = None,
    symmetry: Symmetry | str | Path | None = None,
    module: Any = None,
    example: Any = None,
    patterns: Sequence[Mapping[str, Any] | Rule] | None = None,
    seed: int = 0,
    resume: bool = True,
    overwrite: bool = False,
    dry_run: bool = False,
    threads: int | None = None,
    progress: bool | Progress = False,
    **options: Any,
) -> Merge:
    """Merge checkpoints into one, tensor by tensor, in a memory that does not grow with them.

    Every tensor is read in pieces, calculated in 32 bits (64 where 32 would show), and rounded once. Everything that is
    wrong with the inputs is said before the first byte is written. The output appears whole or not at all; what an
    interrupted run had finished is taken up by the next.

    Parameters
    ----------
    models
        Folders as the Hugging Face ecosystem has them, index files, or single safetensors files.
    output
        A folder; or a single file, if its name ends in ``.safetensors``.
    method
        ``"average"``, ``"fisher"``, ``"ties"``, ``"dare"``, ``"task_arithmetic"``, ``"slerp"``, or one of their
        classes.
    base
        The checkpoint that all were trained from, for ``ties``, ``dare`` and ``task_arithmetic``.
    weights
        How much each model counts.
    dtype
        Of floating tensors of the output: ``"float64"``, ``"float32"``, ``"bfloat16"``, ``"float16"``,
        ``"float8_e4m3fn"``, ``"float8_e5m2"``; None keeps those of the first model.
    shard_bytes
        Of tensors in a file of the output, at most; a number, or text such as ``"5GB"``.
    fishers
        For ``fisher``: a file of Fisher diagonals for each model.
    symmetry
        Which axes move together, or the file that says so: units are matched to the first model's before they are
        merged. For models of different starts.
    module, example
        A torch module of the architecture and an input: the symmetry is traced and proved.
    patterns
        What is different for some tensors: mappings with ``pattern`` (as in ``fnmatch``; the first that matches
        counts) and ``weights``, ``method``, ``options``, or ``method: copy`` with ``from``, the number of a model.
    seed
        Of random choices; the same seed gives the same bytes.
    resume
        Whether to go on where an interrupted run of the same merge ended.
    overwrite
        Whether an output that exists may be replaced.
    dry_run
        Whether to read headers only and return the plan.
    threads
        How many calculate; the result is the same for any number.
    progress
        True shows a bar on a terminal; a callable is told (bytes written, in all).
    **options
        Of the method, such as ``density=0.2``.

    Returns
    -------
    Merge

    Raises
    ------
    InputError
        Naming everything that keeps the checkpoints from being merged.
    OptionError
        For options that do not exist or do not fit.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from safetensors.numpy import load_file, save_file
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name, value in (("a", 1.0), ("b", 4.0)):
    ...     save_file({"w": np.full(3, value, dtype=np.float16)}, folder / f"{name}.safetensors")
    >>> done = merge([folder / "a.safetensors", folder / "b.safetensors"], folder / "ab.safetensors", weights=[2, 1])
    >>> load_file(done.output)["w"]
    array([2., 2., 2.], dtype=float16)
    """
    paths = _paths(models, "models")
    if not paths:
        raise InputError("models: there are none; give at least one checkpoint")
    chosen = make_tensor_method(TENSOR_METHODS, method, options)
    if dtype is not None and dtype not in DTYPES:
        raise OptionError(f"dtype: expected one of {', '.join(DTYPES)}, found {dtype!r}")
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise OptionError(f"seed: expected an integer that is not negative, found {seed!r}")
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise OptionError(f"threads: expected a positive integer, found {threads!r}")
    target = Path(output)
    request = Request(
        models=paths,
        method=chosen,
        options=options,
        base=None if base is None else Path(base),
        fishers=_paths(fishers or (), "fishers"),
        weights=weights,
        rules=as_rules(patterns),
        dtype=None if dtype is None else DTYPES[dtype],
        shard_bytes=as_bytes(shard_bytes),
        symmetry=_symmetry(symmetry, module, example),
        seed=int(seed),
    )
    inputs = [*paths, *request.fishers, *(() if request.base is None else (request.base,))]
    prepared = prepare(request, target)
    refuse_output(target, inputs, overwrite)
    if dry_run:
        refuse_full(target, sum(shard.nbytes for shard in prepared.plan.shards))
        return Merge(target, prepared.plan, notes=prepared.plan.notes)
    with shown(progress, "merge", "B") as report:
        done = run(prepared, target, resume, report, threads)
    return Merge(target, prepared.plan, done.digests, done.provenance, done.notes, done.resumed)


def _paths(given: Any, what: str) -> tuple[Path, ...]:
    if isinstance(given, str | Path):
        raise OptionError(f"{what}: expected a list of paths, found one path")
    found = []
    for one in given:
        if not isinstance(one, str | Path):
            raise InputError(f"{what}: expected paths of checkpoints, found {type(one).__name__}; save it first")
        found.append(Path(one))
    return tuple(found)


def _symmetry(symmetry: Any, module: Any, example: Any) -> Symmetry | None:
    """Return the symmetry that was given, read or traced."""
    if symmetry is not None and example is not None:
        raise OptionError("symmetry, example: give one of them")
    if (module is None) != (example is None):
        raise OptionError("module, example: give both, to find which axes move together")
    if example is not None:
        return traced_symmetry(module, example)
    if symmetry is None or isinstance(symmetry, Symmetry):
        return symmetry
    if not isinstance(symmetry, str | Path):
        raise OptionError(f"symmetry: expected a Symmetry or the path of its file, found {type(symmetry).__name__}")
    return read_symmetry(Path(symmetry))
