"""Golden merges of checkpoints: every method, in float32 and bfloat16, aligned or not, in one file or several."""

import json

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

import consilience as cs
from consilience.checkpoints.methods import TENSOR_METHODS
from tests.golden.canonical import tensors_of
from tests.golden.table import case, cases, saved

SHAPES = {
    "model.embed_tokens.weight": (12, 8),
    "model.layers.0.mlp.up_proj.weight": (90, 40),
    "model.layers.0.mlp.down_proj.weight": (8, 10),
    "model.norm.weight": (8,),
    "lm_head.weight": (12, 8),
}
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def state(seed, dtype, start=None):
    """Return tensors by name; with a start, small changes of it. One is of integers, the same in all."""
    rng = np.random.default_rng([seed, 40])
    made = {"positions": torch.arange(5)}
    for name, shape in SHAPES.items():
        values = 0.02 * rng.normal(size=shape)
        if start is not None:
            values = start[name].double().numpy() + 0.1 * values
        made[name] = torch.as_tensor(values).to(dtype)
    return made


def folder_of(place, made, files=1):
    """Write a folder as save_pretrained does, in one file or several with an index."""
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps({"architectures": ["Toy"], "torch_dtype": "bfloat16"}))
    if files == 1:
        save_file(made, place / "model.safetensors", {"format": "pt"})
        return place
    places = {}
    for number in range(files):
        name = f"model-{number + 1:05d}-of-{files:05d}.safetensors"
        part = {key: made[key] for key in list(made)[number::files]}
        save_file(part, place / name, {"format": "pt"})
        places |= dict.fromkeys(part, name)
    (place / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return place


METHODS = {
    "average": {},
    "average, weights": {"weights": [3.0, 1.0, 2.0]},
    "ties": {"method": "ties"},
    "ties, dense": {"method": "ties", "density": 0.7, "scaling": 0.5, "weights": [3.0, 1.0, 2.0]},
    "dare": {"method": "dare", "rng": 3},
    "dare, ties": {"method": "dare", "density": 0.3, "combine": "ties", "weights": [3.0, 1.0, 2.0]},
    "task_arithmetic": {"method": "task_arithmetic"},
    "task_arithmetic, weights": {"method": "task_arithmetic", "weights": [0.5, 0.3, 0.2], "scaling": 0.8},
    "breadcrumbs": {"method": "breadcrumbs", "gamma": 0.1},
    "della": {"method": "della"},
    "sce": {"method": "sce", "select": 0.5},
    "model_stock": {"method": "model_stock", "axis": "rows"},
    "ram": {"method": "ram", "boost": 0.1},
    "karcher": {"method": "karcher", "weights": [3.0, 1.0, 2.0]},
    "multislerp": {"method": "multislerp"},
    "nuslerp": {"method": "nuslerp", "axis": "columns", "weights": [2.0, 1.0]},
    "nearswap": {"method": "nearswap", "t": 0.01},
    "arcee_fusion": {"method": "arcee_fusion"},
    "tsv_m": {"method": "tsv_m"},
    "iso": {"method": "iso", "common": 0.5},
    "knots": {"method": "knots"},
    "wudi": {"method": "wudi", "weights": [3.0, 1.0, 2.0]},
    "passthrough": {"method": "passthrough", "scale": 0.5},
    "float16": {"dtype": "float16"},
    "float8": {"dtype": "float8_e4m3fn"},
    "float64": {"dtype": "float64"},
    "several files": {"shard_bytes": 3000},
    "patterns": {
        "patterns": [
            {"pattern": "*.mlp.*", "weights": [1.0, 2.0, 1.0]},
            {"pattern": "lm_head.*", "method": "copy", "from": 1},
        ]
    },
}
TYPED = {f"{name}, {dtype}": (options, dtype) for name, options in METHODS.items() for dtype in TYPES}


@cases("checkpoints: {}", TYPED)
def _merged(folder, chosen):
    options, dtype = chosen
    start = state(0, TYPES[dtype])
    base = folder_of(folder / "base", start)
    models = [folder_of(folder / f"m{n}", state(n, TYPES[dtype], start), files=1 + (n == 2)) for n in (1, 2, 3)]
    kind = next(one for one in TENSOR_METHODS if one.name == options.get("method", "average"))
    told = {"base": base} if kind.needs_base else {}
    return {"merge": cs.merge(models[: kind.count], folder / "merged", **told, **options)}


SLERP = {"half": {}, "a third": {"t": 0.3}, "patterns": {"patterns": [{"pattern": "*.mlp.*", "options": {"t": 0.1}}]}}


@cases("checkpoints: slerp {}", SLERP)
def _slerp(folder, options):
    models = [folder_of(folder / f"m{n}", state(n, torch.bfloat16)) for n in (1, 2)]
    return {"merge": cs.merge(models, folder / "merged", "slerp", **options)}


FISHER = {"plain": {}, "favored": {"favor_target": 0, "normalize": True}, "weights": {"weights": [1.0, 3.0]}}


def dense():
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def drawn(seed):
    rng, net = np.random.default_rng([seed, 41]), dense()
    with torch.no_grad():
        for values in net.parameters():
            values.copy_(torch.as_tensor(rng.normal(size=tuple(values.shape))))
    return net


def informed(folder):
    """Write two networks and the Fisher diagonal of each."""
    models, fishers = [], []
    for seed in (1, 2):
        net = drawn(seed)
        models.append(folder / f"net-{seed}.safetensors")
        fishers.append(folder / f"net-{seed}.fisher.safetensors")
        save_file(dict(net.state_dict()), models[-1])
        rows = torch.as_tensor(np.random.default_rng([seed, 42]).normal(size=(30, 4))).float()
        cs.save(cs.fisher(net, rows, minimum=1), fishers[-1])
    return models, fishers


@cases("checkpoints: fisher, {}", FISHER)
def _fisher(folder, options):
    models, fishers = informed(folder)
    return {"merge": cs.merge(models, folder / "merged.safetensors", "fisher", fishers=fishers, **options)}


@case("checkpoints: regmean")
def _regmean(folder):
    models, files = [], []
    for seed in (1, 2):
        net = drawn(seed)
        models.append(folder / f"net-{seed}.safetensors")
        files.append(folder / f"net-{seed}.fisher.safetensors")
        save_file(dict(net.state_dict()), models[-1])
        rows = torch.as_tensor(np.random.default_rng([seed, 43]).normal(size=(40, 4))).float()
        cs.save(cs.fisher(net, rows, kind="kronecker", minimum=1), files[-1])
    return {"merge": cs.merge(models, folder / "merged.safetensors", "regmean", fishers=files)}


@cases("checkpoints, units aligned: {}", {"average": "average", "slerp": "slerp", "fisher": "fisher"})
def _aligned(folder, method):
    models, fishers = informed(folder)
    told = {"fishers": fishers} if method == "fisher" else {}
    example = torch.zeros(2, 4)
    return {"merge": cs.merge(models, folder / "merged.safetensors", method, module=drawn(3), example=example, **told)}


@case("checkpoints: the number of threads and the size of files change nothing")
def _threads(folder):
    models = [folder_of(folder / f"m{n}", state(n, torch.bfloat16)) for n in (1, 2)]
    one = cs.merge(models, folder / "one", threads=1)
    two = cs.merge(models, folder / "two", threads=2, shard_bytes=2000)
    tensors = {}
    for path in sorted(two.output.glob("*.safetensors")):
        tensors |= tensors_of(path)
    return {"merge": one, "in several files": tensors}


@cases("adapters: {}", {"stacked": {}, "of a rank": {"rank": 2}, "of a share of energy": {"rank": 0.9}})
def _adapters(folder, options):
    """Adapters in 64 bits, so that stacking rounds nothing."""
    paths = []
    for seed in (1, 2):
        rng = np.random.default_rng([seed, 44])
        paths.append(folder / f"adapter-{seed}")
        paths[-1].mkdir()
        factors = {
            f"base_model.model.layers.{layer}.q.lora_{part}.weight": torch.as_tensor(rng.normal(size=shape))
            for layer in range(2)
            for part, shape in (("A", (3, 8)), ("B", (10, 3)))
        }
        save_file(factors, paths[-1] / "adapter_model.safetensors")
        config = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, "target_modules": ["q"]}
        (paths[-1] / "adapter_config.json").write_text(json.dumps(config))
    return saved(cs.fuse(paths, weights=[2.0, 1.0], **options), folder)
