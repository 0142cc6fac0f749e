"""Network and symmetry files: what was written is read, ordinary checkpoints too, and nothing forged gets through."""

import copy
import json
import math
import resource
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save as to_safetensors
from safetensors.torch import load_file, save_file
from torch import nn

from consilience.api.kinds import format_of
from consilience.errors import FileFormatError, InputError
from consilience.networks.files import (
    read_network,
    read_network_summary,
    read_symmetry,
    symmetry_from_json,
    write_network,
    write_symmetry,
)
from consilience.networks.network import Network
from consilience.networks.symmetry.axes import Axis, Group, Layout, Proof, Segment, fixed_axes
from consilience.networks.symmetry.symmetry import Symmetry, symmetry_to_json
from consilience.networks.tracing.trace import trace
from tests.cli.bad_files import BAD, GOOD, NOT_SAFETENSORS, raw
from tests.networks.zoo import ZOO

PROVENANCE = {"method": "wb", "options": {"b": 1, "a": None}, "inputs": [{"name": "x", "weight": 0.5}], "seed": 0}


def proved(symmetry):
    return replace(symmetry, proof=Proof(symmetry.digest, 1e-15, 2))


def axis(group, outer=1, inner=1, side="output"):
    return Axis((Segment(group, outer, inner),), side)


SYMMETRY = proved(
    Symmetry(
        {
            "out.weight": Layout((axis(None, inner=3), axis("head", side="input"))),
            "embed.weight": Layout((axis(None, inner=7), axis("head"))),
            "conv.weight": Layout((axis("conv"), axis("conv", side="input"), axis(None, inner=2)), blocks=2),
            "rows.weight": Layout((axis("in head"), axis(None, inner=5, side="input"))),
            "scores": Layout((axis(None), axis("in head")), split=(1, 2)),
            "steps": Layout(()),
            "nothing": Layout(fixed_axes((0, 4))),
        },
        (Group("head", 2, 0), Group("in head", 3, 1, "head"), Group("conv", 4, 2, None, ("permute", "scale"), False)),
        {"decode.weight": "embed.weight"},
        ("conv: not looked through",),
    )
)
SHAPES = {"out.weight": (3, 2), "embed.weight": (7, 2), "conv.weight": (4, 2, 2), "rows.weight": (6, 5)}
SHAPES |= {"scores": (1, 2, 3), "steps": (), "nothing": (0, 4)}


def arrays(rng, dtype=np.float32):
    floating = {name: rng.normal(size=shape).astype(dtype) for name, shape in SHAPES.items()}
    return {**floating, "steps": np.array(17)}


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "net.safetensors"


def assert_same_arrays(arrays, expected):
    assert set(arrays) == set(expected)
    for name, values in expected.items():
        assert str(arrays[name].dtype).rpartition(".")[2] == str(values.dtype).rpartition(".")[2]
        assert tuple(arrays[name].shape) == tuple(values.shape)
        assert as_bytes(arrays[name]) == as_bytes(values)


def as_bytes(values):
    """Return the numbers of any array, whatever its library and type, in row-major order."""
    tensor = torch.as_tensor(values).detach().reshape(-1)
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor).view(torch.uint8).tolist()


# -- What was written is read.


def test_a_network_comes_back_with_symmetry_and_provenance(path, rng):
    written = arrays(rng)
    write_network(path, written, SYMMETRY, PROVENANCE)
    loaded = read_network(path)
    assert_same_arrays(loaded.arrays, {**written, "decode.weight": written["embed.weight"]})
    assert all(isinstance(values, np.ndarray) for values in loaded.arrays.values())
    assert loaded.symmetry == SYMMETRY
    assert loaded.symmetry.proved
    assert loaded.provenance == PROVENANCE
    assert Network(loaded.arrays, loaded.symmetry).units == {"head": 2, "in head": 6, "conv": 4}


def test_arrays_stand_in_the_order_in_which_methods_sum(path, rng):
    write_network(path, dict(reversed(arrays(rng).items())), SYMMETRY)
    loaded = read_network(path)
    assert list(loaded.symmetry.layouts) == list(SYMMETRY.layouts)
    assert list(loaded.arrays) == [*SYMMETRY.layouts, "decode.weight"]


