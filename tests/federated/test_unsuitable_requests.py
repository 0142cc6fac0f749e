"""Requests that no model of a round can answer are refused before any site is asked."""

import re

import pytest

import consilience as cs
from consilience.federated.requests.table import REQUEST_KINDS, Then
from tests.api.kinds_zoo import KIND_NAMES, posterior
from tests.cli.running import command


@pytest.mark.parametrize("kind", REQUEST_KINDS, ids=lambda one: one.name)
def test_every_kind_of_request_names_a_kind_of_models(kind):
    assert kind.models in KIND_NAMES or kind.name == "choose"  # which is of every kind


@pytest.mark.parametrize(
    ("then", "method", "told"),
    [
        ("refine", "kl", "method 'kl' is for posteriors, which have no request 'refine'"),
        ("em", "ot", "method 'ot' is for networks, which have no request 'em'"),
        ("moments4", "spahm", "method 'spahm' is for posteriors, which have no request 'moments4'"),
    ],
)
def test_a_method_of_other_models_is_refused_at_once(then, method, told, tmp_path):
    with pytest.raises(cs.errors.UnsupportedError, match=told):
        cs.federated.serve_folder(tmp_path / "round", tmp_path / "out", sites=["a", "b"], method=method, then=then)
    assert not (tmp_path / "round").exists()


def test_an_expected_model_of_another_kind_is_refused_at_once(tmp_path):
    cs.save(posterior(), tmp_path / "start.safetensors")
    with pytest.raises(cs.errors.UnsupportedError, match="is of posteriors, which have no request 'head'; head is for"):
        cs.federated.serve_folder(
            tmp_path / "round", tmp_path / "out", sites=["a", "b"], expect=tmp_path / "start.safetensors", then="head"
        )
    Then.parse("em").refuse_unfit(None, tmp_path / "start.safetensors")


def test_what_is_not_known_beforehand_is_not_refused():
    for kind in REQUEST_KINDS:
        Then(kind.name).refuse_unfit(None, None)
    for name in ("em", "head"):  # mixtures and networks have a method of this name each
        Then(name).refuse_unfit("average", None)


def test_a_misspelt_kind_is_answered_with_the_one_that_was_meant():
    with pytest.raises(cs.errors.OptionError, match=r"there is no kind 'refin', did you mean refine\?"):
        Then.parse("refin:3")


def test_a_misspelt_kind_is_refused_before_anything_is_read_or_written(tmp_path):
    absent = {
        "recipe": tmp_path / "no.yaml",
        "certificates": tmp_path / "no",
        "site-keys": tmp_path / "no",
        "work": tmp_path / "work",
    }
    beside = [f"--{name}={path}" for name, path in absent.items()]
    done = command("round", "flower", "--address=host:1", *beside, "-o", tmp_path / "out", "--then", "emm")
    assert done.code == 2
    assert re.search(r"^consilience: --then: there is no kind 'emm', did you mean em\?", done.err), done.err
    with pytest.raises(cs.errors.OptionError, match=r"^then: there is no kind 'emm'"):
        cs.federated.serve_folder(tmp_path / "round", tmp_path / "out", sites=["a"], then="emm")
    assert not list(tmp_path.iterdir())
