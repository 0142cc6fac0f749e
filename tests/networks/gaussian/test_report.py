"""The report of fused Bayesian networks: posteriors and predictive scores."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import consilience as cs
from consilience.errors import InputError
from consilience.networks.gaussian.report.content import distances_of, sharing_of_result
from consilience.networks.gaussian.report.write import bayesian_content_of
from consilience.networks.landscape.barrier import Barrier
from tests.end_to_end.pages import readable, report, safe

SIDE = 8


def gaussian(seed, hidden=12):
    """A network that has two thirds of its hidden units in common with others, in an order of its own."""
    rng = np.random.default_rng(seed)
    shared = np.random.default_rng(100)
    incoming, outgoing = shared.normal(size=(hidden, SIDE * SIDE)) / SIDE, shared.normal(size=(10, hidden))
    mask = np.arange(hidden) % 3 == seed % 3
    incoming[mask] = rng.normal(size=(mask.sum(), SIDE * SIDE)) / SIDE
    outgoing[:, mask] = rng.normal(size=(10, mask.sum()))
    order = rng.permutation(hidden)
    means = {"0.weight": incoming[order], "0.bias": np.zeros(hidden), "2.weight": outgoing[:, order]}
    means = {name: torch.tensor(values).float() for name, values in (means | {"2.bias": np.zeros(10)}).items()}
    module = nn.Sequential(nn.Linear(SIDE * SIDE, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    variances = {name: torch.full_like(values, 0.01 * (1 + seed % 3)) for name, values in means.items()}
    return cs.BayesianNetwork(module, means, variances, 1.0)


@pytest.fixture(scope="module")
def bnns():
    return [gaussian(seed) for seed in range(3)]


@pytest.fixture(scope="module")
def data():
    x, y = load_digits(return_X_y=True)
    return (x[:200] / 16).astype(np.float32), y[:200]


@pytest.fixture(scope="module")
def fusion(bnns):
    return cs.fuse(bnns, "kl", regularization=0.3, example=torch.zeros(1, SIDE * SIDE))


@pytest.fixture(scope="module")
def aligned(bnns):
    return cs.fuse(bnns, "w2", example=torch.zeros(1, SIDE * SIDE))


@pytest.fixture(scope="module")
def predictions(bnns, fusion, data):
    x, y = data
    named = {**{f"site {j}": bnn for j, bnn in enumerate(bnns)}, "fused": fusion.model}
    return {
        name: cs.predictive_scores(bnn.predict(x, 8), y, outside=bnn.predict(1.0 - x[:90], 8), outside_labels=y[:90])
        for name, bnn in named.items()
    }


@pytest.fixture
def path(tmp_path):
    return tmp_path / "page.html"


def test_a_fusion_has_every_section(fusion, predictions, path):
    shown = {"predictions": predictions}
    shown["barriers"] = {"as they are": Barrier(np.linspace(0, 1, 3), {"loss": np.array([1.0, 2.0, 1.0])})}
    shown["scores"] = {"fused": {"loss": 0.5}}
    page = report(fusion, path, **shown)
    safe(page)
    readable(page)
    answers, posteriors = ["scores", "predictions"], ["groups", "who", "shared", "between"]
    assert page.sections == ["in", "out", *answers, *posteriors, "found", "made"]
    arrays = sum(np.asarray(values).size for values in fusion.model.means.values())
    assert f"3 Bayesian networks → one of {arrays:,} parameters" in page.words
    assert f"{arrays:,}, each with a mean and a variance" in page.words
    assert "kl: match units of Bayesian networks by KL divergence" in page.words
    assert "/deviation" not in page.text
    assert report(fusion, path, **shown).source == page.source


def test_units_are_counted_by_how_many_sites_have_them(fusion, path):
    page = report(fusion, path)
    (group, facts), *_ = fusion.details["groups"].items()
    assert sum(facts["shared"]) == facts["units"] == fusion.groups[group]
    assert f"1 site 2 sites 3 sites {group} {facts['units']} {' '.join(map(str, facts['shared']))} " in page.words
    content = bayesian_content_of(fusion._shown())
    assert content.sharing[0].by_sites == tuple(facts["shared"])
    assert content.sharing == sharing_of_result(fusion.provenance["result"], fusion.groups, 3)
    assert sum(count > 0 for count in facts["shared"]) > 1


def test_distances_to_units_that_are_not_there_are_not_shown(fusion, aligned, path):
    page = report(fusion, path)
    assert not any("Distances of the models" in text for text in page.said)
    assert "posteriors" not in page.sections
    page = report(aligned, path)
    assert any("Distances of the models" in text for text in page.said)
    assert "squared Wasserstein-2 distance of the posteriors from their barycenter" in page.words
    assert "shared" not in page.sections


def test_distances_of_means_and_deviations_are_those_of_the_fusion(bnns, aligned, path):
    page = report(aligned, path)
    readable(page)
    distances = aligned.details["distances"]
    for name, before in distances["before"].items():
        assert f"{name} {before:.4g} {distances['after'][name]:.4g} " in page.words
    assert f"All {sum(distances['before'].values()):.4g} {sum(distances['after'].values()):.4g} " in page.words
    for layer in bayesian_content_of(aligned._shown()).gaussian_layers:
        keys = [f"{layer[0].name}.weight", f"{layer[0].name}.bias"]
        for what, found in zip(("", "/deviation"), layer, strict=True):
            unmoved = [one.network for one in aligned.inputs]
            for share, networks in ((found.before, unmoved), (found.after, aligned.aligned)):
                stacked = [
                    np.concatenate([np.ravel(one.arrays[k + what]).astype(float) for k in keys]) for one in networks
                ]
                expected = np.var(stacked, axis=0).sum() / np.mean(np.square(stacked), axis=0).sum()
                assert share == pytest.approx(expected, rel=1e-5)
        assert layer[0].entries == sum(np.asarray(bnns[0].means[key]).size for key in keys)


def test_scores_on_the_page_are_those_given(fusion, predictions, path):
    page = report(fusion, path, predictions=predictions)
    for name, one in predictions.items():
        numbers = [f"{100 * one.accuracy:.2f}", f"{one.log_likelihood:.3f}", f"{one.entropy:.3f}"]
        numbers += [f"{one.calibration_error:.3f}", f"{one.brier:.3f}", f"{one.outside.entropy:.3f}"]
        assert f"{name} {' '.join(numbers)} {one.outside.auroc:.3f} ".replace("-", "−") in page.words
    assert "Of 200 inputs, and 90 outside." in page.words
    assert any(one.startswith("Accuracy against confidence of 4 models") for one in page.said)
    for region, attribute in (("inside", "centred_entropies"), ("outside", "centred_outside")):
        (alt,) = [one for one in page.said if f"of inputs {region}, minus" in one]
        for name, one in predictions.items():
            centred = getattr(one, attribute)
            low, high = min(centred, key=centred.get), max(centred, key=centred.get)
            assert (
                f"{name}: {centred[low]:.2f} for class {low} to {centred[high]:.2f} for class {high}".replace("-", "−")
                in alt
            )


def test_what_is_not_known_is_not_shown(fusion, predictions, path):
    inside = {name: replace(item, outside=None) for name, item in predictions.items()}
    page = report(fusion, path, predictions={**inside, "site 0": predictions["site 0"]})
    readable(page)
    assert re.search(r"site 1 [^–]* – – ", page.words)
    page = report(fusion, path, predictions=inside)
    assert "AUROC" not in page.words
    assert not any("inputs outside" in item for item in page.said)
    unlabeled = replace(predictions["fused"].outside, class_entropies=())
    page = report(fusion, path, predictions={"fused": replace(predictions["fused"], outside=unlabeled)})
    assert "AUROC" in page.words
    assert not any("inputs outside" in item for item in page.said)
    assert "predictions" not in report(fusion, path).sections


def test_an_ensemble_has_a_page_too(bnns, predictions, path):
    together = cs.fuse(bnns, "ensemble", example=torch.zeros(1, SIDE * SIDE))
    page = report(together, path, predictions=predictions)
    safe(page)
    readable(page)
    assert page.sections == ["in", "out", "predictions", "made"]
    assert "3 Bayesian networks → all of them side by side" in page.words


def test_many_sites_share_columns(path):
    fusion = cs.fuse([gaussian(seed, 3) for seed in range(12)], "kl", example=torch.zeros(1, SIDE * SIDE))
    page = report(fusion, path)
    readable(page)
    (sharing,) = bayesian_content_of(fusion._shown()).sharing
    assert len(sharing.by_sites) == 12
    assert sharing.columns == (*sharing.by_sites[:9], sum(sharing.by_sites[9:]))
    assert "9 sites 10 or more" in page.words


def test_hostile_names_stay_names(fusion, predictions, path):
    name = '"><img src=x onerror=alert(1)>\u202e\x07'
    page = report(fusion, path, predictions={name: predictions["fused"]})
    safe(page)
    assert '"><img src=x onerror=alert(1)>' in page.text
    assert r"\u202e" in page.text


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"distances": 3},
        {"distances": {"before": {"a": 1.0}}},
        {"distances": {"before": {"a": 1.0}, "after": {"b": 1.0}}},
        {"distances": {"before": {"a": "x"}, "after": {"a": 1.0}}},
    ],
)
def test_distances_of_another_form_are_left_out(result):
    assert distances_of(result) is None


@pytest.mark.parametrize(
    "groups",
    [
        None,
        [],
        {"0": 3},
        {"0": {"shared": "abc"}},
        {"0": {"shared": [1, 2]}},
        {"0": {"shared": [1, 1, 1]}},
        {"0": {"shared": [5, 0, -1]}},
        {"1": {"shared": [4, 0, 0]}},
    ],
)
def test_counts_that_do_not_add_up_are_left_out(groups):
    assert sharing_of_result({"groups": groups}, {"0": 4}, 3) == ()


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ({"predictions": [1]}, "predictions: expected what consilience.predictive_scores returns, .* found list"),
        ({"predictions": {"fused": 0.9}}, "found float under 'fused'"),
        ({"barriers": {"a": 3}}, "barriers: expected barriers by name"),
    ],
)
def test_what_cannot_be_shown_is_told_and_nothing_written(fusion, predictions, path, shown, said):
    with pytest.raises(InputError, match=said):
        fusion.report(path, **{"predictions": predictions, **shown})
    assert not path.exists()
