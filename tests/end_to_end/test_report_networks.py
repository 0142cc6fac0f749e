"""The report of fused networks: what it says, in whose hands, and from files alone."""

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import consilience as cs
from consilience.drawing import html as html_module
from consilience.drawing.cells import N_SHADES, UNKNOWN, cell_map, shade_classes
from consilience.errors import FileFormatError, InputError
from consilience.matching.result import Matching
from consilience.networks import landscape
from consilience.networks.files import write_network
from consilience.networks.landscape.barrier import Barrier
from consilience.networks.landscape.plane import Marker, Plane
from consilience.networks.network import Network
from consilience.networks.report.content import content_of
from consilience.networks.report.couplings import MAX_MAPS, couplings_of
from consilience.networks.report.page import (
    checked_content_of,
    render_network,
    shown_networks_of_files,
    write_network_content,
)
from consilience.networks.report.planes import levels_of, plane_map
from tests.end_to_end.pages import Page, readable, report, safe
from tests.end_to_end.test_report_page import CHROMIUM, browse, contrast
from tests.tolerances import ROUNDING, SINGLE_PRECISION

HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "\u202egnp.elif\x07"]
SIZE_AT_MOST = 1_000_000


def perceptron(seed, hidden=(16, 12)):
    torch.manual_seed(seed)
    sizes = (64, *hidden, 10)
    layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
    return nn.Sequential(*[part for layer in layers[:-1] for part in (layer, nn.ReLU())], layers[-1]).eval()


@pytest.fixture(scope="module")
def data():
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x[:300] / 16, dtype=torch.float32), torch.tensor(y[:300])


@pytest.fixture(scope="module")
def nets(data):
    x, y = data
    trained = []
    for seed in range(3):
        net = perceptron(seed)
        optimizer = torch.optim.Adam(net.parameters(), 1e-2)
        for _ in range(40):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        trained.append(net)
    return trained


@pytest.fixture(scope="module")
def fusion(nets, data):
    return cs.fuse(nets[:2], "consensus", example=data[0][:2])


@pytest.fixture(scope="module")
def shown(nets, fusion, data):
    evaluate = landscape.Classification(*data)
    aligned = fusion.aligned_models
    return {
        "barriers": {
            "as they are": cs.barrier(*nets[:2], evaluate, 7),
            "aligned": cs.barrier(*aligned, evaluate, 7),
        },
        "planes": {"Three of them": cs.plane(*nets, evaluate, points=5, marked={"fused": fusion.model})},
        "scores": {"model 0": {"loss": 0.25, "accuracy": 0.5}, "fused": {"accuracy": 0.75, "spread": float("nan")}},
    }


def test_a_fusion_has_every_section(fusion, shown, path):
    page = report(fusion, path, **shown)
    safe(page)
    readable(page)
    assert page.sections == ["in", "out", "scores", "groups", "who", "between", "planes", "found", "made"]
    assert "2 networks → one of 1,374 parameters" in page.words
    assert "28 in 2 groups that move together" in page.words
    assert re.search(r"proved: \d random changes of every group", page.words)
    assert "Repair layers fitted on synthetic inputs" in page.words
    assert any(text.startswith("Distances of the models from their average in 2 groups: 0 ") for text in page.said)
    assert sum("kept their number" in text for text in page.said) == 2  # the reference of the two keeps its order
    assert any(text.startswith("Loss on lines between networks. as they are: ") for text in page.said)
    assert any(text.startswith("Error on a plane of 5 × 5 points: from ") for text in page.said)
    assert any("The objective against the step" in text for text in page.said)
    assert len(page.source) < SIZE_AT_MOST
    assert report(fusion, path, **shown).source == page.source


def test_numbers_of_the_page_are_those_of_the_fusion(fusion, shown, path):
    page = report(fusion, path, **shown)
    for name, one in fusion.quality.items():
        assert f"{name} {one.units} each {one.units} {one.shared} {one.before:.3f} {one.distance:.3f}" in page.words
    for name, one in shown["barriers"].items():
        said = " ".join(f"{v:.4g}" for v in (one.height(), one.height_over_maximum(), one.height_over_mean()))
        assert re.search(rf"{name} loss \S+ \S+ {re.escape(said.replace('-', '−'))} ", page.words)
    marker = shown["planes"]["Three of them"].markers[-1]
    assert f"fused {marker.values['loss']:.4g}" in page.words
    assert f"{marker.distance:.4g}" in page.words
    assert "Network loss accuracy spread model 0 0.2500 0.5000 – fused – 0.7500 –" in page.words


