"""Inspection of draws files: what is inside, from the header alone, and what it tells about people."""

from __future__ import annotations

import math
from pathlib import Path

from consilience.core.inspection import Row, listed, plain_words, provenance_rows
from consilience.core.kind import Inspection
from consilience.draws.cmdstan import read_cmdstan
from consilience.draws.files import read_header
from consilience.files.safetensors_file import SafetensorsFile


def inspect_draws(file: SafetensorsFile) -> Inspection:
    """Return what the header of a draws file says."""
    header, tensors = read_header(file)
    shapes = {name: list(shape) for name, shape in tensors.shapes.items()}
    document = {"header": header.model_dump(), "shapes": shapes}
    chains, length = tensors.shapes[f"draws.{header.order[0]}"][:2]
    variables = [
        f"{name} {tuple(shapes[f'draws.{name}'][2:])} {_called(header.variables[name].constraint)}"
        for name in header.order
    ]
    rows: list[Row] = [
        ("file", str(file)),
        ("format", f"{header.format} {header.format_version} (consilience {header.library_version})"),
        ("draws", f"{length:,} in {'1 chain' if chains == 1 else f'each of {chains} chains'}, from {header.container}"),
        ("variables", listed(variables)),
        ("prior", _prior(header.prior)),
    ]
    if header.likelihood_power != 1:
        rows.append(("likelihood", f"to the power {header.likelihood_power:g}"))
    if header.n_observations is not None:
        rows.append(("observations", f"{header.n_observations:,.0f}"))
    if header.exchangeable:
        rows.append(("components", f"of {listed(header.exchangeable)} are exchangeable"))
    if header.coords:
        rows.append(("coords", listed([f"{name} ({len(one.labels)})" for name, one in header.coords.items()])))
    if header.dropped:
        rows.append(("left out", listed(header.dropped)))
    rows.append(("size", f"{8 * sum(math.prod(shape) for shape in shapes.values()):,} bytes at most"))
    if header.provenance is not None:
        rows += provenance_rows(header.provenance.model_dump())
    rows += [
        ("What this file tells about people", ""),
        ("posterior", "where each parameter lies, and how surely: as much as a table of estimates with intervals"),
        (
            "effects",
            "a parameter of one person (an effect by patient) discloses that person: leave it out with `only=`",
        ),
        ("differences", "posteriors of two data sets that differ by one person disclose that person: send one"),
        ("protection", "no noise is added beyond that of sampling, so no formal privacy is given"),
    ]
    plain = plain_words(
        f"{chains * length:,} draws from the posterior of a site, of {listed(header.order)}"
        if header.provenance is None
        else f"{chains * length:,} fused draws, of {listed(header.order)}",
        header.n_observations,
        "draws of the same variables from other sites' posteriors, each with its share of the prior",
        header.provenance is not None,
    )
    return Inspection(document, rows, plain)


def inspect_cmdstan(path: Path) -> Inspection:
    """Return what a CSV file of CmdStan has: one chain of a site."""
    contents = read_cmdstan([path])
    chains, length = next(iter(contents.variables.values())).shape[:2]
    variables = [f"{name} {values.shape[2:]}" for name, values in contents.variables.items()]
    rows: list[Row] = [
        ("file", str(path)),
        ("format", "CSV of CmdStan"),
        ("draws", f"{length:,} after warm-up, in {chains} chain"),
        ("variables", listed(variables)),
    ]
    if contents.diverging is not None:
        rows.append(("divergent", f"{int(contents.diverging.sum()):,} of {length:,}"))
    plain = plain_words(
        f"a chain of {length:,} draws from the posterior of a site, of {listed(list(contents.variables))}",
        None,
        "draws of the same variables from other sites' posteriors, each with its share of the prior",
    )
    document = {"format": "CSV of CmdStan", "shapes": {name: list(v.shape) for name, v in contents.variables.items()}}
    return Inspection(document, rows, plain)


def _called(constraint: str | list[str | int | float]) -> str:
    return constraint if isinstance(constraint, str) else "(" + ", ".join(map(str, constraint)) + ")"


def _law(law: object) -> str:
    """Return a distribution as it is stated; files are inspected whatever they state."""
    return " ".join(map(str, law)) if isinstance(law, list) else f"{law!s:.40}"


def _prior(prior: object) -> str:
    """Return in words what the draws hold of the prior."""
    if prior is None:
        return "not stated"
    if isinstance(prior, dict):
        return "whole: " + listed([f"{name} {_law(law)}" for name, law in prior.items()])
    return str(prior) if isinstance(prior, str) else f"to the power {prior:g}"
