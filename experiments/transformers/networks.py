"""Networks of Hugging Face transformers, and the texts and images that their sites train them on.

Needs ``transformers`` and the data folder ``CONSILIENCE_DATA`` (default ``../shared/data`` beside the repository). A
setting is a kind of network, its data, a seed, and whether both sites start from the same random weights. Sites have
disjoint rows of one distribution. Trained weights are kept in ``transformers`` in ``CONSILIENCE_CACHE`` (default
``experiments/.cache``).
"""

from __future__ import annotations

import lzma
import os
import re
import time
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)
from wasserstein.image_data import DATA

CACHE = Path(os.environ.get("CONSILIENCE_CACHE", Path(__file__).parents[1] / ".cache")) / "transformers"
VOCABULARY, LENGTH = 1000, 32
"""The most frequent words, the last id for all others; tokens of a text."""
KINDS = ("vit mnist", "vit fashion", "gpt ag_news", "gpt newsgroups", "llama ag_news", "llama newsgroups")
HALVES = {
    "tune": [("vit mnist", 1), ("vit fashion", 2), ("gpt ag_news", 1), ("gpt newsgroups", 2), ("llama newsgroups", 1),
             ("llama ag_news", 2)],
    "report": [*(("vit mnist", seed) for seed in (11, 12)), ("vit fashion", 13),
               *(("gpt newsgroups", seed) for seed in (11, 12)), ("gpt ag_news", 13),
               *(("llama ag_news", seed) for seed in (11, 12)), ("llama newsgroups", 13)],
    "fresh": [("vit mnist", 21), ("vit fashion", 22), ("vit fashion", 23), ("vit mnist", 31), ("vit mnist", 32)],
}  # fmt: skip
"""Settings of each half by kind and seed: `report` has three pairs a kind. What it and the first of `fresh` shaped,
that networks near a site's own alone are fitted and that stated errors decide where they differ clearly
(``networks/choice``), is judged by the rest of `fresh`. All have every setting with independent initialisations and
with a common one."""


@dataclass(frozen=True)
class Setting:
    """A pair of networks."""

    kind: str
    seed: int
    is_common: bool  # whether both sites start from the same random weights

    @property
    def name(self) -> str:
        """What the setting is called."""
        return f"{self.kind}, seed {self.seed}, {'common' if self.is_common else 'independent'} initialisation"


def settings(half: str) -> list[Setting]:
    """Return the settings of a half."""
    return [Setting(kind, seed, is_common) for kind, seed in HALVES[half] for is_common in (False, True)]


def make(kind: str) -> nn.Module:
    """Return a network of a kind with random weights of torch's generator."""
    if kind.startswith("vit"):
        sizes = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96}
        return ViTForImageClassification(ViTConfig(image_size=28, patch_size=7, num_channels=1, num_labels=10, **sizes))
    if kind.startswith("gpt"):
        return GPT2LMHeadModel(GPT2Config(
            vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, tie_word_embeddings=False, use_cache=False, bos_token_id=None, eos_token_id=None,
        ))  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LENGTH, use_cache=False, bos_token_id=None, eos_token_id=None,
        pad_token_id=None,
    ))  # fmt: skip


