"""The page of fused networks, and checks of what is shown with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from consilience.errors import InputError, Problem
from consilience.networks.report.content import NetworkContent, ShownNetworks, content_of
from consilience.networks.report.page import write_network_content

if TYPE_CHECKING:
    from consilience.networks.landscape.barrier import Barrier
    from consilience.networks.landscape.plane import Plane

Comparison = TypeVar("Comparison")


def write_network_page(
    path: Path,
    shown: ShownNetworks,
    *,
    barriers: Mapping[str, Barrier] | None = None,
    planes: Mapping[str, Plane] | None = None,
    scores: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Write the report to `path`, whole or not at all: one HTML file without scripts that fetches nothing.

    Parameters
    ----------
    path : Path
        The file to write.
    shown : ShownNetworks
        The fused networks.
    barriers : mapping of str to Barrier, optional
        By name, such as "as they are" and "aligned": drawn on common axes. Default: none.
    planes : mapping of str to Plane, optional
        By name. Default: none.
    scores : mapping of str to mapping of str to float, optional
        By model, in the order to show: its numbers by name, such as ``{"model 0": {"accuracy": 0.98}}``.
        Default: none.

    Raises
    ------
    InputError
        When the path cannot be written, or barriers, planes or scores are something else.
    """
    write_network_content(path, checked_content_of(shown, barriers, planes, scores))


def checked_content_of(
    shown: ShownNetworks,
    barriers: Mapping[str, Barrier] | None = None,
    planes: Mapping[str, Plane] | None = None,
    scores: Mapping[str, Mapping[str, float]] | None = None,
) -> NetworkContent:
    """Return the content of the page, what is shown with it checked; parameters as for `write_network_page`."""
    return content_of(shown, _barriers(barriers), _planes(planes), _scores(scores))


def _barriers(barriers: Mapping[str, Barrier] | None) -> dict[str, Barrier]:
    if not barriers:
        return {}
    from consilience.networks.landscape.barrier import Barrier  # here, since it needs torch

    return _check_comparisons(barriers, Barrier, "barriers", "barriers by name, as consilience.barrier returns them")


def _planes(planes: Mapping[str, Plane] | None) -> dict[str, Plane]:
    if not planes:
        return {}
    from consilience.networks.landscape.plane import Plane  # here, since it needs torch

    return _check_comparisons(planes, Plane, "planes", "planes by name, as consilience.plane returns them")


def _check_comparisons(
    comparisons: Mapping[str, Comparison], kind: type[Comparison], argument: str, expected: str
) -> dict[str, Comparison]:
    if not isinstance(comparisons, Mapping):
        raise InputError(
            argument, f"expected {expected}, found {type(comparisons).__name__}", "write {'aligned': ...}", "E-NUMBER"
        )
    if wrong_names := [name for name, comparison in comparisons.items() if not isinstance(comparison, kind)]:
        name = wrong_names[0]
        raise InputError(
            argument, f"expected {expected}, found {type(comparisons[name]).__name__} under {name!r}", code="E-NUMBER"
        )
    return {str(name): comparison for name, comparison in comparisons.items()}


def _scores(scores: Mapping[str, Mapping[str, float]] | None) -> dict[str, dict[str, float]]:
    if not scores:
        return {}
    expected = Problem(
        "scores", "expected numbers by name for every model, such as {'fused': {'accuracy': 0.98}}", code="E-TYPE"
    )
    if not isinstance(scores, Mapping):
        raise InputError("", f"{expected}, found {type(scores).__name__}", code="E-TYPE")
    scores_by_model: dict[str, dict[str, float]] = {}
    for model, model_scores in scores.items():
        if not isinstance(model_scores, Mapping):
            raise InputError("", f"{expected}, found {type(model_scores).__name__} under {model!r}", code="E-TYPE")
        try:
            scores_by_model[str(model)] = {str(name): float(value) for name, value in model_scores.items()}
        except (TypeError, ValueError) as error:
            raise InputError(f"{expected}; under {model!r}: {error}") from error
    return scores_by_model