def test_distances_of_layers_add_up_to_those_of_all_arrays(fusion):
    content = checked_content_of(fusion._shown())
    arrays = [network.arrays for network in fusion.aligned]
    for layer in content.layers:
        keys = [key for key in arrays[0] if key.rpartition(".")[0] == layer.name]
        stacked = [
            np.concatenate([model_arrays[key].double().numpy().ravel() for key in keys]) for model_arrays in arrays
        ]
        expected = np.var(stacked, axis=0).sum() / np.mean(np.square(stacked), axis=0).sum()
        assert layer.entries == stacked[0].size
        np.testing.assert_allclose(layer.after, expected, rtol=SINGLE_PRECISION)
    assert [layer.name for layer in content.layers] == ["0", "2", "4"]


def test_statistics_left_wrong_are_warned_of_until_they_are_repaired(path):
    def net(seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).eval()

    fusion = cs.fuse([net(0), net(1)], method="rebasin", example=torch.zeros(2, 4))
    page = report(fusion, path)
    safe(page)
    readable(page)
    assert "Repair the batch normalisation." in page.text
    assert "consilience.repair(fusion, inputs)" in page.text
    repaired = report(cs.repair(fusion, torch.randn(64, 4, generator=torch.Generator().manual_seed(0))), path)
    assert "Repair the batch normalisation." not in repaired.text
    assert "Repair channels repaired on inputs" in repaired.words


def test_a_symmetry_without_proof_is_warned_of_and_notes_say_what_never_moves(fusion, path):
    symmetry = replace(fusion.network.symmetry, proof=None, notes=("torch.sort at <b>line 3</b>\x07",))
    unproved = replace(fusion, network=Network(fusion.network.arrays, symmetry))
    page = report(unproved, path)
    safe(page)
    assert "The symmetry is not proved." in page.text
    assert r"torch.sort at <b>line 3</b>\x07" in page.text
    assert "The symmetry is not proved." not in report(fusion, path).text


def test_layers_that_were_not_fitted_are_said_with_the_reason(fusion, path):
    result = {**fusion.provenance["result"], "refit": "not done: the networks take something else"}
    page = report(replace(fusion, provenance={**fusion.provenance, "result": result}), path)
    assert "Layers were not fitted anew. The networks take something else." in page.words


def test_soft_couplings_have_their_diagnostics(nets, data, path):
    fusion = cs.fuse(nets[:2], method="wb", example=data[0][:2], epsilon=0.05)
    page = report(fusion, path)
    safe(page)
    readable(page)
    matching = fusion.matching["0"]
    diagnostics = landscape.coupling_diagnostics(matching.coupling[matching.owner == 1].T)
    numbers = [
        f"{diagnostics.effective_partners:.2f}",
        f"{diagnostics.mean_largest:.3f}",
        f"{diagnostics.off_permutation:.3f}",
    ]
    assert f"0 model 1 {' '.join(numbers)} {diagnostics.distance:.2f}" in page.words
    assert sum("units in effect" in text for text in page.said) == 4


def test_models_side_by_side_have_no_groups_and_no_warnings(nets, path):
    page = report(cs.fuse(nets, method="ensemble"), path)
    safe(page)
    readable(page)
    assert page.sections == ["in", "out", "made"]
    assert "3 networks → all of them side by side" in page.words
    assert not [attributes for attributes in page.all("p") if "act" in attributes.get("class", "").split()]


def test_shares_of_a_map_are_means_of_its_blocks():
    rng = np.random.default_rng(0)
    plan = rng.random((150, 130))
    order = rng.permutation(130)
    labels = np.concatenate([plan.argmax(axis=0), order])
    hard = np.eye(150)[order] / 130
    matching = Matching(labels, np.repeat([0, 1], 130), 150, np.concatenate([plan.T / plan.sum(), hard]))
    soft, hard_coupling = couplings_of({"g": matching}, ["a", "b"])
    assert soft.n_unmoved is None
    assert hard_coupling.n_unmoved == (order == np.arange(130)).sum()
    shares = (plan / plan.sum(axis=1, keepdims=True))[:, np.argsort(plan.argmax(axis=0), kind="stable")]
    high, wide = soft.block_shape
    assert (high, wide) == (3, 3)
    for row, column in ((0, 0), (3, 20), (49, 43)):
        block = shares[row * high : (row + 1) * high, column * wide : (column + 1) * wide]
        np.testing.assert_allclose(soft.shares[row, column], block.sum() / high, rtol=ROUNDING)
    np.testing.assert_allclose(hard_coupling.shares.sum() * high, 130, rtol=ROUNDING)


