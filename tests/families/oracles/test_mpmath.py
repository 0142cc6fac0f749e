"""Divergences, normalisers and mean parameters against fifty-digit arithmetic.

Every oracle is evaluated at the very float64 natural parameters that the library receives, since they are the
representation: float64 numbers are exact in mpmath, so no rounding is shared with the code under test.
"""

import functools
import operator

import mpmath
import numpy as np
import pytest
from scipy.special import softmax

from consilience import families as f
from tests import tolerances

mp = mpmath.mp.clone()
mp.dps = 50
D, V, N = 3, 5, 8

# ------------------------------------------------------- oracles: eta -> (A(eta), E[T]), from the textbook formulas

log_gamma, digamma = mp.loggamma, functools.partial(mp.psi, 0)


def square(flat, factor):
    """The symmetric part of factor * flat, as rows."""
    dim = round(len(flat) ** 0.5)
    return [[factor * (flat[i * dim + j] + flat[j * dim + i]) / 2 for j in range(dim)] for i in range(dim)]


def inverse_and_log_determinant(matrix):
    """Cholesky C C' = matrix; then matrix^-1 = C^-T C^-1."""
    dim = len(matrix)
    lower = [[mp.zero] * dim for _ in range(dim)]
    columns = [[mp.zero] * dim for _ in range(dim)]  # columns[j] is column j of C^-1
    for i in range(dim):
        for j in range(i + 1):
            rest = matrix[i][j] - mp.fdot(lower[i][:j], lower[j][:j])
            assert i != j or rest > 0, "the test's own input is not positive definite"
            lower[i][j] = mp.sqrt(rest) if i == j else rest / lower[j][j]
    for j in range(dim):
        for i in range(j, dim):
            columns[j][i] = (int(i == j) - mp.fdot(lower[i][j:i], columns[j][j:i])) / lower[i][i]
    inverse = [[mp.fdot(a, b) for b in columns] for a in columns]
    return inverse, 2 * mp.fsum(mp.log(lower[i][i]) for i in range(dim))


def gaussian(eta):
    dim = round((len(eta) + 0.25) ** 0.5 - 0.5)
    covariance, log_precision = inverse_and_log_determinant(square(eta[dim:], -2))
    mean = [mp.fdot(row, eta[:dim]) for row in covariance]
    normalizer = (mp.fdot(mean, eta[:dim]) - log_precision + dim * mp.log(2 * mp.pi)) / 2
    return normalizer, mean + [covariance[i][j] + mean[i] * mean[j] for i in range(dim) for j in range(dim)]


