"""Merging of checkpoints larger than memory: the public function `merge` and its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from consilience.checkpoints.card import in_short, noun_of
from consilience.checkpoints.chat_templates import as_chat_template
from consilience.checkpoints.layers import as_slices
from consilience.checkpoints.lora.factors import as_rank
from consilience.checkpoints.lora.plan import PreparedAdapters, are_adapters, prepare_adapters
from consilience.checkpoints.lora.run import run_adapters
from consilience.checkpoints.mergekit import alias
from consilience.checkpoints.methods import make_tensor_method
from consilience.checkpoints.numbers import type_in_files
from consilience.checkpoints.output import refuse_full_disk, refuse_output
from consilience.checkpoints.plan import MergePlan
from consilience.checkpoints.recipe import TensorRule, as_rules
from consilience.checkpoints.request import MergeRequest, prepare
from consilience.checkpoints.run import run
from consilience.checkpoints.vocabularies import as_vocabulary
from consilience.checks import as_bytes, is_count
from consilience.core.methods import Options
from consilience.core.progress import Progress, seeded, shown
from consilience.drawing.display import Displayed, names_in_line
from consilience.drawing.words import format_count
from consilience.engines import Engine, running
from consilience.errors import InputError, OptionError
from consilience.files.atomic import refuse_to_replace
from consilience.networks.api import symmetry as traced_symmetry
from consilience.networks.files import read_symmetry
from consilience.networks.symmetry.symmetry import Symmetry

SHARD_BYTES = 5 * 10**9
"""Bytes of tensors in a file of the output: the default of save_pretrained in transformers 4. It is also what an
interrupted merge can lose, since files are finished one after another."""


@dataclass(frozen=True, eq=False, repr=False)
class Merge(Displayed):
    """A merge of checkpoints, done or planned.

    Parameters
    ----------
    output : Path
        The folder or file.
    plan : MergePlan
        What is done with every tensor, in which files, and how many bytes that reads, writes and allocates.
    digests : mapping of str to str
        SHA-256 of every file of weights that was written, by name; empty for a plan alone.
    provenance : mapping
        The content of ``merge.json``: recipe, inputs with their digests, versions. Empty for a plan alone.
    notes : tuple of str
        What a user should know of the merge, a line each.
    resumed : int
        Number of files that an interrupted run had finished before.
    """

    output: Path
    plan: MergePlan
    digests: Mapping[str, str] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    resumed: int = 0

    def _headline(self) -> str:
        state = "written" if self.digests else "planned"
        files = format_count(len(self.plan.shards), "file")
        return f"{format_count(self.plan.tensors, 'tensor')} in {files} {state}, {self.bytes:,} bytes"

    def _facts(self) -> dict[str, object | None]:
        record = self.provenance
        models = [str(one["name"]) for one in record.get("inputs", ()) if one.get("role") == "model"]
        return {
            "": in_short(len(models), noun_of(record)) if self.digests else None,
            "method": record.get("recipe", {}).get("method"),
            "models": names_in_line(models),
            "output": self.output,
            "notes": "; ".join(self.notes) or None,
            "finished before": format_count(self.resumed, "file") if self.resumed else None,
        }

    def report(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a page about the merge, whole or not at all: one HTML file without scripts that fetches nothing.

        With `overwrite` a file that is there is replaced also where this library did not write it.

        It shows by layer how far the merge goes over the furthest model, and how often signs of changes disagree.
        Raises OptionError for a plan alone, of which there is nothing to show.
        """
        refuse_to_replace(path, overwrite)
        from consilience.checkpoints.report import write_page  # here, since most merges need none

        if not self.provenance:
            raise OptionError("report", "there is none of a plan", "merge without `dry_run=True`")
        write_page(Path(path), self.provenance)

    @property
    def bytes(self) -> int:
        """Bytes of the files of weights."""
        return self.plan.bytes_out


