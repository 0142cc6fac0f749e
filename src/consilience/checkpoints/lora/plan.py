"""Merges of LoRA adapters, planned from their headers: one adapter whose products are the merge of the products.

Weighted means and sums are stacked, exactly (``factors``). Every other method looks at the entries of the products, one
module at a time, whose merge is factorised again. Modules that some adapters lack do not change there. Tensors that
were trained as a whole (``modules_to_save``, biases) are merged as those of checkpoints are: where an adapter lacks one
it is the base's, which then is needed. Whatever cannot be merged is refused by name before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from consilience.checkpoints.folder import ADAPTER_WEIGHTS, Checkpoint
from consilience.checkpoints.inputs import MergeInputs
from consilience.checkpoints.lora.config import AGREEING, config_problems, disagreements, most_common
from consilience.checkpoints.lora.conventions import (
    FactorNames,
    left_out,
    modules_in_base,
    output_names,
    with_common_modules,
)
from consilience.checkpoints.lora.factors import (
    A_NAMES,
    BIAS,
    LowRankAdapter,
    base_name,
    module_problems,
    read_factors,
)
from consilience.checkpoints.lora.files import LORA_FILE, LoraFile, adapter_at, file_metadata, open_adapter_at
from consilience.checkpoints.lora.into_base import name_in, open_model
from consilience.checkpoints.lora.residual import (
    ADAPTER,
    BASE,
    ChangedBase,
    other_factors,
    prepare_changed_base,
    refuse_residual_options,
)
from consilience.checkpoints.methods.average import TensorAverage
from consilience.checkpoints.methods.base import TensorMethod
from consilience.checkpoints.methods.task_vectors import TaskArithmetic
from consilience.checkpoints.numbers import FLOAT_TYPES
from consilience.checkpoints.plan import MergePlan, TensorTask, Treatment, assign_shards
from consilience.checkpoints.request import SINGLE_FILE_SUFFIX, MergeRequest
from consilience.drawing.words import first_names
from consilience.errors import InputError, OptionError, Problem

_MAX_LISTED = 3
"""Names that a message has; more are counted. Chosen by hand."""

_MERGE_INTO_BASE = "merge checkpoints with their adapters in place, as BASE+ADAPTER (merge_and_unload of peft)"


@dataclass(frozen=True, eq=False)
class PreparedAdapters:
    """A merge of adapters whose headers have been read and checked."""

    request: MergeRequest  # the request
    adapters: tuple[LowRankAdapter, ...]  # (J,), the adapters
    base: Checkpoint | None  # what they were trained from, where tensors were trained as a whole
    weights: tuple[float, ...]  # (J,), as the method takes them
    ranks: dict[str, int]  # rank of every module of the output
    names: dict[str, FactorNames]  # of its tensors, by module
    scales: dict[str, float]  # what the product of its factors is multiplied by, by module
    plan: MergePlan  # what is written
    changed_base: ChangedBase | None = None  # the base that takes what means of factors leave out

    @property
    def whole_plan(self) -> MergePlan:
        """The plan of all that is written, the base included."""
        if self.changed_base is None:
            return self.plan
        plans = {ADAPTER: self.plan, BASE: self.changed_base.merge.plan}
        return MergePlan(
            tuple(replace(one, name=f"{place}/{one.name}") for place, plan in plans.items() for one in plan.shards),
            self.plan.bytes_in,
            sum(plan.bytes_out for plan in plans.values()),
            self.changed_base.merge.plan.memory + self.plan.memory + self.changed_base.memory,
            self.plan.notes,
        )

    @property
    def shares(self) -> list[float]:
        """What each product is multiplied by, in a sum: weights that sum to 1, or as given and times the scaling."""
        return _shares(self.request.method, self.weights)


def _shares(method: TensorMethod, weights: Sequence[float]) -> list[float]:
    """Return what each product is multiplied by, in a sum."""
    scaling = method.scaling if isinstance(method, TaskArithmetic) else 1.0
    total = (sum(weights) or 1.0) if getattr(method, "normalize", True) else 1.0
    return [scaling * weight / total for weight in weights]


def are_adapters(request: MergeRequest) -> bool:
    """Return whether a merge is one of adapters.

    Raises InputError for adapters among whole models, naming them.
    """
    adapters = [path for path in request.models if adapter_at(path) is not None]
    others = [path for path in request.models if adapter_at(path) is None]
    if adapters and others:
        raise InputError(
            Problem(path, f"is an adapter, and {others[0]} is none", _MERGE_INTO_BASE, "E-ADAPTER") for path in adapters
        )
    if request.base is not None and adapter_at(request.base) is not None:
        raise InputError(request.base, "is an adapter, and no base", "give the whole model", "E-ADAPTER")
    if request.rank is not None and not adapters:
        text = "is of merged adapters, and these are whole models"
        raise OptionError("rank", text, "leave it out, or extract an adapter (`consilience extract`)")
    if request.residual_into_base and not adapters:
        raise OptionError("residual_into_base", "is of adapters, and these are whole models", "leave it out")
    return bool(adapters)


def is_sum(method: TensorMethod) -> bool:
    """Return whether a method is a weighted sum of products, which stacked factors are exactly."""
    return method.name in (TensorAverage.name, TaskArithmetic.name)


def prepare_adapters(request: MergeRequest, output: Path) -> PreparedAdapters:
    """Return what a merge of adapters will do, from headers and configurations alone.

    Raises InputError with everything that keeps the adapters from being merged. Raises OptionError for methods and
    options that are not for adapters.
    """
    _refuse_options(request, output)
    if request.residual_into_base:
        refuse_residual_options(request, is_folder=output.suffix != SINGLE_FILE_SUFFIX)
    weights = request.method.weights_of(request.weights, len(request.models), "weights")
    adapters = _read_all(request)
    base = None if request.base is None else open_model(request.base)
    _refuse_output(adapters, output)
    _refuse_misfits(request, adapters, base, weights)
    return planned(request, tuple(adapters), base, weights, _highest_ranks(request, adapters, weights), output)


def _highest_ranks(
    request: MergeRequest, adapters: Sequence[LowRankAdapter], weights: Sequence[float]
) -> dict[str, int]:
    """Return the rank of every module of the output, the highest that it can be where a share of energy decides."""
    limit = request.rank if isinstance(request.rank, int) else None
    ranks = {}
    for module in dict.fromkeys(module for adapter in adapters for module in adapter.factors):
        owned = zip(adapters, weights, strict=True)
        owners = [adapter for adapter, weight in owned if module in adapter.factors and weight]
        rank = sum(adapter.rank(module) for adapter in owners)
        if not rank:
            continue
        if request.residual_into_base:
            ranks[module] = owners[0].rank(module)
            continue
        sizes = owners[0].sizes(module)
        if not is_sum(request.method):  # the merge of products has a rank of its own
            rank = min(*sizes) if limit is None and request.rank is not None else min(limit or rank, *sizes)
        ranks[module] = rank if limit is None else min(rank, limit, *sizes)
    return ranks


def planned(
    request: MergeRequest,
    adapters: tuple[LowRankAdapter, ...],
    base: Checkpoint | None,
    weights: tuple[float, ...],
    ranks: dict[str, int],
    output: Path,
) -> PreparedAdapters:
    """Return what a merge of adapters that fit together will do, once the ranks of its modules are known."""
    names = output_names(adapters, list(ranks))
    scales, metadata = _scales_of_output(request, adapters, ranks)
    tasks = _tasks(request, adapters, ranks, weights, names)
    shards = tuple(replace(one, metadata=metadata) for one in assign_shards(tasks, 0, _file_name(adapters, output)))
    inputs = MergeInputs(tuple(adapter.checkpoint for adapter in adapters), base)
    plan = MergePlan(
        shards,
        sum(checkpoint.nbytes for checkpoint in inputs.all),
        sum(shard.nbytes for shard in shards),
        _memory(request, adapters, ranks),
        _notes(adapters, base),
    )
    changed_base = None
    if request.residual_into_base:
        shares, dtypes = _shares(request.method, weights), {task.name: task.dtype for task in tasks}
        changed_base = prepare_changed_base(request, adapters, shares, scales, names, dtypes, output)
    return PreparedAdapters(request, adapters, base, weights, ranks, names, scales, plan, changed_base)


def replanned(prepared: PreparedAdapters, ranks: dict[str, int], output: Path) -> PreparedAdapters:
    """Return a merge whose modules have other ranks."""
    return planned(prepared.request, prepared.adapters, prepared.base, prepared.weights, ranks, output)


def _file_name(adapters: Sequence[LowRankAdapter], output: Path) -> str:
    """Return the name of the file of weights."""
    if adapters[0].convention == "peft":
        return ADAPTER_WEIGHTS
    return output.name if output.suffix == SINGLE_FILE_SUFFIX else LORA_FILE


def _scales_of_output(
    request: MergeRequest, adapters: Sequence[LowRankAdapter], ranks: Mapping[str, int]
) -> tuple[dict[str, float], dict[str, str]]:
    """Return the scale of every module of the output, and the metadata of its file.

    alpha is r and the scale 1, but means factor by factor keep the configuration of the first adapter of peft. All
    modules of a file of kohya's have one alpha, since loaders take the most common one where they do not find a name.
    """
    files = [one.checkpoint for one in adapters if isinstance(one.checkpoint, LoraFile)]
    if adapters[0].convention == "peft":
        kept = request.residual_into_base
        return {module: adapters[0].scale(module) if kept else 1.0 for module in ranks}, {"format": "pt"}
    alphas: dict[str, float] = {module: float(rank) for module, rank in ranks.items()}
    if adapters[0].convention == "kohya":
        alphas = dict.fromkeys(ranks, float(most_common(ranks.values())))
    return {module: alphas[module] / rank for module, rank in ranks.items()}, file_metadata(files, ranks, alphas)


def _memory(request: MergeRequest, adapters: Sequence[LowRankAdapter], ranks: Mapping[str, int]) -> int:
    """Return the bytes that a merge allocates at most: of one module, in 64 bits."""
    largest = 0
    for module in ranks:
        owners = [adapter for adapter in adapters if module in adapter.factors]
        factors = sum(prod(adapter.shape(name)) for adapter in owners for name in adapter.factors[module].values())
        # Factors as read, stacked, decomposed, rounded, and what rounding changed; or products, and their merge.
        products = 0 if is_sum(request.method) else (2 * len(adapters) + 4) * prod(owners[0].sizes(module))
        largest = max(largest, 6 * factors + products)
    return 8 * largest


def _read_all(request: MergeRequest) -> list[LowRankAdapter]:
    """Return the adapters of a merge, or raise with everything that is wrong with single ones."""
    problems: list[Problem] = []
    adapters: list[LowRankAdapter] = []
    for path in request.models:
        try:
            adapters.append(read_factors(open_adapter_at(adapter_at(path) or path)))
        except InputError as error:
            problems += error.problems
    problems = problems or [problem for adapter in adapters for problem in adapter_problems(adapter)]
    if problems:
        raise InputError(problems)
    return with_common_modules(adapters)


def adapter_problems(adapter: LowRankAdapter) -> list[Problem]:
    """Return what keeps an adapter from being merged with others, whatever these are."""
    is_file = adapter.convention != "peft" and adapter.config["peft_type"] == "LORA"  # without a configuration
    return ([] if is_file else list(config_problems(adapter.name, adapter.config))) or _factor_problems(adapter)


_BASE_FIELDS = ("base_model_name_or_path", "revision")
"""Fields that name the base."""


def _refuse_misfits(
    request: MergeRequest, adapters: Sequence[LowRankAdapter], base: Checkpoint | None, weights: Sequence[float]
) -> None:
    """Raise for adapters that differ in what they must have in common."""
    is_allowed = bool(request.allow_differences) or base is not None  # shapes are compared with the base's
    fatal = [field for field in AGREEING if not (is_allowed and field in _BASE_FIELDS)]
    problems = [*_disagreements(adapters, fatal), *_shape_problems(adapters)]
    if request.residual_into_base:
        problems += other_factors(adapters)
    if base is not None:
        problems += _base_problems(adapters, base)
    elif not problems and (whole := _without_base(request, adapters, weights)):
        text = f"{first_names(whole, _MAX_LISTED)} were trained as a whole, and their changes need the base"
        problems.append(Problem(adapters[0].name, text, "give `base=`", "E-NEEDED"))
    if problems:
        raise InputError(problems)


def _without_base(request: MergeRequest, adapters: Sequence[LowRankAdapter], weights: Sequence[float]) -> list[str]:
    """Return the tensors trained as a whole whose merge needs a base: all but means of what all adapters have."""
    whole = _whole_tensors(adapters)
    if request.method.name != TensorAverage.name or not getattr(request.method, "normalize", True):
        return whole
    counted = [adapter for adapter, weight in zip(adapters, weights, strict=True) if weight]
    return [name for name in whole if not all(name in adapter.others for adapter in counted)]


def _base_problems(adapters: Sequence[LowRankAdapter], base: Checkpoint) -> Iterator[Problem]:
    """Yield which adapters change what a base does not have, or not in this shape."""
    for adapter in adapters:
        if isinstance(adapter.checkpoint, LoraFile):
            try:
                modules_in_base(base, adapter.checkpoint, _own_sizes(adapter))
            except InputError as error:
                yield from error.problems
            continue
        for module in adapter.factors:
            name = name_in(base, f"{module}.weight")
            if name is None:
                yield Problem(adapter.name, f"changes {module}, which {base.name} does not have", _OTHER, "E-MISMATCH")
            elif sorted(adapter.sizes(module)) != sorted(_flat(base.tensors[name][1].shape)):
                text = f"{module} is {' by '.join(map(str, adapter.sizes(module)))}, in {base.name} "
                yield Problem(adapter.name, text + f"{list(base.tensors[name][1].shape)}", _OTHER, "E-SHAPE")
        for name in adapter.others:
            target = base_name(name)
            found = name_in(base, target)
            if found is None or base.tensors[found][1].shape != adapter.shape(name):
                text = f"has {target} of shape {list(adapter.shape(name))}, and {base.name} has none such"
                yield Problem(adapter.name, text, _OTHER, "E-MISMATCH")


_OTHER = "give the base that it was trained from"


def _flat(shape: tuple[int, ...]) -> tuple[int, int]:
    return shape[0], prod(shape[1:])


def _own_sizes(adapter: LowRankAdapter) -> dict[str, tuple[int, int] | None]:
    """Return outputs and inputs of modules by their names in the adapter's file."""
    return {adapter.own_names.get(module, module): adapter.sizes(module) for module in adapter.factors}


