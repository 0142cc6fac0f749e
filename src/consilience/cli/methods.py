"""The command ``methods``: every method, and what the options of one mean, from the docstrings of their classes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from textwrap import fill
from typing import Any

import click

from consilience.catalogue import suggestion
from consilience.checkpoints.lora.methods import ADAPTER_METHODS, AdapterAverage
from consilience.checkpoints.methods import TENSOR_METHODS
from consilience.checkpoints.methods.base import TensorMethod
from consilience.checks import Json
from consilience.cli.json_output import echo_json, json_option
from consilience.cli.marks import INDENT, echo_prose, terminal_width
from consilience.draws.methods import DRAWS_METHODS
from consilience.draws.methods.base import DrawsMethod
from consilience.estimators.adapters.base import EstimatorAdapter
from consilience.estimators.adapters.table import ESTIMATORS
from consilience.estimators.methods import ESTIMATOR_METHODS, Sums
from consilience.networks.gaussian.methods import BAYESIAN_METHODS
from consilience.networks.method import NetworkMethod
from consilience.networks.methods import NETWORK_METHODS
from consilience.posteriors.adapters.table import known_adapters
from consilience.posteriors.method import Method
from consilience.posteriors.methods import METHODS

AnyMethod = (
    type[Method] | type[NetworkMethod] | type[TensorMethod] | type[DrawsMethod] | type[Sums] | type[AdapterAverage]
)

TABLES: Mapping[str, Sequence[AnyMethod]] = {
    "Posteriors of statistical models": METHODS,
    "Neural networks": NETWORK_METHODS,
    "Bayesian neural networks": BAYESIAN_METHODS,
    "Checkpoints, with `consilience merge`": TENSOR_METHODS,
    "LoRA adapters": ADAPTER_METHODS,
    "Posterior draws": DRAWS_METHODS,
    "Estimators": ESTIMATOR_METHODS,
}
"""All methods, by what they are for."""

_PARAMETERS = re.compile(r"^Parameters\n-+\n(.*?)(?=^\S[^\n]*\n-+\n|\Z)", re.DOTALL | re.MULTILINE)
_ENTRY = re.compile(r"^(\S[^\n]*)\n((?:    [^\n]*\n|\n)+)", re.MULTILINE)


def method_names() -> list[str]:
    """Return the names of all methods, each once."""
    return sorted({method.name for table in TABLES.values() for method in table})


def option_meanings(method: AnyMethod) -> dict[str, tuple[str, str]]:
    """Return the type and the meaning of every option, as the docstrings of a method's class and its bases say.

    Examples
    --------
    >>> from consilience.checkpoints.methods.slerp import SLERP
    >>> option_meanings(SLERP)
    {'t': ('float', 'Position between the first model (0) and the second (1), or beyond them. Default: 0.5.')}
    """
    found: dict[str, tuple[str, str]] = {}
    for base in reversed(method.__mro__):
        section = _PARAMETERS.search(inspect.cleandoc(base.__dict__.get("__doc__") or ""))
        for head, body in _ENTRY.findall(f"{section[1]}\n" if section else ""):
            names, _, kind = head.partition(" : ")
            found |= {name.strip(): (kind, " ".join(body.split())) for name in names.split(",")}
    return {option.name: found.get(option.name, ("", "")) for option in fields(method)}


def method_options() -> frozenset[str]:
    """Return the names of all options of all methods, which ``--set`` takes."""
    return frozenset(option.name for table in TABLES.values() for method in table for option in fields(method))


@click.command()
@click.argument("name", required=False)
@json_option
def methods(name: str | None, as_json: bool) -> None:
    """Say what every method does, or explain the methods called NAME, with what their options mean.

    Without a NAME, classes of estimators are listed too; the name of one shows it alone.
    """
    names = method_names()
    adapters = [adapter for adapter in ESTIMATORS if name in (None, adapter.class_name)]
    if name is not None and name not in names and not adapters:
        text = f"there is no method {name}{suggestion(name, names)}; there are {', '.join(names)} [E-METHOD]"
        raise click.BadParameter(text, param_hint="NAME")
    shown = {title: [method for method in table if name in (None, method.name)] for title, table in TABLES.items()}
    if as_json:
        estimators = [_estimator_json(adapter) for adapter in adapters]
        listed = [_method_json(title, method) for title, table in shown.items() for method in table]
        kinds = [adapter.kind for adapter in known_adapters()] if name is None else []
        echo_json({"methods": listed, "estimators": estimators, "statistical_models": kinds})
    else:
        _print_tables(shown, adapters, explain=name is not None)


def _print_tables(
    tables: Mapping[str, Sequence[type[Any]]], adapters: Sequence[EstimatorAdapter], explain: bool
) -> None:
    """Print methods by kind, then estimators; in the whole list what else there is."""
    for title, table in tables.items():
        if table:
            click.echo(f"{title}\n")
        for method in table:
            _print_method(method, explain=explain)
    if adapters:
        click.echo("Classes of estimators that are fused by their sums\n")
    for adapter in adapters:
        _print_estimator(adapter)
    if not explain:
        echo_prose(f"\n  Statistical models that have posteriors: {', '.join(one.kind for one in known_adapters())}.")
        click.echo("  `consilience methods NAME` explains the options of a method.")


def _estimator_name(adapter: EstimatorAdapter) -> str:
    """Return the name of a class, with its library where that is not scikit-learn."""
    library = adapter.kind.partition(".")[0]
    return adapter.class_name if library == "sklearn" else f"{adapter.class_name} of {library}"


def _estimator_needs(adapter: EstimatorAdapter) -> str:
    """Return what a site gives for an estimator."""
    data = "X" if adapter.needs == "nothing" else "(X, y)"
    needs = "the fitted object" if adapter.lacks is None else f"`cs.describe(model, data={data})` at the site"
    if adapter.sent_as is not None:
        needs = f"{adapter.sent_as} at the site"
    if adapter.disclosure() is not None:
        needs += ", and `min_count=0` everywhere: extremes are single observations"
    return needs


def _print_estimator(adapter: EstimatorAdapter) -> None:
    """Print an estimator, what its fusion is, and what a site gives for it."""
    echo_prose(f"{_estimator_name(adapter):30} {adapter.mark:10} needs: {_estimator_needs(adapter)}", INDENT)


def _estimator_json(adapter: EstimatorAdapter) -> dict[str, Json]:
    return {"name": _estimator_name(adapter), "fusion": adapter.mark, "needs": _estimator_needs(adapter)}


def _format_default(value: Any) -> str:
    """Return the default of an option as ``--set`` takes it; "..." for an option without a default."""
    if value is MISSING:
        return "..."
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _method_json(title: str, method: AnyMethod) -> dict[str, Json]:
    """Return a method with its options as JSON values."""
    meanings = option_meanings(method)
    options = [
        {
            "name": option.name, "default": None if option.default is MISSING else option.default,
            "type": meanings[option.name][0], "meaning": meanings[option.name][1],
        }
        for option in fields(method)
    ]  # fmt: skip
    parts = ("name", "summary", "needs", "gives", "paper")
    return {"models": title, **{part: getattr(method, part) for part in parts}, "options": options}


def _print_method(method: AnyMethod, *, explain: bool) -> None:
    """Print what a method does, needs and gives, its paper, and its options with their defaults, or their meanings."""
    echo_prose(f"{method.name:12} {method.summary}", INDENT)
    echo_prose(f"{'':12} needs: {method.needs}", INDENT)
    echo_prose(f"{'':12} gives: {method.gives}", INDENT)
    echo_prose(f"{'':12} paper: {method.paper}", INDENT)
    defaults = [f"{option.name}={_format_default(option.default)}" for option in fields(method)]
    if not explain:
        echo_prose(f"{'':12} options: {', '.join(defaults) or 'none'}\n", INDENT)
        return
    click.echo(f"{'':12} options, each --set NAME=VALUE{'' if defaults else ': none'}\n")
    indent = " " * 4
    width = terminal_width()
    for default, (kind, meaning) in zip(defaults, option_meanings(method).values(), strict=True):
        echo_prose(f"  {default}" + (f"  ({kind})" if kind else ""), indent * 2)
        # Marks of ``code`` are for the reference page; what they mark has quotes of its own where it is a text.
        shown = re.sub(r"``([^`]*)``", lambda code: code[1] if '"' in code[1] else f"'{code[1]}'", meaning)
        click.echo(fill(shown, width, initial_indent=indent, subsequent_indent=indent) + "\n")
