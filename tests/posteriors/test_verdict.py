"""The verdict on fused posteriors: the virtual loss by an oracle, harm where it is planted, and what is named."""

import json
import re
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.mixture import BayesianGaussianMixture

import consilience as cs
from tests.copies import COPIES
from tests.posteriors.hmmlearn_sites import fitted

pytestmark = pytest.mark.covering(2)

FAMILY = cs.families.NormalWishart(dim=2)
CENTRES = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0], [6.0, 6.0], [12.0, 0.0], [12.0, 6.0]])
PRIOR = FAMILY.to_natural(mean=np.zeros((1, 2)), kappa=[0.01], scale=np.eye(2)[None], dof=[3.0])[0]


def site(components, seed=0, per_component=200, shift=0.0, width=1.0):
    """A site that knows some centres, from the moments of its rows."""
    rng = np.random.default_rng([seed, *components])
    natural = []
    for component in components:
        rows = CENTRES[component] + shift + width * rng.normal(size=(per_component, 2))
        mean = rows.mean(axis=0)
        scatter = (rows - mean).T @ (rows - mean) + np.eye(2)
        parameters = {"mean": mean[None], "kappa": [per_component + 0.01], "dof": [per_component + 3.0]}
        natural.append(FAMILY.to_natural(scale=np.linalg.inv(scatter)[None], **parameters)[0])
    counts = np.full(len(components), float(per_component))
    return cs.Posterior(FAMILY, np.array(natural), prior=PRIOR, counts=counts)


def densities(posterior):
    """Plug-in Gaussians by hand: weights, means and covariances."""
    parameters = posterior.family.from_natural(posterior.natural)
    covariances = np.linalg.inv(parameters["scale"]) / np.asarray(parameters["dof"])[:, None, None]
    return posterior.counts / posterior.counts.sum(), parameters["mean"], covariances


def log_density(mixture, x):
    terms = [np.log(w) + multivariate_normal(m, c).logpdf(x) for w, m, c in zip(*mixture, strict=True)]
    return logsumexp(terms, axis=0)


def virtual_losses(sites, fused, n_draws=200_000):
    """Losses of the fused mixture and of every site's by draws of another generator, with their largest error."""
    rng = np.random.default_rng(123)
    parts = [densities(posterior) for posterior in sites]
    shares = np.array([posterior.counts.sum() for posterior in sites])
    shares = shares / shares.sum()
    weights = np.concatenate([share * part[0] for share, part in zip(shares, parts, strict=True)])
    means, covariances = (np.concatenate([part[place] for part in parts]) for place in (1, 2))
    numbers = rng.multinomial(n_draws, weights)
    x = np.concatenate(
        [rng.multivariate_normal(m, c, size=n) for m, c, n in zip(means, covariances, numbers, strict=True)]
    )
    together = log_density((weights, means, covariances), x)
    differences = [together - log_density(one, x) for one in (densities(fused), *parts)]
    return np.mean(differences, axis=1), np.std(differences, axis=1) / n_draws**0.5


OVERLAPPING = ((0, 1, 2), (1, 2, 3), (0, 3, 4))


def fused(held=OVERLAPPING, **options):
    return cs.fuse({f"site {number}": site(one, number) for number, one in enumerate(held)}, **options)


@pytest.mark.parametrize("n_components", [None, 4, 3])
def test_losses_are_those_of_an_oracle(n_components):
    fusion = fused(n_components=n_components)
    sites = [site(one, number) for number, one in enumerate(OVERLAPPING)]
    expected, errors = virtual_losses(sites, fusion.posterior)
    stated = [fusion.verdict.candidates[name] for name in ("fused", "site 0", "site 1", "site 2")]
    spread = np.array([0.02 if n_components is None else 0.1, 0.4, 0.4, 0.4])  # four errors of 2,000 draws
    assert np.all(np.abs(np.array(stated) - expected) < spread + 4 * errors)
    assert fusion.verdict.loss == stated[0]


def test_nothing_is_lost_where_nothing_is_merged():
    fusion = cs.fuse([site(one, number) for number, one in enumerate(OVERLAPPING)], "concatenate")
    assert abs(fusion.verdict.loss) < 1e-12
    assert fusion.verdict.harmless is True
    assert fusion.verdict.code == "fine"


def test_components_of_all_sites_are_better_than_any_sites():
    verdict = fused().verdict
    assert verdict.harmless is True
    assert verdict.code == "fine"
    assert verdict.text.startswith("One model of 5 components describes all 3 sites together better than any site's")
    assert verdict.remedy is None


