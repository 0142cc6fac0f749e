"""Candidates chosen on rows that sites held out: in one memory, by requests, and over a folder."""

from dataclasses import replace
from functools import cache
from threading import Thread

import numpy as np
import pytest
import torch
from sklearn.mixture import BayesianGaussianMixture
from sklearn.naive_bayes import GaussianNB
from torch import nn

import consilience as cs
from consilience.errors import InputError, OptionError, UnsupportedError
from consilience.federated.requests import choose
from tests.federated import network_sites
from tests.federated.request_kinds_zoo import candidates

FAST = cs.methods.Auto(n_inputs=200, steps=20)


@cache
def sites():
    """Return described networks, and the rows that their sites held out of training."""
    described, held = {}, {}
    for seed, (site, data) in enumerate(network_sites.SITES.items()):
        train, held[site] = cs.hold_out(*data)
        described[site] = cs.describe(network_sites.trained(seed, *train), train, held_out=held[site])
    return described, held


def error(network, rows):
    with torch.no_grad():
        return float((network(torch.from_numpy(rows[0])).argmax(1).numpy() != rows[1]).mean())


def test_the_candidate_of_least_loss_on_held_out_rows_is_fused():
    described, held = sites()
    fusion = cs.fuse(described, FAST, held_out=held)
    assert fusion.verdict.code in ("sites", "site")
    assert fusion.verdict.criterion == "error on rows that sites held out"
    losses = fusion.details["held_out"]["losses"]
    weights = {local.name: local.weight for local in fusion.inputs}
    for name, loss in losses.items():
        if name in fusion.candidates:
            expected = sum(weights[site] * error(fusion.candidates[name], rows) for site, rows in held.items())
            assert loss == pytest.approx(expected, abs=1e-9)
    fused = [loss for name, loss in losses.items() if not name.startswith("site:") and name != "own"]
    assert losses[fusion.details["chosen"]] <= min(fused) + 1e-12 or fusion.details["chosen"].startswith("site:")
    of_model = sum(weights[site] * error(fusion.model, rows) for site, rows in held.items())
    assert of_model == pytest.approx(losses[fusion.details["chosen"]], abs=1e-9)
    assert {one["site"] for one in fusion.details["held_out"]["sites"]} == set(held)
    assert fusion.record["verdict"]["text"] == fusion.verdict.text


def test_a_site_is_kept_where_what_is_fused_is_worse():
    described, held = sites()
    fusion = cs.fuse(described, "average", held_out=held)
    assert fusion.details["chosen"].startswith("site:")
    own = described[fusion.details["chosen"].removeprefix("site:")].module
    rows = torch.randn(20, 3)
    with torch.no_grad():
        torch.testing.assert_close(fusion.model(rows), own(rows))
    assert "No fused model is clearly better" in fusion.summary()


def test_by_requests_no_own_network_leaves_a_site():
    fusion, held = candidates()
    request = cs.federated.request("choose", fusion)
    assert not any(name.startswith("site:") for name in request.content.fields["candidates"])
    chosen = cs.federated.exchange("choose", fusion, held)
    assert chosen.verdict.candidates["own"] == pytest.approx(
        np.average(
            [error(network_sites.own(site), rows) for site, rows in held.items()],
            weights=[local.weight for local in fusion.inputs],
        ),
        abs=1e-6,
    )
    assert chosen.details["chosen"] in request.content.fields["candidates"]
    assert chosen.provenance["result"]["then"]["kind"] == "choose"


def test_networks_that_all_sites_share_are_candidates_at_all_sites():
    described, held = sites()
    shared = {
        site: replace(one, description=replace(one.description, share_network=True)) for site, one in described.items()
    }
    in_memory = cs.fuse(described, FAST, held_out=held)
    chosen = cs.federated.exchange("choose", cs.fuse(shared, FAST), held)
    assert chosen.details["held_out"]["shared"]
    assert chosen.details["chosen"] == in_memory.details["chosen"]
    found = {name: loss for name, loss in chosen.verdict.candidates.items() if name.startswith("site:")}
    assert found == pytest.approx({name: in_memory.verdict.candidates[name] for name in found}, abs=1e-6)
    assert set(found) == {f"site:{site}" for site in held}
    one_refuses = {**shared, "b": described["b"]}
    request = cs.federated.request("choose", cs.fuse(one_refuses, FAST))
    assert not any(name.startswith("site:") for name in request.content.fields["candidates"])


