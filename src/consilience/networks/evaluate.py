"""Score a fused network and a site's own on labeled data: accuracy, cross-entropy, and paired differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.checks import Array, Labels
from consilience.core.inputs import NamedInput
from consilience.errors import FileFormatError, InputError, OptionError
from consilience.files.csv import read_csv
from consilience.files.labelled_arrays import read_labelled_arrays
from consilience.files.npy import read_array
from consilience.files.safetensors_file import SafetensorsFile, as_file
from consilience.networks.evaluation import NetworkEvaluation, compare_networks
from consilience.networks.files import read_network
from consilience.networks.fusion import NetworkFusion
from consilience.networks.module_inputs import as_tensor, refuse_unfit
from consilience.networks.network import Network
from consilience.networks.symmetry.axes import Layout, fixed_axes
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.torch_modules import is_module, module_with

if TYPE_CHECKING:
    from torch import Tensor, nn

_BATCH = 1024
_FEW = 5


@dataclass(frozen=True, eq=False)
class LabeledInputs:
    """Inputs (N, ...) as a tensor, and the number of the class of each (N,)."""

    inputs: Tensor
    labels: Labels


def evaluate_networks(fused: NamedInput, local: NamedInput, data: Any, labels: Any, module: Any) -> NetworkEvaluation:
    """Compare a fused network with a site's own; see ``evaluate`` for what it takes.

    Raises
    ------
    InputError
        For networks or data that do not fit.
    OptionError
        For networks of files without a module to load them into.
    """
    template = as_template(module)
    both = [_module(one, template) for one in (fused, local)]
    name = str(data) if isinstance(data, str | Path) else "data"
    rows = labeled_inputs(data, labels, both[0])
    theirs, mine = (_log_probabilities(one, rows, name) for one in both)
    return compare_networks(theirs, mine, rows.labels)


def as_template(module: Any) -> nn.Module | None:
    """Return what the user gave as module: one, or what a function makes.

    Raises
    ------
    OptionError
        For anything else.
    """
    template = module if module is None or is_module(module) or not callable(module) else module()
    if template is not None and not is_module(template):
        raise OptionError(f"module: expected a torch module or what makes one, found {type(template).__name__}")
    return template


def _module(one: NamedInput, template: nn.Module | None) -> nn.Module:
    """Return a network, whatever form it came in, as a module."""
    model: Any = one.model.model if isinstance(one.model, NetworkFusion) else one.model
    if is_module(model):
        module: nn.Module = model
        return module
    name = one.label
    if template is None:
        raise OptionError(f"{name}: is a network without code; give a module of its architecture (module=, --module)")
    if one.file is not None:
        return module_of_file(one.file, template)
    if isinstance(model, Network):
        return module_of(model.arrays, template, name, model.symmetry.aliases)
    if isinstance(model, Mapping):  # the arrays of a fusion of files
        return module_of(model, template, name)
    raise InputError(f"{name}: is a {type(model).__name__}, expected a network as the other model")


def module_of_file(where: Path | SafetensorsFile, template: nn.Module) -> nn.Module:
    """Return a copy of a module, in evaluation mode, with the arrays of a network file or checkpoint.

    Raises
    ------
    InputError
        Naming the arrays that are missing, unknown or not finite, and layers that cannot have the file's width.
    """
    file = as_file(where)
    network = read_network(file)
    aliases = {} if network.symmetry is None else network.symmetry.aliases
    return module_of(network.arrays, template, file.label, aliases)


def module_of(
    arrays: Mapping[str, Any], template: nn.Module, name: str, aliases: Mapping[str, str] | None = None
) -> nn.Module:
    """Return a copy of a module, in evaluation mode, with other arrays; tied ones need one of their names only.

    Raises
    ------
    InputError
        Naming the arrays that do not fit.
    """
    own = template.state_dict()
    first: dict[int, str] = {}
    tied = {key: first.setdefault(id(one), key) for key, one in template.named_parameters(remove_duplicate=False)}
    given = dict(arrays)
    for key, one in (*tied.items(), *(aliases or {}).items()):
        if one not in given and key in given:
            given[one] = given[key]
    given |= {key: given[one] for key, one in tied.items() if key not in given and one in given}
    kind = type(template).__name__
    missing, unknown = [key for key in own if key not in given], [key for key in given if key not in own]
    problems = [f"{name}: array {key} is missing, which {kind} has" for key in missing[:_FEW]]
    problems += [
        f"{name}: array {key} is not one of {kind}; give the module it was saved from" for key in unknown[:_FEW]
    ]
    axes = [key for key in own if key in given and own[key].ndim != given[key].ndim]
    problems += [
        f"{name}: array {key} has shape {tuple(given[key].shape)}, but {tuple(own[key].shape)} in {kind}"
        for key in axes[:_FEW]
    ]
    if problems:
        raise InputError(problems)
    layouts = {key: Layout(fixed_axes(tuple(values.shape))) for key, values in given.items()}
    network = Network(given, Symmetry(layouts, ()), name)  # which refuses what is not finite
    return module_with(template, network.arrays, network.symmetry).eval()


def labeled_inputs(data: Any, labels: Any, module: nn.Module) -> LabeledInputs:
    """Return inputs that a module takes, with the numbers of their classes.

    Parameters
    ----------
    data
        An array or tensor (N, ...), or a file: .npz with x and y, .npy, or .csv.
    labels
        Numbers of classes (N,), from 0; the name of a column of a .csv; a file with one a line, or .npy; None where the
        data have them.
    module
        A network that is to take the inputs.

    Raises
    ------
    InputError
        For data and labels that do not fit.
    """
    name, what = str(data) if isinstance(data, str | Path) else "data", "labels"
    known: Any = labels
    if isinstance(data, str | Path):
        values, column = _read(Path(data), labels)
        known = column if column is not None else labels
        if known is None:
            raise OptionError(f"{name}: has no labels; give a .npz with x and y, or the labels apart (--labels)")
    else:
        values = data.detach().cpu().numpy() if hasattr(data, "detach") else data
        if labels is None:
            raise OptionError("labels: networks are scored on labeled data; give the number of the class of every row")
    if isinstance(known, str | Path):
        what = str(known)
        known = _labels_of_file(Path(known), name)
    inputs = as_tensor(values, name, module)
    refuse_unfit(module, (inputs[:2],), name)
    return LabeledInputs(inputs, _as_labels(known, len(inputs), what))


def _read(path: Path, labels: Any) -> tuple[Any, Any]:
    """Return the inputs in a file, and their labels where it has them."""
    if path.suffix.lower() != ".csv":
        if path.suffix.lower() not in (".npy", ".npz"):
            raise FileFormatError(f"{path}: expected a file named .npz, .npy or .csv")
        found = read_labelled_arrays(path)
        return found.inputs, None if labels is not None else found.labels
    table = read_csv(path, () if labels is None else (str(labels),))
    column = None if labels is None else table.column(str(labels))
    count = len(table.rows[0])
    places = [place for place in range(count) if column is None or (table.header or ())[place] != str(labels)]
    return table.numbers(places), column


def _labels_of_file(path: Path, data: str) -> Any:
    try:
        there = path.exists()
    except (OSError, ValueError):  # a name that no file can have
        there = False
    if not there:
        raise InputError(f"labels: {str(path)!r} is neither a column of {data} nor a file")
    if path.suffix.lower() in (".npy", ".npz"):
        return read_array(path)
    table = read_csv(path)
    if len(table.rows[0]) != 1:
        raise InputError(f"{path}: has {len(table.rows[0])} columns, expected one: the class of every row")
    return [cell.strip() for (cell,) in table.rows]


def _as_labels(labels: Any, count: int, what: str) -> Labels:
    """Return the number of every row's class, from 0."""
    values = labels.detach().cpu().numpy() if hasattr(labels, "detach") else labels
    try:
        numbers = np.asarray(values)
        found = numbers.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what}: expected the numbers of classes, from 0, as the network's outputs") from error
    if found.shape != (count,):
        raise InputError(f"{what}: expected one for each of {count} inputs, found shape {found.shape}")
    bad = np.flatnonzero(~(np.isfinite(found) & (found >= 0) & (found == np.floor(found))))
    if len(bad):
        raise InputError(
            f"{what}: row {bad[0]}, counted from 0: expected the number of a class, from 0, found {numbers[bad[0]]}"
        )
    return found.astype(np.int64)


