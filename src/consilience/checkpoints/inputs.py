"""Inputs of a merge, and the validation that they fit together, from headers alone.

All problems are listed at once: missing and extra tensors, shapes, types, vocabularies, tied output layers, quantised
weights, Fisher diagonals of other models. Nothing is read but headers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from consilience.checkpoints.folder import Checkpoint, WeightFile
from consilience.checkpoints.header import StoredTensor
from consilience.checkpoints.numbers import COMPLEX_TYPES, FLOAT_TYPES
from consilience.checks import Array
from consilience.drawing.words import first_names
from consilience.errors import FileFormatError, Problem
from consilience.files.arrays import DTYPES
from consilience.files.safetensors_header import ITEM_BITS
from consilience.files.tensor_names import unfit_tensors
from consilience.networks.entry_names import is_extra_state
from consilience.networks.fisher.kronecker import unpacked
from consilience.networks.weight_parts import REMOVAL, WeightParts, find_parts, unknown_parts

_MAX_LISTED = 5
"""Tensors that a line names; more are counted. Chosen by hand."""

TOKEN_MARKS = ("embed", "lm_head", "wte", "word_embeddings", "output.weight", "shared")
"""Parts of the names of tensors that have a row for each token."""


@dataclass(frozen=True)
class InformedParameters:
    """The parameters at which a file was computed."""

    digest: str  # as `parameter_digest` of their arrays
    names: Mapping[str, str]  # their names in the model, by those in the file


@dataclass(frozen=True, eq=False)
class InputFactors(Checkpoint):
    """A file of Kronecker factors, of which a merge reads those of the inputs; tensors by the name of the weight."""

    sizes: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)  # groups, inputs, rows of a factor

    def matrices(self, name: str, entries: Array) -> Array:
        """Return the second moments (groups, n, n) of a weight's inputs, from what the file has; of no bias."""
        groups, n_inputs, rows = self.sizes[name]
        found = unpacked(entries.reshape(groups, -1), rows)
        if found is None:
            raise FileFormatError(self.name, f"the factor of {name} has another size than the file says")
        return found[:, :n_inputs, :n_inputs]


