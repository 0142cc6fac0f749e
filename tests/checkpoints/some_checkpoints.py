"""Small checkpoints in folders, for tests of merges: a few tensors of several types, one larger than a block."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

SHAPES = {
    "model.embed_tokens.weight": (40, 16),
    "model.layers.0.mlp.up_proj.weight": (700, 200),  # more than a block of entries
    "model.layers.0.mlp.down_proj.weight": (16, 24),
    "model.layers.1.mlp.up_proj.weight": (24, 16),
    "model.norm.weight": (16,),
    "lm_head.weight": (40, 16),
}


def tensors(seed, dtype=torch.bfloat16, start=None, scale=0.02):
    """Return tensors by name; with a start, small changes of it."""
    draw = torch.Generator().manual_seed(seed)
    found = {}
    for name, shape in SHAPES.items():
        values = torch.randn(shape, generator=draw, dtype=torch.float64) * scale
        if start is not None:
            values = start[name].double() + 0.1 * values
        found[name] = values.to(dtype)
    return found


def write(folder, state, config=None, shards=1):
    """Write a folder as save_pretrained does, in one file or several with an index."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    told = {"architectures": ["Toy"], "torch_dtype": "bfloat16", "vocab_size": 40} | (config or {})
    (folder / "config.json").write_text(json.dumps(told))
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    names = list(state)
    if shards == 1:
        save_file(state, folder / "model.safetensors", {"format": "pt"})
        return folder
    weight_map = {}
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: state[name] for name in names[number::shards]}
        save_file(part, folder / file, {"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def read(output):
    """Return all tensors of an output, in whatever files."""
    output = Path(output)
    files = [output] if output.is_file() else sorted(output.glob("*.safetensors"))
    found = {}
    for file in files:
        found |= load_file(file)
    return found


def same_bits(one, two):
    """Return whether two states have the same names, types and bits."""
    return one.keys() == two.keys() and all(
        one[name].dtype == two[name].dtype
        and one[name].shape == two[name].shape
        and torch.equal(one[name].reshape(-1).view(torch.uint8), two[name].reshape(-1).view(torch.uint8))
        for name in one
    )
