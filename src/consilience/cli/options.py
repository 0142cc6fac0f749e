"""Options that commands share, and what they say together: the plan of a fusion."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from consilience import api
from consilience.api.kinds import POSTERIORS, SHARDS, are_shards, format_of
from consilience.cli.kinds import have_symmetry, kind_of_models, options_of_networks
from consilience.core.kind import Kind
from consilience.core.recipe import Recipe, parse_yaml, read_recipe
from consilience.errors import OptionError
from consilience.files.safetensors_file import SafetensorsFile, open_files
from consilience.networks.methods import needs_no_symmetry
from consilience.networks.shared_symmetry import UnprovedSymmetryWarning
from consilience.posteriors.sharded.kind import FORMAT as SHARD_FORMAT

Command = Callable[..., None]
_RESERVED = {"models", "weights", "rng", "engine", "progress", "samples", "method", "module", "example", "symmetry"}
_RESERVED |= {"target", "target_widths", "inputs", "reference", "fishers"}


def module_option(required: bool = False) -> Callable[[Command], Command]:
    """Return the option ``--module``."""
    return click.option(
        "--module",
        required=required,
        metavar="PKG.MOD:CALLABLE",
        help="A torch module of the architecture, its class, or a function that makes one. Importing it runs its code.",
    )


def example_option(required: bool = False) -> Callable[[Command], Command]:
    """Return the option ``--example``."""
    return click.option(
        "--example",
        multiple=True,
        required=required,
        metavar="SPEC",
        help="An input that the module takes: a shape such as 1,784 or int64:1,20, or a .npy file. Once per argument.",
    )


def fusion_options(command: Command) -> Command:
    """Add what ``fuse`` and ``check`` share; the command gets them as a `FusionPlan`."""
    decorators: list[Callable[[Command], Command]] = [
        click.argument("models", nargs=-1, type=click.Path(path_type=str)),
        click.option("--method", help="Name of a method; see `consilience methods`.  [default: the recommended one]"),
        click.option("--set", "settings", multiple=True, metavar="OPTION=VALUE", help="An option of the method."),
        click.option("--weights", help="How much each model counts, separated by commas.  [default: all the same]"),
        click.option("--recipe", type=click.Path(path_type=Path), help="A YAML file with any of these settings."),
        module_option(),
        example_option(),
        click.option("--symmetry", type=click.Path(path_type=str), help="What `consilience symmetry` wrote."),
        click.option("--target", metavar="PKG.MOD:CALLABLE", help="A module of the widths that the fused one gets."),
        click.option("--target-width", "widths", multiple=True, metavar="GROUP=N", help="Units of a fused group."),
        click.option("--inputs", type=click.Path(path_type=str), help="Unlabeled inputs: .npy or .npz."),
        click.option("--reference", type=click.IntRange(0), help="Model whose order of units is kept, from 0."),
        click.option("--engine", type=click.Choice(["local", "dask"]), help="Where shards are.  [default: local]"),
        click.option("--scheduler", metavar="ADDRESS", help="Of Dask, such as tcp://host:8786; needs no --engine."),
        click.option("--allow-import", is_flag=True, help="Import the modules that the recipe names: runs their code."),
    ]
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


@dataclass(frozen=True, eq=False)
class FusionPlan:
    """What is to be fused, of which kind it is, and how.

    Parameters
    ----------
    recipe
        Everything that was said.
    kind
        Of the models.
    files
        The models' files, each opened once; empty for shards.
    engine
        Where shards are worked on.
    """

    recipe: Recipe
    kind: Kind
    files: tuple[SafetensorsFile, ...]
    engine: str | None = None

    @property
    def models(self) -> Sequence[Any]:
        """What ``fuse`` is called with."""
        return self.files or self.recipe.models

    def n_models(self) -> int:
        """Return how many models there are to fuse, without what travels beside them."""
        if not self.files:
            return api.shards(self.recipe.models).n_sites
        return sum(not format_of(file).is_companion for file in self.files)

    def arguments(self) -> dict[str, Any]:
        """Return what ``fuse`` is called with beside options of the method, modules imported and files read."""
        if not self.files:
            return {"engine": self.engine}
        return {} if self.kind is POSTERIORS else _arguments(self.recipe, self.files)


def plan_of(
    models: Sequence[str],
    method: str | None,
    settings: Sequence[str],
    weights: str | None,
    recipe: Path | None,
    allow_import: bool,
    widths: Sequence[str],
    engine: str | None,
    scheduler: str | None,
    **others: Any,
) -> FusionPlan:
    """Return the recipe with what the command line adds to it or replaces in it.

    Raises
    ------
    OptionError
        For settings that are not of their form, and options that do not fit the models.
    InputError
        For recipes that cannot be read, and files whose kinds do not fit.
    """
    plan = Recipe() if recipe is None else read_recipe(recipe)
    for name in ("module", "target"):
        named = getattr(plan, name)
        if named is not None and others[name] is None and not allow_import:
            raise OptionError(
                f"{recipe}: names the {name} {named}, whose import would run code; repeat --{name} {named}, "
                "or give --allow-import"
            )
    options = {**plan.options, **settings_of(settings)}
    if reserved := sorted(_RESERVED & set(options)):
        raise OptionError(f"{', '.join(reserved)}: not an option of a method")
    update: dict[str, Any] = {"options": options}
    given = {**others, "method": method, "models": list(models), "example": list(others["example"])}
    update |= {name: value for name, value in given.items() if value not in (None, [])}
    if widths:
        update["target_widths"] = {**(plan.target_widths or {}), **_widths(widths)}
    if weights is not None:
        try:
            update["weights"] = [float(part) for part in weights.split(",")]
        except ValueError as error:
            raise OptionError(f"--weights {weights}: expected numbers separated by commas") from error
    merged = plan.model_copy(update=update)
    if not merged.models:
        raise click.UsageError("Missing argument 'MODELS...': no files to fuse.")
    where = _engine(engine, scheduler)
    files = () if are_shards(merged.models) else tuple(open_files(merged.models, merged.models))
    if not files or any(file.stated_format == SHARD_FORMAT for file in files):
        if stated := options_of_networks(merged):
            raise OptionError(f"{', '.join(stated)}: for networks only, and {merged.models[0]} holds posteriors")
        return FusionPlan(merged, SHARDS, (), where)
    kind = kind_of_models(merged, files)
    if where is None:
        return FusionPlan(merged, kind, files)
    if kind is not POSTERIORS:
        raise OptionError("--engine, --scheduler: networks are fused here; these are for shards of posteriors")
    return FusionPlan(merged, SHARDS, (), where)


def _engine(engine: str | None, scheduler: str | None) -> str | None:
    """Return what ``fuse`` is told of where the work runs: the address of a scheduler, or nothing."""
    if engine == "dask" and scheduler is None:
        raise OptionError("--engine dask: give the address of its scheduler, --scheduler tcp://host:8786")
    if engine == "local" and scheduler is not None:
        raise OptionError("--scheduler: is for --engine dask")
    return scheduler


def settings_of(settings: Sequence[str]) -> dict[str, Any]:
    """Return options of a method by name."""
    options: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise OptionError(f"--set {setting}: expected OPTION=VALUE, such as --set regularization=0.3")
        try:
            options[name.replace("-", "_")] = None if value.strip() == "None" else parse_yaml(value)
        except ValueError as error:
            raise OptionError(f"--set {setting}: the value is not valid YAML") from error
    return options


def _widths(texts: Sequence[str]) -> dict[str, int]:
    """Return numbers of units by group."""
    widths = {}
    for text in texts:
        group, _, number = text.rpartition("=")
        if not group or not number.lstrip("-").isdecimal():
            raise OptionError(f"--target-width {text}: expected GROUP=N, such as --target-width fc1=400")
        widths[group] = int(number)
    return widths


def _arguments(plan: Recipe, files: Sequence[SafetensorsFile]) -> dict[str, Any]:
    """Return arguments of ``fuse`` for networks."""
    from consilience.cli.modules import import_module, make_example  # here, since networks only need them
    from consilience.networks.module_inputs import read_inputs

    found: dict[str, Any] = {"reference": plan.reference, "target_widths": plan.target_widths}
    found["symmetry"] = None if plan.symmetry is None else Path(plan.symmetry)
    if plan.target is not None and plan.target_widths is not None:
        raise OptionError("--target, --target-width: give one of them")
    module = None if plan.module is None else import_module(plan.module, "--module")
    for name in ("example", "inputs"):
        if module is None and getattr(plan, name) is not None:
            raise OptionError(f"--{name}: is for a module to take; give --module PKG.MOD:CALLABLE too")
    if module is not None:
        found["module"] = module
        if plan.example is not None:
            found["example"] = make_example(plan.example, module)
        elif plan.symmetry is None and not needs_no_symmetry(plan.method) and not have_symmetry(files):
            raise OptionError(f"--module {plan.module}: needs --example SHAPE to find which axes move together")
        if plan.inputs is not None:
            found["inputs"] = read_inputs(Path(plan.inputs), module)
    if plan.target is not None:
        found["target"] = import_module(plan.target, "--target")
    return {name: value for name, value in found.items() if value is not None}


@contextmanager
def warned_in_a_line() -> Iterator[None]:
    """Say on stderr, in one line, that a symmetry is unproved."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UnprovedSymmetryWarning)
        before = warnings.showwarning

        def show(message: Any, category: Any, *where: Any, **more: Any) -> None:
            if issubclass(category, UnprovedSymmetryWarning):
                click.echo(f"consilience: warning: {_UNPROVED}", err=True)
            else:
                before(message, category, *where, **more)

        warnings.showwarning = show
        yield


_UNPROVED = (
    "the symmetry of these networks is unproved: if it is wrong, so is the fused network; "
    "--module with --example proves it"
)
