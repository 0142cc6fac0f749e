"""The report in other people's hands: hostile names, readers of all kinds, and a browser."""

import os
import re
import shutil
import subprocess
from html import escape
from pathlib import Path

import numpy as np
import pytest

import consilience as cs
from consilience.drawing import html as html_module
from tests.copies import COPIES
from tests.end_to_end.pages import enriched, mixtures, report, safe, telling

STYLE = Path(html_module.__file__).parent / "styles" / "report.css"


@COPIES
def test_hostile_names_stay_names(path):
    family = cs.families.Dirichlet(3)
    names = ["<script>alert(1)</script>", "\u202e\ud800", '"><img src=x onerror=alert(1)>']
    sites = [
        cs.Posterior(family, family.to_natural(concentration=[[5.0, 1.0, 3.0]]), features=cs.Features(names=names))
        for _ in "ab"
    ]
    page = report(cs.fuse(sites, n_components=1), path)
    safe(page)
    assert names[0] in page.text
    assert r"\u202e\ud800" in page.text
    plane = cs.families.Gaussian(2)
    natural = plane.to_natural(mean=[[0.0, 1.0]], covariance=[np.eye(2)])
    sites = [cs.Posterior(plane, natural, features=cs.Features(names=names[:1] + names[2:])) for _ in "ab"]
    page = report(cs.fuse(sites, n_components=1), path)
    safe(page)
    assert names[0] in page.text


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_is_that_of_wcag_aa(scheme):
    palettes = re.findall(r":root \{(.*?)\}", STYLE.read_text(), re.DOTALL)[:2]
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w{6})", palette)) for palette in palettes)
    assert sorted(light) == sorted(dark)
    colours = light if scheme == "light" else dark
    for text in ("ink", "soft", "accent", *(f"k{i}" for i in range(10))):  # 4.5 for text, and colours write numbers
        assert contrast(colours[text], colours["paper"]) >= 4.5, text
    assert contrast(colours["warn"], colours["warn-paper"]) >= 4.5
    for shade in range(6):
        assert contrast(colours["on-shade"], colours[f"s{shade}"]) >= 4.5, shade
    assert contrast(colours["edge"], colours["paper"]) >= 3.0  # what is drawn rather than written


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUIETLY = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
QUIETLY += ["--disable-background-networking", "--disable-component-update", "--virtual-time-budget=5000"]
QUIETLY += ["--host-resolver-rules=MAP * ~NOTFOUND"]  # so that the browser itself asks nobody either