def test_harm_is_told_and_warned_of_where_the_model_is_taken_up(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fusion = cs.fuse({"lund": site((0, 1, 2, 3)), "oslo": site((0, 1), 1)}, n_components=4)
        hardly = cs.fuse(
            {"lund": site((0, 1, 2, 3), per_component=900), "oslo": site((0,), 1)}, "kmeans", n_components=1
        )
        assert fusion.verdict.harmless is True
    assert hardly.verdict.harmless is False
    assert hardly.verdict.code == "harm"
    assert hardly.verdict.text.startswith("The model of lund alone describes all sites together better than the fused")
    assert "use the model of lund" in hardly.verdict.remedy
    with pytest.warns(cs.errors.HarmWarning, match="lund alone"):
        _ = hardly.model
    with pytest.warns(cs.errors.HarmWarning, match="lund alone"):
        hardly.save(tmp_path / "fused.safetensors")


@COPIES
def test_copies_of_one_model_are_as_good_as_it():
    verdict = cs.fuse([site((0, 1, 2))] * 3).verdict
    assert verdict.harmless is None
    assert "as well as that of" in verdict.text


def test_sites_that_share_nothing_are_told():
    verdict = fused(((0, 1), (2, 3), (4, 5))).verdict
    assert verdict.code == "nothing_shared"
    assert "no component is of several sites" in verdict.text


def test_an_outlier_is_named():
    sites = {f"site {number}": site((0, 1, 2, 3), number) for number in range(6)}
    verdict = cs.fuse(sites | {"mars": site((0, 1, 2, 3), 9, shift=50.0)}).verdict
    assert verdict.code == "outlier"
    assert "mars is an outlier" in verdict.text
    assert "look at mars" in verdict.remedy


def test_sites_that_differ_by_more_than_components_are_wide_are_told():
    rng = np.random.default_rng(4)
    sites = [site((0, 3, 4), number, width=0.2, shift=rng.normal(size=2)) for number in range(8)]
    verdict = cs.fuse(sites, n_components=3).verdict
    assert verdict.code == "sites_differ"
    assert "what they have in common" in verdict.text


def test_too_few_components_name_where_most_is_lost():
    verdict = cs.fuse([site((0, 1, 2, 3), number) for number in range(3)], "kmeans", n_components=2).verdict
    assert verdict.loss > 0.3
    assert verdict.code in ("loses", "harm")
    assert "most is lost of component" in verdict.text
    component, model = map(int, re.search(r"component (\d) of model (\d)", verdict.text).groups())
    sites = [site((0, 1, 2, 3), number) for number in range(3)]
    sites[model] = sites[model].take(np.roll(np.arange(4), 1))  # every component one place later
    moved = cs.fuse(sites, "kmeans", n_components=2).verdict
    assert f"component {(component + 1) % 4} of model {model}" in moved.text


def test_the_verdict_depends_on_contents_alone():
    sites = [site(one, number) for number, one in enumerate(OVERLAPPING)]
    shuffled = [one.take(np.random.default_rng(0).permutation(one.n_components)) for one in sites]
    names = ["a", "b", "c"]
    verdict = cs.fuse(dict(zip(names, sites, strict=True))).verdict
    other = cs.fuse(dict(zip(names[::-1], shuffled[::-1], strict=True))).verdict
    assert verdict.to_json() == other.to_json()


def test_the_unit_of_the_data_changes_nothing():
    verdict = fused(n_components=4).verdict
    scaled = []
    for number, one in enumerate(OVERLAPPING):
        posterior = site(one, number)
        parameters = FAMILY.from_natural(np.concatenate([posterior.natural, PRIOR[None]]))
        parameters["mean"], parameters["scale"] = 1000.0 * parameters["mean"], 1e-6 * parameters["scale"]
        natural = FAMILY.to_natural(**parameters)
        scaled.append(cs.Posterior(FAMILY, natural[:-1], prior=natural[-1], counts=posterior.counts))
    other = cs.fuse({f"site {number}": one for number, one in enumerate(scaled)}, n_components=4).verdict
    assert other.loss == pytest.approx(verdict.loss, rel=0.2)  # draws of sites in another order


@pytest.mark.parametrize("combine", ["hierarchical", "product", "barycenter"])
def test_alike_sites_of_few_rows_under_a_broad_prior_are_not_harmed(combine):
    """scikit-learn's prior has the covariance of all rows, so components of 30 rows are wider than their data."""
    centres = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]])

    def rows(seed, n):
        return centres[np.arange(n) % 3] + np.random.default_rng(seed).normal(size=(n, 2))

    sites = [BayesianGaussianMixture(n_components=3, random_state=0).fit(rows(seed, 90)) for seed in range(3)]
    fusion, held_out = cs.fuse(sites, combine=combine), rows(9, 3000)
    density = cs.log_density(fusion, held_out).mean()
    assert density > np.mean([cs.log_density(one, held_out).mean() for one in sites])
    assert fusion.verdict.harmless is not False
    assert fusion.verdict.loss < 0.02


def test_harm_is_not_known_where_sites_are_not_trusted():
    verdict = cs.fuse([site((0, 1, 2), number) for number in range(5)], robust="median").verdict
    assert verdict.harmless is None
    assert "not trusted" in verdict.text


def test_chains_are_judged_by_their_emissions_and_harm_is_not_known():
    verdict = cs.fuse([fitted("GaussianHMM", "full", seed) for seed in range(2)], n_observations="equal").verdict
    assert verdict.harmless is None
    assert verdict.loss is not None
    assert not verdict.candidates


