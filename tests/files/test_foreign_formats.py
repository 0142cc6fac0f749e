"""Files of other programs are named for what they are, with what converts them; nothing in them is loaded."""

import gzip
import pickle
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import consilience as cs
from consilience.api.kinds import inspect_file
from consilience.files.foreign_formats import foreign_problem
from tests.copies import COPIES


def module():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))


def optimiser():
    net = module()
    adam = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 3)).sum().backward()
    adam.step()
    return adam


def zipped(path, name, content=b""):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, content)


WHOLE = module().state_dict()
TORCH = {
    "state.pt": WHOLE,
    "lightning.ckpt": {"epoch": 3, "state_dict": WHOLE, "optimizer_states": [optimiser().state_dict()]},
    "loop.bin": {"model_state_dict": WHOLE, "optimizer_state_dict": optimiser().state_dict()},
    "detector.pth": {"model": WHOLE, "iteration": 3},
    "reversed.pt": {"optimizer_state_dict": optimiser().state_dict(), "net_state_dict": WHOLE},
    "submodules.pt": torch.nn.ModuleDict({"model": module(), "net": module()}).state_dict(),
}
PLAIN = ("state.pt", "submodules.pt")
CONVERTED = re.compile(
    r"; convert it once: `state = (torch\.load\(.+\)(?:\['\w+'\])?)`, then `(consilience\.save\(.+\))` \["
)


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", TORCH)
def test_the_two_lines_that_a_message_gives_convert_a_file_of_torch(tmp_path, monkeypatch, name, is_zip):
    monkeypatch.chdir(tmp_path)
    torch.save(TORCH[name], name, _use_new_zipfile_serialization=is_zip)
    with pytest.raises(cs.errors.FileFormatError, match="which is never loaded") as refused:
        cs.load(name)
    load, save = CONVERTED.search(str(refused.value)).groups()
    exec(f"state = {load}\n{save}", {"torch": torch, "consilience": cs})  # noqa: S102  (what users are told to run)
    weights = TORCH[name] if name in PLAIN else next(value for value in TORCH[name].values() if value is WHOLE)
    stored = load_file(Path(name).with_suffix(".safetensors"))
    assert stored.keys() == weights.keys()
    assert all(torch.equal(stored[key], values) for key, values in weights.items())


OTHERS = {
    "optimiser.pt": (lambda at: torch.save(optimiser().state_dict(), at), "is the state of an optimiser"),
    "module.pt": (lambda at: torch.save(module(), at), "is a whole module of torch"),
    "script.pt": (lambda at: zipped(at, "script/code/__torch__.py"), r"TorchScript.*torch\.jit\.load\(.*\.state_dict"),
    "junk.pt": (lambda at: at.write_bytes(b"nothing that anybody knows"), "is a pickle of torch by its name"),
    "model.pkl": (lambda at: at.write_bytes(pickle.dumps({"a": 1})), "is a pickle by its name"),
    "model.joblib": (lambda at: at.write_bytes(gzip.compress(b"x")), "is an archive; unpack it"),
    "keras.h5": (lambda at: at.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(99)), r"Keras \(HDF5\); .*keras\.models\.load"),
    "weights.keras": (lambda at: zipped(at, "metadata.json"), "is a file of Keras"),
    "chains.nc": (lambda at: at.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(99)), r"netCDF.*arviz\.from_netcdf"),
    "graph.onnx": (lambda at: at.write_bytes(b"\x08\x08\x12\x07pytorch" + bytes(99)), r"ONNX; .*\.to_array"),
    "llama.gguf": (lambda at: at.write_bytes(b"GGUF\3\0\0\0" + bytes(99)), r"GGUF.*quantised.*gguf_file='llama\.gguf'"),
    "unnamed": (lambda at: at.write_bytes(b"GGUF\3\0\0\0" + bytes(99)), "is a GGUF file"),
    "flax.msgpack": (lambda at: at.write_bytes(b"\x81\xa6params\x80" + bytes(9)), "Flax; .*msgpack_restore"),
    "saved.pb": (lambda at: at.write_bytes(b"\x08\x01\x12\x99" + bytes(99)), "is a file of TensorFlow"),
    "weights.zip": (lambda at: zipped(at, "weights.safetensors"), "is a zip archive.*; unpack it"),
    "lfs.safetensors": (lambda at: at.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
                        "is a pointer of Git LFS, .*; fetch the file itself: git lfs pull"),
    "annex.safetensors": (lambda at: at.write_text("/annex/objects/SHA256E-s9--0.safetensors\n"),
                          "is a pointer of git-annex, .*git annex get"),
    "page.safetensors": (lambda at: at.write_text("\n<!DOCTYPE html><html>404</html>"), "is a web page or XML"),
    "model.safetensors.index.json": (lambda at: at.write_text('{"weight_map": {"a": "b"}}'),
                                     "is the index of a checkpoint in several files; merge takes it"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_files_are_named_for_what_they_are(tmp_path, name):
    write, message = OTHERS[name]
    write(tmp_path / name)
    with pytest.raises(cs.errors.FileFormatError, match=message):
        cs.load(tmp_path / name)


def test_the_index_of_a_checkpoint_without_its_files_is_refused_where_it_is_inspected(tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "b"}}')
    with pytest.raises(cs.errors.FileFormatError, match="names the file b, which does not exist"):
        inspect_file(index)


@COPIES
@pytest.mark.parametrize("name", ["state.pt", "weights.bin", "a.ckpt", "plain"])
def test_a_safetensors_file_is_one_by_whatever_name(tmp_path, name):
    save_file(WHOLE, tmp_path / name)
    fused = cs.fuse([tmp_path / name, module().state_dict()], "average")
    assert all(torch.equal(torch.as_tensor(fused.network.arrays[key]), values) for key, values in WHOLE.items())


@pytest.mark.parametrize("cut", [9, 60, -20])
def test_a_truncated_safetensors_file_is_named_as_such(tmp_path, cut):
    save_file(WHOLE, tmp_path / "a.safetensors")
    (tmp_path / "a.safetensors").write_bytes((tmp_path / "a.safetensors").read_bytes()[:cut])
    with pytest.raises(cs.errors.FileFormatError, match=r"a\.safetensors: is truncated or not a safetensors file"):
        cs.load(tmp_path / "a.safetensors")


def test_no_bytes_make_it_fail():
    draw = np.random.default_rng(0)
    starts = [b"PK\x03\x04", b"\x80\x02ctorch\nX", b"\x80\x04\x8c\xff", b"version https://git-lfs", b"", b"\x1f\x8b"]
    for trial in range(300):
        start = starts[trial % len(starts)] + draw.bytes(int(draw.integers(0, 200)))
        problem = foreign_problem(Path("a.pt"), start)
        assert problem.remedy
