"""Log densities of sites at common points make fused draws those of the full posterior, whatever their shapes."""

import threading

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats

import consilience as cs
from consilience.cli.commands import cli
from consilience.draws.importance import Proposal, fit_generalised_pareto, pareto_smoothed
from consilience.errors import InputError, OptionError, UnsupportedError
from consilience.federated.requests.base import StandingAnswer
from tests.federated.request_kinds_zoo import poisson_density, subposteriors

MONTE_CARLO = 0.1
"""Distance of means and of deviations, in standard deviations: some three standard errors of 2,000 draws."""


def assert_is_gamma(values, shape, rate):
    law = stats.gamma(shape, scale=1 / rate)
    assert abs(values.mean() - law.mean()) < MONTE_CARLO * law.std()
    assert abs(values.std() / law.std() - 1) < MONTE_CARLO
    assert stats.kstest(values.ravel(), law.cdf).statistic < 0.05


def full(data):
    """Return shape and rate of the posterior of all counts."""
    rows = np.concatenate(list(data.values()))
    return rows.sum() + 2.0, len(rows) + 1.0


def test_skewed_subposteriors_become_the_full_posterior():
    fusion, data = subposteriors()
    ended = cs.federated.exchange("density", fusion, data, rounds=3, module=poisson_density)
    assert_is_gamma(ended.draws.variables["rate"], *full(data))
    assert ended.draws.shape == fusion.draws.shape
    assert ended.verdict.code == "weighted"
    assert ended.verdict.harmless is True
    assert "up to Monte Carlo error the posterior of all data" in ended.verdict.text
    assert ended.details["weighted"]["sites"] == ["a", "b", "c"]
    assert set(ended.model) == {"rate"}


def three_rates(n_sites=8, rows=3):
    rng = np.random.default_rng(3)
    data = {f"site {j}": rng.poisson([0.7, 2.0, 5.0], size=(rows, 3)).astype(float) for j in range(n_sites)}
    return rng, data


@pytest.mark.parametrize(
    "statement", ["shared", *(pytest.param(name, marks=pytest.mark.slow) for name in ("whole", "flat"))]
)
def test_it_is_exact_for_every_statement_of_the_prior(statement):
    rng, data = three_rates()
    power = {"whole": 1.0, "shared": 1 / len(data), "flat": 0.0}[statement]
    prior = {"whole": {"rate": ("gamma", 2, 1)}, "shared": power, "flat": "flat"}[statement]
    sent = {
        site: cs.Draws(
            {"rate": rng.gamma(rows.sum(0) + power + 1, 1 / (len(rows) + power), size=(4, 500, 3))},
            prior=prior,
            constraints={"rate": "positive"},
        )
        for site, rows in data.items()
    }

    def density(draws, rows):
        rate = draws["rate"]
        return ((rows.sum(0) + power) * np.log(rate) - (len(rows) + power) * rate).sum(axis=1)

    fusion = cs.fuse(sent, "consensus_mc")
    ended = cs.federated.exchange("density", fusion, data, rounds=3, module=density, min_count=0)
    rows = np.concatenate(list(data.values()))
    whole = 0.0 if statement == "flat" else 1.0
    for place in range(3):
        assert_is_gamma(ended.draws.variables["rate"][..., place], rows[:, place].sum() + whole + 1, len(rows) + whole)


def test_all_constraints_have_their_jacobian_once():
    rng = np.random.default_rng(1)
    counts = {site: rng.multinomial(9, [0.2, 0.5, 0.3]).astype(float) for site in "ab"}
    sent = {
        site: cs.Draws(
            {"w": rng.dirichlet(own + 1, size=(4, 500)), "p": rng.beta(own[0] + 1, own[1] + 1, size=(4, 500))},
            prior="flat",
            constraints={"w": "simplex", "p": "unit_interval"},
        )
        for site, own in counts.items()
    }

    def density(draws, own):
        inside = own[0] * np.log(draws["p"]) + own[1] * np.log1p(-draws["p"])
        return (own * np.log(draws["w"])).sum(axis=1) + inside

    ended = cs.federated.exchange("density", cs.fuse(sent), counts, rounds=3, module=density, min_count=0)
    total = sum(counts.values()) + 1
    beta = stats.beta(counts["a"][0] + counts["b"][0] + 1, counts["a"][1] + counts["b"][1] + 1)
    assert stats.kstest(ended.draws.variables["p"].ravel(), beta.cdf).statistic < 0.05
    for place in range(3):
        law = stats.beta(total[place], total.sum() - total[place])
        assert stats.kstest(ended.draws.variables["w"][..., place].ravel(), law.cdf).statistic < 0.05


