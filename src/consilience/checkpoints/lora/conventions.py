"""Adapters that name modules differently: matched where names can be of one module only, and the names of the output.

The output has the convention of the first adapter. Modules that only others have are named in it, where that can be
done: dots of kohya's names are not known, so a module that only kohya's file has cannot be named as diffusers does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from consilience.checkpoints.folder import Checkpoint
from consilience.checkpoints.lora.factors import A_NAMES, B_NAMES, BIAS, PREFIX, LowRankAdapter
from consilience.checkpoints.lora.files import LoraFile
from consilience.checkpoints.lora.names import (
    ALPHA,
    Convention,
    component_of,
    flat_names,
    key_of,
    module_in_component,
    names_of_factors,
    prefix_of,
    translated,
)
from consilience.errors import InputError, Problem

_ONE_BASE = "merge adapters of one base"
_MAX_LISTED = 3
"""Names that a message has. Chosen by hand."""


@dataclass(frozen=True)
class FactorNames:
    """The names under which a module of the output is written."""

    a: str
    b: str
    bias: str | None = None  # of the factor B, where any adapter has one
    alpha: str | None = None  # of the tensor of alpha, where the convention has one

    @property
    def all(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(name for name in (self.a, self.b, self.bias, self.alpha) if name is not None)


def with_common_modules(adapters: Sequence[LowRankAdapter]) -> list[LowRankAdapter]:
    """Return adapters with the names of modules that the first one has, or would have.

    Raises InputError, a line each, for adapters without a module in common, or modules whose names are unknown.
    """
    if all(adapter.convention == "peft" for adapter in adapters):
        return list(adapters)
    to = adapters[0].convention
    prefixes = {component_of(to, module): prefix_of(to, module) for module in adapters[0].factors}
    unstated = _unstated_component(adapters)
    problems: list[Problem] = []
    names: dict[tuple[str, str], str] = {}
    renamed = []
    for adapter in adapters:
        keys = {}
        for module in adapter.factors:
            component, flat = key_of(adapter.convention, module)
            keys[module] = (component or unstated, flat)
        unfit = [*_spelled_twice(adapter, keys)]
        if names:
            unfit += _without_common_names(adapter, keys, names, adapters[0])
        if unfit:
            problems += unfit
            continue
        own_names: dict[str, str] = {}
        for module, key in keys.items():
            if key not in names:
                is_like_first = adapter.convention == to
                found = module if is_like_first else translated(module, adapter.convention, to, prefixes)
                if found is None:
                    text = f"{module} is a module that {adapters[0].name} lacks, and its dots are not known"
                    remedy = f"give {adapter.name} first, or convert it to the names of {to}"
                    problems.append(Problem(adapter.name, text, remedy, "E-MISMATCH"))
                    break
                names[key] = found
            own_names[names[key]] = module
        factors = {name: adapter.factors[module] for name, module in own_names.items()}
        renamed.append(replace(adapter, factors=factors, own_names=own_names))
    if problems:
        raise InputError(problems)
    return renamed


def _unstated_component(adapters: Sequence[LowRankAdapter]) -> str:
    """Return the component of modules whose names state none: the only one that others state; raise for several."""
    stated: set[str] = set()
    silent = []
    for adapter in adapters:
        components = {component_of(adapter.convention, module) for module in adapter.factors}
        stated |= components - {""}
        silent += [adapter] if "" in components else []
    if silent and len(stated) > 1:
        text = f"does not say of which component its modules are: {', '.join(sorted(stated))}"
        raise InputError(silent[0].name, text, "split the other adapter by component", "E-MISMATCH")
    return next(iter(stated), "")


def _spelled_twice(adapter: LowRankAdapter, keys: Mapping[str, tuple[str, str]]) -> Iterator[Problem]:
    """Yield that two modules of one adapter have one name without dots."""
    first: dict[tuple[str, str], str] = {}
    for module, key in keys.items():
        if (other := first.setdefault(key, module)) != module:
            text = f"{other} and {module} cannot be distinguished in names without dots"
            yield Problem(adapter.name, text, "convert all to one convention", "E-MISMATCH")
            return


def _without_common_names(
    adapter: LowRankAdapter,
    keys: Mapping[str, tuple[str, str]],
    names: Mapping[tuple[str, str], str],
    first: LowRankAdapter,
) -> Iterator[Problem]:
    """Yield that a component of an adapter has modules as that of earlier ones has, and none in common."""
    for component in dict.fromkeys(component for component, _ in keys.values()):
        ours = [module for module, key in keys.items() if key[0] == component]
        theirs = [module for key, module in names.items() if key[0] == component]
        if theirs and not any(keys[module] in names for module in ours):
            text = f"has no module of {first.name}: {ours[0]} here, {theirs[0]} there"
            yield Problem(adapter.name, text, f"{_ONE_BASE}, or convert all to one convention", "E-MISMATCH")
            return


def output_names(adapters: Sequence[LowRankAdapter], modules: Sequence[str]) -> dict[str, FactorNames]:
    """Return the names of the tensors of every module of the output."""
    to = adapters[0].convention
    has_biases = any(adapter.has_factor_biases for adapter in adapters)
    has_alphas = any(isinstance(one.checkpoint, LoraFile) and one.checkpoint.alphas for one in adapters)
    if to == "kohya" and has_biases:
        text = "has biases of factors, which kohya's files have no place for"
        owner = next(adapter for adapter in adapters if adapter.has_factor_biases)
        raise InputError(owner.name, text, "give an adapter of peft or diffusers first", "E-ADAPTER")
    embedding = next(((one, m) for one in adapters for m in modules if A_NAMES[1] in one.factors.get(m, ())), None)
    if to != "peft" and embedding is not None:
        text = f"{embedding[1]} is an embedding, which a file of factors has no place for"
        raise InputError(embedding[0].name, text, "give an adapter of peft first", "E-ADAPTER")
    found = {}
    for module in modules:
        if to == "peft":
            owners = (one for one in adapters if module in one.factors and one.convention == to)
            written_here = f"{PREFIX}{module}.{A_NAMES[0]}", f"{PREFIX}{module}.{B_NAMES[0]}"
            a, b = next((one.parts(module) for one in owners), written_here)
            bias = b.removesuffix(B_NAMES[0]) + BIAS if has_biases and b.endswith(B_NAMES[0]) else None
            found[module] = FactorNames(a, b, bias)
        else:
            written = names_of_factors(to, module)
            alpha = written[ALPHA] if to == "kohya" or has_alphas else None
            found[module] = FactorNames(
                written["lora_A.weight"], written["lora_B.weight"], written[BIAS] if has_biases else None, alpha
            )
    return found


def modules_in_base(base: Checkpoint, adapter: LoraFile, sizes: Mapping[str, tuple[int, int] | None]) -> dict[str, str]:
    """Return the tensors of a base that modules of a file are of, by module.

    A file may be of several components, and a base is often one: components of which the base has nothing are left out,
    where it has all of another. `sizes` are outputs and inputs of modules, None where they are not compared.

    Raises InputError for modules that the base does not have, or whose names several tensors have.
    """
    places = _places(base)
    found: dict[str, dict[str, str]] = {}
    missing: dict[str, list[str]] = {}
    for module, size in sizes.items():
        component = component_of(adapter.convention, module)
        names = _candidates(adapter.convention, module, places)
        fitting = [name for name in names if size is None or size == _flat(base.tensors[name][1].shape)]
        if len(fitting) > 1:
            text = f"{module} may be {' or '.join(sorted(fitting)[:_MAX_LISTED])} of {base.name}"
            raise InputError(adapter.name, text, "convert it to the names of diffusers", "E-MISMATCH")
        if fitting:
            found.setdefault(component, {})[module] = fitting[0]
        else:
            missing.setdefault(component, []).append(module)
    whole = [component for component in found if component not in missing]
    if partly := [module for component in missing for module in missing[component] if component in found or not whole]:
        text = f"changes {', '.join(partly[:_MAX_LISTED])}, which {base.name} does not have, or not in this shape"
        raise InputError(adapter.name, text, "give the base that it was trained from", "E-MISMATCH")
    taken: dict[str, str] = {}
    for component in whole:
        for module, name in found[component].items():
            if (other := taken.setdefault(name, module)) != module:
                text = f"{other} and {module} are both {name} of {base.name}"
                raise InputError(adapter.name, text, "give a file of one component", "E-MISMATCH")
    return {module: name for name, module in taken.items()}


def left_out(adapter: LoraFile, taken: Mapping[str, str]) -> str | None:
    """Return a sentence on the components of a file that a base does not have; None where it has all."""
    lacking = [module for module in adapter.modules if module not in taken]
    if not lacking:
        return None
    components = dict.fromkeys(component_of(adapter.convention, module) or "the rest" for module in lacking)
    return f"{', '.join(components)}: {len(lacking)} modules, of which the base has none"


def _places(base: Checkpoint) -> dict[str, list[str]]:
    """Return the weights of a base by each end of their name, dots as underscores."""
    places: dict[str, list[str]] = {}
    for name in base.tensors:
        parts = name.removesuffix(".weight").split(".")
        if name.endswith(".weight"):
            for start in range(len(parts)):
                places.setdefault("_".join(parts[start:]), []).append(name)
    return places


def _candidates(convention: Convention, module: str, places: Mapping[str, list[str]]) -> list[str]:
    """Return the weights that may be a module's: those of its whole name, else those that end in it."""
    for flat in flat_names(convention, module):
        names = places.get(flat, [])
        whole = [name for name in names if name.removesuffix(".weight").replace(".", "_") == flat]
        if names := whole or names:
            dotted = module_in_component(convention, module)
            exact = [name for name in names if f".{name}".endswith(f".{dotted}.weight")]
            return exact or names
    return []


def _flat(shape: tuple[int, ...]) -> tuple[int, int]:
    size = 1
    for length in shape[1:]:
        size *= length
    return shape[0], size
