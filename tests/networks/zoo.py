"""Architectures with the groups that move together in them, listed by hand.

Each entry makes a small network, an example input, and says which groups of how many units it has (those inside the
units of another counted over all of these). Networks are in evaluation mode with statistics and affine parameters at
random, so that no place can hide behind zeros and ones.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.tracing.trace import trace


@dataclass(frozen=True)
class Entry:
    name: str
    make: Callable[[], nn.Module]
    example: Callable[[], Any]
    groups: dict[str, int]
    parents: dict[str, str] = field(default_factory=dict)
    rigid: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def module(self, seed: int = 0) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.make().eval()
            for name, array in module.state_dict().items():
                if array.is_floating_point():
                    drawn = torch.rand(array.shape) + 0.5 if "var" in name else 0.5 * torch.randn(array.shape)
                    array.copy_(drawn if array.ndim == 1 else array + 0.1 * drawn)
        return module

    def inputs(self, seed: int = 0) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + 1000)
            return self.example()


ZOO: dict[str, Entry] = {}


@cache
def traced(name: str) -> tuple[nn.Module, Any, Symmetry]:
    """Return a network of the zoo, its example, and its symmetry, unproved; traced once for all tests."""
    module, inputs = ZOO[name].module(), ZOO[name].inputs()
    return module, inputs, trace(module, inputs)


def listed(
    name: str,
    groups: dict[str, int],
    example: Callable[[], Any],
    parents: dict[str, str] | None = None,
    rigid: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
) -> Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]]:
    def add(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        ZOO[name] = Entry(name, make, example, groups, parents or {}, rigid, notes)
        return make

    return add


def images(channels: int = 3, side: int = 8, number: int = 2) -> Callable[[], Tensor]:
    return lambda: torch.randn(number, channels, side, side)


def rows(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(*shape)


def words(vocabulary: int, *shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(vocabulary, shape)


def conv(channels: int, out: int, size: int = 3, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(channels, out, size, padding=size // 2, **options)


# -- Layer after layer.


@listed("mlp", {"0": 7, "2": 6}, rows(3, 5))
def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 3))


@listed("mlp without biases", {"0": 7, "2": 6}, rows(3, 5))
def mlp_without_biases() -> nn.Module:
    return nn.Sequential(
        nn.Linear(5, 7, bias=False), nn.Tanh(), nn.Linear(7, 6, bias=False), nn.Tanh(), nn.Linear(6, 3, bias=False)
    )


@listed("lenet", {"0": 4, "3": 5, "7": 9}, images(1, 8))
def lenet() -> nn.Module:
    return nn.Sequential(
        conv(1, 4), nn.ReLU(inplace=True), nn.MaxPool2d(2), conv(4, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(20, 9), nn.ReLU(), nn.Dropout(0.5), nn.Linear(9, 3),
    )  # fmt: skip


class Viewed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = conv(3, 4)
        self.slope = nn.PReLU(4)
        self.hidden = nn.Linear(4 * 64, 6)
        self.out = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.slope(self.conv(x))
        x = x.view(x.size(0), -1)
        return self.out(F.gelu(self.hidden(x)))


listed("flattened by view", {"conv": 4, "hidden": 6}, images())(Viewed)


@listed("vgg11", {"0": 4, "3": 6, "6": 8, "8": 8, "11": 10, "13": 10, "16": 10, "18": 10, "23": 12, "25": 12},
        images(3, 32))  # fmt: skip
def vgg11() -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width in (4, None, 6, None, 8, 8, None, 10, 10, None, 10, 10, None):
        if width is None:
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [conv(channels, width), nn.ReLU()]
            channels = width
    head = [nn.Flatten(), nn.Linear(10, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 5)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), *head)


# -- Residual and dense connections.


class Block(nn.Module):
    def __init__(self, channels: int, out: int, stride: int, padded: bool) -> None:
        super().__init__()
        self.conv1 = conv(channels, out, stride=stride, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = conv(out, out, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.padded = out - channels if padded else 0
        self.stride = stride
        self.downsample = None
        if not padded and (stride != 1 or channels != out):
            self.downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.downsample is not None:
            x = self.downsample(x)
        elif self.padded or self.stride != 1:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.padded // 2, self.padded // 2))
        return F.relu(y + x)


class ResNet(nn.Module):
    def __init__(self, widths: tuple[int, ...], depth: int, classes: int = 5, padded: bool = False) -> None:
        super().__init__()
        self.conv1 = conv(3, widths[0], bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        stages = []
        for number, width in enumerate(widths):
            before = widths[max(0, number - 1)]
            blocks = [
                Block(before if n == 0 else width, width, 2 if n == 0 and number else 1, padded) for n in range(depth)
            ]
            stages.append(nn.Sequential(*blocks))
        self.layers = nn.Sequential(*stages)
        self.fc = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(F.relu(self.bn1(self.conv1(x))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


def resnet18_groups(widths: tuple[int, ...]) -> dict[str, int]:
    groups = {"conv1": widths[0]}
    for stage, width in enumerate(widths):
        groups[f"layers.{stage}.0.conv1"] = width
        if stage:
            groups[f"layers.{stage}.0.conv2"] = width
        groups[f"layers.{stage}.1.conv1"] = width
    return groups


@listed("resnet18", resnet18_groups((4, 5, 6, 7)), images(3, 16))
def resnet18() -> nn.Module:
    return ResNet((4, 5, 6, 7), 2)


RESNET20 = {
    "conv1": 4, "layers.0.0.conv1": 4, "layers.0.1.conv1": 4, "layers.0.2.conv1": 4,
    "layers.1.0.conv1": 8, "layers.1.0.conv2": 2, "layers.1.0.conv2.2": 2, "layers.1.1.conv1": 8,
    "layers.1.2.conv1": 8, "layers.2.0.conv1": 16, "layers.2.0.conv2": 4, "layers.2.0.conv2.2": 4,
    "layers.2.1.conv1": 16, "layers.2.2.conv1": 16,
}  # fmt: skip


PADDED = tuple(f"layers.{stage}.0.conv2{end}" for stage in (1, 2) for end in ("", ".2"))


@listed("resnet20 with padded shortcuts", RESNET20, images(3, 16), rigid=PADDED)
def resnet20() -> nn.Module:
    """Shortcuts without parameters (option A): what is padded with zeros moves apart from what is carried on."""
    return ResNet((4, 8, 16), 3, padded=True)


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = conv(3, 4)
        self.norms = nn.ModuleList([nn.BatchNorm2d(4 + 3 * n) for n in range(3)])
        self.convs = nn.ModuleList([conv(4 + 3 * n, 3) for n in range(3)])
        self.transition = conv(13, 6, 1)
        self.fc = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for norm, layer in zip(self.norms, self.convs, strict=True):
            x = torch.cat([x, layer(F.relu(norm(x)))], dim=1)
        x = F.avg_pool2d(self.transition(x), 2)
        return self.fc(x.mean(dim=(2, 3)))


listed("densenet", {"first": 4, "convs.0": 3, "convs.1": 3, "convs.2": 3, "transition": 6}, images())(Dense)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = conv(3, 4), conv(4, 6)
        self.middle = conv(6, 8)
        self.up2, self.up1 = nn.ConvTranspose2d(8, 5, 2, stride=2), nn.ConvTranspose2d(7, 3, 2, stride=2)
        self.join2, self.join1 = conv(11, 7), conv(7, 5)
        self.out = conv(5, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = F.relu(self.down1(x))
        two = F.relu(self.down2(F.max_pool2d(one, 2)))
        x = F.relu(self.middle(F.max_pool2d(two, 2)))
        x = F.relu(self.join2(torch.cat([self.up2(x), two], dim=1)))
        x = F.relu(self.join1(torch.cat([one, self.up1(x)], dim=1)))
        return self.out(x)


listed(
    "unet",
    {"down1": 4, "down2": 6, "middle": 8, "up2": 5, "join2": 7, "up1": 3, "join1": 5},
    images(),
)(UNet)


class Squeezed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = conv(3, 6)
        self.fc1, self.fc2 = nn.Linear(6, 4), nn.Linear(4, 6)
        self.out = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.conv(x))
        scale = torch.sigmoid(self.fc2(F.relu(self.fc1(x.mean((2, 3))))))
        x = x * scale[:, :, None, None]
        return self.out(F.adaptive_max_pool2d(x, 1).squeeze(-1).squeeze(-1))


listed("squeeze and excitation", {"conv": 6, "fc1": 4}, images())(Squeezed)


# -- Grouped convolutions.


@listed(
    "resnext",
    {"0.blocks": 3, "0": 6, "2": 12},
    images(),
    parents={"0": "0.blocks", "2": "0.blocks"},
    rigid=("0.blocks", "0", "2"),
)
def resnext() -> nn.Module:
    return nn.Sequential(conv(3, 6, 1), nn.ReLU(), conv(6, 12, groups=3), nn.BatchNorm2d(12), nn.ReLU(), conv(12, 2, 1))


@listed("depthwise", {"0": 4, "4": 5}, images())
def depthwise() -> nn.Module:
    return nn.Sequential(
        conv(3, 4), nn.ReLU6(), conv(4, 4, groups=4), nn.BatchNorm2d(4), conv(4, 5, 1), nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 2),
    )  # fmt: skip


@listed("depthwise, two to each", {"0": 4, "2": 8, "4": 5}, images(), parents={"2": "0"}, rigid=("0", "2"))
def depthwise_multiplied() -> nn.Module:
    return nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 8, groups=4), nn.ReLU(), conv(8, 5, 1), nn.ReLU(), conv(5, 2))


@listed("transposed", {"0": 4, "2": 5}, images())
def transposed() -> nn.Module:
    return nn.Sequential(
        nn.ConvTranspose2d(3, 4, 2), nn.ReLU(), nn.ConvTranspose2d(4, 5, 3), nn.ReLU(), nn.ConvTranspose2d(5, 2, 1)
    )


@listed(
    "transposed in blocks",
    {"0.blocks": 2, "0": 6, "2": 4},
    images(),
    parents={"0": "0.blocks", "2": "0.blocks"},
    rigid=("0.blocks", "0", "2"),
)
def transposed_in_blocks() -> nn.Module:
    return nn.Sequential(conv(3, 6), nn.ReLU(), nn.ConvTranspose2d(6, 4, 3, groups=2), nn.ReLU(), conv(4, 2))


@listed("shuffled pixels", {"0": 3, "4": 2}, images())
def shuffled_pixels() -> nn.Module:
    return nn.Sequential(
        conv(3, 12), nn.PixelShuffle(2), nn.ReLU(), nn.Upsample(scale_factor=2), conv(3, 2), conv(2, 2)
    )


# -- Normalisation.


@listed("group norm", {"0.blocks": 3, "0": 6, "3": 4}, images(), parents={"0": "0.blocks"}, rigid=("0.blocks", "0"))
def group_norm() -> nn.Module:
    return nn.Sequential(conv(3, 6), nn.GroupNorm(3, 6), nn.ReLU(), conv(6, 4), nn.ReLU(), conv(4, 2))


@listed("layer norm", {"0": 6, "3": 4}, rows(3, 5), rigid=("0", "3"))
def layer_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 4), nn.RMSNorm(4), nn.Linear(4, 2))


@listed("instance norm", {"0": 6, "3": 4}, images())
def instance_norm() -> nn.Module:
    return nn.Sequential(
        conv(3, 6), nn.InstanceNorm2d(6, affine=True, track_running_stats=True), nn.ReLU(),
        conv(6, 4), nn.InstanceNorm2d(4, affine=True), nn.ReLU(), conv(4, 2),
    )  # fmt: skip


@listed("softmax over units", {"0": 6}, rows(3, 5), rigid=("0",))
def softmax_over_units() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.Softmax(-1), nn.Linear(6, 2))


# -- Sequences.


class Tagger(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.rnn = kind(6, 4, batch_first=True, **options)
        size = (options.get("proj_size") or 4) * (2 if options.get("bidirectional") else 1)
        self.out = nn.Linear(size, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(self.embed(x))[0])


@listed(
    "lstm both ways",
    {"embed": 6, "rnn.l0": 4, "rnn.l0_reverse": 4, "rnn.l1": 4, "rnn.l1_reverse": 4},
    words(11, 2, 5),
)
def lstm_both_ways() -> nn.Module:
    return Tagger(nn.LSTM, num_layers=2, bidirectional=True)


@listed(
    "projected lstm",
    {"embed": 6, "rnn.l0": 4, "rnn.projection_l0": 3, "rnn.l1": 4, "rnn.projection_l1": 3},
    words(11, 2, 5),
)
def projected_lstm() -> nn.Module:
    return Tagger(nn.LSTM, num_layers=2, proj_size=3)


@listed("gru", {"embed": 6, "rnn.l0": 4, "rnn.l1": 4}, words(11, 2, 5))
def gru() -> nn.Module:
    return Tagger(nn.GRU, num_layers=2)


@listed("rnn", {"embed": 6, "rnn.l0": 4}, words(11, 2, 5))
def rnn() -> nn.Module:
    return Tagger(nn.RNN)


class LastStates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(5, 4, 2, bidirectional=True)
        self.out = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        _, (hidden, cell) = self.rnn(x)
        return {"logits": self.out(torch.cat([hidden[-2], hidden[-1], cell[0]], dim=-1))}


listed(
    "last states of an lstm",
    {"rnn.l0": 4, "rnn.l0_reverse": 4, "rnn.l1": 4, "rnn.l1_reverse": 4},
    rows(6, 2, 5),
)(LastStates)


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.second = nn.LSTMCell(5, 4), nn.GRUCell(4, 6)
        self.out = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        state, other = None, None
        for step in range(x.shape[0]):
            state = self.cell(x[step], state)
            other = self.second(state[0], other)
        return self.out(other)


listed("cells", {"cell": 4, "second": 6}, rows(3, 2, 5))(Cells)


class TiedLanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.hidden = nn.Linear(6, 8)
        self.back = nn.Linear(8, 6)
        self.decoder = nn.Linear(6, 11)
        self.decoder.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        return self.decoder(x + self.back(F.relu(self.hidden(x))))


listed("tied embedding", {"embed": 6, "hidden": 8}, words(11, 2, 5))(TiedLanguageModel)


# -- Attention.


class SelfAttention(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **options)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        y, _ = self.attention(x, x, x)
        return self.out(x + y)


ATTENTION = {"attention.heads": 2, "attention.query_key": 8, "attention.value": 8}
INSIDE = {"attention.query_key": "attention.heads", "attention.value": "attention.heads"}
listed("multi-head attention", {"embed": 8, **ATTENTION}, rows(2, 4, 5), INSIDE, tuple(ATTENTION))(SelfAttention)


class CrossAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, kdim=5, vdim=6, batch_first=True)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return self.attention(query, key, value)


listed(
    "cross attention",
    ATTENTION,
    lambda: {"query": torch.randn(2, 3, 8), "key": torch.randn(2, 4, 5), "value": torch.randn(2, 4, 6)},
    INSIDE,
    tuple(ATTENTION),
)(CrossAttention)


def in_layer(layer: str, *, width: int = 12, inside: int = 8) -> tuple[dict[str, int], dict[str, str]]:
    groups = {f"{layer}.heads": 2, f"{layer}.query_key": inside, f"{layer}.value": inside}
    return groups, {f"{layer}.query_key": f"{layer}.heads", f"{layer}.value": f"{layer}.heads"}


FIRST, SECOND = in_layer("encoder.layers.0.self_attn"), in_layer("encoder.layers.1.self_attn")


class Encoder(nn.Module):
    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.encoder(self.embed(x)))


ENCODER: dict[str, Any] = {
    "groups": {
        "embed": 8, **FIRST[0], "encoder.layers.0.linear1": 12, **SECOND[0], "encoder.layers.1.linear1": 12,
    },
    "example": rows(2, 4, 5),
    "parents": {**FIRST[1], **SECOND[1]},
    "rigid": ("embed", *FIRST[0], *SECOND[0]),
}  # fmt: skip
listed("transformer encoder", **ENCODER)(lambda: Encoder(False))
listed("transformer encoder, norm first", **ENCODER)(lambda: Encoder(True))


class GPTBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.c_attn, self.c_proj = nn.Linear(8, 24), nn.Linear(8, 8)
        self.fc, self.proj = nn.Linear(8, 10), nn.Linear(10, 8)
        self.register_buffer("mask", torch.tril(torch.ones(6, 6)).view(1, 1, 6, 6))

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        query, key, value = self.c_attn(self.ln_1(x)).split(width, dim=2)
        query, key, value = (heads.view(batch, tokens, 2, 4).transpose(1, 2) for heads in (query, key, value))
        scores = query @ key.transpose(-2, -1) * 0.5
        scores = scores.masked_fill(self.mask[:, :, :tokens, :tokens] == 0, float("-inf"))
        y = scores.softmax(-1) @ value
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(batch, tokens, width))
        return x + self.proj(F.gelu(self.fc(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(11, 8), nn.Embedding(6, 8)
        self.block = GPTBlock()
        self.ln_f = nn.LayerNorm(8)
        self.lm_head = nn.Linear(8, 11, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        return self.lm_head(self.ln_f(self.block(x)))


listed(
    "gpt",
    {"wte": 8, "block.heads": 2, "block.query_key": 8, "block.value": 8, "block.fc": 10},
    words(11, 2, 5),
    {"block.query_key": "block.heads", "block.value": "block.heads"},
    ("wte", "block.heads", "block.query_key", "block.value"),
)(GPT)


class VisionAttention(nn.Module):
    """Queries, keys and values in one weight, told apart by an axis of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.position = nn.Parameter(torch.zeros(1, 5, 8))
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.position
        query, key, value = self.qkv(x).reshape(x.shape[0], 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(query, key, value)
        x = x + self.proj(y.transpose(1, 2).reshape(x.shape))
        return self.head(x[:, 0])


listed(
    "vision transformer",
    {"patch": 8, "heads": 2, "query_key": 8, "value": 8},
    images(),
    {"query_key": "heads", "value": "heads"},
    ("heads", "query_key", "value"),
)(VisionAttention)


class BertLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(8, 6), nn.Linear(8, 6), nn.Linear(8, 6)
        self.dense = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 10), nn.Linear(10, 8)

    def heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], 3, 2).permute(0, 2, 1, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        scores = torch.matmul(self.heads(self.query(x)), self.heads(self.key(x)).transpose(-1, -2)) / 2**0.5
        weights = F.softmax(scores + (1.0 - mask)[:, None, None, :] * -1e4, dim=-1)
        y = torch.matmul(weights, self.heads(self.value(x))).permute(0, 2, 1, 3).flatten(2)
        x = self.norm(x + self.dense(y))
        return self.norm(x + self.down(F.gelu(self.up(x))))


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(11, 8), nn.Embedding(7, 8)
        self.register_buffer("position_ids", torch.arange(7)[None])
        self.layer = BertLayer()
        self.pooler, self.classifier = nn.Linear(8, 9), nn.Linear(9, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.words(input_ids) + self.positions(self.position_ids[:, : input_ids.shape[1]])
        x = self.layer(x, attention_mask)
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))


