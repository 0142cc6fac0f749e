"""Networks of images, sequences and graphs with the blocks of well-known architectures, at small widths."""

import torch
from torch import nn


class Squeeze(nn.Module):
    """Squeeze and excitation: channels scaled by what a small network makes of their means."""

    def __init__(self, width, inner, gate):
        super().__init__()
        self.down, self.up, self.gate = nn.Conv2d(width, inner, 1), nn.Conv2d(inner, width, 1), gate

    def forward(self, x):
        return x * self.gate(self.up(self.down(x.mean((2, 3), keepdim=True)).relu()))


class Inverted(nn.Module):
    """The inverted residual of MobileNetV3 and EfficientNet."""

    def __init__(self, width, inner, activation, gate):
        super().__init__()
        self.expand, self.norm = nn.Conv2d(width, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.depthwise = nn.Conv2d(inner, inner, 3, padding=1, groups=inner, bias=False)
        self.norm2, self.squeeze = nn.BatchNorm2d(inner), Squeeze(inner, 6, gate)
        self.project, self.norm3 = nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width)
        self.activation = activation

    def forward(self, x):
        inner = self.activation(self.norm(self.expand(x)))
        inner = self.squeeze(self.activation(self.norm2(self.depthwise(inner))))
        return x + self.norm3(self.project(inner))


class MobileNetV3(nn.Module):
    """Two inverted residuals with hard swish and hard sigmoid."""

    def __init__(self, activation=nn.Hardswish, gate=nn.Hardsigmoid):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8)
        self.blocks = nn.Sequential(*(Inverted(8, 20, activation(), gate()) for _ in range(2)))
        self.last, self.head = nn.Conv2d(8, 12, 1), nn.Linear(12, 5)
        self.activation = activation()

    def forward(self, x):
        x = self.blocks(self.activation(self.norm(self.stem(x))))
        return self.head(self.activation(self.last(x)).mean((2, 3)))


class EfficientNet(MobileNetV3):
    """The same blocks with swish and sigmoid."""

    def __init__(self):
        super().__init__(nn.SiLU, nn.Sigmoid)


class ConvNeXtBlock(nn.Module):
    """A depthwise convolution, a norm over channels, a perceptron, and LayerScale."""

    def __init__(self, width):
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(1e-6 * torch.ones(width))

    def forward(self, x):
        inner = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(nn.functional.gelu(self.up(inner)))).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """Two blocks of ConvNeXt behind its patches."""

    def __init__(self):
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(3, 8, 4, stride=4), nn.Sequential(ConvNeXtBlock(8), ConvNeXtBlock(8))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.stem(x)).mean((2, 3))))


class ShuffleNet(nn.Module):
    """A unit of ShuffleNetV2: half of the channels pass, and all are shuffled."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.first, self.depthwise = nn.Conv2d(6, 6, 1), nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.second, self.norm, self.head = nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6), nn.Linear(12, 5)

    def forward(self, x):
        kept, changed = self.stem(x).relu().chunk(2, dim=1)
        changed = self.norm(self.second(self.depthwise(self.first(changed).relu()))).relu()
        both = torch.cat([kept, changed], dim=1)
        n, c, h, w = both.shape
        shuffled = both.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        return self.head(shuffled.mean((2, 3)))


class MixerBlock(nn.Module):
    """Perceptrons over patches and over channels."""

    def __init__(self, patches, width):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = nn.Sequential(nn.Linear(patches, 10), nn.GELU(), nn.Linear(10, patches))
        self.channels = nn.Sequential(nn.Linear(width, 14), nn.GELU(), nn.Linear(14, width))

    def forward(self, x):
        x = x + self.mix(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    """Two blocks of an MLP-Mixer."""

    def __init__(self):
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(3, 8, 4, stride=4), nn.Sequential(MixerBlock(16, 8), MixerBlock(16, 8))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.stem(x).flatten(2).transpose(1, 2))).mean(1))


class WaveNet(nn.Module):
    """Gated dilated convolutions with residual and skip sums."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv1d(2, 8, 1)
        self.filters, self.gates, self.residuals, self.skips = (
            nn.ModuleList([make(2**n) for n in range(2)])
            for make in (
                lambda d: nn.Conv1d(8, 10, 2, dilation=d), lambda d: nn.Conv1d(8, 10, 2, dilation=d),
                lambda _: nn.Conv1d(10, 8, 1), lambda _: nn.Conv1d(10, 9, 1),
            )
        )  # fmt: skip
        self.head = nn.Conv1d(9, 4, 1)

    def forward(self, x):
        x, total = self.stem(x), 0.0
        for n in range(2):
            padded = nn.functional.pad(x, (2**n, 0))
            gated = self.filters[n](padded).tanh() * self.gates[n](padded).sigmoid()
            x, total = x + self.residuals[n](gated), total + self.skips[n](gated)
        return self.head(total.relu())


class GraphConvolution(nn.Module):
    """Two layers whose messages are summed at the nodes of a fixed graph."""

    def __init__(self, how="index_add"):
        super().__init__()
        self.first, self.second, self.head, self.how = nn.Linear(5, 7), nn.Linear(7, 6), nn.Linear(6, 3), how
        self.register_buffer("edges", torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]]))

    def spread(self, x):
        sent, at = x[self.edges[0]], self.edges[1]
        if self.how == "index_add":
            return torch.zeros_like(x).index_add(0, at, sent)
        index = at[:, None].expand(-1, x.shape[1])
        if self.how == "scatter_add":
            return torch.zeros_like(x).scatter_add(0, index, sent)
        return torch.zeros_like(x).scatter_reduce(0, index, sent, "mean")

    def forward(self, x):
        return self.head(self.spread(self.second(self.spread(self.first(x)).relu())).relu())


class GraphAttention(nn.Module):
    """A layer of graph attention with two heads."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(5, 8), nn.Linear(8, 3)
        self.source, self.target = nn.Parameter(torch.randn(1, 2, 4)), nn.Parameter(torch.randn(1, 2, 4))
        self.register_buffer("edges", torch.eye(5) + torch.eye(5).roll(1, 0))

    def forward(self, x):
        heads = self.layer(x).view(-1, 2, 4)
        scores = (heads * self.source).sum(-1)[:, None] + (heads * self.target).sum(-1)[None]
        scores = nn.functional.leaky_relu(scores, 0.2).masked_fill(self.edges[:, :, None] == 0, -1e9)
        return self.head(nn.functional.elu(torch.einsum("ijh,jhf->ihf", scores.softmax(1), heads).reshape(5, 8)))
