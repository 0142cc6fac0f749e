"""The main job: sites with different populations train apart, their files are fused, and all gain.

The demo does it on scikit-learn's digits; here its files are fused again by the command and judged on held-out digits.
"""

import contextlib
import hashlib
import json
import pickle
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.metrics import adjusted_mutual_info_score

import consilience as cs
from consilience.cli.demo import CLASSES_OF_SITES, DIM, HELD_OUT, LOCAL_COMPONENTS, _load_features, _split_rows
from consilience.core.provenance import library_versions
from consilience.posteriors.files import read_posterior
from tests.cli.running import command
from tests.tolerances import ROUNDING

SITES = [f"demo/seed-0/site-{number}.safetensors" for number in range(1, 6)]
FUSED = "demo/seed-0/fused.safetensors"


def consilience(folder, *arguments):
    with contextlib.chdir(folder):
        done = command(*arguments)
    assert (done.code, done.err) == (0, "")
    return done.out


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A folder in which the demo ran once, and the command fused its files in two ways."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "said.txt").write_text(consilience(folder, "demo", "demo", "--seeds", "1"))
    for method in ("kl", "average"):
        consilience(
            folder, "fuse", *SITES, "-o", f"{method}.safetensors", "--method", method, "--min-count", "0", "--quiet"
        )
    return folder


@pytest.fixture(scope="module")
def held_out():
    """Digits that no site saw: features and classes."""
    values, classes, _ = _load_features()
    rows = _split_rows(classes, np.random.default_rng(0))[1]
    return values[rows], classes[rows]


@pytest.fixture(scope="module")
def record(job):
    return json.loads((job / "demo" / "demo.json").read_text())


def rebuilt(path):
    return cs.rebuild(cs.load(path))


def test_the_populations_differ():
    values, classes, names = _load_features()
    sites, held_out = _split_rows(classes, np.random.default_rng(0))
    assert values.shape == (len(classes), DIM) == (len(classes), len(names))
    together = np.concatenate([*sites, held_out])
    assert sorted(together) == list(range(len(classes)))  # every digit is at one site or held out
    assert len(held_out) == HELD_OUT
    assert [tuple(sorted(set(classes[rows]))) for rows in sites] == [tuple(sorted(c)) for c in CLASSES_OF_SITES]


def test_the_fused_model_beats_every_site_and_the_naive_average(job, held_out):
    values, classes = held_out
    fused, average = rebuilt(job / "kl.safetensors"), rebuilt(job / "average.safetensors")
    for model in (average, *(rebuilt(job / site) for site in SITES)):
        assert model.means_.shape == (LOCAL_COMPONENTS, DIM)
        assert fused.score(values) > model.score(values) + 1.0  # nats per digit
        found = adjusted_mutual_info_score(classes, fused.predict(values))
        assert found > adjusted_mutual_info_score(classes, model.predict(values)) + 0.1


def test_the_demo_did_what_it_says_the_command_does(job):
    """Its fused file is that of the command, but for nothing: the same bytes."""
    assert (job / FUSED).read_bytes() == (job / "kl.safetensors").read_bytes()


def test_the_numbers_of_the_demo_are_those_of_its_files(job, held_out, record):
    values, classes = held_out
    paths = {f"site {number}": site for number, site in enumerate(SITES, 1)} | {"fused": FUSED}
    for name, path in paths.items():
        model, row = rebuilt(job / path), record["results"][name]
        for column, kind in (("log_density", "predictive"), ("plug_in", "plug-in"), ("bound", "bound")):
            assert_allclose(cs.log_density(job / path, values, kind=kind).mean(), row[column], rtol=1e3 * ROUNDING)
        assert_allclose(model.score(values), row["bound"], rtol=ROUNDING)
        assert_allclose(adjusted_mutual_info_score(classes, model.predict(values)), row["mutual_information"])
        assert row["components"] == [model.means_.shape[0]]


def test_the_record_of_the_demo_is_complete(job, record):
    assert sorted(record) == ["fused_minus", "results", "settings", "verdicts", "versions"]
    assert record["versions"] == library_versions()
    assert record["settings"]["seeds"] == [0]
    assert record["settings"]["held_out"] == HELD_OUT
    assert record["settings"]["classes_of_sites"] == [list(digits) for digits in CLASSES_OF_SITES]
    others = ["sites, best", "sites, mean", "naive average", "k-means, 10 given", "concatenation", "all data pooled"]
    assert [name for name in record["results"] if not name.startswith("site ")] == ["fused", *others]
    assert list(record["fused_minus"]) == others
    for row in record["results"].values():
        assert list(row) == ["log_density", "plug_in", "bound", "mutual_information", "components"]
        assert all(len(column) == 1 and np.isfinite(column).all() for column in row.values())
    best = max(record["results"][f"site {number}"]["log_density"][0] for number in range(1, 6))
    assert record["results"]["sites, best"]["log_density"] == [best]
    fused = record["results"]["fused"]["log_density"][0]
    for name, difference in record["fused_minus"].items():
        assert_allclose(difference["mean"], fused - record["results"][name]["log_density"][0], rtol=1e-9)
        assert difference["n"] == HELD_OUT
    assert record["fused_minus"]["sites, best"]["interval"][0] > 1.0  # nats per digit


