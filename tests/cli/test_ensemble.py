"""The command and the ensemble, which has no file: it is refused before anything is read."""

import pytest

TWO = ("a.safetensors", "b.safetensors")
REFUSED = "fused.safetensors: an ensemble is its members; keep the sites' files, or use method 'concatenate'"


@pytest.mark.parametrize("models", [TWO, ("absent.safetensors", "neither.safetensors")])
def test_an_ensemble_is_refused_before_any_work(command, unchanged, models):
    unchanged()
    done = command("fuse", *models, "-o", "fused.safetensors", "--method", "ensemble")
    assert (done.code, done.out, done.complaints()) == (1, "", [REFUSED])


def test_a_recipe_may_not_ask_for_one_either(folder, command, unchanged):
    (folder / "recipe.yaml").write_text("method: ensemble\nmodels: [a.safetensors, b.safetensors]\n")
    unchanged()
    assert command("fuse", "--recipe", "recipe.yaml", "-o", "fused.safetensors").complaints() == [REFUSED]


def test_models_can_be_checked_for_one(command):
    assert command("check", *TWO, "--method", "ensemble").out == "ok: 2 models can be fused\n"


@pytest.mark.parametrize("assignment", ["variational", "means"])
def test_clusters_say_how_often_they_join_components_of_one_model(command, assignment):
    settings = ("--set", f"assignment={assignment}", "--set", "max_components=2")
    done = command("fuse", *TWO, "-o", "fused.safetensors", "--method", "dp", *settings)
    assert done.code == 0
    assert "(method dp)" in done.out
