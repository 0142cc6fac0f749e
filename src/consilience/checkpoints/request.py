"""Requests of merges, and their validation: from headers to a plan, or to all problems at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache, partial
from math import prod
from pathlib import Path
from typing import Any

from consilience.checkpoints.buffers import buffer_bytes
from consilience.checkpoints.chat_templates import AUTO, as_chat_template, most_common_template
from consilience.checkpoints.configurations import compare_checkpoints, compare_tokenizers
from consilience.checkpoints.fisher_files import open_fisher
from consilience.checkpoints.folder import Checkpoint
from consilience.checkpoints.inputs import MergeInputs, parts_in
from consilience.checkpoints.layers import (
    Slices,
    counts_layers,
    is_counted,
    misfits,
    place_in_slices,
    plain_slices,
    stacked,
    tensors_by_module,
    uncounted,
)
from consilience.checkpoints.lora.into_base import open_model
from consilience.checkpoints.methods import TENSOR_METHODS, make_tensor_method
from consilience.checkpoints.methods.base import TensorMethod
from consilience.checkpoints.numbers import FLOAT_TYPES
from consilience.checkpoints.parametrised_weights import merged_parts
from consilience.checkpoints.plan import MergePlan, TensorTask, Treatment, assign_shards, plan_tasks
from consilience.checkpoints.recipe import TensorRule
from consilience.checkpoints.vocabularies import Vocabulary, VocabularyRequest, is_token_table, with_vocabulary
from consilience.checks import Json
from consilience.drawing.words import first_names
from consilience.errors import InputError, OptionError, Problem
from consilience.networks.entry_names import common_names, is_bookkeeping, is_counter, is_extra_state
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.weight_parts import REMOVAL, WeightParts, plain_shapes

SINGLE_FILE_SUFFIX = ".safetensors"
"""Suffix of an output that is a single file instead of a folder."""

_MAX_LISTED = 3
"""Tensors that a note names. Chosen by hand."""

_MAX_THREADS = 4
"""Threads that compute by default. Chosen by hand: reading, writing and two digests have threads of their own."""

_HISTOGRAM_BYTES = 64 * 2**20
"""Bytes for the histograms of a model, of the pieces in flight together (docs/guides/checkpoints.md). Chosen by
hand."""


@dataclass(frozen=True, eq=False)
class MergeRequest:
    """Everything that ``merge`` was called with."""

    models: tuple[Path, ...]  # (J,), the models
    method: TensorMethod  # method of the tensors that no rule matches
    options: Mapping[str, Any] = field(default_factory=dict)  # options that the user gave for it
    base: Path | None = None  # the common start
    fishers: tuple[Path, ...] = ()  # (J,), files of Fisher diagonals
    weights: Any = None  # (J,), weights as the user gave them. Default: equal weights.
    rules: tuple[TensorRule, ...] = ()  # what is different for some tensors
    # Ranges of layers of the models, one slice behind another, which then are merged, by module. Default: models whole.
    slices: Slices = ()
    dtype: str | None = None  # type of the output, in the words of safetensors. Default: the first model's types.
    # Bytes of the tensors in a file of the output, at most.
    shard_bytes: int = 5 * 10**9  # as SHARD_BYTES of `merge`
    vocabulary: VocabularyRequest | None = (
        None  # tokens of the output. Default: those of all models, which are the same.
    )
    # Chat template of the output: by name, "auto" or its text. Default: that of the tokenizer that the output has.
    chat_template: str | None = None
    # Of merged adapters: the highest rank, or the share of a product's energy that its rank keeps. Default: the sum of
    # their ranks.
    rank: int | float | None = None
    residual_into_base: bool = False  # whether adapters are averaged factor by factor, and the base takes the rest
    # Which axes move together, for an alignment before the merge. Default: units stay as they are numbered.
    symmetry: Symmetry | None = None
    seed: int = 0  # seed of random choices
    # Which differences of configurations and tokenizers are noted instead of refused: all, or fields by name.
    allow_differences: bool | frozenset[str] = False

    def document(self) -> dict[str, Json]:
        """Return the request as plain values without paths, for recipe and provenance; defaults are left out."""
        rules = [
            {key: value for key, value in rule.model_dump(by_alias=True).items() if value not in (None, {})}
            for rule in self.rules
        ]
        document = {
            "method": self.method.name,
            "options": asdict(self.method),
            "weights": None if self.weights is None else [float(weight) for weight in self.weights],
            "dtype": None if self.dtype is None else FLOAT_TYPES[self.dtype].name,
            "shard_size": self.shard_bytes,
            "rank": self.rank,
            "residual_into_base": self.residual_into_base or None,
            "symmetry": None if self.symmetry is None else self.symmetry.digest,
            "seed": self.seed,
            "slices": plain_slices(self.slices) if self.slices else None,
            "vocabulary": None if self.vocabulary is None else self.vocabulary.document(),
            "chat_template": self.chat_template,
            "tensors": rules,
        }
        return {key: value for key, value in document.items() if value not in (None, [], {})}


@dataclass(frozen=True, eq=False)
class PreparedMerge:
    """A merge whose headers have been read and checked."""

    request: MergeRequest  # the request
    inputs: MergeInputs  # the checkpoints, opened
    plan: MergePlan  # what is done with every tensor
    vocabulary: Vocabulary | None = None  # how tables of tokens are read, where the request says which
    chat_template: str | None = None  # in Jinja, where the request says which


def prepare(request: MergeRequest, output: Path) -> PreparedMerge:
    """Return what a merge will do, from headers alone.

    Parameters
    ----------
    request : MergeRequest
        The request.
    output : Path
        The folder or file to write.

    Raises
    ------
    InputError
        With all problems at once.
    OptionError
        For options that do not fit.
    """
    inputs, folders = _opened(request)
    expected = None if request.symmetry is None else (*request.symmetry.layouts, *request.symmetry.aliases)
    inputs, notes, prefixes = with_common_names(inputs, expected)
    notes += [note for checkpoint in inputs.all for note in checkpoint.notes]
    vocabulary = None
    if request.vocabulary is not None:
        inputs, vocabulary = with_vocabulary(request.vocabulary, inputs)
        notes += vocabulary.notes
    problems = prefixes or inputs.problems()  # without the prefix, all names would be listed as missing
    differences, configuration_notes = compare_inputs(inputs, request.allow_differences)
    problems += differences if vocabulary is None else [one for one in differences if not _is_of_tokens(one)]
    notes += _configuration_notes(request, inputs)
    treatments, unused_rules = treatments_by_tensor(
        {name: inputs.sources(name) for name in inputs.models[0].tensors}, request.method, request.options,
        request.weights, request.rules, parts_in(inputs.models[0]),
    )  # fmt: skip
    problems += unused_rules + _unmet_needs(request, inputs, treatments)
    if problems:
        raise InputError(problems)
    if request.symmetry is not None:
        units_of(request.symmetry, inputs)  # raises where shapes do not fit the symmetry
    plan = _make_plan(request, inputs, treatments, output)
    template = as_chat_template(request.chat_template)
    if template == AUTO and (template := most_common_template(folders)) is None:
        notes.append("chat_template: no checkpoint has one")
    plan = replace(plan, notes=(*notes, *plan.notes, *configuration_notes))
    return PreparedMerge(request, inputs, plan, vocabulary, template)


def _opened(request: MergeRequest) -> tuple[MergeInputs, list[Path]]:
    """Return the checkpoints of a request, headers read and layers stacked, and their folders.

    Raises InputError with all that cannot be read.
    """
    problems: list[Problem] = []

    def open_or_note(path: Path, reader: Callable[[Path], Any]) -> Any:
        try:
            return reader(path)
        except InputError as error:
            problems.extend(error.problems)
            return None

    models = [open_or_note(path, open_model) for path in request.models]
    base = None if request.base is None else open_or_note(request.base, open_model)
    methods = {request.method.name, *(rule.method for rule in request.rules)}
    takes_factors = any(method.uses_factors for method in TENSOR_METHODS if method.name in methods)
    fishers = [
        open_or_note(path, partial(open_fisher, model=model, factors=takes_factors))
        for path, model in zip(request.fishers, models, strict=False)
        if model is not None
    ]
    if request.fishers or request.symmetry is not None:
        given = (("slices", request.slices), ("vocabulary", request.vocabulary))
        text = "is for methods without Fisher diagonals and symmetries"
        problems += [Problem(name, text, "leave one out") for name, value in given if value]
    if len(request.fishers) not in (0, len(request.models)):
        text = f"there are {len(request.fishers)} for {len(request.models)} models"
        problems.append(Problem("fishers", text, "give one for each", "E-SHAPE"))
    if problems:
        raise InputError(problems)
    refuse_adapted(request, [model for model in (*models, base) if model is not None])
    folders = [one.folder for one in (*models, base) if one is not None and one.folder is not None]
    if request.slices:
        return _sliced(request, models, base), list(dict.fromkeys(folders))
    diagonals = tuple(fisher for fisher, _ in fishers)
    inputs = MergeInputs(tuple(models), base, diagonals, tuple(informed for _, informed in fishers))
    return inputs, list(dict.fromkeys(folders))


def _configuration_notes(request: MergeRequest, inputs: MergeInputs) -> list[str]:
    """Return what of configurations was neither compared nor changed."""
    notes = []
    modules = [one.module for one in request.slices]
    if modules and (fields := uncounted(inputs.models[0].config, modules)):
        notes.append(f"config.json: {', '.join(fields)} stay as they are; look whether they fit the layers now")
    if elsewhere := [module for module in modules if not is_counted(module)]:
        notes.append(f"config.json: the number of layers of {', '.join(elsewhere)} stays as it is")
    if inputs.models[0].config and (without := [one.name for one in inputs.models if not one.config]):
        notes.append(f"{first_names(without, _MAX_LISTED)}: no config.json, so nothing of it was compared")
    return notes


def refuse_adapted(request: MergeRequest, checkpoints: Sequence[Checkpoint]) -> None:
    """Raise for adapters with what looks at stored tensors, before they are changed."""
    asked = {
        "slices": request.slices, "fishers": request.fishers, "symmetry": request.symmetry,
        "vocabulary": request.vocabulary,
    }  # fmt: skip
    given = [name for name, value in asked.items() if value not in (None, ())]
    if given and (adapted := [one for one in checkpoints if one.changes]):
        text = f"has an adapter, which {given[0]} cannot be taken with"
        remedy = "merge it into its base first: consilience merge BASE+ADAPTER -o OUT"
        raise InputError(adapted[0].name, text, remedy, "E-ADAPTER")


def _sliced(request: MergeRequest, models: Sequence[Checkpoint], base: Checkpoint | None) -> MergeInputs:
    """Return what slices make of the models, and of the base, which has the same layers in all of a slice.

    Where a slice has fewer models than others, its first one stands in the places of those that it lacks, and is not
    looked at there.
    """
    parts = [part for module in request.slices for part in module.parts]
    modules = [one.module for one in request.slices]
    used = [models[number] for number in sorted({one.model for part in parts for one in part})]
    problems, _ = compare_inputs(MergeInputs(tuple(used)), request.allow_differences)
    if unfit := [*misfits(used, modules), *(one for one in problems if not counts_layers(_differs_in(one)))]:
        raise InputError(unfit)
    places = range(max(map(len, parts)))
    chosen = [
        {one.module: [part[place if place < len(part) else 0] for part in one.parts] for one in request.slices}
        for place in places
    ]
    merged = tuple(
        stacked({module: [(models[one.model], one) for one in ranges] for module, ranges in by_module.items()})
        for by_module in chosen
    )
    fewer: dict[str, int] = {}
    for one, names in zip(request.slices, tensors_by_module(merged[0], modules).values(), strict=True):
        lengths = [len(part[0]) for part in one.parts]
        sources = {name: len(one.parts[place_in_slices(name, lengths)[0]]) for name in names}
        fewer |= {name: count for name, count in sources.items() if count < len(places)}
    if base is None:
        return MergeInputs(merged, fewer=fewer)
    if any(len({(one.first, one.stop) for one in part}) > 1 for part in parts):
        raise InputError("slices", "take different layers of the models, and the base has no such pair", code="E-SHAPE")
    own = {module: [(base, one) for one in ranges] for module, ranges in chosen[0].items()}
    return MergeInputs(merged, stacked(own), fewer=fewer)


def compare_inputs(inputs: MergeInputs, allow_differences: bool | frozenset[str]) -> tuple[list[Problem], list[str]]:
    """Return in what configurations and tokenizers differ: what keeps them from being merged, and what is noted.

    What `allow_differences` names, or all where it is true, is noted too.
    """
    checkpoints = [*inputs.models, *(() if inputs.base is None else (inputs.base,))]
    problems, notes = compare_checkpoints(checkpoints)
    problems += compare_tokenizers(checkpoints)
    allowed = [one for one in problems if allow_differences is True or _differs_in(one) in (allow_differences or ())]
    said = [f"{problem.subject}: {problem.text}; the first model's is taken" for problem in allowed]
    return [one for one in problems if one not in allowed], [*said, *notes]


def _differs_in(problem: Problem) -> str:
    """Return the field of a configuration that a problem is about; "tokenizer" for those of tokenizers."""
    text = problem.text.removeprefix("config.json: ")
    return "tokenizer" if text == problem.text else text.partition(" ")[0]


def _is_of_tokens(problem: Problem) -> bool:
    """Return whether a problem is that checkpoints number tokens differently."""
    field = _differs_in(problem)
    return field in ("tokenizer", "vocab_size") or field.endswith("_token_id")


def _unmet_needs(request: MergeRequest, inputs: MergeInputs, treatments: Mapping[str, Treatment]) -> list[Problem]:
    """Return which methods lack a base or Fisher diagonals, and which of these no method needs."""
    methods = _methods_of(treatments)
    based = [name for name, method in methods.items() if method.needs_base]
    takes_base = based or [name for name, method in methods.items() if method.takes_base]
    informed = [name for name, method in methods.items() if method.needs_information]
    named = f"(method {request.method.name!r})"
    problems = []
    if based and inputs.base is None:
        text = f"method {based[0]!r} needs `base=`, the checkpoint that all models were trained from"
        problems.append(Problem("", text))
    if inputs.base is not None and not takes_base and request.vocabulary is None:
        problems.append(Problem("base", f"no method here looks at one {named}", "leave it out"))
    if informed and not inputs.fishers:
        what = "Kronecker factors" if methods[informed[0]].uses_factors else "Fisher diagonals"
        text = f"method {informed[0]!r} needs `fishers=`, a file of {what} for each model"
        problems.append(Problem("", text, code="E-NEEDED"))
    problems += _unusable_information(inputs, treatments)
    if inputs.fishers and not informed:
        problems.append(Problem("fishers", f"no method here looks at them {named}", "leave them out"))
    if request.symmetry is not None and takes_base:
        text = (
            f"method {takes_base[0]!r} takes units as they are numbered, since models with a common initialisation have"
            " one numbering"
        )
        problems.append(Problem("symmetry", text, "leave it out"))
    return problems


def _methods_of(treatments: Mapping[str, Treatment]) -> dict[str, TensorMethod]:
    """Return the methods of all tensors by name."""
    return {one.method.name: one.method for one in treatments.values() if one.method is not None}


def _unusable_information(inputs: MergeInputs, treatments: Mapping[str, Treatment]) -> Iterator[Problem]:
    """Yield the weights that are held in parts and have information, which no merge can use."""
    for weight in parts_in(inputs.models[0]):
        method = treatments[weight.main].method
        names = {weight.name, *(weight.names if method is not None and method.needs_information else ())}
        if any(names & set(one.tensors) for one in inputs.fishers):
            text = f"a merge cannot use information of {weight.name}, which is held in parts"
            yield Problem("fishers", text, f"{REMOVAL}, or fuse the modules: consilience.fuse", "E-TYPE")


def units_of(symmetry: Symmetry, inputs: MergeInputs) -> dict[str, int]:
    """Return the number of units of every group, which all models share.

    Raises InputError for shapes that do not fit the symmetry.
    """
    problems: list[Problem] = []
    units_by_model: list[dict[str, int]] = []
    for checkpoint in inputs.models:
        shapes = plain_shapes({name: stored.shape for name, (_, stored) in checkpoint.tensors.items()})
        # Tied weights may be stored under another of their names than the symmetry has.
        for alias, name in symmetry.aliases.items():
            if name not in shapes and alias in shapes:
                shapes[name] = shapes[alias]
        # Bookkeeping that not all checkpoints have was left out, and says nothing of units.
        for name, layout in symmetry.layouts.items():
            if name not in shapes and not layout.moving_axes and is_bookkeeping(name, layout.shape({})):
                shapes[name] = layout.shape({})
        try:
            units_by_model.append(symmetry.units(shapes, checkpoint.name))
        except InputError as error:
            problems.extend(error.problems)
    if problems:
        raise InputError(problems)
    return units_by_model[0]


def _make_plan(
    request: MergeRequest, inputs: MergeInputs, treatments: Mapping[str, Treatment], output: Path
) -> MergePlan:
    """Return the plan, with notes on what is copied, averaged for want of information, or unproved."""
    weights = parts_in(inputs.models[0])
    parts = merged_parts(treatments, weights)
    tasks = plan_tasks(inputs, treatments, request.dtype, parts)
    single = output.name if output.suffix == SINGLE_FILE_SUFFIX else None
    shards = assign_shards(tasks, request.shard_bytes, single)
    notes = _notes(tasks, inputs, list(dict.fromkeys(part.weight.name for part in parts.values())))
    if request.symmetry is not None and not request.symmetry.proved:
        notes.append("the symmetry is unproved: if it is wrong, so is the merge; look at it before it is used")
    return MergePlan(
        shards,
        inputs.nbytes,
        sum(shard.nbytes for shard in shards),
        _memory_bound(request, inputs) + _bytes_of_weights(inputs, weights),
        tuple(notes),
    )


def _notes(tasks: Sequence[TensorTask], inputs: MergeInputs, merged: Sequence[str]) -> list[str]:
    """Return notes on weights that are merged whole, and on tensors that are copied or averaged for want of more."""
    notes = []
    compared = [task.name for task in tasks if task.compared]
    if merged:
        notes.append(f"{_first(merged)}: merged as the weight that the parts stand for, and written as parts")
    if extra := list(filter(is_extra_state, compared)):
        notes.append(f"{_first(extra)}: extra state has no mean, the first model's is taken")
    if copied := [name for name in compared if not is_extra_state(name) and not is_counter(name)]:
        notes.append(
            f"{len(copied)} tensor{'s' if len(copied) > 1 else ''} of integers or truth values ({_first(copied)}) "
            "have no mean: all models must have the same"
        )
    informed = [task.name for task in tasks if _needs_information(task.treatment.method)]
    if uninformed := [name for name in informed if name not in inputs.fishers[0].tensors]:
        notes.append(
            f"{len(uninformed)} tensors without information ({', '.join(uninformed[:_MAX_LISTED])}) are averaged"
        )
    return notes


def _needs_information(method: TensorMethod | None) -> bool:
    return method is not None and method.needs_information


def _first(names: Sequence[str]) -> str:
    """Return the first names, and whether there are more."""
    return f"{', '.join(names[:_MAX_LISTED])}{', ...' if len(names) > _MAX_LISTED else ''}"


def _memory_bound(request: MergeRequest, inputs: MergeInputs) -> int:
    """Return the bytes that a merge allocates at most: buffers, and whole tensors where units are aligned."""
    threads = default_threads()
    itemsizes = (
        stored.nbytes // stored.size
        for checkpoint in inputs.all
        for _, stored in checkpoint.tensors.values()
        if stored.size
    )
    itemsize = max(itemsizes, default=1)
    n_readers = len(inputs.all)
    nbytes = buffer_bytes(itemsize * n_readers, n_readers, threads)
    if request.method.surveys > 1:
        nbytes += _HISTOGRAM_BYTES * len(inputs.models)
    if request.method.whole_rows:  # in float64, in every thread: the inputs, and twice as much to compute in
        rows = max(_row_bytes(stored.shape) for _, stored in inputs.models[0].tensors.values())
        nbytes += 3 * n_readers * threads * rows
    if request.method.whole_matrices:
        shapes = [stored.shape for _, stored in inputs.models[0].tensors.values() if len(stored.shape) > 1]
        nbytes += max((_matrix_bytes(shape, len(inputs.models)) for shape in shapes), default=0)
    changed = [stored.size for one in inputs.all for number, stored in one.tensors.values()
               if (one.files[number].path, stored.start) in one.changes]  # fmt: skip
    nbytes += 8 * 4 * n_readers * max(changed, default=0)  # in 64 bits: as stored, what is added, and the sum
    if request.vocabulary is not None:  # a table of every checkpoint, in 32 bits: as it is, and as the output has it
        tables = [stored.size for name, (_, stored) in inputs.models[0].tensors.items() if is_token_table(name)]
        nbytes += 3 * 4 * n_readers * max(tables, default=0)
    if request.symmetry is None:
        return nbytes
    largest = max(stored.size for _, stored in inputs.models[0].tensors.values())
    units = max(units_of(request.symmetry, inputs).values(), default=0)
    # Matching: two arrays in float32, moved and laid out by units, in up to six copies, and a few (k, k) matrices of
    # similarities. Moving: one tensor of every input, and the copies of the one that is moved.
    matching = 6 * 4 * largest + 4 * 8 * units**2
    moving = largest * itemsize * (n_readers + 2)
    return nbytes + max(matching, moving)


def _matrix_bytes(shape: Sequence[int], n_models: int) -> int:
    """Return the bytes in float64 of a tensor of all models, gathered and turned, with their squares and results."""
    inputs = max(prod(shape[1:]), 1)
    return 8 * ((2 * n_models + 4) * prod(shape) + (n_models + 3) * min(inputs, max(shape)) ** 2)


def _row_bytes(shape: Sequence[int]) -> int:
    """Return the bytes in float64 of a row of a tensor, or of all of a vector."""
    return 8 * prod(shape[1:] if len(shape) > 1 else shape)


def _bytes_of_weights(inputs: MergeInputs, weights: Sequence[WeightParts]) -> int:
    """Return the bytes of the largest weight that is held in parts, in float64: twice in every input, and merged."""
    sizes = [inputs.models[0].tensors[weight.main][1].size for weight in weights]
    return 8 * max(sizes, default=0) * (2 * len(inputs.all) + 3)


def default_threads() -> int:
    """Return the number of threads that compute by default."""
    return min(_MAX_THREADS, os.cpu_count() or 1)


def treatments_by_tensor(
    counts: Mapping[str, int],
    method: TensorMethod,
    options: Mapping[str, Any],
    weights: Any,
    rules: Sequence[TensorRule],
    weights_in_parts: Sequence[WeightParts] = (),
) -> tuple[dict[str, Treatment], list[Problem]]:
    """Return how every tensor is merged, and a line for each rule that applies to no tensor or not to a whole weight.

    `counts` are the numbers of models by tensor. `method` and `options` are for tensors that no rule matches; rules may
    add to the options. `weights` (J,) hold where a rule gives none; of a tensor of fewer models the first so many.
    Rules are in order of precedence; a pattern that matches a weight in `weights_in_parts` applies to all its parts.
    Raises OptionError for weights, methods and options that do not exist or do not fit.
    """
    most = max(counts.values())

    @cache
    def treatment(number: int | None, count: int) -> Treatment:
        """Return what a rule, or what is left without one, says of tensors of so many models."""
        if number is not None:
            return _rule_treatment(rules[number], method, options, weights, count, most)
        return _treatment(method, _first_weights(weights, count, most), count, "weights")

    if set(counts.values()) == {most}:
        for rule_number in (None, *range(len(rules))):  # what is wrong with any, whether it matches or not
            treatment(rule_number, most)
    treatments = {}
    n_matched = [0] * len(rules)  # tensors whose names match
    n_applied = [0] * len(rules)  # of these, the ones that no earlier rule matches
    weight_of = {name: weight.name for weight in weights_in_parts for name in weight.names}
    for name, count in counts.items():
        called = {name, weight_of.get(name, name)}
        matches = [number for number, rule in enumerate(rules) if any(fnmatchcase(one, rule.pattern) for one in called)]
        for number in matches:
            n_matched[number] += 1
        if matches:
            n_applied[matches[0]] += 1
        treatments[name] = treatment(matches[0] if matches else None, count)
    unused = [
        Problem(
            "patterns",
            f"{rule.pattern!r} matches no tensor"
            + (f" that an earlier pattern left ({matched} taken)" if matched else ""),
        )
        for rule, applied, matched in zip(rules, n_applied, n_matched, strict=True)
        if not applied
    ]
    return treatments, [*unused, *_torn_weights(treatments, weights_in_parts)]


def _first_weights(weights: Any, count: int, most: int) -> Any:
    """Return weights for `most` models, of which a tensor has but `count`, without the others'."""
    return weights[:count] if isinstance(weights, Sequence) and count < len(weights) == most else weights


