"""Tracing rules of contractions: linear layers, matrix products, einsum, embeddings, attention.

Each is a sum of products over labelled axes, as in ``einsum``, and is handed to `contract`: axes with one label move
together, and an axis that is summed over reads its units. A bias is added entry by entry.
"""

from __future__ import annotations

from functools import reduce
from string import ascii_letters

from consilience.networks.tracing.axis_parts import axis_size, fixed_axis, free_axis
from consilience.networks.tracing.rules.common import (
    OperatorCall,
    OperatorRule,
    TracedTensor,
    broadcast,
    contract,
    fixed_tensor,
    record_reduction,
    under_names,
)


def _linear(call: OperatorCall) -> TracedTensor:
    """Trace y[..., b] = sum_a x[..., a] W[b, a] + bias[b]; a weight of one axis is a vector W[a]."""
    tensor, weight = call["input"], call["weight"]
    batch = ascii_letters[2 : 1 + len(tensor.axes)]
    output = contract(
        call.record, [tensor, weight], [batch + "a", "ba"[2 - len(weight.axes) :]], batch + "b"[: len(weight.axes) - 1]
    )
    return output if call["bias"] is None else broadcast(call.record, [output, call["bias"]])


def _matmul(call: OperatorCall) -> TracedTensor:
    """Multiply stacks of matrices; a tensor of one axis is a vector."""
    first, second = (call[name] for name in (("self", "mat2") if "mat2" in call.args else ("self", "other")))
    return _product(call, first, second)


def _grouped_product(call: OperatorCall) -> TracedTensor:
    """Trace y[n, b] = sum_a x[n, a] W[e(n), a, b], experts e chosen by the data: they stay, their units move alike."""
    rows, weight = call.tensors[:2]
    if len(rows.axes) != 2 or len(weight.axes) != 3:
        for tensor in (rows, weight):
            call.record.fix_all_axes(tensor)
        return fixed_tensor(call.shape)
    call.record.algebra.fix(weight.axes[0])
    return contract(call.record, [rows, weight.select_axes([1, 2])], ["na", "ab"], "nb")


def _product(call: OperatorCall, first: TracedTensor, second: TracedTensor) -> TracedTensor:
    """Trace sum_c first[..., a, c] second[..., c, b], where a vector lacks a or b."""
    stacks = [max(0, len(tensor.axes) - 2) for tensor in (first, second)]
    batch = ascii_letters[3 : 3 + max(stacks)]
    rows = "a" if len(first.axes) > 1 else ""
    columns = "b" if len(second.axes) > 1 else ""
    # Batch axes are aligned at the end, as broadcasting does.
    labels = [batch[len(batch) - stacks[0] :] + rows + "c", batch[len(batch) - stacks[1] :] + "c" + columns]
    return contract(call.record, [first, second], labels, batch + rows + columns)


def _vector_product(call: OperatorCall) -> TracedTensor:
    names = {"mv": "vec", "dot": "tensor", "vdot": "other"}
    return _product(call, call["self"], call[names[call.name]])


def _inner(call: OperatorCall) -> TracedTensor:
    """Trace sum_a first[..., a] second[..., a]; where one is a number, the other is multiplied by it."""
    first, second = call["self"], call["other"]
    if not first.axes or not second.axes:
        return broadcast(call.record, [first, second])
    rows, columns = len(first.axes) - 1, len(second.axes) - 1
    letters = ascii_letters[1 : 1 + rows + columns]
    return contract(call.record, [first, second], [letters[:rows] + "a", letters[rows:] + "a"], letters)


def _vecdot(call: OperatorCall) -> TracedTensor:
    """Trace the sum of the products of two tensors along an axis; all others are multiplied entry by entry."""
    x, y = call["x"], call["y"]
    rank = max(len(x.axes), len(y.axes))
    dim = int(-1 if call["dim"] is None else call["dim"]) % rank
    letters = ascii_letters[:rank]
    # Axes are aligned at the end, as broadcasting does.
    labels = [letters[rank - len(tensor.axes) :] for tensor in (x, y)]
    return contract(call.record, [x, y], labels, letters[:dim] + letters[dim + 1 :])


def _tensordot(call: OperatorCall) -> TracedTensor:
    """Trace the sum over pairs of axes; the other axes of the first tensor stand before those of the second."""
    first, second = call["self"], call["other"]
    first_dims, second_dims = call.dims(first, "dims_self"), call.dims(second, "dims_other")
    labels = [list(ascii_letters[: len(first.axes)]), list(ascii_letters[len(first.axes) :][: len(second.axes)])]
    for first_dim, second_dim in zip(first_dims, second_dims, strict=True):
        labels[1][second_dim] = labels[0][first_dim]
    out = [x for n, x in enumerate(labels[0]) if n not in first_dims]
    out += [x for n, x in enumerate(labels[1]) if n not in second_dims]
    return contract(call.record, [first, second], ["".join(letters) for letters in labels], "".join(out))


def _chain(call: OperatorCall) -> TracedTensor:
    """Multiply several matrices, of which the first and the last may be vectors."""
    return reduce(lambda first, second: _product(call, first, second), call.tensors)


def _distances(call: OperatorCall) -> TracedTensor:
    """Compare all rows of one matrix with all of another, over all their entries together."""
    return _product(call, call["x1"], call["x2"].select_axes([*range(len(call["x2"].axes) - 2), -1, -2]))


