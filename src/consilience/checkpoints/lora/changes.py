"""What adapters of peft do to the tensors of their base, by type.

Of a weight W (outputs, inputs), with s the scale of the configuration:

    LoRA                   W + s B A;  an embedding + s (B A)^T;  with DoRA  m (W + s B A) / |W + s B A|, by output
    LoHa                   W + s (B_1 A_1) * (B_2 A_2), entry by entry
    LoKr                   W + s W_1 (x) W_2
    VeRA                   W + diag(b) B diag(d) A, B and A those of all modules
    IA3                    W l, by input or by output
    tokens, layer norms,   the trained values in place of the base's
    modules saved whole

A weight that is stored with its inputs first (``fan_in_fan_out``) is transposed before and after. Adapters that add
inputs (prompts, prefixes), and those of other types, are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.checkpoints.folder import Checkpoint
from consilience.checkpoints.lora.config import config_problems, module_scale
from consilience.checkpoints.lora.factors import (
    BIAS,
    MIDDLE,
    PREFIX,
    LowRankAdapter,
    base_name,
    module_problems,
    read_factors,
    with_middle,
)
from consilience.checkpoints.lora.files import LoraFile
from consilience.checkpoints.lora.names import PRODUCT_PARTS
from consilience.checks import Array
from consilience.errors import InputError

ReadTensor = Callable[[Checkpoint, str], Array]
"""Gives a tensor of a checkpoint in float64."""

_ADDS_INPUTS = ("PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "ADAPTION_PROMPT", "CPT")
"""Types that change no weight of their base."""


@dataclass(frozen=True, eq=False)
class TensorChange:
    """What an adapter does to one tensor of its base."""

    adapter: Checkpoint
    kind: str  # one of the keys of `_APPLY`
    parts: Mapping[str, str]  # names of its tensors, by part
    scale: float = 1.0
    is_turned: bool = False  # whether the base stores the tensor with the inputs first
    rows: tuple[int, ...] = ()  # of tokens, the rows that are replaced

    def apply(self, values: Array, read: ReadTensor) -> Array:
        """Return the tensor of the base, changed (in the same shape)."""
        found = {part: read(self.adapter, name) for part, name in self.parts.items()}
        turned = values.T if self.is_turned else values
        changed = _APPLY[self.kind](turned, found, self)
        if changed.shape != turned.shape:
            text = f"{next(iter(self.parts.values()))} is for shape {list(changed.shape)}, found {list(turned.shape)}"
            raise InputError(self.adapter.name, text, "give the base that it was trained from", "E-SHAPE")
        return np.ascontiguousarray(changed.T if self.is_turned else changed)


def _product(b: Array, a: Array, shape: tuple[int, ...]) -> Array:
    """Return B A (outputs, inputs) in the shape of a weight."""
    product = b.reshape(len(b), -1) @ a.reshape(len(a), -1)
    return product.reshape(shape) if product.size == int(np.prod(shape)) else product


def _lora(values: Array, found: Mapping[str, Array], change: TensorChange) -> Array:
    if "lora_embedding_A" in found:
        return values + change.scale * (found["lora_embedding_B"] @ found["lora_embedding_A"]).T
    a: Any = with_middle(found["lora_A.weight"], found[MIDDLE]) if MIDDLE in found else found["lora_A.weight"]
    product = _product(found["lora_B.weight"], a, values.shape)
    changed: Array = values + change.scale * product if product.shape == values.shape else product
    if "magnitude" not in found or changed.shape != values.shape:
        return changed
    norms = np.linalg.norm(changed.reshape(len(changed), -1), axis=1)
    factors = found["magnitude"].reshape(-1) / norms
    return changed * factors.reshape(-1, *[1] * (changed.ndim - 1))


def _loha(values: Array, found: Mapping[str, Array], change: TensorChange) -> Array:
    first, second = (found[f"hada_w{k}_a"] @ found[f"hada_w{k}_b"] for k in (1, 2))
    return values + change.scale * (first * second).reshape(values.shape)


def _lokr(values: Array, found: Mapping[str, Array], change: TensorChange) -> Array:
    first, second = (
        found[f"lokr_w{k}"]
        if f"lokr_w{k}" in found
        else found[f"lokr_w{k}_a"] @ found[f"lokr_w{k}_b"].reshape(len(found[f"lokr_w{k}_b"]), -1)
        for k in (1, 2)
    )
    product = np.kron(first, second.reshape(len(second), -1))
    return values + change.scale * product.reshape(values.shape)


def _vera(values: Array, found: Mapping[str, Array], change: TensorChange) -> Array:
    outputs, inputs = values.shape
    b = found["vera_lambda_b"].reshape(-1, 1) * found["vera_B"][:outputs]
    return values + b @ (found["vera_lambda_d"].reshape(-1, 1) * found["vera_A"][:, :inputs])


def _ia3(values: Array, found: Mapping[str, Array], change: TensorChange) -> Array:
    return values * (found["ia3_l"].reshape(-1) if values.ndim == 1 else found["ia3_l"])


def _whole(values: Array, found: Mapping[str, Array], change: TensorChange) -> Array:
    return found["whole"]


def _added(values: Array, found: Mapping[str, Array], change: TensorChange) -> Array:
    return values + change.scale * found["added"]


def _tokens(values: Array, found: Mapping[str, Array], change: TensorChange) -> Array:
    changed = values.copy()
    if max(change.rows, default=0) >= len(changed) or len(change.rows) != len(found["tokens"]):
        text = f"trains rows {list(change.rows)[:5]} of an embedding of {len(changed)} rows"
        raise InputError(change.adapter.name, text, "give the base that it was trained from", "E-SHAPE")
    changed[list(change.rows)] = found["tokens"]
    return changed


_APPLY: Mapping[str, Callable[[Array, Mapping[str, Array], TensorChange], Array]] = {
    "lora": _lora, "loha": _loha, "lokr": _lokr, "vera": _vera, "ia3": _ia3, "whole": _whole, "added": _added,
    "tokens": _tokens,
}  # fmt: skip


def changes_by(adapter: Checkpoint) -> Iterator[tuple[str, TensorChange]]:
    """Yield the tensors of the base that an adapter changes, by their names in peft's module, and how.

    Raises InputError for types, options and tensors that are not understood, by name.
    """
    kind = str(adapter.config.get("peft_type"))
    if kind in _ADDS_INPUTS:
        text = f"is of type {kind}, which adds inputs and changes no weight"
        raise InputError(adapter.name, text, "use it with its base, in peft", "E-ADAPTER")
    if kind not in _READ:
        text = f"is of type {kind}; understood are {', '.join(_READ)}"
        raise InputError(adapter.name, text, "merge it with peft (merge_and_unload)", "E-ADAPTER")
    yield from _READ[kind](adapter)


def _of_lora(adapter: Checkpoint) -> Iterator[tuple[str, TensorChange]]:
    """Yield what a LoRA adapter changes, DoRA and trained tokens included."""
    if problems := list(config_problems(adapter.name, adapter.config, ("use_dora", "trainable_token_indices"))):
        raise InputError(problems)
    known = read_factors(adapter)
    if problems := module_problems(known):
        raise InputError(problems)
    is_turned = bool(adapter.config.get("fan_in_fan_out"))
    unknown = list(known.unknown)
    for module, parts in known.factors.items():
        prefix = parts[next(iter(parts))].rpartition(f"{module}.")[0] + module
        scale = known.scale(module)
        taken = {part: name for part, name in parts.items() if part != BIAS}
        for magnitude in (f"{prefix}.lora_magnitude_vector", f"{prefix}.lora_magnitude_vector.weight"):
            if magnitude in unknown:
                unknown.remove(magnitude)
                taken["magnitude"] = magnitude
        turned = is_turned and "lora_A.weight" in parts
        yield f"{module}.weight", TensorChange(adapter, "lora", taken, scale, turned)
        if BIAS in parts:
            yield f"{module}.bias", TensorChange(adapter, "added", {"added": parts[BIAS]}, scale)
    yield from _tokens_of(adapter, unknown, adapter.config.get("trainable_token_indices"))
    yield from _whole_of(known)
    if unknown:
        raise InputError(adapter.name, f"{unknown[0]} is not understood", "merge it with peft", "E-ADAPTER")


@dataclass(frozen=True)
class ChangeOfModule:
    """What a LoRA file does to the weight of a module, and its outputs and inputs where they are compared."""

    change: TensorChange
    sizes: tuple[int, int] | None
    bias: TensorChange | None = None  # of the module


def changes_by_file(adapter: LoraFile) -> dict[str, ChangeOfModule]:
    """Return what a LoRA file of kohya's trainer, LyCORIS or diffusers changes, by module.

    Raises InputError for tensors that are not understood, and modules whose parts do not fit together.
    """
    if adapter.unknown:
        text = f"{adapter.unknown[0]} is not understood"
        raise InputError(adapter.name, text, "merge it with the program that trained it", "E-ADAPTER")
    found = {}
    low_rank = {module: parts for module, parts in adapter.modules.items() if not set(parts) & set(PRODUCT_PARTS)}
    known = LowRankAdapter(adapter, low_rank, (), ())
    if problems := module_problems(known):
        raise InputError(problems)
    for module, parts in adapter.modules.items():
        if module in low_rank:
            scale, taken = known.scale(module), {part: name for part, name in parts.items() if part != BIAS}
            bias = TensorChange(adapter, "added", {"added": parts[BIAS]}, scale) if BIAS in parts else None
            change = TensorChange(adapter, "lora", taken, scale)
            found[module] = ChangeOfModule(change, known.sizes(module), bias)
        else:
            found[module] = ChangeOfModule(_product_change(adapter, module, parts), None)
    return found


_WHOLE_PRODUCTS = {
    "loha": [{"hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"}],
    "lokr": [
        first | second
        for first in ({"lokr_w1"}, {"lokr_w1_a", "lokr_w1_b"})
        for second in ({"lokr_w2"}, {"lokr_w2_a", "lokr_w2_b"})
    ],
}
"""Parts that a module with LoHa or LoKr has."""


def _product_change(adapter: LoraFile, module: str, parts: Mapping[str, str]) -> TensorChange:
    """Return the change of a module by a LoHa or LoKr of LyCORIS; whole factors have the scale 1."""
    kind = next((kind for kind, sets in _WHOLE_PRODUCTS.items() if set(parts) in sets), None)
    if kind is None:
        text = f"{module} has {', '.join(sorted(parts))}, expected all parts of one LoRA, LoHa or LoKr"
        raise InputError(adapter.name, text, "save the adapter again", "E-ADAPTER")
    ranks = [adapter.tensors[name][1].shape[:1] for part, name in parts.items() if part.endswith("_b")]
    is_whole = not ranks or ranks[0] in ((), (0,))
    return TensorChange(adapter, kind, parts, 1.0 if is_whole else adapter.scale(module, ranks[0][0]))


def _whole_of(known: LowRankAdapter) -> Iterator[tuple[str, TensorChange]]:
    """Yield the tensors that were trained as a whole."""
    for name in known.others:
        if not known.is_of_base(name):
            yield base_name(name), TensorChange(known.checkpoint, "whole", {"whole": name})


def _tokens_of(adapter: Checkpoint, unknown: list[str], indices: Any) -> Iterator[tuple[str, TensorChange]]:
    """Yield the embeddings of which rows were trained; what is understood is taken from `unknown`."""
    for name in [name for name in unknown if name.endswith("trainable_tokens_delta")]:
        unknown.remove(name)
        module = name.removeprefix(PREFIX).partition(".token_adapter")[0].removesuffix(".trainable_tokens_delta")
        stated = indices
        if isinstance(indices, Mapping):
            stated = next((rows for key, rows in indices.items() if f".{module}".endswith(f".{key}")), None)
        if not isinstance(stated, list) or not all(isinstance(row, int) and row >= 0 for row in stated):
            text = f"{name} has rows of tokens whose numbers the configuration does not say"
            raise InputError(adapter.name, text, "save the adapter again", "E-NEEDED")
        yield f"{module}.weight", TensorChange(adapter, "tokens", {"tokens": name}, rows=tuple(stated))


def _modules(adapter: Checkpoint, marks: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """Return the names of an adapter's tensors by module and part; raise for others."""
    modules: dict[str, dict[str, str]] = {}
    for name in adapter.tensors:
        module, _, part = name.rpartition(".")
        if part not in marks:
            text = f"{name} is not understood in an adapter of type {adapter.config.get('peft_type')}"
            raise InputError(adapter.name, text, "merge it with peft (merge_and_unload)", "E-ADAPTER")
        modules.setdefault(module.removeprefix(PREFIX), {})[part] = name
    return modules


