"""What is refused of checkpoints that are merged tensor by tensor, and of shards of posteriors."""

from __future__ import annotations

import json
import struct
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

import consilience as cs
from tests.checkpoints.some_checkpoints import write
from tests.refusals.tables.nets import filed, mlp, orthogonal, recurrent_symmetry
from tests.refusals.tables.things import each, named, normal, option_cases, topics, written

SMALL = {
    "model.embed_tokens.weight": (40, 16),
    "model.layers.0.mlp.up_proj.weight": (16, 24),
    "model.norm.weight": (16,),
    "lm_head.weight": (40, 16),
}


def state(seed=0, **changes):
    """Return tensors by name, some changed; None leaves one out."""
    draw = torch.Generator().manual_seed(seed)
    found = {name: torch.randn(shape, generator=draw).to(torch.bfloat16) for name, shape in SMALL.items()}
    found |= {name.replace("__", "."): values for name, values in changes.items()}
    return {name: values for name, values in found.items() if values is not None}


def two(config=None, **changes):
    """Write two checkpoints, the second changed, and return their paths."""
    return [write("a", state(0)), write("b", state(1, **changes), config)]


def merged(method="average", models=None, output="out", **options):
    """Merge two checkpoints."""
    return cs.merge(two() if models is None else models, output, method, **options)


def folder_with(name, content, shards=2):
    """Return a checkpoint with one file changed."""
    folder = write("a", state(0), shards=shards)
    written(folder / name, content)
    return [folder]


def in_parts(dtype=torch.float32, **options):
    """Merge two checkpoints whose weight is held in the parts of weight normalisation."""
    parts = {"l.weight_g": torch.ones(3, 1), "l.weight_v": torch.ones(3, 2, dtype=dtype)}
    return merged(models=[filed(parts, f"parts-{number}.safetensors") for number in (0, 1)], **options)


def lone(name, content):
    """Return a folder with one file."""
    Path("a").mkdir()
    written(Path("a") / name, content)
    return ["a"]


INDEX = "model.safetensors.index.json"


def ghost():
    """Return a checkpoint whose index names a tensor that no file has."""
    folder = write("a", state(0), shards=2)
    document = json.loads((folder / INDEX).read_text())
    document["weight_map"]["model.ghost"] = "model-00001-of-00002.safetensors"
    (folder / INDEX).write_text(json.dumps(document))
    return [folder]


