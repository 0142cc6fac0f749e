"""File format of Bayesian networks: means and variances of all weights, prior, classes, symmetry and provenance.

An ordinary safetensors file: arrays ``mean/NAME`` and ``variance/NAME`` for every parameter of a mean-field posterior
q(theta) = prod_i N(theta_i | m_i, v_i), and one JSON document in the header's metadata, format "consilience-bayesian":
names in order, the prior, the classes, which axes move together, how the file came to be. Buffers of the module are no
parameters, so they are not in it. `BayesianNetwork` checks the values (finite, variances positive), not the format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from consilience.checks import Json
from consilience.errors import FileFormatError, InputError, Problem
from consilience.files.arrays import storable_arrays
from consilience.files.document import BAYESIAN
from consilience.files.format import Format, Record
from consilience.files.safetensors_file import SafetensorsFile, TensorHeader
from consilience.files.schemas import Chunked, FiniteJSON, StrictModel
from consilience.networks.gaussian.network import MEAN, VARIANCE, BayesianNetwork
from consilience.networks.symmetry.document import symmetry_from_json
from consilience.networks.symmetry.symmetry import Symmetry, symmetry_to_json

_VERSION = 1
_REMEDY = "write it with consilience.save"
_FLOAT_DTYPES = ("float64", "float32", "float16", "bfloat16")
_MAX_PROBLEMS = 5
"""Problems that an error lists; of more, the number is stated. Chosen by hand for short messages."""

Variance = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class BayesianHeader(StrictModel):
    """The JSON document in the header of a Bayesian network's file; `symmetry_from_json` checks the symmetry."""

    format: Literal["consilience-bayesian"]
    format_version: Literal[1]
    library_version: str
    parameters: Chunked[list[str]]
    prior_variances: Chunked[dict[str, Variance] | None]
    classes: Chunked[list[str] | None]
    symmetry: dict[str, Any] | None
    provenance: FiniteJSON | None
    n_observations: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


@dataclass(frozen=True, eq=False)
class BayesianSummary:
    """Header of a Bayesian network's file, read without its tensors."""

    header: BayesianHeader  # the document
    shapes: dict[str, tuple[int, ...]]  # by parameter
    # By parameter, types by NumPy's and torch's name.
    mean_dtypes: dict[str, str]
    variance_dtypes: dict[str, str]
    symmetry: Symmetry | None  # which axes of the parameters move together, where it is known
    units: dict[str, int]  # number of units by group, by the shapes; empty without a symmetry

    @property
    def weights(self) -> int:
        """Number of weights, each of which has a mean and a variance."""
        return sum(prod(shape) for shape in self.shapes.values())


def write_bayesian(
    path: Path, bnn: BayesianNetwork, symmetry: Symmetry | None = None, provenance: Mapping[str, Json] | None = None
) -> None:
    """Write a Bayesian network, whole or not at all; the same network gives the same bytes from any library.

    `symmetry` is of its parameters, and of nothing else. Raises InputError when the path cannot be written, an array
    cannot be stored, or the document would not be one that is read: a symmetry of other arrays, provenance that is not
    made of JSON values.
    """
    fields = {
        "classes": bnn.classes,
        **({} if bnn.n_observations is None else {"n_observations": float(bnn.n_observations)}),
        "parameters": list(bnn.means),
        "prior_variances": bnn.prior,
        "provenance": None if provenance is None else dict(provenance),
        "symmetry": None if symmetry is None else symmetry_to_json(symmetry),
    }
    arrays = {f"{MEAN}{name}": values for name, values in bnn.means.items()}
    arrays |= {f"{VARIANCE}{name}": values for name, values in bnn.variances.items()}
    BAYESIAN_FILES.write(path, fields, storable_arrays(path, arrays))


def read_bayesian_summary(where: Path | SafetensorsFile) -> BayesianSummary:
    """Return what the header of a Bayesian network's file says.

    Raises FileFormatError for a file that is no Bayesian network of a version that this library reads, whose tensors
    are not a mean and a variance for each of its parameters, or with a symmetry that is not valid. Raises InputError
    for a symmetry of other arrays.
    """
    summary: BayesianSummary = BAYESIAN_FILES.read_prepared(where)
    return summary