def _cosine(call: OperatorCall) -> TracedTensor:
    """Trace the cosine similarity of two tensors along an axis."""
    tensor = broadcast(call.record, [call["x1"], call["x2"]])
    dim = call.dim(tensor)
    record_reduction(call.record, tensor, [dim])
    return tensor.select_axes(n for n in range(len(tensor.axes)) if n != dim)


def _add_product(call: OperatorCall) -> TracedTensor:
    """Add a product of matrices to a tensor."""
    first, second = {"addmm": ("mat1", "mat2"), "addmv": ("mat", "vec"), "baddbmm": ("batch1", "batch2")}[call.name]
    return broadcast(call.record, [call["self"], _product(call, call[first], call[second])])


def _einsum(call: OperatorCall) -> TracedTensor:
    """Trace an Einstein sum, with ``...`` written out as letters that the equation does not use."""
    tensors = call["tensors"]
    inputs, _, out = call["equation"].replace(" ", "").partition("->")
    labels = inputs.split(",")
    unused = [letter for letter in ascii_letters if letter not in call["equation"]]
    # An ellipsis, three characters of a label, stands for the axes without a letter: (axes) - (characters - 3).
    ellipsis_ranks = [len(t.axes) - len(label) + 3 for t, label in zip(tensors, labels, strict=True) if "..." in label]
    ellipsis_rank = max(ellipsis_ranks, default=0)
    ellipsis = "".join(unused[:ellipsis_rank])
    if "->" not in call["equation"]:
        # The implicit output has the letters that occur once, in alphabetical order.
        letters = "".join(labels).replace(".", "")
        out = ("..." if ellipsis_rank else "") + "".join(sorted(x for x in set(letters) if letters.count(x) == 1))
    # Ellipses of fewer axes are aligned at the end.
    labels = [
        label.replace("...", ellipsis[ellipsis_rank - (len(t.axes) - len(label) + 3) :] if "..." in label else "")
        for t, label in zip(tensors, labels, strict=True)
    ]
    return contract(call.record, tensors, labels, out.replace("...", ellipsis))


def _bilinear(call: OperatorCall) -> TracedTensor:
    """Trace y[..., c] = sum_ab first[..., a] W[c, a, b] second[..., b] + bias[c]."""
    first, second = call["input1"], call["input2"]
    batch = ascii_letters[3 : 2 + len(first.axes)]
    output = contract(call.record, [first, second, call["weight"]], [batch + "a", batch + "b", "cab"], batch + "c")
    return output if call["bias"] is None else broadcast(call.record, [output, call["bias"]])


def _embedding(call: OperatorCall) -> TracedTensor:
    """Look rows up by index: rows are addressed by the data and never move, columns are units."""
    weight, indices = call["weight"], call["indices"]
    call.record.algebra.fix(weight.axes[0])
    call.record.add_side(weight, 1, "output")
    return TracedTensor((*indices.axes, weight.axes[1]), data=True)


def _embedding_bag(call: OperatorCall) -> list[TracedTensor]:
    """Combine rows that are looked up by index: rows never move, columns are units."""
    weight = call["weight"]
    call.record.algebra.fix(weight.axes[0])
    call.record.add_side(weight, 1, "output")
    output = TracedTensor((fixed_axis(call.shape[0]), weight.axes[1]), data=True)
    return [output, *(fixed_tensor(shape) for shape in call.shapes[1:])]


def _attention(call: OperatorCall) -> TracedTensor:
    """Trace scaled dot-product attention, softmax(Q K^T + mask) V."""
    query, key, value = call["query"], call["key"], call["value"]  # (..., heads, positions, units of a head)
    if call["enable_gqa"] and len(query.axes) > 2:
        key, value = (_repeat_shared_heads(call, tensor, axis_size(query.axes[-3])) for tensor in (key, value))
    batch = ascii_letters[4 : 2 + len(query.axes)]
    scores = contract(call.record, [query, key], [batch + "ac", batch + "bc"], batch + "ab")
    if call["attn_mask"] is not None:
        scores = broadcast(call.record, [scores, call["attn_mask"]])
    return contract(call.record, [scores, value], [batch + "ab", batch + "bd"], batch + "ad")


def _repeat_shared_heads(call: OperatorCall, tensor: TracedTensor, n_query_heads: int) -> TracedTensor:
    """Repeat every head of keys or values for the heads of queries that share it (grouped-query attention)."""
    dim = len(tensor.axes) - 3
    queries_per_head = n_query_heads // axis_size(tensor.axes[dim])
    return tensor.replace_axis(dim, call.record.algebra.flatten([tensor.axes[dim], free_axis(queries_per_head)]))


RULES: dict[str, OperatorRule] = {
    "linear": _linear,
    **under_names(_matmul, "matmul linalg_matmul mm bmm __matmul__"),
    **under_names(_vector_product, "mv dot vdot"),
    **under_names(_add_product, "addmm addmv baddbmm"),
    **under_names(_grouped_product, "_grouped_mm grouped_mm_fallback"),
    "linalg_multi_dot": _chain,
    "inner": _inner,
    "linalg_vecdot": _vecdot,
    "tensordot": _tensordot,
    "cdist": _distances,
    "cosine_similarity": _cosine,
    "embedding_bag": _embedding_bag,
    "einsum": _einsum,
    "bilinear": _bilinear,
    "embedding": _embedding,
    "scaled_dot_product_attention": _attention,
}
