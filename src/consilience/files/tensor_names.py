"""What names and types of tensors say: weights packed by quantisation, and the state of an optimiser.

Packed weights are integers or numbers of 4 to 8 bits whose scales, zeros or codebooks stand beside them, so that the
mean of the entries of two models is no weight of either. They are known by the names that writers give them. Where a
checkpoint's configuration says how it is quantised, tensors of other types than floats are packed whatever their names.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from consilience.drawing.words import first_names

PLAIN_TYPES = frozenset({"float64", "float32", "float16", "bfloat16"})
"""Types of weights that are not packed, by NumPy's or torch's name."""

_BOOKKEEPING = frozenset({"bool", "int64", "complex64"})
"""Types of masks, positions, counters and spectra, into which no writer packs weights."""

_PACKED: Sequence[tuple[str, re.Pattern[str], re.Pattern[str]]] = tuple(
    (method, re.compile(rf"(?P<module>(?:.*[./])?)(?:{packed})"), re.compile(beside))
    for method, packed, beside in (
        ("bitsandbytes", "weight", r"SCB|weight_format|weight\.(?:absmax|quant_map|quant_state\..+)"),
        ("GPTQ", "qweight", "g_idx"),
        ("AWQ or GPTQ", "qweight", "qzeros|scales"),
        ("EXL2", "q_weight", "q_scale|q_groups|q_invperm"),
        ("EXL3", "trellis", "suh|svh|su|sv"),
        ("QuIP#", "Qidxs", "SU|SV|Wscale"),
        ("AQLM", "codes", "codebooks"),
        ("VPTQ", "indices", r"(?:res_)?centroids(?:\.weight)?"),
        ("SpQR", "dense_weights", "row_offsets|col_vals"),
        ("HQQ", "W_q", "meta|scale|zero|scale_q|zero_q|nbits|group_size"),
        ("MXFP4", r"(?:\w+_)?blocks", r"(?:\w+_)?scales"),
        ("compressed-tensors", "weight_packed", "weight_(?:scale|shape|global_scale)"),
        ("quanto", r"weight\._data", r"weight\._(?:scale|shift)"),
        ("torchao", r"\w*[._:]+(?:qdata|int_data|packed_weight)", r"\w*[._:]+(?:scale|zero_point|scale_and_zero)"),
        ("MLX", "weight", "scales"),
        ("torch.ao", r"\w*(?:_quantized|_int8|_packed_params)", r"\w*(?:scales?|zero_points?)"),
    )
)
"""Method, names of packed tensors, and names of what stands beside them in the same module, as the libraries write
them. Types tell them from floats that happen to have such a name."""

_SCALES = (
    "_scale", "_scales", "_scale_inv", "_scale_2", "_scales_inv", "._scale", ":scale", ".scale", ".scales",
    ".scale_inv", ".scale_weight", ".SCB", ".absmax", ".quant_state", ".weight_scale", ".weight_scale_inv",
)  # fmt: skip
"""What is appended to the name of a packed tensor, or to that of its module, for its scales: DeepSeek, ModelOpt, EETQ,
BitNet and others."""

_OPTIMISER = re.compile(
    r"(?:^|[./])(?:exp_avg|exp_avg_sq|max_exp_avg_sq|exp_inf|momentum_buffer|square_avg|acc_delta)(?:[./]|$)"
)
"""Names of the moments that optimisers keep (torch.optim)."""

_INTEGER = re.compile(r"u?int\d+|bool")

_MAX_LISTED = 3
"""Tensors that a message names; more are counted. Chosen by hand."""

_DEQUANTISE = (
    "dequantise it first: load it in 16 bits (such as `model.dequantize()` of transformers, or `dequantize=True` in "
    "its quantisation's configuration) and save that, or take the model from before"
)


def unfit_tensors(dtypes: Mapping[str, str], stated: str | None = None) -> tuple[str, str] | None:
    """Return which tensors of a model no method averages, and what to do; None where all are weights.

    Types are as NumPy or torch calls them, safetensors' own name for those that neither has; `stated` is the method of
    quantisation that a configuration states.

    Examples
    --------
    >>> unfit_tensors({"l.qweight": "int32", "l.qzeros": "int32", "l.scales": "float16"})[0]
    'is quantised by AWQ or GPTQ (l.qweight): packed numbers have no mean'
    >>> unfit_tensors({"l.weight": "float16", "l.scale": "float16"})
    """
    method, packed = _packed_tensors(dtypes)
    if stated is not None and not packed:
        packed = [name for name, dtype in dtypes.items() if dtype not in PLAIN_TYPES | _BOOKKEEPING]
    if packed:
        by = stated or method
        how = f"by {by}" if by else "with scales of its own"
        return f"is quantised {how} ({first_names(packed, _MAX_LISTED)}): packed numbers have no mean", _DEQUANTISE
    if moments := [name for name in dtypes if _OPTIMISER.search(name)]:
        text = f"has the state of an optimiser ({first_names(moments, _MAX_LISTED)}), which is no part of a model"
        return text, "save the model's own tensors: `consilience.save(module, path)`"
    if dtypes and all(_INTEGER.fullmatch(dtype) for dtype in dtypes.values()):
        text = f"has integers and truth values alone ({first_names(list(dtypes), _MAX_LISTED)}), which have no mean"
        return text, "give the file or state dict of the weights"
    return None


def _packed_tensors(dtypes: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return the tensors that are packed by their names and types, and the method of the first; "" for none by name."""
    candidates = [name for name, dtype in dtypes.items() if dtype not in PLAIN_TYPES | _BOOKKEEPING]
    in_order = sorted(dtypes) if candidates else []
    found = {name: _packing(name, in_order) for name in candidates}
    packed = [name for name, method in found.items() if method is not None]
    methods = [method for method in found.values() if method]
    return (methods[0] if methods else ""), packed


def _packing(name: str, in_order: Sequence[str]) -> str | None:
    """Return the method that packed a tensor, "" where it has scales and no name says more; None for none."""
    for method, packed, beside in _PACKED:
        if (match := packed.fullmatch(name)) and _has_beside(in_order, match["module"], beside):
            return method
    scales = {f"{stem}{end}" for stem in (name, name.removesuffix(".weight")) for end in _SCALES}
    return "" if any(_stands_in(in_order, scale) for scale in scales) else None


def _has_beside(in_order: Sequence[str], module: str, beside: re.Pattern[str]) -> bool:
    """Return whether a module has a tensor of such a name, given all names in order."""
    for place in range(bisect_left(in_order, module), len(in_order)):
        if not in_order[place].startswith(module):
            return False
        if beside.fullmatch(in_order[place], len(module)):
            return True
    return False


def _stands_in(in_order: Sequence[str], name: str) -> bool:
    place = bisect_left(in_order, name)
    return place < len(in_order) and in_order[place] == name
