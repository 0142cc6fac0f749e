"""Options that commands share, and the fusion plan: recipe and command line merged and checked.

``fuse`` and ``check`` take the same options. `make_fusion_plan` adds those of the command line to the recipe's, opens
the models' files once and decides of which kind they are; `FusionPlan.arguments` then imports modules and reads inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

import consilience as cs
from consilience.api.kinds import DRAWS, POSTERIORS, SHARDS, are_shards, format_of, kind_of, list_models
from consilience.catalogue import ALIASES
from consilience.checks import Json
from consilience.core.arguments import CALL_KEYWORDS
from consilience.core.inputs import EQUAL, name_inputs
from consilience.core.kind import Kind
from consilience.core.recipe import Recipe, parse_yaml, read_recipe
from consilience.errors import OptionError
from consilience.files.document import SHARD
from consilience.files.safetensors_file import SafetensorsFile, open_files

Command = Callable[..., None]
_NETWORK_OPTIONS = {
    "module": "--module", "example": "--example", "symmetry": "--symmetry", "target": "--target",
    "target_widths": "--target-width", "inputs": "--inputs", "classes": "--classes", "reference": "--reference",
}  # fmt: skip
"""Keys of a recipe that are for networks, with their options on the command line."""


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


overwrite_option = click.option(
    "--overwrite", is_flag=True, help="Replace a file of another program, or one outside of the working folder."
)


def _name_or_place(_context: click.Context, _option: click.Parameter, value: str | None) -> str | int | None:
    """Return the name of an output, or its place in a tuple as a number."""
    return int(value) if value is not None and value.isdecimal() else value


def method_option(help_text: str, kinds: Collection[str] = ()) -> Callable[[Command], Command]:
    """Return the option ``--method``, completed by the methods for some kinds of models, or for all."""

    def complete(_context: click.Context, _option: click.Parameter, incomplete: str) -> list[str]:
        from consilience.cli.methods import TABLES  # here, since the tables of methods import every kind

        of = [table for kind, table in TABLES.items() if not kinds or kind in kinds]
        names = {method.name for table in of for method in table.methods}
        return sorted(name for name in names if name.startswith(incomplete))

    return click.option("--method", shell_complete=complete, help=help_text)


def settings_option(help_text: str = "An option of the method.") -> Callable[[Command], Command]:
    """Return the option ``--set``, completed by the options of the method that was named, or of all."""

    def complete(context: click.Context, _option: click.Parameter, incomplete: str) -> list[str]:
        from consilience.cli.methods import method_options  # here, since the tables of methods import every kind

        known = method_options(context.params.get("method"))
        return sorted(f"{name}=" for name in known if name.startswith(incomplete))

    return click.option(
        "--set", "settings", multiple=True, metavar="OPTION=VALUE", shell_complete=complete, help=help_text
    )


answer_option = click.option(
    "--answer",
    callback=_name_or_place,
    metavar="NAME",
    help="Which of the network's outputs is meant.  [default: logits, or all]",
)


def _rank_or_share(_context: click.Context, _option: click.Parameter, value: str | None) -> int | float | None:
    """Return a rank as an integer, or a share of energy; the library looks at their size."""
    if value is None or value.isdecimal():
        return None if value is None else int(value)
    try:
        return float(value)
    except ValueError as error:
        raise click.BadParameter(f"expected a rank, or a share such as 0.99, found {value!r}.") from error


def rank_option(help_text: str, default: str | None = None) -> Callable[[Command], Command]:
    """Return the option ``--rank`` of adapters."""
    return click.option(
        "--rank", callback=_rank_or_share, metavar="RANK|SHARE", default=default, show_default=True, help=help_text
    )


def fusion_options(command: Command) -> Command:
    """Add what ``fuse`` and ``check`` share; the command gets them as a `FusionPlan`."""
    decorators: list[Callable[[Command], Command]] = [
        click.argument("models", nargs=-1, type=click.Path(path_type=str)),
        method_option("Name of a method; see `consilience methods`.  [default: the recommended one]"),
        settings_option(),
        click.option("--weights", help="How much each model counts, separated by commas.  [default: all the same]"),
        click.option(
            "--n-observations",
            metavar="N,N,...|equal",
            help="Rows behind each model, for files that do not say; equal counts all alike.",
        ),
        click.option(
            "--min-count",
            type=click.FloatRange(0),
            help="Observations that a component needs; those with fewer are left out.  [default: 5]",
        ),
        click.option("--recipe", type=click.Path(path_type=Path), help="A YAML file with any of these settings."),
        module_option(),
        example_option(),
        click.option("--symmetry", type=click.Path(path_type=str), help="What `consilience network symmetry` wrote."),
        click.option("--target", metavar="PKG.MOD:CALLABLE", help="A module of the widths that the fused one gets."),
        click.option("--target-width", "widths", multiple=True, metavar="GROUP=N", help="Units of a fused group."),
        click.option("--inputs", type=click.Path(path_type=str), help="Unlabeled inputs: .npy or .npz."),
        click.option(
            "--classes", type=click.Choice(["union"]), help="Networks of different classes become one of all of them."
        ),
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
    """Models to fuse, of which kind they are, and how to fuse them."""

    recipe: Recipe  # the recipe with the options of the command line
    kind: Kind
    files: tuple[SafetensorsFile, ...]  # the models' files, each opened once; empty for shards
    engine: str | None = None  # address of the Dask scheduler for shards; None for this process
    # The draws in CSV files of CmdStan, by site, beside paths of other files. Default: None, where there are none.
    chains: Mapping[str, Any] | None = None
    # The recipe's own file, and the files beside models that it and the command line name. Default: none.
    read: tuple[Path, ...] = ()

    @property
    def models(self) -> Sequence[Any] | Mapping[str, Any]:
        """The models that ``fuse`` is called with: opened files, the paths of shards, or draws by site."""
        return self.chains or self.files or self.recipe.models

    def n_models(self) -> int:
        """Return the number of models to fuse, without companions such as Fisher information."""
        if self.chains is not None:
            return len(self.chains)
        if not self.files:
            return cs.shards(self.recipe.models).n_sites
        return sum(not format_of(file).is_companion for file in self.files)

    def arguments(self) -> dict[str, Any]:
        """Return the keywords of ``fuse`` besides options of the method, after importing modules and reading inputs."""
        stated = {"weights": self.recipe.weights, "n_observations": self.recipe.n_observations}
        if self.kind is SHARDS:
            return {"engine": self.engine, **stated}
        if "module" not in self.kind.keywords:
            return stated
        return {**stated, **_network_arguments(self.recipe)}


def make_fusion_plan(
    models: Sequence[str],
    method: str | None,
    settings: Sequence[str],
    weights: str | None,
    n_observations: str | None,
    min_count: float | None,
    recipe: Path | None,
    allow_import: bool,
    widths: Sequence[str],
    engine: str | None,
    scheduler: str | None,
    **network_settings: Any,
) -> FusionPlan:
    """Return the recipe with what the command line adds to it or replaces in it, and the kind of its models.

    Models replace those of the recipe, `min_count` its option of that name, and settings, each OPTION=VALUE, its own
    one by one. Weights and numbers of observations (or ``equal``) are separated by commas; widths are each GROUP=N.
    `scheduler` is the address of the engine's, and `allow_import` says whether modules that the recipe names may be
    imported, which runs their code. Network settings are module, target, example, symmetry, inputs, classes and
    reference. Raises OptionError for settings that are not of their form, and options that do not fit the models, and
    InputError for recipes that cannot be read, and files whose kinds do not fit.
    """
    stored = Recipe() if recipe is None else read_recipe(recipe)
    # A recipe is a file, perhaps of a stranger: a name in it makes nothing run until the command line allows that.
    for name in ("module", "target"):
        target = getattr(stored, name)
        if target is not None and network_settings[name] is None and not allow_import:
            text = f"names the {name} {target}, whose import would run code"
            raise OptionError(recipe, text, f"repeat --{name} {target}, or give --allow-import")
    options = {**stored.options, **parse_settings(settings)}
    if min_count is not None:
        options["min_count"] = min_count
    refuse_reserved(options, {*CALL_KEYWORDS, "models", "samples"})
    command_line = {
        **network_settings,
        "method": method,
        "models": list(models),
        "example": list(network_settings["example"]),
        "target_widths": {**(stored.target_widths or {}), **_parse_widths(widths)} if widths else None,
        "weights": None if weights is None else _numbers("--weights", weights),
        "n_observations": _stated_numbers(n_observations),
    }
    update = {name: value for name, value in command_line.items() if value not in (None, [])}
    merged = stored.model_copy(update={"options": options, **update})
    if not merged.models:
        raise click.UsageError("Missing argument 'MODELS...': no files to fuse.")
    beside = (merged.symmetry, merged.inputs, *(one for one in merged.example or () if one.endswith(".npy")))
    read = (*(() if recipe is None else (recipe,)), *(Path(one) for one in beside if one is not None))
    return replace(_plan(merged, scheduler_address(engine, scheduler)), read=read)


def _numbers(option: str, text: str) -> list[float]:
    """Return numbers separated by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise OptionError(f"{option} {text}: expected numbers separated by commas") from error