def _torn_weights(treatments: Mapping[str, Treatment], weights: Sequence[WeightParts]) -> Iterator[Problem]:
    """Yield the weights that are held in parts of which rules treat some differently."""
    for weight in weights:
        if any(treatments[name] != treatments[weight.main] for name in weight.names):
            text = (
                f"the parts of {weight.name} ({', '.join(weight.names)}) would be merged differently, and are one"
                " weight"
            )
            yield Problem("patterns", text, f"match its name, {weight.name}")


def _rule_treatment(
    rule: TensorRule, method: TensorMethod, options: Mapping[str, Any], weights: Any, count: int, most: int
) -> Treatment:
    """Return what a rule says of tensors of `count` models, where others have up to `most`."""
    where = f"pattern {rule.pattern!r}"
    if rule.method == "copy":
        source = rule.source or 0
        if source >= count:
            raise OptionError(where, f"from: there are {count} models, numbered from 0; found {source}")
        if rule.options or rule.weights is not None:
            raise OptionError(where, "a copy has no options and no weights")
        return Treatment(None, (1.0,) * count, source)
    if rule.source is not None:
        raise OptionError(where, "from: is for method copy")
    rule_method = method
    if rule.method is not None and rule.method != method.name:
        rule_method = make_tensor_method(rule.method, rule.options)
    elif rule.options:
        rule_method = make_tensor_method(method.name, {**options, **rule.options})
    # Some take no weights; those of the other tensors are not meant for them.
    inherited = weights if rule_method.takes_weights else None
    own = inherited if rule.weights is None else rule.weights
    return _treatment(rule_method, _first_weights(own, count, most), count, f"{where}: weights")