def test_the_median_over_sites_counts_where_they_may_be_hostile():
    described, held = sites()
    request = cs.federated.request("choose", cs.fuse(described, replace(FAST, robust=True)))
    answers = {site: cs.federated.answer(request, rows, module=network_sites.own(site)) for site, rows in held.items()}
    choice = cs.federated.reduce(request, answers).reduction.content.private.choice
    means = np.median([one.means for one in choice.sums.values()], axis=0)
    np.testing.assert_allclose(choice.losses, means)


def test_as_many_candidates_go_to_sites_as_a_request_holds(monkeypatch):
    fusion, _ = candidates()
    whole = cs.federated.request("choose", fusion).content
    n_bytes = sum(one.nbytes for name, one in whole.arrays.items() if name.startswith("0:"))
    monkeypatch.setattr(choose, "MAX_REQUEST_BYTES", choose.BYTES_OF_HEADER + 2 * n_bytes)
    few = cs.federated.request("choose", fusion).content.fields["candidates"]
    assert few == whole.fields["candidates"][:2]
    monkeypatch.setattr(choose, "MAX_REQUEST_BYTES", choose.BYTES_OF_HEADER + n_bytes - 1)
    with pytest.raises(UnsupportedError, match="that a site reads of a request"):
        cs.federated.request("choose", fusion)


def test_rows_other_than_those_that_were_held_out_do_not_count():
    described, held = sites()
    fusion = cs.fuse(described, FAST)
    other = {**held, "b": network_sites.rows(77, 60)}
    chosen = cs.federated.exchange("choose", fusion, other)
    assert "Left out: b (its rows are not those that it said to hold out)." in chosen.verdict.text
    assert {one["site"] for one in chosen.details["held_out"]["sites"]} == {"a", "c"}


def mixtures():
    rng = np.random.default_rng(0)
    rows = {site: rng.normal(size=(300, 2)) + 8 * rng.integers(0, 2, size=(300, 1)) for site in "abc"}
    parts = {site: cs.hold_out(one) for site, one in rows.items()}
    fitted = {s: BayesianGaussianMixture(n_components=2, random_state=0).fit(p.train) for s, p in parts.items()}
    return fitted, {site: part.held_out for site, part in parts.items()}, "minus log predictive density"


def classifiers():
    parts = {site: cs.hold_out(*network_sites.rows(seed, 300)) for seed, site in enumerate("abc")}
    fitted = {site: GaussianNB().fit(*part.train) for site, part in parts.items()}
    return fitted, {site: part.held_out for site, part in parts.items()}, "error"


def bayesian():
    described, held = sites()
    states = {site: one.module.state_dict() for site, one in described.items()}
    small = {
        site: cs.BayesianNetwork(described[site].module, state, {k: torch.full_like(v, 1e-4) for k, v in state.items()})
        for site, state in states.items()
    }
    return small, held, "error"


@pytest.mark.parametrize("kind", [mixtures, classifiers, bayesian])
def test_models_of_every_kind_are_judged_by_their_rows(kind):
    models, held, criterion = kind()
    options = {"example": torch.zeros(1, 3)} if kind is bayesian else {}
    fusion = cs.fuse(models, held_out=held, **options)
    assert fusion.verdict.criterion == f"{criterion} on rows that sites held out"
    assert set(fusion.verdict.candidates) == {"fused", "own"}
    if kind is not bayesian:
        exchanged = cs.federated.exchange("choose", cs.fuse(models), held)
        assert exchanged.verdict.candidates == pytest.approx(fusion.verdict.candidates, rel=1e-6)


@pytest.mark.parametrize(
    ("held_out", "message"),
    [
        ([1, 2], "expected rows of sites by their names, found list"),
        ({}, "expected rows of sites by their names"),
        ({"paris": network_sites.rows(0, 60)}, "has rows of paris; the models are of a, b, c"),
        ({"a": network_sites.rows(0, 49)}, "held_out: a: .*has 49 rows, and a comparison needs 50"),
        ({"a": network_sites.rows(0, 60)[0]}, "held_out: a: .*has no labels"),
    ],
)
def test_rows_that_cannot_be_used_are_named(held_out, message):
    described, _ = sites()
    with pytest.raises((InputError, OptionError), match=message):
        cs.fuse(described, "consensus", held_out=held_out, refit=False)


def test_networks_side_by_side_are_no_candidates():
    described, held = sites()
    with pytest.raises(UnsupportedError, match="keeps all networks side by side"):
        cs.fuse(described, "ensemble", held_out=held)


