"""``consilience report`` and ``fuse --report``: the page, and one clear line for whatever cannot be reported."""

import functools
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save as to_safetensors

import consilience as cs
from tests.cli.bad_files import BAD, content, site

TWO = ("a.safetensors", "b.safetensors")
FUSED = "fused.safetensors"
PAGE = "report.html"


@functools.cache
def fused_file():
    """Return the bytes of the fused file of the two sites in the current folder, which are those of every test."""
    cs.fuse(TWO).save(FUSED)
    return Path(FUSED).read_bytes()


@pytest.fixture
def fused(folder):
    (folder / FUSED).write_bytes(fused_file())
    return FUSED


def forge(folder, change):
    """Rewrite the fused file with a changed header."""
    with safe_open(folder / FUSED, framework="numpy") as file:
        document = json.loads(file.metadata()["consilience"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(document["provenance"])
    (folder / FUSED).write_bytes(to_safetensors(tensors, metadata={"consilience": json.dumps(document)}))


def test_a_fused_file_alone_is_enough(folder, command, fused):
    done = command("report", fused, "-o", PAGE)
    assert (done.code, done.out, done.err) == (0, f"wrote {PAGE}\n", "")
    page = (folder / PAGE).read_text()
    assert "2 models with 6 components" in page
    assert ">Matching</h2>" in page
    assert "Smallest count" not in page
    assert "does not hold the counts of its sites" in page


def test_with_the_files_of_its_sites_it_is_the_page_of_the_fusion(folder, command):
    assert command("fuse", *TWO, "-o", FUSED, "--report", "direct.html").out.endswith(
        f"wrote {FUSED} and direct.html\n"
    )
    assert command("report", FUSED, *reversed(TWO), "-o", PAGE, "--quiet").out == ""
    page = (folder / PAGE).read_bytes()
    assert b"Smallest count" in page
    assert page == (folder / "direct.html").read_bytes()
    cs.fuse(TWO).report("library.html")
    assert page == (folder / "library.html").read_bytes()


def test_sites_may_be_missing_and_may_have_moved(folder, command, fused):
    (folder / "a.safetensors").rename(folder / "moved.safetensors")
    assert command("report", fused, "moved.safetensors", "-o", PAGE).code == 0
    went_in = (folder / PAGE).read_text().partition('id="out"')[0]
    counts = re.findall(r'<th scope="row"[^>]*>[ab]</th>.*?</tr>', went_in, re.DOTALL)
    assert ["–" in row for row in counts] == [False, True]


def test_a_recipe_may_ask_for_a_report(folder, command):
    (folder / "job").mkdir()
    models = ", ".join(f"../{path.name}" for path in sorted(folder.glob("*.safetensors")))
    (folder / "job" / "recipe.yaml").write_text(f"models: [{models}]\noutput: f.safetensors\nreport: r.html\n")
    assert command("fuse", "--recipe", "job/recipe.yaml").code == 0
    assert (folder / "job" / "r.html").read_text().startswith("<!doctype html>")
    assert command("fuse", "--recipe", "job/recipe.yaml", "--report", "other.html").code == 0
    assert (folder / "other.html").read_bytes() == (folder / "job" / "r.html").read_bytes()


def test_the_history_is_in_the_file(folder, command, fused):
    result = json.loads(command("inspect", "--json", fused).out)["header"]["provenance"]["result"]
    fusion = cs.fuse(TWO)
    np.testing.assert_allclose(result["history"], fusion.history, rtol=1e-11)
    assert result["history"] == [float(f"{value:.12g}") for value in fusion.history]


def refused(done, *messages):
    assert (done.code, done.out) == (1, "")
    lines = done.complaints()
    assert len(lines) == len(messages)
    for line, message in zip(lines, messages, strict=True):
        assert re.search(message, line), line


def test_every_problem_with_the_sites_has_a_line(folder, command, fused, unchanged):
    (folder / "stranger.safetensors").write_bytes(content(site(7)))
    (folder / "copy.safetensors").write_bytes((folder / "a.safetensors").read_bytes())
    (folder / "broken.safetensors").write_bytes(BAD["truncated"][0])
    unchanged()
    sites = ("a.safetensors", "stranger.safetensors", "copy.safetensors", "broken.safetensors", "nobody")
    refused(
        command("report", fused, *sites, "-o", PAGE),
        r"^stranger.safetensors: is not one of the files that fused.safetensors was made from: none has SHA-256 \w{12}",
        "^copy.safetensors: is the same file as a.safetensors; leave one out",
        "^broken.safetensors: is truncated or not a safetensors file",
        "^nobody: cannot be read: No such file",
    )


def test_a_file_fused_from_models_in_memory_knows_no_files(folder, command, unchanged):
    cs.fuse([site(0), site(1)]).save(FUSED)
    assert command("report", FUSED, "-o", PAGE).code == 0
    (folder / PAGE).unlink()
    unchanged()
    refused(command("report", FUSED, "a.safetensors", "-o", PAGE), "was made from models in memory")


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_with_one_line(folder, command, unchanged, name):
    (folder / "bad.safetensors").write_bytes(BAD[name][0])
    unchanged()
    refused(command("report", "bad.safetensors", "-o", PAGE), "^bad.safetensors: ")


def test_a_file_of_a_site_is_not_a_fused_one(command, unchanged):
    unchanged()
    refused(
        command("report", "a.safetensors", "-o", PAGE), "^a.safetensors: does not say how it was made.*give a fused"
    )


LIES = {
    "labels too few": (lambda p: p["inputs"][0]["labels"].pop(), "2 labels for 3 components"),
    "labels too high": (lambda p: p["inputs"][0].update(labels=[0, 1, 99]), "labels 0 to 99 for"),
    "labels too low": (lambda p: p["inputs"][0].update(labels=[0, 1, -2]), "labels -2 to 1 for"),
    "confidence": (lambda p: p["inputs"][0].update(confidence=[0.5]), "1 confidences for 3 components"),
    "no components": (
        lambda p: p["inputs"][0].update(components=0, labels=None, confidence=None),
        "that it has 0 components",
    ),
    "no inputs": (lambda p: p.update(inputs=[]), "names no inputs"),
}


@pytest.mark.parametrize("case", LIES)
def test_a_provenance_that_contradicts_itself_is_refused(folder, command, fused, unchanged, case):
    forge(folder, LIES[case][0])
    unchanged()
    refused(command("report", fused, "-o", PAGE), f"^{fused}: .*{LIES[case][1]}")


def test_a_site_that_is_not_what_the_provenance_says_is_refused(folder, command, fused, unchanged):
    forge(folder, lambda p: [record.update(components=2, labels=[0, 1], confidence=None) for record in p["inputs"]])
    unchanged()
    refused(command("report", fused, "a.safetensors", "-o", PAGE), "that it has 2 components, but it has 3")


ODD = [
    {"history": [1.0, float("nan")], "path": [{"n_components": 3, "cost": "low"}], "objective": float("inf")},
    {"history": "none", "path": {"a": 1}, "heterogeneity": [1, 2], "outliers": "all", "status": ["?"]},
    {"history": [10**400, 1], "path": [{"n_components": 10**400, "cost": 1}], "outliers": [1]},
    {"heterogeneity": {"a": None}, "outliers": [{"name": 5}], "path": [{}], "status": "melted", "spread": "x" * 10**5},
    {"path": [{"n_components": 1.5, "cost": 2}, 3], "history": [True], "nested": {"a": {"b": [1]}}},
]


@pytest.mark.parametrize("result", ODD)
def test_details_of_unexpected_form_are_listed_at_most(folder, command, fused, result):
    forge(folder, lambda p: p["result"].update(result))
    done = command("report", fused, "-o", PAGE)
    assert (done.code, done.err) == (0, "")
    assert len((folder / PAGE).read_bytes()) < 100_000


def test_names_from_files_cannot_command_the_page(folder, command, fused):
    name = "<script>alert(1)</script>\"' onload=x \u202e\n.safetensors"
    hostile = "<img src=x onerror=alert(1)>&{{ 7 * 7 }}"

    def change(provenance):
        provenance["inputs"][0]["name"] = name
        provenance["method"] = provenance["versions"]["numpy"] = provenance["options"]["gap"] = hostile
        provenance["options"][hostile] = 1
        provenance["result"].update({"status": hostile, hostile: hostile, "heterogeneity": {hostile: 1.0}})
        provenance["result"]["outliers"] = [{"name": name, "why": hostile}]

    forge(folder, change)
    assert command("report", fused, *TWO, "-o", PAGE).code == 0
    page = (folder / PAGE).read_bytes().decode("utf-8")
    assert "<script" not in page
    assert "<img" not in page
    assert "49" not in re.findall(r"onerror=alert\(1\)&gt;&amp;([^<]{0,20})", page)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "&lt;img src=x onerror=alert(1)&gt;&amp;{{ 7 * 7 }}" in page
    assert "\u202e" not in page


PLACES = {
    "no folder": ("nowhere/report.html", "there is no folder nowhere"),
    "a folder": ("folder", "it is a folder"),
    "a pipe": ("pipe", "it is not an ordinary file"),
    "a site": ("a.safetensors", "is also a file of models; give another name"),
    "the fused file": (f"folder/../{FUSED}", "is also a file of models; give another name"),
}


@pytest.mark.parametrize("case", PLACES)
def test_a_place_that_cannot_be_written_is_refused_before_any_work(
    folder, command, fused, unchanged, monkeypatch, case
):
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    path, message = PLACES[case]
    unchanged()
    refused(command("report", fused, *TWO, "-o", path), message)
    monkeypatch.setattr("consilience.api.fuse", lambda *_args, **_options: pytest.fail("worked in vain"))
    refused(command("fuse", *TWO, "-o", FUSED, "--report", path), message)


def test_a_report_is_not_written_over_the_output(folder, command, unchanged):
    unchanged()
    refused(command("fuse", *TWO, "-o", "same", "--report", "./same"), "is also a file of models")


def test_a_full_disk_leaves_the_report_of_before(folder, command, fused, unchanged, monkeypatch):
    (folder / PAGE).write_text('<meta name="generator" content="consilience">of yesterday')
    unchanged()

    def full(_descriptor):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("os.fsync", full)
    refused(command("report", fused, "-o", PAGE), f"{PAGE}: cannot be written: No space left on device")


def test_usage(command, fused, unchanged):
    unchanged()
    for words, message in ((["report"], "Missing argument 'FUSED'"), (["report", fused], "Missing option '-o'")):
        done = command(*words)
        assert done.code == 2
        assert message in done.err


@pytest.mark.slow
def test_the_command_in_a_process(folder, process, fused):
    shutil.copy(folder / FUSED, folder / "again.safetensors")
    assert process("report", "again.safetensors", *TWO, "-o", PAGE).out == f"wrote {PAGE}\n"
    first = (folder / PAGE).read_bytes()
    assert process("report", fused, *TWO, "-o", PAGE).code == 0
    assert (folder / PAGE).read_bytes() == first
