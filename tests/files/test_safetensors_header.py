"""Headers that are read here are those that the safetensors library takes, with the same tensors; or fewer."""

import json
import struct

import numpy as np
import pytest
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from consilience.errors import FileFormatError
from consilience.files.arrays import DTYPES
from consilience.files.budget import pad_text
from consilience.files.safetensors_header import ITEM_BITS, read_start

BYTES = b'{}[]":,0123456789-.eE \\uaFI\x00\xff\ntrufalsn'
"""What a byte is replaced by, besides any: what JSON is made of."""


def honest(path):
    arrays = {"b": np.ones((2, 3), np.float32), "a": np.arange(4), "none": np.zeros((0, 5)), "one": np.float64(2.0)}
    save_file({name: np.asarray(values) for name, values in arrays.items()}, path, {"k": 'a "text"', "é": "ü"})
    return path.read_bytes()


def theirs(path):
    """Return what the library reads of a header; None where it refuses it."""
    try:
        with safe_open(path, "numpy") as file:
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
            tensors = {name: (str(part.get_dtype()), tuple(part.get_shape())) for name, part in parts.items()}
            return (
                tensors,
                dict(file.metadata() or {}),
                [name for name in file.offset_keys() if np.prod(tensors[name][1])],
            )
    except (SafetensorError, ValueError):
        return None


def ours(path):
    try:
        start = read_start(path, "")
    except FileFormatError:
        return None
    tensors = {name: (place.dtype, place.shape) for name, place in start.tensors.items()}
    filled = [name for name, place in start.tensors.items() if place.end > place.start]
    return tensors, dict(start.metadata), filled


def mutants(data, rng, count):
    header = 8 + struct.unpack("<Q", data[:8])[0]
    for _ in range(count):
        changed = bytearray(data)
        for _ in range(rng.integers(1, 4)):
            place = int(rng.integers(0, header))
            what = rng.integers(3)
            if what == 0:
                changed[place] = BYTES[int(rng.integers(len(BYTES)))] if rng.random() < 0.8 else int(rng.integers(256))
            elif what == 1:
                del changed[place]
            else:
                changed.insert(place, BYTES[int(rng.integers(len(BYTES)))])
        if rng.random() < 0.5 and len(changed) > 8:  # so that the length is right again
            changed[:8] = struct.pack("<Q", header - 8 + len(changed) - len(data))
        yield bytes(changed)


@pytest.mark.parametrize("seed", range(4))
def test_of_mutated_headers_none_is_taken_that_the_library_refuses_or_reads_otherwise(tmp_path, seed):
    path = tmp_path / "a.safetensors"
    data, taken = honest(path), 0
    assert ours(path) == theirs(path)
    for mutant in mutants(data, np.random.default_rng(seed), 400):
        path.write_bytes(mutant)
        found = ours(path)
        taken += found is not None
        assert found is None or found == theirs(path), mutant
    assert taken > 0  # changed names and texts


ODD = {
    "a key twice": '{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
    "a gap": '{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
    "a float": '{"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}}',
    "a truth": '{"a":{"dtype":"U8","shape":[true],"data_offsets":[0,1]}}',
    "an overflow": '{"a":{"dtype":"U8","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,1]}}',
    "an overflow on the way": '{"a":{"dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}}',
    "a negative": '{"a":{"dtype":"U8","shape":[-1,-1],"data_offsets":[0,1]}}',
    "a lone surrogate": '{"\\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
    "too few bytes": '{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}',
    "an unknown type": '{"a":{"dtype":"U7","shape":[1],"data_offsets":[0,1]}}',
    "metadata of numbers": '{"__metadata__":{"a":1},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
    "a list": "[]",
    "a blank first": ' {"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_what_is_not_plainly_valid_is_refused(tmp_path, text):
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text.encode() + b"\0")
    with pytest.raises(FileFormatError, match=r"truncated or not a safetensors file|not read here, though"):
        read_start(path, "")


def test_metadata_may_be_null(tmp_path):
    header = json.dumps({"__metadata__": None, "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}})
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + b"\0")
    assert ours(path) == theirs(path) is not None


@pytest.mark.parametrize("count", [100, 700_000])
def test_documents_that_may_be_written_are_read(tmp_path, count):
    text = pad_text(json.dumps({"names": [f"name {n}" for n in range(count)]}), 8)
    path = tmp_path / "a.safetensors"
    save_file({"a": np.zeros(1)}, path, {"consilience": text})
    assert read_start(path, "").metadata == {"consilience": text}


def test_types_and_their_bits_are_those_of_the_library(tmp_path):
    assert set(DTYPES) <= set(ITEM_BITS)
    for dtype, bits in ITEM_BITS.items():
        header = json.dumps({"a": {"dtype": dtype, "shape": [8], "data_offsets": [0, bits]}})
        path = tmp_path / f"{dtype}.safetensors"
        path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + bytes(bits))
        assert ours(path) is not None
        with safe_open(path, "numpy") as file:
            assert list(file.keys()) == ["a"]


def test_a_file_is_opened_once_for_its_header_and_once_for_its_tensors(tmp_path, opens):
    from sklearn.mixture import GaussianMixture

    import consilience as cs

    rng = np.random.default_rng(0)
    paths = [tmp_path / f"{name}.safetensors" for name in ("lund", "oslo")]
    for path in paths:
        cs.save(GaussianMixture(2, random_state=0).fit(rng.normal(size=(50, 2))), path, n_observations=50)
    with opens(tmp_path) as counted:
        cs.fuse(paths)
    assert set(counted.values()) == {2}
