"""Evaluation of a fused network against a site's own on labelled data: accuracy, cross-entropy, paired differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.checks import AnyArray, Array, Labels
from consilience.core.evaluation import MIN_OBSERVATIONS, ClassScore, Evaluation, Score
from consilience.core.inputs import NamedInput
from consilience.core.scores import ScoreKind, paired_difference
from consilience.errors import FileFormatError, InputError, OptionError, Problem
from consilience.files.csv import read_csv
from consilience.files.labelled_arrays import read_class_labels, read_labelled_arrays
from consilience.files.npy import not_data
from consilience.files.safetensors_file import SafetensorsFile, as_file
from consilience.networks.entry_names import is_bookkeeping, renamed_like
from consilience.networks.files import read_network
from consilience.networks.fusion import NetworkFusion
from consilience.networks.module_inputs import as_tensor, refuse_unfit
from consilience.networks.module_outputs import ask, form_of
from consilience.networks.network import Network, to_numpy
from consilience.networks.parametrised_layers import parts_of_module, plain_module
from consilience.networks.symmetry.symmetry import Symmetry, trivial_symmetry
from consilience.networks.torch_modules import (
    aliases_of_module,
    arrays_of_module,
    evaluating,
    is_module,
    make_template,
    module_with,
    unwrapped,
)
from consilience.networks.weight_parts import find_parts, plain_arrays

if TYPE_CHECKING:
    from torch import Tensor, nn

_MAX_ARRAYS_NAMED = 5
"""Arrays that an error names, of each kind of problem. Chosen by hand for short messages."""


@dataclass(frozen=True, eq=False)
class LabeledInputs:
    """Inputs (n, ...) as a tensor, and the number of the class of each (n,)."""

    inputs: Tensor
    labels: Labels


_HELD_OUT = "use data that neither network was trained on; scores on a network's own training data favour that network"


def evaluate_networks(fused: NamedInput, local: NamedInput, data: Any, labels: Any, module: Any) -> Evaluation:
    """Compare a fused network with a site's own on the same labelled data.

    `module`, or a function that makes one, is of the architecture, for networks that came without one. Raises
    InputError for networks or data that do not fit, and OptionError for networks of files without a module.
    """
    template = make_template(module)
    modules = [_module(named, template) for named in (fused, local)]
    name = str(data) if isinstance(data, str | Path) else "data"
    if labels is None:
        from consilience.networks.evaluate_texts import compare_language_models, texts_of  # here, since it needs torch

        if (texts := texts_of(data, modules[0])) is not None:
            return compare_language_models(modules[0], modules[1], texts)
    rows = labeled_inputs(data, labels, modules[0])
    log_p_fused, log_p_local = (_log_probabilities(evaluated, rows, name) for evaluated in modules)
    return compare_networks(log_p_fused, log_p_local, rows.labels)


def _module(named: NamedInput, template: nn.Module | None) -> nn.Module:
    """Return a network, whatever form it came in, as a module."""
    model: Any = named.model.model if isinstance(named.model, NetworkFusion) else named.model
    if is_module(model):
        return unwrapped(model)
    name = named.label
    if isinstance(model, Network) and model.module is not None:
        return model.module
    if template is None:
        raise OptionError(name, "is a network without code", "give a module of its architecture (`module=`)")
    if named.file is not None:
        return module_of_file(named.file, template)
    if isinstance(model, Network):
        return module_of(model.arrays, template, name, model.symmetry.aliases)
    if isinstance(model, Mapping):  # the arrays of a fusion of files
        return module_of(model, template, name)
    raise InputError(name, f"is a {type(model).__name__}, expected a network as the other model", code="E-TYPE")


def module_of_file(where: Path | SafetensorsFile, template: nn.Module) -> nn.Module:
    """Return a copy of a module, in evaluation mode, with the arrays of a network file or checkpoint.

    Raises InputError, naming the arrays that are missing, unknown or not finite, and layers that cannot have the file's
    width.
    """
    file = as_file(where)
    network = read_network(file)
    aliases = {} if network.symmetry is None else network.symmetry.aliases
    return module_of(network.arrays, template, file.label, aliases)


def module_of(
    arrays: Mapping[str, AnyArray], template: nn.Module, name: str, aliases: Mapping[str, str] | None = None
) -> nn.Module:
    """Return a copy of a module, in evaluation mode, with other arrays; tied ones need one of their names only.

    Raises InputError, naming the arrays that do not fit.
    """
    state = arrays_of_module(template)
    arrays = renamed_like(arrays, state, name)
    known = parts_of_module(template)
    if set(arrays) != set(state) and (
        known or find_parts({key: tuple(v.shape) for key, v in arrays.items() if key not in state})
    ):
        plain = module_of(plain_arrays(arrays, name, known, state)[0], plain_module(template), name, aliases)
        return module_with(template, arrays_of_module(plain), Symmetry({}, ())).eval()
    complete = _completed(arrays, state, template, aliases or {})
    kind = type(template).__name__
    if state and complete and not any(key in state for key in complete):
        listed, wanted = (", ".join(list(keys)[:2]) for keys in (complete, state))
        text = f"has no array of {kind}: its own are {listed}, ..., those of {kind} {wanted}, ..."
        raise InputError(name, text, "give the module it was saved from", "E-MISMATCH")
    if problems := list(_array_problems(complete, state, kind, name)):
        raise InputError(problems)
    network = Network(complete, trivial_symmetry(complete), name, module=template)  # which refuses what is not finite
    return module_with(template, network.arrays, network.symmetry).eval()


def _completed(
    arrays: Mapping[str, AnyArray], state: Mapping[str, AnyArray], template: nn.Module, aliases: Mapping[str, str]
) -> dict[str, AnyArray]:
    """Return arrays under all their names in a module, those of tied ones too, with the module's bookkeeping."""
    main_names = aliases_of_module(template)
    # Bookkeeping that not every version of a library saves is the template's, or left out.
    complete = {k: v for k, v in arrays.items() if k in state or not is_bookkeeping(k, tuple(v.shape))}
    complete |= {k: v for k, v in state.items() if k not in complete and is_bookkeeping(k, tuple(v.shape))}
    # A tied array under any of its names is known under all of them.
    for key, main_name in (*main_names.items(), *aliases.items()):
        if main_name not in complete and key in complete:
            complete[main_name] = complete[key]
    return complete | {k: complete[main] for k, main in main_names.items() if k not in complete and main in complete}