def browse(page, tmp_path, *flags):
    """Open a page in a browser and return the document as it stands there, and what the browser logged."""
    command = [CHROMIUM, *QUIETLY, f"--user-data-dir={tmp_path / 'browser'}", *flags, "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, done.stderr


@pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: no chromium on PATH")
@pytest.mark.parametrize("width", [360, 1200])
def test_a_browser_shows_every_figure_and_fetches_nothing(fused, tmp_path, path, width):
    page = report(enriched(fused, heterogeneity={"mean": 1.0}), path)
    _, logged = browse(path, tmp_path, "--enable-logging=stderr", "--v=0")
    assert "CONSOLE" not in logged
    probe = tmp_path / "probe.html"  # the same page without its policy, which allows no script, and with one
    script = (
        "<script>addEventListener('load', () => { document.body.dataset.sizes = JSON.stringify("
        "[...document.querySelectorAll('svg')].map(e => { const r = e.getBoundingClientRect();"
        "return [Math.round(r.width), Math.round(r.height), Math.round(r.left)]; }));"
        "document.body.dataset.fetched = performance.getEntriesByType('resource').length;"
        "document.body.dataset.wide = document.documentElement.scrollWidth - innerWidth; })</script>"
    )
    probe.write_text(re.sub(r"<meta http-equiv[^>]*>", script, page.source))
    shown, _ = browse(probe, tmp_path, f"--window-size={width},1000")
    sizes = re.findall(r"\[(\d+),(\d+),(-?\d+)\]", re.search(r'data-sizes="([^"]*)"', shown).group(1))
    assert len(sizes) == len(page.all("svg")) == 5
    assert all(int(wide) > 150 and int(high) > 60 and int(left) >= 0 for wide, high, left in sizes)
    assert 'data-fetched="0"' in shown
    assert int(re.search(r'data-wide="(-?\d+)"', shown).group(1)) <= 0  # the page itself never scrolls sideways


WIDTHS = (390, 820, 1280)


def widths_of(page, tmp_path):
    """Return by width of the window how far the page is wider, and how many things stand out of their box in it."""
    frames = "".join(
        f'<iframe width="{width}" height="900" srcdoc="{escape(page.source)}"></iframe>' for width in WIDTHS
    )
    script = (
        "<script>addEventListener('load', () => { document.body.dataset.result = [...document.querySelectorAll("
        "'iframe')].map(f => { const d = f.contentDocument, page = d.documentElement;"
        "const wide = page.scrollWidth - page.clientWidth;"
        "const out = [...d.querySelectorAll('#in .scroll, #in .scroll *, #made .scroll')].filter("
        "e => e.getBoundingClientRect().right > f.width || e.matches('.scroll') && e.scrollWidth > e.clientWidth + 1);"
        "return [f.width, wide, out.length].join(' '); }).join('|'); })</script>"
    )
    (tmp_path / "frames.html").write_text(f"<!doctype html><body style='margin:0'>{script}{frames}</body>")
    shown, _ = browse(tmp_path / "frames.html", tmp_path, "--window-size=1400,1000")
    found = re.search(r'data-result="([^"]*)"', shown).group(1)
    return {int(width): (int(wide), int(out)) for width, wide, out in (one.split() for one in found.split("|"))}


@pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: no chromium on PATH")
def test_notes_on_sites_are_whole_at_every_width(tmp_path, path):
    files = [tmp_path / f"{name}.safetensors" for name in ("karolinska-university-hospital", *"bcdef")]
    for model, file in zip(mixtures(), files, strict=True):
        cs.save(model, file)
    why = "is far from every other site in most columns"
    fusion = cs.fuse(files, n_components=3)
    name = fusion.provenance["inputs"][4]["name"]
    page = report(telling(fusion, outliers=[{"name": name, "why": why}]), path)
    assert f"Outlier: {why}." in page.words
    assert "columns-7" in page.source  # with counts and digests: as wide as the table of sites can be
    assert widths_of(page, tmp_path) == dict.fromkeys(WIDTHS, (0, 0))


AXE = os.environ.get("CONSILIENCE_AXE")
"""Path of axe.min.js of axe-core, which is no dependency of the tests: the package axe-core-python has it."""


def probed(page, tmp_path, script, *flags):
    """Open a page without its policy and with a script, and return what the script left in the document's dataset."""
    probe = tmp_path / "probe.html"
    probe.write_text(re.sub(r"<meta http-equiv[^>]*>", lambda _: f"<script>{script}</script>", page.source))
    shown, _ = browse(probe, tmp_path, *flags)
    return re.search(r'data-result="([^"]*)"', shown).group(1)


@pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: no chromium on PATH")
def test_a_button_above_a_column_sorts_the_rows_and_no_script_does(fused, tmp_path, path):
    page = report(fused, path)
    script = (
        "addEventListener('load', () => { const table = document.querySelector('#in table');"
        "const order = () => [...table.querySelectorAll('tbody tr')].map(r => [r.getBoundingClientRect().top,"
        "r.firstElementChild.textContent.trim()]).sort((a, b) => a[0] - b[0]).map(r => r[1]).join();"
        "const before = order(); const press = s => { const b = table.querySelector(s); b.focus(); b.checked = true; };"
        "press('.sort.down.by-a'); const down = order(); press('.sort.up.by-a');"
        "document.body.dataset.result = [before, down, order()].join('|'); })"
    )
    before, down, up = probed(page, tmp_path, script, "--window-size=1200,1000").split("|")
    assert down.split(",") == before.split(",")[::-1]
    assert up == before


@pytest.mark.skipif(CHROMIUM is None or AXE is None, reason="needs a browser and CONSILIENCE_AXE")
@pytest.mark.parametrize("flags", [(), ("--force-dark-mode", "--blink-settings=preferredColorScheme=0")])
@pytest.mark.parametrize("width", [400, 1200])
def test_axe_finds_nothing_against_wcag_aa(fused, tmp_path, path, width, flags):
    page = report(enriched(fused, heterogeneity={"mean": 1.0}, outliers=[{"name": "model 4", "why": "far"}]), path)
    script = (
        Path(AXE).read_text()
        + ";addEventListener('load', () => axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa']}).then(found => {"
        "document.body.dataset.result = JSON.stringify(found.violations.map(one => one.id)) || ''; }))"
    )
    assert probed(page, tmp_path, script, f"--window-size={width},1000", *flags) == "[]"
