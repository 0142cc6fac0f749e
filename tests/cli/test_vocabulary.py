"""Words that are aligned across files, what is said of it, and every vocabulary that cannot be aligned."""

from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.testing import assert_array_equal

import consilience as cs
from consilience.cli.commands import cli
from consilience.posteriors.vocabulary import expand_vocabulary
from tests.copies import COPIES
from tests.posteriors.test_vocabulary import GENSIM, PRIOR, SKLEARN, WORDS, shuffled, site, some

# -- Files, the command and the report


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, posterior in enumerate(some()):
        cs.save(posterior, f"site-{number}.safetensors")
    return tmp_path


FILES = [f"site-{number}.safetensors" for number in range(3)]


def test_files_and_objects_are_aligned_alike(folder):
    mixed = cs.fuse([FILES[0], some()[1], FILES[2]], n_components=3)
    assert mixed.posterior.natural.tobytes() == cs.fuse(some(), n_components=3).posterior.natural.tobytes()
    assert cs.check(FILES) == []


def test_the_command_says_what_is_missing_where(folder):
    done = CliRunner().invoke(cli, ["fuse", *FILES, "-o", "fused.safetensors", "--set", "n_components=3"])
    assert done.exit_code == 0
    assert "vocabulary of 23 words; site-0.safetensors lacks 3, site-1.safetensors lacks 4," in done.output
    assert CliRunner().invoke(cli, ["check", *FILES]).output == "ok: 3 models can be fused\n"
    for number in range(3):
        cs.save(site(number, shuffled(WORDS, number)), f"site-{number}.safetensors")
    done = CliRunner().invoke(cli, ["fuse", *FILES, "-o", "fused.safetensors"])
    assert "vocabulary of 24 words, put in alphabetical order\n" in done.output


def test_the_report_of_files_is_that_of_the_fusion(folder):
    fusion = cs.fuse(FILES, n_components=3)
    fusion.report("one.html")
    fusion.save("fused.safetensors")
    assert CliRunner().invoke(cli, ["report", "fused.safetensors", *FILES, "-o", "two.html"]).exit_code == 0
    assert (folder / "one.html").read_bytes() == (folder / "two.html").read_bytes()
    text = (folder / "one.html").read_text()
    assert "23 words in all; site-2.safetensors lacks 5; site-1.safetensors lacks 4;" in text
    assert "in the file</td>" not in text


def test_a_site_with_little_in_common_is_pointed_out(folder):
    strange = tuple(f"autre-{number}" for number in range(30))
    family = cs.families.Dirichlet(31)
    other = replace(
        site(0),
        family=family,
        natural=family.to_natural(concentration=np.random.default_rng(0).uniform(1, 9, (3, 31))),
        prior=np.full(31, PRIOR - 1.0),
        features=cs.Features(names=(*strange, WORDS[0])),
    )
    fusion = cs.fuse([*some(), other], n_components=3)
    assert fusion.details["vocabulary"]["apart"] == {"model 3": 1 / 31}
    fusion.report("page.html")
    assert "model 3 shares only 3.2 % of its words" in (folder / "page.html").read_text()
    cs.save(other, "other.safetensors")
    done = CliRunner().invoke(cli, ["fuse", *FILES, "other.safetensors", "-o", "f.safetensors"])
    assert "other.safetensors: shares only 3.2 % of its words with any other model\n" in done.output


# -- What is refused


def check_problems(*sites):
    problems = cs.check(list(sites))
    with pytest.raises(cs.errors.InputError) as refused:
        cs.fuse(list(sites))
    assert list(refused.value.problems) == problems
    return problems


REMEDY = "name them: `cs.describe(model, features=words)`, of gensim also `id2word=` when it is trained"


def test_a_site_that_does_not_name_its_words_is_told_how_to():
    nameless = replace(site(1, WORDS[:20]), features=cs.Features())
    (problem,) = check_problems(site(0), nameless)
    assert problem == (
        "model 1: does not say which words its 20 columns are, and as many columns are not the same words;"
        f" {REMEDY} [E-NEEDED]"
    )
    assert len(check_problems(replace(site(0), features=cs.Features()), nameless)) == 2
    same_size = replace(site(2), features=cs.Features())
    (problem,) = check_problems(site(0), site(1, shuffled(WORDS, 1)), same_size)
    assert problem.startswith("model 2: does not say which words its 24 columns are")