@pytest.mark.parametrize(
    "name", ["lenet", "resnext", "lstm both ways", "gpt", "multi-head attention", "operations nobody looks through"]
)
def test_state_dicts_of_modules_come_back_and_load_strictly(path, name):
    module, other = ZOO[name].module(), ZOO[name].module(seed=1)
    symmetry = proved(trace(module, ZOO[name].inputs()))
    write_network(path, module.state_dict(), symmetry)
    loaded = read_network(path)
    assert loaded.symmetry == symmetry
    assert loaded.symmetry.proved
    assert_same_arrays(loaded.arrays, module.state_dict())
    other.load_state_dict(load_file(path), strict=True)
    assert_same_arrays(other.state_dict(), module.state_dict())
    write_symmetry(path.with_suffix(".json"), symmetry)
    assert read_symmetry(path.with_suffix(".json")) == symmetry == read_symmetry(path)


@pytest.mark.parametrize("names", [("embed.weight",), ("decode.weight",), ("embed.weight", "decode.weight")])
@pytest.mark.parametrize("library", [np.asarray, torch.as_tensor])
def test_tied_weights_are_written_under_all_their_names(path, rng, names, library):
    written = {name: library(values) for name, values in arrays(rng).items()}
    tied = written.pop("embed.weight")
    write_network(path, {**written, **dict.fromkeys(names, tied)}, SYMMETRY)
    assert_same_arrays(load_file(path), {**written, "embed.weight": tied, "decode.weight": tied})


def test_tied_weights_that_differ_are_refused(path, rng):
    written = arrays(rng)
    for other in (written["embed.weight"] + 1, written["embed.weight"][:3], written["embed.weight"].astype(np.float64)):
        with pytest.raises(InputError, match=r"arrays decode.weight and embed.weight are one array .* same values"):
            write_network(path, {**written, "decode.weight": other}, SYMMETRY)
    assert not path.exists()


def test_the_same_network_gives_the_same_bytes_from_any_library(path, rng):
    written, contents = arrays(rng), set()
    tensors = {name: torch.as_tensor(values) for name, values in written.items()}
    for state in (written, dict(reversed(written.items())), tensors, {**tensors, "steps": written["steps"]}):
        for provenance in (PROVENANCE, dict(reversed(PROVENANCE.items()))):
            write_network(path, state, SYMMETRY, provenance)
            contents.add(path.read_bytes())
    assert len(contents) == 1
    loaded = read_network(path)
    write_network(path, loaded.arrays, loaded.symmetry, loaded.provenance)
    assert {path.read_bytes()} == contents


def test_the_header_has_one_key(path, rng):
    write_network(path, arrays(rng), SYMMETRY)
    with safe_open(path, framework="numpy") as file:
        ((key, text),) = file.metadata().items()
    document = json.loads(text)
    assert key == "consilience"
    assert (
        list(document) == sorted(document) == ["format", "format_version", "library_version", "provenance", "symmetry"]
    )
    assert document["symmetry"] == symmetry_to_json(SYMMETRY)


NUMPY_TYPES = ("float64", "float32", "float16", "complex64", "bool", "int64", "int32", "int16", "int8")
NUMPY_TYPES += ("uint64", "uint32", "uint16", "uint8")
TORCH_TYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")


@pytest.mark.parametrize("dtype", [*NUMPY_TYPES, *TORCH_TYPES])
def test_every_type_comes_back(path, dtype):
    flags = torch.tensor([0.0, 1.0, 1.0, 0.0]).to(getattr(torch, dtype))
    write_network(path, {"wanted": flags, "single": flags[1], "none": flags[:0], "other": np.ones(2)})
    loaded = read_network(path)
    assert_same_arrays(loaded.arrays, {"wanted": flags, "single": flags[1], "none": flags[:0], "other": np.ones(2)})
    library = torch.Tensor if dtype in TORCH_TYPES else np.ndarray
    assert all(isinstance(values, library) for values in loaded.arrays.values())
    if dtype in NUMPY_TYPES:
        before = path.read_bytes()
        write_network(path, {**loaded.arrays, "other": np.ones(2)})
        assert path.read_bytes() == before


