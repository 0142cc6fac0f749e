"""Laws of every method for draws."""

import numpy as np
import pytest
from scipy.special import digamma

import consilience as cs
from consilience.draws.subposteriors import MIN_SHIFT, Subposteriors
from tests.copies import COPIES
from tests.draws.methods_zoo import NAMES, SPECIMENS
from tests.draws.sites import flat, gaussian_sites, poisson_rate_sites
from tests.tolerances import ROUNDING

pytestmark = pytest.mark.covering(2)

every_method = pytest.mark.parametrize("name", NAMES)
PRODUCTS = [name for name in NAMES if name != "wasp"]
# Four sites of 4,000 draws: moments of a site are right to 1/sqrt(4000) of a deviation, and of the product alike.
OF_DRAWS = 0.1


@pytest.mark.parametrize("name", PRODUCTS)
def test_gaussian_subposteriors_give_their_product(name):
    method, make = SPECIMENS[name]
    sites, mean, covariance = make(n_draws=4000)
    draws = flat(cs.fuse(sites, method))
    deviation = np.sqrt(np.diagonal(covariance))
    np.testing.assert_allclose((draws.mean(axis=0) - mean) / deviation, 0.0, atol=OF_DRAWS)
    found = np.cov(draws, rowvar=False) / np.outer(deviation, deviation)
    np.testing.assert_allclose(found, covariance / np.outer(deviation, deviation), atol=2 * OF_DRAWS)


@every_method
def test_the_order_and_the_names_of_draws_sites_decide_nothing_but_their_own_order(name):
    method, make = SPECIMENS[name]
    sites = make()[0]
    by_name = dict(zip("abcd", sites, strict=True))
    turned = {site: by_name[site] for site in "dbca"}
    one, other = cs.fuse(by_name, method), cs.fuse(turned, method)
    np.testing.assert_array_equal(flat(one), flat(other))


@every_method
def test_the_same_seed_gives_the_same_bytes_and_another_one_does_not(name, tmp_path):
    method, make = SPECIMENS[name]
    sites = make()[0]
    for number, seed in enumerate((3, 3, 4)):
        cs.fuse(sites, method, rng=seed).save(tmp_path / str(number))
    first, again, other = ((tmp_path / str(number)).read_bytes() for number in range(3))
    assert first == again
    assert first != other


@every_method
def test_what_comes_back_has_the_same_variables_and_says_how_it_was_made(name):
    method, make = SPECIMENS[name]
    sites = make()[0]
    fusion = cs.fuse(sites, method)
    assert set(fusion.model) == {"beta"}
    assert fusion.model["beta"].shape == (1, 400, 3)
    assert fusion.draws.attributes["fused_by"].startswith("consilience ")
    assert fusion.provenance["method"] == name
    assert fusion.draws.prior in (1.0, 0.25)
    assert fusion.verdict.text.endswith(".")
    assert cs.fuse(sites, method.__class__(n_draws=77)).draws.shape == (1, 77)


@every_method
@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_a_change_of_units_changes_nothing_but_units(name, factor):
    method, make = SPECIMENS[name]
    sites = make()[0]
    scaled = [
        cs.Draws({"beta": site.variables["beta"] * factor}, prior=site.prior, likelihood_power=site.likelihood_power)
        for site in sites
    ]
    np.testing.assert_allclose(flat(cs.fuse(scaled, method)), factor * flat(cs.fuse(sites, method)), rtol=1e-6)