def _stated_numbers(text: str | None) -> list[float] | str | None:
    """Return numbers of observations, or that all models count alike."""
    if text is None or text == EQUAL:
        return text
    try:
        return _numbers("--n-observations", text)
    except OptionError as error:
        raise OptionError(f"{error}, or {EQUAL}") from error


def _plan(recipe: Recipe, address: str | None) -> FusionPlan:
    """Return the plan of a recipe, its files opened."""
    listed = list_models(recipe.models, address)
    if isinstance(listed, Mapping):
        return _plan_of(DRAWS, recipe, chains=listed)
    files = () if are_shards(listed) else tuple(open_files(listed, listed))
    if not files or any(file.stated_format == SHARD for file in files):
        return _plan_of(SHARDS, recipe, address=address)
    inputs = name_inputs(files)
    kind = kind_of(inputs, recipe.method, dict.fromkeys(network_options(recipe), True))
    if any(one.format is None and not one.is_plain_checkpoint for one in inputs):  # its reader says what is wrong
        return FusionPlan(recipe, kind, files)
    if address is None:
        return _plan_of(kind, recipe, files)
    if kind is not POSTERIORS:
        text = f"{kind.title} are fused here; these are for shards of posteriors"
        raise OptionError(f"--engine, --scheduler: {text}")
    return _plan_of(SHARDS, recipe, address=address)


