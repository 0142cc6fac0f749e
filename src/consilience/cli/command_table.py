"""The table of commands: what each does in a line, an example, and where it is defined."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pkgutil import resolve_name

import click


@dataclass(frozen=True)
class CommandEntry:
    """A command, which is imported when it is called."""

    place: str  # its function, "module:name"
    summary: str  # what it does, in a line of ``consilience --help``
    example: str  # a call, which its own ``--help`` shows


def _entry(place: str, summary: str, example: str) -> CommandEntry:
    return CommandEntry(f"consilience.cli.{place}", summary, f"consilience {example}")


COMMANDS = {
    "answer": _entry(
        "answer:answer", "Answer the open request of a round.", "answer shared/round --site lund --data patients.csv"
    ),
    "barrier": _entry(
        "networks:barrier",
        "Compute the loss barrier between two networks.",
        "barrier lund.safetensors oslo.safetensors --module nets:make --data test.npz",
    ),
    "check": _entry(
        "fuse:check", "List every problem of models before they are fused.", "check lund.safetensors oslo.safetensors"
    ),
    "completion": _entry("completion:completion", "Print the completion script of a shell.", "completion bash"),
    "demo": _entry("demo:demo", "Train five sites on real data, fuse and compare them.", "demo"),
    "describe": _entry(
        "describe:describe",
        "Describe a network by its site's data.",
        "describe lund.safetensors --module nets:make --data train.npz -o lund-said.safetensors",
    ),
    "doctor": _entry("doctor:doctor", "Show versions, extras and devices.", "doctor"),
    "evaluate": _entry(
        "evaluate:evaluate",
        "Compare the fused model with a site's own on data.",
        "evaluate fused.safetensors lund.safetensors --data patients.csv",
    ),
    "extract": _entry(
        "extract:extract", "Extract an adapter from a fine-tune.", "extract my-llama --base llama -o adapter --rank 16"
    ),
    "fisher": _entry(
        "fisher:fisher",
        "Compute the Fisher information of a network.",
        "fisher lund.safetensors --module nets:make --data train.npy -o lund.fisher.safetensors",
    ),
    "fuse": _entry(
        "fuse:fuse",
        "Fuse models into one.",
        "fuse lund.safetensors oslo.safetensors -o fused.safetensors --set regularization=0.3",
    ),
    "head": _entry(
        "head:head",
        "Compute the sums of a head on shared features.",
        "head ridge --data train.npz --fourier 500 -o lund-head.safetensors",
    ),
    "inspect": _entry("inspect:inspect", "Show what a file is and what it tells.", "inspect fused.safetensors"),
    "merge": _entry(
        "merge:merge",
        "Merge checkpoints or adapters tensor by tensor.",
        "merge llama-legal llama-medicine -o merged --method ties --base llama --set density=0.2",
    ),
    "methods": _entry("methods:methods", "Explain the methods and their options.", "methods kl"),
    "pack": _entry("pack:pack", "Pack many posterior files into shards.", "pack sites -o packed"),
    "report": _entry(
        "report:report",
        "Write a page about a fused model and its sites.",
        "report fused.safetensors lund.safetensors oslo.safetensors -o report.html",
    ),
    "send": _entry(
        "serve:send", "Send a site's file to a round.", "send lund.safetensors --to shared/round --site lund"
    ),
    "serve": _entry(
        "serve:serve", "Run a round over a shared folder.", "serve shared/round --sites lund,oslo -o fused.safetensors"
    ),
    "symmetry": _entry(
        "networks:symmetry",
        "Find and prove the symmetry of a network.",
        "symmetry --module nets:make --example 1,784 -o symmetry.json",
    ),
}
"""All commands: a new one has a file and an entry."""


@cache
def load_command(name: str) -> click.Command:
    """Return the command of a name, with its example."""
    entry = COMMANDS[name]
    command: click.Command = resolve_name(entry.place)
    command.short_help, command.epilog = entry.summary, f"\b\nExample:\n  {entry.example}"
    return command
