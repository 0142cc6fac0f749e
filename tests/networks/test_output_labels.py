"""Labels of networks of several outputs: counts of each, what may be said of them, and the ensemble by them."""

import numpy as np
import pytest
import torch
from torch import nn

import consilience as cs
from consilience.errors import InputError, WithheldWarning
from consilience.files.safetensors_file import as_file
from consilience.networks.choice.sites import Sites
from consilience.networks.choice.teacher import Teacher, stationary_answers
from consilience.networks.descriptions.files import read_description
from consilience.networks.descriptions.output_labels import said_classes


class TwoTasks(nn.Module):
    """Three classes, and two numbers."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.kind, self.place = nn.Linear(4, 3), nn.Linear(4, 2)

    def forward(self, x):
        return self.kind(x), self.place(x)


def rows_and_labels(counts=(60, 40, 20), seed=0):
    rng = np.random.default_rng(seed)
    kinds = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    rows = torch.as_tensor(rng.normal(size=(len(kinds), 4)), dtype=torch.float32)
    return rows, torch.as_tensor(kinds), rows[:, :2] * 3 + 100


@pytest.mark.parametrize("counts", [(40, 3, 9, 30), (3, 0, 0, 40), (4, 1, 50, 6), (2, 2, 9, 0), (7, 8, 9, 10)])
@pytest.mark.parametrize("least", [0, 5, 8])
def test_counts_that_are_not_said_cannot_be_told_by_difference(counts, least):
    is_said = said_classes(np.array(counts), least)
    hidden = np.array(counts)[~is_said]
    assert all(count == 0 or count >= least for count in np.array(counts)[is_said])
    assert not len(hidden) or hidden.sum() >= least or not np.array(counts)[is_said].any()
    if least == 0 or min(counts) >= least:
        assert is_said.all()


def test_each_output_is_described_by_its_own_labels(tmp_path):
    net = TwoTasks()
    rows, kinds, places = rows_and_labels()
    described = cs.describe(net, (rows, (kinds, places)))
    kind, place = described.description.output_labels
    with torch.no_grad():
        logits, numbers = net(rows)
    assert (kind.name, kind.width, kind.classes, kind.counts.tolist()) == (None, 3, ("0", "1", "2"), [60, 40, 20])
    assert kind.own_loss == pytest.approx(float((logits.argmax(1) != kinds).double().mean()), abs=5e-4)
    expected = ((numbers - places) ** 2).sum(1).mean() / places.double().var(0, correction=0).sum()
    assert (place.width, place.classes, place.counts) == (2, None, None)
    assert place.own_loss == pytest.approx(float(expected), rel=5e-3)
    cs.save(described, tmp_path / "lund.safetensors")
    read = read_description(as_file(tmp_path / "lund.description.safetensors")).output_labels
    assert [one.own_loss for one in read] == [kind.own_loss, place.own_loss]
    np.testing.assert_array_equal(read[0].counts, kind.counts)
    batches = [(rows[k : k + 50], (kinds[k : k + 50], places[k : k + 50])) for k in range(0, len(rows), 50)]
    again = cs.describe(net, batches).description.output_labels
    assert again[0].counts.tolist() == [60, 40, 20]
    assert again[1].own_loss == pytest.approx(place.own_loss, rel=1e-2)


def test_rare_classes_of_an_output_are_withheld_with_the_least_other():
    rows, kinds, places = rows_and_labels((60, 40, 3))
    with pytest.warns(WithheldWarning, match="output 0: counts of its classes 1, 2 are withheld"):
        described = cs.describe(TwoTasks(), (rows, (kinds, places)))
    assert described.description.output_labels[0].counts.tolist() == [60, 0, 0]
    whole = cs.describe(TwoTasks(), (rows, (kinds, places)), min_count=0)
    assert whole.description.output_labels[0].counts.tolist() == [60, 40, 3]


def test_observations_without_a_class_count_for_nothing():
    rows, kinds, places = rows_and_labels()
    kinds[:30] = -100
    (kind, _) = cs.describe(TwoTasks(), (rows, (kinds, places))).description.output_labels
    assert kind.counts.sum() == 90


def test_the_ensemble_of_an_output_is_that_of_its_own_counts():
    rng = np.random.default_rng(0)
    outputs = rng.normal(size=(2, 50, 5))
    counts = np.array([[90.0, 9.0, 1.0], [5.0, 15.0, 80.0]])
    said = []
    for seed in range(2):
        rows, kinds, places = rows_and_labels(counts[seed].astype(int), seed)
        said.append(cs.describe(TwoTasks(seed), (rows, (kinds, places)), min_count=0).description)
    sites = Sites(("lund", "oslo"), np.array([0.5, 0.5]), tuple(said))
    heads = tuple((columns, bool(sites.classify(k))) for k, columns in enumerate((slice(0, 3), slice(3, 5))))
    assert [classifies for _, classifies in heads] == [True, False]
    answers = Teacher(sites, False, heads).answers(outputs)
    shifted = np.exp(outputs[..., :3]) / np.exp(outputs[..., :3]).sum(axis=2, keepdims=True)
    np.testing.assert_allclose(answers[:, :3], stationary_answers(shifted, counts, [False, False], sites.weights))
    np.testing.assert_allclose(answers[:, 3:], outputs[..., 3:].mean(axis=0))


def test_an_output_of_several_numbers_is_no_classifier_where_sites_say_so():
    described = []
    for seed in range(2):
        rows, kinds, places = rows_and_labels(seed=seed)
        described.append(cs.describe(TwoTasks(seed), (rows, (kinds, places))))
    fusion = cs.fuse(described, cs.methods.Auto(n_inputs=200, steps=20))
    assert fusion.verdict.criterion.startswith("mean over the outputs")


def test_labels_that_are_not_those_of_the_outputs():
    rows, kinds, places = rows_and_labels()
    note = "labels of one output, which are not described: the network has 2, give a mapping or a tuple"
    assert note in cs.describe(TwoTasks(), (rows, kinds)).description.notes
    with pytest.raises(InputError, match="has labels of 3 outputs, and the networks have 2"):
        cs.describe(TwoTasks(), (rows, (kinds, places, places)))
    with pytest.raises(InputError, match="the networks answer 2 numbers"):
        cs.describe(TwoTasks(), (rows, (kinds, places[:, :1])))
    with pytest.raises(InputError, match="outside the classes 0 to 2"):
        cs.describe(TwoTasks(), (rows, (kinds + 1, places)))
    described = [
        cs.describe(TwoTasks(0), (rows, (kinds, places))),
        cs.describe(TwoTasks(1), (rows, (rows[:, :3], places))),
    ]
    with pytest.raises(InputError, match="other labels of the networks' outputs"):
        cs.fuse(described)


def test_the_ensemble_of_several_outputs_averages_each(tmp_path):
    counts = ((80, 15, 5), (5, 15, 80))
    nets, described = [TwoTasks(0), TwoTasks(1)], []
    for seed, net in enumerate(nets):
        rows, kinds, places = rows_and_labels(counts[seed], seed)
        described.append(cs.describe(net, (rows, (kinds, places))))
    ensemble = cs.fuse(described, method="ensemble").model
    with torch.no_grad():
        kind, place = ensemble(rows)
        kinds, places = zip(*(net(rows) for net in nets), strict=True)
    torch.testing.assert_close(place, sum(places) / 2)
    expected = stationary_answers(
        np.stack([one.softmax(1).double().numpy() for one in kinds]), np.array(counts, dtype=float), [False, False]
    )
    np.testing.assert_allclose(kind.exp().numpy(), expected, atol=1e-5)
    cs.save(ensemble, tmp_path / "both")
    with torch.no_grad():
        again = cs.load(tmp_path / "both", module=TwoTasks())(rows)
    torch.testing.assert_close(again[0], kind)
    fusion = cs.fuse(described, cs.methods.Auto(n_inputs=200, steps=20))
    with torch.no_grad():
        torch.testing.assert_close(fusion.ensemble(rows)[0], kind)
        undescribed = cs.fuse(nets, method="ensemble").model(rows)
    torch.testing.assert_close(undescribed[0].exp(), sum(one.softmax(1) for one in kinds) / 2)
    torch.testing.assert_close(undescribed[1].exp(), sum(one.softmax(1) for one in places) / 2)  # taken for classes