def diagonal_gaussian(eta):
    blocks = [gaussian(list(pair)) for pair in zip(eta[: len(eta) // 2], eta[len(eta) // 2 :], strict=True)]
    return mp.fsum(a for a, _ in blocks), [m[0] for _, m in blocks] + [m[1] for _, m in blocks]


def spherical_gaussian(eta):
    dim = len(eta) - 1
    normalizer, mean = diagonal_gaussian(eta[:-1] + [eta[-1]] * dim)
    return normalizer, [*mean[:dim], mp.fsum(mean[dim:])]


def known_covariance(covariance):
    exact = [[mp.mpf(float(x)) for x in row] for row in covariance]
    constant = inverse_and_log_determinant(exact)[1] + len(exact) * mp.log(2 * mp.pi)

    def oracle(eta):
        mean = [mp.fdot(row, eta) for row in exact]
        return (mp.fdot(mean, eta) + constant) / 2, mean

    return oracle


def normal_wishart(eta):
    dim = round((len(eta) - 1.75) ** 0.5 - 0.5)
    kappa, dof = -2 * eta[dim], 2 * eta[-1] + dim
    m = [x / kappa for x in eta[:dim]]
    raw = square(eta[dim + 1 : -1], -2)
    scatter = [[raw[i][j] - kappa * m[i] * m[j] for j in range(dim)] for i in range(dim)]
    scale, log_inverse = inverse_and_log_determinant(scatter)
    halves = [(dof - i) / 2 for i in range(dim)]
    normalizer = (dim * mp.log(2 * mp.pi / kappa) - dof * log_inverse + dof * dim * mp.log(2)) / 2
    normalizer += mp.mpf(dim * (dim - 1)) / 4 * mp.log(mp.pi) + mp.fsum(map(log_gamma, halves))
    linear = [dof * mp.fdot(row, m) for row in scale]
    flat = [dof * x for row in scale for x in row]
    log_determinant = mp.fsum(map(digamma, halves)) + dim * mp.log(2) - log_inverse
    return normalizer, [*linear, dim / kappa + mp.fdot(m, linear), *flat, log_determinant]


def spherical_normal_gamma(eta):
    dim = len(eta) - 3
    kappa, shape = -2 * eta[dim], eta[-1] + 1 - mp.mpf(dim) / 2
    m = [x / kappa for x in eta[:dim]]
    rate = -eta[dim + 1] - kappa * mp.fdot(m, m) / 2
    normalizer = mp.mpf(dim) / 2 * mp.log(2 * mp.pi / kappa) + log_gamma(shape) - shape * mp.log(rate)
    tail = [dim / kappa + mp.fdot(m, m) * shape / rate, shape / rate, digamma(shape) - mp.log(rate)]
    return normalizer, [x * shape / rate for x in m] + tail


def normal_gamma(eta):
    dim = (len(eta) - 2) // 2
    blocks = [spherical_normal_gamma([eta[d], eta[dim], eta[dim + 1 + d], eta[-1]]) for d in range(dim)]
    linear, quadratic, precision, log_precision = zip(*(mean for _, mean in blocks), strict=True)
    return mp.fsum(a for a, _ in blocks), [*linear, mp.fsum(quadratic), *precision, mp.fsum(log_precision)]


def dirichlet(eta):
    alpha = [x + 1 for x in eta]
    total = mp.fsum(alpha)
    shift = digamma(total)
    return mp.fsum(map(log_gamma, alpha)) - log_gamma(total), [digamma(a) - shift for a in alpha]


def gamma(eta):
    shape, rate = eta[0] + 1, -eta[1]
    return log_gamma(shape) - shape * mp.log(rate), [digamma(shape) - mp.log(rate), shape / rate]


def categorical(eta):
    total = 1 + mp.fsum(map(mp.exp, eta))
    return mp.log(total), [mp.exp(x) / total for x in eta]


def solve(oracle, eta):
    rows = [[mp.mpf(float(x)) for x in row] for row in eta]
    return rows, [oracle(row) for row in rows]


def divergences(oracle, eta):
    """KL(q_i || q_j) = A(eta_j) - A(eta_i) - <E_i[T], eta_j - eta_i>, rounded to float64 at the very end."""
    rows, solved = solve(oracle, eta)
    kl = np.zeros((len(rows), len(rows)))
    for i, j in np.ndindex(kl.shape):
        change = [b - a for a, b in zip(rows[i], rows[j], strict=True)]
        kl[i, j] = solved[j][0] - solved[i][0] - mp.fdot(solved[i][1], change)
    return kl


def scales(rng, n, spread, *shape):
    return 10.0 ** rng.uniform(-spread, spread, size=(n, *shape))


def spd(rng, n, dim, spread=0.0):
    factor = rng.normal(size=(n, dim, 4 * dim))
    return factor @ factor.swapaxes(1, 2) / (4 * dim) * scales(rng, n, spread)[:, None, None]


def means(rng, n, far, dim=D):
    return far * np.linspace(1, -1.5, dim) + rng.normal(size=(n, dim))


def spread_means(rng, n, far, spread):
    return means(rng, n, far) * scales(rng, n, spread / 2)[:, None]


def wishart_parameters(rng, n, far, spread, dim=D, dof=None):
    kappa = 3 * scales(rng, n, spread / 2) if dof is None else np.full(n, dof)
    dof = dim - 1 + 4 * scales(rng, n, spread / 3) if dof is None else np.full(n, dof)
    scale = np.linalg.inv(spd(rng, n, dim, spread)) / dof[:, None, None]
    return {"mean": means(rng, n, far, dim), "kappa": kappa, "scale": (scale + scale.swapaxes(1, 2)) / 2, "dof": dof}


def gamma_parameters(rng, n, far, spread, *rates):
    shape = 2 * scales(rng, n, spread / 2)
    return {"shape": shape, "rate": shape.reshape(n, *[1] * len(rates)) * scales(rng, n, spread, *rates)}


def normal_gamma_parameters(rng, n, far, spread, *rates):
    normal = {"mean": means(rng, n, far), "kappa": 3 * scales(rng, n, spread / 2)}
    return normal | gamma_parameters(rng, n, far, spread, *rates)


def concentrations(rng, n, spread, size=V):
    return 10.0 ** rng.uniform(-0.3 - 0.95 * spread, 1.3 + 0.617 * spread, size=(n, size))  # at spread 6: 1e-6 to 1e5


def diagonal_parameters(rng, n, far, spread, *shape):
    return {"mean": means(rng, n, far), "variance": scales(rng, n, spread, *shape)}


S0 = spd(np.random.default_rng(11), 1, D)[0]
FAMILIES = {  # name: family, oracle, parameters(rng, n, far, spread)
    "gaussian": (f.Gaussian(D), gaussian, lambda g, n, m, s: {"mean": means(g, n, m), "covariance": spd(g, n, D, s)}),
    "diagonal gaussian": (f.DiagonalGaussian(D), diagonal_gaussian, lambda *a: diagonal_parameters(*a, D)),
    "spherical gaussian": (f.SphericalGaussian(D), spherical_gaussian, diagonal_parameters),
    "known covariance": (f.KnownCovarianceGaussian(S0), known_covariance(S0), lambda *a: {"mean": spread_means(*a)}),
    "normal-wishart": (f.NormalWishart(D), normal_wishart, wishart_parameters),
    "normal-gamma": (f.NormalGamma(D), normal_gamma, lambda *a: normal_gamma_parameters(*a, D)),
    "spherical normal-gamma": (f.SphericalNormalGamma(D), spherical_normal_gamma, normal_gamma_parameters),
    "dirichlet": (f.Dirichlet(V), dirichlet, lambda g, n, m, s: {"concentration": concentrations(g, n, s)}),
    "beta": (f.Beta(), dirichlet, lambda g, n, m, s: dict(zip("ab", concentrations(g, n, s, 2).T, strict=True))),
    "gamma": (f.Gamma(), gamma, gamma_parameters),
    "categorical": (
        f.Categorical(V),
        categorical,
        lambda g, n, m, s: {"probabilities": softmax(g.normal(0, 1 + s, (n, V)), 1)},
    ),
    "point": (f.Point(D), lambda eta: (mp.fdot(eta, eta) / 2, eta), lambda *a: {"value": spread_means(*a)}),
    "product": (
        f.Product({"place": f.DiagonalGaussian(D), "speed": f.Gamma()}),
        lambda eta: tuple(map(operator.add, diagonal_gaussian(eta[: 2 * D]), gamma(eta[2 * D :]))),
        lambda *a: {"place": diagonal_parameters(*a, D), "speed": gamma_parameters(*a)},
    ),
}
REGIMES = ("ordinary", "far", "wide", "near", "outlier")
NOWHERE = ("dirichlet", "beta", "gamma", "categorical")  # families without a place in space
CASES = [(name, regime) for name in FAMILIES for regime in REGIMES if "far" not in regime or name not in NOWHERE]
CASES += [(name, "very far") for name in FAMILIES if "gaussian" in name]
every_case = pytest.mark.parametrize(("name", "regime"), CASES)


@functools.cache
def case(name, regime):
    """Family, oracle and (N, P) natural parameters; mixtures of two members stay in the (convex) domain."""
    family, oracle, parameters = FAMILIES[name]
    rng = np.random.default_rng(20_240_517)
    far, spread = {"far": (1e3, 0.3), "very far": (1e6, 0.3), "wide": (0, 6)}.get(regime, (0, 0.3))
    eta = family.to_natural(**parameters(rng, N, far, spread))
    if regime == "near":  # relative differences 1e-3, ..., 1e-9 and none
        eta = eta[0] + np.array([*10.0 ** -np.arange(3, 10), 0])[:, None] * (eta[1] - eta[0])
    if regime == "outlier":
        stranger = family.to_natural(**parameters(rng, 1, 50, 3))
        eta = np.concatenate([eta[0] + 1e-4 * (eta[1:] - eta[0]), stranger])
    return family, oracle, eta


def assert_divergences(actual, exact):
    median = np.median(exact, axis=1, keepdims=True)
    allowed = tolerances.KL_MATRIX_PRODUCT * np.maximum(np.maximum(exact, median), tolerances.KL_INDISTINGUISHABLE)
    recomputed = (exact < tolerances.KL_RECOMPUTED_BELOW * median) & (exact > tolerances.KL_INDISTINGUISHABLE)
    excess = np.abs(actual - exact) / np.where(recomputed, tolerances.KL_PAIRWISE * exact, allowed)
    assert excess.max() <= 1, f"{excess.max():.3g} times the allowed error at {np.argwhere(excess > 1).tolist()}"


def assert_pairs(family, eta, exact):
    i, j = np.nonzero(exact > tolerances.KL_INDISTINGUISHABLE)
    np.testing.assert_allclose(family.kl_pairs(eta[i], eta[j]), exact[i, j], rtol=tolerances.KL_PAIRWISE)
    assert np.all(np.abs(family.kl_pairs(eta, eta)) <= tolerances.KL_INDISTINGUISHABLE)


def test_every_family_has_an_oracle():
    assert {family.name for family, *_ in FAMILIES.values()} == {kind.name for kind in f.FAMILIES}


@pytest.mark.parametrize("name", FAMILIES)
def test_oracle_means_are_the_gradient_of_the_oracle_normalizer(name):
    """(A(eta + h d) - A(eta - h d)) / 2h = <E[T], d>: a slip of the oracle itself would show."""
    _, oracle, eta = case(name, "ordinary")
    (row, other), solved = solve(oracle, eta[:2])
    step, change = mp.mpf(10) ** -15, [b - a for a, b in zip(row, other, strict=True)]
    ahead, behind = (oracle([x + s * d for x, d in zip(row, change, strict=True)])[0] for s in (step, -step))
    slope = mp.fdot(solved[0][1], change)
    assert abs((ahead - behind) / (2 * step) - slope) <= tolerances.EXACT_DIFFERENCES * (1 + abs(slope))


@every_case
def test_kl_matrix_has_the_promised_accuracy(name, regime):
    """|K - KL| <= 1e-9 max(row median, KL); below 1e-6 of the median <= 1e-8 KL."""
    family, oracle, eta = case(name, regime)
    assert_divergences(family.kl(eta, eta), divergences(oracle, eta))


@every_case
def test_kl_pairs_have_relative_accuracy(name, regime):
    """|k - KL| <= 1e-8 KL wherever KL > 1e-12, also between components equal to six digits."""
    family, oracle, eta = case(name, regime)
    assert_pairs(family, eta, divergences(oracle, eta))


@every_case
def test_log_normalizer_and_mean_parameters_are_backward_stable(name, regime):
    """A(eta) and E[T] err by no more than a few steps to neighbouring float64 numbers in eta would move them."""
    family, oracle, eta = case(name, regime)
    steps = np.random.default_rng(1).choice([-1, 1], size=(8, *eta.shape)) * np.spacing(eta)
    exact, *nudged = (
        np.array([[float(x) for x in (a, *mean)] for a, mean in solve(oracle, x)[1]]) for x in (eta, *(eta + steps))
    )
    moved = np.abs(np.array(nudged) - exact).max(0)
    actual = np.column_stack([family.log_normalizer(eta), family.mean_parameters(eta)])
    allowed = np.maximum(tolerances.ROUNDING * np.abs(exact), tolerances.LOGARITHM)
    excess = np.abs(actual - exact) / (allowed + tolerances.NEIGHBOURS * moved)
    assert excess.max() <= 1, f"{excess.max():.3g} times the allowed error at {np.argwhere(excess > 1).tolist()}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a Dirichlet of 12,000 words", "a Normal-Wishart of a million observations"])
def test_the_promise_holds_at_the_largest_sizes(name):
    """Two components and two near-copies of the first, with total 1e5, or nu = kappa = 1e6 and D = 50."""
    rng = np.random.default_rng(5)
    family, oracle, parameters = f.NormalWishart(50), normal_wishart, wishart_parameters(rng, 2, 0, 0, 50, 1e6)
    if "Dirichlet" in name:
        topics = 0.999 * rng.dirichlet(np.full(12_000, 0.05), 2) + 0.001 / 12_000
        family, oracle, parameters = f.Dirichlet(12_000), dirichlet, {"concentration": 1e5 * topics}
    eta = family.to_natural(**parameters)
    eta = np.concatenate([eta, eta[0] + np.array([[1e-3], [1e-6]]) * (eta[1] - eta[0])])
    exact = divergences(oracle, eta)
    assert_divergences(family.kl(eta, eta), exact)
    assert_pairs(family, eta, exact)
