"""Sums of products: linear layers, matrix products, embeddings, attention."""

from __future__ import annotations

from string import ascii_letters

from consilience.networks.tracing.axis_parts import axis_size, free, still
from consilience.networks.tracing.rules.common import Call, Rule, Value, broadcast, contract, summed, unmoved


def _linear(call: Call) -> Value:
    value, weight = call["input"], call["weight"]
    batch = ascii_letters[2 : 1 + len(value.axes)]
    made = contract(
        call.record, [value, weight], [batch + "a", "ba"[2 - len(weight.axes) :]], batch + "b"[: len(weight.axes) - 1]
    )
    return made if call["bias"] is None else broadcast(call.record, [made, call["bias"]])


def _matmul(call: Call) -> Value:
    """Multiply stacks of matrices; a tensor of one axis is a vector."""
    first, second = (call[name] for name in (("self", "mat2") if "mat2" in call.args else ("self", "other")))
    return _product(call, first, second)


def _product(call: Call, first: Value, second: Value) -> Value:
    stacks = [max(0, len(value.axes) - 2) for value in (first, second)]
    batch = ascii_letters[3 : 3 + max(stacks)]
    rows = "a" if len(first.axes) > 1 else ""
    columns = "b" if len(second.axes) > 1 else ""
    labels = [batch[len(batch) - stacks[0] :] + rows + "c", batch[len(batch) - stacks[1] :] + "c" + columns]
    return contract(call.record, [first, second], labels, batch + rows + columns)


def _vector(call: Call) -> Value:
    names = {"mv": "vec", "dot": "tensor", "vdot": "other"}
    return _product(call, call["self"], call[names[call.name]])


def _distances(call: Call) -> Value:
    """Compare all rows of one matrix with all of another, over all their entries together."""
    return _product(call, call["x1"], call["x2"].keeping([*range(len(call["x2"].axes) - 2), -1, -2]))


def _cosine(call: Call) -> Value:
    value = broadcast(call.record, [call["x1"], call["x2"]])
    number = call.dim(value)
    summed(call.record, value, [number])
    return value.keeping(n for n in range(len(value.axes)) if n != number)


def _added(call: Call) -> Value:
    """Add a product of matrices to a tensor."""
    names = ("mat1", "mat2") if call.name == "addmm" else ("batch1", "batch2")
    return broadcast(call.record, [call["self"], _product(call, call[names[0]], call[names[1]])])


def _einsum(call: Call) -> Value:
    values = call["tensors"]
    inputs, _, out = call["equation"].replace(" ", "").partition("->")
    labels = inputs.split(",")
    unused = [letter for letter in ascii_letters if letter not in call["equation"]]
    hidden = max((len(v.axes) - len(x) + 3 for v, x in zip(values, labels, strict=True) if "..." in x), default=0)
    rest = "".join(unused[:hidden])
    if "->" not in call["equation"]:
        letters = "".join(labels).replace(".", "")
        out = ("..." if hidden else "") + "".join(sorted(x for x in set(letters) if letters.count(x) == 1))
    labels = [
        x.replace("...", rest[hidden - (len(v.axes) - len(x) + 3) :] if "..." in x else "")
        for v, x in zip(values, labels, strict=True)
    ]
    return contract(call.record, values, labels, out.replace("...", rest))


def _bilinear(call: Call) -> Value:
    first, second = call["input1"], call["input2"]
    batch = ascii_letters[3 : 2 + len(first.axes)]
    made = contract(call.record, [first, second, call["weight"]], [batch + "a", batch + "b", "cab"], batch + "c")
    return made if call["bias"] is None else broadcast(call.record, [made, call["bias"]])


def _embedding(call: Call) -> Value:
    """Look rows up: which row it is, is told by the data."""
    weight, indices = call["weight"], call["indices"]
    call.record.atoms.fix(weight.axes[0])
    call.record.side(weight, 1, "output")
    return Value((*indices.axes, weight.axes[1]), data=True)


def _embedding_bag(call: Call) -> list[Value]:
    """Average rows, or otherwise combine them: which ones, is told by the data."""
    weight = call["weight"]
    call.record.atoms.fix(weight.axes[0])
    call.record.side(weight, 1, "output")
    made = Value((still(call.shape[0]), weight.axes[1]), data=True)
    return [made, *(unmoved(shape) for shape in call.shapes[1:])]


def _attention(call: Call) -> Value:
    """Scaled dot-product attention: softmax(Q K' + mask) V."""
    query, key, value = call["query"], call["key"], call["value"]
    if call["enable_gqa"] and len(query.axes) > 2:
        key, value = (_shared_heads(call, one, axis_size(query.axes[-3])) for one in (key, value))
    batch = ascii_letters[4 : 2 + len(query.axes)]
    scores = contract(call.record, [query, key], [batch + "ac", batch + "bc"], batch + "ab")
    if call["attn_mask"] is not None:
        scores = broadcast(call.record, [scores, call["attn_mask"]])
    return contract(call.record, [scores, value], [batch + "ab", batch + "bd"], batch + "ad")


def _shared_heads(call: Call, value: Value, heads: int) -> Value:
    """Repeat every head of keys or values as often as there are heads of queries to it."""
    number = len(value.axes) - 3
    times = heads // axis_size(value.axes[number])
    return value.put(number, call.record.atoms.flatten([value.axes[number], free(times)]))


RULES: dict[str, Rule] = {
    "linear": _linear,
    **dict.fromkeys(["matmul", "mm", "bmm", "__matmul__"], _matmul),
    **dict.fromkeys(["mv", "dot", "vdot"], _vector),
    **dict.fromkeys(["addmm", "baddbmm"], _added),
    "cdist": _distances,
    "cosine_similarity": _cosine,
    "embedding_bag": _embedding_bag,
    "einsum": _einsum,
    "bilinear": _bilinear,
    "embedding": _embedding,
    "scaled_dot_product_attention": _attention,
}
