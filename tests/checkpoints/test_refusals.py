"""What keeps checkpoints from being merged is said before a byte is written, all of it, by name."""

import json
import struct

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import consilience as cs
from consilience.networks.symmetry.axes import Axis, Layout
from consilience.networks.symmetry.symmetry import Symmetry
from tests.checkpoints.some_checkpoints import read, tensors, write


def refused(tmp_path, models, match=None, error=cs.errors.InputError, **arguments):
    """Return why a merge is refused; nothing was written."""
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(error, match=match) as caught:
        cs.merge(models, tmp_path / "out", **arguments)
    assert sorted(tmp_path.rglob("*")) == before
    return str(caught.value)


def test_everything_that_differs_is_told_at_once(tmp_path):
    one = tensors(0)
    two = tensors(1)
    two["model.layers.0.mlp.down_proj.weight"] = torch.zeros(16, 25, dtype=torch.bfloat16)
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        two[name] = torch.zeros(41, 16, dtype=torch.bfloat16)
    del two["model.norm.weight"]
    two["model.extra"] = torch.zeros(1)
    two["model.layers.1.mlp.up_proj.weight"] = torch.zeros(24, 16, dtype=torch.int64)
    models = [write(tmp_path / "a", one), write(tmp_path / "b", two), tmp_path / "missing"]
    assert "missing: does not exist" in refused(tmp_path, models)
    said = refused(tmp_path, models[:2], patterns=[{"pattern": "nothing.*", "weights": [1, 0]}])
    for part in (
        "lacks model.norm.weight",
        "has model.extra",
        "model.layers.0.mlp.down_proj.weight has shape [16, 25]",
        "the vocabularies differ in size",
        "real, complex and other numbers do not mix",
        "'nothing.*' matches no tensor",
    ):
        assert part in said
    assert said.count("vocabularies") == 2


def test_tied_weights_that_only_one_stores_are_explained(tmp_path):
    one, two = tensors(0), tensors(1)
    del two["lm_head.weight"]
    models = [write(tmp_path / "a", one), write(tmp_path / "b", two, {"tie_word_embeddings": True})]
    said = refused(tmp_path, models, "lacks lm_head.weight")
    assert "tie it to the embedding" in said
    assert "b says tie_word_embeddings" in said


