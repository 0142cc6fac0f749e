"""What the command refuses of its models before any is read whole, in words of the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from consilience.api.kinds import BAYESIAN, NETWORKS, POSTERIORS, format_of
from consilience.core.kind import Kind
from consilience.core.recipe import Recipe
from consilience.errors import InputError, OptionError
from consilience.files.safetensors_file import SafetensorsFile
from consilience.networks.methods import needs_no_symmetry

_NETWORKS = {
    "module": "--module",
    "example": "--example",
    "symmetry": "--symmetry",
    "target": "--target",
    "target_widths": "--target-width",
    "inputs": "--inputs",
    "reference": "--reference",
}
"""Keys of a recipe that are for networks, and how the command line has them."""


def kind_of_models(plan: Recipe, files: Sequence[SafetensorsFile]) -> Kind:
    """Return the kind of models that files hold.

    Raises
    ------
    InputError
        For files that do not go together, and such of which nothing says which axes move together.
    OptionError
        For options of networks beside posteriors.
    """
    network_options = options_of_networks(plan)
    formats: dict[str, str] = {}
    unreadable: list[str] = []
    for file in files:
        try:
            formats[file.label] = format_of(file).name
        except InputError as error:  # for posteriors, their reader says it better
            unreadable += error.problems
    found = set(formats.values())
    if "bayesian" in found:
        _refuse_bayesian(plan, formats, files, unreadable)
        return BAYESIAN
    if "network" in found:
        return NETWORKS
    plain = [label for label, name in formats.items() if name == "checkpoint"]
    if "posterior" in found:
        if network_options and not plain:
            raise OptionError(
                f"{', '.join(network_options)}: for networks only, and {plan.models[0]} is a posterior file"
            )
        return NETWORKS if network_options else POSTERIORS
    if not plain:
        if network_options:
            raise InputError(unreadable)
        if "fisher" in found:
            lonely = [f"{label}: {_INFORMATION}" for label, name in formats.items() if name == "fisher"]
            raise InputError([*unreadable, *lonely])
        return POSTERIORS
    informed = plan.method is None and "fisher" in found
    if plan.module is None and plan.symmetry is None and not informed and not needs_no_symmetry(plan.method):
        raise InputError([*unreadable, *(f"{label}: {_PLAIN}" for label in plain)])
    return NETWORKS


def options_of_networks(plan: Recipe) -> list[str]:
    """Return the options for networks that were given, as the command line has them."""
    return [option for name, option in _NETWORKS.items() if getattr(plan, name) is not None]


_INFORMATION = "is Fisher information of a network; give the networks too"

_HINT = "give --symmetry FILE, or --module PKG.MOD:CALLABLE with --example SHAPE"
_PLAIN = (
    f"is a plain checkpoint, which says nothing of which axes move together; {_HINT} (or write it with "
    "consilience.save)"
)
_UNTOLD = f"says nothing of which axes move together; {_HINT} (or write it with consilience.save and its symmetry=)"


def _refuse_bayesian(
    plan: Recipe, formats: Mapping[str, str], files: Sequence[SafetensorsFile], unreadable: Sequence[str]
) -> None:
    """Raise for Bayesian networks among other files, and for such that nothing is known of how their axes move."""
    called = {form.name: form.called for kind in (BAYESIAN, NETWORKS, POSTERIORS) for form in kind.formats}
    first = next(iter(formats))
    expected = "bayesian" if formats[first] in ("posterior", "checkpoint", "fisher") else formats[first]
    like = next(label for label, name in formats.items() if name == expected)
    problems = [
        f"{label}: is {called[name]}, expected {called[expected]} as {like}; fuse files of one kind"
        for label, name in formats.items()
        if name != expected
    ]
    if problems or unreadable:
        raise InputError([*unreadable, *problems])
    if plan.inputs is not None:
        raise OptionError("--inputs: of no use for Bayesian networks, whose variances say what is known")
    without = any(method.name == plan.method and method.optional_symmetry for method in BAYESIAN.methods)
    traced = plan.module is not None and plan.example is not None
    if plan.symmetry is None and not traced and not without and not have_symmetry(files):
        raise InputError([f"{model}: {_UNTOLD}" for model in plan.models])


def have_symmetry(files: Sequence[SafetensorsFile]) -> bool:
    """Return whether any of the files says which axes move together."""
    documents = [document for document in map(_document, files) if document is not None]
    return any(document.get("symmetry") is not None for document in documents)


def _document(file: SafetensorsFile) -> Mapping[str, object] | None:
    try:
        document = file.document
    except InputError:  # said by whoever reads it whole
        return None
    return document if isinstance(document, dict) else None
