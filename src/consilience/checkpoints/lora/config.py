"""Configurations of LoRA adapters (``adapter_config.json`` of peft): what a merge folds in, compares, or refuses.

The change that an adapter makes to a module's weight is s B A, with A (r, inputs), B (outputs, r) and

    s = alpha / r,        or alpha / sqrt(r) with ``use_rslora`` (Kalajdzievski 2023).

r and alpha are those of the configuration, or of the first key of ``rank_pattern`` and ``alpha_pattern`` that ends the
module's name; each pattern is looked up on its own (peft, ``get_pattern_key``).
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fnmatch import translate
from functools import lru_cache
from math import sqrt
from typing import Any

from consilience.checks import Json
from consilience.errors import Problem

FOLDED = (
    "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "target_modules", "exclude_modules",
    "layers_to_transform", "layers_pattern", "modules_to_save", "lora_bias",
)  # fmt: skip
"""Fields that may differ: ranks and scales go into the factors, modules are joined."""

AGREEING = ("base_model_name_or_path", "revision", "task_type", "fan_in_fan_out", "bias")
"""Fields that all adapters must share: what they change, and how their factors lie."""

_KEPT = (
    "peft_type", "auto_mapping", "inference_mode", "lora_dropout", "init_lora_weights", "peft_version", "eva_config",
    "corda_config", "loftq_config", "lora_ga_config", "runtime_config", "megatron_core", "qalora_group_size",
    "ensure_weight_tying",
)  # fmt: skip
"""Fields that say nothing of the change itself; the first adapter's are kept."""

_REFUSED = {
    "use_dora": "DoRA normalises each sum of base and product, so products do not add up",
    "layer_replication": "it repeats layers of the base",
    "trainable_token_indices": "rows of an embedding are trained, which no factors hold",
    "target_parameters": "parameters without a module of their own are changed",
}
"""Fields that no stacking respects, and why; others that are set are refused by name alone."""

_CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Values of ``init_lora_weights`` that change the base too: what the adapter adds is then relative to another base."""

_MERGE_INTO_BASE = "merge checkpoints with their adapters in place, as BASE+ADAPTER (merge_and_unload of peft)"


def config_problems(name: str, config: Mapping[str, Json], understood: Collection[str] = ()) -> Iterator[Problem]:
    """Yield what an adapter's configuration says that cannot be merged by stacking, a line each.

    `understood` are further fields that the caller respects.
    """
    if (kind := config.get("peft_type")) != "LORA":
        yield Problem(name, f"is an adapter of type {kind!r}, expected 'LORA'", _MERGE_INTO_BASE, "E-ADAPTER")
        return
    for field in ("r", "lora_alpha"):
        if not _is_positive(value := config.get(field)):
            text = f"its {field} must be a positive number, found {value!r}"
            yield Problem(name, text, "save the adapter again", "E-NUMBER")
    for field in ("rank_pattern", "alpha_pattern"):
        patterns = config.get(field) or {}
        if not isinstance(patterns, Mapping) or not all(_is_positive(value) for value in patterns.values()):
            text = f"its {field} must give positive numbers by module"
            yield Problem(name, text, "save the adapter again", "E-NUMBER")
        elif reason := pattern_problems(patterns):
            yield Problem(name, f"its {field} {reason}", "write out the names of modules", "E-ADAPTER")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGED_BASE):
        remedy = "save it with path_initial_model_for_weight_conversion, or merge it into its base first"
        yield Problem(name, f"init_lora_weights is {start!r}, which changed the base too", remedy, "E-ADAPTER")
    for field, value in config.items():
        is_known = field in (*FOLDED, *AGREEING, *_KEPT, *understood)
        if not is_known and value not in (None, False, {}, [], ""):
            reason = _REFUSED.get(field, "which stacking ranks does not know")
            yield Problem(name, f"sets {field} ({_shown(value)}): {reason}", _MERGE_INTO_BASE, "E-ADAPTER")


_LARGEST = sys.float_info.max
"""The largest number that is calculated with: JSON has integers of any size."""


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= _LARGEST


def disagreements(
    names: Sequence[str], configs: Sequence[Mapping[str, Json]], fields: Sequence[str] = AGREEING
) -> Iterator[Problem]:
    """Yield the fields in which an adapter differs from the first, with both values."""
    for name, config in zip(names[1:], configs[1:], strict=True):
        for field in fields:
            first, other = (one.get(field) or _UNSET.get(field) for one in (configs[0], config))  # False is not set
            if first != other:
                text = f"{field} is {_shown(other)}, in {names[0]} {_shown(first)}{_REASONS.get(field, '')}"
                yield Problem(name, text, _REMEDIES.get(field, "merge adapters of one kind"), "E-MISMATCH")


_UNSET = {"bias": "none"}
"""What a field is where a configuration leaves it out, if not nothing."""

_SAME_BASE = "merge adapters of one base, or allow it if both name the same thing (allow_differences)"
_REMEDIES = {"base_model_name_or_path": _SAME_BASE, "revision": _SAME_BASE, "bias": _MERGE_INTO_BASE}

_REASONS = {
    "bias": ": trained biases replace those of the base, and the file of an adapter that did not train them has none"
}
"""Why a field must agree, where its name does not say it."""


def trains_biases(config: Mapping[str, Json]) -> bool:
    """Return whether biases of the base were trained, whole; peft loads them in place of the base's."""
    return (config.get("bias") or "none") != "none"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."  # 80: a line of a terminal