def test_two_modes_are_both_found():
    rng = np.random.default_rng(0)
    data = {site: rng.normal(1.5, 1.0, size=30) for site in "abc"}
    grid = np.linspace(-3, 3, 4001)

    def density(draws, rows):
        return -0.5 * ((rows - draws["theta"][:, None] ** 2) ** 2).sum(axis=1)

    def sample(rows, size):
        weights = np.exp(density({"theta": grid}, rows) - density({"theta": grid}, rows).max())
        return rng.choice(grid, p=weights / weights.sum(), size=size)

    sent = {site: cs.Draws({"theta": sample(rows, (4, 500))}, prior="flat") for site, rows in data.items()}
    fusion = cs.fuse(sent, "semiparametric", parametric=False)
    ended = cs.federated.exchange("density", fusion, data, rounds=4, module=density)
    theta = ended.draws.variables["theta"].ravel()
    expected = sample(np.concatenate(list(data.values())), 4000)
    assert abs(np.mean(theta > 0) - 0.5) < 0.1
    assert stats.ks_2samp(np.abs(theta), np.abs(expected)).statistic < 0.06
    assert ended.verdict.harmless is None
    assert "points may have missed one" in ended.verdict.text


def test_components_of_a_mixture_keep_their_numbers():
    rng = np.random.default_rng(0)
    rows = {site: rng.normal(np.where(rng.random(60) < 0.5, -2.0, 2.0)) for site in "ab"}

    def density(draws, own):
        mu = draws["mu"][:, None, :]
        return np.logaddexp.reduce(-0.5 * (own[:, None] - mu) ** 2, axis=2).sum(axis=1)

    sent = {}
    for site, own in rows.items():
        means = np.array([own[own < 0].mean(), own[own > 0].mean()]) + 0.19 * rng.normal(size=(4, 500, 2))
        sent[site] = cs.Draws({"mu": rng.permuted(means, axis=2)}, prior="flat", exchangeable=("mu",))
    ended = cs.federated.exchange("density", cs.fuse(sent), rows, rounds=3, module=density)
    mu = ended.draws.variables["mu"][0]
    assert len(np.unique(np.argsort(mu, axis=1), axis=0)) == 1
    assert ended.details["weighted"]["pareto_k"] < 0.7


# -- sites that do not answer


def test_a_site_that_never_answers_is_the_gaussian_of_its_draws_and_is_named():
    fusion, data = subposteriors()
    request = cs.federated.request("density", fusion, rounds=2)
    rounds = []
    while request is not None:
        answers = {s: cs.federated.answer(request, data[s], module=poisson_density) for s in "ab"}
        standing = rounds[-1].reduction.standing if rounds else {}
        rounds.append(cs.federated.reduce(request, answers, standing))
        request = rounds[-1].next_request
    ended = cs.federated.finish(fusion, rounds)
    assert ended.details["weighted"]["standing_in"] == ["c"]
    assert ended.verdict.harmless is None
    assert "c did not answer, and in the place of it the Gaussian of its draws stands" in ended.verdict.text
    shape, rate = full(data)
    mean = ended.draws.variables["rate"].mean()
    assert abs(mean - shape / rate) < 0.5 * np.sqrt(shape) / rate


