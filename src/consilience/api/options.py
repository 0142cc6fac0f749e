"""Options of all methods as keyword arguments of ``fuse`` and ``check``, so that type checkers see a misspelt one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict


class MethodOptions(TypedDict, total=False):
    """Every option that some method has; `consilience methods` says which has which, and what it means.

    A test holds these names against the fields of the methods. Options of methods of one's own go inside a method
    object.
    """

    aligned: bool | None
    allow_divergent: bool
    alpha: float | None
    annealing: bool
    assignment: Literal["integral", "relaxed", "variational", "means"]
    balance: bool
    batch_size: int
    between_variance: float | tuple[float, ...] | None
    class_counts: Sequence[Sequence[float]] | None
    clip: int | None
    concentration: float | None
    constraints: Mapping[str, Any] | None
    cost: str
    covariance: Literal["full", "diagonal"]
    covariance_type: str
    damping: float | None
    direction: Literal["forward", "reverse"]
    divergence: str
    epsilon: float
    exchangeable: Sequence[str] | None
    exclusive: bool
    favor_target: int | None
    floor: float
    gamma: float
    gap: float
    growth: bool
    lacking: str
    learning_rate: float | None
    likelihood: Literal["gaussian", "conjugate"]
    marginal: bool
    mask_rate: float
    masks: int
    mass: float
    max_components: int | None
    max_iterations: int
    max_seconds: float | None
    max_units: int | Mapping[str, int] | None
    mean: Literal["probabilities", "logits", "stationary"] | None
    metric: str
    min_matching_count: float
    minority: Literal["auto", "keep", "drop"]
    mode: str
    momentum: float
    n_draws: int | None
    n_inputs: int
    n_samples: int
    normalize: bool
    only: Sequence[str] | None
    optimize: bool
    order: float
    outgoing: str
    parametric: bool
    penalty: float | None
    prior: float | str | Mapping[str, Any] | None
    prior_precision: float | None
    prior_variance: float | None
    refit: bool
    regularization: float | Literal["auto"]
    restarts: int
    revisit: bool
    rho: float
    ridge: float
    robust: Literal["trim", "median"] | bool | None
    sent: bool
    shrink: bool
    shrinkage: float | None
    sigma0: float
    sigma: float
    signs: bool | None
    solver: Literal["exact", "sgd"]
    start: Any
    starts: tuple[str, ...]
    steps: int
    structure: str | None
    sweeps: int
    tolerance: float
    trim: float
    variances: Literal["dimension", "scalar"]
    window: int | None
    within_variance: float | tuple[float, ...] | None
    writers: str
