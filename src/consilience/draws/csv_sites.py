"""CSV files of CmdStan among models: which files are the chains of one site."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from consilience.errors import InputError
from consilience.files.remote import is_remote, list_files

_CHAIN_NUMBER = re.compile(r"[_-]\d+$")


def expand_csv(models: Any) -> Any:
    """Return CSV files of CmdStan, and patterns of such, as the draws of sites; other models as they are."""
    if isinstance(models, str | Path) and str(models).endswith(".csv"):
        try:
            models = [file.path for file in list_files(models, (".csv",)) if not is_remote(file.path)]
        except InputError:  # whoever opens them says it
            return models
    among = models.values() if isinstance(models, Mapping) else models
    if not isinstance(models, Mapping | Sequence) or isinstance(models, str) or not any(map(_is_csv, among)):
        return models
    sites = _read_csv_sites(models)
    from consilience.draws.draws import Draws  # here, since models of other kinds need none

    if isinstance(sites, Mapping):
        return {name: Draws(model) if isinstance(model, list) else model for name, model in sites.items()}
    return [Draws(model) if isinstance(model, list) else model for model in sites]


def chain_files(paths: Sequence[Path]) -> dict[str, list[Path]]:
    """Return files by site: those whose names differ only in a number at their end are the chains of one.

    Examples
    --------
    >>> sites = chain_files([Path("lund_1.csv"), Path("lund_2.csv"), Path("oslo.csv")])
    >>> {name: len(files) for name, files in sites.items()}
    {'lund': 2, 'oslo': 1}
    """
    sites: dict[tuple[Path, str], list[Path]] = {}
    for path in paths:
        sites.setdefault((path.parent, _CHAIN_NUMBER.sub("", path.stem)), []).append(path)
    stems = [stem for _, stem in sites]
    return {
        stem if stems.count(stem) == 1 else str(folder / stem): sorted(files) for (folder, stem), files in sites.items()
    }


def _read_csv_sites(models: Any) -> Any:
    """Return models, in a mapping or a sequence, with the paths of the chains of a site in place of its CSV files.

    In a sequence, files whose names differ only in a number at their end are of one site.
    """
    if isinstance(models, Mapping):
        return {name: _paths(model) if _is_csv(model) else model for name, model in models.items()}
    if any(isinstance(model, list | tuple) for model in models):
        return [_paths(model) if _is_csv(model) else model for model in models]
    sites: dict[str, Any] = dict(chain_files([Path(model) for model in models if _is_csv(model)]))
    for place, model in enumerate(models):
        if not _is_csv(model):
            name = Path(model).stem if isinstance(model, str | Path) else f"model {place}"
            sites[name if name not in sites else f"{name} ({place})"] = model
    return sites


def _is_csv(model: object) -> bool:
    """Return whether a model is a CSV file, or a list of such."""
    if isinstance(model, list | tuple):
        return len(model) > 0 and all(isinstance(one, str | Path) and _is_csv(one) for one in model)
    return isinstance(model, str | Path) and str(model).endswith(".csv")


def _paths(model: Any) -> list[Path]:
    return [Path(one) for one in (model if isinstance(model, list | tuple) else [model])]