def test_units_that_changed_sign_are_counted_and_drawn_though_they_kept_their_numbers(fusion, path):
    numbers = np.tile(np.arange(4), 2)
    signs = np.array([1.0, 1, 1, 1, 1, -1, -1, 1])
    matching = {"g": Matching(numbers, np.repeat([0, 1], 4), 4, signs=signs)}
    unmoved, flipped = couplings_of(matching, ["a", "b"])
    assert (unmoved.n_sign_flips, unmoved.is_moved, flipped.n_sign_flips, flipped.is_moved) == (0, False, 2, True)
    words = report(replace(fusion, matching=matching), path).words
    assert "4 of 4 units kept their numbers; 2 changed sign" in words


def test_pages_of_many_large_groups_stay_small(fusion, path):
    rng = np.random.default_rng(0)
    matching = {}
    for number in range(10):
        coupling = rng.dirichlet(np.full(256, 0.05), size=512) / 512
        labels = np.concatenate([coupling[:256].argmax(axis=1), coupling[256:].argmax(axis=1)])
        matching[f"layer{number}"] = Matching(labels, np.repeat([0, 1], 256), 256, coupling)
    page = report(replace(fusion, matching=matching), path)
    safe(page)
    assert 50_000 < len(page.source) < SIZE_AT_MOST
    many = {f"{g}": Matching(rng.permutation(8), np.repeat([0, 1], 4), 8) for g in range(60)}
    couplings = couplings_of(many, ["a", "b"])
    assert len(couplings) == 120
    assert sum(coupling.shares is not None for coupling in couplings) == MAX_MAPS
    assert (
        "48 maps are drawn; 72 more matchings are in fusion.matching"
        in report(replace(fusion, matching=many), path).words
    )


def test_strokes_cover_exactly_the_cells_of_their_shade():
    shades = np.random.default_rng(0).integers(-2, 4, size=(9, 13))
    covered = np.full(shades.shape, -1)
    drawn = Page(f"<svg>{cell_map(shades, 0.0, 0.0, 13.0, 9.0)}</svg>")
    for path in drawn.all("path"):
        shade = UNKNOWN if path["class"] == "unknown" else int(path["class"][1:])
        for x, y, n in re.findall(r"M(\d+) (\d+)h(\d+)", path["d"]):
            assert (covered[int(y), int(x) : int(x) + int(n)] == -1).all()
            covered[int(y), int(x) : int(x) + int(n)] = shade
    np.testing.assert_array_equal(covered, shades)
    np.testing.assert_array_equal(shade_classes(np.array([0, 1, -1, -2]), [3, 7]), [3, 7, -1, -2])


def square(values, **markers):
    n = len(values)
    at = tuple(Marker(name, x, y, 0.0, {"loss": 1.0}) for name, (x, y) in markers.items())
    return Plane(np.linspace(0, 1, n), np.linspace(0, 1, n), 2.0, 2.0, {"loss": np.array(values)}, at)


def test_levels_rise_and_are_shared_and_values_that_are_not_finite_have_a_shade_of_their_own(fusion, path):
    surface = np.array(
        [[1.0, 2.0, 3.0, 9.0], [2.0, 3.0, 4.0, 9.0], [50.0, 80.0, 90.0, 9.0], [60.0, 70.0, 100.0, np.inf]]
    )
    levels = levels_of([surface])
    assert levels.ratios
    assert list(levels.edges) == sorted(set(levels.edges))
    assert 1.0 < levels.edges[0] < levels.edges[-1] < 100.0
    drawn = Page(str(plane_map(square(surface, a=(0.0, 0.0)), "loss", levels)))
    classes = {path["class"] for path in drawn.all("path")}
    assert {"unknown", "h0", "h8"} <= classes
    assert drawn.text.endswith("none")
    planes = {
        "one": square(surface, a=(0.0, 0.0), b=(1.0, 0.5)),
        "flat": square(np.ones((2, 2)), a=(0.0, 0.0), b=(1.0, 1.0)),
    }
    page = report(fusion, path, planes=planes)
    safe(page)
    readable(page)
    assert "A shade means the same in all planes." in page.words