def _of_products(kind: str, marks: tuple[str, ...]) -> Callable[[Checkpoint], Iterator[tuple[str, TensorChange]]]:
    """Return a reader of LoHa or LoKr: factors by module, and a scale alpha / r."""

    def read(adapter: Checkpoint) -> Iterator[tuple[str, TensorChange]]:
        config: dict[str, Any] = {**adapter.config, "lora_alpha": adapter.config.get("alpha", 8), "use_rslora": False}
        for module, parts in _modules(adapter, marks).items():
            rank = next(
                (adapter.tensors[name][1].shape[0] for part, name in parts.items() if part.endswith("_b")),
                config.get("r", 8),
            )
            yield f"{module}.weight", TensorChange(adapter, kind, parts, module_scale(config, module, int(rank)))

    return read


def _of_ia3(adapter: Checkpoint) -> Iterator[tuple[str, TensorChange]]:
    is_turned = bool(adapter.config.get("fan_in_fan_out"))
    for module, parts in _modules(adapter, ("ia3_l",)).items():
        yield f"{module}.weight", TensorChange(adapter, "ia3", parts, is_turned=is_turned)
        if adapter.tensors[parts["ia3_l"]][1].shape[0] != 1:  # of outputs: a bias, where there is one, is scaled too
            yield f"{module}.bias?", TensorChange(adapter, "ia3", parts)


