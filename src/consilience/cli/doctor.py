"""The command ``doctor``: versions, extras and devices of this machine, and what each missing extra would bring."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from typing import Any

import click

from consilience.checks import Json
from consilience.cli.json_output import echo_json, json_option
from consilience.cli.marks import INDENT, echo_prose
from consilience.cli.merge import format_bytes

EXTRAS: Mapping[str, str] = {
    "bayesian": "Bayesian networks of Pyro, and the local learners for them",
    "draws": "posterior draws of ArviZ",
    "federated": "rounds over Flower, with keys for every site",
    "gensim": "topic models of gensim",
    "gp": "sparse Gaussian processes of GPyTorch",
    "hmm": "hidden Markov models of hmmlearn",
    "networks": "neural networks of PyTorch: tracing, fusing and refitting modules; optimal transport",
    "plots": "figures on an axis of matplotlib: `fusion.plot()`",
    "scale": "very many sites: Dask clusters, Parquet, and remote folders",
    "statsmodels": "regressions of statsmodels",
    "tables": "pandas tables of results",
}
"""What every extra of pyproject.toml brings."""

_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?P<bound>[^;]*);.*extra == ['\"](?P<extra>[\w-]+)['\"]")


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Say which versions, extras and devices there are, and what each missing extra would bring."""
    report = examine()
    if as_json:
        echo_json(report)
        return
    for name, number in report["versions"].items():
        click.echo(f"{name:12} {number}")
    click.echo(f"{'cores':12} {report['cores']}")
    for device in report["devices"]:
        echo_prose(f"{'device':12} {device['name']}, {format_bytes(device['memory_bytes'])}", INDENT)
    if not report["devices"]:
        click.echo(f"{'device':12} processor only")
    click.echo("")
    for extra in report["extras"]:
        if extra["missing"]:
            missing = ", ".join(extra["missing"])
            echo_prose(f"{extra['name']:12} missing {missing}: would bring {extra['brings']};", INDENT)
            echo_prose(f"{'':12} pip install 'consilience[{extra['name']}]'", INDENT)
        else:
            installed = ", ".join(f"{name} {number}" for name, number in extra["installed"].items())
            echo_prose(f"{extra['name']:12} {installed}", INDENT)


def examine() -> dict[str, Any]:
    """Return versions, extras with what of them is installed, and devices."""
    extras = []
    for extra, brings in EXTRAS.items():
        numbers = {name: _version(name) for name in _libraries_of(extra)}
        extras.append({
            "name": extra,
            "brings": brings,
            "installed": {name: number for name, number in numbers.items() if number is not None},
            "missing": [name for name, number in numbers.items() if number is None],
        })  # fmt: skip
    versions = {"consilience": version("consilience"), "python": platform.python_version()}
    versions |= {name: version(name) for name in ("numpy", "scipy", "scikit-learn", "safetensors")}
    versions |= {"platform": platform.platform()}
    return {"versions": versions, "extras": extras, "devices": _devices(), "cores": os.cpu_count() or 1}


def _libraries_of(extra: str) -> list[str]:
    """Return the distributions that an extra of this library requires."""
    matches = [match for line in requires("consilience") or () if (match := _REQUIREMENT.match(line))]
    return [match["name"] for match in matches if match["extra"] == extra and match["name"] != "consilience"]


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _devices() -> list[dict[str, Json]]:
    """Return the accelerators that PyTorch sees, with their memory; none without PyTorch."""
    if find_spec("torch") is None:
        return []
    import torch  # here, since no other part of this command needs it

    properties = (torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count()))
    return [{"name": one.name, "memory_bytes": one.total_memory} for one in properties]