def test_vocabularies_with_nothing_in_common_are_refused():
    problems = check_problems(site(0, WORDS[:10]), site(1, WORDS[10:]))
    assert problems[0].startswith("model 0: shares none of its 10 words with any other model; are they of another lang")
    assert len(problems) == 2
    (problem,) = check_problems(site(0, WORDS[:10]), site(1, WORDS[:12]), site(2, WORDS[14:]))
    assert problem.startswith("model 2: shares none of its 10 words")


def test_a_word_that_is_there_twice_is_refused():
    twice = replace(site(0), features=cs.Features(names=("w01", *WORDS[1:])))
    (problem,) = check_problems(twice, site(1))
    assert problem == "model 0: vocabulary has the word 'w01' 2 times, expected once [E-TWICE]"


def test_missing_words_need_a_prior_that_is_the_same_for_all_words():
    short = site(0, WORDS[:20])
    (problem,) = check_problems(replace(short, prior=None), site(1))
    assert problem.startswith("model 0: lacks 4 of 24 words, which take its prior, but it states none; train on all")
    (problem,) = check_problems(replace(short, prior=np.linspace(-0.9, -0.8, 20)), site(1))
    assert problem.startswith("model 0: lacks 4 of 24 words, which take its prior, but that differs from word to word")


def test_another_order_needs_no_prior_and_takes_any():
    backwards = site(1, WORDS[::-1])
    by_word = replace(backwards, prior=np.linspace(-0.9, -0.8, 24))
    assert_array_equal(expand_vocabulary(by_word, WORDS).prior, by_word.prior[::-1])
    assert cs.check([site(0), replace(backwards, prior=None)]) == []


def test_units_of_words_are_refused():
    (problem,) = check_problems(
        site(0), replace(site(1, WORDS[:20]), features=cs.Features(names=WORDS[:20], units=["m"] * 20))
    )
    assert problem.startswith("model 1: states units or scaling of its columns, which word counts do not have")


@COPIES
def test_an_empty_vocabulary_is_refused():
    nothing = {"natural": np.zeros((3, 0)), "prior": np.zeros(0), "features": cs.Features(names=())}
    empty = replace(site(1), family=cs.families.Dirichlet(0), **nothing)
    assert check_problems(site(0), empty) == ["model 1: has no words [E-NEEDED]"]
    assert check_problems(empty, empty) == ["model 0: has no words [E-NEEDED]", "model 1: has no words [E-NEEDED]"]


def test_every_other_problem_is_still_told():
    other = replace(site(1, WORDS[:20]), features=cs.Features(), source={"kind": SKLEARN, "doc_topic_prior": "default"})
    problems = check_problems(site(0), replace(other, attached={}))
    assert any("doc_topic_prior 'default'" in problem for problem in problems)
    assert any(REMEDY in problem for problem in problems)
    assert any("lacks the attached array" in problem for problem in problems)


@pytest.mark.parametrize("kind", ["sklearn.KMeans", None])
def test_other_models_must_have_the_same_columns_in_the_same_order(kind):
    """Only topic models have words; a column of measurements that is missing has no value to take."""
    source = {} if kind is None else {"kind": kind}
    first, second = (replace(site(n, w), source=source) for n, w in ((0, WORDS), (1, shuffled(WORDS, 1))))
    assert "has the same features in another order; train with the columns ordered" in check_problems(first, second)[0]
    (problem,) = check_problems(first, replace(site(1, WORDS[:20]), source=source))
    assert problem == "model 1: is Dirichlet(dim=20), expected Dirichlet(dim=24) as in model 0 [E-MISMATCH]"


def test_topic_models_of_two_libraries_are_not_mixed():
    problems = check_problems(site(0), site(1, WORDS[:20], GENSIM))
    assert [problem for problem in problems if " kind " in problem] == problems[:1]
