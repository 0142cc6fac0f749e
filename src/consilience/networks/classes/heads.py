"""Heads of classifiers: finding the last linear layer, its rows by counts of classes, and its regression on features.

The head is the linear layer whose outputs are the network's logits, z = W h + b with h (d,) the last features. Where a
constant is added to all rows of (W, b), no probability changes; so rows of several networks are centred, their mean
over classes subtracted, before they are averaged. With w_jc the share of site j in class c (``classes.shares``), rows
by counts of classes are

    W_c = sum_j w_jc W_jc,      b_c = sum_j w_jc b_jc,

the block-diagonal Fisher merge of a softmax head, whose information on row c grows with n_jc. It leaves out what ties
rows of two classes together, and that the features of sites differ: it is a candidate, and never better by rule.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

import torch
from array_api_compat import array_namespace
from numpy.typing import ArrayLike
from torch import Tensor, nn

from consilience.checks import AnyArray
from consilience.errors import InputError
from consilience.networks.classes.shares import as_class_counts
from consilience.networks.example import Example, as_example
from consilience.networks.module_outputs import answer_tensor
from consilience.networks.repair.channel_statistics import write_parameter
from consilience.networks.repair.regression import ActivationMoments, require_ridge
from consilience.networks.torch_modules import evaluating, seeded_torch

_Module = TypeVar("_Module", bound=nn.Module)

HEAD_RIDGE = 1e-3
"""Ridge of `refit_head`, relative to the mean square of a feature; that of heads fitted in closed form on 5 settings of
images, where ridge and discriminant analysis were within 2 points of each other. Other values were not compared."""

_PROBE_ROWS = 4
"""Inputs by which `refit_head` finds the head: two would do."""
_BATCH_ROWS = 256
"""Inputs that pass through a network at once, for bounded memory. Chosen by hand."""


def find_head(module: nn.Module, inputs: Any) -> str | None:
    """Return the path of the linear layer whose outputs are a network's logits; None where there is none.

    The network is asked twice, in evaluation mode: once for the layers whose outputs are its answer up to a reshape,
    and once with other values in their place, which it must answer too. So a softmax or any other function of the
    layer's outputs is noticed, whatever its code. Layers that run several times, or whose weights other layers share,
    are no heads: other rows would change more than the logits.

    Parameters
    ----------
    module : Module
        The network; it is left as it is.
    inputs : Tensor, tuple or dict
        Inputs that it takes: a tensor, a tuple of arguments, or a dict of keyword arguments.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    >>> find_head(net, torch.zeros(2, 4)), find_head(nn.Sequential(net, nn.Softmax(1)), torch.zeros(2, 4))
    ('2', None)
    """
    layers = {
        path: layer
        for path, layer in module.named_modules()
        if isinstance(layer, nn.Linear) and isinstance(layer._parameters.get("weight"), nn.Parameter)
    }
    outputs: dict[str, list[Tensor]] = {path: [] for path in layers}
    with evaluating(module), seeded_torch():
        with ExitStack() as stack:
            for path, layer in layers.items():
                stack.enter_context(layer.register_forward_hook(partial(_record, outputs[path])))
            logits = _call(module, inputs)
        if not isinstance(logits, Tensor) or logits.ndim < 1:
            return None
        # The last of them, since a layer of one channel may come before it unchanged.
        for path, calls in reversed(outputs.items()):
            if len(calls) == 1 and _is_reshape(calls[0], logits) and not _is_shared(module, layers[path]):
                replaced = torch.randn(calls[0].shape, dtype=torch.float64).to(calls[0])
                with layers[path].register_forward_hook(lambda *_, values=replaced: values):
                    answer = _call(module, inputs)
                if isinstance(answer, Tensor) and _is_reshape(replaced, answer):
                    return path
    return None


def centred_head(weight: AnyArray, bias: AnyArray | None = None) -> tuple[AnyArray, AnyArray | None]:
    """Return a head's rows less their mean over classes, which changes no probability.

    Parameters
    ----------
    weight : array of shape (C, d)
        Rows of any array library.
    bias : array of shape (C,), optional
        Biases; a head without them has none afterwards.

    Raises
    ------
    InputError
        For a single row, which is no softmax.
    """
    if weight.shape[0] < 2:
        raise InputError("head", f"expected rows of 2 or more classes, found {weight.shape[0]}", code="E-SHAPE")
    xp = array_namespace(weight)
    centred = weight - xp.mean(weight, axis=0, keepdims=True)
    return centred, None if bias is None else bias - xp.mean(bias)


def class_heads(networks: Sequence[Mapping[str, AnyArray]], head: str, shares: ArrayLike) -> dict[str, AnyArray]:
    """Return the arrays of a head whose rows are averaged by the sites' shares in their classes.

    Parameters
    ----------
    networks : sequence of mappings of str to array
        Arrays of the J networks by name, their units in one order (`NetworkFusion.aligned`).
    head : str
        Path of the head: `find_head`.
    shares : array_like of shape (J, C)
        w_jc: `shares.class_shares`.

    Returns
    -------
    dict of str to array
        The head's weight (C, d), and its bias (C,) where the networks have one, by their names in the networks;
        centred, in at least 32 bits.

    Raises
    ------
    InputError
        For networks without such a head, and shares that are not one for each network and row.

    Examples
    --------
    >>> import numpy as np
    >>> sites = [{"2.weight": np.array([[1.0], [-1.0]])}, {"2.weight": np.array([[3.0], [-3.0]])}]
    >>> class_heads(sites, "2", [[1.0, 0.5], [0.0, 0.5]])["2.weight"].tolist()
    [[1.0], [-2.0]]
    """
    w = as_class_counts(shares, "shares")  # (J, C)
    weight_name, bias_name = (f"{head}.{name}" if head else name for name in ("weight", "bias"))
    if missing := [number for number, arrays in enumerate(networks) if weight_name not in arrays]:
        raise InputError(f"model {missing[0]}", f"has no array {weight_name}, the head's rows", code="E-NEEDED")
    has_bias = bias_name in networks[0]
    heads = [
        centred_head(_widened(arrays[weight_name]), _widened(arrays[bias_name]) if has_bias else None)
        for arrays in networks
    ]
    if w.shape != (len(networks), heads[0][0].shape[0]):
        text = f"expected {len(networks)} networks by {heads[0][0].shape[0]} classes, found {w.shape}"
        raise InputError("shares", text, code="E-SHAPE")
    rows = [_beside(of_site, weight) for of_site, (weight, _) in zip(w, heads, strict=True)]  # (C,) each
    weights = [row[:, None] * weight for row, (weight, _) in zip(rows, heads, strict=True)]
    fused = {weight_name: sum(weights[1:], start=weights[0])}
    if has_bias:
        biases = [row * bias for row, (_, bias) in zip(rows, heads, strict=True)]
        fused[bias_name] = sum(biases[1:], start=biases[0])
    return fused


def refit_head(
    module: _Module, inputs: Any, targets: Tensor, ridge: float = HEAD_RIDGE, *, is_softmax: bool = True
) -> _Module:
    """Return a copy of a network whose head is the ridge regression of target logits on its own last features.

    The minimiser of mean |W h + b - y|^2 + ridge * mean_i E[h_i^2] * |W - W_0|^2, with W_0 the rows as they were; all
    other layers stay. Under a softmax, targets and rows are centred first: their mean over classes is subtracted.

    Parameters
    ----------
    module : Module
        The network; it is left as it is, and asked in evaluation mode.
    inputs : Tensor, tuple or dict
        n inputs, as the network takes them.
    targets : Tensor of shape (n, ..., C)
        Logits that it should answer to them.
    ridge : float, optional
        Strength of the shrinkage towards the rows as they were. Default: 0.001.
    is_softmax : bool, optional
        Whether a constant added to all outputs of an input changes nothing: not so for regressions and for the log
        odds of two classes. Default: True.

    Raises
    ------
    InputError
        For a network without a head, and for targets of another shape or with values that are not finite.
    OptionError
        For a ridge that is no number, or negative.
    """
    require_ridge(ridge)
    path = find_head(module, next(_batches(inputs, _PROBE_ROWS)))
    if path is None:
        text = "has no last linear layer whose outputs are its logits"
        raise InputError(type(module).__name__, text, "leave its head as it is", "E-NEEDED")
    network = copy.deepcopy(module)
    layer: Any = network.get_submodule(path)
    features = _last_features(network, layer, inputs)  # (rows, d)
    n_classes = layer.weight.shape[0]
    if targets.shape[-1] != n_classes or targets.numel() != len(features) * n_classes:
        text = f"expected {len(features)} rows of {n_classes} logits, as the network has, found {tuple(targets.shape)}"
        raise InputError("targets", text, code="E-SHAPE")
    wanted = targets.detach().to("cpu", torch.float64).reshape(-1, n_classes)
    if not bool(torch.isfinite(wanted).all()):
        raise InputError("targets", "have NaN or infinite values", "give logits, not logarithms of zero", "E-NUMBER")
    initial = layer.weight.detach().to("cpu", torch.float64)
    if is_softmax:
        wanted = wanted - wanted.mean(dim=1, keepdim=True)
        initial, _ = centred_head(initial)
    h_mean, y_mean = features.mean(dim=0), wanted.mean(dim=0)
    h = features - h_mean
    moments = ActivationMoments(h_mean, y_mean, h.T @ h / len(h), (wanted - y_mean).T @ h / len(h))
    weight, bias = moments.solve(initial, layer.bias is not None, ridge)
    write_parameter(layer.weight, weight)
    if layer.bias is not None:
        write_parameter(layer.bias, bias)
    return network


def _last_features(network: nn.Module, layer: nn.Module, inputs: Any) -> Tensor:
    """Return what a layer reads, a row for each of its outputs (rows, d), float64 on the CPU."""
    rows: list[Tensor] = []

    def record(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        features = arguments[0]
        rows.append(features.detach().reshape(-1, features.shape[-1]).to("cpu", torch.float64))

    with evaluating(network), seeded_torch(), layer.register_forward_pre_hook(record):
        for batch in _batches(inputs, _BATCH_ROWS):
            _call(network, batch)
    return torch.cat(rows)


def _batches(inputs: Any, n_rows: int) -> Iterator[Any]:
    """Yield inputs some rows at a time: tensors of one length, in a tuple or dict or alone; others all at once."""
    if isinstance(inputs, Tensor):
        yield from ((batch,) for (batch,) in _batches((inputs,), n_rows))
        return
    if isinstance(inputs, Example):
        yield from (inputs[start : start + n_rows] for start in range(0, len(inputs), n_rows))
        return
    names = list(inputs) if isinstance(inputs, Mapping) else list(range(len(inputs)))
    lengths = {len(inputs[name]) if isinstance(inputs[name], Tensor) and inputs[name].ndim else 0 for name in names}
    if len(lengths) != 1 or 0 in lengths:
        yield inputs
        return
    for start in range(0, lengths.pop(), n_rows):
        rows = {name: inputs[name][start : start + n_rows] for name in names}
        yield rows if isinstance(inputs, Mapping) else tuple(rows.values())


def _call(module: nn.Module, inputs: Any) -> Any:
    """Return what a module answers to a tensor, a tuple of arguments, or a dict of keyword arguments."""
    return answer_tensor(as_example(inputs).call(module))


def _record(calls: list[Tensor], _module: nn.Module, _arguments: Any, output: Tensor) -> None:
    calls.append(output.detach().clone())  # activations may work in place


def _is_reshape(outputs: Tensor, answer: Tensor) -> bool:
    """Return whether an answer (..., C), or (n,) of one number each, has a layer's outputs (..., C) in their order."""
    n_answered = 1 if answer.ndim == 1 else answer.shape[-1]
    return (
        outputs.shape[-1] == n_answered
        and outputs.numel() == answer.numel()
        and bool(torch.equal(outputs.reshape(-1), answer.reshape(-1)))
    )


def _is_shared(module: nn.Module, layer: nn.Linear) -> bool:
    """Return whether another layer has the parameters of this one, as tied embeddings have."""
    own = {id(parameter) for parameter in layer.parameters()}
    return any(
        id(parameter) in own
        for other in module.modules()
        if other is not layer
        for parameter in other.parameters(recurse=False)
    )


def _widened(values: AnyArray) -> AnyArray:
    """Return an array in at least 32 bits."""
    xp = array_namespace(values)
    return xp.astype(values, xp.float32) if values.dtype.itemsize < 4 else values


def _beside(row: Any, values: AnyArray) -> AnyArray:
    """Return a row of numbers in the library, precision and place of another array."""
    xp = array_namespace(values)
    return xp.asarray(row, dtype=values.dtype, device=values.device)
