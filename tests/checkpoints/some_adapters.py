"""Small LoRA adapters in folders, as peft saves them, and what they do to a base."""

import json
import re
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

SIZES = {"model.layers.0.q_proj": (12, 8), "model.layers.0.up_proj": (20, 8), "model.layers.1.q_proj": (12, 8)}
"""Outputs and inputs of the modules of the base."""
PREFIX = "base_model.model."
CONFIG = {
    "peft_type": "LORA", "base_model_name_or_path": "org/base", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8,
    "target_modules": ["q_proj", "up_proj"], "bias": "none", "fan_in_fan_out": False, "use_rslora": False,
    "use_dora": False, "rank_pattern": {}, "alpha_pattern": {}, "modules_to_save": None, "lora_dropout": 0.1,
    "init_lora_weights": True, "inference_mode": True, "layer_replication": None, "megatron_core": "megatron.core",
    "qalora_group_size": 16,
}  # fmt: skip


def factors(seed, ranks=None, dtype=torch.float32, modules=SIZES):
    """Return the factors of an adapter by name."""
    draw = torch.Generator().manual_seed(seed)
    made = {}
    for module in modules:
        outputs, inputs = SIZES[module]
        rank = (ranks or {}).get(module, 4)
        made[f"{PREFIX}{module}.lora_A.weight"] = torch.randn(rank, inputs, generator=draw).to(dtype)
        made[f"{PREFIX}{module}.lora_B.weight"] = torch.randn(outputs, rank, generator=draw).to(dtype)
    return made


def write_adapter(folder, tensors, **config):
    """Write an adapter's folder."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    (folder / "tokenizer.json").write_text("{}")
    return folder


def changes(folder):
    """Return what an adapter adds to each weight of its base, by the rules of peft, in float64."""
    config = json.loads((Path(folder) / "adapter_config.json").read_text())
    tensors = load_file(Path(folder) / "adapter_model.safetensors")
    found = {}
    for name, a in tensors.items():
        if not name.endswith("lora_A.weight"):
            continue
        module = name.removeprefix(PREFIX).removesuffix(".lora_A.weight")
        b = tensors[name.replace("lora_A", "lora_B")]
        rank = next((value for key, value in config["rank_pattern"].items() if re.match(rf"(.*\.)?({key})$", module)),
                    config["r"])  # fmt: skip
        alpha = next((value for key, value in config["alpha_pattern"].items() if re.match(rf"(.*\.)?({key})$", module)),
                     config["lora_alpha"])  # fmt: skip
        assert a.shape[0] == b.shape[1] == rank
        scale = alpha / rank**0.5 if config["use_rslora"] else alpha / rank
        found[module] = scale * torch.einsum("or...,r...->o...", b.double().flatten(1), a.double().flatten(1))
    return found