def _disagreements(adapters: Sequence[LowRankAdapter], fields: Sequence[str]) -> list[Problem]:
    """Return the fields in which an adapter differs from the first of its convention."""
    found: list[Problem] = []
    for is_file in (False, True):
        group = [adapter for adapter in adapters if (adapter.convention != "peft") == is_file]
        if is_file:  # which may not state its base, and states nothing else
            fields = _BASE_FIELDS[:1]
            group = [one for one in group if one.config.get(_BASE_FIELDS[0])]
        if group:
            found += disagreements([one.name for one in group], [one.config for one in group], fields)
    return found


def _notes(adapters: Sequence[LowRankAdapter], base: Checkpoint | None) -> tuple[str, ...]:
    """Return notes on bases that are taken as one, and on tensors that not all adapters have."""
    others = _disagreements(adapters, _BASE_FIELDS)
    notes = [f"{problem.subject}: {problem.text}; taken as one base" for problem in others]
    for tensor in _whole_tensors(adapters):
        lacking = ", ".join(adapter.name for adapter in adapters if tensor not in adapter.others)
        notes += [f"{tensor} is not in {lacking}, where it is the base's"] if lacking and base is not None else []
    for adapter in adapters:
        if base is not None and isinstance(adapter.checkpoint, LoraFile):
            said = left_out(adapter.checkpoint, modules_in_base(base, adapter.checkpoint, _own_sizes(adapter)))
            notes += [] if said is None else [f"{adapter.name}: {said}"]
    return tuple(notes)


