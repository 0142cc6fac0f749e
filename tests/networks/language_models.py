"""Small language models built as transformers builds them: objects with logits and a cache, casts to float32."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


class Cache:
    """Keys and values of every layer, as a class that nobody registered with torch."""

    def __init__(self):
        self.layers = []

    def update(self, keys, values):
        """Keep keys and values, and return them."""
        self.layers.append((keys, values))
        return keys, values


@dataclass
class Output:
    """What a causal language model returns."""

    logits: torch.Tensor
    past_key_values: Any = None
    encoder_last_hidden_state: Any = None


class RMSNorm(nn.Module):
    """Norm by the root of the mean square, computed in float32 whatever the type of the input."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, states):
        """Return the normed states."""
        dtype = states.dtype
        states = states.to(torch.float32)
        states = states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * states.to(dtype)


class Attention(nn.Module):
    """Heads with rotary positions, softmax in float32, and a cache."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        self.register_buffer("inv_freq", 1.0 / 100 ** (torch.arange(0, self.size, 2) / self.size), persistent=False)

    def rotate(self, states):
        """Rotate pairs of entries by their position."""
        angles = torch.arange(states.shape[2]).to(torch.float32)[:, None] * self.inv_freq.to(torch.float32)
        angles = torch.cat([angles, angles], dim=-1)
        first, second = states.chunk(2, dim=-1)
        return states * angles.cos().to(states.dtype) + torch.cat([-second, first], -1) * angles.sin().to(states.dtype)

    def forward(self, states, cache):
        """Return what the heads read."""
        batch, length, width = states.shape
        query, key, value = (
            part(states).view(batch, length, self.heads, self.size).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        key, value = cache.update(self.rotate(key), value)
        scores = self.rotate(query) @ key.transpose(2, 3) * self.size**-0.5
        scores = scores + torch.full((length, length), -1e9, dtype=scores.dtype).triu(1)
        weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
        return self.o_proj((weights @ value).transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    """A block with norms before its parts, and a gated network."""

    def __init__(self, width, heads, units):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(width), RMSNorm(width)
        self.self_attn = Attention(width, heads)
        self.gate_proj = nn.Linear(width, units, bias=False)
        self.up_proj = nn.Linear(width, units, bias=False)
        self.down_proj = nn.Linear(units, width, bias=False)

    def forward(self, states, cache):
        """Return the stream after this block."""
        states = states + self.self_attn(self.input_layernorm(states), cache)
        normed = self.post_attention_layernorm(states)
        return states + self.down_proj(nn.functional.silu(self.gate_proj(normed)) * self.up_proj(normed))


class LanguageModel(nn.Module):
    """A causal language model in the manner of Llama, whose output is an object."""

    def __init__(self, words=30, width=8, heads=2, units=12, layers=2, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.embed_tokens = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, heads, units) for _ in range(layers))
        self.norm = RMSNorm(width)
        self.lm_head = nn.Linear(width, words, bias=False)

    def forward(self, input_ids, use_cache=True):
        """Return logits, the cache, and the states before the head."""
        cache = Cache()
        states = self.embed_tokens(input_ids)
        for layer in self.layers:
            states = layer(states, cache)
        states = self.norm(states)
        return Output(self.lm_head(states), cache if use_cache else None, states)
