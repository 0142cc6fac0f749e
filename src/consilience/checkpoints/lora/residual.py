"""Means of adapters factor by factor, and what they leave out added to the base (FedEx-LoRA).

    base' = base + sum_k w_k s_k B_k A_k - s B A,      A = sum_k w_k A_k,      B = sum_k w_k (s_k / s) B_k

so that base' with the adapter (A, B) is the base with the mean of the products, and the adapter keeps its rank and its
scale s, that of the first. A and B are those of the output, rounded. The residual has a rank of up to sum_k r_k + r.

Source: Singhal et al. (2025), "FedEx-LoRA", ACL, equations 6 to 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from consilience.checkpoints.folder import Checkpoint
from consilience.checkpoints.lora.changes import ReadTensor
from consilience.checkpoints.lora.conventions import FactorNames, modules_in_base
from consilience.checkpoints.lora.factors import A_NAMES, Losses, LowRankAdapter, squared_change, stack
from consilience.checkpoints.lora.files import LoraFile
from consilience.checkpoints.lora.into_base import name_in, with_changes
from consilience.checkpoints.methods.average import TensorAverage
from consilience.checkpoints.numbers import FLOAT_TYPES, Floats, rounded_to
from consilience.checkpoints.request import MergeRequest, PreparedMerge, prepare
from consilience.checks import Array
from consilience.errors import InputError, OptionError, Problem

ADAPTER, BASE = "adapter", "base"
"""Names of the folders of the output."""

_COPIES = 6
"""Arrays of a weight's size in 64 bits: as read, two products, their difference, the sum, and what rounding loses."""


def refuse_residual_options(request: MergeRequest, is_folder: bool) -> None:
    """Raise for options that means of factors do not have."""
    option = "residual_into_base"
    if not (isinstance(request.method, TensorAverage) and request.method.normalize):
        text = f"is of means factor by factor, found the method {request.method.name!r}"
        raise OptionError(option, text, "leave the method out")
    if request.rank is not None:
        raise OptionError(option, "keeps the rank of the adapters, found `rank=`", "leave one of them out")
    if not is_folder:
        raise OptionError(option, "writes a base and an adapter, found a file as output", "give a folder")
    if request.base is None:
        raise InputError("base", "is not given, and the residual goes into it", "give `base=`", "E-NEEDED")


def other_factors(adapters: Sequence[LowRankAdapter]) -> Iterator[Problem]:
    """Yield which adapters have other modules or ranks than the first, whose factors have no mean."""
    first, remedy = adapters[0], "merge them without `residual_into_base`, which stacks ranks"
    for adapter in adapters[1:]:
        if odd := sorted(set(first.factors) ^ set(adapter.factors)):
            text = f"{odd[0]} is not a module of both this and {first.name}"
            yield Problem(adapter.name, text, remedy, "E-MISMATCH")
            continue
        odd = [module for module in first.factors if first.rank(module) != adapter.rank(module)]
        if odd:
            text = f"{odd[0]} has rank {adapter.rank(odd[0])}, in {first.name} {first.rank(odd[0])}"
            yield Problem(adapter.name, text, remedy, "E-SHAPE")


def mean_of_factors(
    factors: Sequence[tuple[Floats, Floats]], coefficients: Sequence[float], shares: Sequence[float], scale: float
) -> tuple[Floats, Floats]:
    """Return A = sum_k w_k A_k and B = sum_k w_k (s_k / s) B_k.

    `shares` are w_k, and `coefficients` w_k s_k.
    """
    a = sum(share * a for (a, _), share in zip(factors, shares, strict=True))
    b = sum((c / scale) * b for (_, b), c in zip(factors, coefficients, strict=True))
    return np.asarray(a), np.asarray(b)


