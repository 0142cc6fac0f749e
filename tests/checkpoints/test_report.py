"""The report of a merge shows how far it goes and where signs disagree, layer by layer."""

import re

import pytest
import torch

import consilience as cs
from tests.checkpoints.some_adapters import factors, write_adapter
from tests.checkpoints.some_checkpoints import write
from tests.cli.running import command

LAYERS = 5


def models(folder, towers=("model.layers",), count=3):
    """Write a base and some changes of it."""
    draw = torch.Generator().manual_seed(0)
    shapes = {f"{tower}.{i}.mlp.weight": (40, 30) for tower in towers for i in range(LAYERS)} | {"norm": (40,)}
    base = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    states = [
        {name: values + 0.1 * torch.randn(values.shape, generator=draw) for name, values in base.items()}
        for _ in range(count - 1)
    ]
    return [write(folder / f"m<{number}>", state) for number, state in enumerate((base, *states))]


def numbers_of(page, label):
    """Return what a figure says in words."""
    alt = re.search(rf'aria-label="({label}[^"]*)"', page)[1]
    return [float(number.rstrip(".")) for number in re.findall(r"\d+\.\d+", alt)]


def test_a_figure_has_the_ratios_and_the_conflicts_of_layers(tmp_path):
    base, *fine = models(tmp_path)
    done = cs.merge(fine, tmp_path / "out", "task_arithmetic", base=base)
    done.report(tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text()
    layers = done.provenance["details"]["changes"]["layers"]
    ratios = [layer["ratio"] for layer in layers.values()]
    assert list(layers) == [str(number) for number in range(LAYERS)]
    assert numbers_of(page, "The norm of the")[:2] == [round(min(ratios), 2), round(max(ratios), 2)]
    lowest, highest, independent = numbers_of(page, "The share of entries")
    conflicts = [100 * layer["conflicts"] for layer in layers.values()]
    assert [lowest, highest] == [round(min(conflicts), 1), round(max(conflicts), 1)]
    assert independent == 50
    assert 40 < lowest < highest < 60  # signs of independent changes
    assert page.count("<circle") == 2 * LAYERS
    assert "status act" in page


def test_the_same_merge_has_the_same_page_and_names_are_escaped(tmp_path):
    base, *fine = models(tmp_path)
    done = cs.merge(fine, tmp_path / "out", "ties", base=base)
    pages = []
    for name in "ab":
        done.report(tmp_path / name)
        pages.append((tmp_path / name).read_bytes())
    assert pages[0] == pages[1]
    assert b"m&lt;1&gt;" in pages[0]
    assert b"m<1>" not in pages[0]


def test_every_tower_has_figures_of_its_own(tmp_path):
    base, *fine = models(tmp_path, ("vision.layers", "model.layers"))
    done = cs.merge(fine, tmp_path / "out", "task_arithmetic", base=base, scaling=0.3)
    assert next(iter(done.provenance["details"]["changes"]["layers"])) == "model.layers.0"
    done.report(tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text()
    assert page.index("<h3>model.layers</h3>") < page.index("<h3>vision.layers</h3>")
    assert page.count("The share of entries") == 2


def test_without_a_base_there_are_no_changes_to_show(tmp_path):
    _, *fine = models(tmp_path)
    cs.merge(fine, tmp_path / "out").report(tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text()
    assert "<circle" not in page
    assert "How it was made" in page


def test_a_plan_has_no_report(tmp_path):
    _, *fine = models(tmp_path)
    with pytest.raises(cs.errors.OptionError, match="there is none of a plan"):
        cs.merge(fine, tmp_path / "out", dry_run=True).report(tmp_path / "a.html")


def test_the_command_writes_it(tmp_path):
    _, *fine = models(tmp_path)
    page = tmp_path / "a.html"
    result = command("merge", *fine, "-o", tmp_path / "out", "--report", page)
    assert result.code == 0
    assert page.read_text().startswith("<!doctype html>")
    assert f"wrote {page}" in result.out.replace("\n", "")
    result = command("merge", *fine, "-o", tmp_path / "other", "--report", tmp_path / "other")
    assert "is also a file of models" in result.err
    assert not (tmp_path / "other").exists()


def test_the_command_writes_it_of_a_folder_and_of_a_single_file_that_were_merged_before(tmp_path):
    base, *fine = models(tmp_path)
    for output in (tmp_path / "out", tmp_path / "single.safetensors"):
        cs.merge(fine, output, "ties", base=base).report(tmp_path / "a.html")
        assert command("report", output, "-o", tmp_path / "b.html", "--overwrite").code == 0
        assert (tmp_path / "b.html").read_text() == (tmp_path / "a.html").read_text()
    refused = command("report", tmp_path / "out", "-o", tmp_path / "c.html", "--truth", "y")
    assert refused.complaints() == ["--truth: shows nothing of a merge; leave it out"]


@pytest.mark.parametrize("text", ["{", "{}", '{"format": "consilience-merge", "inputs": 3}'])
def test_a_record_that_no_merge_wrote_is_refused(tmp_path, text):
    (tmp_path / "merge.json").write_text(text)
    refused = command("report", tmp_path, "-o", tmp_path / "a.html")
    assert (refused.code, len(refused.complaints())) == (1, 1)
    assert not (tmp_path / "a.html").exists()


def test_the_page_of_adapters_calls_them_so_and_has_no_norm_of_a_base(tmp_path):
    adapters = [write_adapter(tmp_path / name, factors(seed)) for seed, name in enumerate("ab")]
    cs.merge(adapters, tmp_path / "out").report(tmp_path / "p")
    page = (tmp_path / "p").read_text()
    assert "2 adapters" in page
    assert ">base<" not in page


def test_the_name_of_a_line_is_not_on_the_curve(tmp_path):
    base, *fine = models(tmp_path)
    cs.merge(fine, tmp_path / "out", "task_arithmetic", base=base).report(tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text()
    figure = re.search(r'<svg [^>]*aria-label="The share of entries with both signs.*?</svg>', page, re.DOTALL)[0]
    x, y = map(float, re.search(r'<text x="([\d.]+)" y="([\d.]+)"[^>]*>independent signs', figure).groups())
    right = 'text-anchor="end"' in re.search(r"<text [^>]*>independent signs", figure)[0]
    low, high = (x - 100, x) if right else (x, x + 100)
    dots = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', figure)
    assert dots
    assert all(not (low < float(cx) < high and y - 12 < float(cy) < y + 2) for cx, cy in dots)
