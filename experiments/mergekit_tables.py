"""Methods and parameters of mergekit, and what they are called here: ``docs/coming_from/mergekit.md``.

Both tables are of the tables that the library reads recipes and makes methods by, so that neither a method nor an
option can be missing on the page.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, fields
from typing import Any

from consilience.checkpoints.mergekit import METHODS, BaseRole, alias
from consilience.checkpoints.methods import TENSOR_METHODS, make_tensor_method

BASE_ROLES: dict[BaseRole, str] = {
    "none": "not looked at",
    "needed": "needed",
    "optional": "optional",
    "end": "the model at `t` = 0",
    "model": "one more model",
}
NO_COUNTERPART = "none"
"""Where mergekit or this library has nothing of the kind."""
MUST_BE_GIVEN = "must be given"


def _here(name: str) -> tuple[str, dict[str, Any]]:
    """Return our method and the options that a name of mergekit says, as `cs.merge` takes it."""
    return alias(name) or (METHODS[name].name, {})


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def methods_table() -> str:
    """Return by mergekit's method ours, the options that its name says, and what the base model is to it."""
    lines = ["| mergekit's method | here | `base_model` |", "| --- | --- | --- |"]
    for name, known in METHODS.items():
        ours, options = _here(name)
        here = _codes([ours, *(f"{option}={value!r}" for option, value in options.items())])
        lines.append(f"| `{name}` | {here} | {BASE_ROLES[known.base]} |")
    theirs = {known.name for known in METHODS.values()}
    lines.append(f"| {NO_COUNTERPART} | {_codes(one.name for one in TENSOR_METHODS if one.name not in theirs)} | |")
    return "\n".join(lines) + "\n"


def parameters_table() -> str:
    """Return by mergekit's parameter our option, both defaults, and the methods that have it."""
    methods_of_row: dict[tuple[str, str, str, str], list[str]] = {}
    for name, known in METHODS.items():
        if known.is_weighted:
            methods_of_row.setdefault(("`weight`", "`weights`", MUST_BE_GIVEN, "equal"), []).append(name)
        ours, options = _here(name)
        method = make_tensor_method(ours, options)
        for parameter, (option, value) in known.parameters.items():
            there = MUST_BE_GIVEN if value is None else f"`{value!r}`"
            here = f"`{getattr(method, option)!r}`" if option else ""
            row = (f"`{parameter}`", f"`{option}`" if option else "not needed", there, here)
            methods_of_row.setdefault(row, []).append(name)
    for one in TENSOR_METHODS:
        read = [known for known in METHODS.values() if known.name == one.name]
        mapped = {option for known in read for option, _ in known.parameters.values()}
        mapped |= {option for known in read for option in known.options}
        for option in fields(one):
            if option.name not in mapped:
                default = MUST_BE_GIVEN if option.default is MISSING else f"`{option.default!r}`"
                methods_of_row.setdefault((NO_COUNTERPART, f"`{option.name}`", "", default), []).append(one.name)
    lines = [
        "| mergekit's parameter | option here | default there | default here | methods |",
        "| --- | --- | --- | --- | --- |",
    ]
    # Rows of one parameter follow each other, in the order in which methods first have it.
    order = list(dict.fromkeys(parameter for parameter, *_ in methods_of_row))
    rows = sorted(methods_of_row, key=lambda row: order.index(row[0]))
    lines += [f"| {' | '.join(row)} | {_codes(methods_of_row[row])} |" for row in rows]
    return "\n".join(lines) + "\n"


TABLES = {"mergekit-methods": methods_table, "mergekit-parameters": parameters_table}