def module_rank(config: Mapping[str, Any], module: str) -> int:
    """Return the rank r that a configuration states for a module."""
    return int(_of_pattern(config, "rank_pattern", module, config["r"]))


def module_scale(config: Mapping[str, Any], module: str, rank: int) -> float:
    """Return the scale s of the product of a module's factors of some rank.

    Examples
    --------
    >>> module_scale({"r": 8, "lora_alpha": 16, "alpha_pattern": {"q_proj": 4}}, "layers.0.q_proj", 8)
    0.5
    >>> module_scale({"r": 4, "lora_alpha": 16, "use_rslora": True}, "layers.0.q_proj", 4)
    8.0
    """
    alpha = float(_of_pattern(config, "alpha_pattern", module, config["lora_alpha"]))
    return alpha / (sqrt(rank) if config.get("use_rslora") else rank)


def _of_pattern(config: Mapping[str, Any], field: str, module: str, default: float) -> float:
    """Return the value of the first pattern that ends a module's name; patterns that are no expressions match none."""
    patterns: Mapping[str, float] = config.get(field) or {}
    places, expressions = _compiled(tuple(patterns))
    parts = module.split(".")[-_MAX_PARTS:]
    named = [places[end] for k in range(len(parts)) if (end := ".".join(parts[k:])) in places]
    matching = next((place for place, globs in expressions if any(glob(module) for glob in globs)), len(patterns))
    first = min([*named, matching])
    return default if first == len(patterns) else float(patterns[tuple(patterns)[first]])


_MAX_PARTS = 64
"""Parts of a module's name, between dots, that names of patterns are compared with. Those of honest ones have ten."""

_MAX_PATTERNS, _MAX_LENGTH = 64, 256
"""Expressions among the keys of a pattern, and characters of one, at most. Names of modules are none."""

_NAME = re.compile(r"[^\\^$*+?{}\[\]|()]*")
_EXPRESSION = re.compile(r"\^?(?:[\w/-]|\\?\.|\.\*|\\d|\[[\w-]+\]|\|)+\$?")
"""What is taken of regular expressions: names with any character (``.``), any text (``.*``), a digit, one of several
characters, and alternatives. Without groups and other repeats, matching takes no more than the length of both."""


