"""What an operator of a round of networks sees: what was chosen, whose network it is, who claims how much."""

import json

import pytest
import torch

import consilience as cs
from consilience.core.kind import SiteFacts
from consilience.errors import OptionError
from consilience.federated import RoundError
from consilience.federated.round import bounded_claims, claim_notes
from tests.cli.running import command
from tests.federated.network_sites import SITES, make, trained

send, serve = cs.federated.send_folder, cs.federated.serve_folder
OPEN = ["round", "open"]


@pytest.fixture(scope="module")
def sent(tmp_path_factory):
    """Return a folder with the described networks of three sites; c claims ten times its observations."""
    folder = tmp_path_factory.mktemp("sites")
    for number, (site, (x, y)) in enumerate(SITES.items()):
        described = cs.describe(
            trained(number, x, y),
            (torch.from_numpy(x), torch.from_numpy(y)),
            classes=3,
            n_observations=10 * len(x) if site == "c" else None,
        )
        cs.save(described, folder / f"{site}.safetensors")
    return folder


@pytest.fixture
def place(sent, tmp_path):
    for site in SITES:
        fisher = sent / f"{site}.description.safetensors"
        send(sent / f"{site}.safetensors", tmp_path / "round", site, fisher=fisher)
    return tmp_path / "round"


def run(place, output, **options):
    return serve(place, output, sites=list(SITES), deadline=20.0, poll=0.05, **options)


def test_a_round_that_could_only_publish_one_sites_network_is_refused_as_soon_as_one_is_in(place, tmp_path, sent):
    with pytest.raises(OptionError, match="one site's own would be published as the fused one") as refused:
        run(place, tmp_path / "fused.safetensors")
    for remedy in ("then='choose'", "`method=`", "allow_single=True"):
        assert remedy in str(refused.value)
    assert not (tmp_path / "fused.safetensors").exists()
    with pytest.raises(OptionError, match="one site's own"):  # before anything is in, where the models are known
        run(tmp_path / "empty", tmp_path / "fused.safetensors", expect=sent / "a.safetensors")
    # The same copies serve another plan.
    report = run(place, tmp_path / "fused.safetensors", method="consensus").report
    assert (report.sites, report.single_site, report.chosen) == (("a", "b", "c"), None, None)


def test_the_command_ends_with_status_2_and_names_the_four_ways(place, tmp_path):
    arguments = [*OPEN, str(place), "--sites", "a,b,c", "-o", str(tmp_path / "f"), "--deadline", "20"]
    ended = command(*arguments)
    assert ended.code == 2
    for way in ("--module", "--then choose", "--method", "--allow-single"):
        assert way in ended.err


def test_a_sites_own_network_is_published_only_where_the_plan_said_so(place, tmp_path, sent):
    lines = []
    report = run(place, tmp_path / "fused.safetensors", allow_single=True, say=lines.append).report
    assert report.single_site == "c"
    assert report.chosen == "site:c"
    published = cs.load(tmp_path / "fused.safetensors").arrays
    own = cs.load(sent / "c.safetensors").arrays
    assert all(torch.equal(torch.as_tensor(published[name]), torch.as_tensor(own[name])) for name in own)
    for said in (lines, report.lines()):
        assert any("not fused: the model is that of site c, as it was sent" in line for line in said)
        assert any("verdict: " in line for line in said)
        assert any("c states 2,100 of 2,580 observations, more than all others together" in line for line in said)
        assert any("c counts as 750 observations, not the 2,100" in line for line in said)
    document = json.loads((tmp_path / "fused.round.json").read_bytes())
    assert document["single_site"] == "c"
    assert document["verdict"]
    assert json.loads((place / "server" / "plan.json").read_bytes())["allow_single"] is True


def test_a_site_reads_in_the_plan_that_its_own_network_may_be_published(place, tmp_path, sent):
    run(place, tmp_path / "fused.safetensors", allow_single=True)
    (tmp_path / "next" / "server").mkdir(parents=True)
    plan = (place / "server" / "plan.json").read_bytes()
    (tmp_path / "next" / "server" / "plan.json").write_bytes(plan)
    (told,) = send(sent / "a.safetensors", tmp_path / "next", "a").warnings
    assert "may publish one site's own model as it is" in str(told)


def test_a_default_that_finds_no_better_network_publishes_none(place, tmp_path, monkeypatch):
    from consilience.networks.choice.make_candidates import NetworkComparison

    monkeypatch.setattr(NetworkComparison, "_made", lambda comparison, candidates: iter(()))
    with pytest.raises(RoundError, match="which was not sent to be published") as refused:
        run(place, tmp_path / "fused.safetensors", module=make)
    assert "`then='choose'`" in str(refused.value)
    assert not (tmp_path / "fused.safetensors").exists()
    allowed = run(place, tmp_path / "fused.safetensors", module=make, allow_single=True).report
    assert allowed.single_site in SITES


def test_sites_that_choose_get_fused_candidates_without_a_module_at_the_server(place, tmp_path):
    report = run(place, tmp_path / "fused.safetensors", then="choose", quorum=2, method=None)
    assert report.reports[0].single_site is None
    assert report.reports[0].method == "consensus"


CLAIMS = {"a": 100.0, "b": 120.0, "c": 110.0, "d": 1e6}


def facts(claims):
    return {site: SiteFacts({}, n_observations=claimed) for site, claimed in claims.items()}


def test_a_claim_counts_three_times_the_median_at_most():
    assert bounded_claims(facts(CLAIMS)) == {"a": 100.0, "b": 120.0, "c": 110.0, "d": 345.0}
    assert bounded_claims(facts({"a": 100.0, "b": None})) == {}
    assert bounded_claims(facts({"a": 100.0, "b": 299.0})) == {"a": 100.0, "b": 299.0}
    assert claim_notes(facts({"a": 100.0, "b": 90.0, "c": 80.0}), True) == ()
    majority, bounded = claim_notes(facts(CLAIMS), True)
    assert "d states 1,000,000 of 1,000,330 observations" in majority
    assert "d counts as 345 observations" in bounded
    assert claim_notes(facts(CLAIMS), False) == (majority,)


def test_a_bounded_claim_is_what_weighs(place, tmp_path):
    counted = run(place, tmp_path / "counted", method="average").model.inputs
    trusted = run_again(place, tmp_path / "trusted", method="average", trust_counts=True)
    weights = {one.name: one.weight for one in counted}
    assert weights["c"] / weights["a"] == pytest.approx(3.0)
    assert {one.name: one.weight for one in trusted}["c"] == pytest.approx(2100 / 2580)


def run_again(place, output, **options):
    """Run another round of the same contributions."""
    import shutil

    shutil.rmtree(place / "server")
    return run(place, output, **options).model.inputs


@pytest.mark.parametrize(("claimed", "is_told"), [(150.0, False), (150.0 + 1e-9, False), (151.0, True)])
def test_half_of_all_observations_is_no_majority_however_sums_are_rounded(claimed, is_told):
    facts = {name: SiteFacts({}, n_observations=count) for name, count in (("a", claimed), ("b", 150.0))}
    assert any("more than all others" in note for note in claim_notes(facts, False)) == is_told