def _make(file: SafetensorsFile, summary: BayesianSummary, arrays: dict[str, Any]) -> tuple[BayesianNetwork, Record]:
    """Return the network in a file, of what its header says and its tensors, with its provenance."""
    header = summary.header
    means, variances = ({name: arrays[f"{what}{name}"] for name in header.parameters} for what in (MEAN, VARIANCE))
    with np.errstate(over="ignore", invalid="ignore"):  # infinities are reported as an error
        bnn = BayesianNetwork(
            None,
            means,
            variances,
            header.prior_variances,
            None if header.classes is None else tuple(header.classes),
            summary.symmetry,
            file.label,
            file.digest,
            header.n_observations,
        )
    return bnn, header.provenance


def _summary(file: SafetensorsFile | str, header: BayesianHeader, tensors: TensorHeader) -> BayesianSummary:
    """Return a document and the tensors with it as a summary, checked against each other."""
    where, shapes, dtypes = str(file), tensors.shapes, tensors.dtypes
    problems = list(_name_problems(header)) or list(_tensor_problems(header.parameters, shapes, dtypes))
    if problems:
        more = (
            [Problem(where, f"{len(problems) - _MAX_PROBLEMS} more such problems")]
            if len(problems) > _MAX_PROBLEMS
            else []
        )
        raise FileFormatError([Problem(where, f"{problem}", _REMEDY) for problem in problems[:_MAX_PROBLEMS]] + more)
    parameter_shapes = {name: shapes[MEAN + name] for name in header.parameters}
    symmetry = None if header.symmetry is None else symmetry_from_json(header.symmetry, where)
    return BayesianSummary(
        header,
        parameter_shapes,
        {name: dtypes[MEAN + name] for name in parameter_shapes},
        {name: dtypes[VARIANCE + name] for name in parameter_shapes},
        symmetry,
        {} if symmetry is None else _units(where, symmetry, parameter_shapes),
    )


def _name_problems(header: BayesianHeader) -> Iterator[str]:
    """Yield what is wrong with the names that a document gives."""
    if not header.parameters:
        yield "has no parameters"
    for what, names in (("parameter", header.parameters), ("class", header.classes or [])):
        yield from (f"{what} {name!r} stands twice" for name, count in Counter(names).items() if count > 1)
    if header.prior_variances is not None:
        parameters, with_prior = set(header.parameters), set(header.prior_variances)
        yield from (f"parameter {name!r} has no prior variance" for name in sorted(parameters - with_prior))
        yield from (f"{name!r} has a prior variance, but is no parameter" for name in sorted(with_prior - parameters))


def _tensor_problems(
    names: Sequence[str], shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str]
) -> Iterator[str]:
    """Yield what makes tensors other than a mean and a variance for each parameter."""
    expected = {what + name for name in names for what in (MEAN, VARIANCE)}
    yield from (f"tensor {tensor!r} is of no parameter" for tensor in sorted(set(shapes) - expected))
    for name in names:
        mean, variance = MEAN + name, VARIANCE + name
        missing = [tensor for tensor in (mean, variance) if tensor not in shapes]
        yield from (f"parameter {name!r} has no tensor {tensor!r}" for tensor in missing)
        if missing:
            continue
        if shapes[mean] != shapes[variance]:
            yield f"tensor {variance!r} has shape {shapes[variance]}, expected {shapes[mean]} as {mean!r}"
        for tensor in (mean, variance):
            if dtypes[tensor] not in _FLOAT_DTYPES:
                yield f"tensor {tensor!r} has type {dtypes[tensor]}, expected one of {', '.join(_FLOAT_DTYPES)}"


def _units(where: str, symmetry: Symmetry, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Return the number of units by group."""
    refuse_tied_names(symmetry, shapes, where)
    return symmetry.units(shapes, where)


def refuse_tied_names(symmetry: Symmetry, names: Collection[str], where: str) -> None:
    """Raise for tied parameters under another of their names than the symmetry has."""
    if problems := [
        Problem(where, f"parameter {alias} is {name} by another name (tied weights)", "give it under that name only")
        for alias, name in symmetry.aliases.items()
        if alias in names
    ]:
        raise InputError(problems[:_MAX_PROBLEMS])


BAYESIAN_FILES = Format(
    BAYESIAN,
    _VERSION,
    BayesianHeader,
    "a file of a Bayesian network",
    _make,
    prepare=_summary,
    remedy=_REMEDY,
    in_order="symmetry",
    is_checked_when_written=True,
)
"""The format; the keys of the symmetry keep their order, in which methods sum."""
read_bayesian = BAYESIAN_FILES.load
"""Returns the Bayesian network in a file, everything checked, without a module and its buffers."""
