"""Formats of other programs: recognised by a file's first bytes, else by its name, with what converts it.

Nothing is loaded: pickles are searched for the texts in them, which says whether they hold a state dict, a training
checkpoint, the state of an optimiser or a whole module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from consilience.errors import Problem

START_BYTES = 2**16
"""Bytes of a file that are looked at: far below what reading the smallest file may allocate (`budget.ALLOWANCE`). The
pickle of a checkpoint of torch lies at its start, its numbers behind it."""

_NEVER = "which is never loaded"

_PICKLED_TEXT = re.compile(rb"(?s)(?:X(?P<long>..)\0\0|\x8c(?P<short>.))(?P<text>[A-Za-z_]\w*)")
"""A text in a pickle: BINUNICODE has its length in four bytes, SHORT_BINUNICODE in one."""

_TENSOR = b"_rebuild_tensor"
"""The function whose name stands before the first tensor in a pickle of torch."""

_STATE_KEY = re.compile(r"(?!optim|opt_|sched|lr_|scaler)(?:\w+_)?state_dict$")
_LOOSE_STATE_KEYS = ("model", "net", "network", "module", "model_state")
"""Keys under which training checkpoints have the weights; those of the second kind are names of submodules, too."""

_HDF5, _ARRAYS_TO_FILE = b"\x89HDF\r\n\x1a\n", "`safetensors.numpy.save_file(arrays, {target!r})`"

_FORMATS: dict[tuple[str, ...], tuple[str, str]] = {
    (".nc", ".nc4"): ("a netCDF file", "read it with arviz.from_netcdf, and hand in what that returns"),
    (".h5", ".hdf5", ".keras"): (
        "a file of Keras (HDF5)",
        "convert it once: `arrays = {{w.path: w.numpy() for w in keras.models.load_model({name!r}).weights}}`, then "
        + _ARRAYS_TO_FILE,
    ),
    (".onnx",): (
        "a graph of ONNX",
        "convert it once: `arrays = {{t.name: onnx.numpy_helper.to_array(t) for t in "
        "onnx.load({name!r}).graph.initializer}}`, then " + _ARRAYS_TO_FILE,
    ),
    (".gguf",): (
        "a GGUF file of llama.cpp, whose weights are quantised as a rule",
        "take the checkpoint that it was made from, or convert it once: `model = "
        "AutoModelForCausalLM.from_pretrained('.', gguf_file={name!r})`, then `model.save_pretrained({stem!r})`",
    ),
    (".msgpack",): (
        "a msgpack file of Flax",
        "convert it once: `arrays = flax.traverse_util.flatten_dict(flax.serialization.msgpack_restore("
        "open({name!r}, 'rb').read()), sep='.')`, then " + _ARRAYS_TO_FILE,
    ),
    (".pb", ".tflite", ".index", ".meta"): (
        "a file of TensorFlow",
        "convert it where it was trained: safetensors.numpy.save_file with its variables by name",
    ),
    (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".7z"): ("an archive", "unpack it first"),
    (".pt", ".pth", ".ckpt", ".bin"): (f"a pickle of torch by its name, {_NEVER}", ""),
    (".pkl", ".pickle", ".joblib"): (
        f"a pickle by its name, {_NEVER}",
        "write it with consilience.save where it was trained",
    ),
}
"""What a file is by the end of its name, and what to do with it; "" where `_torch_remedy` says it."""

_BY_SUFFIX = {suffix: form for suffixes, form in _FORMATS.items() for suffix in suffixes}

_LFS, _ANNEX, _PAGES = b"version https://git-lfs", b"/annex/objects/", (b"<!doctype html", b"<html", b"<?xml")
_ARCHIVES = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf\x27\x1c")
"""First bytes of gzip, bzip2, xz, zstandard and 7-Zip."""


def foreign_problem(path: Path, start: bytes) -> Problem | None:
    """Return what a file is that is no safetensors file, and what converts it; None where nothing says it.

    `start` is its first `START_BYTES` bytes.
    """
    is_lfs = start.startswith(_LFS)
    if is_lfs or _ANNEX in start[:400]:
        tool, fetch = ("Git LFS", "git lfs pull") if is_lfs else ("git-annex", "git annex get")
        return _problem(path, f"is a pointer of {tool}, a text in place of the file", f"fetch the file itself: {fetch}")
    if start.lstrip()[:20].lower().startswith(_PAGES):
        return _problem(path, "is a web page or XML, not the file that was asked for", "fetch it again")
    if start.startswith(b"PK\x03\x04"):
        return _in_zip(path, start)
    if re.match(rb"\x80[\x02-\x05]", start) or (start[:1] == b"}" and path.suffix in (".pkl", ".pickle")):
        return _in_pickle(path, start)
    if start.startswith(_ARCHIVES) or start[257:262] == b"ustar":
        return _problem(path, "is an archive", "unpack it first")
    if path.name.endswith(".index.json"):
        remedy = "merge takes it (consilience.merge), or load the model and save it in one file (max_shard_size)"
        return _problem(path, "is the index of a checkpoint in several files", remedy)
    if start.startswith(b"GGUF"):
        return _named(path, ".gguf")
    if start.startswith(_HDF5) and path.suffix.lower() not in (".nc", ".nc4", ".h5", ".hdf5", ".keras"):
        return _problem(path, "is an HDF5 file, as Keras and ArviZ write", "read it with the library that wrote it")
    return named_foreign(path)


def named_foreign(path: Path) -> Problem | None:
    """Return what a file is by its name, and what converts it; None for a name that says nothing."""
    suffix = path.suffix.lower()
    return _named(path, suffix) if suffix in _BY_SUFFIX else None


def part_of_checkpoint(path: Path) -> tuple[int, int] | None:
    """Return which part of how many a file is by its name, as save_pretrained names those of a sharded checkpoint.

    Examples
    --------
    >>> part_of_checkpoint(Path("model-00001-of-00003.safetensors"))
    (1, 3)
    """
    match = re.search(r"-(\d{5})-of-(\d{5})\.safetensors$", path.name)
    return (int(match[1]), int(match[2])) if match and int(match[2]) > 1 else None


def _problem(path: Path, text: str, remedy: str) -> Problem:
    return Problem(path, text, remedy, "E-FILE")


def _named(path: Path, suffix: str) -> Problem:
    called, remedy = _BY_SUFFIX[suffix]
    filled = remedy.format(name=path.name, stem=path.stem, target=f"{path.stem}.safetensors")
    return _problem(path, f"is {called}", filled or _torch_remedy(path))


def _torch_remedy(path: Path, load: str = "torch.load({name!r}, weights_only=True)", key: str = "") -> str:
    """Return the two lines that convert a file of torch."""
    loaded = load.format(name=path.name) + (f"[{key!r}]" if key else "")
    return f"convert it once: `state = {loaded}`, then `consilience.save(state, '{path.stem}.safetensors')`"


def _in_zip(path: Path, start: bytes) -> Problem:
    """Return what a zip archive is by the name of its first file."""
    first = start[30 : 30 + int.from_bytes(start[26:28], "little")]
    if first.endswith(b"data.pkl") or b"__torch__" in start:
        return _in_pickle(path, start)
    if path.suffix == ".keras" or first == b"metadata.json":
        return _named(path, ".keras")
    if first.endswith(b".npy"):
        text = "is a zip archive of NumPy arrays, expected the file of a model"
        return _problem(path, text, "write it with consilience.save, or its arrays with safetensors.numpy.save_file")
    return _problem(path, f"is a zip archive, {_NEVER}", "unpack it, and write its model with consilience.save")


def _in_pickle(path: Path, start: bytes) -> Problem:
    """Return what a pickle holds by the texts in it: weights, and under which key, an optimiser, a whole module."""
    if b"__torch__" in start:
        remedy = _torch_remedy(path, "torch.jit.load({name!r}).state_dict()")
        return _problem(path, f"is a TorchScript archive, a pickle with code, {_NEVER}", remedy)
    if b"torch" not in start:
        remedy = "write it with consilience.save where it was trained"
        return named_foreign(path) or _problem(path, f"is a pickle or zip archive, {_NEVER}", remedy)
    texts = list(_pickled_texts(start))
    if key := _state_key(texts, start.find(_TENSOR)):
        text = f"is a training checkpoint of torch (weights under {key!r}), a pickle, {_NEVER}"
        return _problem(path, text, _torch_remedy(path, key=key))
    if any(text == "param_groups" for _, text in texts):
        remedy = "give the model's: `consilience.save(module, 'model.safetensors')`"
        return _problem(path, f"is the state of an optimiser, not of a model, and a pickle, {_NEVER}", remedy)
    if b"torch.nn.modules" in start:
        remedy = f"write it where it was trained: `consilience.save(module, '{path.stem}.safetensors')`"
        return _problem(path, f"is a whole module of torch, a pickle that runs code, {_NEVER}", remedy)
    return _problem(path, f"is a file of torch.save, a pickle or zip archive, {_NEVER}", _torch_remedy(path))


def _pickled_texts(start: bytes) -> Iterator[tuple[int, str]]:
    """Yield the texts in a pickle that are names, with their places."""
    for match in _PICKLED_TEXT.finditer(start):
        length = int.from_bytes(match["long"] or match["short"], "little")
        if length <= len(match["text"]):
            yield match.start(), match["text"][:length].decode()


def _state_key(texts: Sequence[tuple[int, str]], first_tensor: int) -> str:
    """Return the key under which a training checkpoint has the weights; "" for what is none.

    Names of submodules stand in a state dict too, behind its tensors.
    """
    for place, text in texts:
        if _STATE_KEY.match(text) or (text in _LOOSE_STATE_KEYS and place < first_tensor):
            return text
    return ""
