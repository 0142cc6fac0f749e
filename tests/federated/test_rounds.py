"""Laws of a round without any transport: what comes out depends on what was sent, and on nothing else."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import consilience as cs
from consilience.catalogue import said_once
from consilience.errors import InputError, OptionError
from consilience.federated import Announcement, Contribution, RoundError, RoundPlan, RoundReport, run_round
from consilience.federated.check import mismatches
from consilience.federated.contribution import MAX_ATTEMPTS, parse_announcement, select_announcements
from consilience.federated.convergence import change_between
from consilience.federated.plan import is_name
from consilience.federated.round import _leave_out_unfusable, refuse_options
from consilience.files.limits import Limits
from consilience.networks.files import write_network
from tests.federated.rounds import contribution, mixture, write_sites
from tests.networks.gaussian.nets import network, random_layers

SITES = ("a", "b", "c", "d")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_sites(tmp_path_factory.mktemp("sites"), SITES)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A file of another family dimension, and one that is none."""
    folder = tmp_path_factory.mktemp("others")
    cs.save(mixture(9, dim=1), folder / "narrow", min_count=0)
    (folder / "broken").write_bytes((Path(folder) / "narrow").read_bytes()[:-7])
    (folder / "pickle").write_bytes(b"\x80\x04\x95" + bytes(4) + b"\x01" + bytes(64))
    return folder


def standing_of(given):
    """Return which contributions stand, as something that can be compared."""
    found = select_announcements(one.announcement for one in given)
    return tuple(sorted(found.chosen.items())), found.ignored, tuple(sorted(found.conflicts.items()))


@pytest.fixture
def outcome(tmp_path):
    """Return the bytes of the fused file and of the report of a round."""

    def run(plan, given):
        result = run_round(plan, given)
        result.fusion.save(tmp_path / "fused")
        return (tmp_path / "fused").read_bytes(), result.report.to_bytes()

    return run


def test_every_order_of_arrival_gives_the_same_bytes(outcome, files):
    plan = RoundPlan(SITES)
    given = [contribution(site, path) for site, path in files.items()]
    orders = list(itertools.permutations(given))[::8]
    assert len({outcome(plan, order) for order in orders}) == 1


def test_duplicates_and_retries_change_nothing(outcome, files):
    plan = RoundPlan(SITES, "kmeans")
    given = [contribution(site, path) for site, path in files.items()]
    assert outcome(plan, given) == outcome(plan, [*given, *reversed(given)])


def test_the_fused_file_is_that_of_fusing_files_called_as_their_sites(outcome, files, monkeypatch, tmp_path):
    plan = RoundPlan(SITES, "kmeans")
    fused, _ = outcome(plan, [contribution(site, path) for site, path in files.items()])
    monkeypatch.chdir(files["a"].parent)
    cs.fuse(list(SITES), "kmeans").save(target := tmp_path / "directly")
    assert fused == target.read_bytes()


def test_provenance_and_report_name_sites_and_no_folder(outcome, files):
    fused, report = outcome(RoundPlan(SITES, "kmeans"), [contribution(site, path) for site, path in files.items()])
    result = run_round(RoundPlan(SITES, "kmeans"), [contribution(site, path) for site, path in files.items()])
    assert sorted(one["name"] for one in result.fusion.provenance["inputs"]) == list(SITES)
    assert sorted(one.name for one in result.fusion.inputs) == list(SITES)
    assert b"consilience-round" not in fused.replace(b"consilience-posterior", b"")
    assert str(files["a"].parent).encode() not in fused + report


def test_the_highest_attempt_stands_in_any_order(outcome, files):
    plan = RoundPlan(("a", "b", "c"), "kmeans")
    given = [
        contribution("a", files["d"], attempt=1),
        contribution("a", files["a"], attempt=2),
        contribution("b", files["b"]),
        contribution("c", files["c"]),
    ]
    assert len({standing_of(order) for order in itertools.permutations(given)}) == 1
    assert outcome(plan, given) == outcome(plan, given[::-1])
    report = run_round(plan, given).report
    assert [(one.site, one.attempt) for one in report.took_part] == [("a", 2), ("b", 1), ("c", 1)]
    assert [(one.site, one.attempt) for one in report.ignored] == [("a", 1)]


