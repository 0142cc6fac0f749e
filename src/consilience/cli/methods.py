"""The command ``methods``: a line for each method, and what one needs, gives and takes, from its class's docstring."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from textwrap import fill
from typing import Any

import click

from consilience.catalogue import suggestion
from consilience.checkpoints.lora.methods import ADAPTER_METHODS, AdapterAverage
from consilience.checkpoints.methods import TENSOR_METHODS
from consilience.checkpoints.methods.base import TensorMethod
from consilience.checks import Json
from consilience.cli.json_output import echo_json, json_option
from consilience.cli.marks import echo_prose, terminal_width
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


@dataclass(frozen=True)
class MethodTable:
    """The methods for one kind of models."""

    title: str  # what they are for
    methods: Sequence[AnyMethod]


TABLES: Mapping[str, MethodTable] = {
    "posteriors": MethodTable("Posteriors of statistical models", METHODS),
    "networks": MethodTable("Neural networks", NETWORK_METHODS),
    "bayesian": MethodTable("Bayesian neural networks", BAYESIAN_METHODS),
    "checkpoints": MethodTable("Checkpoints, with `consilience merge`", TENSOR_METHODS),
    "adapters": MethodTable("LoRA adapters", ADAPTER_METHODS),
    "draws": MethodTable("Posterior draws", DRAWS_METHODS),
    "estimators": MethodTable("Estimators", ESTIMATOR_METHODS),
}
"""All methods, by the kind of models that they are for."""

_NAME_WIDTH = 15
"""Letters of the longest name of a method."""
ROW_WIDTH = 80
"""Letters of a row of a table at most, the usual width of a terminal."""
_PARAMETERS = re.compile(r"^Parameters\n-+\n(.*?)(?=^\S[^\n]*\n-+\n|\Z)", re.DOTALL | re.MULTILINE)
_REFERENCES = re.compile(r"^References\n-+\n(.*?)(?=^\S[^\n]*\n-+\n|\Z)", re.DOTALL | re.MULTILINE)
_ENTRY = re.compile(r"^(\S[^\n]*)\n((?:    [^\n]*\n|\n)+)", re.MULTILINE)


def method_names() -> list[str]:
    """Return the names of all methods, each once."""
    return sorted({method.name for table in TABLES.values() for method in table.methods})


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


def method_options(name: str | None = None) -> frozenset[str]:
    """Return the names of all options of the methods of a name, or of all methods, which ``--set`` takes."""
    named = (method for table in TABLES.values() for method in table.methods if name in (None, method.name))
    return frozenset(option.name for method in named for option in fields(method))


def reference_of(method: AnyMethod) -> str:
    """Return the papers of a method in one line, as the docstring of its class gives them; "" where it gives none.

    Examples
    --------
    >>> from consilience.checkpoints.methods.average import TensorAverage
    >>> reference_of(TensorAverage)
    'Wortsman et al. (2022), "Model soups", ICML; McMahan et al. (2017), federated averaging, one round.'
    """
    section = _REFERENCES.search(f"{inspect.cleandoc(method.__doc__ or '')}\n")
    return " ".join(section[1].split()) if section else ""


def _cited(paper: str) -> str:
    """Return keys of papers as a reader writes them; "" where there is none.

    Examples
    --------
    >>> _cited("matena2022, recasens2023"), _cited("-")
    ('Matena 2022; Recasens 2023', '')
    """
    if not re.fullmatch(r"[a-z]+\d{4}(, [a-z]+\d{4})*", paper):
        return paper.strip("-")
    return "; ".join(f"{key[:-4].capitalize()} {key[-4:]}" for key in paper.split(", "))


def _complete_name(_context: click.Context, _argument: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of methods and estimators that begin with what was typed."""
    names = {*method_names(), *(adapter.class_name for adapter in ESTIMATORS)}
    return sorted(name for name in names if name.startswith(incomplete))


