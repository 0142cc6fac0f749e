"""The report of fused draws: every section is there, and what it says of the fusion is what the record holds."""

import re

import pytest

import consilience as cs
from tests.draws.sites import gaussian_sites

SECTIONS = ("what went in", "forest plots", "densities by site", "what it tells about people", "how it was made")


@pytest.fixture(scope="module", params=["gaussian_product", "semiparametric"])
def fusion(request):
    sites, _, _ = gaussian_sites(3, n_draws=400)
    return cs.fuse(dict(zip(("lund", "oslo", "riga"), sites, strict=True)), request.param)


@pytest.fixture
def sections(fusion, tmp_path):
    """Return the words of each section, by its title in small letters."""
    fusion.report(tmp_path / "page.html")
    parts = re.split(r"<h2[^>]*>(.*?)</h2>", (tmp_path / "page.html").read_text())[1:]
    words = [re.sub(r"<style.*?</style>|<[^>]+>", " ", part) for part in parts]
    return dict(zip([title.lower() for title in words[::2]], words[1::2], strict=True))


def test_every_section_is_there(sections):
    assert set(SECTIONS) <= set(sections)
    for site in ("lund", "oslo", "riga"):
        assert site in sections["what went in"]


def test_columns_of_which_no_site_says_anything_are_left_out(sections):
    assert "Chains" in sections["what went in"]
    assert "Observations" not in sections["what went in"]
    assert "SHA-256" not in sections["what went in"]


def test_how_it_was_made_has_method_options_and_versions(sections, fusion):
    record = fusion.provenance
    text = sections["how it was made"]
    assert record["method"] in text
    assert record["options"]
    for name, value in record["options"].items():
        assert f"{name}" in text
        shown = "not set" if value is None else repr(value)[:20]
        assert shown in text.replace("&#39;", "'")
    for name, version in record["versions"].items():
        assert name in text
        assert str(version) in text