@pytest.mark.parametrize("method", ["average", "ties", "dare", "slerp"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_found_by_name(tmp_path, method, value):
    states = [tensors(0), tensors(1)]
    states[1]["model.norm.weight"][3] = value
    models = [write(tmp_path / name, state) for name, state in zip("ab", states, strict=True)]
    base = {"base": write(tmp_path / "base", tensors(2))} if method in ("ties", "dare") else {}
    with pytest.raises(cs.errors.InputError, match=r"/b: model\.norm\.weight has NaN or infinite values"):
        cs.merge(models, tmp_path / "out", method, **base)
    assert {path.name for path in tmp_path.iterdir()} <= {"a", "b", "base"}
    copied = [{"pattern": "model.norm.*", "method": "copy", "from": 1}]
    done = cs.merge(models, tmp_path / "out", method, **base, patterns=copied)
    assert not torch.isfinite(read(done.output)["model.norm.weight"]).all()


def test_values_beyond_the_type_of_the_output_are_refused(tmp_path):
    state = tensors(0) | {"big": torch.tensor([1e5], dtype=torch.float32)}
    model = write(tmp_path / "a", state)
    with pytest.raises(cs.errors.InputError, match=r"big: merged values reach 1e\+05, beyond float16"):
        cs.merge([model, model], tmp_path / "out", dtype="float16")
    small = read(cs.merge([model, model], tmp_path / "small", dtype="float8_e4m3fn").output)
    assert small["big"].float().item() == 448.0


def test_pickles_are_never_opened(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")
    (tmp_path / "b.bin").write_bytes(b"\x80\x04cos\nsystem\n")
    (tmp_path / "c.safetensors").write_bytes(b"PK\x03\x04\x14\x00\x08\x08" + bytes(40))
    models = [tmp_path / "a", tmp_path / "b.bin", tmp_path / "c.safetensors"]
    said = refused(tmp_path, models)
    assert said.count("never loaded") == 3
    assert "safe_serialization=True" in said


@pytest.mark.parametrize(
    "name", ["../secret.safetensors", "/etc/passwd", "sub/x.safetensors", "..\\x.safetensors", "C:x", "", "."]
)
def test_an_index_names_nothing_outside_of_its_folder(tmp_path, name):
    save_file(tensors(0), tmp_path / "secret.safetensors")
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    refused(tmp_path, [folder], "no plain name of a file next to it")


def test_a_link_out_of_a_folder_is_not_followed_but_in_the_hubs_cache(tmp_path):
    save_file(tensors(0), tmp_path / "secret.safetensors")
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to(tmp_path / "secret.safetensors")
    refused(tmp_path, [folder], "link to a file outside")
    cached = tmp_path / "models--x" / "snapshots" / "1234"
    (tmp_path / "models--x" / "blobs").mkdir(parents=True)
    cached.mkdir(parents=True)
    save_file(tensors(0), tmp_path / "models--x" / "blobs" / "abcd")
    (cached / "model.safetensors").symlink_to("../../blobs/abcd")
    (tmp_path / "private.json").write_text("{}")
    (cached / "special.json").symlink_to(tmp_path / "private.json")
    done = cs.merge([cached], tmp_path / "out")
    assert not (done.output / "special.json").exists()
    assert any("special.json" in note for note in done.notes)


def test_an_index_and_its_files_must_agree(tmp_path):
    folder = write(tmp_path / "a", tensors(0), shards=2)
    index = folder / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"]["model.ghost"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(document))
    refused(tmp_path, [folder], r"names tensors that their files do not have: model\.ghost")
    del document["weight_map"]["model.ghost"]
    index.write_text(json.dumps(document))
    (folder / "model-00002-of-00002.safetensors").unlink()
    refused(tmp_path, [folder], r"names the file model-00002-of-00002\.safetensors, which does not exist")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\x10", "truncated"),
        (struct.pack("<Q", 2**62) + b"{}", "truncated or not a safetensors file"),
        (struct.pack("<Q", 50) + b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', "not a safetensors file"),
        (struct.pack("<Q", 2) + b"{}", "has no tensors"),
    ],
)
def test_files_that_are_not_what_their_name_says(tmp_path, content, said):
    (tmp_path / "a.safetensors").write_bytes(content)
    refused(tmp_path, [tmp_path / "a.safetensors"], said)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"weight_map": {}}', '{"weight_map": {"a": 1}}', "[" * 10000])
def test_an_index_that_is_none(tmp_path, text):
    folder = write(tmp_path / "a", tensors(0), shards=2)
    (folder / "model.safetensors.index.json").write_text(text)
    refused(tmp_path, [folder], r"index\.json: its content is not valid")


def test_quantised_weights_are_refused(tmp_path):
    state = tensors(0) | {
        "q.weight": torch.zeros(4, 4, dtype=torch.float8_e4m3fn), "q.weight_scale_inv": torch.ones(1, 1)
    }  # fmt: skip
    model = write(tmp_path / "a", state)
    refused(tmp_path, [model, model], r"is quantised with scales of its own \(q\.weight\): packed numbers have no mean")


FOLDERS = {
    "nothing": ({}, "has no model.safetensors and no model.safetensors.index.json; save it"),
    "a pickle": ({"pytorch_model.bin": b"\x80"}, r"has only pickles \(pytorch_model\.bin\), which are never loaded"),
    "GGUF alone": ({"m.gguf": b"GGUF"}, r"no model\.safetensors; m\.gguf is a GGUF file.*gguf_file='m\.gguf'"),
    "Flax alone": ({"flax_model.msgpack": b"\x81"}, "flax_model.msgpack is a msgpack file of Flax; convert it once"),
    "Keras alone": ({"tf_model.h5": b"\x89HDF"}, "tf_model.h5 is a file of Keras"),
    "one part of two": ({"model-00001-of-00002.safetensors": None}, "has 1 of the 2 parts of a checkpoint, and no"),
    "parts without an index": ({f"model-0000{i}-of-00002.safetensors": None for i in (1, 2)}, "has 2 of the 2 parts"),
    "an empty file": ({"model.safetensors": b""}, "model.safetensors: is empty"),
    "a pointer": ({"model.safetensors": b"version https://git-lfs.github.com/spec/v1\n"}, "a pointer of Git LFS"),
    "a truncated file": ({"model.safetensors": b"\x99\0\0\0\0\0\0\0{"}, "is truncated or not a safetensors file"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_without_weights_are_named_for_what_they_have(tmp_path, name):
    files, message = FOLDERS[name]
    (tmp_path / "a").mkdir()
    for file, content in files.items():
        if content is None:
            save_file({"w": torch.ones(2)}, tmp_path / "a" / file)
        else:
            (tmp_path / "a" / file).write_bytes(content)
    refused(tmp_path, [tmp_path / "a"] * 2, message)


def test_types_that_nothing_here_calculates_with_are_named(tmp_path):
    header = b'{"a":{"dtype":"F8_E8M0","shape":[4],"data_offsets":[0,4]}}'
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    refused(tmp_path, [tmp_path / "a.safetensors"], "a: type F8_E8M0 cannot be merged")


def test_outputs_that_exist_are_not_touched(tmp_path):
    models = [write(tmp_path / name, tensors(seed)) for seed, name in enumerate("ab")]
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    refused(tmp_path, models, "is not empty")
    refused(tmp_path, models, "not overwritten", cs.errors.OptionError, overwrite=True)
    for inside in (models[0], models[0] / "x", tmp_path):
        with pytest.raises(cs.errors.InputError, match="one of the inputs"):
            cs.merge(models, inside, overwrite=True)
    with pytest.raises(cs.errors.InputError, match="there is no folder"):
        cs.merge(models, tmp_path / "no" / "out")
    (tmp_path / "link").symlink_to(out)
    with pytest.raises(cs.errors.InputError, match="is a link"):
        cs.merge(models, tmp_path / "link")
    (tmp_path / "file.safetensors").write_bytes(b"")
    with pytest.raises(cs.errors.InputError, match="exists"):
        cs.merge(models, tmp_path / "file.safetensors")
    (tmp_path / "empty").mkdir()
    assert cs.merge(models, tmp_path / "empty").output.is_dir()


def test_methods_get_what_they_need_and_nothing_else(tmp_path):
    models = [write(tmp_path / name, tensors(seed)) for seed, name in enumerate("ab")]
    refused(tmp_path, models, "needs `base=", method="ties")
    refused(tmp_path, models, "no method here looks at one", base=models[0])
    refused(tmp_path, models, "needs `fishers=", method="fisher")
    refused(tmp_path, models, "no method here looks at them", fishers=models)
    refused(tmp_path, models, "there are 1 for 2 models", method="fisher", fishers=models[:1])
    unmoved = {name: Layout(tuple(Axis(()) for _ in values.shape)) for name, values in read(models[0]).items()}
    refused(tmp_path, models, "one numbering", method="ties", base=models[0], symmetry=Symmetry(unmoved, ()))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"method": "slerp", "models": 3}, "takes 2 models, found 3"),
        ({"method": "slerp", "weights": [1, 2]}, "its option t says"),
        ({"method": "slerp", "t": float("nan")}, "must be a number"),
        ({"method": "ties", "density": 0.0}, "above 0 and at most 1"),
        ({"method": "dare", "combine": "sum"}, "'linear' or 'ties'"),
        ({"method": "median"}, "does not exist for checkpoints; there are average"),
        ({"method": "average", "density": 1}, "has no option density"),
        ({"method": "fisher", "favor_target": 2}, "there are 2 models"),
        ({"method": "task_arithmetic", "scaling": float("nan")}, "must be a number"),
        ({"weights": [1, 2, 3]}, "expected 2 numbers"),
        ({"weights": [0, 0]}, "not all zero"),
        ({"dtype": "int8"}, "dtype: expected one of float64"),
        ({"shard_bytes": "five"}, "expected a size"),
        ({"rng": -1}, "rng: expected"),
        ({"threads": 0}, "threads: expected"),
        ({"patterns": [{"pattern": "*", "method": "copy", "from": 2}]}, "numbered from 0; found 2"),
        ({"patterns": [{"pattern": "*", "method": "copy", "weights": [1, 1]}]}, "no weights"),
        ({"patterns": [{"pattern": "*", "from": 1}]}, "for method copy"),
        ({"symmetry": 3}, "expected a Symmetry"),
        ({"module": 3}, "give both"),
        ({"symmetry": "x", "example": 1}, "give one of them"),
    ],
)
def test_options_that_do_not_fit_are_said_to(tmp_path, arguments, said):
    count = arguments.pop("models", 2)
    models = [write(tmp_path / str(number), {"w": torch.zeros(2)}) for number in range(count)]
    refused(tmp_path, models, said, cs.errors.OptionError, **arguments)