def test_planes_without_area_and_networks_off_the_map_are_not_drawn(fusion, path):
    thin = Plane(np.zeros(2), np.arange(2.0), 1.0, 1.0, {"loss": np.ones((2, 2))}, ())
    away = square(np.ones((2, 2)), near=(0.5, 0.5), far=(9.0, 0.5), nowhere=(np.nan, 0.0))
    page = report(fusion, path, planes={"thin": thin, "away": away})
    safe(page)
    readable(page)
    assert len([circle for circle in page.all("circle") if "marker" in circle["class"]]) == 1
    assert "1 of 2 planes is drawn; the others have no area." in page.words


def test_curves_that_are_not_finite_are_broken_and_said(fusion, path):
    t = np.linspace(0, 1, 5)
    curves = {
        "up": Barrier(t, {"loss": np.array([1.0, 2.0, np.inf, 2.0, 1.0])}),
        "at an end": Barrier(t, {"loss": np.array([np.inf, 2.0, 1.0, 2.0, 1.0])}),
    }
    page = report(fusion, path, barriers=curves)
    safe(page)
    readable(page)
    assert any("not finite at 1 place" in text for text in page.said)
    assert len([polyline for polyline in page.all("polyline") if "line" in polyline["class"].split()]) == 3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"barriers": Barrier(np.array([0.0, 1.0]), {"loss": np.ones(2)})}, "barriers: expected barriers by name"),
        ({"planes": {"a": 3}}, "planes: expected planes by name, as consilience.plane returns them, found int"),
        ({"scores": {"a": 0.5}}, "scores: expected numbers by name for every model"),
        ({"scores": {"a": {"accuracy": "high"}}}, "under 'a': could not convert"),
    ],
)
def test_what_is_not_to_be_shown_is_refused_and_nothing_is_written(fusion, path, given, said):
    with pytest.raises(InputError, match=re.escape(said)):
        fusion.report(path, **given)
    assert not path.exists()


def test_hostile_names_stay_names(fusion, nets, path):
    inputs = tuple(replace(fused_input, name=name) for fused_input, name in zip(fusion.inputs, HOSTILE, strict=False))
    flat = square(np.array([[1.0, 2.0], [3.0, 4.0]]), **dict.fromkeys(HOSTILE, (0.5, 0.5)))
    line = Barrier(np.array([0.0, 1.0]), {HOSTILE[0]: np.ones(2)})
    page = report(
        replace(fusion, inputs=inputs),
        path,
        planes={HOSTILE[1]: flat},
        barriers={HOSTILE[1]: line},
        scores={HOSTILE[2]: {HOSTILE[0]: 1.0}},
    )
    safe(page)
    readable(page)
    assert page.text.count(HOSTILE[0]) >= 4
    assert r"\u202egnp.elif\x07" in page.text
    assert "\u202e" not in page.source


@pytest.fixture
def files(nets, data, tmp_path):
    symmetry = cs.symmetry(nets[0], data[0][:2])
    paths = [tmp_path / f"site-{index}.safetensors" for index in range(2)]
    for net, site in zip(nets, paths, strict=False):
        cs.save(net, site, symmetry=symmetry)
    fused = tmp_path / "fused.safetensors"
    cs.fuse(paths, method="rebasin").save(fused)
    return fused, paths


def test_a_file_alone_tells_how_it_was_made(files, path):
    fused, _ = files
    write_network_content(path, content_of(shown_networks_of_files(fused)))
    page = Page(path.read_text())
    safe(page)
    readable(page)
    assert page.sections == ["in", "out", "groups", "found", "made"]
    assert "The file does not hold who became whom." in page.text
    assert "rebasin: " in page.text
    assert [site.name for site in content_of(shown_networks_of_files(fused)).sites] == ["site-0", "site-1"]


def test_with_the_files_of_all_sites_it_tells_how_far_apart_they_are(files, nets, data):
    fused, sites = files
    content = content_of(shown_networks_of_files(fused, sites[::-1]))
    expected = cs.fuse(nets[:2], method="rebasin", example=data[0][:2]).quality
    for group in content.groups:
        assert group.after is None
        np.testing.assert_allclose(group.before, expected[group.name].before, rtol=SINGLE_PRECISION)
    assert [site.parameters for site in content.sites] == [1374, 1374]
    assert "As the models are, no unit moved." in render_network(content)
    assert not content_of(shown_networks_of_files(fused, sites[:1])).layers


