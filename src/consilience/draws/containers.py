"""Containers of posterior draws: mappings of arrays, ArviZ InferenceData, xarray DataTree and Dataset.

ArviZ and xarray are known by duck typing, and imported only to give draws back in the container that they came in.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.checks import Array
from consilience.draws.diagnostics import MIN_CHAIN_LENGTH
from consilience.errors import InputError, Problem, UnsupportedError
from consilience.files.tables import NamedTable, as_named_table

if TYPE_CHECKING:
    from consilience.draws.draws import Draws

MAPPING, BARE_MAPPING = "mapping", "mapping without chains"
CONTAINERS = (MAPPING, BARE_MAPPING, "InferenceData", "DataTree", "Dataset")
"""What draws come in and go back to; arrays of the second have draws first and no chains."""

_LEADING = ("chain", "draw")

MAX_NAMED = 5
"""Columns that a message names at most. Chosen by hand."""
_COORDINATE_KINDS = "iufbUM"
"""Kinds of NumPy types of coordinates that a file can have: numbers, texts, dates."""


@dataclass(frozen=True, eq=False)
class Contents:
    """What is in a container."""

    variables: Mapping[str, Array]  # (C, T, ...), the draws, chain by chain
    container: str  # one of `CONTAINERS`
    # Names of the axes after chain and draw, by variable.
    dims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    coords: Mapping[str, np.ndarray] = field(default_factory=dict)  # labels by name of the axis
    diverging: Any = None  # (C, T), divergent transitions, where the sampler recorded them


def is_container(model: object) -> bool:
    """Return whether an object is InferenceData, or a DataTree or Dataset with posterior draws.

    A mapping of arrays is none by itself: it could be anything, and is wrapped as ``Draws(mapping)``.
    """
    return _container_of(model) is not None


def _container_of(model: object) -> str | None:
    kind = type(model)
    package, name = kind.__module__.partition(".")[0], kind.__name__
    if package == "arviz" and name == "InferenceData":
        return name
    if package == "xarray" and name in ("DataTree", "Dataset"):
        return name
    return None


def read_container(model: Any, has_chains: bool | None) -> Contents:
    """Return what is in a container, or raise for another object, and one without posterior draws."""
    container = _container_of(model)
    if container is None:
        if isinstance(model, Mapping):
            return _read_mapping(model, has_chains)
        levels = getattr(getattr(model, "index", None), "names", ())
        if set(levels) & {*_CHAIN_COLUMNS, *_DRAW_COLUMNS}:  # of pandas, as ArviZ and PyMC index draws
            model = model.reset_index()
        if (table := as_named_table(model)) is not None:
            return _read_mapping(_columns_of(table), True)
        text = "holds no posterior draws"
        remedy = "give InferenceData, a DataTree, a dictionary of arrays (chains, draws, ...), or CmdStan CSV files"
        raise UnsupportedError(f"an object of class {type(model).__name__}", text, remedy)
    posterior, sample_stats = model, None
    if container != "Dataset":
        posterior, sample_stats = _group(model, "posterior"), _group(model, "sample_stats")
    if posterior is None:
        text = f"is a {container} without a group `posterior`"
        raise InputError("", text, "give the draws of the sampler", "E-NEEDED")
    problems: list[Problem] = []
    variables: dict[str, Array] = {}
    dims: dict[str, tuple[str, ...]] = {}
    for key, array in posterior.data_vars.items():
        name = str(key)
        if tuple(array.dims[:2]) != _LEADING:
            problems.append(Problem(name, f"has axes {array.dims}, expected chain and draw first", code="E-SHAPE"))
        elif (own := _numbers(name, array.values, problems)) is not None:
            variables[name], dims[name] = own, tuple(map(str, array.dims[2:]))
    coords = _coordinates(posterior, problems)
    if not variables and not problems:
        problems.append(Problem("", "has no variables in its group `posterior`", code="E-NEEDED"))
    if problems:
        raise InputError(problems)
    diverging = None
    if sample_stats is not None and "diverging" in sample_stats:
        diverging = np.asarray(sample_stats["diverging"].values)
    return Contents(variables, container, dims, coords, diverging)


_CHAIN_COLUMNS, _DRAW_COLUMNS = (".chain", "chain"), (".draw", ".iteration", "draw", "iteration")
"""Columns by which tables of the R package posterior, and of pandas, number chains and draws."""

_ENTRY = re.compile(r"(?P<name>.+?)[.\[](?P<indices>\d+(?:[.,]\s*\d+)*)\]?$")
"""A column of one entry of an array: ``beta[2,1]`` of R, ``beta.2.1`` of Stan, from 1; of Python from 0."""


def _columns_of(table: NamedTable) -> dict[str, Array]:
    """Return the columns of a table of draws, a row for each, as arrays (C, T, ...) by variable."""
    columns = {name: np.asarray(table.take(number)) for number, name in enumerate(table.header)}
    if odd := [name for name, values in columns.items() if values.dtype.kind not in "biuf"]:
        text = f"has the columns {', '.join(odd[:MAX_NAMED])}, which are no numbers, expected a column a parameter"
        raise InputError("", text, code="E-TYPE")
    chain = next((columns.pop(name) for name in _CHAIN_COLUMNS if name in columns), None)
    for name in _DRAW_COLUMNS:
        columns.pop(name, None)
    order, n_chains = np.arange(len(next(iter(columns.values()), ()))), 1
    if chain is not None:
        order, (_, lengths) = np.argsort(chain, kind="stable"), np.unique(chain, return_counts=True)
        if len(set(lengths.tolist())) > 1:
            raise InputError("", f"has chains of {lengths.tolist()} draws, expected as many in each", code="E-SHAPE")
        n_chains = len(lengths)
    return arrays_of_columns(
        {name: values[order].reshape(n_chains, -1) for name, values in columns.items() if not name.endswith("__")}
    )


def arrays_of_columns(columns: Mapping[str, Array]) -> dict[str, Array]:
    """Return arrays (C, T, ...) by variable of columns (C, T), one for each entry of a variable, in any order.

    Raises InputError for a variable whose columns do not fill an array.
    """
    entries: dict[str, dict[tuple[int, ...], Array]] = {}
    for column, values in columns.items():
        found = _ENTRY.match(column)
        name = column if found is None else found["name"]
        index = () if found is None else tuple(map(int, re.split(r"[.,]\s*", found["indices"])))
        entries.setdefault(name, {})[index] = values
    arrays = {}
    for name, parts in entries.items():
        indices = list(parts)
        base = 0 if any(0 in index for index in indices) else 1
        shape = tuple(np.max(indices, axis=0) + 1 - base) if indices[0] else ()
        if len({len(index) for index in indices}) > 1 or int(np.prod(shape)) != len(indices):
            raise InputError("", f"lacks columns of {name}: its indices do not fill an array", code="E-SHAPE")
        arrays[name] = np.empty((*parts[indices[0]].shape, *shape))
        for index, values in parts.items():
            where: Any = (..., *(number - base for number in index))
            arrays[name][where] = values
    return arrays


def _coordinates(posterior: Any, problems: list[Problem]) -> dict[str, np.ndarray]:
    """Return labels of axes as a file can have them; a problem more for each that is of another type."""
    coords = {}
    for name, values in posterior.coords.items():
        if name in _LEADING or values.dims != (name,):
            continue
        labels = np.asarray(values.values)
        if labels.dtype.kind == "O" and all(isinstance(label, str) for label in labels):
            labels = labels.astype(np.str_)
        if labels.dtype.kind not in _COORDINATE_KINDS:
            text = f"is of type {labels.dtype}, expected numbers or texts"
            problems.append(Problem(f"coordinate {name}", text, code="E-TYPE"))
        coords[str(name)] = labels
    return coords


def _group(model: Any, name: str) -> Any:
    """Return a group of InferenceData, or a child of a DataTree as a Dataset; None where there is none."""
    if _container_of(model) == "InferenceData":
        return getattr(model, name, None)
    return model.children[name].to_dataset() if name in model.children else None


def _numbers(name: str, values: Any, problems: list[Problem]) -> Array | None:
    """Return an array of numbers in float64; None, and a problem more, for anything else."""
    if values.dtype.kind == "O":
        text = "is an array of objects: ArviZ 0.x makes such ones, silently, of the nested form of ArviZ 1.x"
        remedy = "call `arviz.from_dict(posterior={...})`, or give a dictionary of arrays"
        problems.append(Problem(name, text, remedy, "E-TYPE"))
        return None
    if values.dtype.kind not in "iufb":
        problems.append(Problem(name, f"is of type {values.dtype}, expected real numbers", code="E-TYPE"))
        return None
    return np.asarray(values, dtype=np.float64)


def _read_mapping(model: Mapping[Any, Any], has_chains: bool | None) -> Contents:
    """Return a dictionary of arrays (C, T, ...) or (n, ...).

    Which of the two is stated by `has_chains`. Else arrays have chains where all agree in two axes, the first of which
    is the shorter one: there are fewer chains than draws in a chain, and fewer parameters than draws.
    """
    arrays = _arrays_of(model)
    if has_chains is None:
        _refuse_unequal_chains(arrays)
        leading = {array.shape[:2] for array in arrays.values()}
        (shape,) = leading if len(leading) == 1 else ((),)
        has_chains = len(shape) == 2 and shape[0] < shape[1]
    if not has_chains:
        arrays = {name: array[None] for name, array in arrays.items()}
    leading = {array.shape[:2] for array in arrays.values()}
    if len(leading) > 1 or len(next(iter(leading))) < 2:
        shapes = ", ".join(f"{name} {array.shape if has_chains else array.shape[1:]}" for name, array in arrays.items())
        expected = "chains and draws" if has_chains else "draws"
        text = f"variables do not agree in their {expected}: {shapes:.300}"
        remedy = "give arrays (chains, draws, ...), or (draws, ...) with `has_chains=False`"
        raise InputError("draws", text, remedy, "E-SHAPE")
    return Contents(arrays, MAPPING if has_chains else BARE_MAPPING)


def _arrays_of(model: Mapping[Hashable, Any]) -> dict[str, Array]:
    """Return the arrays of a dictionary in float64."""
    problems: list[Problem] = []
    arrays: dict[str, Array] = {}
    for name, values in model.items():
        if not isinstance(name, str) or not name:
            text = f"expected names of variables that are texts, found {name!r:.40}"
            problems.append(Problem("draws", text, code="E-TYPE"))
            continue
        try:
            array = np.asarray(values)
        except ValueError:
            array = np.empty(0, dtype=object)
        if (own := _numbers(name, array, problems)) is not None:
            arrays[name] = own
    if not model:
        problems.append(Problem("draws", "has no variables", code="E-NEEDED"))
    if problems:
        raise InputError(problems)
    return arrays


def _refuse_unequal_chains(arrays: Mapping[str, Array]) -> None:
    """Raise for arrays (C, T_1), (C, T_2), ... of as many chains that are not equally long.

    They could be C draws of vectors as well, but fewer than any method takes.
    """
    leading = {array.shape[:2] for array in arrays.values()}
    if len(leading) < 2 or any(len(shape) < 2 for shape in leading):
        return
    counts, lengths = zip(*leading, strict=True)
    if len(set(counts)) == 1 and counts[0] < MIN_CHAIN_LENGTH <= min(lengths):
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        text = f"variables do not agree in their draws: {shapes:.300}"
        remedy = "give arrays (chains, draws, ...) of one length, or state `has_chains=False`"
        raise InputError("draws", text, remedy, "E-SHAPE")


def other_groups(model: Any) -> dict[str, Any]:
    """Return all groups of InferenceData or a DataTree but `posterior`, as Datasets; none of other containers."""
    container = _container_of(model)
    if container not in ("InferenceData", "DataTree"):
        return {}
    names = model.groups() if container == "InferenceData" else model.children
    return {name: _group(model, name) for name in names if name != "posterior"}


def to_container(draws: Draws, groups: Mapping[str, Any] | None = None) -> Any:
    """Return draws in the container that they came in, with dims, coords and other groups."""
    if draws.container in (MAPPING, BARE_MAPPING):
        has_chains = draws.container == MAPPING
        return {
            name: values if has_chains else values.reshape(-1, *values.shape[2:])
            for name, values in draws.variables.items()
        }
    try:
        import xarray

        if draws.container == "InferenceData":
            arviz = _arviz()
    except ImportError as error:
        text = f"need {error.name}, which is not installed"
        remedy = "pip install 'consilience[draws]', or take fusion.draws.variables, which are plain arrays"
        raise UnsupportedError(f"draws in a {draws.container}", text, remedy, "E-EXTRA") from error
    chains, length = draws.shape
    dataset = xarray.Dataset(
        {name: ((*_LEADING, *draws.dims_of(name)), values) for name, values in draws.variables.items()},
        {
            "chain": np.arange(chains),
            "draw": np.arange(length),
            **{name: labels for name, labels in draws.coords.items() if name in draws.all_dims()},
        },
        dict(draws.attributes),
    )
    if draws.container == "Dataset":
        return dataset
    if draws.container == "DataTree":
        return xarray.DataTree.from_dict({"posterior": dataset, **(groups or {})})
    return arviz.InferenceData(posterior=dataset, **(groups or {}))


def _arviz() -> Any:
    """Return the arviz module; its import tells of a refactoring to come, which is no fault of the user."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz
    return arviz