def _of_vera(adapter: Checkpoint) -> Iterator[tuple[str, TensorChange]]:
    shared = {part: f"base_model.{part}" for part in ("vera_A", "vera_B")}
    if lacking := [name for name in shared.values() if name not in adapter.tensors]:
        remedy = "save it with save_projection=True"
        raise InputError(adapter.name, f"lacks {lacking[0]}, the projection of all modules", remedy, "E-NEEDED")
    for name in adapter.tensors:
        if name.endswith(".vera_lambda_b"):
            module = name.removesuffix(".vera_lambda_b")
            parts = {"vera_lambda_b": name, "vera_lambda_d": f"{module}.vera_lambda_d", **shared}
            is_turned = bool(adapter.config.get("fan_in_fan_out"))
            yield f"{module.removeprefix(PREFIX)}.weight", TensorChange(adapter, "vera", parts, is_turned=is_turned)


def _of_tokens(adapter: Checkpoint) -> Iterator[tuple[str, TensorChange]]:
    names = list(adapter.tensors)
    yield from _tokens_of(adapter, names, adapter.config.get("token_indices"))
    if names:
        raise InputError(adapter.name, f"{names[0]} is not understood", "merge it with peft", "E-ADAPTER")


def _of_norms(adapter: Checkpoint) -> Iterator[tuple[str, TensorChange]]:
    for name in adapter.tensors:
        target = name.removeprefix(PREFIX).replace(".ln_tuning_layers.", ".")
        yield target, TensorChange(adapter, "whole", {"whole": name})


_READ: Mapping[str, Callable[[Checkpoint], Iterator[tuple[str, TensorChange]]]] = {
    "LORA": _of_lora,
    "LOHA": _of_products("loha", ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b")),
    "LOKR": _of_products("lokr", ("lokr_w1", "lokr_w2", "lokr_w1_a", "lokr_w1_b", "lokr_w2_a", "lokr_w2_b")),
    "VERA": _of_vera,
    "IA3": _of_ia3,
    "TRAINABLE_TOKENS": _of_tokens,
    "LN_TUNING": _of_norms,
}
"""Types of peft that change weights, and how they are read."""
