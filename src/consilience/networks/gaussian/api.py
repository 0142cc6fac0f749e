"""Public entry to loss barriers between Bayesian networks; PyTorch is imported only when it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from consilience.networks.gaussian.network import BayesianNetwork
    from consilience.networks.gaussian.predictive_barrier import PredictiveBarrier


def predictive_barrier(
    bnn_a: BayesianNetwork, bnn_b: BayesianNetwork, inputs: Any, labels: ArrayLike, **options: Any
) -> PredictiveBarrier:
    """Return the loss barrier of predictions between two Bayesian networks.

    See `consilience.networks.gaussian.predictive_barrier` for the definition.

    Parameters
    ----------
    bnn_a, bnn_b : BayesianNetwork
        Posteriors of one architecture and width; after alignment, say ``fusion.aligned_models``. The module of the
        first predicts at all positions.
    inputs : Tensor or array_like of shape (n, ...)
        Inputs, as the module takes them.
    labels : array_like of int, shape (n,)
        Number of the class of each input, from 0.
    path : {"wasserstein", "natural", "mixture"}
        Which path. Default: "wasserstein".
    points : int
        Number of positions on the path, ends included; the middle is always added. Default: 25, a usual grid.
    samples : int
        Samples S of the weights for one prediction. Default: 128, the test samples of table 1 of Rossi et al. 2023.
    rng : int or numpy.random.Generator
        Seed or generator. The ends of the first run are what ``predict`` of the networks gives for the same seed.
    batch_size : int
        Inputs in one forward pass. Default: 4096.
    repeats : int
        Runs, each with draws of its own. From two on, `PredictiveBarrier.height_error` estimates the Monte Carlo error.
        Default: 1.

    Raises
    ------
    InputError
        For networks of different architectures or widths, and labels that are no classes.
    OptionError
        For a path that does not exist, or counts that are none.
    UnsupportedError
        For networks that came without a module.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from consilience import BayesianNetwork
    >>> net = torch.nn.Linear(1, 2, bias=False)
    >>> a, b = (
    ...     BayesianNetwork(net, {"weight": torch.tensor([[w], [-w]])}, {"weight": torch.full((2, 1), 0.01)})
    ...     for w in (1.0, 3.0)
    ... )
    >>> curve = predictive_barrier(a, b, np.array([[1.0], [-1.0]], np.float32), [0, 1], points=3, samples=64)
    >>> curve.t.tolist(), list(curve.values), curve.height()
    ([0.0, 0.5, 1.0], ['loss', 'error', 'expected_loss'], 0.0)
    """
    from consilience.networks.gaussian.predictive_barrier import predictive_barrier as evaluate_path

    return evaluate_path(bnn_a, bnn_b, inputs, labels, **options)
