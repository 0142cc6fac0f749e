"""The regression of a layer: the weights that second moments of its inputs and its targets determine.

With a (d,) the input of a layer and t (k,) what it should answer,

    W = argmin_W  E|W a - t|^2 + penalty |W - W_0|^2,      penalty = ridge * mean_i E[a_i^2],

of which the normal equations for the change D = W - W_0 are D (E[a a^T] + penalty I) = E[t a^T] - W_0 E[a a^T]. Refits
and RegMean at the server, requests for layers in rounds, and regression means of checkpoints are solved by it; they
differ in what a and t are. Elsewhere something else is solved: the heads of sums (`estimators.adapters.heads`) shrink
towards zero, in units of the deviation of each feature, as scikit-learn's ridge of all rows does; merges by Kronecker
factors have a second factor for the outputs, sum_j p_j B_j W A_j, which is no one system of d unknowns.
"""

from __future__ import annotations

from typing import Any, TypeVar

from array_api_compat import array_namespace

_Values = TypeVar("_Values")
"""Arrays of NumPy or tensors of torch."""

MIN_RIDGE = 1e-9
"""Smallest ridge: inputs that are constantly zero, or always together, leave their weights undetermined. Chosen by
hand, as one that moves nothing that was seen; nobody has measured other values."""


def solve_layer(gram: _Values, pull: _Values, ridge: float, mean_squares: _Values | float | None = None) -> _Values:
    """Return the change D (..., k, d) of a layer's weights in the ridge regression of its targets on its inputs.

    Parameters
    ----------
    gram : array of shape (..., d, d)
        Second moments E[a a^T] of the inputs; their covariance where an unpenalised bias is fitted along, which is
        E[t] - W E[a] then; with a one among the inputs where the bias is penalised as a weight.
    pull : array of shape (..., k, d)
        E[(t - W_0 a) a^T], or the covariance: what the initial weights leave. Where they fit already it is zero, and
        so is the change, to the last bit.
    ridge : float
        Strength of the shrinkage relative to the mean square of the inputs, `MIN_RIDGE` at least.
    mean_squares : array of shape (...), optional
        The mean square that the ridge is relative to. Default: the mean of the diagonal of `gram`, its mean eigenvalue.

    Returns
    -------
    array of shape (..., k, d)
        The change. Where all inputs are zero it is zero.
    """
    moments: Any = gram
    xp = array_namespace(moments)
    level = xp.mean(xp.linalg.diagonal(moments), axis=-1) if mean_squares is None else xp.asarray(mean_squares)
    penalty = max(ridge, MIN_RIDGE) * level
    # Where all inputs are zero any penalty leaves the weights as they are.
    penalty = xp.where(penalty > 0, penalty, xp.ones_like(penalty))[..., None, None]
    identity = xp.eye(moments.shape[-1], dtype=moments.dtype, device=moments.device)
    change: _Values = xp.matrix_transpose(xp.linalg.solve(moments + penalty * identity, xp.matrix_transpose(pull)))
    return change