def _array_problems(
    complete: Mapping[str, AnyArray], state: Mapping[str, AnyArray], kind: str, name: str
) -> Iterator[Problem]:
    """Yield the first arrays that are not those of a module of a kind, or have other numbers of axes."""
    for key in [key for key in state if key not in complete][:_MAX_ARRAYS_NAMED]:
        yield Problem(name, f"array {key} is missing, which {kind} has", code="E-NEEDED")
    for key in [key for key in complete if key not in state][:_MAX_ARRAYS_NAMED]:
        yield Problem(name, f"array {key} is not one of {kind}", "give the module it was saved from", "E-MISMATCH")
    # Widths may differ, since layers are resized; the number of axes may not.
    mismatched = [key for key in state if key in complete and state[key].ndim != complete[key].ndim]
    for key in mismatched[:_MAX_ARRAYS_NAMED]:
        text = f"array {key} has shape {tuple(complete[key].shape)}, but {tuple(state[key].shape)} in {kind}"
        yield Problem(name, text, code="E-SHAPE")


def labeled_inputs(data: Any, labels: Any, module: nn.Module) -> LabeledInputs:
    """Return inputs that a module takes, with the numbers of their classes.

    `data` are inputs (n, ...), or a file of them: .npz with x and y, .npy, or .csv; they are converted to the module's
    type. `labels` are numbers of classes (n,), from 0; the name of a column of a .csv; or a file with one a line, or
    .npy: by default those in the data's file. Raises InputError for data and labels that do not fit.
    """
    name, what = str(data) if isinstance(data, str | Path) else "data", "labels"
    class_numbers: Any = labels
    if isinstance(data, str | Path):
        values, column = _read(Path(data), labels)
        class_numbers = column if column is not None else labels
        if class_numbers is None:
            raise OptionError(name, "has no labels", "give a .npz with x and y, or the labels apart (`labels=`)")
    else:
        is_real = hasattr(data, "detach") and data.is_floating_point()  # of any precision, bfloat16 too
        values = to_numpy(data) if is_real else data.detach().cpu().numpy() if hasattr(data, "detach") else data
        if labels is None:
            text = "give the number of the class of every row"
            raise OptionError("labels", "networks are scored on labeled data", text)
    inputs = as_tensor(values, name, module)
    refuse_unfit(module, (inputs[:2],), name)
    if isinstance(class_numbers, str | Path):
        what = str(class_numbers)
        class_numbers = read_class_labels(Path(class_numbers), name, len(inputs), "labels")
    return LabeledInputs(inputs, _as_labels(class_numbers, len(inputs), what))


def _read(path: Path, labels: Any) -> tuple[Any, Any]:
    """Return the inputs in a file, and their labels where it has them."""
    if path.suffix.lower() != ".csv":
        if path.suffix.lower() not in (".npy", ".npz"):
            raise FileFormatError(not_data(path, ".npz, .npy or .csv"))
        labelled = read_labelled_arrays(path)
        return labelled.inputs, None if labels is not None else labelled.labels
    table = read_csv(path, () if labels is None else (str(labels),))
    column = None if labels is None else table.column(str(labels))
    count = len(table.rows[0])
    # Every column but that of the labels.
    inputs = [number for number in range(count) if column is None or (table.header or ())[number] != str(labels)]
    return table.numbers(inputs), column