def topics(seed, words=12):
    rng = np.random.default_rng(seed)
    base = np.kron(np.eye(3), np.ones((1, words // 3))) * 300 + 1.0
    return cs.Posterior(cs.families.Dirichlet(words), rng.poisson(base) + 0.5 - 1.0, counts=np.full(3, 1000.0))


def test_topics_are_judged_by_virtual_documents():
    verdict = cs.fuse([topics(seed) for seed in range(3)], n_components=3).verdict
    assert verdict.criterion == "virtual loss, nats per word"
    assert verdict.loss < 0.02
    assert "no evidence decides the number of topics" in verdict.text
    merged = cs.fuse([topics(seed) for seed in range(3)], "kmeans", n_components=1).verdict
    assert merged.loss > 0.5
    assert merged.harmless is False


def test_distributions_of_categories_have_a_bound_on_their_loss():
    family, rng = cs.families.Beta(), np.random.default_rng(3)
    sites = [
        cs.Posterior(family, rng.poisson([[900, 100], [500, 500], [100, 900]]).astype(float), counts=np.full(3, 1000.0))
        for _ in range(3)
    ]
    fusion = cs.fuse(sites, n_components=3)
    shares = family.mean_probabilities(np.concatenate([one.natural for one in sites]))
    merged = family.mean_probabilities(fusion.posterior.natural)[fusion.matching.labels]
    expected = np.mean(np.sum(shares * np.log(shares / merged), axis=1))
    assert_allclose(fusion.verdict.loss, expected, rtol=1e-9)
    assert fusion.verdict.criterion == "bound on the virtual loss, nats per word"
    assert fusion.verdict.harmless is None
    assert "at most" in fusion.verdict.text


def test_a_fused_file_carries_the_verdict_and_its_page_begins_with_it(tmp_path):
    fusion = fused()
    fusion.save(tmp_path / "fused.safetensors")
    fusion.report(tmp_path / "report.html")
    with (tmp_path / "fused.safetensors").open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(size))
    provenance = json.loads(header["__metadata__"]["consilience"])["provenance"]
    assert provenance["verdict"] == fusion.verdict.to_json()
    page = (tmp_path / "report.html").read_text()
    assert page.index("One model of 5 components") < page.index("Converged")


def test_shards_are_judged_by_a_sample(tmp_path):
    paths = []
    for number in range(12):
        cs.save(site(OVERLAPPING[number % 3], number), tmp_path / f"{number:02d}.safetensors")
        paths.append(tmp_path / f"{number:02d}.safetensors")
    cs.pack(paths, tmp_path / "packed")
    verdict = cs.fuse(cs.shards(tmp_path / "packed"), pilot_sites=6).verdict
    assert verdict.text.startswith("Of a sample of 6 of the 12 sites: ")
    assert verdict.harmless is None
    assert len(verdict.candidates) == 7


def test_a_site_without_a_vote_is_compared_as_it_is():
    sites = {f"site {number}": site((0, 1, 2), number) for number in range(3)}
    uneven = site((0, 1, 2), 5)
    uneven = cs.Posterior(FAMILY, uneven.natural, prior=PRIOR, counts=[400.0, 190.0, 10.0])
    voting = cs.fuse(sites | {"guest": uneven}, weights=[1, 1, 1, 1e-9]).verdict
    silent = cs.fuse(sites | {"guest": uneven}, weights=[1, 1, 1, 0]).verdict
    assert silent.candidates["guest"] == pytest.approx(voting.candidates["guest"], rel=0.1)


@pytest.mark.parametrize("robust", [None, True, "median"])
@pytest.mark.parametrize("components", [[2], [0, 1, 2]], ids=["one", "all"])
def test_a_site_whose_means_are_absurdly_far_is_named(components, robust):
    sites = {f"site {n}": site((0, 1, 2), seed=n) for n in range(5)}
    mean = sites["site 4"].parameters()["mean"].copy()
    mean[components] += 1e5
    natural = FAMILY.to_natural(**{**FAMILY.from_natural(sites["site 4"].natural), "mean": mean})
    sites["site 4"] = cs.Posterior(FAMILY, natural, prior=PRIOR, counts=sites["site 4"].counts)
    verdict = cs.fuse(sites, "kl", robust=robust).verdict
    assert "site 4" in verdict.text
    assert "site 4" in verdict.remedy
    assert verdict.code in ("outlier", "left_out")


def test_who_trusts_no_site_is_not_told_to_keep_all_and_hears_who_was_left_out():
    honest = {f"site {n}": site((0, 1, 2, 3), seed=n) for n in range(6)}
    hostile = {"far": site((4, 5), seed=9)}
    plain = cs.fuse({**honest, **hostile}, "kl", robust=None).verdict
    verdict = cs.fuse({**honest, **hostile}, "kl", robust=True).verdict
    assert plain.code != "left_out"
    assert "far (no component matches most) was left out" in verdict.text
    assert "concatenate" not in str(verdict.remedy)
    assert verdict.loss < 0.05  # of what was averaged: the components of the site left out are no loss
    assert verdict.harmless is None