listed(
    "bert",
    {"words": 8, "layer.heads": 3, "layer.query_key": 6, "layer.value": 6, "layer.up": 10, "pooler": 9},
    lambda: {"input_ids": torch.randint(11, (2, 5)), "attention_mask": torch.ones(2, 5)},
    {"layer.query_key": "layer.heads", "layer.value": "layer.heads"},
    ("words", "layer.heads", "layer.query_key", "layer.value"),
)(Bert)


# -- Products of parameters, gates, and operations that nobody looks through.


class LowRank(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(5, 6)
        self.down, self.up = nn.Parameter(torch.randn(2, 5)), nn.Parameter(torch.randn(6, 2))
        self.gate = nn.Linear(6, 14)
        self.out = nn.Linear(7, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.linear(x, self.base.weight + self.up @ self.down, self.base.bias)
        return self.out(F.glu(self.gate(F.elu(x))))


listed("low rank and gated", {"up": 6, "down": 2, "gate": 7}, rows(3, 5))(LowRank)


class WrittenOut(nn.Module):
    """Linear layers whose weights are raw parameters, multiplied in different ways."""

    def __init__(self) -> None:
        super().__init__()
        shapes = {"transposed": (6, 5), "inner": (7, 6), "dotted": (4, 7), "chained": (5, 4), "paired": (6, 5),
                  "added": (4, 6), "last": (2, 4)}  # fmt: skip
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape)))
        self.bias = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x @ self.transposed.t())
        x = torch.tanh(torch.inner(x, self.inner))
        x = torch.tanh(torch.tensordot(x, self.dotted, dims=([1], [1])))
        x = torch.tanh(torch.linalg.multi_dot([x, self.chained.T]))
        x = torch.tanh(torch.linalg.vecdot(x[:, None], self.paired))
        x = torch.tanh(torch.stack([torch.addmv(self.bias, self.added, row) for row in x]))
        return torch.linalg.matmul(x, self.last.mT)


listed(
    "products written out",
    {"transposed": 6, "inner": 7, "dotted": 4, "chained": 5, "paired": 6, "bias": 4},
    rows(3, 5),
)(WrittenOut)


class Odd(nn.Module):
    """`first` moves; the units of `second` are added up in order, those of `third` transformed as a series."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(5, 6), nn.Linear(6, 4), nn.Linear(4, 8)
        self.out = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cumsum(self.second(torch.relu(self.first(x))), dim=-1)
        return self.out(torch.fft.rfft(self.third(x)).abs())


listed("operations nobody looks through", {"first": 6}, rows(3, 5), notes=("cumsum", "fft"))(Odd)


class Sorted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(5, 6), nn.Linear(6, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        x = torch.sort(self.second(torch.relu(self.first(x)))).values
        return self.out(x), [x[:, :1]]


listed("sorted units", {"first": 6}, rows(3, 5), notes=("sort",))(Sorted)