def merge(
    models: Sequence[str | Path],
    output: str | Path,
    method: str | Options = "average",
    *,
    base: str | Path | None = None,
    weights: Sequence[float] | None = None,
    dtype: str | None = None,
    shard_bytes: int | str = SHARD_BYTES,
    fishers: Sequence[str | Path] | None = None,
    symmetry: Symmetry | str | Path | None = None,
    module: Any = None,
    example: Any = None,
    patterns: Sequence[Mapping[str, Any] | TensorRule] | None = None,
    slices: Sequence[Sequence[Sequence[int]]] | Mapping[str, Any] | None = None,
    rank: int | float | None = None,
    residual_into_base: bool = False,
    vocabulary: str | int | Mapping[str, Any] | None = None,
    chat_template: str | None = None,
    allow_differences: bool | Sequence[str] = False,
    rng: int | np.random.Generator = 0,
    resume: bool = True,
    overwrite: bool = False,
    dry_run: bool = False,
    threads: int | None = None,
    engine: Any = None,
    progress: bool | Progress = False,
    **options: Any,
) -> Merge:
    """Merge checkpoints into one, tensor by tensor, in a memory that does not grow with them.

    Every tensor is read in pieces, computed in 32 bits (64 where 32 would show), and rounded once. All problems of the
    inputs are listed before the first byte is written. The output appears whole or not at all; the next run of the same
    merge takes the files that an interrupted one has finished.

    LoRA adapters of one base (folders as peft saves them, files of kohya's trainer and of diffusers) are merged
    exactly, by stacking their ranks: the product B A of the output is the weighted mean of the adapters' products, or
    with ``task_arithmetic`` their sum.

    Parameters
    ----------
    models : sequence of J paths
        Folders as the Hugging Face ecosystem has them, index files, or single safetensors files; or all of
        them LoRA adapters, in folders or files.
    output : path
        A folder; or a single file, if its name ends in ``.safetensors``.
    method : str or method
        A name that ``consilience methods`` lists, such as ``"average"`` or ``"ties"``, one of mergekit, such as
        ``"dare_ties"``, or one of their classes. Default: ``"average"``.
    base : path, optional
        The checkpoint that all were trained from, for methods that see models as its changes.
    weights : sequence of J floats, optional
        Weight of each model. Default: equal weights.
    dtype : str, optional
        Type of the floating-point tensors of the output: ``"float64"``, ``"float32"``, ``"bfloat16"``, ``"float16"``,
        ``"float8_e4m3fn"``, ``"float8_e5m2"``. Default: the types of the first model.
    shard_bytes : int or str
        Bytes of the tensors in a file of the output, at most; a number, or text such as ``"5GB"``. Default: 5 GB.
    fishers : sequence of J paths, optional
        For ``fisher``: a file of Fisher diagonals for each model.
    symmetry : Symmetry or path, optional
        Which axes move together, or its file: units are matched to those of the first model before they are merged. For
        models of different starts.
    module, example : torch module and its input, optional
        A module of the architecture and an input: the symmetry is traced and proved.
    patterns : sequence of mappings, optional
        What is different for some tensors: mappings with ``pattern`` (as in ``fnmatch``; the first match counts) and
        ``weights``, ``method``, ``options``, or ``method: copy`` with ``from``, the number of a model.
    slices : sequence of sequences of (model, first, stop), or these by module, optional
        Layers to take, one slice behind another: of every slice for each merged model the number of a checkpoint and a
        range of its layers. Layers may be stacked, left out and repeated; configurations follow. Slices may have
        different numbers of models; weights then are of the first ones. Models of several towers have slices for each
        module, such as ``{"text_decoder": ..., "vision_tower": ..., "multi_modal_projector": [[(0, 0, 0)]]}``, with
        0 to 0 for a module without layers. Default: all layers.
    rank : int or float, optional
        Of merged adapters: the highest rank of a module; or a share of energy between 0 and 1, such as 0.99: each
        module gets the smallest rank that keeps this share of the squared singular values of its merged product. The
        nearest product of that rank is written, and its error stated. Default: the sum of their ranks, which weighted
        sums need to be exact.
    residual_into_base : bool
        Of merged adapters with `base`: whether their factors are averaged, A and B apart, and the base takes what that
        leaves out of the mean of the products (FedEx-LoRA, Singhal et al. 2025). The adapter keeps its rank. The output
        has two folders, ``adapter`` and ``base``, which belong together. Default: False.
    vocabulary : {"base", "union"}, int or mapping, optional
        Tokens of the output, where tokenizers differ: those of the base (of the first model where there is none), of
        the model of a number, or of all. Rows of embeddings and heads are found by their tokens. A mapping says more:
        ``source``, any of these; ``tokens``, by token the model whose row it takes where a model lacks it (or
        ``"base"``, ``"zero"``, or ``{"from": ..., "token": ..., "force": True}``); ``multiple_of`` for the number of
        rows. Default: all have the same tokens.
    chat_template : str, optional
        Chat template of the output's tokenizer: ``"chatml"``, ``"llama3"``, ``"mistral"``, ``"alpaca"``, ``"exaone"``,
        ``"auto"`` for the most common one of the inputs, or a text in Jinja. Default: as the tokenizer has it.
    allow_differences : bool or sequence of str
        Whether configurations and tokenizers that differ in what no shape shows (positions, norms, activations, heads,
        tokens) are noted instead of refused: all, or those of some fields, such as ``["rope_scaling", "tokenizer"]``.
        Default: False.
    rng : int or Generator
        Source of random choices; the same seed gives the same bytes. A Generator is asked for a seed. Default: 0.
    resume : bool
        Whether to continue where an interrupted run of the same merge ended. Default: True.
    overwrite : bool
        Whether an output that exists may be replaced. Default: False.
    dry_run : bool
        Whether to read headers only and return the plan. Default: False.
    threads : int, optional
        Number of threads that compute; the result is the same for any number. Default: one for each core, up to 4.
    engine : None, str, distributed.Client or Engine
        Where the files of the output are written, with the same bytes: None or ``"local"`` here, one after another; the
        address of a Dask scheduler or a client on its workers, several at a time, which see inputs and output under the
        same paths. Default: None.
    progress : bool or callable
        True shows a bar with an estimate in a terminal or a notebook; a callable is called with (bytes written, bytes
        in all), or with the seconds that are left too where it takes three arguments. Default: False.
    **options
        Options of the method, such as ``density=0.2``.

    Returns
    -------
    Merge

    Raises
    ------
    InputError
        With everything that keeps the checkpoints from being merged.
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
        raise InputError("models", "there are none", "give at least one checkpoint", "E-NEEDED")
    if isinstance(method, str) and (known := alias(method)) is not None:
        method, options = known[0], {**known[1], **options}
    tensor_method = make_tensor_method(method, options)
    as_chat_template(chat_template)  # raises for names that there are not
    seed, generator = seeded(rng)
    if threads is not None and not is_count(threads):
        raise OptionError("threads", f"expected a positive integer, found {threads!r}")
    request = MergeRequest(
        models=paths,
        method=tensor_method,
        options=options,
        base=None if base is None else Path(base),
        fishers=_paths(fishers or (), "fishers"),
        weights=weights,
        rules=as_rules(patterns),
        slices=as_slices(slices, len(paths)),
        rank=None if rank is None else as_rank(rank),
        residual_into_base=residual_into_base,
        vocabulary=as_vocabulary(vocabulary, len(paths)),
        chat_template=chat_template,
        dtype=None if dtype is None else type_in_files(dtype),
        shard_bytes=as_bytes(shard_bytes),
        symmetry=_symmetry(symmetry, module, example),
        seed=int(generator.integers(2**63)) if seed is None else seed,
        allow_differences=allow_differences if isinstance(allow_differences, bool) else frozenset(allow_differences),
    )
    with running(engine) as place:
        where = None if engine in (None, "local") else place
        return _merge(request, Path(output), dry_run, resume, overwrite, threads, where, progress)


def _merge(
    request: MergeRequest,
    target: Path,
    dry_run: bool,
    resume: bool,
    overwrite: bool,
    threads: int | None,
    engine: Engine | None,
    progress: bool | Progress,
) -> Merge:
    """Return what a request gives in its place, or with `dry_run` its plan."""
    inputs = [*request.models, *request.fishers, *(() if request.base is None else (request.base,))]
    given = [name for name, value in (("chat_template", request.chat_template), ("engine", engine)) if value]
    if given and are_adapters(request):
        raise OptionError(given[0], "is for whole models, and these are adapters", "leave it out")
    prepared = prepare_adapters(request, target) if are_adapters(request) else prepare(request, target)
    refuse_output(target, inputs, overwrite)
    plan = prepared.whole_plan if isinstance(prepared, PreparedAdapters) else prepared.plan
    if dry_run:
        refuse_full_disk(target, sum(shard.nbytes for shard in plan.shards))
        return Merge(target, plan, notes=plan.notes)
    with shown(progress, "merge", "B") as report:
        if isinstance(prepared, PreparedAdapters):
            finished, plan = run_adapters(prepared, target, report)
        else:
            finished = run(prepared, target, resume, report, threads, engine=engine)
    return Merge(target, plan, finished.digests, finished.provenance, finished.notes, finished.resumed)


def _paths(values: Any, option: str) -> tuple[Path, ...]:
    if isinstance(values, str | Path):
        raise OptionError(option, "expected a list of paths, found one path")
    paths = []
    for value in values:
        if not isinstance(value, str | Path):
            text = f"expected paths of checkpoints, found {type(value).__name__}"
            raise InputError(option, text, "save it first", "E-TYPE")
        paths.append(Path(value))
    return tuple(paths)


def _symmetry(symmetry: Any, module: Any, example: Any) -> Symmetry | None:
    """Return the symmetry: as given, from its file, or traced from a module."""
    if symmetry is not None and example is not None:
        raise OptionError("symmetry, example", "give one of them")
    if (module is None) != (example is None):
        raise OptionError("module, example", "give both, to find which axes move together")
    if example is not None:
        return traced_symmetry(module, example)
    if symmetry is None or isinstance(symmetry, Symmetry):
        return symmetry
    if not isinstance(symmetry, str | Path):
        raise OptionError("symmetry", f"expected a Symmetry or the path of its file, found {type(symmetry).__name__}")
    return read_symmetry(Path(symmetry))
