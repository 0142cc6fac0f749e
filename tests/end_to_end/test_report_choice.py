"""The candidates of a choice on the page: a row each, the best site's as a line, the one taken marked."""

import re

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import nn

import consilience as cs
from consilience.core.candidates_section import MAX_DRAWN, MAX_OPEN_ROWS, choice_section
from consilience.core.findings import losses_at_sites, verdict_of
from consilience.core.site_losses import HELD_OUT
from consilience.networks.candidates_at_sites import with_candidate
from tests.cli.running import command
from tests.end_to_end.pages import Page, mixtures, readable, report, safe

CENTRES = np.array([[0.0, 0.0, 3.0], [3.0, 0.0, 0.0], [0.0, 3.0, 0.0]])


def rows_of(seed, classes, n=240):
    rng = np.random.default_rng(seed)
    labels = rng.choice(classes, n)
    return (CENTRES[labels] + rng.normal(size=(n, 3))).astype(np.float32), labels


def trained(x, y, seed):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(net.parameters(), 0.02)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        optimizer.step()
    return net.eval()


@pytest.fixture(scope="module")
def described():
    networks, held_out = {}, {}
    for seed, (site, classes) in enumerate({"lund": [0, 0, 1], "oslo": [1, 2, 2]}.items()):
        train, held_out[site] = cs.hold_out(*rows_of(seed, classes))
        networks[site] = cs.describe(trained(*train, seed), train, classes=3)
    return networks, held_out


@pytest.fixture(scope="module")
def fusion(described):
    return cs.fuse(described[0])


def candidates_of(page):
    """Return what the figure of the candidates says in words."""
    return next(text for text in page.said if "candidates by " in text)


def drawn(page, kind):
    """Return how many shapes of a class there are in the figure of the candidates."""
    figure = re.search(r'<svg [^>]*aria-label="\d+ candidates by .*?</svg>', page.source, re.DOTALL)[0]
    return len(re.findall(rf'class="{kind}', figure))


def test_candidates_have_a_row_each_and_the_one_taken_is_marked(fusion, path):
    page, verdict = report(fusion, path), fusion.verdict
    safe(page)
    readable(page)
    assert page.sections[0] == "candidates"
    said, scores = candidates_of(page), verdict.candidates
    best_site = min(score for name, score in scores.items() if name.startswith("site:"))
    assert said.startswith(f"{len(scores)} candidates by ")
    assert f"{verdict.chosen} was taken, with {100 * scores[verdict.chosen]:.4g}." in said
    assert said.endswith(f"The line, the best site's own, is at {100 * best_site:.4g}.")
    assert drawn(page, "diamond") == drawn(page, "chosen") == 1
    assert drawn(page, "box") == len(scores) - 1
    assert drawn(page, "range") == sum(error > 0 for error in verdict.errors.values()) > 0


def test_many_candidates_have_their_table_folded(fusion, path):
    page = report(fusion, path)
    assert len(fusion.verdict.candidates) > MAX_OPEN_ROWS
    assert re.search(r'<details class="folded"><summary>All \d+ scores as a table</summary>', page.source)
    assert re.search(rf"<strong>{re.escape(fusion.verdict.chosen)}</strong>", page.source)


def test_errors_are_those_of_the_difference_from_the_best_site(fusion):
    verdict = fusion.verdict
    sites = {name: score for name, score in verdict.candidates.items() if name.startswith("site:")}
    best = min(sites, key=sites.get)
    assert set(verdict.errors) == set(verdict.candidates) - {best}
    # A share p of rows on which two candidates differ by one bounds the paired error: sqrt(p / n), with p at most 1.
    assert all(0 <= error < 0.05 for error in verdict.errors.values())


def test_the_saved_file_has_the_same_figure(fusion, path, tmp_path):
    fusion.save(tmp_path / "fused.safetensors")
    assert command("report", tmp_path / "fused.safetensors", "-o", tmp_path / "again.html").code == 0
    again = Page((tmp_path / "again.html").read_text())
    assert candidates_of(again) == candidates_of(report(fusion, path))


def test_sites_that_chose_are_shown_with_their_rows(described, path):
    networks, held_out = described
    fusion = cs.fuse(networks, held_out=held_out)
    page = report(fusion, path)
    safe(page)
    assert "What held-out rows say" in page.text
    assert f"{HELD_OUT}, %; left is better" in page.text
    choice = fusion.at_sites
    best = min((k + 1 for k, is_site in enumerate(choice.is_site) if is_site), key=lambda k: choice.losses[k])
    for name, error in fusion.verdict.errors.items():
        expected = choice.difference(1 + list(choice.names).index(name), best)[1]
        np.testing.assert_allclose(error, expected, rtol=1e-5)
    assert "not measured on rows of the sites" not in page.text
    said = re.search(r'aria-label="(\d+ sites, own and chosen model by [^"]*)"', page.source)[1]
    records = fusion.details["held_out"]["sites"]
    assert said.startswith(f"{len(records)} sites, ")
    for one in records:
        assert f"{one['site']} {100 * one['own']:.4g} and {100 * one['chosen']:.4g}" in said