def test_product_and_consensus_are_exact_to_the_moments_of_the_sites():
    """Fused draws have the moments that those of the sites give: no Monte Carlo error is added."""
    sites = gaussian_sites()[0]
    rows = [site.variables["beta"].reshape(-1, 3) for site in sites]
    precisions = [np.linalg.inv(np.cov(one, rowvar=False)) for one in rows]
    mean = np.linalg.solve(sum(precisions), sum(p @ one.mean(axis=0) for p, one in zip(precisions, rows, strict=True)))
    product, consensus = (flat(cs.fuse(sites, name)) for name in ("gaussian_product", "consensus_mc"))
    np.testing.assert_allclose(product.mean(axis=0), mean, rtol=0, atol=ROUNDING * 10)
    np.testing.assert_allclose(np.cov(product, rowvar=False), np.linalg.inv(sum(precisions)), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(consensus.mean(axis=0), mean, rtol=0, atol=ROUNDING * 10)


@COPIES
def test_copies_of_one_file_with_likelihood_to_their_number_give_the_file_back_under_wasp():
    rng = np.random.default_rng(0)
    for dim in (1, 3):
        values = np.exp(rng.normal(size=(1, 900, dim)))
        copies = [cs.Draws({"beta": values}, likelihood_power=3, prior=1.0) for _ in range(3)]
        fused = flat(cs.fuse(copies, "wasp"))
        np.testing.assert_allclose(np.sort(fused, axis=0), np.sort(values[0], axis=0), rtol=1e-9)


def test_the_barycenter_has_the_width_of_the_full_posterior_with_the_power_of_the_likelihood():
    """A normal mean with known variance: with likelihood^J every site has the variance of the full posterior."""
    rng = np.random.default_rng(1)
    y = rng.normal(1.0, 2.0, size=(5, 200))
    full_precision = 1 + y.size / 4
    mean, variance = y.sum() / 4 / full_precision, 1 / full_precision
    sites = []
    for own in y:
        precision = 1 + 5 * own.size / 4
        draws = rng.normal(5 * own.sum() / 4 / precision, precision**-0.5, size=(2, 2000))
        sites.append(cs.Draws({"mu": draws}, likelihood_power=5, prior={"mu": ("normal", 0, 1)}))
    fused = flat(cs.fuse(sites, "wasp"), "mu")
    assert abs(fused.mean() - mean) < 0.1 * variance**0.5
    assert abs(fused.std() / variance**0.5 - 1) < 0.05


def test_sites_that_differ_have_wider_intervals_under_random_effects():
    rng = np.random.default_rng(2)
    places = rng.normal(0.0, 2.0, size=(8, 2))
    sites = [cs.Draws({"beta": place + 0.3 * rng.normal(size=(2, 1000, 2))}, prior=1 / 8) for place in places]
    with pytest.warns(cs.errors.HarmWarning, match="hardly overlap"):
        _ = cs.fuse(sites, "gaussian_product").model
    product, common = (flat(cs.fuse(sites, name)) for name in ("gaussian_product", "hierarchical"))
    standard_error = places.std(axis=0, ddof=1) / 8**0.5
    assert np.all(product.std(axis=0) < 0.3 * standard_error)
    assert np.all((0.6 * standard_error < common.std(axis=0)) & (common.std(axis=0) < 2.5 * standard_error))
    fusion = cs.fuse(sites)
    assert fusion.verdict.code == "apart"
    assert fusion.verdict.harmless is False
    assert "method='hierarchical'" in fusion.verdict.remedy


def test_density_products_keep_two_modes_where_gaussian_ones_fill_the_valley():
    """y ~ N(theta^2, 4): every site knows |theta| and not its sign."""
    rng = np.random.default_rng(3)
    y = rng.normal(1.25**2, 2.0, size=(5, 40))
    grid = np.linspace(-3, 3, 6001)
    sites = []
    for own in y:
        log_density = -0.5 * np.sum((own[:, None] - grid**2) ** 2, axis=0) / 4
        density = np.exp(log_density - log_density.max())
        sites.append(cs.Draws({"theta": rng.choice(grid, p=density / density.sum(), size=(2, 2000))}, prior="flat"))
    total = -0.5 * np.sum((y.reshape(-1, 1) - grid**2) ** 2, axis=0) / 4
    full = np.exp(total - total.max())
    mean_size = np.sum(full * np.abs(grid)) / full.sum()
    for method in ("gaussian_product", "consensus_mc", "hierarchical", None):
        with pytest.raises(
            cs.errors.InputError, match=r"two modes that are apart in theta.*`method='semiparametric'` keeps modes"
        ):
            cs.fuse(sites, method)
    for parametric in (True, False):
        fused = flat(cs.fuse(sites, "semiparametric", parametric=parametric), "theta")[:, 0]
        assert np.mean(np.abs(fused) < 0.5) == 0.0
        assert abs(np.mean(np.abs(fused)) - mean_size) < 0.1
        assert 0.2 < np.mean(fused > 0) < 0.8  # one chain alone stays in one mode


def test_the_default_is_the_product_of_gaussians_and_averages_draws_of_skewed_laws():
    assert cs.fuse(gaussian_sites()[0]).details["chosen"] == "gaussian_product"
    rng = np.random.default_rng(0)
    skewed = [cs.Draws({"beta": rng.gamma(2.0, size=(2, 1000, 5))}, prior=0.5) for _ in range(2)]
    fusion = cs.fuse(skewed)
    assert fusion.details["chosen"] == "consensus_mc"
    assert "beta: positive in all draws" in fusion.verdict.text
    assert "constraints={'beta': 'positive'}" in fusion.verdict.remedy


@pytest.mark.parametrize("seed", range(6))
def test_third_moments_predict_how_far_the_product_of_skewed_laws_is_off(seed):
    rates, law = poisson_rate_sites(10, rows=6, rate=1.5, seed=seed)
    sites = [cs.Draws({"rate": own}, prior=0.1, constraints={"rate": "positive"}) for own in rates]
    stack = Subposteriors(tuple(f"site {j}" for j in range(10)), tuple(sites))
    (mean,), precision = stack.product
    exact = digamma(law.args[0]) + np.log(law.kwds["scale"])  # the mean of log rate
    (shift,), (error,) = stack.shift_by_skewness
    off = (exact - mean) * np.sqrt(precision[0, 0])
    assert abs(shift - off) < 4 * error + 0.1  # cumulants beyond the third are left out
    text = cs.fuse(sites, "gaussian_product").verdict.text
    assert ("standard deviations off" in text) == (abs(shift) > max(MIN_SHIFT, 3 * error))


def test_the_default_multiplies_densities_of_few_skewed_coordinates_and_is_nearer():
    rates, law = poisson_rate_sites(10, rows=6, rate=1.5, seed=7)
    sites = [cs.Draws({"rate": own}, prior=0.1, constraints={"rate": "positive"}) for own in rates]
    default, product = cs.fuse(sites), cs.fuse(sites, "gaussian_product")
    assert default.details["chosen"] == "semiparametric, `parametric=False`"
    assert "densities are multiplied: in a product of Gaussians the mean of rate is about" in default.verdict.text
    places = (np.arange(4000) + 0.5) / 4000
    off = [np.abs(np.sort(flat(one, "rate")[:, 0]) - law.ppf(places)).mean() / law.std() for one in (default, product)]
    assert off[0] < 0.5 * off[1], off


def test_the_default_is_not_moved_by_a_trial_of_densities_that_was_not_taken():
    rng = np.random.default_rng(3)
    places = 1.5 * rng.normal(size=(10, 4))  # apart, so that few draws lie near the product
    sites = [cs.Draws({"beta": place + rng.gamma(2.0, size=(2, 300, 4))}, prior=0.1) for place in places]
    default, consensus = cs.fuse(sites), cs.fuse(sites, "consensus_mc")
    assert default.details["chosen"] == "consensus_mc"
    np.testing.assert_array_equal(flat(default), flat(consensus))


def test_gaussian_subposteriors_are_not_said_to_be_skewed():
    for seed in range(5):
        assert "third moments" not in cs.fuse(gaussian_sites(seed=seed)[0]).verdict.text


def test_a_fusion_of_fusions_counts_the_prior_once():
    sites, mean, covariance = gaussian_sites(4, n_draws=8000)
    halves = [cs.fuse({"a": sites[0], "b": sites[1]}), cs.fuse({"c": sites[2], "d": sites[3]})]
    assert [half.draws.prior for half in halves] == [0.5, 0.5]
    assert "the prior counts 0.5 times" in halves[0].verdict.text
    whole = cs.fuse({"ab": halves[0], "cd": halves[1]})
    assert whole.draws.prior == 1.0
    deviation = np.sqrt(np.diagonal(covariance))
    np.testing.assert_allclose((flat(whole).mean(axis=0) - mean) / deviation, 0.0, atol=OF_DRAWS)
