"""Laws of ``robust=True`` for networks: whole networks are left out, and the rest are averaged by bounded weights."""

import numpy as np
import pytest
import torch

import consilience as cs
from consilience.core.robust import MAX_DEVIATION, judge, judge_twice, standardized_coordinates
from consilience.errors import OptionError
from consilience.networks.robust import squared_distances, standardized_squared_distances
from tests.copies import COPIES

pytestmark = pytest.mark.covering(2)


def network(seed, change=0.0, noise=0.05):
    """Return a network near a common start, all its weights changed."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += noise * torch.randn(parameter.shape, generator=generator) + change
    return module


def flat(module):
    return np.concatenate([parameter.detach().numpy().ravel() for parameter in module.parameters()])


def fuse(modules, method="average"):
    return cs.fuse(modules, method=method, example=torch.zeros(1, 4), robust=True)


@pytest.mark.parametrize("method", ["average", "rebasin", "consensus"])
@pytest.mark.parametrize("change", [0.5, 100.0, -1e6])
@pytest.mark.parametrize("count", [1, 3])
def test_hostile_networks_are_left_out(method, change, count):
    honest = [network(seed) for seed in range(10 - count)]
    fusion = fuse([*honest, *(network(50 + seed, change) for seed in range(count))], method)
    hostile = {f"model {site}" for site in range(10 - count, 10)}
    assert hostile <= {record["model"] for record in fusion.details["robust"]["left_out"]}
    if method == "average":
        rows = np.stack([flat(module) for module in honest])
        radius = np.linalg.norm(rows - rows.mean(axis=0), axis=1).max()
        assert np.linalg.norm(flat(fusion.model) - rows.mean(axis=0)) < radius


def test_the_verdict_names_what_is_not_seen_and_what_is_weak():
    text = fuse([network(seed) for seed in range(5)]).verdict.text
    assert "would not be seen" in text
    assert "weak here: fewer networks make a worse average" in text


def test_the_average_of_linear_models_is_not_weak():
    linear = [torch.nn.Linear(4, 3) for _ in range(5)]
    fusion = fuse(linear)
    assert "weak" not in fusion.details["robust"]
    assert "would not be seen" in fusion.verdict.text
    assert "weak here" not in fusion.verdict.text


def test_the_ensemble_has_no_network_that_was_left_out():
    fusion = fuse([*(network(seed) for seed in range(5)), network(50, 50.0)])
    assert [local.name for local in fusion.inputs] == [f"model {site}" for site in range(6)]
    assert "model 5" in fusion.left_out
    assert not fusion.left_out & set(fusion.ensemble.names)
    assert float(fusion.ensemble.answer.weights.sum()) == pytest.approx(1.0)


def test_networks_that_are_kept_are_aligned_as_if_the_others_had_not_come():
    honest = [network(seed, noise=0.3) for seed in range(7)]
    with_hostile = fuse([*honest, *(network(50 + seed, 50.0) for seed in range(2))], "consensus")
    assert len(with_hostile.details["robust"]["left_out"]) == 2
    np.testing.assert_array_equal(flat(with_hostile.model), flat(fuse(honest, "consensus").model))


def test_a_network_near_the_mean_of_all_counts_no_more_than_others():
    honest = [network(seed, noise=0.3) for seed in range(9)]
    rows = np.stack([flat(module) for module in honest]).astype(np.float64)
    near = network(0)
    torch.nn.utils.vector_to_parameters(
        torch.tensor(rows.mean(axis=0) - 0.18 * rows.std(axis=0)).float(), near.parameters()
    )
    fusion = fuse([*honest, near])
    sent = np.vstack([rows, flat(near)])
    weights = np.linalg.lstsq(sent.T, flat(fusion.model).astype(np.float64), rcond=None)[0]
    assert weights.sum() == pytest.approx(1.0, abs=1e-4)
    assert weights[-1] == pytest.approx(weights.max(), abs=1e-4)
    assert np.sum(weights > weights.max() - 1e-4) >= 5  # half of ten
    assert weights.max() < 0.12  # one of ten is left out by chance


def test_copies_of_a_hostile_network_are_left_out():
    torch_copies = [network(50, 0.1, noise=0.0) for _ in range(3)]
    for site, module in enumerate(torch_copies):
        with torch.no_grad():
            module[0].bias += 1e-6 * site  # so that digests differ
    fusion = fuse([*(network(seed) for seed in range(7)), *torch_copies])
    steps = {record["model"]: record["step"] for record in fusion.details["robust"]["left_out"]}
    assert sorted(steps[f"model {site}"] for site in (7, 8, 9)) == ["copy of another", "copy of another", "gate"]


@COPIES
def test_equal_networks_are_a_fixed_point():
    modules = [network(0) for _ in range(4)]
    fusion = fuse(modules)
    assert fusion.details["robust"]["left_out"] == []
    np.testing.assert_allclose(flat(fusion.model), flat(modules[0]), rtol=1e-6)


@pytest.mark.parametrize("robust", [True, "trim", "median"])
def test_fisher_merging_is_refused_by_a_sentence(robust):
    """Whoever claims more information counts more, and no average of weights bounds that."""
    modules = [network(seed) for seed in range(4)]
    batches = [(torch.randn(120, 4, generator=torch.Generator().manual_seed(0)), torch.arange(120) % 3)]
    information = [cs.fisher(module, batches, kind="diagonal", likelihood="categorical") for module in modules]
    with pytest.raises(OptionError, match=r"no option robust; .*methods with it: .*consensus"):
        cs.fuse(modules, method="fisher", fishers=information, robust=robust)


def test_colluding_networks_with_noise_of_their_own_are_left_out():
    modules = [network(seed) for seed in range(7)] + [network(20 + seed, -0.06, 0.04) for seed in range(3)]
    fusion = fuse(modules)
    assert {(one["model"], one["step"]) for one in fusion.details["robust"]["left_out"]} == {
        (f"model {number}", "collusion") for number in (7, 8, 9)
    }


def pushed(rows, count, direction):
    """Return rows of which the last `count` are moved along a direction."""
    changed = rows.copy()
    changed[len(rows) - count :] += direction
    return changed


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_a_push_that_is_small_beside_what_honest_networks_differ_by_is_found_where_they_hardly_differ(count, seed):
    """Half of the weights differ a hundred times as much between honest networks as the other half."""
    quiet = np.arange(67) % 2 == 0
    rows = np.random.default_rng(seed).normal(size=(10, 67)) * np.where(quiet, 0.01, 1.0)
    rows = pushed(rows, count, np.where(quiet, 0.03, 0.0))
    modules = [network(0, noise=0.0) for _ in range(10)]
    for module, row in zip(modules, rows, strict=True):
        weights = torch.tensor(flat(module) + row, dtype=torch.float32)
        torch.nn.utils.vector_to_parameters(weights, module.parameters())
    raw = judge([(np.arange(10), squared_distances([*rows]))], 10, 67)
    hostile = {f"model {site}" for site in range(10 - count, 10)}
    assert not {f"model {site}" for site in np.flatnonzero(~raw.kept)} >= hostile  # whole weights do not show it
    assert {record["model"] for record in fuse(modules).details["robust"]["left_out"]} >= hostile


def test_honest_networks_pass_both_judgements():
    for seed in range(10):
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(10, 500)) * rng.lognormal(size=500) * rng.uniform(0.85, 1.15, size=(10, 1))
        for squares in (squared_distances([*rows]), standardized_squared_distances([*rows])):
            assert judge([(np.arange(10), squares)], 10, 500).kept.all(), f"seed {seed}"


def test_standardized_distances_do_not_change_with_units_and_places_of_coordinates():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(7, 40))
    rows[:, 3] = 1.0  # where all agree, nobody is far
    moved = rows * rng.lognormal(sigma=5.0, size=40) + rng.normal(size=40)
    squares = standardized_squared_distances([*rows])
    np.testing.assert_allclose(standardized_squared_distances([*moved]), squares, rtol=1e-6)
    assert squares.max() <= 40 * (2 * MAX_DEVIATION) ** 2


@pytest.mark.parametrize("size", [1e30, 1e200, np.finfo(np.float64).max])
def test_standardized_distances_of_absurd_networks_are_finite(size):
    rows = np.concatenate([np.random.default_rng(0).normal(size=(5, 8)), np.array([[size], [-size]]) * np.ones(8)])
    squares = standardized_squared_distances([*rows])
    assert np.isfinite(squares).all()
    assert squares[5, 6] == pytest.approx(8 * (2 * MAX_DEVIATION) ** 2)
    assert np.abs(standardized_coordinates(np.clip(rows, -1e100, 1e100))).max() == MAX_DEVIATION


def test_who_is_left_out_by_either_judgement_is_told_with_its_step():
    """Copies at once; who is far in standardized coordinates, after them."""
    rng = np.random.default_rng(0)
    quiet = np.arange(200) < 100
    rows = rng.normal(size=(9, 200)) * np.where(quiet, 0.01, 1.0)
    rows[7] = rows[8]
    rows[3, quiet] += 0.1
    distances = squared_distances([*rows])
    passed = []

    def standardized(kept):
        passed.extend(np.flatnonzero(kept).tolist())
        return [(np.flatnonzero(kept), standardized_squared_distances([*rows[kept]]))]

    judgement = judge_twice([(np.arange(9), distances)], standardized, 9, 200)
    assert passed == [0, 1, 2, 3, 4, 5, 6, 7]
    gate, copy = judgement.left_out("abcdefghi")
    assert (gate["model"], gate["step"]) == ("d", "gate")
    assert gate["score"] > 1.5
    assert copy == {"model": "i", "step": "copy of another"}


@pytest.mark.parametrize("n_mimics", [1, 2, 3, 4])
@pytest.mark.parametrize("noise", [0.01, 0.6])
def test_mimics_of_one_network_count_once(n_mimics, noise):
    """Four mimics and the network that they copy are five of ten, and drew the centre to themselves."""
    honest = [network(seed) for seed in range(10 - n_mimics)]
    rows = np.stack([flat(module) for module in honest])
    farthest = int(np.argmax(((rows - rows.mean(axis=0)) ** 2).sum(axis=1)))
    rng = np.random.default_rng(n_mimics)
    mimics = [network(farthest) for _ in range(n_mimics)]
    for module in mimics:
        sent = flat(module) + noise * rows.std(axis=0) * rng.normal(size=rows.shape[1])
        torch.nn.utils.vector_to_parameters(torch.tensor(sent, dtype=torch.float32), module.parameters())
    fusion = fuse([*honest, *mimics])
    copies = {one["model"] for one in fusion.details["robust"]["left_out"] if one["step"] == "copy of another"}
    group = {f"model {farthest}", *(f"model {site}" for site in range(10 - n_mimics, 10))}
    assert len(copies) == n_mimics
    assert copies < group
    assert np.linalg.norm(flat(fusion.model) - rows.mean(axis=0)) < np.linalg.norm(
        flat(cs.fuse([*honest, *mimics], method="average", example=torch.zeros(1, 4)).model) - rows.mean(axis=0)
    ) + 0.05 * np.linalg.norm(rows.std(axis=0))


def test_claims_of_observations_weigh_no_more_than_the_usual_one():
    modules = [network(seed) for seed in range(6)]
    one, other = (
        cs.fuse(modules, method="average", example=torch.zeros(1, 4), robust=True, n_observations=[100.0] * 5 + [last])
        for last in (100.0, 1e6)
    )
    np.testing.assert_array_equal(flat(one.model), flat(other.model))


def test_networks_left_out_count_in_nothing():
    fusion = fuse([*(network(seed) for seed in range(8)), network(50, 100.0)])
    assert [local.weight for local in fusion.inputs] == pytest.approx([1 / 8] * 8 + [0.0])
    assert all(group.distance < 0.1 for group in fusion.quality.values())
