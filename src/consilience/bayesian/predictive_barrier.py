"""The barrier of the predictive likelihood between two Bayesian networks.

Along a path q_t of posteriors, with S samples of the weights for a prediction,

    p_t(y | x) ~ 1/S sum_s p(y | x, m_t + s_t eps_s),   L(t) = -1/N sum_n log p_t(y_n | x_n),
    B = max_t [ L(t) - (1 - t) L(0) - t L(1) ],

the linear-connectivity barrier with the marginal likelihood in place of that of one network (Rossi, Singh, Hannagan
2023). The same eps_s serve all t, so that curves are smooth: their difference is that of the posteriors, not of draws.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from consilience.bayesian.network import BayesianNetwork, sample_seeds
from consilience.bayesian.posterior_paths import STEPS, PosteriorPath, require_path, require_same_architecture
from consilience.checks import Array, is_count
from consilience.errors import InputError, OptionError
from consilience.networks.landscape.barrier import Barrier

_AT_ONCE = 2**25
"""Probabilities that are kept at a time, over inputs, classes and places: 256 MiB."""

Moments = Mapping[str, tuple[Tensor, Tensor]]
"""Mean and deviation by name of the parameter."""


@dataclass(frozen=True, eq=False)
class PredictiveBarrier(Barrier):
    """Curves of predictions along a path between two Bayesian networks.

    Parameters
    ----------
    t
        Places (n,) on the path, from 0 to 1.
    values
        "loss": negative predictive log likelihood, in nats; "error": percent of inputs for which the averaged
        probabilities name another class; "expected_loss": the loss of single draws on average,
        E_q[-log p(y | x, theta)], in nats. Means over the runs.
    runs
        The same of every run, each with draws of its own.
    """

    runs: tuple[Barrier, ...] = field(default=(), repr=False)

    def excess_error(self, name: str = "loss") -> Array:
        """Return the standard error of the excess at every place (n,), from how much it differs between runs.

        It is that of the mean over runs, each of S samples: the deviation between runs over the root of their number.
        What the loss of S samples is above that of infinitely many, as a mean of logarithms, is not part of it.
        """
        return self._standard_error(np.array([one.excess(name) for one in self.runs]))

    def height_error(self, name: str = "loss") -> float:
        """Return the standard error of the height, from the heights of the runs."""
        return float(self._standard_error(np.array([one.height(name) for one in self.runs])))

    def _standard_error(self, found: Array) -> Any:
        if len(self.runs) < 2:
            raise InputError("one run tells nothing of the error of its draws; ask for repeats=2 or more")
        return found.std(axis=0, ddof=1) / np.sqrt(len(self.runs))


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

    Parameters
    ----------
    bnn_a, bnn_b
        Posteriors of one architecture and width; after alignment, say ``fusion.aligned_models``. All places are asked
        with the module of the first.
    inputs
        Tensor or array (n, ...), as the module takes them.
    labels
        Class of each (n,), whole numbers from 0.
    path
        "wasserstein", "natural" or "mixture"; see `consilience.bayesian.posterior_paths`.
    points
        Number of places on the path, ends included; the middle is always one of them.
    samples
        Samples S of the weights for one prediction.
    rng
        Seed, or a generator. The ends of the first run are what ``predict`` of the networks gives for the same seed.
    batch_size
        Inputs in one pass.
    repeats
        Runs, each with draws of its own; from two on, `PredictiveBarrier.height_error` tells the error of the draws.

    Raises
    ------
    InputError
        For networks of different architectures or widths, and labels that are no classes or not one for each input.
    OptionError
        For a path that does not exist, or counts that are none.
    UnsupportedError
        For networks that came without a module.

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
    require_path(path)
    if not is_count(points) or points < 2:
        raise OptionError(f"points: expected a whole number from 2, found {points!r}")
    for option, value in (("samples", samples), ("batch_size", batch_size), ("repeats", repeats)):
        if not is_count(value):
            raise OptionError(f"{option}: expected a positive whole number, found {value!r}")
    require_same_architecture(bnn_a, bnn_b)
    rows = torch.as_tensor(inputs)
    classes = bnn_a.logits(rows[:1], {key: mean for key, (mean, _) in _moments(bnn_a, bnn_a).items()}).shape[1]
    truth = _checked(labels, len(rows), classes)
    t = np.union1d(np.arange(points) / (points - 1.0), 0.5)
    generator = np.random.default_rng(rng)
    runs = []
    for _ in range(repeats):
        start = copy.deepcopy(generator)  # every part of the inputs sees the same draws
        runs.append(Barrier(t, _curves(bnn_a, bnn_b, rows, truth, path, t, samples, start, batch_size, classes)))
        sample_seeds(samples, generator)
    means = {name: np.mean([one.values[name] for one in runs], axis=0) for name in runs[0].values}
    return PredictiveBarrier(t, means, tuple(runs))


def _moments(bnn: BayesianNetwork, like: BayesianNetwork) -> Moments:
    """Return means and deviations of a network in the type and on the device of another's module."""
    found = {}
    for key, own in like.mean_module().named_parameters():
        variance = torch.as_tensor(bnn.variances[key])
        found[key] = (torch.as_tensor(bnn.means[key]).to(own), variance.sqrt().to(own))
    return found