def test_a_site_that_answers_once_counts_and_a_late_answer_as_if_in_time():
    fusion, data = subposteriors()
    first = cs.federated.request("density", fusion, rounds=3)
    answers = {s: cs.federated.answer(first, rows, module=poisson_density) for s, rows in data.items()}
    whole = cs.federated.reduce(first, answers)
    silent = cs.federated.reduce(
        whole.next_request,
        {s: cs.federated.answer(whole.next_request, data[s], module=poisson_density) for s in "ab"},
        whole.reduction.standing,
    )
    assert set(silent.reduction.carried) == {"c"}
    ended = cs.federated.finish(fusion, [whole, silent])
    assert ended.details["weighted"]["points"] == 2000  # those of the first request, which all answered
    assert ended.details["weighted"]["standing_in"] == []
    early = cs.federated.reduce(first, {s: answers[s] for s in "ab"})
    following = {s: cs.federated.answer(early.next_request, data[s], module=poisson_density) for s in "abc"}
    late = cs.federated.reduce(
        early.next_request,
        {s: following[s] for s in "ab"},
        early.reduction.standing,
        {"c": StandingAnswer(first, answers["c"])},
    )
    assert "came late" in late.reduction.carried["c"]
    ended = cs.federated.finish(fusion, [early, late])
    assert ended.details["weighted"]["sites"] == ["a", "b", "c"]
    assert_is_gamma(ended.draws.variables["rate"], *full(data))


def test_over_a_folder_and_the_command(tmp_path, monkeypatch):
    fusion, data = subposteriors()
    place = tmp_path / "round"
    for site in fusion.inputs:
        cs.save(site.value, tmp_path / f"{site.name}.safetensors")
        cs.federated.send_folder(tmp_path / f"{site.name}.safetensors", place, site.name)
        np.save(tmp_path / f"{site.name}.npy", data[site.name])
    (tmp_path / "own_density.py").write_text(
        "import numpy as np\n\n\ndef log_density(draws, rows):\n    rate = draws['rate']\n"
        "    return (rows.sum() + 1 / 3) * np.log(rate) - (len(rows) + 1 / 3) * rate\n"
        "\n\ndef of_three(draws, rows):\n    return np.zeros(3)\n"
    )
    monkeypatch.chdir(tmp_path)
    results = {}

    def follow(site):
        for name, function in (("of three", "own_density:of_three"), (site, "own_density:log_density")):
            options = ["--site", site, "--data", f"{site}.npy", "--density", function, "--follow"]
            results[name] = CliRunner().invoke(cli, ["round", "answer", str(place), *options])

    sites = [threading.Thread(target=follow, args=(site,), daemon=True) for site in "a"]
    options = {"module": poisson_density, "follow": True}
    sites += [
        threading.Thread(target=cs.federated.answer_folder, args=(place, site, data[site]), kwargs=options, daemon=True)
        for site in "bc"
    ]
    for one in sites:
        one.start()
    output = tmp_path / "fused.safetensors"
    result = cs.federated.serve_folder(place, output, sites=list("abc"), then="density:2", deadline=120, poll=0.05)
    for one in sites:
        one.join(120)
    assert results["a"].exit_code == 0, results["a"].output
    assert "--density own_density:of_three: gave log densities of shape (3,)" in str(results["of three"].exception)
    assert result.fusion.verdict.code == "weighted"
    assert_is_gamma(cs.load(output).variables["rate"], *full(data))
    expected = cs.federated.exchange("density", cs.fuse({s.name: s.value for s in fusion.inputs}), data, rounds=2,
                                     module=poisson_density)  # fmt: skip
    np.testing.assert_allclose(cs.load(output).variables["rate"], expected.draws.variables["rate"])
    refused = CliRunner().invoke(
        cli, ["round", "answer", str(place), "--site", "a", "--data", "a.npy", "--module", "x:y", "--density", "x:y"]
    )
    assert "--module is for requests about other models, not for requests about draws" in refused.output


def test_inspection_says_what_an_answer_tells(tmp_path):
    fusion, data = subposteriors()
    request = cs.federated.request("density", fusion)
    answer = cs.federated.answer(request, data["a"], module=poisson_density)
    cs.federated.write_message(tmp_path / "answer", answer)
    shown = CliRunner().invoke(cli, ["inspect", str(tmp_path / "answer")]).output
    assert "of all rows together at each point" in " ".join(shown.split())


# -- what is refused


