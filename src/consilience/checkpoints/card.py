"""What a merged checkpoint says of itself: a model card for people, and the provenance as JSON.

Both say how it was made and from which bytes, and nothing that changes between two identical runs: no clock, no folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from consilience.checkpoints.folder import Checkpoint
from consilience.checkpoints.inputs import Ingredients
from consilience.core.provenance import library_versions

FORMAT = "consilience-merge"


def provenance(
    recipe: Mapping[str, Any],
    ingredients: Ingredients,
    digests: Mapping[Path, str],
    files: Mapping[str, str],
    details: Mapping[str, Any],
    notes: Sequence[str],
) -> dict[str, Any]:
    """Return how a checkpoint came to be, as JSON values.

    Parameters
    ----------
    recipe
        What was asked for.
    ingredients
        What was merged.
    digests
        SHA-256 of every file that was read, by its resolved path.
    files
        SHA-256 of every file of weights that was written.
    details
        What was found on the way.
    notes
        What one should know of it.
    """
    roles = [("model", one) for one in ingredients.models]
    roles += [] if ingredients.base is None else [("base", ingredients.base)]
    roles += [("fisher", one) for one in ingredients.fishers]
    return {
        "format": FORMAT,
        "format_version": 1,
        "recipe": dict(recipe),
        "inputs": [
            {
                "role": role,
                "name": short_name(one),
                "files": [
                    {"name": part.path.name, "bytes": part.nbytes, "sha256": digests[part.path.resolve()]}
                    for part in one.parts
                ],
            }
            for role, one in roles
        ],
        "output": dict(files),
        "details": dict(details),
        "notes": list(notes),
        "versions": {name: library_versions()[name] for name in ("consilience", "numpy")},
    }


def short_name(one: Checkpoint) -> str:
    """Return the last part of a checkpoint's path: where it lay is nobody's business."""
    path = Path(one.name) if one.folder is None else one.folder
    return path.resolve().name


def card(record: Mapping[str, Any]) -> str:
    """Return the model card of a merged checkpoint, Markdown with the header that the hub reads."""
    names = [one["name"] for one in record["inputs"] if one["role"] == "model"]
    lines = [
        "---",
        "tags:",
        "- merge",
        "- consilience",
        "---",
        "",
        "# A merge of " + _and([_code(name) for name in names]),
        "",
        f"Made by [consilience](https://pypi.org/project/consilience/) {record['versions']['consilience']} with method "
        f"`{record['recipe']['method']}`.",
        "",
        "## Recipe",
        "",
        "```yaml",
        *_unfenced(yaml.safe_dump(dict(record["recipe"]), sort_keys=False, allow_unicode=False, width=100)),
        "```",
        "",
        "## Inputs",
        "",
        "| role | checkpoint | file | bytes | SHA-256 |",
        "| --- | --- | --- | ---: | --- |",
    ]
    lines += [
        f"| {one['role']} | {_code(one['name'])} | {_code(file['name'])} | {file['bytes']} | `{file['sha256']}` |"
        for one in record["inputs"]
        for file in one["files"]
    ]
    lines += ["", "## Weights", "", "| file | SHA-256 |", "| --- | --- |"]
    lines += [f"| {_code(name)} | `{digest}` |" for name, digest in record["output"].items()]
    if record["notes"]:
        lines += ["", "## Notes", "", *(f"- {_plain(note)}" for note in record["notes"])]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    lines += ["", f"Versions: {versions}."]
    return "\n".join(lines) + "\n"


def config_text(config: Mapping[str, Any], dtype: str | None) -> bytes:
    """Return a configuration with the type of its numbers, where that was chosen."""
    told = dict(config)
    if dtype is not None:
        known = [key for key in ("dtype", "torch_dtype") if key in told] or ["torch_dtype"]
        told |= dict.fromkeys(known, dtype)
    return f"{json.dumps(told, indent=2, ensure_ascii=False)}\n".encode()


def _unfenced(text: str) -> list[str]:
    """Return lines of which none ends a fence: names may hold what they like."""
    return [line.replace("```", "'''") for line in text.rstrip("\n").splitlines()]


def _plain(text: str) -> str:
    """Return text that is one line of Markdown and commands nothing."""
    shown = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)
    return "".join(f"\\{sign}" if sign in "\\`*_{}[]<>|#" else sign for sign in shown)


def _code(text: str) -> str:
    """Return text as code in a table."""
    shown = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)
    return f"`{shown.replace('`', chr(39)).replace('|', '/')}`"


def _and(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
