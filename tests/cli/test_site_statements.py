"""What sites say, on the command line: numbers of observations, and how few are too few."""

import json

import numpy as np
import pytest
from sklearn.mixture import GaussianMixture

import consilience as cs

MIXTURES = ("a.safetensors", "b.safetensors")


@pytest.fixture
def mixtures(folder):
    """Two files of mixtures that do not say how many rows they saw: 63 and 90."""
    rng = np.random.default_rng(0)
    for name, sizes in zip(MIXTURES, ((40, 20, 3), (30, 30, 30)), strict=True):
        rows = np.concatenate([rng.normal(size=(n, 2)) + np.array([20.0 * k, 0.0]) for k, n in enumerate(sizes)])
        cs.save(GaussianMixture(3, random_state=0).fit(rows), folder / name)
    return folder


def test_files_that_do_not_say_their_number_are_refused_by_name_and_once(mixtures, command):
    for arguments in (("check", *MIXTURES), ("fuse", *MIXTURES, "-o", "fused.safetensors")):
        done = command(*arguments)
        assert done.code == 1
        assert [line.split(": ")[1] for line in done.err.splitlines()] == [", ".join(MIXTURES)]
        assert "n_observations" in done.err
    assert not (mixtures / "fused.safetensors").exists()


@pytest.mark.parametrize("said", ["63,90", "equal"])
def test_the_number_can_be_told(mixtures, command, said):
    assert command("check", *MIXTURES, "--n-observations", said).code == 0
    assert command("fuse", *MIXTURES, "-o", "fused.safetensors", "--n-observations", said).code == 0
    numbers = "equal" if said == "equal" else [63.0, 90.0]
    fusion = cs.fuse([mixtures / name for name in MIXTURES], n_observations=numbers)
    assert cs.load(mixtures / "fused.safetensors").natural.tobytes() == fusion.posterior.natural.tobytes()
    made = json.loads(command("inspect", "--json", "fused.safetensors").out)["header"]["provenance"]
    assert made["result"]["n_observations"] == ("equal" if said == "equal" else {"a": 63.0, "b": 90.0})


def test_a_recipe_says_it_too(mixtures, command):
    (mixtures / "recipe.yaml").write_text(
        "models: ['*.safetensors']\nn_observations: [63, 90]\noutput: out.safetensors\n"
    )
    for path in mixtures.glob("*.safetensors"):
        if path.name not in MIXTURES:
            path.unlink()
    assert command("fuse", "--recipe", "recipe.yaml").code == 0


@pytest.mark.parametrize("wrong", ["63", "63,90,1", "63,0", "many", "63,x"])
def test_numbers_that_make_no_sense_are_refused(mixtures, command, wrong):
    done = command("check", *MIXTURES, "--n-observations", wrong)
    assert done.code == 2
    assert "n-observations" in done.err or "n_observations" in done.err


def test_thin_components_are_left_out_by_name_unless_told(mixtures, command):
    done = command("fuse", *MIXTURES, "-o", "fused.safetensors", "--n-observations", "63,90")
    assert "a: component" in done.out
    assert "has fewer than 5 observations, and was left out" in done.out
    for option in (("--min-count", "0"), ("--set", "min_count=0")):
        done = command("fuse", *MIXTURES, "-o", "fused.safetensors", "--n-observations", "63,90", *option)
        assert "fewer than 5" not in done.out


def test_nothing_left_of_a_file_is_a_problem(mixtures, command):
    done = command("check", *MIXTURES, "--n-observations", "63,90", "--min-count", "41")
    assert done.code == 1
    assert "a.safetensors: none of its 3 components has 41 effective observations" in done.err
    assert command("check", *MIXTURES, "--min-count", "-1").code == 2
