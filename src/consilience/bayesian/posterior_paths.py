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

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal, TypeVar, get_args

import torch
from torch import Tensor

from consilience.bayesian.network import BayesianNetwork
from consilience.checks import AnyArray, is_number
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


def posterior_between(
    bnn_a: BayesianNetwork, bnn_b: BayesianNetwork, t: float, path: PosteriorPath = "wasserstein"
) -> BayesianNetwork:
    """Return the Bayesian network at a position on a path between two.

    Parameters
    ----------
    bnn_a, bnn_b : BayesianNetwork
        Posteriors of one architecture and width, the second in the first's order of units.
    t : float
        Position on the path, from 0 (the first network) to 1 (the second).
    path : {"wasserstein", "natural"}
        Path whose posteriors are Gaussians. Default: "wasserstein".

    Returns
    -------
    BayesianNetwork
        With the module of the first; at the ends exactly its or the second's means and variances.

    Raises
    ------
    InputError
        For networks that differ in a parameter's name or shape, in classes or in buffers.
    OptionError
        For a `t` outside of [0, 1], or a path that does not exist or has no Gaussians.

    Examples
    --------
    >>> net = torch.nn.Linear(1, 2, bias=False)
    >>> a = BayesianNetwork(net, {"weight": torch.zeros(2, 1)}, {"weight": torch.full((2, 1), 1.0)})
    >>> b = BayesianNetwork(net, {"weight": torch.ones(2, 1)}, {"weight": torch.full((2, 1), 9.0)})
    >>> middle = posterior_between(a, b, 0.5)
    >>> middle.means["weight"].flatten().tolist(), middle.variances["weight"].flatten().tolist()
    ([0.5, 0.5], [4.0, 4.0])
    """
    require_path(path)
    if path not in GAUSSIAN_PATHS:
        raise OptionError(
            "path",
            f"the posteriors on the {path!r} path are no Gaussians",
            "take one of "
            f"{', '.join(map(repr, GAUSSIAN_PATHS))}, or fuse(..., method='ensemble') for the mixture itself",
        )
    if not is_number(t) or not 0.0 <= t <= 1.0:
        raise OptionError("t", f"expected a number from 0 to 1, found {t!r}")
    require_same_architecture(bnn_a, bnn_b)
    means, variances = _moments_at(bnn_a, bnn_b, float(t), path)
    return replace(
        bnn_a,
        means=means,
        variances=variances,
        prior_variances=bnn_a.prior_variances if bnn_a.prior == bnn_b.prior else None,
        name=f"{path} path at {t:g}",
        sha256=None,
    )


def _moments_at(
    bnn_a: BayesianNetwork, bnn_b: BayesianNetwork, t: float, path: str
) -> tuple[Mapping[str, AnyArray], Mapping[str, AnyArray]]:
    """Return means and variances at t, those of an end unchanged, in the precision of the first."""
    if t in (0.0, 1.0):
        end = bnn_b if t else bnn_a
        return end.means, end.variances
    means, variances = {}, {}
    for key, values in bnn_a.means.items():
        device, dtype = torch.as_tensor(values).device, torch.as_tensor(values).dtype
        moments = (values, bnn_a.variances[key], bnn_b.means[key], bnn_b.variances[key])
        # In float64, so that only the result is rounded to the precision of the weights.
        m0, v0, m1, v1 = (torch.as_tensor(moment).to(device, torch.float64) for moment in moments)
        mean, deviation = GAUSSIAN_PATHS[path](m0, v0.sqrt(), m1, v1.sqrt(), t)
        means[key], variances[key] = mean.to(dtype), (deviation**2).to(dtype)
    return means, variances