@dataclass(frozen=True, eq=False)
class ResidualChange:
    """What a mean of factors leaves out of one module, added to a weight of the base."""

    module: str
    adapters: Sequence[LowRankAdapter]  # (J,)
    shares: Sequence[float]  # (J,), w_k
    scale: float  # s
    dtypes: tuple[str, str]  # of A and B in the output, in the words of safetensors
    dtype: str  # of the weight in the output
    is_turned: bool  # whether the weight is stored with its inputs first
    losses: Losses  # by module, what rounding the weight changes in the mean of the products

    def apply(self, values: Array, read: ReadTensor) -> Array:
        """Return the weight of the base, changed (in the same shape)."""
        counted = [(one, share) for one, share in zip(self.adapters, self.shares, strict=True) if share]
        factors = []
        for adapter, _ in counted:
            a, b = adapter.read(self.module, lambda name, of=adapter.checkpoint: read(of, name))  # type: ignore[misc]
            factors.append((a.reshape(len(a), -1), b.reshape(len(b), -1)))
        coefficients = [share * adapter.scale(self.module) for adapter, share in counted]
        mean = mean_of_factors(factors, coefficients, [share for _, share in counted], self.scale)
        a, b = (rounded_to(FLOAT_TYPES[dtype], one) for dtype, one in zip(self.dtypes, mean, strict=True))
        whole_a, whole_b = stack(factors, coefficients)
        residual = whole_b @ whole_a - self.scale * (b @ a)  # (outputs, inputs)
        changed = values + (residual.T if self.is_turned else residual).reshape(values.shape)
        lost = rounded_to(FLOAT_TYPES[self.dtype], changed) - changed
        _, size = squared_change(whole_a, whole_b, whole_a, whole_b)
        self.losses.squares[self.module] = (float(np.sum(lost**2)), size)
        return changed


@dataclass(frozen=True, eq=False)
class ChangedBase:
    """The base that a mean of factors is to be loaded with: its merge, and what rounding it loses."""

    merge: PreparedMerge
    losses: Losses
    memory: int  # bytes of the largest residual, with what it is computed of


def prepare_changed_base(
    request: MergeRequest,
    adapters: Sequence[LowRankAdapter],
    shares: Sequence[float],
    scales: Mapping[str, float],
    names: Mapping[str, FactorNames],
    dtypes: Mapping[str, str],
    output: Path,
) -> ChangedBase:
    """Return the merge that writes the base with the residuals of all modules, planned from headers.

    `scales` and `names` are those of the adapter that is written, `dtypes` the types of its tensors.
    """
    assert request.base is not None  # noqa: S101  (`refuse_residual_options` has looked)
    own = MergeRequest(
        models=(request.base,), method=TensorAverage(), dtype=request.dtype, shard_bytes=request.shard_bytes,
        seed=request.seed, residual_into_base=True,
    )  # fmt: skip
    prepared = prepare(own, output)
    base, losses = prepared.inputs.models[0], Losses()
    types = {task.name: task.dtype for shard in prepared.plan.shards for task in shard.tasks}
    named = []
    for module, name in _places(base, adapters[0]).items():
        kind, factors = names[module], adapters[0].factors[module]
        turned = A_NAMES[1] in factors or bool(adapters[0].config.get("fan_in_fan_out"))
        change = ResidualChange(
            module, adapters, shares, scales[module], (dtypes[kind.a], dtypes[kind.b]), types[name], turned, losses
        )
        named.append((name, change))
    changed = with_changes(base, adapters[0].checkpoint, named)
    files = (*base.files, *(file for adapter in adapters for file in adapter.checkpoint.files))
    changed = replace(changed, name=base.name, files=files, adapters=())
    note = f"holds what the mean of factors leaves out of the mean of products: load it with ../{ADAPTER}"
    plan = replace(prepared.plan, notes=(*prepared.plan.notes, note))
    merge = replace(prepared, inputs=replace(prepared.inputs, models=(changed,)), plan=plan)
    largest = max(adapters[0].sizes(module)[0] * adapters[0].sizes(module)[1] for module in names)
    return ChangedBase(merge, losses, memory=_COPIES * 8 * largest)


def _places(base: Checkpoint, adapter: LowRankAdapter) -> dict[str, str]:
    """Return the weights of a base by module; raise for modules that it does not have."""
    if isinstance(adapter.checkpoint, LoraFile):
        sizes = {adapter.own_names.get(module, module): adapter.sizes(module) for module in adapter.factors}
        taken = modules_in_base(base, adapter.checkpoint, sizes)
        found = {module: taken.get(adapter.own_names.get(module, module)) for module in adapter.factors}
    else:
        found = {module: name_in(base, f"{module}.weight") for module in adapter.factors}
    if lacking := [module for module, name in found.items() if name is None]:
        text = f"changes {lacking[0]}, which {base.name} does not have"
        raise InputError(adapter.name, text, "give the base that it was trained from", "E-MISMATCH")
    return {module: name for module, name in found.items() if name is not None}
