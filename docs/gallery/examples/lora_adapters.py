"""
Merge LoRA adapters
===================

The mean of two adapters is the mean of their products B A, for which ranks are stacked.
Means of A and of B apart are another matrix. The merged adapter is loaded by peft.
"""

import tempfile
import warnings
from copy import deepcopy
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import consilience as cs

warnings.filterwarnings("ignore", ".*is_gradient_checkpointing")  # peft's call
torch.manual_seed(0)
folder, sizes = Path(tempfile.mkdtemp()), {"hidden_size": 32, "intermediate_size": 64}
heads = {"num_hidden_layers": 1, "num_attention_heads": 4}
base = LlamaForCausalLM(LlamaConfig(vocab_size=50, **sizes, **heads))

paths = [folder / "law", folder / "medicine"]
lora = {"r": 4, "lora_alpha": 4, "target_modules": ["q_proj"]}
for path in paths:  # random factors in place of trained ones
    config = LoraConfig(**lora, init_lora_weights=False)
    get_peft_model(deepcopy(base), config).save_pretrained(path)


def load(path):
    """Return the layer of the base with the adapter that peft adds to it."""
    model = PeftModel.from_pretrained(deepcopy(base), path)
    return model.base_model.model.model.layers[0].self_attn.q_proj


layers = [load(path) for path in paths]
mean = sum(layer.get_delta_weight("default") for layer in layers) / 2
A = sum(layer.lora_A["default"].weight for layer in layers) / 2
B = sum(layer.lora_B["default"].weight for layer in layers) / 2


def error(change):
    """Return the distance of a change from the mean, as a share of its size."""
    return (torch.linalg.norm(change - mean) / torch.linalg.norm(mean)).item()


ranks = range(1, 9)
merged = [cs.merge(paths, folder / f"rank-{rank}", rank=rank).output for rank in ranks]
errors = [error(load(path).get_delta_weight("default")) for path in merged]
print(f"rank 8 loses {errors[-1]:.0e} of the mean, means apart {error(B @ A):.2f}")

# %%
# What peft adds to the base: of rank 8 nothing is lost; a lower rank keeps the nearest
# product.

figure, axes = plt.subplots()
axes.plot(ranks, errors, "o-", label="merged")
axes.plot(4, error(B @ A), "rx", markersize=10, label="mean of B times mean of A")
axes.set(xlabel="rank of the merged adapter", ylabel="error, share of the mean product")
axes.legend(loc="lower left")