def _log_probabilities(module: nn.Module, rows: LabeledInputs, name: str) -> Array:
    """Return the logarithms of a network's class probabilities (N, C), in float64."""
    import torch

    from consilience.networks.landscape.evaluation import evaluation_mode

    refuse_unfit(module, (rows.inputs[:2],), name)
    place = next((one.device for one in module.parameters()), torch.device("cpu"))
    parts = []
    with torch.no_grad(), evaluation_mode(module):
        for start in range(0, len(rows.labels), _BATCH):
            batch = rows.inputs[start : start + _BATCH]
            logits = module(batch.to(place))
            if not isinstance(logits, torch.Tensor) or logits.ndim != 2 or len(logits) != len(batch):
                found = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
                raise InputError(f"{name}: expected logits of shape ({len(batch)}, classes), the network gave {found}")
            parts.append(torch.log_softmax(logits.to(torch.float64), dim=1).cpu())
    found_all: Array = torch.cat(parts).numpy()
    if not np.isfinite(found_all).all():
        row = int(np.flatnonzero(~np.isfinite(found_all).all(axis=1))[0])
        raise InputError(f"{name}: row {row}, counted from 0: the network's answer is not finite")
    if int(rows.labels.max()) >= found_all.shape[1]:
        raise InputError(f"labels: found {int(rows.labels.max())}, but the network has {found_all.shape[1]} classes")
    return found_all
