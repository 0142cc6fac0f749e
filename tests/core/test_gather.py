"""What all kinds find wrong with inputs before anything of theirs is compared: files given twice, and counted twice."""

import pickle

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from sklearn.mixture import GaussianMixture

import consilience as cs
from consilience.cli.commands import cli
from tests.api import kinds_zoo

NETWORKS = ("bayesian", "networks")


def written(kind, folder, seed):
    path = folder / f"site-{seed}.safetensors"
    told = {"symmetry": kinds_zoo.symmetry()} if kind in NETWORKS else {}
    cs.save(kinds_zoo.OBJECTS[kind](seed), path, **told)
    return path


def fused_file(kind, paths, folder):
    method = {"networks": "average", "bayesian": "average", "posteriors": "average"}.get(kind)
    path = folder / "fused.safetensors"
    cs.fuse(paths, method).save(path)
    return path


def call_of(kind):
    example = {"example": torch.zeros(2, 3)} if kind in NETWORKS else {}
    return {"method": {"networks": "average", "bayesian": "average"}.get(kind), **example}


@pytest.mark.parametrize("kind", kinds_zoo.KIND_NAMES)
class TestEveryKind:
    def test_a_file_given_twice_is_named(self, kind, tmp_path):
        first, second = (written(kind, tmp_path, seed) for seed in (0, 1))
        copy = tmp_path / "copy.safetensors"
        copy.write_bytes(first.read_bytes())
        problems = cs.check([first, second, copy])
        assert any(f"{copy}: is the same file as {first}" in problem for problem in problems)

    def test_what_a_fused_file_was_fused_from_counts_twice_beside_it(self, kind, tmp_path):
        first, second, third = (written(kind, tmp_path, seed) for seed in (0, 1, 2))
        fused = fused_file(kind, [first, second], tmp_path)
        line = f"{fused}: was fused from {first}, which is given too: it would count twice"
        assert any(problem.startswith(line) for problem in cs.check([fused, first]))
        with pytest.raises(cs.errors.InputError, match="which is given too: it would count twice") as caught:
            cs.fuse([fused, first])
        assert caught.value.problems[0].code == "E-TWICE"
        assert not any("twice" in problem for problem in cs.check([fused, third]))

    def test_two_fusions_that_share_a_site_count_it_twice(self, kind, tmp_path):
        first, second, third = (written(kind, tmp_path, seed) for seed in (0, 1, 2))
        one = fused_file(kind, [first, second], tmp_path).rename(tmp_path / "one.safetensors")
        other = fused_file(kind, [second, third], tmp_path).rename(tmp_path / "two.safetensors")
        problems = cs.check([one, other])
        assert any(f"{other}: was fused from site-1, as {one} was" in problem for problem in problems)

    def test_a_copy_in_memory_is_fused_with_a_doubt(self, kind):
        first, again, other = (kinds_zoo.OBJECTS[kind](seed) for seed in (0, 0, 1))
        for copy, how in ((first, "is the same object as"), (again, "has the same contents as")):
            with pytest.warns(cs.errors.TwiceWarning, match=f"oslo: {how} lund: it counts twice"):
                fusion = cs.fuse({"lund": first, "oslo": copy, "riga": other}, **call_of(kind))
            assert fusion.verdict.harmless is not True
            assert f"In doubt: oslo {how} lund" in fusion.verdict.text
            assert fusion.verdict.to_json() == fusion.record["verdict"]

    def test_a_fused_model_beside_its_parts_is_refused_and_one_that_was_changed_is_not(self, kind):
        first, second, third = (kinds_zoo.OBJECTS[kind](seed) for seed in (0, 1, 2))
        model = cs.fuse({"lund": first, "oslo": second}, **call_of(kind)).model
        for one in (model, pickle.loads(pickle.dumps(model))):  # noqa: S301  (our own bytes)
            problems = cs.check({"both": one, "lund": first}, **call_of(kind))
            assert any("both: was fused from lund, which is given too" in problem for problem in problems), problems
        assert not any("twice" in problem for problem in cs.check({"both": model, "riga": third}, **call_of(kind)))


PARTS = {"posteriors": "posterior", "estimators": "statistics", "draws": "draws", "networks": "network"}


@pytest.mark.parametrize("kind", kinds_zoo.KIND_NAMES)
@pytest.mark.parametrize("what", ["model", "part", "described"])
def test_what_is_written_of_a_fused_model_says_what_it_was_fused_from(kind, what, tmp_path):
    models = {site: kinds_zoo.OBJECTS[kind](seed) for seed, site in enumerate(("lund", "oslo"))}
    fusion = cs.fuse(models, **call_of(kind))
    told = {"symmetry": kinds_zoo.symmetry()} if kind in NETWORKS and what != "part" else {}
    of_kind = {"draws": lambda: fusion.draws}.get(kind, lambda: fusion.model)
    written_object = {
        "model": of_kind,
        "part": lambda: getattr(fusion, PARTS.get(kind, "model")),
        "described": lambda: cs.describe(of_kind(), **({"n_observations": 80} if kind in NETWORKS else {})),
    }[what]()
    fused, again, site = (tmp_path / f"{name}.safetensors" for name in ("fused", "again", "site"))
    cs.save(written_object, fused, **told)
    cs.save(models["lund"], site, **({"symmetry": kinds_zoo.symmetry()} if kind in NETWORKS else {}))
    cs.save(cs.load(fused), again)
    for path in (fused, again):
        assert any(f"{path}: was fused from {site}, which is given too" in line for line in cs.check([path, site]))
    assert any("was fused from model 1, which is given" in line for line in cs.check([cs.load(fused), models["lund"]]))


def test_a_fused_mixture_written_without_thin_components_has_a_report(tmp_path):
    rng = np.random.default_rng(0)
    sites = [np.concatenate([rng.normal(0, 1, (300, 2)), rng.normal(8, 1, (20, 2))]) for _ in range(2)]
    fusion = cs.fuse([cs.describe(GaussianMixture(2, random_state=0).fit(rows), rows) for rows in sites])
    path, page = tmp_path / "fused.safetensors", tmp_path / "page.html"
    with pytest.warns(cs.errors.WithheldWarning):
        cs.save(fusion.model, path, n_observations=640, min_count=60)
    assert cs.load(path).n_components == 1
    assert CliRunner().invoke(cli, ["report", str(path), "-o", str(page)]).exit_code == 0
    assert "model 0" in page.read_text()


def test_a_fused_network_that_is_trained_further_is_a_model_of_its_own():
    first, second = (kinds_zoo.network(seed) for seed in (0, 1))
    model = cs.fuse({"lund": first, "oslo": second}, **call_of("networks")).model
    with torch.no_grad():
        model[0].weight += 0.1
    assert not cs.check({"both": model, "lund": first}, **call_of("networks"))


@pytest.mark.parametrize("kind", ["estimators", "draws"])
def test_a_fusion_in_memory_knows_what_it_was_fused_from(kind):
    first, second = (kinds_zoo.OBJECTS[kind](seed) for seed in (0, 1))
    fusion = cs.fuse({"lund": first, "oslo": second})
    with pytest.raises(cs.errors.InputError, match="both: was fused from lund, which is given too"):
        cs.fuse({"both": fusion, "lund": first})
