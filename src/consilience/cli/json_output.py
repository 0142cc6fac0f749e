"""Results of commands as JSON: one option, one way to print, and the fields that each command prints.

Every command takes ``--json`` and prints one JSON object to stdout. Where the input or an option is at fault, that
object has the key ``problems``, and the exit code is the same as without ``--json``. docs/results/command_line.md has a
table of `FIELDS`; a test holds it against what commands print.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from consilience.checks import Json
from consilience.errors import Problem

Command = Callable[..., None]

FIELDS: Mapping[str, Mapping[str, str]] = {
    "check": {"ok": "true", "models": "number of models"},
    "completion": {"shell": "bash, zsh or fish", "script": "text to be sourced"},
    "demo": {"wrote": "paths", "results": "the content of demo.json"},
    "doctor": {
        "versions": "versions by library", "extras": "list of {name, brings, installed, missing}",
        "devices": "list of {name, memory_bytes}", "cores": "number of processor cores",
    },
    "evaluate": {"*": "as `Evaluation.to_json`: the kind of score, both means, their difference with its interval"},
    "explain": {"codes": "list of {code, title, text}: the one that was given, or all"},
    "extract": {
        "modules": "number", "error": "what is lost of all changes, over their size", "errors": "the same by module",
        "notes": "list of texts", "wrote": "paths",
    },
    "fuse": {
        "method": "name", "inputs": "names of models",
        "in_short": "the sentence that reports begin with", "verdict": "as `Verdict.to_json`", "summary": "text",
        "wrote": "paths",
    },
    "inspect": {
        "plain": "list of sentences: what it is, and what to do next", "*": "the document of the file, by its format",
    },
    "merge": {
        "in_short": "the sentences that the model card begins with",
        "tensors": "number", "files": "list of {name, bytes, sha256 (null before it is written)}",
        "bytes_in": "bytes read", "memory": "bytes allocated at most", "notes": "list of texts",
        "resumed": "files that were there from an interrupted run", "wrote": "paths; empty for a dry run",
    },
    "methods": {
        "methods": "list of {kind, name, models, summary, needs, gives, paper, options}",
        "estimators": "list of {name, fusion, needs}",
        "statistical_models": "list of names",
    },
    "network barrier": {
        "t": "positions from A (0) to B (1)", "values": "curves by name", "summary": "barriers by name",
    },
    "network fisher": {"observations": "number", "rank": "directions", "layers": "number of layers", "wrote": "paths"},
    "network symmetry": {
        "groups": "list of {name, units, actions, parent}", "notes": "list of texts", "proved": "text",
        "wrote": "paths",
    },
    "pack": {
        "models": "number", "components": "number", "shards": "number", "bytes": "number",
        "divergence": "nats that float32 moved a component at most", "wrote": "paths",
    },
    "report": {"wrote": "paths"},
    "round answer": {
        "answers": "list of {kind, number, rounds, n_observations, withheld, sha256, again}; one of a masked round",
        "wrote": "paths",
    },
    "round check": {"ok": "true", "checked": "texts by what was looked at"},
    "round fetch": {"report": "the report of the last round that has a model", "wrote": "paths"},
    "round flower": {"report": "the content of OUTPUT.round.json", "wrote": "paths"},
    "round masked": {"report": "the content of OUTPUT.round.json", "wrote": "paths"},
    "round open": {"report": "the content of OUTPUT.round.json", "wrote": "paths"},
    "round send": {
        "attempt": "number, null with --refine and under masks",
        "sha256": "of what was sent, null with --refine and under masks",
        "took_part": "whether it is in the fused model, null where nobody waited", "warnings": "texts",
        "rounds": "number of rounds, with --refine; of sums, under masks", "wrote": "paths",
    },
    "round status": {
        "place": "path or URL", "state": "not opened, open, over or failed", "number": "of the open round, or the last",
        "sites_in": "names", "missing": "names", "refused": "lists of reasons by site",
        "request": "{kind, number, rounds} of the open request, or null",
        "step": "of the open masked sum, or null", "seconds_left": "until the deadline, or null",
        "verdict": "text, or null", "report": "the last one that was published, or null",
    },
    "site describe": {"description": "what `inspect` says of it", "notes": "list of texts", "wrote": "paths"},
    "site head": {"description": "what `inspect` says of it", "wrote": "paths"},
}  # fmt: skip
"""Keys of the JSON object of every command and what they hold; "*" stands for the keys of another document."""


def json_option(command: Command) -> Command:
    """Add ``--json`` to a command, which gets it as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object; see the docs.")(command)


def echo_json(document: Mapping[str, Any]) -> None:
    """Print a JSON object: keys sorted, numbers that are not finite as null, paths as texts."""
    click.echo(json.dumps(_plain(document), indent=2, sort_keys=True, allow_nan=False))


def problems_json(problems: Sequence[Problem]) -> dict[str, Json]:
    """Return problems as the object that a command prints where its input or an option is at fault."""
    parts = ("subject", "text", "remedy", "code")
    return {"problems": [{part: getattr(problem, part) for part in parts} for problem in problems]}


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if hasattr(value, "tolist"):  # arrays and their numbers
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value