def _treatment(method: TensorMethod, weights: Any, count: int, where: str) -> Treatment:
    if method.count is not None and method.count != count:
        with_base = " and a base" if method.needs_base else ""
        models = f"{method.count} model{'s' * (method.count != 1)}"
        raise OptionError(f"method {method.name!r} takes {models}{with_base}, found {count}")
    if count < method.least:
        raise OptionError(f"method {method.name!r} takes {method.least} models or more, found {count}")
    target = getattr(method, "favor_target", None)
    if target is not None and target >= count:
        raise OptionError("favor_target", f"there are {count} models, numbered from 0; found {target}")
    density = getattr(method, "density", None)
    if isinstance(density, Sequence) and len(density) != count:
        raise OptionError("density", f"expected a number, or {count}, one for each model, found {list(density)}")
    return Treatment(method, method.weights_of(weights, count, where))


def with_common_names(
    inputs: MergeInputs, expected: Collection[str] | None
) -> tuple[MergeInputs, list[str], list[Problem]]:
    """Return the checkpoints under names in common, notes on what was left out, and prefixes that keep them apart.

    Fisher diagonals, which are of parameters by their names, keep theirs. `expected` are the names that a symmetry has;
    default: what the checkpoints agree in.
    """
    checkpoints = [*inputs.models, *(() if inputs.base is None else (inputs.base,))]
    shapes = [{name: stored.shape for name, (_, stored) in one.tensors.items()} for one in checkpoints]
    found = common_names(shapes, [one.name for one in checkpoints], expected)
    own_names = [{name: name for name in one} for one in shapes] if inputs.fishers else list(found.own_names)
    dropped = _dropped(own_names, shapes)
    notes = [] if inputs.fishers else list(found.notes)
    if dropped:
        notes.append(f"{first_names(dropped, _MAX_LISTED)}: bookkeeping that not all models have, left out")
    renamed = [_renamed(one, names, dropped) for one, names in zip(checkpoints, own_names, strict=True)]
    count = len(inputs.models)
    fewer = {name: inputs.fewer[own] for name, own in own_names[0].items() if own in inputs.fewer}
    return (
        replace(inputs, models=tuple(renamed[:count]), base=next(iter(renamed[count:]), None), fewer=fewer),
        notes,
        list(found.problems),
    )


def _dropped(own_names: Sequence[Mapping[str, str]], shapes: Sequence[Mapping[str, tuple[int, ...]]]) -> list[str]:
    """Return the bookkeeping that not all checkpoints have, by the names in common."""
    bookkeeping = {
        name: None
        for one, of_shapes in zip(own_names, shapes, strict=True)
        for name, own in one.items()
        if is_bookkeeping(name, of_shapes[own])
    }
    return [name for name in bookkeeping if not all(name in one for one in own_names)]


def _renamed(checkpoint: Checkpoint, own_names: dict[str, str], dropped: Collection[str]) -> Checkpoint:
    """Return a checkpoint with other names of its tensors, without some of them."""
    tensors = {name: checkpoint.tensors[own] for name, own in own_names.items() if name not in dropped}
    return replace(checkpoint, tensors=tensors)