def test_rows_that_were_trained_on_are_refused_when_the_network_is_described():
    train, _ = cs.hold_out(*network_sites.SITES["a"])
    with pytest.raises(InputError, match="100% of its rows are among those that the model was trained on"):
        cs.describe(network_sites.own("a"), train, held_out=(train[0][:60], train[1][:60]))


def tampered(answer, **arrays):
    content = cs.federated.requests.base.Content(answer.content.fields, {**answer.content.arrays, **arrays})
    return cs.federated.requests.base.Answer(
        answer.kind, answer.number, answer.request, answer.n_observations, answer.min_count, content
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: {"losses": a["losses"] + 100}, "its errors are not between none and all of its rows"),
        (lambda a: {"losses": a["losses"] * np.nan}, "NaN or infinite"),
        (lambda a: {"counts": a["counts"] + 0.5}, "its counts are no counts of its rows"),
        (lambda a: {"errors": a["errors"] + a["counts"]}, "its errors in a class are not between"),
        (lambda a: {"products": -a["products"]}, "its products of losses are those of no rows"),
    ],
)
def test_answers_that_no_rows_have_are_refused(change, message):
    fusion, held = candidates()
    request = cs.federated.request("choose", fusion)
    honest = cs.federated.answer(request, held["a"], module=network_sites.own("a"))
    with pytest.raises(InputError, match=message):
        cs.federated.reduce(request, {"a": tampered(honest, **change(honest.content.arrays))})


class Killed(BaseException):
    """The end of a server."""


def over_a_folder(folder, parts, then, killed_at=None):
    """Return the result of a round of the sites that held rows out, each of which answers all requests."""
    for n, (site, part) in enumerate(parts.items()):
        described = cs.describe(network_sites.trained(n, *part.train), part.train, held_out=part.held_out)
        cs.save(described, folder / f"{site}.safetensors")
    options = {"sites": list(parts), "method": FAST, "module": network_sites.make, "work": folder / "work"}
    answered = {}

    def take_part(n, site):
        described = folder / f"{site}.description.safetensors"
        cs.federated.send_folder(folder / f"{site}.safetensors", folder / "place", site, fisher=described)
        train, held = parts[site]
        own = network_sites.trained(n, *train)
        answered[site] = cs.federated.answer_folder(
            folder / "place", site, train, held_out=held, module=own, follow=True, timeout=100
        )

    def say(line):
        if killed_at is not None and line.startswith(killed_at):
            raise Killed

    threads = [Thread(target=take_part, args=one, daemon=True) for one in enumerate(parts)]
    for thread in threads:
        thread.start()
    told = options | {"then": then, "deadline": 100, "poll": 0.05}
    if killed_at is not None:
        with pytest.raises(Killed):
            cs.federated.serve_folder(folder / "place", folder / "fused.safetensors", say=say, **told)
    result = cs.federated.serve_folder(folder / "place", folder / "fused.safetensors", **told)
    for thread in threads:
        thread.join(100)
    assert {site: [one.kind for one in sent] for site, sent in answered.items()} == dict.fromkeys(
        parts, then.split(",")
    )
    return result


@pytest.mark.slow
def test_five_sites_choose_over_a_folder(tmp_path):
    parts = {f"s{n}": cs.hold_out(*network_sites.rows(20 + n, 300)) for n in range(5)}
    result = over_a_folder(tmp_path, parts, "choose")
    assert "Chosen at the sites" in result.fusion.verdict.text
    assert result.fusion.verdict.candidates["own"] > 0
    assert isinstance(result.fusion.model, nn.Module)


@pytest.mark.parametrize(
    "killed_at",
    [
        "round 3: closed",
        *(pytest.param(one, marks=pytest.mark.slow) for one in (None, "round 2: closed", "round 3: request")),
    ],
)
def test_sites_choose_behind_an_exact_head(killed_at, tmp_path):
    parts = {f"s{n}": cs.hold_out(*network_sites.rows(20 + n, 300)) for n in range(3)}
    result = over_a_folder(tmp_path, parts, "head,choose", killed_at)
    assert [report.request["kind"] for report in result.reports[1:]] == ["head", "choose"]
    record = result.fusion.provenance["result"]["then"]
    assert (record["kind"], record["behind"]["kind"]) == ("choose", "head")
    names = list(result.fusion.verdict.candidates)
    (refitted,) = [name for name in names if name.startswith("head from sums of all sites: ")]
    before = refitted.partition(": ")[2]
    assert before in names or before.startswith("site:")
