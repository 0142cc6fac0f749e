"""Model card and provenance of a merged checkpoint: Markdown for people, JSON for programs.

Both state how it was made and from which bytes, and nothing that changes between two identical runs: no clock time, no
folder. Names come from strangers, so they are escaped before they enter Markdown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from consilience.checkpoints.changes import sentences
from consilience.checkpoints.folder import Checkpoint
from consilience.checkpoints.inputs import MergeInputs
from consilience.checks import Json
from consilience.core.provenance import library_versions
from consilience.drawing.words import format_count, printable

FORMAT = "consilience-merge"

MAX_RULES = 8
"""Rules for tensors that a card shows. Chosen by hand, for its length."""

NOT_COMPARED = (
    "Weights alone do not say whether it is better than what went in: compare it on data of your own before anybody "
    "uses it."
)
"""The verdict on a merge, which nothing was computed for."""


def noun_of(record: Mapping[str, Any]) -> str:
    """Return what a merge was made of, by its record."""
    return "adapter" if "adapters" in record.get("details", {}) else "checkpoint"


def in_short(n_models: int, noun: str = "checkpoint") -> str:
    """Return the sentences with which the card and the command begin.

    Examples
    --------
    >>> in_short(2)[:45]
    '2 checkpoints went in and one came out. Weigh'
    """
    return f"{format_count(n_models, noun)} went in and one came out. {NOT_COMPARED}"


def merge_provenance(
    recipe: Mapping[str, Any],
    inputs: MergeInputs,
    digests: Mapping[Path, str],
    files: Mapping[str, str],
    details: Mapping[str, Any],
    notes: Sequence[str],
) -> dict[str, Json]:
    """Return how a checkpoint came to be, as JSON values.

    `recipe` is the request without paths; `digests` are of every file that was read, by its resolved path; `files` of
    every file of weights that was written, by name; `details` further results; `notes` what a user should know, a line
    each.
    """
    roles = [("model", checkpoint) for checkpoint in inputs.models]
    roles += [] if inputs.base is None else [("base", inputs.base)]
    roles += [("fisher", checkpoint) for checkpoint in inputs.fishers]
    return {
        "format": FORMAT,
        "format_version": 1,
        "recipe": dict(recipe),
        "inputs": [
            {
                "role": role,
                "name": short_name(checkpoint),
                "hub": hub_name(checkpoint),
                "files": [
                    {"name": file.path.name, "bytes": file.nbytes, "sha256": digests[file.path.resolve()]}
                    for file in checkpoint.files
                ],
            }
            for role, checkpoint in roles
        ],
        "output": dict(files),
        "details": dict(details),
        "notes": list(notes),
        "versions": {name: library_versions()[name] for name in ("consilience", "numpy")},
    }


def short_name(checkpoint: Checkpoint) -> str:
    """Return the last part of a checkpoint's path; the folders above it stay private."""
    path = Path(checkpoint.name) if checkpoint.folder is None else checkpoint.folder
    return "+".join([path.resolve().name, *(short_name(adapter) for adapter in checkpoint.adapters)])


def hub_name(checkpoint: Checkpoint) -> str | None:
    """Return the name on the hub of a checkpoint that lies in the hub's cache; None for any other."""
    path = Path(checkpoint.name) if checkpoint.folder is None else checkpoint.folder
    parts = next((part for part in path.resolve().parts if part.startswith("models--")), "").split("--")
    return "/".join(parts[1:]) if len(parts) == 3 else None


def _in_numbers(changes: Mapping[str, Any]) -> str:
    """Return how far a merge is from its base, as a sentence."""
    told = sentences(changes)
    return f"By the weights, {'; '.join(told)}." if told else ""


def _shortened(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe without most of its rules for tensors, which gradients over layers make many."""
    rules = list(recipe.get("tensors") or ())
    if len(rules) <= MAX_RULES:
        return dict(recipe)
    more = f"{len(rules) - MAX_RULES} more rules are in merge.json"
    return {**recipe, "tensors": [*rules[:MAX_RULES], more]}


def model_card(record: Mapping[str, Any]) -> str:
    """Return the model card of a merged checkpoint: Markdown, with the header that the hub reads.

    `record` is what `merge_provenance` returns.
    """
    names = [entry["name"] for entry in record["inputs"] if entry["role"] == "model"]
    every = list(
        dict.fromkeys(entry["hub"] or entry["name"] for entry in record["inputs"] if entry["role"] != "fisher")
    )
    changes = record["details"].get("changes")
    noun = noun_of(record)
    library = "peft" if noun == "adapter" else "transformers"
    header = {"base_model": every, "library_name": library, "tags": ["merge", "consilience"]}
    notes = [note for note in record["notes"] if note not in sentences(changes or {})]  # which the card begins with
    lines = [
        "---",
        *yaml.safe_dump(header, sort_keys=True, allow_unicode=False, width=100).splitlines(),
        "---",
        "",
        "# A merge of " + _enumerate_names([_code(name) for name in names]),
        "",
        *([] if changes is None else [_in_numbers(changes), ""]),
        in_short(len(names), noun),
        "",
        f"Made by consilience {record['versions']['consilience']} with method `{record['recipe']['method']}`.",
        "",
        "## Recipe",
        "",
        "```yaml",
        *_escape_fences(yaml.safe_dump(_shortened(record["recipe"]), sort_keys=False, allow_unicode=False, width=100)),
        "```",
        "",
        "## Inputs",
        "",
        "| role | checkpoint | file | bytes | SHA-256 |",
        "| --- | --- | --- | ---: | --- |",
    ]
    lines += [
        f"| {entry['role']} | {_code(entry['name'])} | {_code(file['name'])} | {file['bytes']} | `{file['sha256']}` |"
        for entry in record["inputs"]
        for file in entry["files"]
    ]
    lines += ["", "## Weights", "", "| file | SHA-256 |", "| --- | --- |"]
    lines += [f"| {_code(name)} | `{digest}` |" for name, digest in record["output"].items()]
    if notes:
        lines += ["", "## Notes", "", *(f"- {_escape_markdown(note)}" for note in notes)]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    lines += ["", f"Versions: {versions}."]
    return "\n".join(lines) + "\n"


def config_text(config: Mapping[str, Json], dtype: str | None) -> bytes:
    """Return the text of a configuration, with another type of numbers where one was chosen."""
    document = dict(config)
    if dtype is not None:
        # Newer configurations have "dtype", older ones "torch_dtype".
        keys = [key for key in ("dtype", "torch_dtype") if key in document] or ["torch_dtype"]
        document |= dict.fromkeys(keys, dtype)
    return f"{json.dumps(document, indent=2, ensure_ascii=False)}\n".encode()


def _escape_fences(text: str) -> list[str]:
    """Return the lines of a text without anything that ends a fenced block."""
    return [line.replace("```", "'''") for line in text.rstrip("\n").splitlines()]


def _escape_markdown(text: str) -> str:
    """Return text as one line of Markdown in which no character has a meaning."""
    return "".join(f"\\{char}" if char in "\\`*_{}[]<>|#" else char for char in printable(text))


def _code(text: str) -> str:
    """Return text as code in a cell of a table."""
    return f"`{printable(text).replace('`', chr(39)).replace('|', '/')}`"


def _enumerate_names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
