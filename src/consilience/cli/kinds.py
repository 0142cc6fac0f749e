"""The kind of the models on a command line, and refusals of files and options that do not go together.

Only headers are read. Messages name options as the shell has them, such as ``--target-width`` for ``target_widths``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from consilience.api.kinds import BAYESIAN, DRAWS, ESTIMATORS, FORMATS, NETWORKS, POSTERIORS, format_of
from consilience.core.kind import Kind
from consilience.core.recipe import Recipe
from consilience.errors import InputError, OptionError, Problem
from consilience.files.our_formats import DESCRIPTION
from consilience.files.safetensors_file import SafetensorsFile
from consilience.networks.descriptions.files import description_path
from consilience.networks.methods import needs_no_symmetry

_NETWORK_OPTIONS = {
    "module": "--module",
    "example": "--example",
    "symmetry": "--symmetry",
    "target": "--target",
    "target_widths": "--target-width",
    "inputs": "--inputs",
    "classes": "--classes",
    "reference": "--reference",
}
"""Keys of a recipe that are for networks, with their options on the command line."""


def kind_of_models(recipe: Recipe, files: Sequence[SafetensorsFile]) -> Kind:
    """Return the kind of models that files hold, from the formats that their headers state.

    One Bayesian network makes all files Bayesian, else one network makes all networks, else one file of draws makes all
    draws, else one file of statistics makes all estimators. Plain checkpoints, and what travels beside networks, say
    nothing alone: checkpoints are networks where a symmetry is known, traced, or not needed.

    Parameters
    ----------
    recipe : Recipe
        The recipe with the options of the command line.
    files : sequence of SafetensorsFile
        The opened files of the models.

    Raises
    ------
    InputError
        For files that do not go together, and such of which nothing says which axes move together.
    OptionError
        For options of networks beside posteriors.
    """
    options = network_options(recipe)
    formats: dict[str, str] = {}
    unreadable: list[str] = []
    for file in files:
        try:
            formats[file.label] = format_of(file).name
        except InputError as error:  # for posteriors, their reader says it better
            unreadable += error.problems
    names = set(formats.values())  # names of formats
    if "bayesian" in names:
        _refuse_bayesian(recipe, formats, files, unreadable)
        return BAYESIAN
    if "network" in names:
        return NETWORKS
    for name, kind, called in (("draws", DRAWS, "a draws file"), ("statistics", ESTIMATORS, "a statistics file")):
        if name in names:
            if options:
                raise OptionError(", ".join(options), f"for networks only, and {recipe.models[0]} is {called}")
            return kind
    plain = [label for label, name in formats.items() if name == "checkpoint"]
    if "posterior" in names:
        if options and not plain:
            raise OptionError(", ".join(options), f"for networks only, and {recipe.models[0]} is a posterior file")
        return NETWORKS if options else POSTERIORS
    if not plain:
        if options:
            raise InputError(unreadable)
        if without_network := [
            Problem(label, f"is {_COMPANIONS[name]} of a network", "give the networks too", "E-NEEDED")
            for label, name in formats.items()
            if name in _COMPANIONS
        ]:
            raise InputError([*unreadable, *without_network])
        return POSTERIORS
    # Beside Fisher information the recommended method is Fisher merging, which goes without a symmetry.
    has_information = recipe.method is None and "fisher" in names
    is_symmetry_known = recipe.module is not None or recipe.symmetry is not None or has_information
    if not is_symmetry_known and not needs_no_symmetry(recipe.method):
        raise InputError([*unreadable, *(Problem(label, _PLAIN_CHECKPOINT) for label in plain)])
    return NETWORKS


def network_options(recipe: Recipe) -> list[str]:
    """Return the options for networks that were given, as the command line has them."""
    return [option for name, option in _NETWORK_OPTIONS.items() if getattr(recipe, name) is not None]


_COMPANIONS = {"fisher": "Fisher information", "description": "the description"}
"""What files beside those of networks are called, by their format."""

_HINT = "give --symmetry FILE, or --module PKG.MOD:CALLABLE with --example SHAPE"
_PLAIN_CHECKPOINT = (
    f"is a plain checkpoint, which says nothing of which axes move together; {_HINT} (or write it with "
    "consilience.save)"
)
_NO_SYMMETRY = (
    f"says nothing of which axes move together; {_HINT} (or write it with consilience.save and its symmetry=)"
)


def _refuse_bayesian(
    recipe: Recipe, formats: Mapping[str, str], files: Sequence[SafetensorsFile], unreadable: Sequence[str]
) -> None:
    """Raise for Bayesian networks among other files, and for those whose symmetry is not known."""
    noun_of_format = {form.name: form.called for form in FORMATS}
    first_format = next(iter(formats.values()))
    expected = (
        "bayesian" if first_format in ("posterior", "statistics", "draws", "checkpoint", *_COMPANIONS) else first_format
    )
    example = next(label for label, name in formats.items() if name == expected)
    problems = [
        Problem(
            label,
            f"is {noun_of_format[name]}, expected {noun_of_format[expected]} as {example}",
            "fuse files of one kind",
            "E-MISMATCH",
        )
        for label, name in formats.items()
        if name not in (expected, "description")
    ]
    if problems or unreadable:
        raise InputError([*unreadable, *problems])
    if recipe.inputs is not None and recipe.method not in (None, BAYESIAN.methods[0].name):
        raise OptionError("--inputs: of no use for Bayesian networks, whose variances say what is known")
    is_optional = any(method.name == recipe.method and method.optional_symmetry for method in BAYESIAN.methods)
    is_traced = recipe.module is not None and (recipe.example is not None or have_descriptions(files))
    if recipe.symmetry is None and not is_traced and not is_optional and not have_symmetry(files):
        raise InputError(
            [Problem(label, _NO_SYMMETRY, code="E-NEEDED") for label, name in formats.items() if name == expected]
        )


def have_symmetry(files: Sequence[SafetensorsFile]) -> bool:
    """Return whether the document of any of the files has a symmetry."""
    documents = [document for document in map(_document, files) if document is not None]
    return any(document.get("symmetry") is not None for document in documents)


def have_descriptions(files: Sequence[SafetensorsFile]) -> bool:
    """Return whether what inputs are like is described in any of the files, or beside one."""
    beside = (description_path(file.path).is_file() for file in files)
    return any(beside) or any(file.stated_format == DESCRIPTION for file in files)


def _document(file: SafetensorsFile) -> Mapping[str, object] | None:
    """Return the JSON document of a file; None where it has none or is broken."""
    try:
        document = file.document
    except InputError:  # the reader of the whole file says it
        return None
    return document if isinstance(document, dict) else None