def test_two_contents_under_one_attempt_leave_a_site_out_in_any_order(outcome, files):
    plan = RoundPlan(SITES, "kmeans")
    given = [
        *(contribution(site, files[site]) for site in "abc"),
        contribution("d", files["d"]),
        contribution("d", files["a"]),
    ]
    assert len({standing_of(order) for order in itertools.permutations(given)}) == 1
    assert outcome(plan, given) == outcome(plan, given[::-1])
    report = run_round(plan, given).report
    assert report.sites == ("a", "b", "c")
    assert "2 different contents as attempt 1" in report.left_out[0].reasons[0]


def test_bad_contributions_are_left_out_with_their_reason_and_stop_nobody(files, other, tmp_path):
    plan = RoundPlan(("a", "b", "c", "narrow", "broken", "pickle", "empty", "gone"), "kmeans", quorum=3)
    (empty := tmp_path / "empty").write_bytes(b"")
    given = [
        *(contribution(site, files[site]) for site in "abc"),
        *(contribution(name, other / name) for name in ("narrow", "broken", "pickle")),
        contribution("empty", empty),
    ]
    report = run_round(plan, given).report
    assert report.sites == ("a", "b", "c")
    assert report.missing == ("gone",)
    why = {one.site: " ".join(one.reasons) for one in report.left_out}
    assert "family is not that of 3 of 4" in why["narrow"]
    assert "truncated or not a safetensors file" in why["broken"]
    assert "pickle" in why["pickle"]
    assert "empty" in why["empty"]
    assert not any(str(tmp_path) in text or str(other) in text for text in why.values())


def test_a_file_that_is_not_what_was_announced_is_left_out(files):
    given = [contribution(site, files[site]) for site in "abc"]
    given.append(Contribution(Announcement("d", 1, 1, "0" * 64), files["d"]))
    report = run_round(RoundPlan(SITES, "kmeans"), given).report
    assert report.left_out[0].reasons == ("its content is not what was announced; send it again",)


def test_limits_are_kept_before_a_file_is_read(files):
    size = max(path.stat().st_size for path in files.values())
    with pytest.raises(RoundError) as caught:
        run_round(
            RoundPlan(SITES, "kmeans", limits=Limits(file_bytes=size - 1)),
            [contribution(site, path) for site, path in files.items()],
        )
    assert all("more than the" in one.reasons[0] for one in caught.value.report.left_out)
    report = run_round(
        RoundPlan(SITES, "kmeans", limits=Limits(file_bytes=size)), [contribution(s, p) for s, p in files.items()]
    )
    assert report.report.sites == SITES


def test_values_that_are_no_numbers_are_left_out(tmp_path):
    given = []
    for seed, site in enumerate("abc"):
        arrays = {"weight": np.random.default_rng(seed).normal(size=(4, 3)), "bias": np.zeros(4)}
        if site == "c":
            arrays["bias"][0] = np.nan
        write_network(tmp_path / site, arrays)
        given.append(contribution(site, tmp_path / site))
    report = run_round(RoundPlan(("a", "b", "c"), "fisher", {"structure": "isotropic"}), given).report
    assert report.sites == ("a", "b")
    assert report.left_out[0].reasons == ("array bias has values that are not finite [E-NUMBER]",)


def test_sites_that_share_a_fault_are_each_left_out_by_name(monkeypatch):
    def shared(_plan, _checked, sites):
        faults = [cs.Problem(site, "is data", "fit a model", "E-DATA") for site in sites if site in "bd"]
        return said_once(faults)

    monkeypatch.setattr("consilience.federated.round._named_problems", shared)
    reasons = {}
    good, problems = _leave_out_unfusable(RoundPlan(tuple("abcde")), {}, list("abcde"), reasons)
    assert (good, problems) == (["a", "c", "e"], [])
    assert reasons == {site: ["is data; fit a model [E-DATA]"] for site in "bd"}