def test_arrays_are_written_however_they_lie_in_memory(path, rng):
    values = rng.normal(size=(4, 6, 5, 3))
    tensor = torch.as_tensor(values)
    numpy = {"t": values.T, "s": values[::2, :, 1], "f": np.asfortranarray(values), "swapped": values.astype(">f8")}
    torch_ones = {
        "parameter": nn.Parameter(tensor),
        "last": tensor.to(memory_format=torch.channels_last),
        "expanded": tensor[:1].expand(4, 6, 5, 3),
        "view": tensor[1:, 2],
        "conj": torch.complex(tensor, tensor).to(torch.complex64).conj(),
    }
    write_network(path, numpy)
    assert_same_arrays(read_network(path).arrays, {**numpy, "swapped": values})
    write_network(path, torch_ones)
    assert_same_arrays(read_network(path).arrays, {**torch_ones, "conj": torch_ones["conj"].resolve_conj()})


@pytest.mark.parametrize("written", [{}, {"a": np.zeros((0, 3)), "b": np.zeros((3, 0, 2))}, {"n": np.array(3)}])
def test_networks_of_nothing_come_back(path, written):
    for arrays in (written, {name: torch.as_tensor(values) for name, values in written.items()}):
        write_network(path, arrays)
        assert_same_arrays(read_network(path).arrays, written)


# -- Files of others.


def test_any_checkpoint_is_read(path):
    state = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)).state_dict()
    for metadata in (None, {"format": "pt"}):
        save_file(state, path, metadata)
        loaded, summary = read_network(path), read_network_summary(path)
        assert_same_arrays(loaded.arrays, state)
        assert (loaded.symmetry, loaded.provenance) == (None, None)
        assert (format_of(path).name, summary.kind, summary.library_version) == ("checkpoint", "checkpoint", None)
        assert summary.shapes == {name: tuple(values.shape) for name, values in state.items()}
        assert summary.dtypes["1.num_batches_tracked"] == "int64"


def test_kinds_are_told_from_the_header(path, rng):
    path.write_bytes(GOOD)
    assert format_of(path).name == "posterior"
    for reader in (read_network, read_network_summary, read_symmetry):
        with pytest.raises(FileFormatError, match=r"net.safetensors: is a posterior file, expected a network"):
            reader(path)
    write_network(path, arrays(rng), SYMMETRY, PROVENANCE)
    summary = read_network_summary(path)
    assert format_of(path).name == summary.kind == "network"
    assert (summary.symmetry, summary.provenance) == (SYMMETRY, PROVENANCE)
    assert summary.shapes == {**SHAPES, "decode.weight": (7, 2)}