@dataclass(frozen=True, eq=False)
class MergeInputs:
    """The checkpoints of a merge."""

    models: tuple[Checkpoint, ...]  # (J,), the models to merge
    base: Checkpoint | None = None  # the common start, for methods that need one
    # (J,): Fisher diagonals of the models, or factors of their layers' inputs, tensors named as the parameters.
    # Default: empty, for methods without.
    fishers: tuple[Checkpoint, ...] = ()
    # (J,): Parameters at which each of them was computed, where its file states them.
    informed: tuple[InformedParameters | None, ...] = field(default=())
    # How many models, the first ones, have a tensor, of tensors that not all have: of slices with fewer models.
    fewer: Mapping[str, int] = field(default_factory=dict)

    def sources(self, name: str) -> int:
        """Return how many models, the first ones, a tensor is merged of."""
        return self.fewer.get(name, len(self.models))

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors that are read."""
        unread = [one.tensors[name][1].nbytes for name, count in self.fewer.items() for one in self.models[count:]]
        return sum(one.nbytes for one in self.all) - sum(unread)

    @property
    def all(self) -> tuple[Checkpoint, ...]:
        """All checkpoints that are read: models, base, Fisher diagonals, in this order."""
        return (*self.models, *(() if self.base is None else (self.base,)), *self.fishers)

    @property
    def files(self) -> tuple[WeightFile, ...]:
        """All files of weights, each once."""
        by_path: dict[Path, WeightFile] = {}
        for checkpoint in self.all:
            for file in checkpoint.files:
                by_path.setdefault(file.path.resolve(), file)
        return tuple(by_path.values())

    def problems(self) -> list[Problem]:
        """Return why these checkpoints do not fit together, a line each."""
        first = self.models[0]
        others = [*self.models[1:], *(() if self.base is None else (self.base,))]
        if unfit := [line for checkpoint in (first, *others) for line in _packed_weights(checkpoint)]:
            return unfit  # what else differs follows from it
        problems = [line for checkpoint in (first, *others) for line in _unmergeable(checkpoint)]
        for other in others:
            problems += _differences(first, other)
        for model, fisher in zip(self.models, self.fishers, strict=False):
            problems += _fisher_mismatches(model, fisher)
        if self.fishers and len(self.fishers) != len(self.models):
            text = f"there are {len(self.fishers)} for {len(self.models)} models"
            problems.append(Problem("fishers", text, "give one for each", "E-SHAPE"))
        elif self.fishers:
            for other in self.fishers[1:]:
                if unshared := sorted(set(other.tensors) ^ set(self.fishers[0].tensors)):
                    text = f"informs other parameters than {self.fishers[0].name} ({_listed(unshared)})"
                    problems.append(Problem(other.name, text, code="E-MISMATCH"))
        return problems


def parts_in(checkpoint: Checkpoint) -> list[WeightParts]:
    """Return the weights that a checkpoint holds in parts of floating-point numbers, by names and shapes."""
    tensors = {name: stored for name, (_, stored) in checkpoint.tensors.items() if stored.dtype in FLOAT_TYPES}
    return find_parts({name: stored.shape for name, stored in tensors.items()})


def _packed_weights(checkpoint: Checkpoint) -> Iterator[Problem]:
    """Yield that a checkpoint's tensors are packed by quantisation, or an optimiser's."""
    dtypes = {name: DTYPES.get(stored.dtype, stored.dtype) for name, (_, stored) in checkpoint.tensors.items()}
    if (unfit := unfit_tensors(dtypes, checkpoint.quantisation)) is not None:
        yield Problem(checkpoint.name, *unfit, "E-TYPE")


def _unmergeable(checkpoint: Checkpoint) -> Iterator[Problem]:
    """Yield which tensors of a checkpoint no method can merge for their types."""
    by_type: dict[str, list[str]] = {}
    for name, (_, stored) in checkpoint.tensors.items():
        # Types of 4 or 6 bits have several entries in a byte.
        is_packed = ITEM_BITS.get(stored.dtype, 0) % 8 != 0
        is_unknown_float = stored.dtype.startswith("F") and stored.dtype not in FLOAT_TYPES
        if stored.dtype not in ITEM_BITS or is_packed or is_unknown_float:
            by_type.setdefault(stored.dtype, []).append(name)
    for dtype, names in by_type.items():
        text = f"{_listed(names)}: type {dtype} cannot be merged"
        yield Problem(checkpoint.name, text, f"convert to one of {', '.join(FLOAT_TYPES)}", "E-TYPE")
    yield from _unmergeable_parts(checkpoint)


def _unmergeable_parts(checkpoint: Checkpoint) -> Iterator[Problem]:
    """Yield which weights are held in parts that no method can merge."""
    shapes = {name: stored.shape for name, (_, stored) in checkpoint.tensors.items()}
    weights = parts_in(checkpoint)
    merged = {name for parts in weights for name in parts.names}
    rest = {name: shape for name, shape in shapes.items() if name not in merged}
    other_types = find_parts(rest)
    for parts in other_types:
        types = ", ".join(dict.fromkeys(checkpoint.tensors[name][1].dtype for name in parts.names))
        text = f"{parts.name} is held in parts of {types} ({', '.join(parts.names)}), which are merged of floats only"
        yield Problem(checkpoint.name, text, REMOVAL, "E-TYPE")
    seen = {parts.name for parts in other_types}
    nested = find_parts(rest | {parts.name: shapes[parts.main] for parts in weights})
    for name in [*unknown_parts(rest), *(parts.name for parts in nested if parts.name not in seen)]:
        yield Problem(
            checkpoint.name, f"{name} is parametrised in a way that its tensors do not say", REMOVAL, "E-TYPE"
        )


def _differences(first: Checkpoint, other: Checkpoint) -> Iterator[Problem]:
    """Yield how another checkpoint differs from the first: tensors, shapes, and kinds of numbers."""
    for verb, lacks, having, without in (("lacks", "has", first, other), ("has", "lacks", other, first)):
        if names := [name for name in having.tensors if name not in without.tensors]:
            hint = _tied_hint(names, without, having)
            text = f"{verb} {_listed(names)}, which {first.name} {lacks}{hint}"
            yield Problem(other.name, text, code="E-NEEDED")
    shared = [name for name in first.tensors if name in other.tensors]
    reshaped = [name for name in shared if _shape(first, name) != _shape(other, name) and not is_extra_state(name)]
    for name in reshaped[:_MAX_LISTED]:
        yield (
            Problem(
                other.name,
                f"{name} has shape {list(_shape(other, name))}, in {first.name} {list(_shape(first, name))}"
                f"{_vocabulary_hint(_shape(first, name), _shape(other, name), name)}",
                code="E-SHAPE",
            )
        )
    if len(reshaped) > _MAX_LISTED:
        yield Problem(
            other.name,
            f"{len(reshaped) - _MAX_LISTED} more tensors have other shapes than in {first.name}",
            code="E-SHAPE",
        )
    mixed = [name for name in shared if _number_kind(first.tensors[name][1]) != _number_kind(other.tensors[name][1])]
    if mixed:
        yield (
            Problem(
                other.name,
                f"{_listed(mixed)}: {other.tensors[mixed[0]][1].dtype} where {first.name} has "
                f"{first.tensors[mixed[0]][1].dtype}; real, complex and other numbers do not mix",
                code="E-MISMATCH",
            )
        )


def _fisher_mismatches(model: Checkpoint, fisher: Checkpoint) -> Iterator[Problem]:
    """Yield why a Fisher diagonal is not that of a model."""
    weights = {parts.name for parts in parts_in(model)}  # whose information is refused where a method would need it
    if unknown := [name for name in fisher.tensors if name not in model.tensors and name not in weights]:
        text = f"{_listed(unknown)}: not in {model.name}"
        yield Problem(fisher.name, text, "give the information of this model", "E-MISMATCH")
    for name, (_, stored) in () if isinstance(fisher, InputFactors) else fisher.tensors.items():
        if stored.dtype not in FLOAT_TYPES:
            yield Problem(fisher.name, f"{name} holds {stored.dtype}, not floats", code="E-TYPE")
        elif name in model.tensors and stored.shape != _shape(model, name):
            text = f"{name} has shape {list(stored.shape)}, in {model.name} {list(_shape(model, name))}"
            yield Problem(fisher.name, text, code="E-SHAPE")


def _number_kind(stored: StoredTensor) -> str:
    """Return whether a tensor holds real, complex or other numbers."""
    return "real" if stored.dtype in FLOAT_TYPES else "complex" if stored.dtype in COMPLEX_TYPES else "other"


def _shape(checkpoint: Checkpoint, name: str) -> tuple[int, ...]:
    return checkpoint.tensors[name][1].shape


def _vocabulary_hint(first_shape: tuple[int, ...], other_shape: tuple[int, ...], name: str) -> str:
    """Return a hint where a tensor with a row for each token differs in the number of rows alone."""
    has_token_rows = any(mark in name for mark in TOKEN_MARKS)
    if has_token_rows and first_shape[1:] == other_shape[1:]:
        same = "give all models the same tokens first (resize_token_embeddings)"
        return f"; the vocabularies differ in size: {same}, or say which the output has (`vocabulary='union'`)"
    return ""


def _tied_hint(names: list[str], without: Checkpoint, having: Checkpoint) -> str:
    """Return a hint where a missing output layer may be tied to the embedding."""
    if any("lm_head" in name or name == "output.weight" for name in names):
        tied = [checkpoint.name for checkpoint in (without, having) if checkpoint.config.get("tie_word_embeddings")]
        evidence = f" ({', '.join(tied)} says tie_word_embeddings)" if tied else ""
        return (
            f"; the one may tie it to the embedding{evidence}: untie it there, or drop it here, so that all are alike"
        )
    return ""


def _listed(names: list[str]) -> str:
    """Return the first names of a list, and how many more there are."""
    return first_names(names, _MAX_LISTED)


def locate_tensor(checkpoint: Checkpoint, name: str) -> tuple[WeightFile, StoredTensor]:
    """Return the file of a tensor, and its place in it."""
    number, stored = checkpoint.tensors[name]
    return checkpoint.files[number], stored