@pytest.fixture(scope="module")
def picture(job):
    """The root of the demo's picture, which is SVG."""
    return ElementTree.parse(job / "demo" / "demo.svg").getroot()  # noqa: S314  (made just before)


def test_the_picture_of_the_demo_shows_every_model_and_every_component(picture, job, record):
    words = [element.text for element in picture.findall("{*}text")]
    assert {name for name in record["results"] if not name.startswith("site ")} <= set(words)
    assert {f"site {number}" for number in range(1, 6)} <= set(words)
    assert any("Log predictive density" in word for word in words)
    shown = {name: row for name, row in record["results"].items() if not name.startswith("site ")}
    assert {f"{row['log_density'][0]:.2f}" for row in shown.values()} <= set(words)
    assert {f"{row['mutual_information'][0]:.3f}" for row in shown.values()} <= set(words)
    n_models = sum(not name.startswith("site ") for name in record["results"])
    assert len(picture.findall("{*}circle")) == 2 * n_models  # two scores
    cells = [element for element in picture.findall("{*}rect") if element.get("rx")]
    assert cs.load(job / FUSED).n_components <= len(cells) <= 5 * LOCAL_COMPONENTS


def test_the_picture_of_the_demo_fits_its_frame(picture):
    width, height = float(picture.get("width")), float(picture.get("height"))
    for element in picture.iter():
        for attributes, end in ((("x", "x1", "x2", "cx"), width), (("y", "y1", "y2", "cy"), height)):
            assert all(0 <= float(element.get(name, 0)) <= end for name in attributes)


def test_a_fused_file_says_how_it_was_made(job):
    _, made = read_posterior(job / "kl.safetensors")
    assert sorted(made) == ["inputs", "method", "options", "result", "seed", "verdict", "versions"]
    assert made["method"] == "kl"
    assert made["options"] == {**asdict(cs.methods.KLFusion()), "min_count": 0.0}
    assert made["seed"] == 0
    assert made["versions"] == library_versions()
    expected = [
        {
            "name": Path(site).stem,
            "components": LOCAL_COMPONENTS,
            "weight": 1.0,
            "sha256": hashlib.sha256((job / site).read_bytes()).hexdigest(),
        }
        for site in SITES
    ]
    found = sorted(made["inputs"], key=lambda one: one["name"])
    assert [{key: one[key] for key in expected[0]} for one in found] == expected
    size = made["result"]["n_components"]
    assert {label for one in found for label in one["labels"]} - {-1} == set(range(size))
    assert all(len(one["labels"]) == LOCAL_COMPONENTS for one in found)
    assert made["result"]["status"] == "converged"
    assert made["result"]["n_components"] == cs.load(job / "kl.safetensors").n_components


def test_a_fused_file_can_be_made_again_from_what_it_says(job, monkeypatch):
    monkeypatch.chdir(job)
    _, made = read_posterior(Path("kl.safetensors"))
    by_digest = {hashlib.sha256(Path(site).read_bytes()).hexdigest(): site for site in SITES}
    models = {one["name"]: by_digest[one["sha256"]] for one in made["inputs"]}
    weights = {one["name"]: one["weight"] for one in made["inputs"]}
    cs.fuse(models, made["method"], weights=weights, rng=made["seed"], **made["options"]).save("again.safetensors")
    assert Path("again.safetensors").read_bytes() == Path("kl.safetensors").read_bytes()


def test_files_carry_parameters_only(job):
    """No image fits into what a site sends: as many numbers as its posterior has, and names."""
    for site in SITES:
        posterior = cs.load(job / site)
        numbers = posterior.natural.size + posterior.prior.size + posterior.weights.size + 1
        assert (job / site).stat().st_size < 8 * numbers + 2048


def test_nothing_is_pickled(job, tmp_path, monkeypatch):
    written = [path for path in job.rglob("*") if path.is_file()]
    assert {path.suffix for path in written} == {".safetensors", ".json", ".svg", ".html", ".txt"}
    for path in written:
        # Every pickle of protocol 2 and above; a safetensors file may start with the first of these bytes alone.
        assert not path.read_bytes().startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"))
    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, lambda *_arguments, **_options: pytest.fail("something was pickled"))
    fusion = cs.fuse([job / site for site in SITES], n_components=10, restarts=1)
    fusion.save(tmp_path / "fused.safetensors")
    assert rebuilt(tmp_path / "fused.safetensors").means_.shape == (10, DIM)


def test_models_and_files_can_be_mixed(job):
    files = [job / site for site in SITES]
    mixed = [cs.rebuild(cs.load(files[0])), cs.load(files[1]), str(files[2]), *files[3:]]
    assert cs.check(mixed) == []
    found, expected = (cs.fuse(models, n_components=10, restarts=1).posterior for models in (mixed, files))
    assert_allclose(found.natural, expected.natural, rtol=ROUNDING, atol=ROUNDING * np.abs(expected.natural).max())
    assert found.source == expected.source