def test_files_of_others_are_named(files, tmp_path):
    fused, sites = files
    with pytest.raises(FileFormatError, match="does not say how it was made"):
        content_of(shown_networks_of_files(sites[0]))
    with pytest.raises(InputError, match="is not one of the files") as wrong:
        content_of(shown_networks_of_files(fused, [fused, sites[0], sites[0], tmp_path / "none.safetensors"]))
    assert "is the same file as" in str(wrong.value)
    assert "none.safetensors: cannot be read" in str(wrong.value)


def test_provenances_that_nobody_wrote_are_refused_or_shown_as_far_as_they_make_sense(files, nets, path):
    fused, _ = files
    arrays = {key: value.numpy() for key, value in nets[0].state_dict().items()}
    write_network(fused, arrays, None, {"method": 3})
    with pytest.raises(FileFormatError, match="provenance is not valid at"):
        content_of(shown_networks_of_files(fused))
    record = {"name": HOSTILE[0] * 50, "weight": 0.0, "units": {"0": 3}, "sha256": HOSTILE[1]}
    provenance = {
        "method": HOSTILE[1],
        "options": {HOSTILE[0]: [1, 2], "large": 10**400, HOSTILE[2]: {"a": 1}},
        "seed": 10**400,
        "inputs": [record] * 500,
        "result": {
            "status": HOSTILE[0],
            "history": [1.0] * 5000,
            "starts": ["a"],
            "groups": {"a": 3},
            "refit": 3,
            "repaired": [],
            "objective": "x",
            "facts": 10**400,
            "notes": 3,
            HOSTILE[2]: HOSTILE[0],
        },
        "versions": {HOSTILE[0]: HOSTILE[1]},
    }
    write_network(fused, arrays, None, provenance)
    write_network_content(path, content_of(shown_networks_of_files(fused)))
    page = Page(path.read_text())
    safe(page)
    assert "and 440 networks more" in page.text
    assert "The symmetry is not proved." in page.text
    assert len(page.source) < SIZE_AT_MOST


@pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: no chromium on PATH")
def test_a_browser_shows_every_figure_and_the_page_never_scrolls_sideways(fusion, shown, tmp_path, path):
    page = report(fusion, path, **shown)
    _, logged = browse(path, tmp_path, "--enable-logging=stderr", "--v=0")
    assert "CONSOLE" not in logged
    probe = tmp_path / "probe.html"  # the same page without its policy, which allows no script, and with one
    script = (
        "<script>addEventListener('load', () => { document.body.dataset.sizes = JSON.stringify("
        "[...document.querySelectorAll('svg')].map(e => { const r = e.getBoundingClientRect();"
        "return [Math.round(r.width), Math.round(r.height)]; }));"
        "document.body.dataset.wide = document.documentElement.scrollWidth - innerWidth; })</script>"
    )
    probe.write_text(re.sub(r"<meta http-equiv[^>]*>", script, page.source))
    seen, _ = browse(probe, tmp_path, "--window-size=360,1000")
    sizes = re.findall(r"\[(\d+),(\d+)\]", re.search(r'data-sizes="([^"]*)"', seen).group(1))
    assert len(sizes) == len(page.all("svg")) == 8
    assert all(int(wide) > 150 and int(high) > 60 for wide, high in sizes)
    assert int(re.search(r'data-wide="(-?\d+)"', seen).group(1)) <= 0


def test_colours_of_the_scale_are_defined_for_light_and_dark_and_rise_in_contrast_with_the_page():
    folder = Path(html_module.__file__).parent / "styles"
    palettes = re.findall(r":root \{(.*?)\}", (folder / "network.css").read_text(), re.DOTALL)
    for palette, paper in zip(palettes, ("#fdfdfb", "#14171b"), strict=True):
        colours = re.findall(r"--(h\d): (#\w{6})", palette)
        assert [name for name, _ in colours] == [f"h{shade}" for shade in range(N_SHADES)]
        ratios = [contrast(colour, paper) for _, colour in colours]
        assert ratios == sorted(ratios)