def one_shard_less():
    """Return a checkpoint that lacks one of its files."""
    folder = write("a", state(0), shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    return [folder]


def linked():
    """Return a checkpoint whose file is a link out of its folder."""
    save_file(state(0), "secret.safetensors")
    Path("a").mkdir()
    (Path("a") / "model.safetensors").symlink_to(Path("secret.safetensors").resolve())
    return ["a"]


def several():
    """Return a folder of several files without an index."""
    Path("a").mkdir()
    for name in "xy":
        save_file(state(0), f"a/{name}.safetensors")
    return ["a"]


def existing(what):
    """Merge into what is there already."""
    models = two()
    Path("full").mkdir()
    written("full/thesis.txt", "years of work")
    written("file.safetensors", b"")
    Path("link").symlink_to("full")
    options = {"full": {}, "overwritten": {"output": "full", "overwrite": True}, "an input": {"output": "a",
    "overwrite": True},
               "in an input": {"output": "a/x", "overwrite": True}, "around": {"output": ".", "overwrite": True},
               "no folder": {"output": "no/out"}, "link": {}, "file.safetensors": {}}[what]  # fmt: skip
    return merged(models=models, **{"output": what, **options})


def with_fishers(count=2, change=None, kind="diagonal"):
    """Merge networks by their Fisher information, files of it changed."""
    from tests.networks.informed_nets import observations, perceptron

    paths = []
    for number in range(2):
        net = perceptron(number)
        filed(net.state_dict(), f"{number}.safetensors")
        cs.save(cs.fisher(net, observations(number), kind, minimum=1), f"{number}.fisher")
        paths.append(f"{number}.fisher")
    fishers = paths[:count] if change is None else change(paths)
    return cs.merge(["0.safetensors", "1.safetensors"], "out", "fisher", fishers=fishers)


def quantised(kind):
    """Return tensors that are packed as a library writes them."""
    ints = torch.arange(8, dtype=torch.int32).reshape(2, 4)
    return {
        "GPTQ": {"l.qweight": ints, "l.qzeros": ints + 1, "l.scales": torch.ones(4), "l.g_idx": ints[0].clone()},
        "AWQ": {"l.qweight": ints, "l.qzeros": ints + 1, "l.scales": torch.ones(4)},
        "HQQ": {"l.W_q": ints.to(torch.uint8), "l.scale": torch.ones(4), "l.zero": torch.ones(4)},
        "compressed-tensors": {"l.weight_packed": ints, "l.weight_scale": torch.ones(4)},
        "MXFP4": {"l.proj_blocks": ints.to(torch.uint8), "l.proj_scales": ints[0].to(torch.uint8)},
        "torchao": {"l.weight:qdata": ints.to(torch.int8), "l.weight:scale": torch.ones(4)},
        "a stated method": {"l.weight": ints.to(torch.int8)},
        "integers alone": {"step": torch.ones(1, dtype=torch.int64)},
        "an optimiser": {"state.0.exp_avg": torch.ones(4), "state.0.exp_avg_sq": torch.ones(4)},
    }[kind]


UNFIT = (
    "GPTQ", "AWQ", "HQQ", "compressed-tensors", "MXFP4", "torchao", "a stated method", "integers alone", "an optimiser",
)  # fmt: skip


def unfit(kind):
    """Write two such checkpoints, and return their paths."""
    config = {"quantization_config": {"quant_method": "my-method"}} if kind == "a stated method" else None
    return [
        write(name, {key: values + seed for key, values in quantised(kind).items()}, config)
        for seed, name in enumerate("ab")
    ]


def ours(kind):
    """Write a file of the library that holds no weights, and return its path."""
    cs.save(normal() if kind == "posterior" else cs.Draws({"b": np.random.default_rng(0).normal(size=(200, 2))}), kind)
    return [kind, kind]


def adapters(first, second):
    """Write two adapters of other settings, and return their paths."""
    from tests.checkpoints.some_adapters import factors, write_adapter

    return [write_adapter(name, factors(0), **one) for name, one in (("a", first), ("b", second))]


FOREIGN = {
    "torch.pt": b"PK\x03\x04" + bytes(22) + b"\x0e\0\0\0" + b"torch/data.pkl" + b"ctorch._utils\n_rebuild_tensor_v2\n",
    "lightning.ckpt": b"\x80\x02ctorch\n}X\x0a\0\0\0state_dict",
    "optimiser.pt": b"\x80\x02torchX\x0c\0\0\0param_groups",
    "keras.h5": b"\x89HDF\r\n\x1a\n" + bytes(40), "graph.onnx": b"\x08\x08\x12\x07pytorch" + bytes(40),
    "llama.gguf": b"GGUF\x03\0\0\0" + bytes(40), "flax.msgpack": b"\x81\xa6params\x80" + bytes(40),
    "pointer.safetensors": b"version https://git-lfs.github.com/spec/v1\n",
    "page.safetensors": b"<!DOCTYPE html><html>",
    "weights.tar.gz": b"\x1f\x8b\x08" + bytes(40),
}  # fmt: skip
HEADER = b'{"a":{"dtype":"F8_E8M0","shape":[4],"data_offsets":[0,4]}}'
NAN = torch.full((16,), float("nan"), dtype=torch.bfloat16)
TENSORS = "average fisher ties dare task_arithmetic slerp"
MERGED = {
    **each("merge, checkpoints that differ: ", {
        "a shape": {"model__layers__0__mlp__up_proj__weight": torch.zeros(16, 25)},
        "a vocabulary": {"lm_head__weight": torch.zeros(41, 16), "model__embed_tokens__weight": torch.zeros(41, 16)},
        "a tensor less": {"model__norm__weight": None}, "a tensor more": {"model__extra": torch.zeros(1)},
        "integers": {"model__norm__weight": torch.zeros(16, dtype=torch.int64)}, "tied": {"lm_head__weight": None,
        "config": {"tie_word_embeddings": True}}, "NaN": {"model__norm__weight": NAN},
        "quantised": {"lm_head__weight_scale_inv": torch.ones(1, 1)},
        "complex": {"model__norm__weight": torch.zeros(16, dtype=torch.complex64)},
    }, lambda changes: merged(models=two(**changes))),
    "merge, truth values that differ": lambda at: merged(models=[
        write(name, state(0, mask=torch.tensor([value, False]))) for name, value in (("a", True), ("b", False))]),
    "merge, a prefix and more": lambda at: merged(models=[write("a", state(0)), write(
        "b", {f"bert.{name}": values for name, values in state(1).items()} | {"cls.weight": torch.ones(2)})]),
    **each("merge, files: ", {
        "a pickle in a folder": lambda: lone("pytorch_model.bin", b"\x80\x04cos\nsystem\n"),
        "an empty folder": lambda: lone("notes.txt", "nothing"), "several files": several, "a link": linked,
        "a shard less": one_shard_less, "a tensor less than the index": ghost,
        "a config that is none": lambda: folder_with("config.json", "[]"),
        "a config that is no JSON": lambda: folder_with("config.json", "{nope"),
        **{f"an index {text[:16]!r}": partial(folder_with, INDEX, text)
           for text in ("", "[]", "{", '{"weight_map": {}}', '{"weight_map": {"a": 1}}')},
        **{f"an index that names {name!r}": partial(lone, INDEX,
        json.dumps({"weight_map": {"model.norm.weight": name}}))
           for name in ("../secret.safetensors", "/etc/passwd", "sub/x.safetensors", "")},
        "not there": lambda: ["missing"], "a pickle by name": lambda: [written("b.bin", b"\x80\x04")],
        "a pickle by content": lambda: [written("c.safetensors", b"PK\x03\x04\x14\x00\x08\x08" + bytes(40))],
        "empty": lambda: [written("a.safetensors", b"")], "cut": lambda: [written("a.safetensors", b"\x10")],
        "a huge header": lambda: [written("a.safetensors", struct.pack("<Q", 2**62) + b"{}")],
        "no tensors": lambda: [written("a.safetensors", struct.pack("<Q", 2) + b"{}")],
        "a type of no numbers": lambda: [written("a.safetensors", struct.pack("<Q", len(HEADER)) + HEADER + bytes(4))],
        "several bad at once": lambda: [*lone("pytorch_model.bin", b"\x80"), "missing", written("a.safetensors", b"")],
    }, lambda make: merged(models=make())),
    **each("merge, output: ", {what: what for what in (
        "full", "overwritten", "an input", "in an input", "around", "no folder", "link", "file.safetensors")},
        existing),
    "merge, values beyond the type": lambda at: merged(
        models=two(big=torch.tensor([1e5]))[1:] * 2, dtype="float16"),
    **each("merge, asked: ", {
        "ties without a base": {"method": "ties"}, "a base for none": {"base": "a"},
        "fisher without fishers": {"method": "fisher"},
        "fishers for none": {"fishers": ["a", "b"]}, "too few fishers": {"method": "fisher", "fishers": ["a"]},
        "slerp with weights": {"method": "slerp", "weights": [1, 2]},
        "a density of zero": {"method": "ties", "density": 0.0}, "another combine": {"method": "dare",
        "combine": "sum"},
        "a method that does not exist": {"method": "median"}, "an option that does not exist": {"density": 1},
        "a favourite beyond": {"method": "fisher", "favor_target": 2}, "weights of another length": {"weights": [1, 2,
        3]},
        "weights of zero": {"weights": [0, 0]}, "a negative weight": {"weights": [1, -1]},
        "a strange dtype": {"dtype": "int8"},
        "a strange size": {"shard_bytes": "five"}, "a negative seed": {"rng": -1}, "no threads": {"threads": 0},
        "a pattern's model beyond": {"patterns": [{"pattern": "*", "method": "copy", "from": 2}]},
        "a copy with weights": {"patterns": [{"pattern": "*", "method": "copy", "weights": [1, 1]}]},
        "from without copy": {"patterns": [{"pattern": "*", "from": 1}]},
        "a pattern of nothing": {"patterns": [{"pattern": "nothing.*", "weights": [1, 0]}]},
        "a pattern with more": {"patterns": [{"pattern": "*", "speed": 9}]},
        "a pattern that is none": {"patterns": [{}]},
        "a pattern's method that does not exist": {"patterns": [{"pattern": "*", "method": "median"}]},
        "a symmetry that is none": {"symmetry": 3}, "a module alone": {"module": 3}, "a symmetry and an example":
        {"symmetry": "x", "example": 1}, "a symmetry not there": {"symmetry": "nowhere.json"},
        "a symmetry of another network": {"symmetry": "net"},
    }, lambda asked: merged(**{**asked,
    **({"symmetry": recurrent_symmetry()} if asked.get("symmetry") == "net" else {})})),
    **each("merge, tensors that have no mean: ", dict(zip(UNFIT, UNFIT, strict=True)),
           lambda kind: merged(models=unfit(kind))),
    **each("fuse, tensors that have no mean: ", dict(zip(UNFIT, UNFIT, strict=True)),
           lambda kind: cs.fuse([f"{path}/model.safetensors" for path in unfit(kind)], "average")),
    **each("merge, a file of another program: ", FOREIGN, lambda content: merged(models=[written(next(
        name for name, one in FOREIGN.items() if one == content), content)])),
    **each("merge, a file of ours: ", {"a posterior": "posterior", "draws": "draws"},
           lambda kind: merged(models=ours(kind))),
    "merge, adapters that trained other biases": lambda at: merged(models=adapters({"bias": "all"}, {"bias": "none"})),
    "merge, a part of a checkpoint": lambda at: merged(models=lone("model-00001-of-00002.safetensors", "")),
    "fuse, training checkpoints": lambda at: cs.fuse([{"epoch": n, "state_dict": mlp().state_dict()} for n in (0, 1)]),
    "fuse, states of optimisers": lambda at: cs.fuse([{"state": {}, "param_groups": [n]} for n in (0, 1)]),
    "describe, a path": lambda at: cs.describe(written("a.bin", FOREIGN["lightning.ckpt"])),
    "merge, three by slerp": lambda at: merged("slerp", [*two(), write("c", state(2))]),
    "merge, orthogonal layers": lambda at: cs.merge(
        [filed(orthogonal(seed), f"orthogonal-{seed}.safetensors") for seed in (0, 1)], "out"
    ),
    **each("merge, weights in parts: ", {
        "complex": {"dtype": torch.complex64},
        "patterns of one part": {"patterns": [{"pattern": "*_g", "method": "copy"}]},
        "information": {"method": "fisher", "fishers": ["parts-0.safetensors", "parts-1.safetensors"]},
    }, lambda asked: in_parts(**asked)),
    "merge, one path": lambda at: cs.merge(str(at), "out"),
    "merge, an array": lambda at: cs.merge([np.zeros(3)], "out"),
    "merge, a network": lambda at: cs.merge([mlp(), mlp(1)], "out"),
    "merge, none": lambda at: cs.merge([], "out"),
    "merge, too few files of information": lambda at: with_fishers(1),
    "merge, information with factors": lambda at: with_fishers(kind="factors"),
    "merge, information in another order": lambda at: with_fishers(change=lambda paths: paths[::-1]),
    "merge, information not there": lambda at: with_fishers(change=lambda paths: [paths[0], "nowhere"]),
    **option_cases({"fisher": "floor favor_target normalize", "ties": "density", "dare": "density combine"},
                   "checkpoints", lambda **asked: merged(**asked)),
}  # fmt: skip

# -- Shards.


def sites(*changed, count=3):
    """Write posterior files into a folder, some of them changed, and return it."""
    Path("sites").mkdir()
    for number in range(count):
        cs.save(normal(number), f"sites/site-{number}.safetensors")
    for number, one in enumerate(changed):
        if isinstance(one, bytes):
            written(f"sites/changed-{number}.safetensors", one)
        else:
            cs.save(one, f"sites/changed-{number}.safetensors")
    return "sites"


def packed(form="safetensors", **more):
    """Pack a folder of sites, and return the folder."""
    cs.pack(sites(count=4), "packed", form=form, **more)
    return "packed"


def broken(form="safetensors", keep=0.5):
    """Return a folder of a packed file that is cut."""
    (file,) = Path(packed(form)).iterdir()
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * keep)])
    return "packed"


