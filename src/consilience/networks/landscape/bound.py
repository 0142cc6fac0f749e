"""Interpolation bound of networks with one hidden layer: Theorem C.1 of WB fusion.

Theorem C.1 of Akash, Li and Garcia Trillos (2022), "Wasserstein barycenter-based model fusion and linear mode
connectivity of neural networks": for f_i(x) = v_i s(U_i x), with units of the second permuted to match, and |x| <= r,

    | f_a(x) - a f_1(x) - (1 - a) f_2(x) |  <=  a (1 - a) C,        0 <= a <= 1,

where s is the activation, U_i (h, d) the hidden and v_i (c, h) the output weights, f_a has the parameters
a (v_1, U_1) + (1 - a) (v_2, U_2), and

    C = 4 eps eta r   for linear s,        C = eps (4 eta + 2 |v_2|) r   for ReLU.

Here eps^2 = |U_1 - U_2|_F^2 / 4 and eta^2 = |v_1 - v_2|_F^2 / 4 are the barycenter
objectives of the hidden and the last layer at the permutation (their equations 25 and 26); the paper's r is the root of
the number of inputs. The last line of the printed proof loses a factor; the constant of the theorem itself holds, by

    | a s(x) + (1 - a) s(y) - s(a x + (1 - a) y) |  <=  a (1 - a) |x - y|    for slopes of s in [0, 1].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from consilience.checks import Array, Labels, as_rows, as_vector, is_number
from consilience.errors import InputError, OptionError

_PERMUTATION_TOLERANCE = 1e-6
"""How far an entry of h Pi may be from that of a permutation, for which alone the theorem holds.

Chosen by hand, far above the rounding of exact optimal transport; nobody has measured other values.
"""


@dataclass(frozen=True, eq=False)
class OneHiddenLayer:
    """The weights of f(x) = output s(hidden x + bias) + constant.

    Parameters
    ----------
    hidden : array_like of shape (h, d)
        U, a row for every hidden unit.
    output : array_like of shape (c, h) or (h,)
        v, a row for every output.
    bias : array_like of shape (h,), optional
        Biases of the hidden units. Biases of the outputs play no part: they interpolate exactly. Default: no bias.
    """

    hidden: ArrayLike
    output: ArrayLike
    bias: ArrayLike | None = None


@dataclass(frozen=True)
class InterpolationBound:
    """The constants of Theorem C.1 for two networks, and the bounds that follow from them.

    Parameters
    ----------
    epsilon, eta : float
        Half the Frobenius distance of the matched hidden weights, and of the matched output weights.
    output_norm : float
        Frobenius norm |v_2| of the second network's output weights.
    radius : float
        Greatest norm r of the inputs for which the bound holds; with a bias, of (x, 1).
    """

    epsilon: float
    eta: float
    output_norm: float
    radius: float

    @property
    def linear(self) -> float:
        """C = 4 eps eta r, for the identity in place of an activation."""
        return 4.0 * self.epsilon * self.eta * self.radius

    @property
    def relu(self) -> float:
        """C = eps (4 eta + 2 |v_2|) r, for ReLU and every other activation of slope 0 to 1."""
        return self.epsilon * (4.0 * self.eta + 2.0 * self.output_norm) * self.radius


def interpolation_bound(
    first: OneHiddenLayer, second: OneHiddenLayer, permutation: ArrayLike | None = None, *, radius: float
) -> InterpolationBound:
    """Return the bound of Theorem C.1 on the error of interpolating two networks with one hidden layer.

    Several outputs are bounded in the Euclidean norm: the proof holds with Frobenius norms in place of vector norms.

    Parameters
    ----------
    first, second : OneHiddenLayer
        Networks of the same widths.
    permutation : array_like of shape (h,) or (h, h), optional
        Unit of the second network that matches each of the first, or a coupling that is a permutation over h.
        Default: the units already match.
    radius : float
        Greatest norm of an input.

    Returns
    -------
    InterpolationBound
        The constants: at weight a of the first network the error is at most a (1 - a) C, C of the activation.

    Raises
    ------
    InputError
        When widths differ, values are not finite, or the coupling is no permutation.
    OptionError
        When the radius is no finite number that is not negative.

    Examples
    --------
    >>> up, down = OneHiddenLayer([[1.0]], [1.0]), OneHiddenLayer([[-1.0]], [1.0])
    >>> bound = interpolation_bound(up, down, radius=1.0)
    >>> bound.epsilon, bound.eta, bound.relu
    (1.0, 0.0, 2.0)
    """
    if not is_number(radius):
        raise OptionError("radius", f"expected a finite number that is not negative, found {radius!r}")
    hidden_a, output_a = _weights("first", first)
    hidden_b, output_b = _weights("second", second)
    if hidden_a.shape != hidden_b.shape or output_a.shape != output_b.shape:
        text = (
            f"expected weights of shapes {hidden_a.shape} and {output_a.shape} (biases included), found "
            f"{hidden_b.shape} and {output_b.shape}; the theorem holds for networks of the same widths"
        )
        raise InputError("second", text, code="E-SHAPE")
    order = _unit_order(permutation, len(hidden_a))
    has_bias = first.bias is not None or second.bias is not None
    return InterpolationBound(
        epsilon=float(np.linalg.norm(hidden_a - hidden_b[order])) / 2.0,
        eta=float(np.linalg.norm(output_a - output_b[:, order])) / 2.0,
        output_norm=float(np.linalg.norm(output_b)),
        radius=float(np.hypot(radius, 1.0)) if has_bias else float(radius),
    )


def _weights(argument: str, network: OneHiddenLayer) -> tuple[Array, Array]:
    """Return the hidden weights, with a bias as one more column, and the output weights (c, h)."""
    hidden = as_rows(f"{argument}.hidden", network.hidden)  # (h, d)
    output = as_rows(f"{argument}.output", network.output, columns=len(hidden))  # (c, h)
    if network.bias is not None:  # s(U x + b) = s((U, b) (x, 1)), so a bias is a column of U and the input is (x, 1)
        hidden = np.column_stack([hidden, as_vector(f"{argument}.bias", network.bias, len(hidden))])
    if not np.all(np.isfinite(hidden)) or not np.all(np.isfinite(output)):
        raise InputError(argument, "has weights that are NaN or infinite", code="E-NUMBER")
    return hidden, output


def _unit_order(permutation: ArrayLike | None, units: int) -> Labels:
    """Return the unit of the second network for each of the first, as indices."""
    if permutation is None:
        return np.arange(units)
    matrix = np.asarray(permutation)
    # A coupling of mass one has entries 1/h where a permutation has ones.
    order = matrix.argmax(axis=1) if matrix.shape == (units, units) else matrix
    if order.shape != (units,) or not np.array_equal(np.sort(order), np.arange(units)):
        text = f"expected the numbers 0 to {units - 1} in some order, or a coupling that is one"
        raise InputError("permutation", text)
    if matrix.ndim == 2 and np.abs(units * matrix - np.eye(units)[order]).max() > _PERMUTATION_TOLERANCE:
        raise InputError("permutation", "the coupling splits units, which the theorem does not cover", "use exact OT")
    return order.astype(np.int64)
