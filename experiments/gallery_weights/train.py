"""Networks of the gallery: two ResNets and two Vision Transformers, trained apart on scikit-learn's digits.

``python experiments/gallery_weights/train.py`` trains all four and writes them to ``docs/gallery/weights``, where
``docs/gallery/examples/resnet_loss_barrier.py`` and ``vision_transformers.py`` load them. A minute of one core.

resnet-lund, resnet-oslo    IID halves, independent initialisations: state dicts alone, since units are matched by
                            weights
vit-lund, vit-oslo          non-IID halves, digits 0 to 5 and 4 to 9, independent initialisations: each with the
                            description that the default compares candidates by

``weights.json`` there has settings, seeds, accuracies on held-out digits, sizes and digests of all files, and versions.
Settings were chosen by hand in a few runs that saw the held-out digits: accuracies illustrate, and are no benchmark.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from transformers import ViTConfig, ViTForImageClassification

sys.path.append(str(Path(__file__).resolve().parents[1]))
from record import as_text, versions

import consilience as cs

WEIGHTS = Path(__file__).resolve().parents[2] / "docs" / "gallery" / "weights"
SITES = ("lund", "oslo")
WIDTH = 48
"""Channels of the ResNets. The barrier falls with the width (Ainsworth et al. 2023); wider ones are larger files."""
VIT = {"image_size": 8, "patch_size": 4, "num_channels": 1, "num_labels": 10, "hidden_size": 32,
       "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}  # fmt: skip
"""Configuration of the Vision Transformers: four patches an image, 18,218 parameters."""
SEEDS = {"lund": 1, "oslo": 2}
"""Of the initialisation, the batches and the shifts of a site."""
BATCH = 64
STEPS = {"resnet": 360, "vit": 400}
RATE = {"resnet": 1e-2, "vit": 3e-3}
"""Largest step size of the one-cycle schedule of AdamW."""
WEIGHT_DECAY = 1e-2


class Block(nn.Module):
    """Two convolutions with batch normalisation, and a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)),
            *(nn.ReLU(), nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the rectified sum of both paths."""
        return functional.relu(x + self.body(x))


def resnet() -> nn.Module:
    """Return a ResNet of two blocks."""
    return nn.Sequential(
        *(nn.Conv2d(1, WIDTH, 3, padding=1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU(), nn.MaxPool2d(2)),
        *(Block(WIDTH), Block(WIDTH), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, 10)),
    )


def vit() -> nn.Module:
    """Return a Vision Transformer of Hugging Face."""
    return ViTForImageClassification(ViTConfig(**VIT))


def logits(net: nn.Module, x: Tensor) -> Tensor:
    """Return logits (n, 10) of either architecture."""
    answer = net(x)
    return answer if isinstance(answer, Tensor) else answer.logits


def shifted(x: Tensor) -> Tensor:
    """Return images (n, 1, 8, 8) of a batch, all moved by the same one of the nine shifts of up to a pixel."""
    down, right = torch.randint(0, 3, (2,)).tolist()
    return functional.pad(x, (1, 1, 1, 1), value=-1.0)[:, :, down : down + 8, right : right + 8]


def train(make: Callable[[], nn.Module], x: Tensor, y: Tensor, seed: int, n_steps: int, rate: float) -> nn.Module:
    """Return a network that was trained on shifted images."""
    torch.manual_seed(seed)
    net = make().train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=n_steps)
    for _ in range(n_steps):
        rows = torch.randperm(len(y))[:BATCH]
        optimizer.zero_grad()
        functional.cross_entropy(logits(net, shifted(x[rows])), y[rows]).backward()
        optimizer.step()
        schedule.step()
    return net.eval()


def main() -> None:
    """Train all networks and write them with their record."""
    torch.set_num_threads(1)
    data = load_digits()
    x, y = torch.tensor(data.images / 8 - 1, dtype=torch.float32)[:, None], torch.tensor(data.target)
    part = torch.arange(len(y)) % 3  # 0 is held out, 1 is lund's half, 2 is oslo's
    halves = dict(zip(SITES, (part == 1, part == 2), strict=True))
    rows = {"resnet": halves, "vit": {"lund": halves["lund"] & (y < 6), "oslo": halves["oslo"] & (y > 3)}}
    WEIGHTS.mkdir(parents=True, exist_ok=True)
    networks: dict[str, Any] = {}
    for kind, make in {"resnet": resnet, "vit": vit}.items():
        for site in SITES:
            x_site, y_site = x[rows[kind][site]], y[rows[kind][site]]
            net = train(make, x_site, y_site, SEEDS[site], STEPS[kind], RATE[kind])
            path = WEIGHTS / f"{kind}-{site}.safetensors"
            if kind == "resnet":
                save_file(net.state_dict(), path)
                path.chmod(0o644)  # safetensors writes for the owner alone
            else:
                cs.save(net, path, data=(x_site, y_site), classes=10)
            with torch.no_grad():
                right = logits(net, x[part == 0]).argmax(dim=1) == y[part == 0]
            accuracy = round(100 * float(right.float().mean()), 1)
            networks[path.stem] = {"seed": SEEDS[site], "rows": len(y_site), "held_out_accuracy": accuracy}
            print(path.stem, networks[path.stem])  # noqa: T201
    settings = {
        "images": "of scikit-learn's load_digits, in [-1, 1]; row number modulo 3 is 0: held out, 1: lund, 2: oslo",
        "resnet": {"width": WIDTH, "blocks": 2, "steps": STEPS["resnet"], "rate": RATE["resnet"]},
        "vit": {**VIT, "steps": STEPS["vit"], "rate": RATE["vit"], "lund": "digits 0 to 5", "oslo": "digits 4 to 9"},
        "training": f"AdamW, weight decay {WEIGHT_DECAY}, one-cycle schedule, batches of {BATCH}, shifts of a pixel",
    }
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in sorted(WEIGHTS.glob("*.safetensors"))
    }
    other_versions = {library: version(library) for library in ("torch", "transformers", "safetensors")}
    record = {"settings": settings, "networks": networks, "files": files, "versions": {**versions(), **other_versions}}
    (WEIGHTS / "weights.json").write_text(as_text(record))


if __name__ == "__main__":
    main()