def _plan_of(
    kind: Kind,
    recipe: Recipe,
    files: tuple[SafetensorsFile, ...] = (),
    address: str | None = None,
    chains: Mapping[str, Any] | None = None,
) -> FusionPlan:
    """Return the plan for models of a kind; options for networks are refused with models of other kinds."""
    if (misplaced := network_options(recipe)) and "module" not in kind.keywords:
        options = ", ".join(_NETWORK_OPTIONS[name] for name in misplaced)
        raise OptionError(options, f"for networks only, and {recipe.models[0]} holds {kind.title}")
    return FusionPlan(recipe, kind, files, address, chains)


def scheduler_address(engine: str | None, scheduler: str | None) -> str | None:
    """Return the address of the scheduler that runs shards; None for this process."""
    if engine == "dask" and scheduler is None:
        raise OptionError("--engine dask: give the address of its scheduler, --scheduler tcp://host:8786")
    if engine == "local" and scheduler is not None:
        raise OptionError("--scheduler: is for --engine dask")
    return scheduler


def parse_settings(settings: Sequence[str]) -> dict[str, Json]:
    """Return options of a method by name, each from a text OPTION=VALUE whose value is YAML.

    Raises OptionError for a text that is not of this form.
    """
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


def refuse_reserved(options: Mapping[str, Any], reserved: Collection[str]) -> None:
    """Raise for options of a method that are options of the command, by whatever name, saying which.

    `options` are what ``--set`` and a recipe say of the method; `reserved`, keywords of the function that the command
    calls.
    """
    if found := sorted(set(reserved) & set(options)):
        raise OptionError(", ".join(found), "not an option of a method")
    if seeds := sorted(name for name in options if "seed" in ALIASES.get(name, ()) or name == "seed"):
        raise OptionError(", ".join(seeds), "not an option of a method", "give --seed N", "E-OPTION")


def parse_classes(text: str) -> int | list[str]:
    """Return the number of classes that a text states, or their labels, separated by commas."""
    return int(text) if text.isdecimal() else text.split(",")


def _parse_widths(texts: Sequence[str]) -> dict[str, int]:
    """Return numbers of units by group, from texts GROUP=N."""
    widths = {}
    for text in texts:
        group, _, number = text.rpartition("=")
        if not group or not number.lstrip("-").isdecimal():
            raise OptionError(f"--target-width {text}: expected GROUP=N, such as --target-width fc1=400")
        widths[group] = int(number)
    return widths


def _network_arguments(recipe: Recipe) -> dict[str, Any]:
    """Return the keywords of ``fuse`` that are for networks: modules imported, inputs read, None left out."""
    from consilience.cli.modules import import_module  # here, since networks only need them

    if recipe.target is not None and recipe.target_widths is not None:
        raise OptionError("--target, --target-width: give one of them")
    arguments: dict[str, Any] = {
        "reference": recipe.reference,
        "target_widths": recipe.target_widths,
        "classes": recipe.classes,
        "symmetry": None if recipe.symmetry is None else Path(recipe.symmetry),
        **_module_arguments(recipe),
        "target": None if recipe.target is None else import_module(recipe.target, "--target"),
    }
    return {name: value for name, value in arguments.items() if value is not None}


def _module_arguments(recipe: Recipe) -> dict[str, Any]:
    """Return the module of a recipe, and what is for it to take; raise for an example or inputs without a module."""
    from consilience.cli.modules import import_module, make_example  # here, since networks only need them
    from consilience.networks.module_inputs import read_inputs

    if recipe.module is None:
        for name in ("example", "inputs"):
            if getattr(recipe, name) is not None:
                raise OptionError(f"--{name}: is for a module to take; give --module PKG.MOD:CALLABLE too")
        return {}
    module = import_module(recipe.module, "--module")
    arguments: dict[str, Any] = {"module": module}
    if recipe.example is not None:
        arguments["example"] = make_example(recipe.example, module)
    if recipe.inputs is not None:
        arguments["inputs"] = read_inputs(Path(recipe.inputs), module)
    return arguments


def network_options(recipe: Recipe) -> list[str]:
    """Return the keys for networks that a recipe states."""
    return [name for name in _NETWORK_OPTIONS if getattr(recipe, name) is not None]
