"""Loss barriers of the predictive distribution on a path between two Bayesian networks.

Along a path q_t of posteriors, with S samples of the weights for a prediction,

    p_t(y | x) ~ 1/S sum_s p(y | x, m_t + s_t eps_s),   L(t) = -1/N sum_n log p_t(y_n | x_n),
    B = max_t [ L(t) - (1 - t) L(0) - t L(1) ],

the barrier of linear mode connectivity with the marginal likelihood in place of that of one network (Rossi, Singh,
Hannagan 2023; their exact form is not established). The same eps_s serve all t (common random numbers), so that curves
are smooth: their difference is that of the posteriors, not of draws. On the *mixture* path p_t = (1 - t) p_0 + t p_1,
whose barrier is at most 0 by Jensen's inequality.

**Paths between two Gaussian posteriors**: Wasserstein geodesics, natural-parameter averages, mixtures.

With means m_0, m_1 and standard deviations s_0, s_1 of independent weights, the *wasserstein* path is the geodesic of
the Wasserstein-2 distance,

    m_t = (1 - t) m_0 + t m_1,   s_t = (1 - t) s_0 + t s_1,

the *natural* path averages natural parameters, as (4) of Claici et al. 2020 (KL-fusion) does,

    1 / s_t^2 = (1 - t) / s_0^2 + t / s_1^2,   m_t / s_t^2 = (1 - t) m_0 / s_0^2 + t m_1 / s_1^2,

and on the *mixture* path (1 - t) q_0 + t q_1, whose posteriors are no Gaussians, predictions are averages of those at
the ends.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from consilience.checks import Array, is_count
from consilience.errors import InputError, OptionError
from consilience.networks.gaussian.network import BayesianNetwork, differing_buffers, sample_seeds
from consilience.networks.landscape.barrier import Barrier

_MAX_PROBABILITIES = 2**25
"""Probabilities in memory at a time, over inputs, classes and positions: 256 MiB in float64. Chosen by hand; it decides
how the inputs are split, and the sums are the same up to rounding."""

GaussiansByName = Mapping[str, tuple[Tensor, Tensor]]
"""Mean and standard deviation, tensors of the parameter's shape, by name of the parameter."""


@dataclass(frozen=True, eq=False)
class PredictiveBarrier(Barrier):
    """Curves of predictions along a path between two Bayesian networks.

    Parameters
    ----------
    t : array of shape (P,)
        Positions on the path, from 0 to 1.
    values : dict of str to array of shape (P,)
        "loss": negative predictive log likelihood, in nats; "error": percent of inputs for which the most probable
        class is wrong; "expected_loss": the mean loss of single draws, E_q[-log p(y | x, theta)], in nats. Means over
        the runs.
    runs : tuple of Barrier
        The curves of every run, each with draws of its own.
    """

    runs: tuple[Barrier, ...] = field(default=(), repr=False)

    def excess_error(self, name: str = "loss") -> Array:
        """Return the standard error of the excess at every position (P,), from its deviation between runs.

        It is that of the mean over runs of S samples: the deviation between runs over the root of their number. The
        bias of the loss of S samples, which is above that of infinitely many by Jensen's inequality, is not part of it.

        Raises
        ------
        InputError
            For a single run.
        """
        return self._standard_error(np.array([run.excess(name) for run in self.runs]))

    def height_error(self, name: str = "loss") -> float:
        """Return the standard error of the height, from the heights of the runs.

        Raises
        ------
        InputError
            For a single run.
        """
        return float(self._standard_error(np.array([run.height(name) for run in self.runs])))

    def _standard_error(self, per_run: Array) -> Any:
        if len(self.runs) < 2:
            raise InputError("one run tells nothing of the error of its draws; ask for `repeats=2` or more")
        return per_run.std(axis=0, ddof=1) / np.sqrt(len(self.runs))