_NEEDS_MORE = ("fisher", "regmean", "arcee_fusion", "passthrough")
"""Methods that look at more than changes."""


def _refuse_options(request: MergeRequest, output: Path) -> None:
    """Raise for methods and options that adapters do not have."""
    if request.method.name in _NEEDS_MORE:
        text = "looks at more than what adapters change"
        raise OptionError(f"method {request.method.name!r}", text, _MERGE_INTO_BASE, "E-ADAPTER")
    count = len(request.models)
    if request.method.count not in (None, count) or count < request.method.least:
        takes = request.method.count or f"{request.method.least} or more"
        raise OptionError(f"method {request.method.name!r}", f"takes {takes} models, found {count}", "give so many")
    values = {
        "fishers": request.fishers, "symmetry": request.symmetry, "patterns": request.rules, "slices": request.slices,
        "vocabulary": request.vocabulary,
    }  # fmt: skip
    if given := [name for name, value in values.items() if value not in (None, ())]:
        raise OptionError(", ".join(given), "is for whole models, and these are adapters", "leave it out")


def _refuse_output(adapters: Sequence[LowRankAdapter], output: Path) -> None:
    """Raise for an output that the convention of the first adapter does not have."""
    if adapters[0].convention == "peft":
        if output.suffix == SINGLE_FILE_SUFFIX:
            raise OptionError("output", f"an adapter is a folder, found {output}", "give a folder")
        return
    for adapter in adapters:
        if adapter.others:
            text = f"{adapter.others[0]} was trained as a whole, which a file of factors has no place for"
            raise InputError(adapter.name, text, "give an adapter of peft first", "E-ADAPTER")


