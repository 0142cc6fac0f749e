"""Files of samplers among models: CSV of CmdStan, whose files may be chains of one site, and netCDF of ArviZ."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from consilience.errors import FileFormatError, InputError
from consilience.files.remote import is_remote, list_files

_CHAIN_NUMBER = re.compile(r"[_-]\d+$")

_NETCDF = (".nc", ".nc4")


def expand_sampler_files(models: Any) -> Any:
    """Return files of CmdStan and ArviZ, and patterns of such, as the draws of sites; other models as they are."""
    if isinstance(models, str | Path):
        if not str(models).endswith((".csv", *_NETCDF)):
            return models
        try:
            listed = list_files(models, (".csv", *_NETCDF))
        except InputError:  # whoever opens them says it
            return models
        models = [file.path for file in listed if not is_remote(file.path)]
    if not isinstance(models, Mapping | Sequence):
        return models
    among = models.values() if isinstance(models, Mapping) else models
    if not any(_is_csv(model) or _is_netcdf(model) for model in among):
        return models
    sites = _read_csv_sites(models)
    if isinstance(sites, Mapping):
        return {name: _read(model) for name, model in sites.items()}
    return [_read(model) for model in sites]


def _read(model: Any) -> Any:
    """Return the draws in the chains of a site, or in a netCDF file; other models as they are."""
    if isinstance(model, list):
        from consilience.draws.draws import Draws  # here, since models of other kinds need none

        return Draws(model)
    return read_netcdf(Path(model)) if _is_netcdf(model) else model


def _is_netcdf(model: object) -> bool:
    return isinstance(model, str | Path) and str(model).endswith(_NETCDF)


def read_netcdf(path: Path) -> Any:
    """Return the InferenceData or DataTree in a netCDF file; without ArviZ the path, whose reader says what it is.

    Raises FileFormatError for a file that is none.
    """
    try:
        import arviz
    except ImportError:
        return path
    if not path.is_file():
        return path  # whoever opens it says it
    try:
        return arviz.from_netcdf(path)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise FileFormatError(path, f"is no netCDF file that arviz.from_netcdf reads ({error})") from error


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
    files = [Path(model) for model in models if _is_csv(model)]
    sites: dict[str, Any] = dict(chain_files(files))
    if len(sites) == 1 < len(files) == len(models):
        name = next(iter(sites))
        text = f"{len(files)} files whose names differ in a number at their end are the chains of one site, {name}"
        remedy = (
            f"for a site each, give names: `{{'lund': '{files[0].name}', 'oslo': '{files[1].name}'}}`, or rename them"
        )
        raise InputError("models", text, remedy, "E-COUNT")
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