def test_models_are_paths(tmp_path):
    with pytest.raises(cs.errors.OptionError, match="expected a list of paths"):
        cs.merge(str(tmp_path), tmp_path / "out")
    with pytest.raises(cs.errors.InputError, match="save it first"):
        cs.merge([np.zeros(3)], tmp_path / "out")
    with pytest.raises(cs.errors.InputError, match="there are none"):
        cs.merge([], tmp_path / "out")


def test_headers_indices_and_configurations_that_were_mutated_are_refused_or_read(tmp_path):
    folder = write(tmp_path / "a", tensors(0), shards=2)
    rng = np.random.default_rng(0)
    read_again = refusals = 0
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        length = min(len(whole), 600)
        for _ in range(60):
            data = bytearray(whole)
            for at in rng.integers(0, length, size=int(rng.integers(1, 4))):
                data[at] = rng.integers(0, 256)
            if rng.random() < 0.2:
                del data[int(rng.integers(0, len(data))) :]
            path.write_bytes(data)
            try:
                cs.merge([folder], tmp_path / "out", dry_run=True)
                read_again += 1
            except cs.ConsilienceError:
                refusals += 1
        path.write_bytes(whole)
    assert read_again
    assert refusals > read_again / 2


def test_a_disk_that_is_too_full_is_known_before(tmp_path, monkeypatch):
    import shutil
    from collections import namedtuple

    model = write(tmp_path / "a", tensors(0))
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 10, 100))
    with pytest.raises(cs.errors.InputError, match="has 100 left; make room"):
        cs.merge([model], tmp_path / "out")
    assert not (tmp_path / "out").exists()