def test_networks_come_with_the_information_of_their_own(tmp_path):
    inputs = torch.randn(120, 3, generator=torch.Generator().manual_seed(0))
    for seed, site in enumerate("abcd"):
        torch.manual_seed(seed)
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
        cs.save(net, tmp_path / site)
        cs.save(cs.fisher(net, inputs), tmp_path / f"{site}.fisher")
    given = [contribution(site, tmp_path / site, fisher=tmp_path / f"{site}.fisher") for site in "abc"]
    given.append(contribution("d", tmp_path / "d", fisher=tmp_path / "a.fisher"))
    result = run_round(RoundPlan(tuple("abcd"), "fisher"), given)
    assert result.report.method == "fisher"
    assert result.report.sites == ("a", "b", "c")
    assert "other parameters" in result.report.left_out[0].reasons[0]
    assert all(one.fisher_sha256 for one in result.report.took_part)


def test_networks_come_with_their_descriptions(tmp_path):
    rng = np.random.default_rng(0)
    for seed, site in enumerate("abcde"):
        torch.manual_seed(seed)
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
        inputs = rng.normal(size=(120, 3)) * (1000 if site == "c" else 1)
        cs.save(net, tmp_path / f"{site}.safetensors", data=(inputs, np.arange(120) % 2))
    paths = {site: tmp_path / f"{site}.safetensors" for site in "abcde"}
    beside = {site: tmp_path / f"{site}.description.safetensors" for site in "abcde"}
    given = [contribution(site, paths[site], fisher=beside[site]) for site in "abce"]
    given.append(contribution("d", paths["d"], fisher=beside["a"]))
    result = run_round(RoundPlan(tuple("abcde"), "average"), given)
    assert result.report.sites == ("a", "b", "e")
    reasons = {one.site: one.reasons[0] for one in result.report.left_out}
    assert "times the others'" in reasons["c"]
    assert "describes no network here" in reasons["d"]


def test_bayesian_networks_are_fused_and_nothing_else_among_them(files, tmp_path):
    paths = {"d": files["d"]}
    for seed, site in enumerate("abc"):
        layers = random_layers((3, 4, 2), np.random.default_rng(seed))
        cs.save(network(layers), tmp_path / site)
        paths[site] = tmp_path / site
    result = run_round(RoundPlan(SITES, "average"), [contribution(site, path) for site, path in paths.items()])
    assert result.report.sites == ("a", "b", "c")
    assert result.report.left_out[0].reasons[0].startswith("its kind is not that of 3 of 4 contributions")
    result.fusion.save(tmp_path / "fused")
    assert set(cs.load(tmp_path / "fused").means) == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_fisher_information_alone_is_no_contribution(files, tmp_path):
    torch.manual_seed(0)
    net = torch.nn.Linear(2, 2).eval()
    cs.save(cs.fisher(net, torch.randn(120, 2)), tmp_path / "f")
    given = [*(contribution(site, files[site]) for site in "abc"), contribution("d", tmp_path / "f")]
    assert "is Fisher information" in run_round(RoundPlan(SITES, "kmeans"), given).report.left_out[0].reasons[0]


def test_below_the_quorum_nothing_is_fused_and_the_report_says_why(files):
    with pytest.raises(RoundError, match="2 good contributions, and the round needs 3") as caught:
        run_round(RoundPlan(SITES, "kmeans"), [contribution(site, files[site]) for site in "ab"])
    report = caught.value.report
    assert (report.took_part, report.fused, report.missing) == ((), None, ("c", "d"))
    assert json.loads(report.to_bytes())["status"] == "failed"


def test_strangers_are_named_and_take_no_part(files):
    given = [*(contribution(site, files[site]) for site in "abc"), contribution("mallory", files["d"])]
    report = run_round(RoundPlan(("a", "b", "c"), "kmeans"), given, unknown=["eve"]).report
    assert (report.sites, report.unknown) == (("a", "b", "c"), ("eve", "mallory"))


def test_the_same_file_from_two_sites_counts_once(files):
    given = [*(contribution(site, files[site]) for site in "abc"), contribution("d", files["a"])]
    report = run_round(RoundPlan(SITES, "kmeans"), given).report
    assert report.sites == ("a", "b", "c")
    assert "the same file as a" in report.left_out[0].reasons[0]


