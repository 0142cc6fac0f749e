"""What masked sums sum: statistics and networks as vectors and back equal the open fusion, and the rest is refused."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.covariance import EmpiricalCovariance, LedoitWolf
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.linear_model import BayesianRidge, LinearRegression, LogisticRegression, Ridge
from sklearn.mixture import BayesianGaussianMixture
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.preprocessing import MinMaxScaler, StandardScaler

import consilience as cs
from consilience.errors import InputError, OptionError, UnsupportedError
from consilience.estimators.heads.privacy import GaussianMechanism
from consilience.federated.masking import fixed_point
from consilience.federated.masking.network_sum import BY_OBSERVATIONS, EQUAL, NetworkSum, SumNoise
from consilience.federated.masking.statistics_sum import StatisticsSum
from consilience.federated.masking.table import ALL_SITES, MaskedSiteRows, RequestSum, summand_of
from consilience.federated.requests.exchange import answer, reduce, request
from consilience.files.safetensors_file import SafetensorsFile
from tests.federated import network_sites, test_em
from tests.federated.masked_sites import Exchange

pytestmark = pytest.mark.covering(2)

BITS = 60
ROUNDED = 1e-14
"""Relative difference of sums in float64 and of integers that are rounded once."""


def data(kind, seed, count=80, offset=1e4):
    """Return rows of columns far from zero in units far apart, and what the estimator is fitted to."""
    rng = np.random.default_rng(seed)
    y = np.append(np.arange(3), rng.integers(3, size=count - 3))
    X = (rng.normal(size=(count, 4)) + y[:, None] * [0.5, -1, 1, 0]) * [1, 1e2, 1e-2, 1] + [0, offset, 1, 3]
    if kind == "counts":
        return rng.poisson(3.0, size=(count, 4)), y
    if kind == "classes":
        return X, y
    if kind == "targets":
        return X, X @ [1, 1e-2, 1e2, 2] + rng.normal(size=count)
    if kind == "two targets":
        return X, X @ rng.normal(size=(4, 2)) * 1e-2 + rng.normal(size=(count, 2))
    if kind == "weights":
        return X, X @ [1, 1e-2, 1e2, 2] + rng.normal(size=count), rng.uniform(0.5, 2.0, count)
    return X, None


def test_networks_whose_layers_have_parts_are_refused(tmp_path):
    net = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 2))
    cs.save(net, tmp_path / "start.safetensors")
    with pytest.raises(InputError, match=r"parametrised layers \(weight\).*remove it first"):
        NetworkSum(SafetensorsFile(tmp_path / "start.safetensors"))


ESTIMATORS = {
    "GaussianNB": (GaussianNB, "classes"),
    "MultinomialNB": (MultinomialNB, "counts"),
    "LinearDiscriminantAnalysis": (LinearDiscriminantAnalysis, "classes"),
    "QuadraticDiscriminantAnalysis": (lambda: QuadraticDiscriminantAnalysis(reg_param=0.1), "classes"),
    "LinearRegression": (LinearRegression, "two targets"),
    "Ridge": (lambda: Ridge(alpha=0.3), "weights"),
    "BayesianRidge": (BayesianRidge, "targets"),
    "StandardScaler": (StandardScaler, "rows"),
    "PCA": (lambda: PCA(2), "rows"),
    "EmpiricalCovariance": (EmpiricalCovariance, "rows"),
}


def write(folder, name, seed, **more):
    """Write the statistics of a site."""
    make, kind = ESTIMATORS[name]
    parts = [part for part in data(kind, seed, **more) if part is not None]
    weights = {"sample_weight": parts[2]} if len(parts) > 2 else {}
    path = folder / f"{name}-{seed}.safetensors"
    model = make().fit(*parts[:2], **weights)
    cs.save(model, path, data=tuple(parts[:2]) if len(parts) > 1 else parts[0], **weights)
    return path


def masked_sum(summand, sources, sites=("a", "b", "c")):
    """Return what the fixed-point sum of sources comes to."""
    words = [summand.words(source, len(sources), BITS) for source in sources]
    return summand.result(fixed_point.total(words), sites, {"round": "00"}, BITS)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_sum_of_statistics_is_that_of_the_open_fusion(tmp_path, name):
    paths = [write(tmp_path, name, seed) for seed in (1, 2, 3)]
    summand = StatisticsSum(SafetensorsFile(paths[0]))
    result = masked_sum(summand, [[SafetensorsFile(path)] for path in paths])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of weighted rows, as at the sites
        open_fusion = cs.fuse(paths)
    expected = dict(open_fusion.statistics.tensors())
    for tensor, values in result.model.statistics.tensors():
        size = np.abs(expected[tensor]).max(initial=1e-300)
        assert_allclose(values, expected[tensor], rtol=ROUNDED, atol=ROUNDED * size, err_msg=tensor)
    assert result.model.verdict.code == open_fusion.verdict.code
    assert result.details["n_observations"] == 240


@pytest.mark.parametrize("name", ["GaussianNB", "Ridge"])
def test_the_order_of_sites_and_the_rows_of_the_expected_file_change_no_or_only_the_last_digit(tmp_path, name):
    paths = [write(tmp_path, name, seed) for seed in (1, 2, 3)]
    sources = [[SafetensorsFile(path)] for path in paths]
    expected = StatisticsSum(SafetensorsFile(paths[0]))
    one, other = (masked_sum(expected, order).model.statistics for order in (sources, sources[::-1]))
    assert one.digest == other.digest
    elsewhere = StatisticsSum(SafetensorsFile(write(tmp_path, name, 9, count=50, offset=-3e4)))
    for (tensor, values), (_, again) in zip(
        one.tensors(), masked_sum(elsewhere, sources).model.statistics.tensors(), strict=True
    ):
        assert_allclose(again, values, rtol=1e-12, atol=1e-12 * np.abs(values).max(initial=1e-300), err_msg=tensor)


def test_moments_far_from_zero_keep_their_digits(tmp_path):
    """Raw sums in float64 would lose all digits of a variance of 1 at a mean of 1e8; integers of 128 bits lose none."""
    rows = [np.random.default_rng(seed).normal(size=(50, 1)) + 1e8 for seed in range(3)]
    paths = []
    for seed, site in enumerate(rows):
        paths.append(tmp_path / f"{seed}.safetensors")
        cs.save(StandardScaler().fit(site), paths[-1], data=site)
    cs.save(StandardScaler().fit(rows[0] - 1e8), tmp_path / "public.safetensors", data=rows[0] - 1e8)
    summand = StatisticsSum(SafetensorsFile(tmp_path / "public.safetensors"))  # its centre is far from all rows
    fused = masked_sum(summand, [[SafetensorsFile(path)] for path in paths]).model.model
    assert_allclose(fused.var_, np.vstack(rows - np.float64(1e8)).var(axis=0), rtol=1e-6)  # of rows near 1e8
    assert_allclose(fused.var_, cs.fuse(paths).model.var_, rtol=1e-12)


def test_sites_without_a_class_take_part_and_a_class_that_nobody_has_is_left_out(tmp_path):
    X, y = data("classes", 1)
    everything, some = tmp_path / "all.safetensors", tmp_path / "some.safetensors"
    cs.save(GaussianNB().fit(X, y), everything, data=(X, y))
    cs.save(GaussianNB().fit(X[y > 0], y[y > 0]), some, data=(X[y > 0], y[y > 0]))
    summand = StatisticsSum(SafetensorsFile(everything))
    both = masked_sum(summand, [[SafetensorsFile(everything)], [SafetensorsFile(some)]]).model
    assert_allclose(both.statistics.row_counts, cs.fuse([everything, some]).statistics.row_counts)
    one = masked_sum(summand, [[SafetensorsFile(some)]]).model
    assert one.model.classes_.tolist() == [1, 2]
    with pytest.raises(InputError, match="has the class 0, which the expected file has not"):
        StatisticsSum(SafetensorsFile(some)).words([SafetensorsFile(everything)], 2, BITS)


def test_files_that_do_not_fit_the_expected_one_are_refused(tmp_path):
    ridge, weak, bayes = (tmp_path / f"{name}.safetensors" for name in ("ridge", "weak", "bayes"))
    X, y = data("targets", 0)
    cs.save(Ridge(alpha=1.0).fit(X, y), ridge, data=(X, y))
    cs.save(Ridge(alpha=1.0).fit(X[:, :3], y), weak, data=(X[:, :3], y))
    cs.save(BayesianRidge().fit(X, y), bayes, data=(X, y))
    summand = StatisticsSum(SafetensorsFile(ridge))
    for path, match in ((weak, "its columns is not that"), (bayes, "its estimator is not that")):
        with pytest.raises(InputError, match=match):
            summand.words([SafetensorsFile(path)], 2, BITS)
    with pytest.raises(InputError, match="accompanies networks"):
        summand.words([SafetensorsFile(ridge), SafetensorsFile(ridge)], 2, BITS)


def test_numbers_beyond_the_planned_range_are_refused_before_anything_is_sent(tmp_path):
    paths = [tmp_path / f"{scale:g}.safetensors" for scale in (1.0, 1e12)]
    for path, scale in zip(paths, (1.0, 1e12), strict=True):
        rows = np.random.default_rng(0).normal(size=(50, 2)) * scale
        cs.save(StandardScaler().fit(rows), path, data=rows)
    with pytest.raises(InputError, match=r"bits, and below .* the sum of all sites is exact"):
        StatisticsSum(SafetensorsFile(paths[0])).words([SafetensorsFile(paths[1])], 2, BITS)
    assert StatisticsSum(SafetensorsFile(paths[1])).words([SafetensorsFile(paths[1])], 2, BITS).any()


def test_what_is_no_sum_is_refused_by_a_sentence(tmp_path):
    X, _ = data("rows", 0)
    cs.save(MinMaxScaler().fit(X), tmp_path / "largest", data=X, min_count=0)
    cs.save(BayesianGaussianMixture(n_components=2, random_state=0).fit(X), tmp_path / "mixture")
    with pytest.raises(UnsupportedError, match="greatest values are fused, which are no sums"):
        summand_of(SafetensorsFile(tmp_path / "largest"), EQUAL, None, None, 2)
    with pytest.raises(UnsupportedError, match="masked sums are not for posteriors: components of mixtures"):
        summand_of(SafetensorsFile(tmp_path / "mixture"), EQUAL, None, None, 2)
    cs.save(StandardScaler().fit(X), tmp_path / "scaler", data=X)
    with pytest.raises(OptionError, match="noise: is for averages of networks"):
        summand_of(SafetensorsFile(tmp_path / "scaler"), EQUAL, SumNoise(1.0, 1e-5, 1.0), None, 2)
    with pytest.raises(OptionError, match="weights: is for averages of networks"):
        summand_of(SafetensorsFile(tmp_path / "scaler"), {"a": 1.0}, None, None, 2)


# Networks of one start


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """The start, and three networks that were trained from it, with descriptions."""
    folder = tmp_path_factory.mktemp("networks")
    torch.manual_seed(0)
    start = network_sites.make()
    cs.save(start, folder / "start.safetensors", symmetry=cs.symmetry(start, torch.zeros(1, 3)))
    for site, (x, y) in network_sites.SITES.items():
        model = network_sites.make()
        model.load_state_dict(start.state_dict())
        optimiser = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(20):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y)).backward()
            optimiser.step()
        cs.save(model, folder / f"{site}.safetensors", data=(x, y), example=torch.zeros(1, 3))
    return folder


def source(folder, site, *, described=False):
    files = [SafetensorsFile(folder / f"{site}.safetensors")]
    return [*files, SafetensorsFile(folder / f"{site}.description.safetensors")] if described else files


@pytest.mark.parametrize("weights", [EQUAL, BY_OBSERVATIONS, {"a": 1.0, "b": 2.5, "c": 0.5}], ids=str)
def test_the_sum_of_updates_is_the_weighted_average(networks, weights, tmp_path):
    start = SafetensorsFile(networks / "start.safetensors")
    described = weights == BY_OBSERVATIONS
    summands = {site: NetworkSum(start, weights, site=site) for site in "abc"}
    words = [summands[site].words(source(networks, site, described=described), 3, BITS) for site in "abc"]
    summand = NetworkSum(start, weights)
    result = summand.result(fixed_point.total(words), ("a", "b", "c"), {}, BITS)
    stated = [250, 230, 210] if described else weights.values() if isinstance(weights, dict) else [1, 1, 1]
    expected = cs.fuse([networks / f"{s}.safetensors" for s in "abc"], "average", weights=list(stated)).network.arrays
    for name, values in result.model[0].items():
        assert_allclose(np.asarray(values), np.asarray(expected[name]), rtol=1e-6, atol=1e-8)
    assert result.details == ({"weight": 690.0} if described else {})
    summand.save(result, tmp_path / "fused.safetensors")
    again = cs.load(tmp_path / "fused.safetensors")
    assert_array_equal(again.arrays["0.weight"], result.model[0]["0.weight"])


def test_networks_that_are_not_of_the_start_or_not_described_are_refused(networks, tmp_path):
    start = SafetensorsFile(networks / "start.safetensors")
    with pytest.raises(InputError, match="has no description, and networks of this sum count by"):
        NetworkSum(start, BY_OBSERVATIONS).words(source(networks, "a"), 3, BITS)
    with pytest.raises(InputError, match="is not used: the server's plan has other weights"):
        NetworkSum(start).words(source(networks, "a", described=True), 3, BITS)
    wide = torch.nn.Sequential(torch.nn.Linear(3, 9))
    cs.save(wide, tmp_path / "wide.safetensors", symmetry=cs.symmetry(wide, torch.zeros(1, 3)))
    with pytest.raises(InputError, match=r"do not have the same arrays|has shape"):
        NetworkSum(start).words([SafetensorsFile(tmp_path / "wide.safetensors")], 3, BITS)
    with pytest.raises(OptionError, match="with noise all sites count alike"):
        NetworkSum(start, BY_OBSERVATIONS, SumNoise(1.0, 1e-5, 1.0))


@pytest.mark.parametrize("weights", [{"a": 1.0, "b": 0.0}, {"a": -1.0}, {"a": float("nan")}, "none"], ids=str)
def test_weights_that_are_none_are_refused_and_one_that_outweighs_the_others_is_told(networks, weights):
    start = SafetensorsFile(networks / "start.safetensors")
    with pytest.raises(OptionError, match="weights: expected"):
        NetworkSum(start, weights)
    plan = Exchange({site: np.zeros(1) for site in "abc"}).plan
    lines = NetworkSum(start, {"a": 3.0, "b": 1.0, "c": 1.0}).warnings(plan)
    assert lines == ["a has 60% of the weight: the sum is nearly what it sends"]
    assert not NetworkSum(start, {"a": 1.0, "b": 1.0, "c": 1.0}).warnings(plan)


def test_noise_is_in_the_average_of_networks_as_stated(networks):
    start, noise = SafetensorsFile(networks / "start.safetensors"), SumNoise(2.0, 1e-5, 0.5)
    summand = NetworkSum(start, noise=noise, threshold=3)
    results = []
    for _ in range(30):
        words = [summand.words(source(networks, site), 3, BITS) for site in "abc"]
        arrays = summand.result(fixed_point.total(words), ("a", "b", "c"), {}, BITS).model[0]
        results.append(np.concatenate([np.asarray(values, dtype=np.float64).ravel() for values in arrays.values()]))
    deviation = np.std(results, axis=0, ddof=1).mean() / 0.9914  # of 30 draws
    assert deviation == pytest.approx(noise.scale / 3, rel=0.05)


# Answers to requests


def masked_rounds(kind, start, rows, rounds):
    """Return the rounds of requests whose answers were summed in fixed point."""
    message, done = request(kind, start, rounds=rounds), []
    while message is not None:
        summand = RequestSum(message)
        words = [summand.words(MaskedSiteRows(site, 0.0), len(rows), BITS) for site in rows.values()]
        done.append(summand.result(fixed_point.total(words), tuple(rows), {}, BITS).model)
        message = done[-1].next_request
    return done


@pytest.mark.parametrize("covariance_type", test_em.COVARIANCE_TYPES)
def test_masked_em_is_em_of_open_answers(covariance_type):
    start = test_em.fused(BayesianGaussianMixture, covariance_type)
    done = masked_rounds("em", start, test_em.DATA, 3)
    masked = cs.federated.requests.exchange.finish(start, done)
    in_the_open = cs.federated.exchange("em", start, test_em.DATA, rounds=3, min_count=0)
    assert test_em.relative(masked.posterior.natural, in_the_open.posterior.natural) < test_em.ROUNDING
    assert (np.diff(masked.history) >= 0).all()
    assert done[0].reduction.sites == (ALL_SITES,)


def test_masked_refinement_reaches_the_fit_on_all_rows():
    rng = np.random.default_rng(0)
    sites = {}
    for site in "abc":
        X = rng.normal(size=(120, 3))
        sites[site] = X, (rng.random(120) < 1 / (1 + np.exp(-X @ [1.0, -2.0, 0.5]))).astype(int)
    described = [cs.describe(LogisticRegression(C=10.0).fit(*rows), data=rows) for rows in sites.values()]
    start = cs.fuse(described)
    masked = cs.federated.requests.exchange.finish(start, masked_rounds("refine", start, sites, 8))
    in_the_open = cs.federated.exchange("refine", start, sites, rounds=8, min_count=0)
    assert_allclose(masked.model.coef_, in_the_open.model.coef_, rtol=1e-10)


def test_masked_fourth_moments_shrink_as_on_all_rows():
    rows = {site: np.random.default_rng(seed).standard_t(5, size=(80, 3)) for seed, site in enumerate("abc")}
    start = cs.fuse([cs.describe(LedoitWolf().fit(own), own) for own in rows.values()])
    masked = cs.federated.requests.exchange.finish(start, masked_rounds("moments4", start, rows, 1))
    pooled = LedoitWolf().fit(np.vstack(list(rows.values())))
    assert_allclose(masked.model.covariance_, pooled.covariance_, rtol=1e-10)
    assert masked.verdict.code == "exact"


def test_heads_are_summed_with_their_noise(tmp_path):
    paths = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        features = rng.normal(size=(200, 4))
        features /= np.linalg.norm(features, axis=1, keepdims=True)
        noise = GaussianMechanism(epsilon=5.0)
        head = cs.learners.Head().fit(features, rng.integers(2, size=200), classes=2, noise=noise, rng=seed)
        cs.save(head, tmp_path / f"{seed}.safetensors")
        paths.append(tmp_path / f"{seed}.safetensors")
    result = masked_sum(StatisticsSum(SafetensorsFile(paths[0])), [[SafetensorsFile(path)] for path in paths])
    expected = dict(cs.fuse(paths).statistics.tensors())
    for tensor, values in result.model.statistics.tensors():
        assert_allclose(values, expected[tensor], rtol=1e-12, atol=1e-12 * np.abs(expected[tensor]).max(initial=1e-300))
    assert result.model.verdict.code == "private"


def test_kinds_whose_answers_are_no_sums_are_refused():
    fusion, _ = network_sites.networks()
    with pytest.raises(UnsupportedError, match="answers to it are not plain sums"):
        RequestSum(request("head", fusion))


def test_the_answer_of_all_sites_is_checked_as_that_of_one():
    """A sum that no rows have is refused: that is all that a server can check under masks."""
    message = request("em", test_em.fused(), rounds=1)
    summand = RequestSum(message)
    words = [summand.words(MaskedSiteRows(rows, 0.0), 4, BITS) for rows in test_em.DATA.values()]
    words[0] = fixed_point.add(words[0], fixed_point.encode(np.eye(1, summand.length, 0)[0] * 50.0, 4))
    with pytest.raises(InputError, match=r"its counts sum to .*, and it states 600 rows"):
        summand.result(fixed_point.total(words), ("a",), {}, BITS)
    whole = answer(message, np.vstack(list(test_em.DATA.values())), min_count=0.0)
    assert reduce(message, {"pooled": replace(whole)}).objective > -np.inf
    assert json.dumps(summand.content)
