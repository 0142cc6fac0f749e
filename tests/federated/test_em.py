"""Laws of federated EM: sums over sites are those of pooled rows, the objective rises, and what is bad is refused."""

import dataclasses
from copy import copy
from functools import cache

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture

import consilience as cs
from consilience.errors import InputError, OptionError, UnsupportedError
from consilience.federated.requests.gaussian_mixture import RIDGE

pytestmark = pytest.mark.covering(2)

ROUNDING = 1e-10
"""Relative difference of sums in another order, over some rounds."""

CENTRES = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
COVARIANCE_TYPES = ("full", "tied", "diag", "spherical")
MODELS = (BayesianGaussianMixture, GaussianMixture)


def rows_of(seed, n=150):
    """Draw rows of a site with shares of its own."""
    rng = np.random.default_rng(seed)
    return CENTRES[rng.choice(3, size=n, p=rng.dirichlet([0.6] * 3))] + rng.normal(size=(n, 2))


DATA = {f"site-{seed}": rows_of(seed) for seed in range(4)}
POOLED = {"pooled": np.vstack(list(DATA.values()))}


@cache
def fused(model=BayesianGaussianMixture, covariance_type="full", **options):
    """Return the fusion of mixtures of all sites."""
    fitted = {
        site: model(n_components=3, covariance_type=covariance_type, random_state=0, max_iter=500, **options).fit(rows)
        for site, rows in DATA.items()
    }
    sizes = {"n_observations": [len(rows) for rows in DATA.values()]} if model is GaussianMixture else {}
    return cs.fuse(list(fitted.values()), **sizes)


