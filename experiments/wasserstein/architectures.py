"""The networks of the fusion experiments, as plain modules that are built by calling a function of this module.

MLPNet, MLPSmall, MLPLarge and VGG11 are those of the paper on Wasserstein-barycenter fusion ("Wasserstein
barycenter-based model fusion and linear mode connectivity of neural networks"), the MLP of 512 units is that of Git
Re-Basin (Ainsworth et al. 2023), and ResNet20 is that of He et al. 2016 for CIFAR-10.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

VGG11_WIDTHS = (64, None, 128, None, 256, 256, None, 512, 512, None, 512, 512, None)
RESNET_WIDTHS, RESNET20_BLOCKS = (16, 32, 64), 3


def mlp(widths: Sequence[int] = (400, 200, 100), bias: bool = False) -> nn.Sequential:
    """Return a network of linear layers and ReLU from 784 pixels (n, 784) to 10 logits.

    Parameters
    ----------
    widths
        Numbers of hidden units.
    bias
        Whether layers have biases. Those of the published code on WB fusion have none.
    """
    layers: list[nn.Module] = []
    before = 784
    for width in widths:
        layers += [nn.Linear(before, width, bias=bias), nn.ReLU()]
        before = width
    return nn.Sequential(*layers, nn.Linear(before, 10, bias=bias))


def mlp_net() -> nn.Sequential:
    """Return MLPNet of WB fusion: 784-400-200-100-10 without biases."""
    return mlp()


def mlp_small() -> nn.Sequential:
    """Return MLPSmall of WB fusion: 784-200-100-50-10 without biases."""
    return mlp((200, 100, 50))


def mlp_large() -> nn.Sequential:
    """Return MLPLarge of WB fusion: 784-800-400-200-10 without biases."""
    return mlp((800, 400, 200))


def mlp_wide(factor: float) -> nn.Sequential:
    """Return MLPNet with every hidden width times `factor`."""
    return mlp([max(1, round(factor * width)) for width in (400, 200, 100)])


def mlp_512() -> nn.Sequential:
    """Return the MLP of Git Re-Basin for MNIST: 784-512-512-512-10 with biases."""
    return mlp((512, 512, 512), bias=True)


def vgg11(width: float = 0.25) -> nn.Sequential:
    """Return VGG11 for images (n, 3, 32, 32), without batch norm and with one linear classifier.

    Parameters
    ----------
    width
        Times the channels of the original. 1 is the published network; the experiments here have a quarter of its
        channels, since they run on one processor core. Layers have biases, which the network of the published code
        has not, and weights start as proposed by He et al. 2015.
    """
    layers: list[nn.Module] = []
    before = 3
    for base in VGG11_WIDTHS:
        if base is None:
            layers.append(nn.MaxPool2d(2))
        else:
            channels = max(1, round(width * base))
            layers += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU()]
            before = channels
    return started(nn.Sequential(*layers, nn.Flatten(), nn.Linear(before, 10)))


def convolutions(widths: Sequence[int | None] = (8, None, 16, None)) -> nn.Sequential:
    """Return 3x3 convolutions with biases and ReLU for grey images (n, 1, 28, 28), and two linear layers.

    Parameters
    ----------
    widths
        Channels of the convolutions; None halves the image.
    """
    layers: list[nn.Module] = []
    before, size = 1, 28
    for channels in widths:
        if channels is None:
            layers.append(nn.MaxPool2d(2))
            size //= 2
        else:
            layers += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU()]
            before = channels
    head = (nn.Linear(before * size * size, 64), nn.ReLU(), nn.Linear(64, 10))
    return started(nn.Sequential(*layers, nn.Flatten(), *head))


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch norm, added to the input or to its projection by a 1x1 convolution."""

    def __init__(self, before: int, channels: int, stride: int) -> None:
        """Build a block from `before` to `channels` channels whose first convolution has this stride."""
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, channels, 1, stride=stride, bias=False), nn.BatchNorm2d(channels)
            )
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        inner = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        return self.relu(inner + self.shortcut(x))


def resnet20(width: float = 0.5) -> nn.Sequential:
    """Return ResNet20 for images (n, 3, 32, 32), with batch norm.

    Parameters
    ----------
    width
        Times the 16, 32 and 64 channels of He et al. 2016. Where the number of channels changes, the shortcut is a 1x1
        convolution with batch norm (their option B; their CIFAR networks pad with zeros), so that it has weights that
        can be fused. The paper on WB fusion has ResNet18 without batch norm, which is much larger.
    """
    widths = [max(1, round(width * base)) for base in RESNET_WIDTHS]
    before = widths[0]
    layers: list[nn.Module] = [nn.Conv2d(3, before, 3, padding=1, bias=False), nn.BatchNorm2d(before), nn.ReLU()]
    for stage, channels in enumerate(widths):
        for block in range(RESNET20_BLOCKS):
            layers.append(ResidualBlock(before, channels, 2 if stage and not block else 1))
            before = channels
    return started(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10)))


def started(network: nn.Sequential) -> nn.Sequential:
    """Return the network with convolutions drawn as proposed by He et al. 2015 and with biases of convolutions zero."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return network
