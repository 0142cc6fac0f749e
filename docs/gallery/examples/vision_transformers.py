"""
A pair of Vision Transformers
=============================

Two ViTs of Hugging Face learned the digits 0 to 5 at one site and 4 to 9 at another.
Their files, with descriptions, are fused into one ViT that reads all ten digits.
"""

import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from transformers import ViTConfig, ViTForImageClassification

import consilience as cs

data = load_digits()
held_out = torch.arange(len(data.target)) % 3 == 0  # of which no site has any
X = torch.tensor(data.images / 8 - 1, dtype=torch.float32)[held_out, None]
y = torch.tensor(data.target)[held_out]

sizes = {"image_size": 8, "patch_size": 4, "num_channels": 1, "num_labels": 10}
heads = {"num_hidden_layers": 2, "num_attention_heads": 4}
config = ViTConfig(**sizes, **heads, hidden_size=32, intermediate_size=64)

# Written by experiments/gallery_weights/train.py, each with its description.
files = {site: Path(f"../weights/vit-{site}.safetensors") for site in ("lund", "oslo")}
nets = {site: ViTForImageClassification(config).eval() for site in files}
for site, net in nets.items():
    net.load_state_dict(load_file(files[site]))
# Half as many steps of distillation as by default, to save time.
fusion = cs.fuse(files, module=ViTForImageClassification(config), steps=100)
nets["fused"] = fusion.model
print(textwrap.fill(fusion.verdict.text, 80))

# %%
# The share of each digit that is recognised, among rows that no site has seen.

figure, axes = plt.subplots(figsize=(8, 3.5), layout="constrained")
with torch.no_grad():
    right = {name: (net(X).logits.argmax(1) == y).float() for name, net in nets.items()}
share = [[100 * float(one[y == k].mean()) for k in range(10)] for one in right.values()]
image = axes.imshow(share, cmap="Greens", aspect="auto", vmin=0, vmax=100)
figure.colorbar(image, label="recognised, %")
axes.set_xticks(range(10))
axes.set_xlabel("digit")
axes.set_yticks(range(3), right)
for name, one in right.items():
    print(f"{name:5} {one.mean():.1%} of all digits")