@click.command()
@click.argument("name", required=False, shell_complete=_complete_name)
@click.option("--kind", type=click.Choice(list(TABLES)), help="Only what is for models of this kind.")
@json_option
def methods(name: str | None, kind: str | None, as_json: bool) -> None:
    """List the methods, or explain those called NAME: what they need and give, their paper, and their options.

    A class of estimators is a NAME too.
    """
    names = method_names()
    adapters = [adapter for adapter in ESTIMATORS if name in (None, adapter.class_name)]
    if name is not None and name not in names and not adapters:
        text = f"there is no method {name}{suggestion(name, names)}; there are {', '.join(names)} [E-METHOD]"
        raise click.BadParameter(text, param_hint="NAME")
    shown = {
        of: MethodTable(table.title, [method for method in table.methods if name in (None, method.name)])
        for of, table in TABLES.items()
        if kind in (None, of)
    }
    if kind not in (None, "estimators"):
        adapters = []
    if name is not None and not adapters and not any(table.methods for table in shown.values()):
        kinds = [of for of, table in TABLES.items() if name in [method.name for method in table.methods]]
        text = f"{name} is no method for {kind}, but for {', '.join(kinds) or 'estimators'} [E-METHOD]"
        raise click.BadParameter(text, param_hint="--kind")
    if as_json:
        estimators = [_estimator_json(adapter) for adapter in adapters]
        listed = [_method_json(of, table.title, method) for of, table in shown.items() for method in table.methods]
        models = [adapter.kind for adapter in known_adapters()] if name is None and kind in (None, "posteriors") else []
        echo_json({"methods": listed, "estimators": estimators, "statistical_models": models})
    elif name is None:
        _print_list(shown, adapters, is_whole=kind is None)
    else:
        for table in shown.values():
            for method in table.methods:
                _explain(table.title, method)
        for adapter in adapters:
            _print_estimator(adapter)


def _print_list(tables: Mapping[str, MethodTable], adapters: Sequence[EstimatorAdapter], is_whole: bool) -> None:
    """Print a line for each method, by kind; in the whole list the estimators by their names alone."""
    for kind, table in tables.items():
        click.echo(f"{table.title} (--kind {kind})")
        for method in table.methods:
            _print_row(method.name, method.summary)
        if kind == "posteriors":
            _print_row("of models", ", ".join(one.kind for one in known_adapters()))
        click.echo()
    if is_whole:
        _print_row("by sums of", ", ".join(map(_estimator_name, adapters)))
        click.echo()
    else:
        for adapter in adapters:
            _print_estimator(adapter)
    click.echo("`consilience methods NAME` explains a method and its options.")


def _print_row(name: str, text: str) -> None:
    """Print a row of a table, a name and a text, of 80 letters at most, in pipes too."""
    width = min(terminal_width(), ROW_WIDTH)
    below = "  " + " " * min(_NAME_WIDTH + 1, width // 2)
    row = f"  {name:{_NAME_WIDTH}} {text}"
    click.echo(fill(row, width, subsequent_indent=below, break_on_hyphens=False))


def _explain(title: str, method: AnyMethod) -> None:
    """Print what a method does, needs and gives, its paper, and what its options mean."""
    click.echo(f"{method.name}: {title[0].lower()}{title[1:]}\n")
    for part, text in (
        ("does", method.summary), ("needs", method.needs), ("gives", method.gives),
        ("paper", reference_of(method) or _cited(method.paper)),
    ):  # fmt: skip
        if text:
            _print_row(f"{part}:", text)
    defaults = [f"{option.name}={_format_default(option.default)}" for option in fields(method)]
    click.echo(f"\n  Options, each --set NAME=VALUE{'' if defaults else ': none'}\n")
    indent = " " * 4
    width = terminal_width()
    for default, (kind, meaning) in zip(defaults, option_meanings(method).values(), strict=True):
        echo_prose(f"  {default}" + (f"  ({kind})" if kind else ""), indent * 2)
        # Marks of ``code`` are for the reference page; what they mark has quotes of its own where it is a text.
        shown = re.sub(r"``([^`]*)``", lambda code: code[1] if '"' in code[1] else f"'{code[1]}'", meaning)
        click.echo(fill(shown, width, initial_indent=indent, subsequent_indent=indent) + "\n")


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
    click.echo(f"  {_estimator_name(adapter)}: {adapter.mark}")
    _print_row("", f"needs {_estimator_needs(adapter)}")


def _estimator_json(adapter: EstimatorAdapter) -> dict[str, Json]:
    return {"name": _estimator_name(adapter), "fusion": adapter.mark, "needs": _estimator_needs(adapter)}


def _format_default(value: Any) -> str:
    """Return the default of an option as ``--set`` takes it; "..." for an option without a default."""
    if value is MISSING:
        return "..."
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _method_json(kind: str, title: str, method: AnyMethod) -> dict[str, Json]:
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
    return {"kind": kind, "models": title, **{part: getattr(method, part) for part in parts}, "options": options}