def _whole_tensors(adapters: Sequence[LowRankAdapter]) -> list[str]:
    """Return the tensors that were trained as a whole, in any adapter."""
    return list(dict.fromkeys(name for adapter in adapters for name in adapter.others if not adapter.is_of_base(name)))


def _factor_problems(adapter: LowRankAdapter) -> list[Problem]:
    """Return what is wrong with the factors of one adapter."""
    problems = []
    if adapter.unknown:
        text = f"{first_names(adapter.unknown, _MAX_LISTED)}: no factors A and B, which alone can be stacked"
        problems.append(Problem(adapter.name, text, _MERGE_INTO_BASE))
    if not adapter.factors:
        problems.append(Problem(adapter.name, "has no factors lora_A and lora_B", "save the adapter again", "E-NEEDED"))
    return [*problems, *module_problems(adapter)]


def _shape_problems(adapters: Sequence[LowRankAdapter]) -> list[Problem]:
    """Return which modules have factors of other shapes than in the first adapter that has them."""
    problems = []
    first_with: dict[str, tuple[LowRankAdapter, tuple[int, ...]]] = {}
    for adapter in adapters:
        ends = {}
        for module in adapter.factors:
            a_shape, b_shape = adapter.shapes(module)
            is_embedding = A_NAMES[1] in adapter.factors[module]
            kernel = a_shape[2:] if prod(a_shape[2:]) > 1 else ()  # of one place it may be left out
            ends[module] = (b_shape[0], a_shape[1], *kernel, is_embedding)
        ends |= {name: adapter.shape(name) for name in adapter.others}
        for place, end in ends.items():
            first, expected = first_with.setdefault(place, (adapter, end))
            if end != expected:
                text = f"{place} has outputs and inputs {list(end)}, in {first.name} {list(expected)}"
                problems.append(Problem(adapter.name, text, "merge adapters of one base", "E-MISMATCH"))
    return problems