@pytest.mark.parametrize(
    ("data", "module", "error", "text"),
    [
        ([1.0, 2.0, 3.0, 4.0, 5.0], None, OptionError, "give a function of"),
        ([1.0, 2.0, 3.0, 4.0, 5.0], 3, OptionError, "is a int"),
        ([1.0], poisson_density, InputError, "has 1 rows, and log densities of fewer than 5"),
        ([1.0] * 5, lambda draws, rows: draws["tau"], InputError, "failed on a dictionary.*KeyError"),
        ([1.0] * 5, lambda draws, rows: draws["rate"] * np.nan, InputError, "gave no finite log density"),
        (
            [1.0] * 5,
            lambda draws, rows: np.where(draws["rate"] > np.median(draws["rate"]), np.nan, 0.0),
            InputError,
            "gave NaN at",
        ),
        ([1.0] * 5, lambda draws, rows: np.full(2000, np.inf), InputError, r"a log density of \+inf"),
        ([1.0] * 5, lambda draws, rows: np.zeros((2000, 5)), InputError, "summed over rows"),
        (7, poisson_density, InputError, "is a int without rows"),
    ],
)
def test_a_site_says_why_it_cannot_answer(data, module, error, text):
    request = cs.federated.request("density", subposteriors()[0])
    with pytest.raises(error, match=text):
        cs.federated.answer(request, data, module=module)


def test_draws_of_which_there_is_no_product_are_refused():
    fusion, data = subposteriors()
    sites = {one.name: one.value for one in fusion.inputs}
    with pytest.raises(UnsupportedError, match="combined by hierarchical"):
        cs.federated.request("density", cs.fuse(sites, "hierarchical"))
    with pytest.raises(OptionError, match="is needed of a; give a function"):
        cs.federated.exchange("density", fusion, data)
    request = cs.federated.request("density", fusion)
    answer = cs.federated.answer(request, data["a"], module=poisson_density)
    with pytest.raises(InputError, match="none of the draws that were fused are called so"):
        cs.federated.reduce(request, {"zoe": answer})
    nowhere = cs.federated.answer(
        request, data["a"], module=lambda draws, rows: np.where(draws["rate"] == draws["rate"][0], 0.0, -np.inf)
    )
    with pytest.raises(InputError, match="do not vary in all 1 parameters"):
        cs.federated.reduce(request, {"a": nowhere})


def test_log_densities_of_another_model_leave_uneven_weights_and_the_verdict_says_so():
    fusion, data = subposteriors()
    ended = cs.federated.exchange(
        "density", fusion, data, module=lambda draws, rows: -((draws["rate"] - 40.0) ** 2), min_count=0
    )
    assert ended.verdict.harmless is None
    assert "weights are too uneven to be trusted" in ended.verdict.text
    assert "more requests" in ended.verdict.remedy


# -- the mathematics


def test_the_pareto_fit_and_smoothing_are_those_of_arviz():
    arviz = pytest.importorskip("arviz")
    rng = np.random.default_rng(0)
    for shape in (0.2, 0.6, 1.1):
        logs = np.log(stats.genpareto(shape).rvs(4000, random_state=rng))
        expected, k = arviz.psislw(logs.copy())
        found, own = pareto_smoothed(logs - logs.max())
        assert own == pytest.approx(float(k), abs=1e-6)
        np.testing.assert_allclose(found - np.logaddexp.reduce(found), expected, atol=1e-8)
    shape, scale = fit_generalised_pareto(np.sort(stats.genpareto(0.4, scale=3.0).rvs(5000, random_state=rng)))
    assert shape == pytest.approx(0.4, abs=0.07)
    assert scale == pytest.approx(3.0, rel=0.1)


def test_a_proposal_is_a_density_and_is_drawn_from():
    rng = np.random.default_rng(0)
    proposal = Proposal(np.array([1.0]), np.array([[2.0]]))
    grid = np.linspace(-300, 300, 600_001)
    assert np.trapezoid(np.exp(proposal.log_density(grid[:, None])), grid) == pytest.approx(1.0, abs=1e-4)
    draws = proposal.draw(20_000, rng)[:, 0]
    mixture = 0.5 * stats.norm(1, 2).cdf(draws) + 0.5 * stats.t(5, 1, 2).cdf(draws)
    assert stats.kstest(mixture, "uniform").pvalue > 1e-3