def _as_labels(labels: Any, count: int, what: str) -> Labels:
    """Return the number of every row's class, from 0."""
    values = labels.detach().cpu().numpy() if hasattr(labels, "detach") else labels
    try:
        numbers = np.asarray(values)
        as_float = numbers.astype(np.float64)
    except (TypeError, ValueError) as error:
        text = "expected the numbers of classes, from 0, as the network's outputs"
        raise InputError(what, text, code="E-TYPE") from error
    if as_float.shape != (count,):
        raise InputError(what, f"expected one for each of {count} inputs, found shape {as_float.shape}", code="E-SHAPE")
    bad = np.flatnonzero(~(np.isfinite(as_float) & (as_float >= 0) & (as_float == np.floor(as_float))))
    if len(bad):
        text = f"row {bad[0]}, counted from 0: expected the number of a class, from 0, found {numbers[bad[0]]}"
        raise InputError(what, text, code="E-NUMBER")
    return as_float.astype(np.int64)


def _log_probabilities(module: nn.Module, rows: LabeledInputs, name: str) -> Array:
    """Return the logarithms of a network's class probabilities (n, C), in float64."""
    import torch

    from consilience.networks.example import BATCH_SIZE

    refuse_unfit(module, (rows.inputs[:2],), name)
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    parts = []
    with evaluating(module):
        for start in range(0, len(rows.labels), BATCH_SIZE):
            batch = rows.inputs[start : start + BATCH_SIZE]
            logits = ask(module, batch.to(device))
            if not isinstance(logits, torch.Tensor) or logits.ndim != 2 or len(logits) != len(batch):
                text = f"expected logits of shape ({len(batch)}, classes), the network gave {form_of(logits)}"
                raise InputError(name, text, code="E-SHAPE")
            parts.append(torch.log_softmax(logits.to(torch.float64), dim=1).cpu())
    log_p: Array = torch.cat(parts).numpy()  # (n, C)
    if not np.isfinite(log_p).all():
        row = int(np.flatnonzero(~np.isfinite(log_p).all(axis=1))[0])
        raise InputError(name, f"row {row}, counted from 0: the network's answer is not finite", code="E-NUMBER")
    if int(rows.labels.max()) >= log_p.shape[1]:
        text = f"found {int(rows.labels.max())}, but the network has {log_p.shape[1]} classes"
        raise InputError("labels", text, code="E-SHAPE")
    return log_p


def compare_networks(fused: Array, own: Array, labels: Labels, kind: ScoreKind = ScoreKind.PLUG_IN) -> Evaluation:
    """Return how two networks compare by their log probabilities.

    `fused` and `own` are log probabilities (N, C) of the fused network and the site's own, `labels` (N,) true classes.
    Raises InputError when the networks have different numbers of classes.
    """
    log_probabilities = [fused, own]
    if fused.shape != own.shape:
        n_classes = [values.shape[1] for values in log_probabilities]
        text = f"has {n_classes[1]} classes, expected {n_classes[0]} as the fused model"
        raise InputError("your own model", text, code="E-SHAPE")
    correct = [100.0 * (values.argmax(axis=1) == labels) for values in log_probabilities]  # (N,) each, in percent
    losses = [-values[np.arange(len(labels)), labels] for values in log_probabilities]  # (N,) each, in nats
    classes = []
    for label in np.unique(labels):
        in_class = labels == label
        accuracies = [float(values[in_class].mean()) for values in correct]
        classes.append(ClassScore(int(label), int(np.sum(in_class)), *accuracies))
    return compare_rows(correct, losses, kind, tuple(classes))


def compare_rows(
    correct: Sequence[Array],
    losses: Sequence[Array],
    kind: ScoreKind = ScoreKind.PLUG_IN,
    classes: tuple[ClassScore, ...] = (),
    what: str = "network",
    unit: str = "percentage points of accuracy",
) -> Evaluation:
    """Return how a fused network and another compare, row by row.

    By the percentages of each row's answers that are right (N,), and by losses in nats (N,).
    """
    ones = np.ones(len(losses[0]))
    notes = [_HELD_OUT]
    if 1 < len(ones) < MIN_OBSERVATIONS:
        notes.append(f"only {len(ones)} rows: the interval is rough")
    return Evaluation(
        (
            Score("accuracy", "%", True, float(correct[0].mean()), float(correct[1].mean()), kind),
            Score("cross-entropy", "nats", False, float(losses[0].mean()), float(losses[1].mean()), kind),
        ),
        paired_difference(correct[0], correct[1], ones),
        tuple(notes),
        what=what,
        unit=unit,
        loss_difference=paired_difference(losses[0], losses[1], ones),
        classes=classes,
    )
