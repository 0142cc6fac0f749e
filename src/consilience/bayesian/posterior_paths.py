"""Paths between two Gaussian posteriors over the weights of one architecture.

With means m_0, m_1 and standard deviations s_0, s_1 of independent weights, the *wasserstein* path is the geodesic of
the Wasserstein-2 distance,

    m_t = (1 - t) m_0 + t m_1,   s_t = (1 - t) s_0 + t s_1,

the *natural* path averages natural parameters, as KL fusion does,

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
_FEW = 3

T = TypeVar("T", Tensor, float)
Step = Callable[[Tensor, Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]


def geodesic(mean: T, deviation: T, other: T, other_deviation: T, t: float) -> tuple[T, T]:
    """Return mean and deviation at t on the geodesic of the Wasserstein-2 distance, entry by entry.

    Examples
    --------
    >>> geodesic(0.0, 1.0, 4.0, 3.0, 0.5)
    (2.0, 2.0)
    """
    return mean + t * (other - mean), deviation + t * (other_deviation - deviation)


def natural_average(mean: T, deviation: T, other: T, other_deviation: T, t: float) -> tuple[T, T]:
    """Return mean and deviation whose natural parameters are averages of two, entry by entry.

    Written with the ratio of precisions, so that equal Gaussians average to themselves without rounding.

    Examples
    --------
    >>> mean, deviation = natural_average(0.0, 1.0, 5.0, 0.5, 0.5)
    >>> round(mean, 9), round(1.0 / deviation**2, 9)
    (4.0, 2.5)
    """
    ratio = (deviation / other_deviation) ** 2
    precision = 1.0 + t * (ratio - 1.0)  # over that of the first
    return mean + t * ratio / precision * (other - mean), deviation * precision**-0.5


STEPS: dict[str, Step] = {"wasserstein": geodesic, "natural": natural_average}
"""How the Gaussians between two are found, by name of the path."""


def require_path(path: str) -> None:
    """Raise where a path does not exist."""
    if path not in POSTERIOR_PATHS:
        raise OptionError(f"path: expected one of {', '.join(map(repr, POSTERIOR_PATHS))}, found {path!r}")


def require_same_architecture(bnn_a: BayesianNetwork, bnn_b: BayesianNetwork) -> None:
    """Raise where two networks have not the same parameters, classes and buffers.

    Raises
    ------
    InputError
        Naming what differs.
    """
    for name, one in (("bnn_a", bnn_a), ("bnn_b", bnn_b)):
        if not isinstance(one, BayesianNetwork):
            raise InputError(f"{name}: expected a consilience.BayesianNetwork, found {type(one).__name__}")
    shapes = [{key: tuple(values.shape) for key, values in one.means.items()} for one in (bnn_a, bnn_b)]
    problems = [f"bnn_b has no {key}, which bnn_a has; {_REMEDY}" for key in shapes[0] if key not in shapes[1]]
    problems += [f"bnn_b has {key}, which bnn_a has not; {_REMEDY}" for key in shapes[1] if key not in shapes[0]]
    problems += [
        f"{key} has shape {shape} in bnn_a, {shapes[1][key]} in bnn_b; {_REMEDY}"
        for key, shape in shapes[0].items()
        if key in shapes[1] and shapes[1][key] != shape
    ]
    if None not in (bnn_a.classes, bnn_b.classes) and bnn_a.classes != bnn_b.classes:
        problems.append(f"classes are {bnn_a.classes} in bnn_a, {bnn_b.classes} in bnn_b; bring them into one order")
    if not problems and bnn_a.module is not None and bnn_b.module is not None:
        problems += [f"buffer {key} is not the same in bnn_a and bnn_b" for key in _odd_buffers(bnn_a, bnn_b)]
    if problems:
        raise InputError(problems[:_FEW])


def _odd_buffers(bnn_a: BayesianNetwork, bnn_b: BayesianNetwork) -> list[str]:
    """Return the names of buffers that differ: nothing says what they would be in between."""
    one, other = ({k: v for k, v in bnn.arrays.items() if k not in bnn.means} for bnn in (bnn_a, bnn_b))
    return [
        key
        for key in sorted({*one, *other})
        if key not in one or key not in other or not torch.equal(torch.as_tensor(one[key]), torch.as_tensor(other[key]))
    ]


def posterior_between(
    bnn_a: BayesianNetwork, bnn_b: BayesianNetwork, t: float, path: PosteriorPath = "wasserstein"
) -> BayesianNetwork:
    """Return the Bayesian network at a place on a path between two.

    Parameters
    ----------
    bnn_a, bnn_b
        Posteriors of one architecture and width, the second in the first's order of units.
    t
        Place from 0 (the first network) to 1 (the second).
    path
        "wasserstein" or "natural".

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
    if path not in STEPS:
        raise OptionError(
            f"path: the posteriors on the {path!r} path are no Gaussians; take one of "
            f"{', '.join(map(repr, STEPS))}, or fuse(..., method='ensemble') for the mixture itself"
        )
    if not is_number(t) or not 0.0 <= t <= 1.0:
        raise OptionError(f"t: expected a number from 0 to 1, found {t!r}")
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
    """Return means and variances at a place, those of an end unchanged, in the precision of the first."""
    if t in (0.0, 1.0):
        end = bnn_b if t else bnn_a
        return end.means, end.variances
    means, variances = {}, {}
    for key, values in bnn_a.means.items():
        like = torch.as_tensor(values)
        given = (values, bnn_a.variances[key], bnn_b.means[key], bnn_b.variances[key])
        mean, variance, other, other_variance = (torch.as_tensor(one).to(like.device, torch.float64) for one in given)
        found, deviation = STEPS[path](mean, variance.sqrt(), other, other_variance.sqrt(), t)
        means[key], variances[key] = found.to(like.dtype), (deviation**2).to(like.dtype)
    return means, variances