def relative(found, expected):
    return np.abs(found - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
@pytest.mark.parametrize("model", MODELS)
def test_rounds_over_sites_are_rounds_on_the_pooled_rows(model, covariance_type):
    start = fused(model, covariance_type)
    over_sites = cs.federated.exchange("em", start, DATA, rounds=3, min_count=0)
    pooled = cs.federated.exchange("em", start, POOLED, rounds=3, min_count=0)
    assert relative(over_sites.posterior.natural, pooled.posterior.natural) < ROUNDING
    assert relative(over_sites.posterior.counts, pooled.posterior.counts) < ROUNDING
    assert relative(over_sites.history, pooled.history) < ROUNDING


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_the_answers_of_sites_sum_to_that_of_the_pooled_rows(covariance_type):
    request = cs.federated.request("em", fused(covariance_type=covariance_type))
    answers = [cs.federated.answer(request, rows, min_count=0) for rows in DATA.values()]
    whole = cs.federated.answer(request, POOLED["pooled"], min_count=0)
    for name, values in whole.content.arrays.items():
        assert relative(sum(one.content.arrays[name] for one in answers), values) < ROUNDING, name


@pytest.mark.parametrize("min_count", [5, 40])
@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
@pytest.mark.parametrize("model", MODELS)
def test_the_objective_never_falls(model, covariance_type, min_count):
    history = cs.federated.exchange("em", fused(model, covariance_type), DATA, rounds=5, min_count=min_count).history
    assert history.shape == (6,)
    assert np.all(np.diff(history) >= -1e-9 * np.abs(history[0])), history


@pytest.mark.parametrize("weight_prior", ["dirichlet_process", "dirichlet_distribution"])
@pytest.mark.parametrize("covariance_type", ["full", "tied"])
def test_a_variational_round_is_that_of_scikit_learn_on_the_pooled_rows(covariance_type, weight_prior):
    start = fused(covariance_type=covariance_type, weight_concentration_prior_type=weight_prior)
    model = start.model
    model.reg_covar = 0.0  # which scikit-learn adds beside its prior
    for _ in range(3):
        model._m_step(POOLED["pooled"], model._e_step(POOLED["pooled"])[1])
    found = cs.federated.exchange("em", start, DATA, rounds=3, min_count=0).model
    for name in ("means_", "covariances_", "mean_precision_", "degrees_of_freedom_"):
        np.testing.assert_allclose(getattr(found, name), getattr(model, name), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.weight_concentration_, model.weight_concentration_, rtol=1e-9)


def test_a_likelihood_round_is_the_penalised_one_on_the_pooled_rows():
    start = fused(GaussianMixture)
    rows = POOLED["pooled"]
    weights, means, covariances = start.model.weights_, start.model.means_, start.model.covariances_
    within = np.einsum("k,kdd->d", weights, covariances)
    total = within + weights @ means**2 - (weights @ means) ** 2  # of every column, under the fused mixture
    for _ in range(3):
        joint = np.array(
            [w * multivariate_normal(m, c).pdf(rows) for w, m, c in zip(weights, means, covariances, strict=True)]
        ).T
        shares = joint / joint.sum(axis=1, keepdims=True)
        counts = shares.sum(axis=0)
        weights, means = counts / len(rows), shares.T @ rows / counts[:, None]
        covariances = [
            (np.einsum("n,ni,nj->ij", share, rows - m, rows - m) + RIDGE * np.diag(total)) / n
            for share, m, n in zip(shares.T, means, counts, strict=True)
        ]
    found = cs.federated.exchange("em", start, DATA, rounds=3, min_count=0).model
    np.testing.assert_allclose(found.weights_, weights, rtol=1e-9)
    np.testing.assert_allclose(found.means_, means, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(found.covariances_, covariances, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("covariance_type", ["full", "diag", "spherical"])
def test_the_objective_is_the_bound_of_the_evidence_by_quadrature_of_its_parts(covariance_type):
    """F after a step, by Monte Carlo over the posterior of parameters."""
    start = fused(covariance_type=covariance_type, weight_concentration_prior_type="dirichlet_distribution")
    request = cs.federated.request("em", start)
    answers = {site: cs.federated.answer(request, rows, min_count=0) for site, rows in DATA.items()}
    result = cs.federated.reduce(request, answers)
    posterior, rows = cs.federated.finish(start, [result]).posterior, POOLED["pooled"]
    # r from the published state; E_q[log joint] and the divergence from draws of q, so from no formula of ours.
    shares = responsibilities(request, rows)
    rng, family, size = np.random.default_rng(0), posterior.family, 4000
    draws = family.sample(posterior.natural, size, rng)
    alpha = float(posterior.attached["weight_concentration_prior"].values)
    weights = rng.dirichlet(posterior.counts + alpha, size)
    total = np.einsum("nk,sk->s", shares, np.log(weights))
    for k in range(posterior.n_components):
        total += expected_log_density(draws, k, rows, shares[:, k], covariance_type)
    kl = float(np.diagonal(family.kl(posterior.natural, np.repeat(posterior.prior[None], 3, axis=0))).sum())
    dirichlet = cs.families.Dirichlet(posterior.n_components)
    concentrations = np.stack([posterior.counts + alpha, np.full(posterior.n_components, alpha)])
    eta = dirichlet.to_natural(concentration=concentrations)
    kl += float(dirichlet.kl(eta[:1], eta[1:])[0, 0])
    entropy = -np.sum(shares * np.log(np.maximum(shares, 1e-300)))
    spread = total.std() / np.sqrt(size)
    assert abs(total.mean() + entropy - kl - result.objective) < 5.0 * spread, (total.mean(), entropy, kl, spread)


def responsibilities(request, rows):
    """Return responsibilities under a published state, row by row: the sums of an answer of one row are they."""
    answers = [cs.federated.answer(request, row[None], min_count=0) for row in rows]
    return np.array([one.content.arrays["counts"] for one in answers])


def expected_log_density(draws, k, rows, shares, covariance_type):
    """Return sum_i r_ik log N(x_i | theta_k) for every draw of theta_k (size,)."""
    mean, precision = draws["mean"][:, k], draws["precision"][:, k]
    dim = rows.shape[1]
    first, second = shares @ rows, np.einsum("n,ni,nj->ij", shares, rows, rows)
    count = shares.sum()
    if covariance_type != "full":  # one precision for each column, or one for all
        diagonal = np.broadcast_to(precision.reshape(len(precision), -1), (len(precision), dim))
        precision = np.einsum("sd,de->sde", diagonal, np.eye(dim))
    log_det = np.linalg.slogdet(precision)[1]
    outer = np.einsum("si,sj->sij", mean, mean)
    scatter = second - np.einsum("i,sj->sij", first, mean) - np.einsum("si,j->sij", mean, first) + count * outer
    quadratic = np.einsum("sij,sji->s", precision, scatter)
    return 0.5 * (count * (log_det - dim * np.log(2.0 * np.pi)) - quadratic)


def test_components_with_few_rows_of_a_site_are_withheld_and_its_other_rows_count():
    request = cs.federated.request("em", fused())
    near = CENTRES[0] + np.random.default_rng(0).normal(size=(40, 2))
    few = np.vstack([near, CENTRES[1] + np.zeros((3, 2))])
    answer = cs.federated.answer(request, few)
    counts = answer.content.arrays["counts"]
    assert set(np.flatnonzero(counts)) == set(np.flatnonzero(counts >= 5.0))
    assert answer.content.fields["withheld"] >= 1
    assert 40 <= counts.sum() < 43
    empty = counts == 0.0
    assert not answer.content.arrays["first"][empty].any()
    assert not answer.content.arrays["second"][empty].any()
    assert np.all(cs.federated.answer(request, few, min_count=0).content.arrays["counts"] > 0.0)


def test_a_site_whose_components_all_have_few_rows_does_not_answer():
    request = cs.federated.request("em", fused())
    with pytest.raises(InputError, match="has no component with 5 rows or more"):
        cs.federated.answer(request, np.repeat(CENTRES, 2, axis=0))


def test_a_site_with_fewer_rows_than_the_least_count_does_not_answer():
    request = cs.federated.request("em", fused())
    with pytest.raises(InputError, match="has 4 rows, and sums over fewer than 5 do not leave a site"):
        cs.federated.answer(request, DATA["site-0"][:4])


def test_the_same_rows_give_the_same_bytes_and_no_row_is_in_them():
    request = cs.federated.request("em", fused())
    answer = cs.federated.answer(request, DATA["site-0"])
    assert answer.data == cs.federated.answer(request, DATA["site-0"]).data
    assert {values.shape for values in answer.content.arrays.values()} == {(3,), (3, 2), (3, 2, 2), (1,)}


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_a_site_that_does_not_answer_is_carried_on_and_the_objective_rises(covariance_type):
    start = fused(covariance_type=covariance_type)
    request, objectives = cs.federated.request("em", start, rounds=5), []
    standing = {}
    for number in range(1, 6):
        present = [site for site in DATA if number == 1 or (site == "site-2") != (number % 2 == 0)]
        answers = {site: cs.federated.answer(request, DATA[site]) for site in present}
        result = cs.federated.reduce(request, answers, standing)
        standing = result.reduction.standing
        assert set(result.reduction.sites) == set(DATA)
        assert set(result.reduction.carried) >= set(DATA) - set(present)
        objectives += [result.reduction.objective_before, result.objective]
        request = result.next_request
    assert request is None
    assert np.all(np.diff(objectives) >= -1e-9 * abs(objectives[0])), objectives


def test_a_site_that_never_answers_is_left_out():
    start, others = fused(), {site: rows for site, rows in DATA.items() if site != "site-1"}
    request = cs.federated.request("em", start)
    result = cs.federated.reduce(request, {site: cs.federated.answer(request, rows) for site, rows in others.items()})
    assert result.reduction.sites == tuple(others)
    assert result.reduction.carried == {}


def test_late_answers_count_unless_the_last_ones_fit_better():
    start = fused()
    first = cs.federated.request("em", start, rounds=3)
    answers = {site: cs.federated.answer(first, rows) for site, rows in DATA.items()}
    late = cs.federated.StandingAnswer(first, answers.pop("site-3"))
    one = cs.federated.reduce(first, answers)
    second = one.next_request
    answers = {site: cs.federated.answer(second, DATA[site]) for site in answers}
    two = cs.federated.reduce(second, answers, one.reduction.standing, {"site-3": late})
    assert set(two.reduction.sites) == set(DATA)
    assert two.reduction.carried == {"site-3": "its answer to request 1 came late"}
    # An old answer of a site that has answered since fits the newer state less well: it is not taken.
    again = cs.federated.reduce(
        two.next_request, {}, two.reduction.standing, {"site-0": one.reduction.standing["site-0"]}
    )
    assert "less well" in again.reduction.carried["site-0"]


def test_a_component_without_rows_leaves_a_likelihood_mixture():
    start = fused(GaussianMixture)
    only = {"a": CENTRES[0] + np.random.default_rng(1).normal(scale=0.5, size=(60, 2))}
    ended = cs.federated.exchange("em", start, only, rounds=2)
    assert ended.n_components < start.n_components
    assert ended.matching.n_components == ended.n_components
    assert ended.matching.labels.max() < ended.n_components
    assert -1 in ended.matching.labels
    # One component describes the sites' own models badly, which the verdict cannot tell from harm.
    with pytest.warns(cs.errors.HarmWarning):
        model = ended.model
    assert np.isfinite(model.score(only["a"]))


def test_the_result_is_a_fusion_with_the_rounds_in_its_provenance(tmp_path):
    ended = cs.federated.exchange("em", fused(), DATA, rounds=2)
    ended.save(tmp_path / "fused")
    posterior = cs.load(tmp_path / "fused")
    np.testing.assert_array_equal(posterior.natural, ended.posterior.natural)
    assert isinstance(ended.model, BayesianGaussianMixture)
    record = ended.provenance["result"]["then"]
    assert record["kind"] == "em"
    assert [one["number"] for one in record["rounds"]] == [1, 2]
    assert set(record["rounds"][0]["answers"]) == set(DATA)
    assert record["rounds"][1]["objective"] == ended.objective == ended.history[-1]


def test_a_posterior_alone_gives_a_posterior():
    start = fused().posterior
    ended = cs.federated.exchange("em", start, DATA)
    assert isinstance(ended, cs.Posterior)
    assert ended.n_components == 3


UNFIT = {
    "not positive semidefinite": ("second", lambda values: -values),
    "is not symmetric": ("second", lambda values: values + np.triu(np.ones(values.shape[1:]), 1) * values.max()),
    "has a count of": ("counts", lambda values: -values),
    "its counts sum to": ("counts", lambda values: 2.0 * values),
    "second has shape": ("second", lambda values: values[:, :1]),
    "NaN or infinite, or beyond": ("first", lambda values: np.where(values == values.max(), np.nan, values)),
    "its entropy is": ("entropy", lambda values: values + 1e6),
    "sums of no observations": ("counts", lambda values: np.where(values == values.min(), 0.0, values)),
}


@pytest.mark.parametrize("text", UNFIT)
def test_sums_that_no_rows_have_are_refused(text):
    request = cs.federated.request("em", fused())
    answer = cs.federated.answer(request, DATA["site-0"], min_count=0)
    name, change = UNFIT[text]
    content = dataclasses.replace(
        answer.content, arrays={**answer.content.arrays, name: change(answer.content.arrays[name])}
    )
    bad = dataclasses.replace(answer, content=content)
    with pytest.raises(InputError, match=text) as caught:
        cs.federated.reduce(request, {"lund": bad})
    assert all(problem.subject == "lund" for problem in caught.value.problems)


def test_sums_below_the_stated_least_count_are_refused():
    request = cs.federated.request("em", fused())
    answer = cs.federated.answer(request, DATA["site-0"], min_count=0)
    least = answer.content.arrays["counts"].min()
    bad = dataclasses.replace(answer, min_count=float(least + 1.0))
    with pytest.raises(InputError, match="observations behind it, and the site withholds those of fewer"):
        cs.federated.reduce(request, {"lund": bad})


def test_an_answer_to_another_request_is_refused():
    first = cs.federated.request("em", fused(), rounds=2)
    answer = cs.federated.answer(first, DATA["site-0"])
    other = cs.federated.request("em", fused(covariance_type="diag"), rounds=2)
    with pytest.raises(InputError, match="lund: answer: answers another request: its request is"):
        cs.federated.reduce(other, {"lund": answer})
    second = cs.federated.reduce(first, {"lund": answer}).next_request
    with pytest.raises(InputError, match="its number is 1, expected 2"):
        cs.federated.reduce(second, {"lund": answer})


def test_data_of_other_columns_or_with_gaps_are_refused():
    request = cs.federated.request("em", fused())
    with pytest.raises(InputError, match="has 3 columns, expected 2"):
        cs.federated.answer(request, np.zeros((20, 3)))
    gaps = DATA["site-0"].copy()
    gaps[3, 1] = np.nan
    with pytest.raises(InputError, match="row 3, column 1"):
        cs.federated.answer(request, gaps)


def test_names_of_columns_order_the_columns_of_a_file(tmp_path):
    fitted = [BayesianGaussianMixture(n_components=3, random_state=0).fit(rows) for rows in DATA.values()]
    features = cs.Features(names=("age", "dose"))
    described = [cs.describe(model, features=features, min_count=0) for model in fitted]
    request = cs.federated.request("em", cs.fuse(described, min_count=0))
    rows = DATA["site-0"]
    lines = ["dose,age", *(f"{float(dose)!r},{float(age)!r}" for age, dose in rows)]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    named = cs.federated.answer(request, tmp_path / "rows.csv")
    assert named.data == cs.federated.answer(request, rows).data
    (tmp_path / "other.csv").write_text("dose,height\n1,2\n")
    with pytest.raises(InputError, match="lacks the column 'age'"):
        cs.federated.answer(request, tmp_path / "other.csv")


def test_kinds_and_models_without_a_request_are_named():
    with pytest.raises(OptionError, match=r"there is no kind 'gossip'; the kinds are: em \("):
        cs.federated.request("gossip", fused())
    with pytest.raises(OptionError, match="expected a positive whole number, found 0"):
        cs.federated.request("em", fused(), rounds=0)
    from sklearn.cluster import KMeans

    clusters = cs.fuse([KMeans(2, random_state=0, n_init=1).fit(rows) for rows in DATA.values()])
    with pytest.raises(UnsupportedError, match=r"this is a sklearn\.KMeans.*em is for mixtures of Gaussians"):
        cs.federated.request("em", clusters)
    with pytest.raises(UnsupportedError, match="this is a dict"):
        cs.federated.request("em", {})
    from sklearn.naive_bayes import GaussianNB

    labels = np.repeat([0, 1], 20)
    columns = np.random.default_rng(0).normal(size=(2, 40, 2))
    sums = cs.fuse([GaussianNB().fit(of_site, labels) for of_site in columns])
    with pytest.raises(UnsupportedError, match=r"this is a sklearn\.GaussianNB"):
        cs.federated.request("em", sums)
    posterior = fused().posterior
    with pytest.raises(InputError, match="has no prior"):
        cs.federated.request("em", dataclasses.replace(posterior, prior=None))
    with pytest.raises(OptionError, match="is for networks"):
        cs.federated.answer(cs.federated.request("em", posterior), DATA["site-0"], module=object())


BAD_STATES = {
    "is no state of a Gaussian mixture": ({"covariance_type": "round"}, {}),
    "kappa must be positive": ({}, {"kappa": np.zeros(3)}),
    "counts must not be negative": ({}, {"counts": np.zeros(3)}),
    "spread has shape": ({}, {"spread": np.ones((3, 2))}),
    "not positive definite": ({}, {"spread": -np.ones((3, 2, 2))}),
    "expected the arrays": ({}, {"more": np.zeros(1)}),
}


@pytest.mark.parametrize("text", BAD_STATES)
def test_a_site_refuses_a_request_that_is_none(text):
    request = cs.federated.request("em", fused())
    fields, arrays = BAD_STATES[text]
    content = dataclasses.replace(
        request.content,
        fields={**request.content.fields, **fields},
        arrays={**request.content.arrays, **arrays},
    )
    with pytest.raises(InputError, match=text):
        cs.federated.answer(dataclasses.replace(request, content=content), DATA["site-0"])


def test_requests_and_answers_are_read_as_they_were_written(tmp_path):
    request = cs.federated.request("em", fused(), rounds=2)
    cs.federated.write_message(tmp_path / "request", request)
    read = cs.federated.read_request(tmp_path / "request")
    assert (read.data, read.digest) == (request.data, request.digest)
    answer = cs.federated.answer(tmp_path / "request", DATA["site-0"])
    cs.federated.write_message(tmp_path / "answer", answer)
    assert cs.federated.read_answer(tmp_path / "answer").data == answer.data
    with pytest.raises(InputError, match="is a request of a round, expected an answer"):
        cs.federated.read_answer(tmp_path / "request")
    (tmp_path / "short").write_bytes(answer.data[:-9])
    with pytest.raises(InputError, match="truncated"):
        cs.federated.read_answer(tmp_path / "short")


@pytest.mark.parametrize(
    ("text", "message"), [("em:0", "1 to 1000 requests"), ("em:x", "KIND or KIND:N"), ("nope", "kinds")]
)
def test_what_follows_a_round_is_parsed(text, message):
    with pytest.raises(OptionError, match=message):
        cs.federated.Then.parse(text)
    assert str(cs.federated.Then.parse("em")) == "em:1"


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
@pytest.mark.parametrize("model", MODELS)
def test_rounds_far_from_zero_are_those_about_zero(model, covariance_type):
    def after_rounds(offset):
        start = copy(fused(model, covariance_type).model)
        start.means_ = start.means_ + offset
        options = {"n_observations": sum(map(len, DATA.values()))}
        if model is BayesianGaussianMixture:
            start.mean_prior_, options = start.mean_prior_ + offset, {}
        data = {site: rows + offset for site, rows in DATA.items()}
        return cs.federated.exchange("em", cs.describe(start, **options), data, rounds=3, min_count=0)

    near, far = after_rounds(0.0), after_rounds(1e8)
    np.testing.assert_allclose(far.parameters()["mean"] - 1e8, near.parameters()["mean"], atol=1e-5)
    np.testing.assert_allclose(far.counts, near.counts, rtol=1e-5)
