"""Paths between two Gaussian posteriors: Wasserstein geodesics, natural-parameter averages, mixtures.

With means m_0, m_1 and standard deviations s_0, s_1 of independent weights, the *wasserstein* path is the geodesic of
the Wasserstein-2 distance,

    m_t = (1 - t) m_0 + t m_1,   s_t = (1 - t) s_0 + t s_1,

the *natural* path averages natural parameters, as (4) of Claici et al. 2020 (KL-fusion) does,

    1 / s_t^2 = (1 - t) / s_0^2 + t / s_1^2,   m_t / s_t^2 = (1 - t) m_0 / s_0^2 + t m_1 / s_1^2,

and on the *mixture* path (1 - t) q_0 + t q_1, whose posteriors are no Gaussians, predictions are averages of those at
the ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar, get_args

import torch
from torch import Tensor

from consilience.bayesian.network import BayesianNetwork
from consilience.errors import InputError, OptionError

PosteriorPath = Literal["wasserstein", "natural", "mixture"]
POSTERIOR_PATHS: tuple[PosteriorPath, ...] = get_args(PosteriorPath)

_REMEDY = "only posteriors of one architecture and width can be connected, aligned say by fuse(..., method='w2')"
_MAX_PROBLEMS = 3
"""Problems that an error lists. Chosen by hand for short messages."""

T = TypeVar("T", Tensor, float)
GaussianPath = Callable[[Tensor, Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
"""From m_0, s_0, m_1, s_1 and t to m_t and s_t, entry by entry."""


def geodesic(m0: T, s0: T, m1: T, s1: T, t: float) -> tuple[T, T]:
    """Return mean and deviation at t on the geodesic of the Wasserstein-2 distance, entry by entry.

    Examples
    --------
    >>> geodesic(0.0, 1.0, 4.0, 3.0, 0.5)
    (2.0, 2.0)
    """
    return m0 + t * (m1 - m0), s0 + t * (s1 - s0)


def natural_interpolation(m0: T, s0: T, m1: T, s1: T, t: float) -> tuple[T, T]:
    """Return mean and deviation whose natural parameters are (1 - t) and t parts of two, entry by entry.

    Written with the ratio of precisions, so that equal Gaussians average to themselves without rounding.

    Examples
    --------
    >>> mean, deviation = natural_interpolation(0.0, 1.0, 5.0, 0.5, 0.5)
    >>> round(mean, 9), round(1.0 / deviation**2, 9)
    (4.0, 2.5)
    """
    ratio = (s0 / s1) ** 2  # 1 / s1^2 over 1 / s0^2
    precision = 1.0 + t * (ratio - 1.0)  # 1 / s_t^2 over 1 / s0^2
    return m0 + t * ratio / precision * (m1 - m0), s0 * precision**-0.5


GAUSSIAN_PATHS: dict[str, GaussianPath] = {"wasserstein": geodesic, "natural": natural_interpolation}
"""Paths whose posteriors are Gaussians, by name."""


def require_path(path: str) -> None:
    """Raise where a path does not exist.

    Raises
    ------
    OptionError
        Naming the paths that do.
    """
    if path not in POSTERIOR_PATHS:
        raise OptionError("path", f"expected one of {', '.join(map(repr, POSTERIOR_PATHS))}, found {path!r}")


def require_same_architecture(bnn_a: BayesianNetwork, bnn_b: BayesianNetwork) -> None:
    """Raise unless two networks have the same parameters, classes and buffers.

    Raises
    ------
    InputError
        Naming what differs.
    """
    for name, bnn in (("bnn_a", bnn_a), ("bnn_b", bnn_b)):
        if not isinstance(bnn, BayesianNetwork):
            raise InputError(name, f"expected a consilience.BayesianNetwork, found {type(bnn).__name__}", code="E-TYPE")
    shapes_a, shapes_b = ({key: tuple(values.shape) for key, values in bnn.means.items()} for bnn in (bnn_a, bnn_b))
    problems = [f"bnn_b has no {key}, which bnn_a has; {_REMEDY}" for key in shapes_a if key not in shapes_b]
    problems += [f"bnn_b has {key}, which bnn_a has not; {_REMEDY}" for key in shapes_b if key not in shapes_a]
    problems += [
        f"{key} has shape {shape} in bnn_a, {shapes_b[key]} in bnn_b; {_REMEDY}"
        for key, shape in shapes_a.items()
        if key in shapes_b and shapes_b[key] != shape
    ]
    if None not in (bnn_a.classes, bnn_b.classes) and bnn_a.classes != bnn_b.classes:
        problems.append(f"classes are {bnn_a.classes} in bnn_a, {bnn_b.classes} in bnn_b; bring them into one order")
    if not problems and bnn_a.module is not None and bnn_b.module is not None:
        problems += [f"buffer {key} is not the same in bnn_a and bnn_b" for key in _differing_buffers(bnn_a, bnn_b)]
    if problems:
        raise InputError(problems[:_MAX_PROBLEMS])


def _differing_buffers(bnn_a: BayesianNetwork, bnn_b: BayesianNetwork) -> list[str]:
    """Return the names of buffers that differ: nothing says what they would be in between."""
    buffers_a, buffers_b = ({k: v for k, v in bnn.arrays.items() if k not in bnn.means} for bnn in (bnn_a, bnn_b))
    return [
        key
        for key in sorted({*buffers_a, *buffers_b})
        if key not in buffers_a
        or key not in buffers_b
        or not torch.equal(torch.as_tensor(buffers_a[key]), torch.as_tensor(buffers_b[key]))
    ]