def test_a_mixture_that_sites_judged_is_not_said_to_be_judged_by_parameters(path):
    models = mixtures(2)
    rng = np.random.default_rng(0)
    rows = {name: rng.normal(size=(60, model.means_.shape[1])) for name, model in zip("ab", models, strict=True)}
    fusion = cs.fuse(dict(zip("ab", models, strict=True)), held_out=rows)
    page = report(fusion, path)
    assert "candidates" in page.sections
    assert "loss" not in page.sections
    assert "what each site has today" in page.text
    assert "computed from parameters alone" not in page.words


def test_an_estimator_that_sites_judged_shows_what_they_say(path):
    rng = np.random.default_rng(0)
    models, held_out = {}, {}
    for site in ("lund", "oslo"):
        x = rng.normal(size=(200, 2))
        train, held_out[site] = cs.hold_out(x, x @ [1.0, -1.0] + rng.normal(size=200))
        models[site] = cs.describe(Ridge().fit(*train), data=train)
    page = report(cs.fuse(models, held_out=held_out), path)
    assert page.sections[0] == "candidates"
    assert "squared error" in candidates_of(page)


def test_records_without_errors_and_with_more_candidates_than_are_drawn():
    scores = {f"c{number}": 0.01 * number for number in range(MAX_DRAWN + 5)}
    record = {"text": "Chosen.", "candidates": scores, "criterion": "squared error"}
    section = choice_section(verdict_of(record), "network").render()
    assert f"The best {MAX_DRAWN} of {MAX_DRAWN + 5} are drawn." in section
    assert "diamond" not in section
    assert "standard error" not in section.lower()


HELD_OUT_ROWS = {"rows": 90, "own": 0.5, "chosen": 0.25, "standard_error": 0.0625}


def section_of_sites(*sites):
    record = {"text": "Chosen.", "candidates": {"a": 0.25, "b": 0.5}, "criterion": f"error {HELD_OUT}", "chosen": "a"}
    at_sites = losses_at_sites({"held_out": {"sites": list(sites)}})
    return choice_section(verdict_of(record), "network", at_sites).render()


def test_bars_of_losses_at_sites_end_at_zero_and_sites_that_gain_least_are_drawn():
    many = [{"site": f"site {n}", **HELD_OUT_ROWS, "own": 0.3 + 0.01 * n} for n in range(MAX_DRAWN + 5)]
    section = section_of_sites(*many, {"site": "<b>", **HELD_OUT_ROWS, "own": 0.2, "standard_error": 0.9})
    assert f"The {MAX_DRAWN} of {MAX_DRAWN + 6} sites that gain least are drawn." in section
    figure = re.search(r'<svg [^>]*aria-label="(\d+ sites, own.*?)</svg>', section, re.DOTALL)[1]
    assert figure.startswith(
        f"{MAX_DRAWN} sites, own and chosen model by error {HELD_OUT}, %: &lt;b&gt; 20 and 25; site 0"
    )
    assert "−" not in figure  # no tick is negative
    assert "<b>" not in section


@pytest.mark.parametrize(
    "sites",
    [(), (3,), ({"site": "a", **HELD_OUT_ROWS},), ({"site": "a", **HELD_OUT_ROWS}, {"site": "b"}),
     ({"site": "a", **HELD_OUT_ROWS}, {"site": "b", **HELD_OUT_ROWS, "own": "0.1"})],
)  # fmt: skip
def test_without_losses_of_several_sites_none_are_drawn(sites):
    assert "At each site" not in section_of_sites(*sites)


def test_names_of_candidates_are_text():
    record = {"text": "x", "candidates": {"<b>": 1.0, "site:</svg>": 2.0}, "criterion": "<i>", "chosen": "<b>"}
    section = choice_section(verdict_of({**record, "errors": {"<b>": "much"}}), "network").render()
    assert "<b>" not in section
    assert "<i>" not in section
    assert section.count("</svg>") == 1


def test_a_candidate_that_is_taken_later_is_recorded_as_itself(fusion):
    other = next(name for name in fusion.candidates if not name.startswith("site:") and name != fusion.verdict.chosen)
    for name in (other, "site:oslo"):
        result = with_candidate(fusion, name).provenance["result"]
        assert result["chosen"] == name
        assert "distilled" not in result["repaired"]
        assert "refitted" not in result["repaired"]
