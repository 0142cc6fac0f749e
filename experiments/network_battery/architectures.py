"""The networks of the battery, as plain modules of little size: each trains at a site in seconds.

``build(name, ...)`` returns one; a name is a key of ``ARCHITECTURES``. Images are (n, channels, side, side), flattened
for the MLP; token ids are (n, length) with padding 0 on the left; rows of numbers are (n, d).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

GROUPS = 2
"""Groups of a group norm: every width of the plan is even."""
EMBEDDING = 24
HEADS = 2


def mlp(shape: Sequence[int], outputs: int, widths: Sequence[int], is_normed: bool = False) -> nn.Sequential:
    """Return linear layers and ReLU on flattened inputs, with batch norm between them or without."""
    before = int(torch.tensor(shape).prod())
    layers: list[nn.Module] = [nn.Flatten()] if len(shape) > 1 else []
    for width in widths:
        layers += [nn.Linear(before, width), *([nn.BatchNorm1d(width)] if is_normed else []), nn.ReLU()]
        before = width
    return nn.Sequential(*layers, nn.Linear(before, outputs))


def lenet(shape: Sequence[int], outputs: int, widths: Sequence[int]) -> nn.Sequential:
    """Return two convolutions with pooling, one hidden layer: widths are two numbers of channels and one of units."""
    first, second, hidden = widths
    channels, side = shape[0], shape[1]
    return nn.Sequential(
        nn.Conv2d(channels, first, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * (side // 4) ** 2, hidden),
        nn.ReLU(),
        nn.Linear(hidden, outputs),
    )


def vgg(shape: Sequence[int], outputs: int, widths: Sequence[int], is_normed: bool = False) -> nn.Sequential:
    """Return pairs of 3x3 convolutions, with batch norm or without, pooling after each pair; a width a pair."""
    before, side = shape[0], shape[1]
    layers: list[nn.Module] = []
    for width in widths:
        for channels in (before, width):
            layers.append(nn.Conv2d(channels, width, 3, padding=1, bias=not is_normed))
            layers += [*([nn.BatchNorm2d(width)] if is_normed else []), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
        before, side = width, side // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before * side**2, outputs))


def mobile(shape: Sequence[int], outputs: int, widths: Sequence[int]) -> nn.Sequential:
    """Return a convolution, then pairs of a depthwise and a pointwise one, every other strided, all with batch norm."""
    before, *later = widths
    stem = nn.Conv2d(shape[0], before, 3, padding=1, bias=False)
    layers: list[nn.Module] = [stem, nn.BatchNorm2d(before), nn.ReLU()]
    for number, width in enumerate(later):
        depthwise = nn.Conv2d(before, before, 3, stride=1 + number % 2, padding=1, groups=before, bias=False)
        layers += [depthwise, nn.BatchNorm2d(before), nn.ReLU()]
        layers += [nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs))


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with norms, added to the input or to its projection by a 1x1 convolution."""

    def __init__(self, before: int, channels: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        """Build a block from `before` to `channels` channels whose first convolution has this stride."""
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = norm(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = norm(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != channels:
            self.shortcut = nn.Sequential(nn.Conv2d(before, channels, 1, stride=stride, bias=False), norm(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        inner = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x)))))
        return functional.relu(inner + self.shortcut(x))


def resnet8(
    shape: Sequence[int], outputs: int, widths: Sequence[int], norm: Callable[[int], nn.Module]
) -> nn.Sequential:
    """Return a ResNet of three residual blocks, a width each, halving the side before the second and the third."""
    before = widths[0]
    layers: list[nn.Module] = [nn.Conv2d(shape[0], before, 3, padding=1, bias=False), norm(before), nn.ReLU()]
    for stage, width in enumerate(widths):
        layers.append(ResidualBlock(before, width, 2 if stage else 1, norm))
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs))


def resnet8_bn(shape: Sequence[int], outputs: int, widths: Sequence[int]) -> nn.Sequential:
    """Return ResNet-8 with batch norm."""
    return resnet8(shape, outputs, widths, nn.BatchNorm2d)


def resnet8_gn(shape: Sequence[int], outputs: int, widths: Sequence[int]) -> nn.Sequential:
    """Return ResNet-8 with group norm."""
    return resnet8(shape, outputs, widths, lambda width: nn.GroupNorm(GROUPS, width))


class LSTMClassifier(nn.Module):
    """Embedding, LSTM layers, the last state, and a linear head; widths are units of the layers."""

    def __init__(self, vocabulary: int, outputs: int, widths: Sequence[int]) -> None:
        """Build a classifier of token ids below `vocabulary`."""
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, EMBEDDING)
        self.lstm = nn.LSTM(EMBEDDING, widths[0], num_layers=len(widths), batch_first=True)
        self.head = nn.Linear(widths[0], outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (n, outputs) of token ids (n, length)."""
        states, _ = self.lstm(self.embedding(tokens))
        return self.head(states[:, -1])


class TransformerBlock(nn.Module):
    """Self-attention and a feed-forward layer, each after a layer norm and added to its input."""

    def __init__(self, width: int, inner: int) -> None:
        """Build a block of a width, `inner` units in the feed-forward layer."""
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, HEADS, batch_first=True)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output (n, length, width)."""
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class TransformerClassifier(nn.Module):
    """Embeddings of tokens and positions, blocks, mean over positions, and a linear head.

    Widths are that of the stream, then the inner width of every block.
    """

    def __init__(self, shape: Sequence[int], outputs: int, widths: Sequence[int]) -> None:
        """Build a classifier; `shape` is (vocabulary, length)."""
        super().__init__()
        vocabulary, length = shape
        width, *inner = widths
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width, units) for units in inner))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (n, outputs) of token ids (n, length)."""
        return self.head(self.norm(self.blocks(self.embedding(tokens) + self.positions)).mean(dim=1))


ARCHITECTURES: dict[str, Callable[[Sequence[int], int, Sequence[int]], nn.Module]] = {
    "MLP": mlp,
    "MLP BN": partial(mlp, is_normed=True),
    "LeNet": lenet,
    "VGG": vgg,
    "VGG BN": partial(vgg, is_normed=True),
    "MobileNet BN": mobile,
    "ResNet-8 BN": resnet8_bn,
    "ResNet-8 GN": resnet8_gn,
    "LSTM": lambda shape, outputs, widths: LSTMClassifier(shape[0], outputs, widths),
    "transformer": TransformerClassifier,
    "BNN": mlp,
}