def test_an_expected_file_decides_against_the_majority(files, other, tmp_path):
    cs.save(mixture(8, dim=1), tmp_path / "second", min_count=0)
    cs.save(mixture(7, dim=1), tmp_path / "third", min_count=0)
    given = [
        contribution("a", files["a"]),
        contribution("b", files["b"]),
        contribution("c", other / "narrow"),
        contribution("d", tmp_path / "second"),
        contribution("e", tmp_path / "third"),
    ]
    sites = tuple("abcde")
    assert run_round(RoundPlan(sites, "kmeans"), given).report.sites == ("c", "d", "e")
    report = run_round(RoundPlan(sites, "kmeans", quorum=2, expect=files["c"]), given).report
    assert report.sites == ("a", "b")


def test_without_a_majority_nobody_is_preferred(files, other, tmp_path):
    cs.save(mixture(8, dim=1), tmp_path / "second", min_count=0)
    given = [
        contribution("a", files["a"]),
        contribution("b", files["b"]),
        contribution("c", other / "narrow"),
        contribution("d", tmp_path / "second"),
    ]
    with pytest.raises(RoundError, match=r"has \d columns?, expected \d"):
        run_round(RoundPlan(SITES, "kmeans", quorum=2), given)


def test_a_minority_that_states_other_columns_is_left_out_whoever_comes_first():
    found = {"a": {"kind": "x", "units": "cm"}, "b": {"kind": "x", "units": "m"}, "c": {"kind": "x", "units": "m"}}
    found["d"] = {"kind": "x", "units": None}
    assert set(mismatches(found, None)) == {"a"}
    assert set(mismatches(found, {"kind": "x", "units": "cm"})) == {"b", "c"}
    assert mismatches(found, {"kind": "x", "units": None}) == {}


def test_weights_belong_to_sites(outcome, files, monkeypatch, tmp_path):
    weights = {"a": 3.0, "b": 1.0, "c": 2.0, "d": 0.5}
    given = [contribution(site, path) for site, path in files.items()]
    fused, _ = outcome(RoundPlan(SITES, "kmeans", weights=weights), reversed(given))
    monkeypatch.chdir(files["a"].parent)
    cs.fuse(list(SITES), "kmeans", weights=[weights[site] for site in SITES]).save(target := tmp_path / "directly")
    assert fused == target.read_bytes()


def test_a_report_is_read_back_as_it_was(files, other):
    given = [*(contribution(site, files[site]) for site in "abc"), contribution("d", other / "broken")]
    report = run_round(RoundPlan(SITES, "kmeans"), given).report
    again = RoundReport.from_bytes(report.to_bytes())
    assert again == report
    assert again.to_bytes() == report.to_bytes()
    for text in (b"{}", b"[1]", b"nonsense", report.to_bytes().replace(b'"number": 1', b'"number": "x"')):
        with pytest.raises(InputError):
            RoundReport.from_bytes(text)


@pytest.mark.parametrize("name", ["../a", "a/b", "", ".", "..", "-a", "a..b", "a b", "a\n", "é", "a" * 65, ".a", "a."])
def test_names_that_lead_elsewhere_are_no_names(name):
    assert not is_name(name)
    with pytest.raises(OptionError):
        RoundPlan(("b", name))


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"sites": ("a", "A")}, "capital"),
        ({"sites": ("a",)}, "at least two"),
        ({"sites": "ab"}, "expected names"),
        ({"quorum": 5}, "quorum"),
        ({"quorum": 1}, "quorum"),
        ({"deadline": 0}, "deadline"),
        ({"deadline": float("inf")}, "deadline"),
        ({"weights": {"a": 1.0}}, "weights"),
        ({"name": "../x"}, "name"),
    ],
)
def test_plans_that_make_no_sense_are_refused(told, words):
    with pytest.raises(OptionError, match=words):
        RoundPlan(**{"sites": ("a", "b", "c"), **told})


@pytest.mark.parametrize("method", [None, "kl", "wb", "fisher", "w2"])
def test_methods_of_all_kinds_of_models_are_known_beforehand(method):
    refuse_options(RoundPlan(("a", "b"), method=method))


@pytest.mark.parametrize(
    "told",
    [
        {"method": "nope"},
        {"method": "kl", "options": {"nope": 1}},
        {"method": "ensemble"},
        {"options": {"nope": 1}},
        {"method": "rebasin", "options": {"robust": "trimm"}},
        {"method": "fisher", "options": {"robust": "trim"}},
        {"method": "concatenate", "options": {"robust": "median"}},
    ],
)
def test_what_no_method_takes_is_refused_before_anyone_is_waited_for(told):
    with pytest.raises(OptionError):
        refuse_options(RoundPlan(("a", "b"), **told))