def _checked(labels: ArrayLike, count: int, classes: int) -> Tensor:
    """Return the labels as whole numbers (n,)."""
    found = np.asarray(labels)
    if count == 0 or found.shape != (count,):
        raise InputError(f"labels: expected one for each of {count} inputs, at least one, found shape {found.shape}")
    if found.dtype.kind not in "iuf" or np.any(found != np.floor(found)):
        raise InputError(f"labels: expected classes, whole numbers from 0, found {found.dtype} values")
    if found.min() < 0 or found.max() >= classes:
        raise InputError(
            f"labels: expected classes from 0 to {classes - 1}, as the networks have {classes} outputs, found "
            f"{found.min():g} to {found.max():g}"
        )
    return torch.from_numpy(found.astype(np.int64))


def _curves(
    bnn_a: BayesianNetwork,
    bnn_b: BayesianNetwork,
    rows: Tensor,
    truth: Tensor,
    path: str,
    t: Array,
    samples: int,
    start: np.random.Generator,
    batch_size: int,
    classes: int,
) -> dict[str, Array]:
    """Return the curves of one run, inputs taken in parts that fit into memory."""
    blended = path not in STEPS
    places = np.array([0.0, 1.0]) if blended else t
    part = max(1, _AT_ONCE // (len(places) * classes))
    totals = np.zeros((3, len(t)))
    one, other = (_moments(bnn, bnn_a) for bnn in (bnn_a, bnn_b))
    for first in range(0, len(rows), part):
        own, labels = rows[first : first + part], truth[first : first + part]
        sums = _Sums.of(len(places), len(own), classes)
        for noise in bnn_a.noise(samples, copy.deepcopy(start)):
            for place, state in enumerate(_states(one, other, noise, path, places)):
                sums.add(place, bnn_a.logits(own, state, batch_size), labels)
        totals += sums.blended(t, labels, samples) if blended else sums.plain(labels, samples)
    loss, wrong, expected = totals / len(rows)
    return {"loss": loss, "error": 100.0 * wrong, "expected_loss": expected}


def _states(
    one: Moments, other: Moments, noise: Mapping[str, Tensor], path: str, places: Array
) -> Iterator[dict[str, Tensor]]:
    """Yield the weights m_t + s_t eps at every place."""
    for t in places.tolist():
        state = {}
        for key, eps in noise.items():
            if t in (0.0, 1.0):
                mean, deviation = (other if t else one)[key]
            else:
                mean, deviation = STEPS[path](*one[key], *other[key], t)
            state[key] = torch.addcmul(mean, deviation, eps)
        yield state


@dataclass(frozen=True, eq=False)
class _Sums:
    """What is summed over samples, at P places for n inputs.

    Parameters
    ----------
    likelihoods
        Logarithm of the summed probabilities of the true classes (P, n).
    shares
        Summed probabilities (P, n, classes).
    losses
        Summed losses of single draws (P,), over inputs too.
    """

    likelihoods: Tensor
    shares: Tensor
    losses: Tensor

    @classmethod
    def of(cls, places: int, count: int, classes: int) -> _Sums:
        """Return empty sums."""
        wide = torch.float64
        nothing = torch.full((places, count), -torch.inf, dtype=wide)
        return cls(nothing, torch.zeros(places, count, classes, dtype=wide), torch.zeros(places, dtype=wide))

    def add(self, place: int, logits: Tensor, labels: Tensor) -> None:
        """Add what one draw of the weights gives at a place."""
        logs = logits.cpu().double().log_softmax(dim=1)
        own = logs.gather(1, labels[:, None])[:, 0]
        self.likelihoods[place] = torch.logaddexp(self.likelihoods[place], own)
        self.shares[place] += logs.exp()
        self.losses[place] -= own.sum()

    def plain(self, labels: Tensor, samples: int) -> Array:
        """Return loss, number of wrong answers and expected loss (3, P), summed over inputs."""
        loss = np.log(samples) * len(labels) - self.likelihoods.sum(dim=1)
        wrong = (self.shares.argmax(dim=2) != labels).sum(dim=1).double()
        return cast(Array, torch.stack([loss, wrong, self.losses / samples]).numpy())

    def blended(self, t: Array, labels: Tensor, samples: int) -> Array:
        """Return the same (3, n) for mixtures of the posteriors at two places."""
        found = []
        for share in t.tolist():
            weights = torch.tensor([1.0 - share, share], dtype=torch.float64)
            mixed = _Sums(
                (self.likelihoods + weights.log()[:, None]).logsumexp(dim=0)[None],
                (weights[:, None, None] * self.shares).sum(dim=0)[None],
                (weights * self.losses).sum()[None],
            )
            found.append(mixed.plain(labels, samples)[:, 0])
        return np.array(found).T
