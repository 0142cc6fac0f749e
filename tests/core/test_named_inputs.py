"""Inputs have names, which results, weights and messages use."""

import numpy as np
import pytest
import torch
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture

import consilience as cs
from consilience.core.inputs import distinct_stems, name_inputs


def rows(seed):
    centres = np.repeat([[0.0, 0.0], [9.0, 9.0]], 30, axis=0)
    return np.random.default_rng(seed).normal(size=(60, 2)) + centres


def mixture(seed):
    return BayesianGaussianMixture(n_components=2, random_state=0).fit(rows(seed))


def net(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


def test_a_mapping_names_the_models_in_results():
    fusion = cs.fuse({"lund": mixture(0), "oslo": mixture(1)})
    assert [one.name for one in fusion.inputs] == ["lund", "oslo"]
    assert sorted(record["name"] for record in fusion.provenance["inputs"]) == ["lund", "oslo"]
    assert fusion.matching.names == ("lund", "oslo")
    assert np.array_equal(fusion.matching.of_site("oslo"), fusion.matching.of_site(1))
    with pytest.raises(cs.errors.OptionError, match="bergen: is no model here; the models are lund, oslo"):
        fusion.matching.of_site("bergen")


def test_a_sequence_gives_the_numbers_and_the_stems(tmp_path):
    cs.save(mixture(0), tmp_path / "site-a.safetensors")
    fusion = cs.fuse([tmp_path / "site-a.safetensors", mixture(1)])
    assert [one.name for one in fusion.inputs] == ["site-a", "model 1"]


def test_names_change_no_byte_of_the_fused_model():
    models = [mixture(0), mixture(1)]
    named = cs.fuse(dict(zip("ab", models, strict=True)))
    assert np.array_equal(named.posterior.natural, cs.fuse(models).posterior.natural)


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["a.safetensors", "b.safetensors"], ["a", "b"]),
        (["x/a.safetensors", "y/a.safetensors"], ["x/a", "y/a"]),
        (["x/m/a.st", "y/m/a.st", "b.st"], ["x/m/a", "y/m/a", "b"]),
        (["a.st", "a.st"], ["a", "a (2)"]),
        (["a.st", "x/a.st"], ["a", "x/a"]),
    ],
)
def test_equal_stems_are_told_apart_by_the_shortest_ends(paths, names):
    assert distinct_stems(paths) == names


def test_weights_and_numbers_of_observations_follow_the_names():
    models = {"lund": GaussianMixture(2, random_state=0).fit(rows(0)), "oslo": GaussianMixture(2).fit(rows(1))}
    by_name = cs.fuse(models, weights={"oslo": 1.0, "lund": 3.0}, n_observations={"oslo": 60, "lund": 30})
    in_order = cs.fuse(list(models.values()), weights=[3.0, 1.0], n_observations=[30, 60])
    assert np.array_equal(by_name.posterior.natural, in_order.posterior.natural)


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ({"lund": 1.0}, "weights: has nothing for oslo; the models are lund, oslo"),
        ({"lund": 1.0, "oslo": 1.0, "bergen": 1.0}, "weights: bergen is no model here; the models are lund, oslo"),
    ],
)
def test_weights_of_other_names_are_refused(weights, text):
    with pytest.raises(cs.errors.OptionError, match=text):
        cs.fuse({"lund": mixture(0), "oslo": mixture(1)}, weights=weights)


def test_a_problem_names_its_model():
    with pytest.raises(
        cs.errors.InputError, match="oslo: this BayesianGaussianMixture is not fitted yet; call fit first"
    ):
        cs.fuse({"lund": mixture(0), "oslo": BayesianGaussianMixture()})


def test_a_broken_file_is_called_by_its_name(tmp_path):
    path = tmp_path / "broken.safetensors"
    path.write_bytes(b"no header at all")
    problems = cs.check({"lund": path, "oslo": mixture(0)})
    assert any(problem.startswith("lund: ") for problem in problems)
    assert str(tmp_path) not in "".join(problems)


@pytest.mark.parametrize("name", [1, "", "  "])
def test_names_that_are_no_text_are_refused(name):
    with pytest.raises(cs.errors.InputError, match="models: expected names that are texts"):
        name_inputs({name: mixture(0)})


def test_networks_have_names_and_a_reference_by_name():
    models = {"lund": net(0), "oslo": net(1)}
    example = torch.zeros(2, 3)
    fusion = cs.fuse(models, "consensus", example=example, reference="oslo", weights={"lund": 1, "oslo": 2})
    assert [one.name for one in fusion.inputs] == ["lund", "oslo"]
    assert fusion.matching["0"].names == ("lund", "oslo")
    numbered = cs.fuse(list(models.values()), "consensus", example=example, reference=1, weights=[1, 2])
    for key, values in fusion.network.arrays.items():
        assert torch.equal(values, numbered.network.arrays[key])
    with pytest.raises(cs.errors.OptionError, match="reference: expected one of lund, oslo, found 'bergen'"):
        cs.fuse(models, "consensus", example=example, reference="bergen")


def test_an_ensemble_of_models_under_names_keeps_them():
    fusion = cs.fuse({"lund": mixture(0), "oslo": mixture(1)}, "concatenate")
    assert [one.name for one in fusion.inputs] == ["lund", "oslo"]


def test_the_verdict_compares_models_by_name():
    verdict = cs.fuse({"lund": mixture(0), "oslo": mixture(1)}).verdict
    assert set(verdict.candidates) == {"fused", "lund", "oslo"}
    assert str(verdict) == verdict.text
