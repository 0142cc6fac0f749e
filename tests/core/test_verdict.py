"""The verdict of a fusion says how it ended and what to do, for every way to end."""

from dataclasses import replace

import numpy as np
import pytest

import consilience as cs
from consilience.core.agreement import Doubt
from consilience.errors import Problem


@pytest.fixture(scope="module")
def fusion():
    family = cs.families.Point(2)
    sites = [cs.Posterior(family, np.array([[0.0, 0.0], [9.0, 9.0]]) + shift) for shift in (0.0, 0.1, 0.2)]
    return cs.fuse(sites, "kmeans", n_components=2)


@pytest.mark.parametrize("status", cs.results.Status, ids=lambda status: status.name)
def test_a_verdict_is_how_the_fusion_ended_and_the_remedy(fusion, status):
    verdict = replace(fusion, status=status).verdict
    ending, _, advice = status.value.partition("; ")
    assert verdict.code == status.name.lower()
    if status is not cs.results.Status.CONVERGED:
        assert verdict.text.endswith(f"; {ending}.")
    assert verdict.text[0].isupper()
    assert verdict.text.startswith("Whether the fused model is no worse than the best of the models is not known")
    assert not advice or advice not in verdict.text
    assert (verdict.remedy or "") == (status.remedy or "")
    assert verdict.harmless is None


@pytest.mark.parametrize(
    ("code", "harmless", "kind"),
    [
        ("fine", True, "status"),
        ("fine", None, "status open"),
        ("no_inputs", None, "status open"),
        ("harm", False, "status act"),
        ("outlier", None, "status act"),
        ("iteration_limit", None, "status act"),
        ("outlier", True, "status"),
    ],
)
@pytest.mark.parametrize("remedy", [None, "send more"])
def test_colours_say_what_is_known_and_not_whether_there_is_a_remedy(code, harmless, kind, remedy):
    assert cs.Verdict(code, "a sentence.", harmless, remedy=remedy).paragraph().kind == kind


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (cs.Verdict("exact", "x.", True, standing="It is what one fit gives"),
         "One {0} 3 models. It is what one fit gives. Next: check it on data that no site has trained on."),
        (cs.Verdict("fine", "x.", True, criterion="virtual loss, nats"),
         "One {0} 3 models. It is known to be no worse than any of them (judged by how well each describes "
         "observations drawn from all models, not from people). Next: check it on data that no site has trained on."),
        (cs.Verdict("harm", "x.", False, standing="It is near the pooled one"),
         "One {0} 3 models. It is worse than the best of them. Next: do not adopt it before the causes "
         "below are mended."),
        (cs.Verdict("site", "x.", None, criterion="error", single_site="lund"),
         "Not fused: this is the model of lund, as it came. No fused one is clearly better (judged by error). Next: "
         "compare it with each site's own on that site's data before anybody adopts it."),
        (cs.Verdict("no_inputs", "x.", None, remedy="describe", single_site="lund"),
         "Not fused: this is the model of lund, as it came. Nothing tells whether a fused one would be better. Next: "
         "see what is said below before anybody adopts it."),
    ],
)  # fmt: skip
def test_the_first_sentences_say_whether_it_was_fused_how_good_it_is_and_what_comes_next(verdict, said):
    said = said.format("Ridge, fused from")
    assert verdict.in_short(3, "one Ridge") == said
    assert cs.Verdict.read(verdict.to_json()).in_short(3, "one Ridge") == said


def test_models_side_by_side_are_not_said_to_be_one():
    short = cs.Verdict("fine", "x.").in_short(2, "all of them side by side")
    assert short.startswith(
        "2 models side by side, not fused into one. Whether all together are better than each alone "
    )


@pytest.mark.parametrize("harmless", [True, None])
def test_what_is_doubtful_speaks_against_whatever_else_is_known(harmless):
    verdict = cs.Verdict("exact", "x.", harmless, standing="It is what one fit gives", is_doubtful=True)
    assert cs.Verdict.read(verdict.to_json()).paragraph().kind == "status act"
    assert verdict.in_short(3, "one Ridge").endswith("Next: see what is said below before anybody adopts it.")


def test_inputs_in_doubt_are_amber_on_the_page(fusion):
    doubt = Doubt(Problem("lund", "may be in another unit", "state it"), cs.errors.UnitsWarning)
    assert fusion.verdict.paragraph_kind == "status open"
    assert fusion.with_doubts([doubt]).verdict.paragraph_kind == "status act"