def fused(models, **options):
    """Fuse shards over two sites in the sample."""
    return cs.fuse(models, **{"pilot_sites": 2, **options})


def with_twin():
    """Return a folder where one site is there twice."""
    folder = Path(sites())
    (folder / "twin.safetensors").write_bytes((folder / "site-0.safetensors").read_bytes())
    return str(folder)


ODD = {
    "another dimension": lambda: sites(normal(7, dim=3)), "other names": lambda: sites(normal(7, features=named("x",
    "y")),
    normal(8, features=named("x", "z"))), "a broken file": lambda: sites(b"broken"),
    "an empty file": lambda: sites(b""),
    "no counts": lambda: sites(normal(7, counts=None)), "topics": lambda: sites(topics()), "a twin": with_twin,
    "a cut shard": broken, "a cut Parquet file": lambda: broken("parquet"), "one site": lambda: sites(count=1),
    "no site": lambda: sites(count=0), "a folder not there": lambda: "nowhere/",
    "a pattern of nothing": lambda: "*.nothing",
    "an address of nothing": lambda: "nosuchscheme://sites/",
}  # fmt: skip
SHARDS = {
    **each("fuse shards, ", ODD, lambda make: fused(make())),
    **each("check shards, ", {name: make for name, make in ODD.items() if name != "a twin"},
    lambda make: cs.check(make(), pilot_sites=2)),
    **each("open shards, ", {name: ODD[name] for name in (
        "a broken file", "a cut shard", "a cut Parquet file", "no site", "a folder not there")},
        lambda make: cs.shards(make())),
    **each("fuse shards with ", {
        "one site in the sample": {"pilot_sites": 1}, "a sample of words": {"pilot_sites": "few"},
        "no bytes": {"shard_bytes": 0},
        "samples": {"n_observations": [1, 2]}, "a method for networks": {"method": cs.methods.Consensus()},
        "too few weights": {"weights": [1.0]},
        "a method by name for networks": {"method": "consensus"}, "an option that does not exist": {"speed": 9},
        "a negative weight": {"weights": [1.0, -1.0, 1.0]}, "a robust method": {"robust": "trim"},
        "a method that does not run over shards": {"method": "concatenate"}, "dp": {"method": "dp"},
        "a product": {"combine": "product"}, "rng": {"rng": -1},
        "fewer components than a site": {"n_components": 2}, "an engine that is none": {"engine": 5},
        "an engine that does not answer": {"engine": "nonsense"}, "spahm below a site": {"method": "spahm",
        "max_components": 2},
        "an example": {"example": 1}, "amps": {"method": "amps"}, "the reverse product": {"method": "kl",
        "combine": "product",
        "direction": "reverse"},
    }, lambda options: fused(sites(), **options)),
    "fuse shards, average of other sizes": lambda at: fused(sites(normal(7, size=4)), method="average"),
    "fuse shards, a list of a folder and a file": lambda at: fused([sites(), "nowhere.safetensors"]),
    "fuse shards, a network in the folder": lambda at: fused(network_among()),
    "load, a shard": lambda at: cs.load(next(Path(packed()).iterdir())),
    "fuse, a shard among networks": lambda at: cs.fuse([next(Path(packed()).iterdir()), mlp()]),
    **each("pack, ", {
        "another dtype": {"dtype": "float16"}, "no bytes": {"shard_bytes": 0}, "another form": {"form": "csv"},
        "into itself": {"folder": "sites"},
    }, lambda options: cs.pack(sites(), **{"folder": "packed", **options})),
    **each("pack, sites: ", {name: ODD[name] for name in (
        "another dimension", "a broken file", "no site", "a folder not there", "other names")},
        lambda make: cs.pack(make(), "packed")),
    "pack, into a folder that is there": lambda at: cs.pack(sites(), packed_before()),
    "engines, no threads": lambda at: cs.engines.Local(threads=0),
    "engines, negative memory": lambda at: cs.engines.Local(memory=-1),
    "shards, no bytes": lambda at: cs.shards(sites(), shard_bytes=0),
    "shards, an empty list": lambda at: cs.shards([]),
}  # fmt: skip


def packed_before():
    """Return a folder that is there already."""
    Path("packed").mkdir()
    written("packed/thesis.txt", "years of work")
    return "packed"


def network_among():
    """Return a folder of posteriors and a network."""
    folder = sites()
    filed(mlp().state_dict(), f"{folder}/net.safetensors")
    return folder


CASES = MERGED | SHARDS