def test_torch_is_not_imported_where_numpy_will_do(path, rng):
    write_network(path, arrays(rng), SYMMETRY)
    code = (
        "import sys; from pathlib import Path; from consilience.networks.files import *; path = Path(sys.argv[1]); "
        "found = read_network(path); write_network(path, found.arrays, found.symmetry); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, path], check=True)


def test_a_file_that_needs_torch_says_so(path, monkeypatch):
    write_network(path, {"a": torch.ones(2, dtype=torch.bfloat16)})
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(FileFormatError, match=r"'a' has type bfloat16, which only torch reads; install torch"):
        read_network(path)
    assert read_network_summary(path).dtypes == {"a": "bfloat16"}


# -- What cannot be written.

UNWRITABLE = {
    "objects": ({"a": np.array([object()])}, r"array 'a': is object, expected one of float64"),
    "extra state": ({"a": {"step": 3}}, "array 'a': is object"),
    "text": ({"a": np.array(["x"])}, "array 'a': is str"),
    "long double": ({"a": np.ones(2, np.complex128)}, "array 'a': is complex128"),
    "complex tensor": ({"a": torch.ones(2, dtype=torch.complex128)}, "array 'a': is complex128"),
    "ragged": ({"a": [[1], [2, 3]]}, "array 'a': .*inhomogeneous"),
    "sparse": ({"a": torch.eye(3).to_sparse()}, "array 'a': has no values of its own"),
    "meta": ({"a": torch.ones(3, device="meta")}, "array 'a': has no values of its own"),
    "reserved": ({"__metadata__": np.ones(2)}, "array '__metadata__': this name is safetensors' own"),
    "no text": ({"\ud800": np.ones(2)}, "surrogates not allowed"),
}


@pytest.mark.parametrize("case", UNWRITABLE)
def test_what_no_file_can_have_is_refused(path, case):
    arrays, message = UNWRITABLE[case]
    with pytest.raises(InputError, match=f"net.safetensors: cannot be written: .*{message}"):
        write_network(path, arrays)
    assert not path.exists()


def test_a_symmetry_of_another_network_is_not_written(path, rng):
    written = arrays(rng)
    for changed, message in (
        ({**written, "more": np.ones(2)}, "array more is not in the symmetry"),
        ({**written, "conv.weight": np.ones((4, 3, 2))}, "array conv.weight has shape"),
        ({name: values for name, values in written.items() if name != "out.weight"}, "array out.weight is missing"),
    ):
        with pytest.raises(InputError, match=f"net.safetensors: cannot be written: {message}"):
            write_network(path, changed, SYMMETRY)
    for wrong in (replace(SYMMETRY, aliases={"decode.weight": "lost"}), replace(SYMMETRY, all_groups=())):
        with pytest.raises(InputError, match=r"net.safetensors: cannot be written: .*not"):
            write_symmetry(path, wrong)
    assert not path.exists()


def test_provenance_that_is_not_json_is_refused(path):
    loop = []
    loop.append(loop)
    for value in (math.nan, math.inf, object(), np.ones(2), loop):
        with pytest.raises(InputError, match=r"cannot be written: its header would not be JSON"):
            write_network(path, {"a": np.ones(2)}, provenance={"value": value})
    with pytest.raises(InputError, match=r"there is no folder"):
        write_network(path / "inside" / "a", {"a": np.ones(2)})
    assert not path.exists()


@pytest.mark.parametrize("library", [np.asarray, torch.as_tensor])
@pytest.mark.parametrize("before", [None, b"the network of yesterday"])
def test_a_disk_that_refuses_leaves_what_was_there(path, library, before):
    if before is not None:
        path.write_bytes(before)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256, limits[1]))
    try:
        with pytest.raises(InputError, match=r"net.safetensors: cannot be written: .*File too large"):
            write_network(path, {"a": library(np.ones((300, 300)))})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [file.read_bytes() for file in path.parent.iterdir()] == ([] if before is None else [before])


# -- Forged files.


BROKEN = ("is empty", "is a pickle or zip", "is a zip", NOT_SAFETENSORS)


@pytest.mark.parametrize("name", [name for name, (_, message) in BAD.items() if message.startswith(BROKEN)])
def test_what_is_no_safetensors_file_is_refused(path, name):
    content, message = BAD[name]
    path.write_bytes(content)
    for reader in (format_of, read_network, read_network_summary):
        with pytest.raises(FileFormatError, match=f"net.safetensors: {message}.*; write it with consilience.save"):
            reader(path)
    with pytest.raises(FileFormatError, match=r"net.safetensors: .*; (trace|write)"):
        read_symmetry(path)


@pytest.mark.parametrize("name", ["nowhere", ".", "n" * 300, "zero\0byte"])
def test_what_cannot_be_opened_is_refused(tmp_path, name):
    for reader in (format_of, read_network, read_network_summary, read_symmetry):
        with pytest.raises(FileFormatError, match="cannot be read"):
            reader(tmp_path / name)


DOCUMENT = {
    "format": "consilience-network",
    "format_version": 1,
    "library_version": "1",
    "provenance": None,
    "symmetry": symmetry_to_json(SYMMETRY),
}
TEXT = json.dumps(DOCUMENT)
DEEP = json.loads("[" * 400 + "]" * 400)