def predictive_barrier(
    bnn_a: BayesianNetwork,
    bnn_b: BayesianNetwork,
    inputs: Any,
    labels: ArrayLike,
    path: PosteriorPath = "wasserstein",
    points: int = 25,
    samples: int = 128,
    rng: int | np.random.Generator = 0,
    batch_size: int = 4096,
    repeats: int = 1,
) -> PredictiveBarrier:
    """Evaluate predictions along a path between two Bayesian networks, and return the curves with their barriers.

    Parameters and errors are those of `consilience.predictive_barrier`.

    Examples
    --------
    A network whose two units are exchanged gives the same, but not the ones between:

    >>> net = torch.nn.Sequential(torch.nn.Linear(1, 2, bias=False), torch.nn.ReLU(), torch.nn.Linear(2, 2, bias=False))
    >>> means = {"0.weight": torch.tensor([[2.0], [-2.0]]), "2.weight": torch.tensor([[2.0, 0.0], [0.0, 2.0]])}
    >>> a, b = (
    ...     BayesianNetwork(net, m, {name: torch.full_like(values, 1e-6) for name, values in m.items()})
    ...     for m in (means, {"0.weight": means["0.weight"].flip(0), "2.weight": means["2.weight"].flip(1)})
    ... )
    >>> curve = predictive_barrier(a, b, torch.tensor([[1.0], [-1.0]]), [0, 1], points=5, samples=4)
    >>> round(curve.height(), 2), round(float(curve.values["loss"][-1]), 2)
    (0.67, 0.02)
    """
    if path not in POSTERIOR_PATHS:
        raise OptionError("path", f"expected one of {', '.join(map(repr, POSTERIOR_PATHS))}, found {path!r}")
    if not is_count(points) or points < 2:
        raise OptionError("points", f"expected a whole number from 2, found {points!r}")
    for option, value in (("samples", samples), ("batch_size", batch_size), ("repeats", repeats)):
        if not is_count(value):
            raise OptionError(option, f"expected a positive whole number, found {value!r}")
    require_same_architecture(bnn_a, bnn_b)
    rows = torch.as_tensor(inputs)
    classes = bnn_a.logits(rows[:1], {key: mean for key, (mean, _) in _gaussians(bnn_a, bnn_a).items()}).shape[1]
    truth = _class_numbers(labels, len(rows), classes)
    t = np.union1d(np.arange(points) / (points - 1.0), 0.5)
    generator = np.random.default_rng(rng)
    runs = []
    for _ in range(repeats):
        run_rng = copy.deepcopy(generator)  # every chunk of the inputs sees the same draws
        runs.append(Barrier(t, _curves(bnn_a, bnn_b, rows, truth, path, t, samples, run_rng, batch_size, classes)))
        sample_seeds(samples, generator)  # moves the generator on, past the draws of this run
    means = {name: np.mean([run.values[name] for run in runs], axis=0) for name in runs[0].values}
    return PredictiveBarrier(t, means, tuple(runs))


def _gaussians(bnn: BayesianNetwork, template: BayesianNetwork) -> GaussiansByName:
    """Return means and deviations of a network in the type and on the device of another's module."""
    gaussians = {}
    for key, parameter in template.mean_module().named_parameters():
        variance = torch.as_tensor(bnn.variances[key])
        gaussians[key] = (torch.as_tensor(bnn.means[key]).to(parameter), variance.sqrt().to(parameter))
    return gaussians


def _class_numbers(labels: ArrayLike, count: int, classes: int) -> Tensor:
    """Return the labels as integers (n,)."""
    numbers = np.asarray(labels)
    if count == 0 or numbers.shape != (count,):
        text = f"expected one for each of {count} inputs, at least one, found shape {numbers.shape}"
        raise InputError("labels", text, code="E-SHAPE")
    if numbers.dtype.kind not in "iuf" or np.any(numbers != np.floor(numbers)):
        text = f"expected classes, whole numbers from 0, found {numbers.dtype} values"
        raise InputError("labels", text, code="E-NUMBER")
    if numbers.min() < 0 or numbers.max() >= classes:
        text = (
            f"expected classes from 0 to {classes - 1}, as the networks have {classes} outputs, found "
            f"{numbers.min():g} to {numbers.max():g}"
        )
        raise InputError("labels", text, code="E-NUMBER")
    return torch.from_numpy(numbers.astype(np.int64))


