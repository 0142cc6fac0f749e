"""What two published models tell of the sites between them, and the ledger that keeps such a pair from being
published."""

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose

import consilience as cs
from consilience.errors import FileFormatError
from consilience.federated import RoundError
from consilience.federated.ledger import read_ledger, record, too_near
from tests.federated.rounds import write_sites

send, serve = cs.federated.send_folder, cs.federated.serve_folder
OPTIONS = {"method": "kmeans", "poll": 0.05, "deadline": 0.4}


@pytest.mark.parametrize("combine", ["barycenter", "product"])
def test_two_models_that_differ_by_one_site_give_that_site(combine):
    family = cs.families.NormalWishart(dim=2)
    prior = family.to_natural(mean=np.zeros((1, 2)), kappa=[1.0], dof=[3.0], scale=np.eye(2)[None])[0]
    sites = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        eta = family.to_natural(mean=rng.normal(size=(1, 2)), kappa=[100.0], scale=np.eye(2)[None] / 100, dof=[100.0])
        sites.append(cs.Posterior(family, eta, prior=prior, counts=[99.0]))
    five, four = (cs.fuse(group, "average", combine=combine).posterior.natural for group in (sites, sites[:4]))
    site = 5 * five - 4 * four if combine == "barycenter" else five - four + prior
    assert_allclose(site, sites[4].natural, rtol=1e-9, atol=1e-9 * np.abs(sites[4].natural).max())


@pytest.mark.parametrize(
    ("sites", "is_refused"), [("abcde", False), ("abcd", True), ("abcdf", True), ("abcdefgh", False), ("fgh", False)]
)
def test_groups_are_equal_or_differ_by_three_sites(sites, is_refused, tmp_path):
    record(tmp_path / "ledger", "abcde", "0" * 64)
    assert bool(too_near(tmp_path / "ledger", sites)) == is_refused


def test_masked_rounds_refuse_at_the_server_what_sites_would_refuse(tmp_path):
    record(tmp_path / "ledger", "abcde", "0" * 64)
    assert not too_near(tmp_path / "ledger", "abcdefgh")
    (problem,) = too_near(tmp_path / "ledger", "abcdefgh", least=5)
    assert "differs by f, g, h only" in problem
    assert "at least 5 others" in problem


def test_a_round_that_tells_of_one_site_beside_another_is_not_published(tmp_path):
    files, ledger = write_sites(tmp_path, "abcd"), tmp_path / "ledger"
    for place, sites in (("first", "abcd"), ("again", "abcd"), ("second", "abc")):
        for site in sites:
            send(files[site], tmp_path / place, site)
    serve(tmp_path / "first", tmp_path / "first.out", sites=list("abcd"), ledger=ledger, **OPTIONS)
    serve(tmp_path / "again", tmp_path / "again.out", sites=list("abcd"), ledger=ledger, **OPTIONS)
    assert read_ledger(ledger) == [frozenset("abcd")]
    with pytest.raises(RoundError, match="differs by d only") as caught:
        serve(tmp_path / "second", tmp_path / "second.out", sites=list("abc"), ledger=ledger, **OPTIONS)
    assert caught.value.report.took_part == ()
    assert not (tmp_path / "second.out").exists()
    assert not (tmp_path / "second" / "server" / "1" / "fused.safetensors").exists()
    assert json.loads((tmp_path / "second" / "server" / "1" / "round.json").read_text())["status"] == "failed"


@pytest.mark.parametrize("text", ["{}", '{"sites": "abc"}', "not JSON", '{"sites": [1]}'])
def test_what_is_no_ledger_is_refused(text, tmp_path):
    (tmp_path / "ledger").write_text(text)
    with pytest.raises(FileFormatError, match="line 1 is no record of a round"):
        read_ledger(tmp_path / "ledger")
