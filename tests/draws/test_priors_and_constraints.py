"""Constraints and priors: maps and Jacobians against finite differences, quotients against conjugate posteriors."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import digamma, polygamma

import consilience as cs
from consilience.draws.constraint_table import as_constraint
from consilience.draws.priors import LAWS, Term, law_problem
from tests.draws.sites import flat, poisson_rate_sites

CONSTRAINTS = {
    "real": ("real", (2,)),
    "positive": ("positive", (2,)),
    "lower": (("lower", -1.5), (2,)),
    "upper": (("upper", 2.0), (2,)),
    "interval": (("interval", -1.0, 3.0), (2,)),
    "simplex": ("simplex", (2, 3)),
    "ordered": ("ordered", (2, 3)),
    "sum to zero": ("sum_to_zero", (2, 3)),
    "covariance": ("covariance", (3, 3)),
    "covariances": ("covariance", (2, 2, 2)),
    "cholesky of a covariance": ("cholesky_covariance", (2, 3, 3)),
    "correlation": ("correlation", (4, 4)),
    "correlations": ("correlation", (2, 3, 3)),
    "cholesky of a correlation": ("cholesky_correlation", (2, 4, 4)),
    "tied real": (["tied", "real", "entries", 0, -1, 0, 1, -1, 2, "constants", 0.5, 0.0], (2, 3)),
    "tied positive": (["tied", "positive", "entries", 0, -1, 1, 1, "constants", 2.0], (2, 2)),
    "tied interval": (["tied", "interval", -1.0, 3.0, "entries", -1, 0, 0, 1, "constants", 0.25], (4,)),
}
every_constraint = pytest.mark.parametrize("name", CONSTRAINTS)
# Central differences with a step of 1e-5 in float64.
DIFFERENCES = 1e-5


def numeric(function, point, step=1e-5):
    units = step * np.eye(len(point))
    return np.stack([(function(point + u) - function(point - u)) / (2 * step) for u in units], axis=-1)


@every_constraint
def test_coordinates_go_there_and_back(name):
    constraint, shape = as_constraint(CONSTRAINTS[name][0], name), CONSTRAINTS[name][1]
    u = np.random.default_rng(0).normal(size=(50, constraint.n_coordinates(shape)))
    values = constraint.constrain(u, shape)
    assert values.shape == (50, *shape)
    assert np.all(constraint.is_inside(values))
    np.testing.assert_allclose(constraint.unconstrain(values), u, atol=1e-10)
    assert as_constraint(constraint.to_json(), name) == constraint


@every_constraint
def test_the_jacobian_is_the_determinant_of_finite_differences(name):
    constraint, shape = as_constraint(CONSTRAINTS[name][0], name), CONSTRAINTS[name][1]
    rng = np.random.default_rng(1)
    n = constraint.n_coordinates(shape)
    points = rng.normal(size=(4, n))

    def free(u):
        """Entries of theta that determine it: as many as coordinates."""
        values = constraint.constrain(u[None], shape)[0]
        if constraint.name in ("simplex", "sum_to_zero"):
            return values[..., :-1].ravel()
        if constraint.event_dims == 2:
            return values[(..., *np.tril_indices(shape[-1], constraint.diagonal))].ravel()
        if constraint.name == "tied":
            return values.ravel()[constraint.free]
        return values.ravel()

    log_determinants = [np.linalg.slogdet(numeric(free, point))[1] for point in points]
    differences = constraint.log_jacobian(points, shape) - log_determinants
    np.testing.assert_allclose(differences, differences[0], atol=DIFFERENCES)  # equal up to a constant


@every_constraint
def test_derivatives_of_the_log_jacobian_are_those_of_finite_differences(name):
    constraint, shape = as_constraint(CONSTRAINTS[name][0], name), CONSTRAINTS[name][1]
    point = np.random.default_rng(2).normal(size=constraint.n_coordinates(shape))
    gradient, hessian = constraint.jacobian_derivatives(point, shape)
    np.testing.assert_allclose(
        gradient, numeric(lambda u: constraint.log_jacobian(u[None], shape)[0], point), atol=DIFFERENCES
    )
    np.testing.assert_allclose(
        hessian, numeric(lambda u: constraint.jacobian_derivatives(u, shape)[0], point), atol=DIFFERENCES
    )


SCIPY_LAWS = {
    "flat": ([], lambda x: np.zeros_like(x)),
    "normal": ([0.5, 2.0], stats.norm(0.5, 2.0).logpdf),
    "half_normal": ([2.0], stats.halfnorm(scale=2.0).logpdf),
    "student_t": ([4.0, 0.5, 2.0], stats.t(4.0, 0.5, 2.0).logpdf),
    "cauchy": ([0.5, 2.0], stats.cauchy(0.5, 2.0).logpdf),
    "half_cauchy": ([2.0], stats.halfcauchy(scale=2.0).logpdf),
    "exponential": ([1.5], stats.expon(scale=1 / 1.5).logpdf),
    "gamma": ([2.5, 1.5], stats.gamma(2.5, scale=1 / 1.5).logpdf),
    "inverse_gamma": ([2.5, 1.5], stats.invgamma(2.5, scale=1.5).logpdf),
    "beta": ([2.5, 1.5], stats.beta(2.5, 1.5).logpdf),
    "lognormal": ([0.3, 0.8], stats.lognorm(0.8, scale=np.exp(0.3)).logpdf),
}


@pytest.mark.parametrize("law", LAWS)
def test_every_law_is_scipys_with_its_jacobian_and_has_its_derivatives(law):
    arguments, log_density = SCIPY_LAWS[law]
    constraint = as_constraint("unit_interval" if law == "beta" else "positive", "x")
    term = Term(slice(0, 2), (2,), constraint, [law, *arguments])
    points = np.random.default_rng(0).normal(size=(5, 2))
    expected = log_density(constraint.constrain(points, (2,))).sum(axis=1) + constraint.log_jacobian(points, (2,))
    differences = term.value(points) - expected
    np.testing.assert_allclose(differences, differences[0], atol=1e-9)
    gradient, hessian = term.derivatives(points[0])
    np.testing.assert_allclose(gradient, numeric(lambda u: term.value(u[None])[0], points[0]), atol=DIFFERENCES)
    np.testing.assert_allclose(hessian, numeric(lambda u: term.derivatives(u)[0], points[0]), atol=DIFFERENCES)


def test_a_dirichlet_prior_is_scipys_with_its_jacobian():
    constraint = as_constraint("simplex", "w")
    term = Term(slice(0, 2), (3,), constraint, ["dirichlet", 2.0, 3.0, 4.0])
    points = np.random.default_rng(0).normal(size=(5, 2))
    density = stats.dirichlet([2.0, 3.0, 4.0]).logpdf(constraint.constrain(points, (3,)).T)
    differences = term.value(points) - density - constraint.log_jacobian(points, (3,))
    np.testing.assert_allclose(differences, differences[0], atol=1e-9)
    gradient, hessian = term.derivatives(points[0])
    np.testing.assert_allclose(gradient, numeric(lambda u: term.value(u[None])[0], points[0]), atol=DIFFERENCES)
    np.testing.assert_allclose(hessian, numeric(lambda u: term.derivatives(u)[0], points[0]), atol=DIFFERENCES)


@pytest.mark.parametrize("method", ["gaussian_product", "consensus_mc", "semiparametric", "hierarchical"])
def test_the_jacobian_of_a_positive_rate_is_divided_out(method):
    """Poisson rates: of 5 sites of 4 rows the mean is 0.7 deviations off with the Jacobian J times."""
    sites, full = poisson_rate_sites()
    draws = [cs.Draws({"rate": site}, prior=0.2, constraints={"rate": "positive"}) for site in sites]
    fused = flat(cs.fuse(draws, method), "rate")
    left_in = [cs.Draws({"rate": s}, prior=0.2, constraints={"rate": "positive"}, jacobian="shared") for s in sites]
    wrong = flat(cs.fuse(left_in, method), "rate")
    assert abs(fused.mean() - full.mean()) < 0.25 * full.std()
    assert abs(fused.mean() - full.mean()) < 0.5 * abs(wrong.mean() - full.mean())
    assert 0.85 < fused.std() / full.std() < 1.2


def test_the_mean_of_a_logarithm_moves_by_the_precision_as_the_equation_says():
    """mean <- mean - (J - 1) Lam^-1 1, against subposteriors that are Gaussian in the logarithm."""
    rng = np.random.default_rng(0)
    u = [rng.normal(m, s, size=(2, 3000)) for m, s in ((0.3, 0.2), (0.5, 0.3), (0.1, 0.25))]
    sites = [cs.Draws({"s": np.exp(one)}, prior=1 / 3, constraints={"s": "positive"}) for one in u]
    fused = np.log(flat(cs.fuse(sites, "gaussian_product"), "s"))[:, 0]
    precisions = np.array([1 / one.var(ddof=1) for one in u])
    means = np.array([one.mean() for one in u])
    expected = (precisions @ means - 2) / precisions.sum()
    np.testing.assert_allclose(fused.mean(), expected, rtol=1e-9)
    np.testing.assert_allclose(fused.var(ddof=1), 1 / precisions.sum(), rtol=1e-9)


@pytest.mark.parametrize("method", ["gaussian_product", "consensus_mc", "hierarchical"])
def test_a_whole_gaussian_prior_is_divided_out(method):
    """Normal mean with known variance, prior N(1, 0.5^2) at every one of six sites."""
    rng = np.random.default_rng(4)
    y = rng.normal(2.0, 1.0, size=(6, 5))
    sites = []
    for own in y:
        precision = 4.0 + own.size
        draws = rng.normal((4.0 + own.sum()) / precision, precision**-0.5, size=(2, 5000))
        sites.append(cs.Draws({"mu": draws}, prior={"mu": ("normal", 1.0, 0.5)}))
    precision = 4.0 + y.size
    fused = flat(cs.fuse(sites, method), "mu")
    assert abs(fused.mean() - (4.0 + y.sum()) / precision) < 0.15 * precision**-0.5
    assert abs(fused.std() * precision**0.5 - 1) < 0.05


def test_a_whole_gamma_prior_of_a_rate_is_divided_out():
    sites, full = poisson_rate_sites(rows=30, power=1.0)
    draws = [cs.Draws({"rate": s}, prior={"rate": ("gamma", 2, 1)}, constraints={"rate": "positive"}) for s in sites]
    fused = flat(cs.fuse(draws, "gaussian_product"), "rate")
    assert abs(fused.mean() - full.mean()) < 0.15 * full.std()
    assert 0.9 < fused.std() / full.std() < 1.1


def test_simplexes_of_counts_give_the_dirichlet_posterior():
    rng = np.random.default_rng(5)
    counts = rng.multinomial(150, [0.5, 0.3, 0.2], size=4)
    sites = [
        cs.Draws({"p": rng.dirichlet(own + 1.0, size=(2, 3000))}, prior="flat", constraints={"p": "simplex"})
        for own in counts
    ]
    total = counts.sum(axis=0) + 1.0
    fused = flat(cs.fuse(sites, "gaussian_product"), "p")
    np.testing.assert_allclose(fused.sum(axis=1), 1.0)
    deviation = stats.dirichlet(total).var() ** 0.5
    np.testing.assert_allclose((fused.mean(axis=0) - total / total.sum()) / deviation, 0.0, atol=0.15)
    np.testing.assert_allclose(fused.std(axis=0) / deviation, 1.0, atol=0.08)


def test_where_sites_say_less_than_the_prior_it_is_refused_by_name():
    rng = np.random.default_rng(0)
    sites = [cs.Draws({"mu": rng.normal(size=(2, 2000))}, prior={"mu": ("normal", 0, 1)}) for _ in range(5)]
    with pytest.raises(
        cs.errors.InputError, match=r"prior: divided out 4 times leaves no proper posterior.*state `prior=1/J"
    ):
        cs.fuse([cs.Draws({"mu": 1.2 * s.variables["mu"]}, prior=s.prior) for s in sites], "gaussian_product")


def test_the_moments_of_a_log_rate_are_those_of_the_gamma():
    """An oracle of the oracle: log-gamma moments, so that the Gaussian product of logarithms is known."""
    sites, _ = poisson_rate_sites(n_sites=2, n_draws=200_000)
    u = np.log(sites[0])
    shape = np.exp(np.log(sites[0].mean() ** 2) - np.log(sites[0].var()))
    np.testing.assert_allclose(u.var(), polygamma(1, shape), rtol=0.05)
    np.testing.assert_allclose(u.mean() - np.log(sites[0].mean()), digamma(shape) - np.log(shape), atol=0.01)


# -- Which laws can be stated.

STATED = {law: [law, *arguments] for law, (arguments, _) in SCIPY_LAWS.items()} | {
    "dirichlet": ["dirichlet", 2.0, 3.0, 4.0]
}


def problem_of(stated):
    constraint = as_constraint("simplex" if stated[0] == "dirichlet" else "positive", "x")
    return law_problem("x", stated, constraint, (3,))


@pytest.mark.parametrize("law", STATED)
def test_a_law_takes_its_numbers_of_which_scales_and_shapes_are_positive(law):
    stated = STATED[law]
    assert problem_of(stated) is None
    for place in range(1, len(stated)):
        is_location = law in LAWS and LAWS[law][1][place - 1] in ("mean", "location")
        for value in (0.0, -1.5, np.nan, np.inf, True, "1"):
            problem = problem_of([*stated[:place], value, *stated[place + 1 :]])
            is_allowed = is_location and value in (0.0, -1.5)
            assert (problem is None) == is_allowed, (law, place, value)
    problem = problem_of([*stated, 1.0])
    assert "takes " in problem.text
    assert problem.code == "E-NUMBER"


@pytest.mark.parametrize("stated", [["dirichlet", 2.0], ["dirichlet", 2.0, 3.0, 4.0]])
def test_a_dirichlet_takes_one_number_or_one_for_each_entry_of_a_simplex(stated):
    assert problem_of(stated) is None
    assert "simplex" in law_problem("x", stated, as_constraint("positive", "x"), (3,)).text
    assert "one or 3" in problem_of(["dirichlet", 2.0, 3.0]).text


@pytest.mark.parametrize("name", [{"a": 1}, ["normal"], None, 3])
def test_a_law_whose_name_is_no_text_is_refused(name):
    problem = law_problem("x", [name, 0.0, 1.0], as_constraint("positive", "x"), (3,))
    assert "expected one of" in problem.text