def _curves(
    bnn_a: BayesianNetwork,
    bnn_b: BayesianNetwork,
    rows: Tensor,
    truth: Tensor,
    path: str,
    t: Array,
    samples: int,
    run_rng: np.random.Generator,
    batch_size: int,
    classes: int,
) -> dict[str, Array]:
    """Return the curves of one run, each of shape (P,), inputs taken in chunks that fit into memory."""
    is_mixture = path not in GAUSSIAN_PATHS
    # Predictions on the mixture path are averages of those at the ends, so only the ends are evaluated.
    positions = np.array([0.0, 1.0]) if is_mixture else t
    chunk = max(1, _MAX_PROBABILITIES // (len(positions) * classes))
    totals = np.zeros((3, len(t)))
    gaussians_a, gaussians_b = (_gaussians(bnn, bnn_a) for bnn in (bnn_a, bnn_b))
    for first in range(0, len(rows), chunk):
        inputs, labels = rows[first : first + chunk], truth[first : first + chunk]
        sums = _PredictionSums.zeros(len(positions), len(inputs), classes)
        for noise in bnn_a.noise(samples, copy.deepcopy(run_rng)):
            for position, state in enumerate(_states(gaussians_a, gaussians_b, noise, path, positions)):
                sums.add(position, bnn_a.logits(inputs, state, batch_size), labels)
        totals += sums.mixture_scores(t, labels, samples) if is_mixture else sums.scores(labels, samples)
    loss, n_wrong, expected = totals / len(rows)  # (P,) each
    return {"loss": loss, "error": 100.0 * n_wrong, "expected_loss": expected}


def _states(
    gaussians_a: GaussiansByName, gaussians_b: GaussiansByName, noise: Mapping[str, Tensor], path: str, positions: Array
) -> Iterator[dict[str, Tensor]]:
    """Yield the weights m_t + s_t eps at every position."""
    for t in positions.tolist():
        state = {}
        for key, eps in noise.items():
            if t in (0.0, 1.0):  # exactly the ends, without the rounding of an interpolation
                mean, deviation = (gaussians_b if t else gaussians_a)[key]
            else:
                mean, deviation = GAUSSIAN_PATHS[path](*gaussians_a[key], *gaussians_b[key], t)
            state[key] = torch.addcmul(mean, deviation, eps)
        yield state


@dataclass(frozen=True, eq=False)
class _PredictionSums:
    """Sums over samples of the weights, at P positions for n inputs of C classes, in float64."""

    # Logarithm of the summed probabilities of the true classes (P, n): summed as logarithms, since single draws may
    # give a class a probability that underflows.
    log_likelihoods: Tensor
    probabilities: Tensor  # summed probabilities (P, n, C)
    losses: Tensor  # summed losses of single draws (P,), over inputs too

    @classmethod
    def zeros(cls, positions: int, count: int, classes: int) -> _PredictionSums:
        """Return the sums over no samples."""
        dtype = torch.float64
        log_zero = torch.full((positions, count), -torch.inf, dtype=dtype)
        return cls(log_zero, torch.zeros(positions, count, classes, dtype=dtype), torch.zeros(positions, dtype=dtype))

    def add(self, position: int, logits: Tensor, labels: Tensor) -> None:
        """Add the predictions of one draw of the weights at a position: logits (n, C), labels (n,)."""
        log_p = logits.cpu().double().log_softmax(dim=1)  # (n, C)
        log_true = log_p.gather(1, labels[:, None])[:, 0]  # (n,): of the true classes
        self.log_likelihoods[position] = torch.logaddexp(self.log_likelihoods[position], log_true)
        self.probabilities[position] += log_p.exp()
        self.losses[position] -= log_true.sum()

    def scores(self, labels: Tensor, samples: int) -> Array:
        """Return loss, number of wrong answers and expected loss (3, P), summed over inputs."""
        loss = np.log(samples) * len(labels) - self.log_likelihoods.sum(dim=1)  # -sum_n log(1/S sum_s p)
        n_wrong = (self.probabilities.argmax(dim=2) != labels).sum(dim=1).double()
        return cast(Array, torch.stack([loss, n_wrong, self.losses / samples]).numpy())

    def mixture_scores(self, t: Array, labels: Tensor, samples: int) -> Array:
        """Return the scores (3, len(t)) of the mixtures (1 - t) q_0 + t q_1 of the posteriors at two positions."""
        columns = []
        for weight in t.tolist():
            weights = torch.tensor([1.0 - weight, weight], dtype=torch.float64)
            mixture = _PredictionSums(  # at one position
                (self.log_likelihoods + weights.log()[:, None]).logsumexp(dim=0)[None],
                (weights[:, None, None] * self.probabilities).sum(dim=0)[None],
                (weights * self.losses).sum()[None],
            )
            columns.append(mixture.scores(labels, samples)[:, 0])
        return np.array(columns).T


PosteriorPath = Literal["wasserstein", "natural", "mixture"]
POSTERIOR_PATHS: tuple[PosteriorPath, ...] = get_args(PosteriorPath)

_REMEDY = "only posteriors of one architecture and width can be connected, aligned say by `fuse(..., method='w2')`"
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


def require_same_architecture(bnn_a: BayesianNetwork, bnn_b: BayesianNetwork) -> None:
    """Raise unless two networks have the same parameters, classes and buffers.

    Raises InputError, naming what differs.
    """
    for name, bnn in (("bnn_a", bnn_a), ("bnn_b", bnn_b)):
        if not isinstance(bnn, BayesianNetwork):
            raise InputError(name, f"expected a consilience.BayesianNetwork, found {type(bnn).__name__}", code="E-TYPE")
    problems = _shape_differences(bnn_a, bnn_b)
    if None not in (bnn_a.classes, bnn_b.classes) and bnn_a.classes != bnn_b.classes:
        problems.append(f"classes are {bnn_a.classes} in bnn_a, {bnn_b.classes} in bnn_b; bring them into one order")
    if not problems and bnn_a.module is not None and bnn_b.module is not None:
        # Nothing says what a buffer would be in between.
        problems += [f"buffer {key} is not the same in bnn_a and bnn_b" for key in differing_buffers(bnn_a, bnn_b)]
    if problems:
        raise InputError(problems[:_MAX_PROBLEMS])


def _shape_differences(bnn_a: BayesianNetwork, bnn_b: BayesianNetwork) -> list[str]:
    """Return which parameters one of two networks lacks, or has in another shape."""
    shapes_a, shapes_b = ({key: tuple(values.shape) for key, values in bnn.means.items()} for bnn in (bnn_a, bnn_b))
    problems = [f"bnn_b has no {key}, which bnn_a has; {_REMEDY}" for key in shapes_a if key not in shapes_b]
    problems += [f"bnn_b has {key}, which bnn_a has not; {_REMEDY}" for key in shapes_b if key not in shapes_a]
    return problems + [
        f"{key} has shape {shape} in bnn_a, {shapes_b[key]} in bnn_b; {_REMEDY}"
        for key, shape in shapes_a.items()
        if key in shapes_b and shapes_b[key] != shape
    ]