@cache
def images(name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training and test images (n, 1, 28, 28) in [-1, 1] with their classes (n,)."""
    file = np.load(DATA / f"{name}.npz")
    arrays = [file[key] for key in ("x_train", "y_train", "x_test", "y_test")]
    x_train, x_test = (torch.tensor(x, dtype=torch.float32)[:, None] / 127.5 - 1 for x in arrays[::2])
    return x_train, torch.tensor(arrays[1].astype(np.int64)), x_test, torch.tensor(arrays[3].astype(np.int64))


@cache
def texts(name: str) -> tuple[Tensor, Tensor]:
    """Return training and test texts (n, LENGTH): windows of the documents, one after the other."""
    if name == "ag_news":
        file = np.load(DATA / "ag_news.npz")
        words = [file["tokens_train"], file["tokens_test"]]
    else:
        file = np.load(DATA / "newsgroups20_text.npz")
        text = lzma.decompress(file["text_xz"].tobytes()).decode("utf-8", "replace")
        ends = file["offsets"]
        raw = text.encode("utf-8")
        parts = [b" ".join(raw[a:b] for a, b, s in zip(ends[:-1], ends[1:], file["split"], strict=True) if s == which)
                 for which in (0, 1)]  # fmt: skip
        words = [np.array(re.findall(r"[a-z]+|[.,]", part.decode("utf-8", "replace").lower())) for part in parts]
    frequent = [word for word, _ in Counter(words[0].tolist()).most_common(VOCABULARY - 1)]
    number = {word: place for place, word in enumerate(frequent)}
    ids = [np.array([number.get(word, VOCABULARY - 1) for word in part.tolist()]) for part in words]
    train, test = (torch.tensor(one[: len(one) // LENGTH * LENGTH].reshape(-1, LENGTH)) for one in ids)
    return train, test


@dataclass(frozen=True)
class Pair:
    """Two trained networks with what their sites have, held-out inputs of nobody, and test data."""

    networks: list[nn.Module]
    sites: list[Any]  # (inputs, labels) of every site; of texts the texts
    unlabelled: Tensor  # inputs that no site trained on
    test: Any
    seconds: float  # of processor time, to train both


def data_of(setting: Setting) -> tuple[list[Any], Tensor, Any]:
    """Return what both sites have, unlabelled inputs, and test data."""
    rng = np.random.default_rng(setting.seed)
    source = setting.kind.split()[1]
    if setting.kind.startswith("vit"):
        x, y, x_test, y_test = images("fashion_mnist" if source == "fashion" else source)
        rows = torch.as_tensor(rng.permutation(len(x))[:18_000])
        sites = [(x[part], y[part]) for part in (rows[:8000], rows[8000:16_000])]
        return sites, x[rows[16_000:]], (x_test[:4000], y_test[:4000])
    train, test = texts(source)
    rows = torch.as_tensor(rng.permutation(len(train))[:18_000])
    return [train[rows[:8000]], train[rows[8000:16_000]]], train[rows[16_000:]], test[:2000]


def trained(setting: Setting) -> Pair:
    """Return the pair of a setting, trained once."""
    sites, unlabelled, test = data_of(setting)
    path = CACHE / f"{setting.name}.pt"
    networks = [make(setting.kind) for _ in sites]
    if path.exists():
        states, seconds = torch.load(path)
    else:
        start = time.process_time()
        states = [_train(setting, network, site, n).state_dict() for n, (network, site) in
                  enumerate(zip(networks, sites, strict=True))]  # fmt: skip
        seconds = time.process_time() - start
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save((states, seconds), path)
    for network, state in zip(networks, states, strict=True):
        network.load_state_dict(state)
        network.eval()
    return Pair(networks, sites, unlabelled, test, seconds)


def _train(setting: Setting, network: nn.Module, site: Any, number: int) -> nn.Module:
    torch.manual_seed(1000 * setting.seed + (0 if setting.is_common else number))
    network.load_state_dict(make(setting.kind).state_dict())
    network.train()
    n_steps = 600 if setting.kind.startswith("vit") else 900
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 50) * (1 - step / n_steps))
    rng = np.random.default_rng([setting.seed, number])
    n = len(site) if isinstance(site, Tensor) else len(site[0])
    for _ in range(n_steps):
        rows = torch.as_tensor(rng.integers(0, n, 64 if setting.kind.startswith("vit") else 32))
        optimizer.zero_grad()
        losses(network, site[rows] if isinstance(site, Tensor) else (site[0][rows], site[1][rows])).mean().backward()
        optimizer.step()
        schedule.step()
    return network


def losses(network: nn.Module, data: Any) -> Tensor:
    """Return cross-entropies of classes, or of next tokens."""
    if isinstance(data, Tensor):
        logits = network(data).logits[:, :-1]
        return functional.cross_entropy(logits.flatten(0, 1), data[:, 1:].flatten(), reduction="none")
    return functional.cross_entropy(network(data[0]).logits, data[1], reduction="none")


def score(network: nn.Module, test: Any) -> float:
    """Return the accuracy in percent on test images, or the mean loss in nats on test texts."""
    with torch.no_grad():
        if isinstance(test, Tensor):
            return float(torch.cat([losses(network, part) for part in test.split(500)]).mean())
        answers = torch.cat([network(part).logits.argmax(dim=1) for part in test[0].split(500)])
        return 100 * float((answers == test[1]).float().mean())