def test_an_announcement_is_its_name():
    for one in (Announcement("a", 1, 2, "0" * 64), Announcement("a", 30, 1, "a" * 64, "b" * 64)):
        assert parse_announcement("a", one.name) == one
    for name in (
        "1-1",
        f"0-1-{'0' * 64}",
        f"1-1-{'0' * 63}",
        f"1-1-{'G' * 64}",
        f"1-01-{'0' * 64}",
        "x" * 1000,
        "../1",
    ):
        assert parse_announcement("a", name) is None


def test_too_many_attempts_leave_a_site_out():
    many = [Announcement("a", 1, attempt, f"{attempt:064x}") for attempt in range(1, MAX_ATTEMPTS + 2)]
    assert select_announcements(many[:-1]).chosen["a"] == many[-2]
    assert "more than" in select_announcements(many).conflicts["a"]


def test_the_change_between_rounds_does_not_depend_on_the_order_of_components(files, tmp_path):
    posterior = cs.load(files["a"])
    order = np.array([2, 0, 1])
    turned = cs.Posterior(posterior.family, posterior.natural[order], prior=posterior.prior, source=posterior.source)
    cs.save(turned, tmp_path / "turned")
    found = change_between(files["a"], tmp_path / "turned", float("nan"))
    assert found == {"objective": None, "change": 0.0, "components": 3, "divergence": pytest.approx(0.0, abs=1e-9)}
    moved = change_between(files["a"], files["b"], 1.0)
    assert moved["change"] > 0.0
    assert moved["divergence"] > 0.0
    assert change_between(None, files["a"], 1.0)["change"] is None


def _of_size(path, components, **columns):
    """Write a mixture's file with so many components of its own family."""
    one = cs.describe(mixture(7))
    rows = np.resize(np.arange(one.n_components), components)
    taken = one.take(rows)
    natural = taken.natural * (1.0 + 1e-3 * np.arange(components)[:, None])
    counts = taken.counts + (taken.counts + one.family.standard(one.prior[None])[1]) * 1e-3 * np.arange(components)
    known = {"prior": one.prior, "counts": counts, "weights": taken.weights, **columns}
    made = cs.Posterior(one.family, natural, attached=one.attached, source=one.source, **known)
    cs.save(made, path)
    return path


def test_a_contribution_of_far_more_components_than_most_is_left_out(files, tmp_path):
    huge = contribution("d", _of_size(tmp_path / "huge", 300))
    result = run_round(RoundPlan(SITES), [*(contribution(site, files[site]) for site in SITES[:3]), huge])
    assert result.report.sites == SITES[:3]
    (left,) = result.report.left_out
    assert (left.site, left.reasons) == (
        "d",
        ("has 300 components, and at most 50 are admitted given those of the other sites",),
    )


@pytest.mark.parametrize("column", ["counts", "weights", "prior"])
def test_a_site_that_does_not_state_what_others_do_is_left_out(files, tmp_path, column):
    silent = contribution("d", _of_size(tmp_path / "silent", 3, **{column: None}))
    result = run_round(RoundPlan(SITES), [*(contribution(site, files[site]) for site in SITES[:3]), silent])
    assert result.report.sites == SITES[:3]
    assert getattr(result.fusion.posterior, column) is not None


def test_good_contributions_of_a_round_without_quorum_are_in_its_report(files):
    with pytest.raises(RoundError) as ended:
        run_round(RoundPlan(SITES, quorum=4), [contribution(site, files[site]) for site in SITES[:2]])
    left = {one.site: one.reasons for one in ended.value.report.left_out}
    assert left == dict.fromkeys(SITES[:2], ("is good, but nothing was fused",))


def test_a_network_of_other_widths_is_left_out_where_widths_must_agree():
    found = {site: {"kind": "network", "widths": "16"} for site in SITES[:3]} | {
        "d": {"kind": "network", "widths": "17"}
    }
    assert mismatches(found, None) == {}
    assert list(mismatches(found, None, equal_widths=True)) == ["d"]
