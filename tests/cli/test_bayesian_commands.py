"""The command on files of Bayesian networks: fuse, check, report, evaluate, methods, and what does not go together."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import consilience as cs
from consilience.networks.gaussian.evaluate import SAMPLES
from consilience.networks.gaussian.methods import BAYESIAN_METHODS
from tests.cli.some_nets import MODULE, SITES, TRACED
from tests.end_to_end.pages import Page, readable, safe

BAYESIAN = ("first.safetensors", "second.safetensors", "third.safetensors")
FUSED = "fused.safetensors"


def gaussian(nets, seed, deviation=0.1):
    torch.manual_seed(seed)
    module = nets.make_mlp()
    means = {name: values.detach() for name, values in module.named_parameters()}
    return cs.BayesianNetwork(module, means, {k: torch.full_like(v, deviation**2) for k, v in means.items()}, 1.0)


@pytest.fixture
def bnns(nets, folder):
    """Three Bayesian networks, whose files say which axes move together."""
    networks = [gaussian(nets, seed) for seed in range(3)]
    symmetry = cs.symmetry(nets.make_mlp(), torch.zeros(1, 6))
    for bnn, name in zip(networks, BAYESIAN, strict=True):
        cs.save(bnn, folder / name, symmetry=symmetry)
    return networks


@pytest.fixture
def plain(nets, folder):
    """The same without a symmetry."""
    for seed, name in enumerate(BAYESIAN):
        cs.save(gaussian(nets, seed), folder / name)


def refused(done, code=1, lines=1):
    assert (done.code, done.out) == (code, "")
    complaints = done.complaints()
    assert len(complaints) == lines, complaints
    return "\n".join(complaints)


def same(network, other):
    return all(
        np.array_equal(np.asarray(getattr(network, what)[key]), np.asarray(values))
        for what in ("means", "variances")
        for key, values in getattr(other, what).items()
    )


def test_files_alone_are_fused_as_the_function_fuses_them(bnns, folder, command):
    assert command("check", *BAYESIAN).out == "ok: 3 models can be fused\n"
    options = ("--method", "kl", "--set", "regularization=0.1", "--set", "max_units=20", "--seed", "3")
    done = command("fuse", *BAYESIAN, *options, "-o", FUSED)
    assert (done.code, done.err) == (0, "")
    fusion = cs.fuse(BAYESIAN, "kl", regularization=0.1, max_units=20, rng=3)
    assert same(cs.load(folder / FUSED), fusion.model)
    short, *lines = done.out.splitlines()
    assert re.match(r"One network of [\d,]+ parameters, fused from 3 models\. ", short)
    units = fusion.groups
    assert lines[0] == (
        f"3 Bayesian networks with 17 units each in 2 groups -> {sum(units.values())} units (method kl)"
    )
    assert lines[1].split() == ["group", "units", "fused", "shared"]  # of units that sites lack there is no distance
    for line, group in zip(lines[2:4], "02", strict=True):
        assert line.split() == [
            group,
            {"0": "10", "2": "7"}[group],
            str(units[group]),
            str(fusion.quality[group].shared),
        ]
    for group in "02":
        counts = enumerate(fusion.details["groups"][group]["shared"], 1)
        sizes = ", ".join(f"{count} of {n} site{'s' * (n > 1)}" for n, count in counts if count)
        assert f"group {group}: {sizes}" in lines
    assert "symmetry: proved" in lines
    assert lines[-1] == f"wrote {FUSED}"
    written = (folder / FUSED).read_bytes()
    assert command("fuse", *BAYESIAN, *options, "-o", FUSED).code == 0
    assert (folder / FUSED).read_bytes() == written


def test_posteriors_are_aligned_and_the_distance_told(bnns, folder, command):
    done = command("fuse", *BAYESIAN, "--method", "w2", "-o", FUSED)
    assert (done.code, done.err) == (0, "")
    details = cs.fuse(BAYESIAN, "w2").details
    line = f"distance of posteriors (w2): {details['distance_before']:.6g} -> {details['distance_after']:.6g}"
    assert line in done.out.splitlines()
    assert "group  units  fused  shared        distance" in done.out
    assert json.loads(command("inspect", "--json", FUSED).out)["provenance"]["method"] == "w2"


def test_the_recommended_method_is_taken_and_weights_count(bnns, folder, command):
    done = command("fuse", *BAYESIAN, "-o", FUSED)
    assert "(method auto)" in done.out
    assert "taken: kl" in done.out
    by_default = cs.load(folder / FUSED)
    assert same(by_default, cs.fuse(list(BAYESIAN), "kl").model)
    done = command("fuse", *BAYESIAN, "--method", "average", "--weights", "1,0,0", "-o", FUSED)
    assert (done.code, done.err) == (0, "")
    fused = cs.load(folder / FUSED)
    assert np.allclose(fused.means["2.weight"], bnns[0].means["2.weight"].numpy(), atol=1e-6)


RECIPE = """
models: ["*.safetensors"]
method: kl
options: {regularization: 0.1}
weights: [2, 1, 1]
report: page.html
output: fused.safetensors
"""


def test_a_recipe_says_the_same(bnns, folder, command):
    (folder / "sites").mkdir()
    for name in BAYESIAN:
        (folder / name).rename(folder / "sites" / name)
    (folder / "sites" / "recipe.yaml").write_text(RECIPE)
    done = command("fuse", "--recipe", "sites/recipe.yaml", "--quiet")
    assert (done.code, done.err, done.out) == (0, "", "")
    by_recipe = (folder / "sites" / FUSED).read_bytes()
    assert Page((folder / "sites" / "page.html").read_text()).sections[0] == "in"
    options = ("--method", "kl", "--set", "regularization=0.1", "--weights", "2,1,1", "-o", FUSED)
    assert command("fuse", *(f"sites/{name}" for name in BAYESIAN), *options).code == 0
    assert (folder / FUSED).read_bytes() == by_recipe


def test_files_without_symmetry_need_a_module_or_a_file_of_it(plain, nets, folder, command, unchanged):
    text = refused(command("fuse", *BAYESIAN, "-o", FUSED), lines=3)
    for name in BAYESIAN:
        assert f"{name}: says nothing of which axes move together; give `--symmetry`" in text
    assert refused(command("check", *BAYESIAN), lines=3) == text
    assert command("check", *BAYESIAN, *MODULE).out == "ok: 3 models can be fused\n"
    assert command("network", "symmetry", *TRACED, "-o", "net.json").code == 0
    for how in (TRACED, ("--symmetry", "net.json")):
        assert command("check", *BAYESIAN, *how).out == "ok: 3 models can be fused\n"
        done = command("fuse", *BAYESIAN, *how, "--method", "kl", "-o", "by-hint.safetensors")
        assert (done.code, done.err) == (0, "")
        assert "symmetry: proved" in done.out
        (folder / "by-hint.safetensors").unlink()
    assert command("fuse", *BAYESIAN, "--method", "average", "-o", "averaged.safetensors").code == 0
    for name in ("net.json", "averaged.safetensors"):
        (folder / name).unlink()
    unchanged()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
@pytest.mark.parametrize("action", [("fuse", "-o", FUSED), ("check",)])
def test_kinds_are_not_mixed(bnns, nets, folder, command, unchanged, order, action):
    symmetry = cs.symmetry(nets.make_mlp(), torch.zeros(1, 6))
    cs.save(nets.make_mlp(), folder / SITES[0], symmetry=symmetry, overwrite=True)
    files = [(BAYESIAN[0], BAYESIAN[1], SITES[0])[i] for i in order]
    unchanged()
    text = refused(command(action[0], *files, *action[1:]))
    first = next(name for name in files if name in BAYESIAN)
    assert text == f"{SITES[0]}: is a network, expected a Bayesian network as {first}; fuse files of one kind"


def test_posteriors_checkpoints_and_missing_files_are_named(bnns, nets, folder, command, unchanged):
    unchanged()
    text = refused(command("fuse", "a.safetensors", SITES[0], "none", BAYESIAN[0], "-o", FUSED), lines=3)
    assert "a.safetensors: is a posterior file, expected a Bayesian network as first.safetensors" in text
    assert f"{SITES[0]}: is a plain checkpoint, expected a Bayesian network as first.safetensors" in text
    assert "none: " in text


def test_an_ensemble_is_no_file(bnns, command, unchanged):
    unchanged()
    line = refused(command("fuse", *BAYESIAN, "--method", "ensemble", "-o", FUSED))
    assert line == f"{FUSED}: an ensemble is its members; keep the sites' files, or use method 'kl'"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--method", "wb"), "kl, w2, average, ensemble"),
        (("--set", "colour=red"), "colour"),
        (("--set", "regularization=-1"), "regularization"),
        (("--method", "w2", "--inputs", "data.npz", *TRACED), "--inputs: of no use for Bayesian networks"),
        (("--weights", "1,2"), "weights: expected 3 numbers"),
        (("--reference", "7"), "reference: expected the number of a model, 0 to 2"),
    ],
)
def test_wrong_options_are_a_matter_of_usage(bnns, command, unchanged, options, message):
    unchanged()
    assert message in refused(command("fuse", *BAYESIAN, *options, "-o", FUSED), 2)
    assert message in "".join(command("check", *BAYESIAN, *options).complaints())


def test_variances_that_are_none_are_named(bnns, folder, command, unchanged):
    content = bytearray((folder / BAYESIAN[1]).read_bytes())
    content[-4:] = np.float32(-1.0).tobytes()
    (folder / BAYESIAN[1]).write_bytes(content)
    unchanged()
    for action in (("fuse", "-o", FUSED), ("check",)):
        line = refused(command(action[0], *BAYESIAN, *action[1:]))
        assert line.startswith(f"{BAYESIAN[1]}: ")
        assert "has variances that are not positive" in line


def test_pages_of_the_fusion_and_of_its_files_say_the_same(bnns, folder, command):
    done = command("fuse", *BAYESIAN, "--method", "w2", "-o", FUSED, "--report", "at-once.html")
    assert (done.code, done.err) == (0, "")
    done = command("report", FUSED, *BAYESIAN, "-o", "later.html")
    assert (done.code, done.out) == (0, "wrote later.html\n")
    at_once, later = (Page((folder / name).read_text()) for name in ("at-once.html", "later.html"))
    for page in (at_once, later):
        safe(page)
        readable(page)
        assert "3 Bayesian networks → one of 171 parameters" in page.words
        assert "171, each with a mean and a variance" in page.words
        assert "/deviation" not in page.text
    distances = cs.fuse(BAYESIAN, "w2").details["distances"]
    for name, before in distances["before"].items():
        row = f"{name} {before:.4g} {distances['after'][name]:.4g} "
        assert row in at_once.words
        assert row in later.words
    assert "who" in at_once.sections
    assert "who" not in later.sections
    assert "The file does not hold who became whom" not in later.words


def test_units_of_files_are_told_by_how_many_sites_have_them(bnns, folder, command):
    kl = ("--method", "kl", "--set", "regularization=0.2")
    done = command("fuse", *BAYESIAN, *kl, "-o", FUSED, "--report", "at-once.html", "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert command("report", FUSED, "-o", "later.html", "--quiet").code == 0
    counts = cs.fuse(BAYESIAN, "kl", regularization=0.2).details["groups"]
    for name in ("at-once.html", "later.html"):
        page = Page((folder / name).read_text())
        readable(page)
        assert "shared" in page.sections
        for group, facts in counts.items():
            assert f"{group} {facts['units']} {' '.join(map(str, facts['shared']))} " in page.words
    line = refused(command("report", FUSED, "--truth", "x", "-o", "page.html"), 2)
    assert line.startswith("`--data`, `--truth`: for statistical models")
    line = refused(command("report", BAYESIAN[0], "-o", "page.html"))
    assert "does not say how it was made" in line


def test_an_evaluation_scores_predictive_probabilities(bnns, folder, command):
    assert command("fuse", *BAYESIAN, "--quiet", "-o", FUSED).code == 0
    with np.load(folder / "data.npz") as data:
        x, y = torch.tensor(data["x"]).float(), data["y"]
    done = command("evaluate", FUSED, BAYESIAN[0], *MODULE, "--data", "data.npz", "--json")
    assert (done.code, done.err) == (0, "")
    document = json.loads(done.out)
    fusion = cs.fuse(BAYESIAN, module=bnns[0].module)
    expected = {
        "own": cs.predictive_scores(bnns[0].predict(x, SAMPLES), y),
        "fused": cs.predictive_scores(fusion.model.predict(x, SAMPLES), y),
    }
    names = ["accuracy", "cross-entropy", "predictive entropy", "calibration error"]
    assert [one["name"] for one in document["scores"]] == names
    assert {one["kind"] for one in document["scores"]} == {"predictive"}
    for who, scores in expected.items():
        found = [one[who] for one in document["scores"]]
        own = [100 * scores.accuracy, -scores.log_likelihood, scores.entropy, scores.calibration_error]
        assert found == pytest.approx(own, rel=1e-4, abs=1e-6)
    gap = 100.0 * (expected["fused"].accuracy - expected["own"].accuracy)
    assert document["difference"]["mean"] == pytest.approx(gap)
    text = command("evaluate", FUSED, BAYESIAN[0], *MODULE, "--data", "data.npz").out
    assert f"note: probabilities are means over {SAMPLES} samples of the weights" in text
    assert str(cs.evaluate(fusion, bnns[0], x, y)) == text.rstrip("\n")
    assert str(cs.evaluate(cs.load(FUSED), BAYESIAN[0], x, y, module=bnns[0].module)) == text.rstrip("\n")
    together = cs.fuse(bnns, "ensemble", example=torch.zeros(1, 6))
    assert cs.evaluate(together, bnns[0], x, y).scores[2].fused > 0


def test_what_cannot_be_evaluated_is_told(bnns, nets, folder, command, unchanged):
    unchanged()
    line = refused(command("evaluate", *BAYESIAN[:2], "--data", "data.npz"), 2)
    assert line.startswith(f"{BAYESIAN[0]}: is a network without code; give a module")
    line = refused(command("evaluate", BAYESIAN[0], SITES[0], *MODULE, "--data", "data.npz"))
    assert line == f"{SITES[0]}: is no Bayesian network, expected one as the other model"
    line = refused(command("evaluate", *BAYESIAN[:2], "--module", "somenets:normalised", "--data", "data.npz"), lines=8)
    assert f"{BAYESIAN[0]}: array 1.weight is missing" in line


def test_methods_are_listed_with_what_they_need(command):
    listed = json.loads(command("methods", "--kind", "bayesian", "--json").out)["methods"]
    assert [one["name"] for one in listed] == [kind.name for kind in BAYESIAN_METHODS]
    for kind in BAYESIAN_METHODS:
        said = " ".join(command("methods", kind.name, "--kind", "bayesian").out.split())
        for text in (kind.summary, kind.needs, kind.gives):
            assert " ".join(text.split()) in said
    assert "regularization=0.3" in command("methods", "kl", "--kind", "bayesian").out


@pytest.fixture
def observed(folder):
    """Training data of the three sites, of classes that differ."""
    rng = np.random.default_rng(0)
    for number, name in enumerate(BAYESIAN):
        labels = rng.choice(3, 240, p=np.roll([0.7, 0.2, 0.1], number))
        inputs = rng.normal(size=(240, 6)).astype(np.float32) + 2 * np.eye(6, dtype=np.float32)[labels]
        np.savez(folder / f"{name}.npz", x=inputs, y=labels)


def test_sites_describe_their_networks_and_one_of_the_candidates_is_chosen(bnns, observed, folder, command):
    for name in BAYESIAN:
        before = (folder / name).read_bytes()
        done = command("site", "describe", name, *MODULE, "--data", f"{name}.npz")
        assert (done.code, done.err) == (0, "")
        assert "What this file tells about people" in done.out
        assert (folder / name).read_bytes() == before
    described = [name.replace(".safetensors", ".description.safetensors") for name in BAYESIAN]
    assert [cs.load(folder / name).n_observations for name in described] == [240, 240, 240]
    assert "classes:     3: 0 " in command("inspect", described[0]).out
    assert command("check", *BAYESIAN).out == "ok: 3 models can be fused\n"
    sizes = ("--set", "n_inputs=200", "--set", "n_samples=8")
    done = command("fuse", *BAYESIAN, *MODULE, *sizes, "-o", FUSED)
    assert done.code == 0
    chosen = cs.fuse(list(BAYESIAN), module=bnns[0].module, n_inputs=200, n_samples=8)
    assert chosen.verdict.text.partition(",")[0] in done.out
    assert same(cs.load(FUSED), chosen.model)


def test_networks_whose_symmetry_is_not_known_are_traced_by_what_sites_describe(plain, observed, folder, command):
    for name in BAYESIAN:
        assert command("site", "describe", name, *MODULE, "--data", f"{name}.npz").code == 0
    described = [name.replace(".safetensors", ".description.safetensors") for name in BAYESIAN]
    options = (*MODULE, "--set", "n_inputs=200", "--set", "n_samples=4", "-o", FUSED)
    assert command("fuse", *BAYESIAN, *options).code == 0
    beside = (folder / FUSED).read_bytes()
    assert command("fuse", *described, *BAYESIAN, *options).code == 0  # as a pattern of both gives them
    assert (folder / FUSED).read_bytes() == beside


def test_a_described_network_is_written_anew_with_its_symmetry(plain, observed, folder, command):
    to = ("-o", "site.safetensors", "--quiet")
    done = command("site", "describe", BAYESIAN[0], *MODULE, "--data", f"{BAYESIAN[0]}.npz", *to)
    assert (done.code, done.out) == (0, "")
    loaded = cs.load("site.safetensors")
    assert loaded.symmetry.proved
    assert loaded.n_observations == 240
    assert same(loaded, cs.load(BAYESIAN[0]))
    assert cs.load("site.description.safetensors").digest == loaded.digest


@pytest.mark.filterwarnings("always::consilience.errors.WithheldWarning")
def test_a_file_that_would_tell_how_many_are_withheld_is_written_anew(bnns, folder, command):
    cs.save(bnns[0], folder / "known.safetensors", n_observations=200)
    inputs = np.random.default_rng(0).normal(size=(200, 6))
    np.savez("few.npz", x=inputs, y=np.r_[np.zeros(150, int), np.ones(48, int), 2, 2])
    withheld = (
        "consilience: warning: 1 of 3 classes have fewer than 5 observations and are withheld: 2 "
        "(`--min-count 0` keeps them) [W-WITHHELD]\n"
    )
    done = command("site", "describe", "known.safetensors", *MODULE, "--data", "few.npz")
    assert done.err.startswith(withheld)
    assert "write it anew too (`--output`)" in refused(replace(done, err=done.err.removeprefix(withheld)))
    done = command("site", "describe", "known.safetensors", *MODULE, "--data", "few.npz", "-o", "new.safetensors")
    assert (done.code, done.err) == (0, withheld)
    assert cs.load("new.safetensors").n_observations == 198