FORGED = {
    "json": ("{nope", "metadata is not valid JSON"),
    "list": ("[]", "metadata is not valid at the whole"),
    "null": ("null", "metadata is not valid at the whole"),
    "deep": ("[" * 5_000 + "]" * 5_000, "metadata is not valid JSON"),
    "digits": ('{"format_version": ' + "9" * 5000 + "}", "metadata is not valid JSON"),
    "twice": (TEXT[:-1] + ', "format": "x"}', "'format' stands twice in one object"),
    "array twice": (TEXT.replace('"steps"', '"nothing"'), "'nothing' stands twice in one object"),
    "newer": ({"format_version": 2}, "format version 2, this library reads up to 1; update consilience"),
    "huge version": ({"format_version": 10**30}, "update consilience"),
    "version zero": ({"format_version": 0}, "not valid at format_version"),
    "version text": ({"format_version": "1"}, "not valid at format_version"),
    "other format": ({"format": "consilience-plane"}, "is a loss plane, expected a network"),
    "format list": ({"format": []}, "not valid at format"),
    "surplus": ({"surprise": 1}, "not valid at surprise"),
    "provenance": ({"provenance": []}, "not valid at provenance"),
    "provenance nan": ({"provenance": {"a": math.nan}}, "not valid at provenance"),
    "provenance deep": ({"provenance": {"a": DEEP}}, "nested deeper than 64 levels"),
    "symmetry": ({"symmetry": []}, "not valid at symmetry"),
    "symmetry empty": ({"symmetry": {}}, "its symmetry is not valid at groups: Field required"),
    "symmetry deep": ({"symmetry": {"notes": DEEP}}, "nested deeper than 64 levels"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", FORGED)
def test_forged_headers_are_refused(path, rng, case):
    change, message = FORGED[case]
    text = change if isinstance(change, str) else json.dumps({**DOCUMENT, **change})
    path.write_bytes(to_safetensors(arrays(rng), metadata={"consilience": text}))
    for reader in (read_network, read_network_summary, read_symmetry):
        with pytest.raises(FileFormatError, match=f"^.*net.safetensors: .*{message}"):
            reader(path)
    if case in ("json", "list", "null", "deep", "digits", "twice", "other format", "format list"):
        with pytest.raises(FileFormatError, match=r"net.safetensors: its metadata is not valid"):
            format_of(path)


def tensor(dtype="F32", shape=(1,), size=4):
    return raw({"x": {"dtype": dtype, "shape": list(shape), "data_offsets": [0, size]}}, bytes(size))


TENSORS = {
    "four bits": (tensor("F4", (8,)), "has type F4, expected one of F64"),
    "six bits": (tensor("F6_E2M3", (4,), 3), "has type F6_E2M3, expected one of F64"),
    "dimensions": (tensor(shape=[1] * 100), "cannot be read .*dimension"),
    "endless": (tensor(shape=(2**62, 0), size=0), "cannot be read .*too big"),
    "beyond": (tensor(shape=(2**63, 0), size=0), "cannot be read"),
    "beyond torch": (tensor("BF16", shape=(2**63, 0), size=0), "cannot be read"),
}


@pytest.mark.parametrize("case", TENSORS)
def test_forged_tensors_are_refused(path, case):
    content, message = TENSORS[case]
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=f"^.*net.safetensors: tensor 'x' {message}"):
        read_network(path)
    assert read_network_summary(path).kind == "checkpoint"


def changed(keys, value):
    """Return the document of the symmetry with something else at one place, or without that place."""
    document = symmetry_to_json(SYMMETRY)
    inside = document
    for key in keys[:-1]:
        inside = inside[key]
    if value is changed:
        del inside[keys[-1]]
    else:
        inside[keys[-1]] = value
    return document


GROUPS = symmetry_to_json(SYMMETRY)["groups"]
ROWS = ("arrays", "rows.weight", "axes", 0)


def two_segments(odd):
    """Return an axis of two segments, of two copies of the units each, with some odd copies of each."""
    return {"side": "output", "segments": [["in head", 2, 1], ["in head", 2, 1]], "odd": odd}


WRONG = {
    "unknown key": (("surprise",), 1, "at surprise"),
    "no groups": (("groups",), changed, "at groups: Field required"),
    "size zero": (("groups", 0, "size"), 0, "at groups.0.size"),
    "size a text": (("groups", 0, "size"), "2", "at groups.0.size"),
    "size a truth": (("groups", 0, "size"), True, "at groups.0.size"),
    "size absurd": (("groups", 0, "size"), 2**70, "at groups.0.size"),
    "order negative": (("groups", 0, "order"), -1, "at groups.0.order"),
    "action unknown": (("groups", 0, "actions"), ["rotate"], "at groups.0.actions.0"),
    "action twice": (("groups", 0, "actions"), ["sign", "sign"], "group 'head' has an action twice"),
    "parent unknown": (("groups", 1, "parent"), "body", "parent 'body', which does not exist"),
    "parent of itself": (("groups", 1, "parent"), "in head", "parent 'in head', which has a parent itself"),
    "grandparent": (("groups", 0, "parent"), "conv", "parent 'head', which has a parent itself"),
    "group twice": (("groups",), [*GROUPS, GROUPS[0]], "group 'head' stands twice"),
    "group without place": (("groups",), [*GROUPS, {**GROUPS[0], "name": "b"}], "group 'b' has no place"),
    "group missing": (("groups",), GROUPS[:2], "'conv.weight' axis 0 follows the group 'conv', which does not exist"),
    "side unknown": ((*ROWS, "side"), "left", "at arrays.rows.weight.axes.0.side"),
    "segments a text": ((*ROWS, "segments"), "all", "at arrays.rows.weight.axes.0.segments"),
    "segment too short": ((*ROWS, "segments"), [["head", 1]], "at arrays.rows.weight.axes.0.segments.0.2"),
    "outer zero": ((*ROWS, "segments"), [["head", 0, 1]], "at arrays.rows.weight.axes.0.segments.0.1"),
    "inner zero": ((*ROWS, "segments"), [["in head", 1, 0]], "'rows.weight' axis 0 gives the units .* no entries"),
    "inner negative": ((*ROWS, "segments"), [[None, 1, -1]], "at arrays.rows.weight.axes.0.segments.0.2"),
    "unknown group": ((*ROWS, "segments"), [["tail", 1, 1]], "'rows.weight' axis 0 follows the group 'tail'"),
    **{
        f"odd copies {odd}": (ROWS, two_segments(odd), "'rows.weight' axis 0 has odd copies")
        for odd in ([[0], [2]], [[2], [0]], [[0], [1, 1]], [[0], [1, 0]], [[0]], [[0], None, [0]])
    },
    "blocks zero": (("arrays", "conv.weight", "blocks"), 0, "at arrays.conv.weight.blocks"),
    "blocks of nothing": (("arrays", "steps", "blocks"), 2, "'steps' has 2 blocks but 0 axes"),
    "blocks uneven": (("arrays", "conv.weight", "blocks"), 3, "has length 4, which 3 blocks do not divide"),
    "split of nothing": (("arrays", "steps", "split"), [0, 2], "'steps' has an axis 0 stored as two, with 0 axes"),
    "split uneven": (("arrays", "scores", "split"), [1, 4], "'scores' axis 1 has length 6, which 4 does not divide"),
    "split of three": (("arrays", "scores", "split"), [1, 2, 3], "at arrays.scores.split"),
    "axes a dict": (("arrays", "steps", "axes"), {}, "at arrays.steps.axes"),
    "alias of nothing": (("aliases", "decode.weight"), "lost", "'decode.weight' is said to be 'lost'"),
    "alias of itself": (("aliases", "steps"), "steps", "'steps' is said to be 'steps', but has axes of its own"),
    "notes of numbers": (("notes",), [1], "at notes.0"),
    "proof surplus": (("proof", "by"), "me", "at proof.by"),
    "deviation nan": (("proof", "deviation"), math.nan, "at proof.deviation"),
    "trials none": (("proof", "trials"), 0, "at proof.trials"),
    "unprintable": ((*ROWS, "segments"), [["\x1b[31m", 1, 1]], r"follows the group '\\x1b\[31m'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_symmetries_are_refused_with_file_and_place(path, case):
    keys, value, message = WRONG[case]
    document = changed(keys, value)
    with pytest.raises(FileFormatError, match=f"^site: its symmetry is not valid.* {message}.*; trace it again"):
        symmetry_from_json(document, "site")
    header = {"format": "consilience-symmetry", "format_version": 1, "library_version": "1"}
    path.write_text(json.dumps({**header, "symmetry": document}))
    with pytest.raises(FileFormatError, match=f"net.safetensors: its symmetry is not valid.* {message}"):
        read_symmetry(path)


@pytest.mark.parametrize("odd", [None, [[0], [0, 1]], [None, []], [[1], None]], ids=str)
def test_odd_copies_are_some_of_the_copies_of_each_segment(odd):
    axis = symmetry_from_json(changed(ROWS, two_segments(odd)), "site").layouts["rows.weight"].axes[0]
    assert [segment.odd for segment in axis.segments] == [
        None if copies is None else tuple(copies) for copies in odd or (None, None)
    ]


def test_many_problems_are_counted():
    groups = [{**GROUPS[0], "name": f"g{number}"} for number in range(1000)]
    with pytest.raises(FileFormatError) as caught:
        symmetry_from_json(changed(("groups",), [*GROUPS, *groups]), "site")
    assert len(caught.value.problems) == 6
    assert caught.value.problems[-1] == "site: its symmetry has 995 more such problems [E-FILE]"


def places(document, before=()):
    inside = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in inside:
        yield (*before, key)
        if isinstance(value, dict | list):
            yield from places(value, (*before, key))


def test_no_change_of_a_symmetry_is_taken_for_the_proved_one():
    """Whatever is put in whatever place: refused, or read and no longer proved, and it never fails otherwise."""
    n_read = 0
    for keys in places(symmetry_to_json(SYMMETRY)):
        for value in (None, -1, 0, 1, 2, 3, 2**39, 2**70, 1.5, True, "x", "head", "conv", [], {}, ["x"], changed):
            document = changed(keys, value)
            try:
                loaded = symmetry_from_json(copy.deepcopy(document), "site")
            except FileFormatError:
                continue
            n_read += 1
            assert symmetry_to_json(loaded) == document
            resizable = keys[0] == "groups" and keys[-1] == "size" and loaded.all_groups[keys[1]].resizable
            free = keys[0] == "notes" or keys[:2] in (("proof", "deviation"), ("proof", "trials")) or resizable
            assert loaded.proved == (free or loaded == SYMMETRY), (keys, value)
            try:
                loaded.units(SHAPES)
            except InputError:
                continue
    assert n_read > 50


# -- Files of a symmetry.


def test_a_symmetry_file_is_text_and_always_the_same(tmp_path):
    path = tmp_path / "net.symmetry.json"
    write_symmetry(path, SYMMETRY)
    before = path.read_bytes()
    assert json.loads(before)["format"] == "consilience-symmetry"
    loaded = read_symmetry(path)
    assert loaded == SYMMETRY
    assert loaded.proved
    assert list(loaded.layouts) == list(SYMMETRY.layouts)
    write_symmetry(path, loaded)
    assert path.read_bytes() == before


def test_a_network_file_without_symmetry_is_no_symmetry(path):
    for arrays in ({"a": np.ones(3)}, {}):
        write_network(path, arrays)
        with pytest.raises(FileFormatError, match=r"net.safetensors: carries no symmetry; trace it again"):
            read_symmetry(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"{nope", "its content is not valid JSON"),
        (b"\x80\x05\x95abc", "its content is not valid JSON"),
        (b"[" * 5_000, "its content is not valid JSON"),
        (b"[]", "its content is not valid at the whole"),
        (b'{"format": "consilience-symmetry", "format_version": 2}', "has format version 2"),
        (b'{"format": "consilience-network", "format_version": 1}', "its content is not valid at format"),
    ],
)
def test_what_is_no_symmetry_file_is_refused(path, content, message):
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=f"net.safetensors: {message}"):
        read_symmetry(path)


def test_a_symmetry_file_without_end_is_not_read_whole(path, monkeypatch):
    monkeypatch.setattr("consilience.networks.files.MAX_HEADER_BYTES", 1000)
    write_symmetry(path, SYMMETRY)
    with pytest.raises(FileFormatError, match=r"net.safetensors: is too long for a symmetry"):
        read_symmetry(path)
