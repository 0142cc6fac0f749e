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
    sites = read_csv_sites(models)
    if sites is models:
        return models
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


def read_csv_sites(models: Any) -> Any:
    """Return models by name with every CSV file of CmdStan read; models without such as they are.

    Parameters
    ----------
    models : mapping or sequence
        Where a path, or each of a list of paths, ends in ``.csv``, it holds chains. In a sequence, files whose names
        differ only in a number at their end are of one site.
    """
    if isinstance(models, Mapping):
        if not any(_is_csv(model) for model in models.values()):
            return models
        return {name: _paths(model) if _is_csv(model) else model for name, model in models.items()}
    if not isinstance(models, Sequence) or isinstance(models, str) or not any(_is_csv(model) for model in models):
        return models
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
