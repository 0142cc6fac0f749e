"""Files whose few bytes become much memory, each padded with numbers until readers just take it."""

import json

from consilience.files.budget import (
    _DOCUMENT_COSTS,
    _HEADER_COPIES,
    _HEADER_COSTS,
    ALLOWANCE_BYTES,
    MEMORY_PER_FILE_BYTE,
)
from tests.fuzz.mutants import KEY, assembled

_POSTERIOR = {"format": "consilience-posterior", "format_version": 1, "library_version": "1", "source": {}}
_POSTERIOR |= {"family": {"name": "gamma"}}
_NETWORK = {"format": "consilience-network", "format_version": 1, "library_version": "1", "provenance": None}
_INPUT = {
    "name": "site-0001.safetensors",
    "components": 5,
    "weight": 1.0,
    "sha256": "0" * 64,
    "labels": [0, 1, 2, 3, 4],
}


def _of(**fields):
    return json.dumps(_POSTERIOR | fields, separators=(",", ":"))


def _made(inputs):
    return {"method": "kl", "options": {}, "seed": 1, "inputs": inputs, "result": {}, "versions": {}}


def _symmetry(arrays):
    symmetry = {"groups": [], "arrays": arrays, "aliases": {}, "notes": [], "proof": None}
    return json.dumps(_NETWORK | {"symmetry": symmetry}, separators=(",", ":"))


def _layouts(count, segments):
    axis = {"side": "output", "segments": [[None, 1, 1]] * segments}
    return {f"{n:x}": {"axes": [axis], "blocks": 1} for n in range(count)}


DOCUMENTS = {
    "empty lists": lambda n: _of(source={"a": [[]] * n}),
    "empty objects": lambda n: _of(source={"a": [{}] * n}),
    "small objects": lambda n: _of(source={"a": [{"a": 1}] * n}),
    "many keys": lambda n: _of(source={f"{k:x}": 1 for k in range(n)}),
    "unknown keys": lambda n: _of(**{f"{k:x}": 1 for k in range(n)}),
    "numbers": lambda n: _of(source={"a": [1.5] * n}),
    "counts": lambda n: _of(counts=[1.5] * n),
    "wrong counts": lambda n: _of(counts=["a"] * n),
    "names": lambda n: _of(features={"names": ["\u0100a"] * n}),
    "wrong names": lambda n: _of(features={"names": [1] * n}),
    "inputs": lambda n: _of(provenance=_made([_INPUT] * n)),
    "wrong inputs": lambda n: _of(provenance=_made([{"name": 1}] * n)),
    "labels": lambda n: _of(provenance=_made([_INPUT | {"labels": [300 + n % 7] * n}])),
    "attached": lambda n: _of(attached={f"{k:x}": {"axes": ["fixed"], "rule": "sum"} for k in range(n)}),
    "axes": lambda n: _of(attached={"a": {"axes": ["fixed"] * n, "rule": "sum"}}),
    "blocks": lambda n: _of(family={"name": "product", "blocks": {f"{k:x}": {"name": "gamma"} for k in range(n)}}),
    "layouts": lambda n: _symmetry(_layouts(n, 1)),
    "segments": lambda n: _symmetry(_layouts(1, n)),
    "wrong segments": lambda n: _symmetry({"a": {"axes": [{"side": "output", "segments": [1] * n}], "blocks": 1}}),
    "notes": lambda n: _symmetry({}).replace('"notes":[]', '"notes":[' + ",".join(['""'] * n) + "]"),
    "odd letter": lambda n: _of(source={"a": "a" * n + "\U0001f600"}),
}  # fmt: skip
HEADERS = {
    "metadata": lambda n: {"__metadata__": {f"{k:x}": "" for k in range(n)}},
    "long shape": lambda n: {"a": {"dtype": "U8", "shape": [0] * n, "data_offsets": [0, 0]}},
    "empty tensors": lambda n: {f"{k:x}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for k in range(n)},
    "unknown fields": lambda n: {"a": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0], "x": [[]] * n}},
}


def _cost(text, table):
    return sum(each * text.count(sign if isinstance(sign, bytes) else sign.encode()) for sign, each in table.items())


def heavy(name, count, *, taken=True):
    """Return a file with `count` small things, with as many bytes of numbers as make it `taken`, or none."""
    if name in DOCUMENTS:
        text = DOCUMENTS[name](count)
        header = {"__metadata__": {KEY: text}}
    else:
        text, header = "", HEADERS[name](count)
    bare = json.dumps(header, separators=(",", ":")).encode()
    most = max(
        _cost(bare, _HEADER_COSTS) + _HEADER_COPIES * (len(bare) + 200),
        _cost(text.encode(), _DOCUMENT_COSTS) + 4 * len(text),
    )
    size = max(0, (most - ALLOWANCE_BYTES) // MEMORY_PER_FILE_BYTE) + 4000 if taken else 0
    pad = 8 * (max(0, size - len(bare)) // 8)
    if pad:
        header["pad"] = {"dtype": "U8", "shape": [pad], "data_offsets": [0, pad]}
    return assembled(header, bytes(pad))