def pattern_problems(patterns: Collection[str]) -> str:
    """Return which keys of a pattern are no names of modules and no expressions of the simple kind; "" for none."""
    expressions = [pattern for pattern in patterns if not _NAME.fullmatch(pattern)]
    odd = [one for one in expressions if len(one) > _MAX_LENGTH or not _EXPRESSION.fullmatch(one)]
    if odd:
        return f"has the key {odd[0]!r:.60}, expected a name of modules, or one with .* for any text"
    return f"has {len(expressions)} expressions, and {_MAX_PATTERNS} is the most" * (len(expressions) > _MAX_PATTERNS)


@lru_cache
def _compiled(patterns: tuple[str, ...]) -> tuple[dict[str, int], list[tuple[int, list[Callable[[str], object]]]]]:
    """Return the places of patterns that are names, and of those that are expressions with what matches theirs.

    Expressions are matched as `fnmatch` translates them, whose texts of any length are matched without going back.
    """
    places: dict[str, int] = {}
    expressions = []
    for place, pattern in enumerate(patterns):
        if _NAME.fullmatch(pattern):
            places[pattern] = place
        else:
            expressions.append((place, _globs(pattern)))
    return places, expressions


def _globs(pattern: str) -> list[Callable[[str], object]]:
    """Return what matches the names that an expression matches, the whole of them or from a dot on."""
    found: list[Callable[[str], object]] = []
    for part in pattern.removesuffix("$").split("|"):
        glob = part.removeprefix("^")
        for expression, mark in ((r"\.", "\0"), (".*", "*"), (".", "?"), (r"\d", "[0-9]"), ("\0", ".")):
            glob = glob.replace(expression, mark)
        ends = [] if part.startswith("^") else [f"*.{glob}"]
        found += [re.compile(translate(one)).match for one in (glob, *ends)]
    return found


def most_common(ranks: Collection[int]) -> int:
    """Return the rank that most modules have, the highest of several."""
    counts = Counter(ranks)
    return max(counts, key=lambda rank: (counts[rank], rank))


def merged_config(
    configs: Sequence[Mapping[str, Any]],
    modules: Sequence[Sequence[str]],
    ranks: Mapping[str, int],
    lora_bias: bool = False,
) -> dict[str, Json]:
    """Return the configuration of a merged adapter: alpha = r, so that its factors are taken as they are.

    `modules` are those that each adapter changes, without the prefix of peft; `ranks` are those of the merged adapter's
    modules, whose factors B have biases where `lora_bias`.
    """
    usual = most_common(ranks.values())
    # Longest names first: peft takes the first pattern that ends a name, and "layer" ends "encoder.layer" too.
    odd = {name for name, rank in ranks.items() if rank != usual}
    ends = ({name} | {name[place + 1 :] for place, letter in enumerate(name) if letter == "."} for name in ranks)
    stated = {name for name, its_ends in zip(ranks, ends, strict=True) if its_ends & odd}
    others = {name: ranks[name] for name in sorted(stated, key=lambda name: (-len(name), name))}
    merged = dict(configs[0]) | {
        "r": usual,
        "lora_alpha": usual,
        "use_rslora": False,
        "rank_pattern": others,
        "alpha_pattern": dict(others),
        "inference_mode": True,
        "init_lora_weights": True,  # factors are loaded over it; other starts would compute one first
    }
    selection = ("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern")
    same_modules = all(set(named) == set(ranks) for named in modules)
    if not (same_modules and all(_plain(config, selection) == _plain(configs[0], selection) for config in configs)):
        merged |= dict.fromkeys(selection) | {"target_modules": sorted(ranks)}
    saved = sorted({name for config in configs for name in config.get("modules_to_save") or ()})
    return merged | {"modules_to_save": saved or None} | ({"lora_bias": True} if lora_bias else {})


def _plain(config: Mapping[str, Json], fields: Sequence[str]) -> list[Any]:
    """Return the values of some fields, lists sorted, since their order says nothing."""
    values = (config.get(field) for field in fields)
    return [sorted(map(str, value)) if isinstance(value, list) else value for value in values]
