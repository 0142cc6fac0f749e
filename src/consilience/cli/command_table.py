"""The table of commands and groups: what each does in a line, an example, and where it is defined."""

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
    "check": _entry(
        "fuse:check", "List every problem of models before they are fused.", "check lund.safetensors oslo.safetensors"
    ),
    "completion": _entry("completion:completion", "Print the completion script of a shell.", "completion bash"),
    "demo": _entry("demo:demo", "Train five sites on real data, fuse and compare them.", "demo"),
    "doctor": _entry("doctor:doctor", "Show versions, extras and devices.", "doctor"),
    "evaluate": _entry(
        "evaluate:evaluate",
        "Compare the fused model with a site's own on data.",
        "evaluate fused.safetensors lund.safetensors --data patients.csv",
    ),
    "explain": _entry("explain:explain", "Explain the code at the end of a message.", "explain E-FEW"),
    "extract": _entry(
        "extract:extract", "Extract an adapter from a fine-tune.", "extract my-llama --base llama -o adapter --rank 16"
    ),
    "fuse": _entry(
        "fuse:fuse",
        "Fuse models into one.",
        "fuse lund.safetensors oslo.safetensors -o fused.safetensors --set regularization=0.3",
    ),
    "inspect": _entry("inspect:inspect", "Show what a file is and what it tells.", "inspect fused.safetensors"),
    "merge": _entry(
        "merge:merge",
        "Merge checkpoints or adapters tensor by tensor.",
        "merge llama-legal llama-medicine -o merged --method ties --base llama --set density=0.2",
    ),
    "methods": _entry("methods:methods", "Explain the methods and their options.", "methods kl"),
    "network barrier": _entry(
        "networks:barrier",
        "Compute the loss barrier between two networks.",
        "network barrier lund.safetensors oslo.safetensors --module nets:make --data test.npz",
    ),
    "network fisher": _entry(
        "fisher:fisher",
        "Compute the Fisher information of a network.",
        "network fisher lund.safetensors --module nets:make --data train.npy -o lund.fisher.safetensors",
    ),
    "network symmetry": _entry(
        "networks:symmetry",
        "Find and prove the symmetry of a network.",
        "network symmetry --module nets:make --example 1,784 -o symmetry.json",
    ),
    "pack": _entry("pack:pack", "Pack many posterior files into shards.", "pack sites -o packed"),
    "report": _entry(
        "report:report",
        "Write a page about a fused model and its sites.",
        "report fused.safetensors lund.safetensors oslo.safetensors -o report.html",
    ),
    "round answer": _entry(
        "rounds.answer:answer",
        "Answer the open request of a round from own rows.",
        "round answer shared/round --site lund --data patients.csv",
    ),
    "round check": _entry(
        "rounds.check:check",
        "List every problem of a round before it is opened.",
        "round check shared/round --sites lund,oslo -o fused.safetensors --expect public.safetensors",
    ),
    "round fetch": _entry(
        "rounds.fetch:fetch",
        "Receive the fused model of a round, now or later.",
        "round fetch shared/round -o fused.safetensors --site lund",
    ),
    "round flower": _entry(
        "rounds.server:flower",
        "Open a round that sites reach over Flower.",
        "round flower --address 0.0.0.0:8000 --site-keys keys --certificates tls -o fused.safetensors",
    ),
    "round masked": _entry(
        "rounds.server:masked",
        "Open a round of masked sums, and see the sum alone.",
        "round masked shared/round --signing-keys keys --expect public.safetensors -o fused.safetensors",
    ),
    "round open": _entry(
        "rounds.server:open_round",
        "Open a round over a shared folder or a bucket.",
        "round open shared/round --sites lund,oslo -o fused.safetensors",
    ),
    "round send": _entry(
        "rounds.send:send",
        "Send a site's file to a round.",
        "round send lund.safetensors --to shared/round --site lund",
    ),
    "round status": _entry(
        "rounds.status:status",
        "Show who is in a round, who is missing, and its end.",
        "round status shared/round -o fused.safetensors",
    ),
    "site describe": _entry(
        "describe:describe",
        "Describe a network by its site's data.",
        "site describe lund.safetensors --module nets:make --data train.npz -o lund-said.safetensors",
    ),
    "site head": _entry(
        "head:head",
        "Compute the sums of a head on shared features.",
        "site head ridge --data train.npz --fourier 500 -o lund-head.safetensors",
    ),
}
"""All commands, those of a group by both words: a new one has a file and an entry."""


@dataclass(frozen=True)
class GroupEntry:
    """A group of commands."""

    summary: str  # what they do, in a line of ``consilience --help``
    text: str  # the same at the head of its own ``--help``


GROUPS = {
    "network": GroupEntry(
        "Symmetry, loss barrier and Fisher information.",
        "Of networks: find and prove which units may be permuted (symmetry), compute the Fisher information at a site "
        "(fisher), and the loss between two networks (barrier).",
    ),
    "round": GroupEntry(
        "Open, join and watch federated rounds.",
        "Federated rounds: a server opens one (open, flower, masked), sites send their models, answer requests and "
        "fetch the fused model; status watches a round, and check finds what would stop it.",
    ),
    "site": GroupEntry(
        "Describe a model; sums of a linear head.",
        "At a site: describe a model by the data it was fitted on (describe), or compute the sums of a linear head on "
        "shared features (head). No row of data leaves.",
    ),
}
"""All groups of commands: their commands are in `COMMANDS`."""


SECTIONS = {
    "Fuse": ("fuse", "check", "merge", "evaluate", "report"),
    "At a site": ("site", "network", "pack", "extract"),
    "Rounds": ("round",),
    "Help": ("methods", "explain", "inspect", "demo", "doctor", "completion"),
}
"""Commands and groups in the order of ``consilience --help``, by its sections."""


def commands_in(group: str) -> dict[str, str]:
    """Return what each command and group in a group does, by its name there; "" for ``consilience`` itself."""
    prefix = f"{group} " if group else ""
    summaries = {name: entry.summary for name, entry in COMMANDS.items()}
    summaries |= {name: entry.summary for name, entry in GROUPS.items()}
    inside = {name.removeprefix(prefix): text for name, text in summaries.items() if name.startswith(prefix)}
    return {name: inside[name] for name in sorted(inside) if " " not in name}


@cache
def load_command(name: str) -> click.Command:
    """Return the command of a name such as "fuse" or "round open", with its example."""
    entry = COMMANDS[name]
    command: click.Command = resolve_name(entry.place)
    command.short_help, command.epilog = entry.summary, f"\b\nExample:\n  {entry.example}"
    return command