def _tasks(
    request: MergeRequest,
    adapters: Sequence[LowRankAdapter],
    ranks: dict[str, int],
    weights: tuple[float, ...],
    names: Mapping[str, FactorNames],
) -> list[TensorTask]:
    """Return the tensors of the output: factors module by module, then those that were trained as a whole."""
    tasks = []
    is_weighted_sum = isinstance(request.method, TensorAverage) and not request.method.normalize
    whole = TaskArithmetic() if is_weighted_sum else request.method  # of changes, as the products are

    def add(owner: LowRankAdapter, name: str, shape: tuple[int, ...], typed_as: str, how: Treatment) -> None:
        stored = owner.checkpoint.tensors[typed_as][1]
        is_floating = stored.dtype in FLOAT_TYPES
        dtype = request.dtype if request.dtype is not None and is_floating else stored.dtype
        itemsize = FLOAT_TYPES[dtype].itemsize if is_floating else stored.nbytes // max(1, stored.size)
        kept = owner.is_of_base(name)
        if not is_floating or (kept and dtype == stored.dtype):
            how = Treatment(None, (1.0,))
        tasks.append(TensorTask(name, shape, dtype, prod(shape) * itemsize, AS_IT_IS if kept and how.method else how))

    for module, rank in ranks.items():
        owner = next(adapter for adapter in adapters if module in adapter.factors)
        (a_name, b_name), (a_shape, b_shape) = owner.parts(module), owner.shapes(module)
        written = names[module]
        add(owner, written.a, (rank, *a_shape[1:]), a_name, AS_IT_IS)
        add(owner, written.b, (b_shape[0], rank, *b_shape[2:]), b_name, AS_IT_IS)
        if written.bias is not None:
            add(owner, written.bias, (b_shape[0],), owner.factors[module].get(BIAS, b_name), AS_IT_IS)
        if written.alpha is not None:
            tasks.append(TensorTask(written.alpha, (), "F32", FLOAT_TYPES["F32"].itemsize, AS_IT_IS))
    for name in dict.fromkeys(name for adapter in adapters for name in adapter.others):
        owner = next(adapter for adapter in adapters if name in adapter.others)
        if request.residual_into_base and owner.is_of_base(name):
            continue  # peft would load it over the changed base
        add(owner, name, owner.shape(name), name, Treatment(whole, weights))
    return tasks


AS_IT_IS = Treatment(TensorAverage(), (1.0,))
"""How what was computed is written: rounded once."""
