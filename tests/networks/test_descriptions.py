"""Laws of what a site says of its network: exact moments in any order, nothing of few, and what is written is read."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import consilience as cs
from consilience.api.kinds import inspect_file
from consilience.errors import InputError, OptionError
from consilience.networks.descriptions import tokens as token_counts
from consilience.networks.descriptions.description import Moments
from consilience.networks.descriptions.files import description_path, read_description, write_description
from consilience.networks.descriptions.moments import MomentAccumulator, pooled_moments
from consilience.networks.descriptions.statistic import RangeAccumulator
from consilience.networks.descriptions.tokens import TokenAccumulator
from tests.networks.described_nets import CLASSES, Reader, Undecided, convolutional, describe_network, perceptron, rows

FLOAT32 = 3e-7
"""Two roundings of float32, relative: what is said is stored in it."""
BIN = 2.0**-9
"""A bin of the range is 2^-11 of its value wide, and the definitions of a quantile differ by an observation."""
SKETCH = 1e-2
"""Leading directions of a sketch against the exact ones, relative lengths; their spectrum falls slowly here."""


def loader(inputs, labels, size, shuffle=False):
    generator = torch.Generator().manual_seed(3)
    return DataLoader(TensorDataset(torch.tensor(inputs), torch.tensor(labels)), size, shuffle, generator=generator)


# -- Moments


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(0, 5), st.sampled_from([None, 20]))
def test_moments_of_batches_are_those_of_all_rows(sizes, seed, sketch_rank):
    rng = np.random.default_rng(seed)
    data = rng.normal(size=(sum(sizes), 5)) @ rng.normal(size=(5, 5)) + 100.0
    accumulator = MomentAccumulator(5, sketch_rank)
    for batch in np.split(data, np.cumsum(sizes)[:-1]):
        accumulator.add(batch)
    moments = accumulator.moments(5)
    np.testing.assert_allclose(moments.mean, data.mean(axis=0), rtol=1e-10)
    np.testing.assert_allclose(moments.covariance, np.cov(data.T, bias=True), atol=1e-10)


def test_accumulators_that_are_merged_have_the_moments_of_all_rows():
    data = np.random.default_rng(0).normal(size=(90, 4)) * [1.0, 5.0, 0.1, 30.0] - 7.0
    for sketch_rank in (None, 10):
        parts = [MomentAccumulator(4, sketch_rank) for _ in range(3)]
        for part, some in zip(parts, np.split(data, [1, 50]), strict=True):
            part.add(some)
        total = MomentAccumulator(4, sketch_rank)
        for part in parts:
            total.merge(part)
        np.testing.assert_allclose(total.moments(4).covariance, np.cov(data.T, bias=True), atol=1e-10)


def test_a_sketch_has_the_leading_directions_and_every_variance():
    rng = np.random.default_rng(0)
    data = rng.normal(size=(3000, 300)) * np.exp(-np.arange(300) / 30.0)
    accumulator = MomentAccumulator(300, 20)
    for batch in np.split(data, 30):
        accumulator.add(batch)
    moments = accumulator.moments(20)
    expected = np.linalg.svd(data - data.mean(axis=0), compute_uv=False)[:20] / np.sqrt(3000)
    np.testing.assert_allclose(np.linalg.norm(moments.factor, axis=1), expected, rtol=SKETCH)
    np.testing.assert_allclose(moments.variance, data.var(axis=0), rtol=1e-9)


def test_pooled_mean_and_variance_of_sites_are_those_of_their_rows_together():
    data = [rows(seed, counts)[0].astype(np.float64) for seed, counts in enumerate([(9, 9), (40, 1), (3, 80)])]
    moments = []
    for site in data:
        accumulator = MomentAccumulator(6)
        accumulator.add(site)
        moments.append(accumulator.moments(2))
    n, mean, variance = pooled_moments(moments)
    together = np.concatenate(data)
    assert n == len(together)
    np.testing.assert_allclose(mean, together.mean(axis=0), atol=1e-10)
    np.testing.assert_allclose(variance, together.var(axis=0), rtol=1e-10)


@pytest.mark.parametrize("make", [np.abs, np.negative, lambda values: 255.0 * values])
def test_a_thousandth_of_the_observations_pass_the_range_on_either_side(make):
    data = make(np.random.default_rng(0).normal(size=(20_000, 5)))
    parts = [RangeAccumulator() for _ in range(2)]
    for number, some in enumerate(np.split(data, 10)):
        parts[number % 2].add(some)
    parts[0].merge(parts[1])
    expected = np.sort(data.min(axis=1))[20], np.sort(data.max(axis=1))[-21]
    np.testing.assert_allclose(parts[0].range(5), expected, rtol=BIN)


def test_the_range_is_no_extreme_of_few_observations():
    found = RangeAccumulator()
    found.add(np.array([-1000.0, *range(100), 1000.0])[:, None])
    assert found.range(5) == (4.0, 95.0)
    assert found.range(0) == (0.0, 99.0)
    assert found.range(51) is None


def test_one_observation_of_many_numbers_does_not_show_in_the_range():
    images, labels = np.random.default_rng(0).uniform(size=(300, 1, 8, 8)).astype(np.float32), np.arange(300) % 3
    images[7], images[8] = 777.0, -777.0
    low, high = describe_network(convolutional(), (images, labels)).input_range
    assert 0.0 <= low < 0.01
    assert 0.99 < high <= 1.0


@pytest.mark.parametrize("top", [1.0, 255.0])
def test_the_range_of_images_is_what_many_of_them_reach(top):
    images = (np.random.default_rng(0).integers(0, 5, (300, 1, 8, 8)) / 4 * top).astype(np.float32)
    assert describe_network(convolutional(), images).input_range == (0.0, pytest.approx(top, rel=BIN))


@pytest.mark.parametrize("few", [3, 12])
def test_the_range_is_not_that_of_classes_that_are_not_described(few):
    inputs, labels = rows(counts=(150, 120, few))
    changed = np.where((labels == 2)[:, None], 1000.0 * inputs, inputs)
    with pytest.warns(cs.errors.WithheldWarning) if few < 5 else _nothing():
        one, other = (describe_network(perceptron(), (some, labels)) for some in (inputs, changed))
    assert one.input_range == other.input_range


# -- What is measured


def test_a_description_has_the_counts_and_moments_of_the_data():
    inputs, labels = rows()
    described = cs.describe(perceptron(), (inputs, labels), classes=CLASSES).description
    assert described.n_observations == 360
    assert described.classes == CLASSES
    assert described.class_counts.tolist() == [150, 120, 90]
    assert described.input_shape == (6,)
    wide = inputs.astype(np.float64)
    np.testing.assert_allclose(described.inputs.covariance, np.cov(wide.T, bias=True), rtol=0, atol=1e-5)
    for number in range(3):
        of_class = wide[labels == number]
        np.testing.assert_allclose(described.class_moments[number].mean, of_class.mean(axis=0), rtol=0, atol=1e-6)
        np.testing.assert_allclose(described.class_moments[number].variance, of_class.var(axis=0), rtol=1e-5)


def test_channels_are_those_of_every_layer_in_evaluation_mode():
    net = convolutional().train()
    net[1].running_mean[:] = 0.3
    images = np.random.default_rng(0).normal(size=(130, 1, 8, 8)).astype(np.float32)
    described = describe_network(net, images)
    assert net.training  # as it was
    assert list(described.channels) == ["0", "1", "3", "4", "8"]
    values = torch.from_numpy(images)
    with torch.no_grad():
        for path, layer in net.eval().named_children():
            values = layer(values)
            if path in described.channels:
                channels = values.movedim(1, -1).flatten(0, -2).double()
                mean, variance = channels.mean(dim=0), channels.var(dim=0, correction=0)
                np.testing.assert_allclose(described.channels[path].mean, mean, rtol=1e-5, atol=1e-6)
                np.testing.assert_allclose(described.channels[path].variance, variance, rtol=1e-5)


def test_features_are_the_mean_by_class_of_what_the_last_layer_reads():
    net, (inputs, labels) = perceptron(), rows(counts=(60, 60, 10))
    features = describe_network(net, (inputs, labels), min_count=0).class_features
    with torch.no_grad():
        read = net[:2](torch.from_numpy(inputs)).numpy()
    for number in range(2):
        np.testing.assert_allclose(features[number], read[labels == number].mean(axis=0), rtol=1e-5, atol=1e-6)
    assert np.isnan(features[2]).all()  # of ten observations


def same(a, b, tolerance=FLOAT32):
    """Assert that two descriptions say the same, but for rounding."""
    scale = np.abs(a.inputs.covariance).max()
    np.testing.assert_allclose(a.inputs.mean, b.inputs.mean, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(a.inputs.covariance, b.inputs.covariance, atol=4 * tolerance * scale)
    assert a.input_range == b.input_range
    assert a.n_observations == b.n_observations
    assert (a.class_counts is None) == (b.class_counts is None)
    for number, moments in a.class_moments.items():
        np.testing.assert_allclose(moments.covariance, b.class_moments[number].covariance, atol=4 * tolerance * scale)
    for path, channels in a.channels.items():
        np.testing.assert_allclose(channels.mean, b.channels[path].mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(channels.variance, b.channels[path].variance, rtol=1e-5)


@pytest.mark.parametrize("size", [1, 7, 360])
def test_order_and_size_of_batches_change_nothing(size):
    net, (inputs, labels) = perceptron(), rows()
    whole = describe_network(net, (inputs, labels))
    same(whole, describe_network(net, loader(inputs, labels, size, shuffle=True)))


def test_a_generator_a_path_and_tensors_are_read_alike(tmp_path):
    net, (inputs, labels) = perceptron(), rows()
    whole = describe_network(net, (inputs, labels))
    same(whole, describe_network(net, (batch for batch in loader(inputs, labels, 50))))
    np.savez(tmp_path / "rows.npz", x=inputs, y=labels)
    same(whole, describe_network(net, tmp_path / "rows.npz"))
    same(whole, describe_network(net, (torch.tensor(inputs, dtype=torch.float64), torch.tensor(labels))))
    names = describe_network(net, (inputs, np.array(CLASSES)[labels]), classes=CLASSES)
    assert names.class_counts.tolist() == whole.class_counts.tolist()


def test_inputs_alone_are_described_without_classes():
    described = describe_network(perceptron(), rows()[0])
    assert described.classes is described.class_counts is None
    assert described.inputs.n_observations == 360
    targets = describe_network(perceptron(), (rows()[0], rows()[0][:, 0]))  # of a regression
    assert targets.classes is targets.class_counts is None


def test_classes_held_as_real_numbers_are_asked_for():
    net, (inputs, labels) = perceptron(), rows()
    for held in (torch.tensor(labels).float(), labels[:, None].astype(np.float64)):
        with pytest.warns(cs.errors.WithheldWarning, match=r"labels are real numbers.*give integers.* or `classes=3`"):
            assert describe_network(net, (inputs, held)).class_counts is None
        assert describe_network(net, (inputs, held), classes=3).class_counts.tolist() == [150, 120, 90]
    measured = labels.astype(np.float64)
    measured[-1] = 0.5  # one that is no class, in the last batch of all
    describe_network(net, [(inputs[:200], measured[:200]), (inputs[200:], measured[200:])])
    describe_network(perceptron(classes=1), (inputs, labels.astype(np.float64)))


def test_two_classes_of_one_output_are_counted():
    net, (inputs, labels) = perceptron(classes=1), rows(counts=(150, 120))
    assert describe_network(net, (inputs, labels), classes=2).class_counts.tolist() == [150, 120]
    unstated = describe_network(net, (inputs, labels))
    assert unstated.class_counts.tolist() == [150, 120]
    assert "described as two classes" in unstated.notes[0]
    assert describe_network(net, (inputs, np.zeros(270, dtype=bool))).class_counts.tolist() == [270, 0]
    with pytest.warns(cs.errors.WithheldWarning, match="real numbers.*classes=2"):
        assert describe_network(net, (inputs, labels.astype(np.float64))).class_counts is None


def test_whole_numbers_to_predict_are_no_classes():
    net, (inputs, labels) = perceptron(classes=1), rows(counts=(150, 120, 90))
    counts = describe_network(net, (inputs, labels))
    assert counts.class_counts is None
    assert counts.notes == ("labels not counted: the network has one output; `classes=2` counts them",)
    first = labels < 2
    with pytest.raises(cs.errors.InputError, match=r"batch 1: has labels other than 0 and 1.*real numbers"):
        describe_network(net, [(inputs[first], labels[first]), (inputs[~first], labels[~first])])


def test_labels_to_be_ignored_count_as_observations_only():
    inputs, labels = rows()
    labels[:30] = -100
    described = describe_network(perceptron(), (inputs, labels))
    assert described.n_observations == 360
    assert described.class_counts.sum() == 330


def test_whole_numbers_for_a_network_without_words_are_real():
    images = np.random.default_rng(0).integers(0, 256, (200, 1, 8, 8), dtype=np.uint8)
    described = describe_network(convolutional(), images)
    assert described.input_kind == "real"
    assert described.inputs.mean.mean() == pytest.approx(images.mean())


def test_a_number_without_data_is_a_description():
    described = cs.describe(perceptron(), n_observations=1000)
    assert described.description.n_observations == 1000
    assert described.description.inputs is None
    assert "no example" in described.symmetry.notes[0]


def test_the_whole_number_may_be_more_than_the_data():
    described = describe_network(perceptron(), rows(), n_observations=5000)
    assert described.n_observations == 5000
    assert described.inputs.n_observations == 360


# -- Tokens


def texts(n=300, vocabulary=40):
    rng = np.random.default_rng(0)
    words = np.minimum(rng.geometric(0.2, size=(n, 12)), vocabulary - 3)
    words[np.arange(12) >= rng.integers(3, 13, n)[:, None]] = 0
    return words


def test_tokens_are_counted_with_their_pairs_and_lengths():
    words = texts()
    tokens = describe_network(Reader(), words).tokens
    for word, count in enumerate(tokens.unigrams):
        assert count in (0, (words == word).sum())
    assert tokens.unigrams.sum() + tokens.n_rare == (words > 0).sum()
    assert tokens.n_rare > 0
    inside = words[:, 1:] > 0
    pairs = list(zip(words[:, :-1][inside], words[:, 1:][inside], strict=True))
    assert all(pairs.count((first, second)) == count for first, second, count in tokens.bigrams)
    lengths = (words > 0).sum(axis=1)
    assert [(lengths == length).sum() for length in range(len(tokens.lengths))] == tokens.lengths.tolist()


def test_a_word_of_one_text_is_not_told_however_often_it_stands_there():
    words = texts()
    words[0] = 39
    tokens = describe_network(Reader(), words).tokens
    assert tokens.unigrams[39] == 0
    assert not (tokens.bigrams[:, :2] == 39).any()


def test_texts_may_be_filled_up_batch_by_batch():
    words = texts()
    whole = describe_network(Reader(), words)
    parts = describe_network(Reader(), [words[:5, :12], *np.split(np.pad(words[5:], ((0, 0), (0, 4))), 5)])
    assert np.array_equal(whole.tokens.unigrams, parts.tokens.unigrams)
    assert np.array_equal(whole.tokens.bigrams, parts.tokens.bigrams)
    assert parts.input_shape == (16,)


def classes_of_texts(counts, n_tokens=12):
    """Return texts of 12 tokens, so many of each class, words 1 to 20 more frequent in class 0; and their classes."""
    rng = np.random.default_rng(1)
    labels = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    words = np.where(
        labels[:, None] == 0, rng.integers(1, 30, (len(labels), 12)), rng.integers(11, 38, (len(labels), 12))
    )
    words[np.arange(12) >= rng.integers(3, n_tokens + 1, len(labels))[:, None]] = 0
    return words, labels


def test_pairs_of_many_batches_are_those_of_one_and_sorted_seldom(monkeypatch):
    tokens = np.random.default_rng(0).integers(1, 300, (640, 12))
    whole, parts = TokenAccumulator(300, 0), TokenAccumulator(300, 0)
    whole.add(tokens, np.zeros(640, int))
    sorts = []
    summed = token_counts._summed
    monkeypatch.setattr(token_counts, "_summed", lambda table: (sorts.append(table.shape[1]), summed(table))[1])
    for rows_of_batch in np.split(tokens, 320):
        parts.add(rows_of_batch, np.zeros(2, int))
    one, other = (of.result(np.zeros(1, int), np.zeros(0, int), 0)[0] for of in (whole, parts))
    np.testing.assert_array_equal(one.bigrams, other.bigrams)
    # 7,040 pairs arrive, and no more than a few times as many are sorted, over and over.
    assert sum(sorts) < 6 * 640 * 11


@pytest.mark.parametrize("most", [100, 240, 900])  # passed at once, in the middle, and by the last pairs
def test_of_too_many_pairs_none_are_counted_with_a_note(monkeypatch, most):
    monkeypatch.setattr(token_counts, "MAX_PAIRS", most)
    words = torch.randint(1, 40, (200, 9), generator=torch.Generator().manual_seed(0))
    description = cs.describe(Reader(), (words, np.arange(200) % 2)).description
    assert len(description.tokens.bigrams) == 0
    assert description.tokens.unigrams.sum() == words.numel()
    assert any(note.startswith("pairs of neighbouring tokens are left out") for note in description.notes)


def test_tokens_are_counted_by_class():
    words, labels = classes_of_texts((200, 180))
    described = describe_network(Reader(), (words, labels))
    assert set(described.class_tokens) == {0, 1}
    for label, tokens in described.class_tokens.items():
        of_class = words[labels == label]
        occurrences = np.bincount(of_class[of_class > 0], minlength=40)
        assert np.array_equal(tokens.unigrams, np.where(occurrences >= 10, occurrences, 0))
        assert tokens.n_rare == occurrences[occurrences < 10].sum()
        lengths = np.bincount((of_class > 0).sum(axis=1), minlength=13)
        assert np.array_equal(tokens.lengths, np.where(lengths >= 5, lengths, 0))
        assert len(tokens.bigrams) == 0


def test_tokens_by_class_come_back_from_a_file_whose_statements_of_them_are_whole(tmp_path):
    described, path = describe_network(Reader(), classes_of_texts((200, 180))), tmp_path / "a.safetensors"
    write_description(path, described)
    found = read_description(path).class_tokens
    assert found.keys() == described.class_tokens.keys()
    for label, tokens in described.class_tokens.items():
        for name in ("unigrams", "bigrams", "lengths", "padding", "n_rare"):
            np.testing.assert_array_equal(getattr(found[label], name), getattr(tokens, name))
    with safe_open(path, "numpy") as file:
        header = json.loads(file.metadata()["consilience"])
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(
        arrays, path, {"consilience": json.dumps(header | {"class_tokens": header["class_tokens"] | {"n_rare": []}})}
    )
    with pytest.raises(cs.errors.FileFormatError, match="counts of tokens are not those of 2 classes"):
        read_description(path)
    arrays = {name: values for name, values in arrays.items() if not name.startswith("class_tokens/")}
    save_file(arrays, path, {"consilience": json.dumps(header | {"class_tokens": None})})
    assert read_description(path).class_tokens == {}


@pytest.mark.parametrize("counts", [(200, 180), (200, 60), (200, 150, 30), (200, 150, 30, 25)])
def test_what_is_left_of_all_texts_without_the_classes_is_frequent_by_itself(counts):
    words, labels = classes_of_texts(counts)
    described = describe_network(Reader(classes=len(counts)), (words, labels))
    rest = described.tokens.unigrams - sum(tokens.unigrams for tokens in described.class_tokens.values())
    assert ((rest == 0) | (rest >= 10)).all()
    # ... and in five texts of those classes in which it is not said
    for word in np.flatnonzero(rest):
        silent = [label for label in range(len(counts)) if not said(described, label, word)]
        assert (words[np.isin(labels, silent)] == word).any(axis=1).sum() >= 5
    rest = described.tokens.lengths - sum(tokens.lengths for tokens in described.class_tokens.values())
    assert ((rest == 0) | (rest >= 5)).all()


def said(described, label, word):
    return label in described.class_tokens and described.class_tokens[label].unigrams[word] > 0


@pytest.mark.parametrize("few", [3, 12])
def test_the_tokens_of_the_others_do_not_tell_those_of_few_by_difference(few):
    words, labels = classes_of_texts((200, 180, few))
    changed = np.where((labels == 2)[:, None], 39, words)
    net = Reader(classes=3)
    with pytest.warns(cs.errors.WithheldWarning) if few < 5 else _nothing():
        one, other = (describe_network(net, (some, labels)) for some in (words, changed))
    assert set(one.class_tokens) == {0, 1}
    for a, b in ((one.tokens, other.tokens), *((one.class_tokens[n], other.class_tokens[n]) for n in (0, 1))):
        assert np.array_equal(a.unigrams, b.unigrams)
        assert np.array_equal(a.bigrams, b.bigrams)
        assert np.array_equal(a.lengths, b.lengths)
        assert a.n_rare == b.n_rare


def test_a_class_of_few_tokens_says_none_by_itself():
    words, labels = classes_of_texts((300, 60))  # the second has about 450
    assert set(describe_network(Reader(), (words, labels)).class_tokens) == {0}
    assert set(describe_network(Reader(), (words, labels), min_count=0).class_tokens) == {0, 1}


def test_where_tokens_are_not_counted_by_class_the_site_is_left_whole_or_not_at_all(monkeypatch):
    monkeypatch.setattr("consilience.networks.descriptions.tokens.MAX_TOKEN_ENTRIES", 1)
    words, labels = classes_of_texts((200, 180, 3))
    with pytest.warns(cs.errors.WithheldWarning, match="too many to leave some classes out of the counts of tokens"):
        assert describe_network(Reader(classes=3), (words, labels)).tokens is None
    whole = describe_network(Reader(), (words[labels < 2], labels[labels < 2]))
    assert whole.tokens.unigrams.sum() + whole.tokens.n_rare == (words[labels < 2] > 0).sum()
    assert not whole.class_tokens


# -- What is withheld


def test_nothing_is_told_of_a_class_of_few_but_that_it_is_there():
    inputs, labels = rows(counts=(150, 120, 3))
    with pytest.warns(
        cs.errors.WithheldWarning, match="1 of 3 classes have fewer than 5 observations and are withheld: cedar"
    ):
        described = cs.describe(perceptron(), (inputs, labels), classes=CLASSES).description
    assert described.class_counts.tolist() == [150, 120, 0]
    assert described.withheld == ("cedar",)
    assert described.n_observations == 270  # a difference would tell how many there are
    assert set(described.class_moments) == {0, 1}
    assert np.isnan(described.class_features[2]).all()


@pytest.mark.parametrize("few", [3, 12])
def test_the_moments_of_the_others_do_not_tell_those_of_few_by_difference(few):
    inputs, labels = rows(counts=(150, 120, few))
    changed = inputs.copy()
    changed[labels == 2] += 50.0
    with pytest.warns(cs.errors.WithheldWarning) if few < 5 else _nothing():
        one, other = (describe_network(perceptron(), (some, labels)) for some in (inputs, changed))
    assert one.inputs.n_observations == 270
    assert np.array_equal(one.inputs.mean, other.inputs.mean)
    assert np.array_equal(one.inputs.factor, other.inputs.factor)
    for path, channels in one.channels.items():
        np.testing.assert_allclose(channels.mean, other.channels[path].mean, rtol=1e-6, atol=1e-6)


def _nothing():
    return pytest.MonkeyPatch.context()


def test_directions_stand_for_ten_observations_at_least():
    inputs, labels = rows(counts=(300, 55, 24), d=30)
    described = describe_network(perceptron(d=30), (inputs, labels))
    assert {number: len(moments.factor) for number, moments in described.class_moments.items()} == {0: 20, 1: 5, 2: 2}
    assert len(described.inputs.factor) == 30
    assert any("reduced from 20: 1 (5), 2 (2)" in note for note in described.notes)


def test_a_higher_least_number_withholds_all_statistics_of_a_class():
    inputs, labels = rows(counts=(150, 120, 30))
    changed = inputs.copy()
    changed[labels == 2] += 50.0
    with pytest.warns(cs.errors.WithheldWarning, match="fewer than 50 observations and are withheld: 2"):
        one, other = (describe_network(perceptron(), (some, labels), min_count=50) for some in (inputs, changed))
    assert one.class_counts.tolist() == [150, 120, 0]
    assert set(one.class_moments) == {0, 1}
    assert np.isnan(one.class_features[2]).all()
    assert np.array_equal(one.inputs.mean, other.inputs.mean)


def test_few_observations_have_counts_and_moments_only():
    inputs, labels = rows(counts=(30, 30, 9))
    with pytest.warns(cs.errors.WithheldWarning, match="60 observations are fewer than 100, so that range"):
        described = describe_network(perceptron(), (inputs, labels))
    assert described.input_range is None
    assert not described.channels
    assert not described.layers
    assert described.class_counts.tolist() == [30, 30, 9]
    # The nine of the third class have no moments of their own, so they are in no others either.
    assert described.inputs.n_observations == 60
    assert len(described.inputs.factor) == min(6, inputs.shape[1])
    np.testing.assert_allclose(described.inputs.mean, inputs[labels < 2].mean(axis=0), rtol=1e-5)


def test_where_every_class_is_withheld_nothing_can_be_described():
    inputs, labels = rows(counts=(4, 3, 2))
    with pytest.raises(InputError, match=r"9 observations, of every class fewer than 5.*give `n_observations=` alone"):
        describe_network(perceptron(), (inputs, labels))


def test_of_fewer_than_twenty_observations_inputs_have_no_moments():
    inputs, _ = rows(counts=(20,))
    with pytest.warns(cs.errors.WithheldWarning, match="19 observations are fewer than 100, so that moments and range"):
        assert describe_network(perceptron(), inputs[:19]).inputs is None
    with pytest.warns(cs.errors.WithheldWarning, match="20 observations are fewer than 100, so that range"):
        assert describe_network(perceptron(), inputs).inputs.n_observations == 20


def test_zero_withholds_nothing():
    inputs, labels = rows(counts=(150, 120, 3))
    described = describe_network(perceptron(), (inputs, labels), min_count=0)
    assert described.class_counts.tolist() == [150, 120, 3]
    np.testing.assert_allclose(described.inputs.mean, inputs.mean(axis=0), rtol=1e-5)


# -- Files


@pytest.fixture(params=["numbers", "tokens", "number"])
def described(request):
    if request.param == "numbers":
        return cs.describe(convolutional(), images(), classes=CLASSES)
    if request.param == "tokens":
        return cs.describe(Reader(), classes_of_texts((150, 140)), class_prior="removed")
    return cs.describe(perceptron(), n_observations=77, classes=3)


def images():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 300)
    return (rng.normal(size=(300, 1, 8, 8)) + labels[:, None, None, None]).astype(np.float32), labels


def statements(description):
    """Return everything that a description says, as bytes where it is an array."""

    def plain(value):
        if isinstance(value, np.ndarray):
            return value.dtype.kind, value.shape, np.asarray(value, dtype=np.float64).tobytes()
        if isinstance(value, dict):
            return {key: plain(one) for key, one in value.items()}
        if hasattr(value, "__dataclass_fields__"):
            return {key: plain(getattr(value, key)) for key in value.__dataclass_fields__}
        return value

    return {key: value for key, value in plain(description).items() if key not in ("name", "sha256")}


def test_what_is_saved_is_loaded_and_stands_beside_the_weights(described, tmp_path):
    path = tmp_path / "site.safetensors"
    cs.save(described, path)
    assert sorted(os.listdir(tmp_path)) == ["site.description.safetensors", "site.safetensors"]
    loaded = cs.load(description_path(path))
    assert statements(loaded) == statements(described.description)
    cs.save(loaded, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == description_path(path).read_bytes()


@pytest.mark.parametrize("number", [300, np.int64(300), np.float32(300)])
def test_numbers_of_any_type_are_written_as_real_ones(number, tmp_path):
    first, again = tmp_path / "first.safetensors", tmp_path / "again.safetensors"
    stated = replace(
        cs.describe(perceptron(), n_observations=77, classes=3).description, n_observations=number, min_count=number
    )
    write_description(first, stated)
    write_description(again, read_description(first))
    assert again.read_bytes() == first.read_bytes()


@pytest.mark.parametrize(("prefix", "fields"), [
    ("classes", {"class_moments": {"n_observations": [], "ranks": []}, "class_numbers": []}),
    ("mixtures", {"class_mixtures": {"n_observations": [], "ranks": []}, "mixture_sizes": []}),
], ids=["moments of no classes", "parts of no classes"])  # fmt: skip
def test_moments_of_nothing_are_refused(prefix, fields, tmp_path):
    path = tmp_path / "site.safetensors"
    cs.save(cs.describe(convolutional(), images(), classes=CLASSES), path)
    beside = description_path(path)
    with safe_open(beside, "numpy") as file:
        arrays, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    document = {**json.loads(metadata["consilience"]), **fields}
    none = dict.fromkeys([f"{prefix}/{what}" for what in ("mean", "residual", "factor")], np.zeros((0, 64), np.float32))
    save_file({**arrays, **none}, beside, {"consilience": json.dumps(document)})
    for read in (read_description, inspect_file):
        with pytest.raises(cs.errors.FileFormatError, match="do not have a number of observations and a rank each"):
            read(beside)


def test_the_same_data_give_the_same_bytes(tmp_path):
    for name in "ab":
        cs.save(perceptron(), tmp_path / f"{name}.safetensors", data=rows(), classes=CLASSES)
    assert (tmp_path / "a.description.safetensors").read_bytes() == (
        tmp_path / "b.description.safetensors"
    ).read_bytes()
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_the_weights_are_loaded_as_before(tmp_path):
    from safetensors.torch import load_file

    net = Undecided()
    cs.save(net, tmp_path / "site.safetensors", data=rows())
    net.load_state_dict(load_file(tmp_path / "site.safetensors"), strict=True)


def test_a_description_of_the_network_before_is_removed(tmp_path):
    path, net = tmp_path / "site.safetensors", perceptron()
    cs.save(net, path, data=rows())
    before = description_path(path).read_bytes()
    cs.save(net, path)  # the same weights: it still is of them
    assert description_path(path).read_bytes() == before
    cs.save(perceptron(1), path)
    assert not description_path(path).exists()
    cs.save(net, path, data=rows())
    cs.fuse([net, perceptron(1)], "average").save(path)
    assert not description_path(path).exists()
    description_path(path).write_text("notes of somebody")
    cs.save(net, path)
    assert description_path(path).read_text() == "notes of somebody"


def test_a_description_of_tied_weights_stays_beside_them(tmp_path):
    path, net = tmp_path / "site.safetensors", perceptron(d=8, classes=8)
    net[2].weight = net[0].weight
    cs.save(net, path, n_observations=50)
    cs.save(cs.describe(net, n_observations=50).module, path)
    assert description_path(path).is_file()


def broken(path, change):
    """Write a description in which something is changed, past its own checks."""
    description = cs.describe(perceptron(), rows(), classes=CLASSES).description
    changed = replace(description)
    change(changed)
    write_description(path, changed)


def with_nan(description):
    description.inputs.mean[0] = np.nan


def with_negative_variance(description):
    description.class_moments[1].residual[2] = -100.0


def with_contradiction(description):
    object.__setattr__(description, "n_observations", 7.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_nan, "moments of all inputs have NaN"),
        (with_negative_variance, "moments of class number 1 expected variances, found -100"),
        (with_contradiction, "its classes have 360 observations, and it says that it has 7"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(tmp_path, change, message):
    broken(tmp_path / "site.description.safetensors", change)
    with pytest.raises(InputError, match=message):
        cs.load(tmp_path / "site.description.safetensors")


def test_a_variance_that_is_negative_by_rounding_is_zero(tmp_path):
    def change(description):
        description.inputs.residual[:] = [1.0, -1e-7, 1.0, 1.0, 1.0, 1.0]

    broken(tmp_path / "site.description.safetensors", change)
    assert cs.load(tmp_path / "site.description.safetensors").inputs.residual[1] == 0


# -- Bad input


def no_batches():
    return iter(())


def changing_shapes():
    yield rows()[0][:50]
    yield rows(d=5)[0][:50]


def nan_inputs():
    inputs, labels = rows()
    inputs[3, 3] = np.nan
    return inputs, labels


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (lambda: (rows()[0], rows()[1] + 1), {}, r"labels outside the classes 0 to 2: 3 \(90 observations\)"),
        (lambda: (rows()[0], rows()[1] - 1), {}, r"labels outside the classes 0 to 2: -1"),
        (lambda: (rows()[0], rows()[1][:50]), {}, "has 360 observations and 50 labels"),
        (lambda: (rows()[0], np.eye(3, dtype=int)[rows()[1]]), {}, r"labels of shape \(360, 3\)"),
        (lambda: (rows()[0], np.array(CLASSES)[rows()[1]]), {}, "give all names as `classes="),
        (lambda: (rows()[0], np.array(CLASSES)[rows()[1]]), {"classes": ("ash", "birch", "oak")}, "no class: cedar"),
        (rows, {"classes": 4}, "are 4, but the network has 3 outputs"),
        (rows, {"classes": ("ash", "ash", "oak")}, "'ash' stands twice"),
        (rows, {"classes": "ash"}, "expected a number or names"),
        (rows, {"n_observations": 50}, "is 50, but data has 360 observations"),
        (nan_inputs, {}, "has NaN or infinite inputs"),
        (changing_shapes, {}, r"batch 1: has inputs of shape \(5,\), and the first ones have \(6,\)"),
        (no_batches, {}, "has no observations"),
        (lambda: rows(d=5), {}, "does not take an input such as"),
        (lambda: TensorDataset(*map(torch.tensor, rows())), {}, "is a single observation, expected a batch"),
        (lambda: [{"x": rows()[0]}], {}, "batch 0: .* does not take an input such as"),
        (lambda: 7, {}, r"expected \(X, y\), X or batches, found int"),
        (lambda: tuple(part[:4] for part in rows()), {}, "a description of 4 observations discloses single ones"),
        (lambda: [rows()[0][:200], rows()], {}, "batch 1: has labels, unlike those before"),
        (lambda: np.array(["a", "b"]), {}, "expected numbers"),
    ],
)
def test_data_that_do_not_fit_are_refused_in_a_line(data, options, message):
    with pytest.raises(InputError, match=message) as refused:
        cs.describe(perceptron(), data(), **options)
    assert len(refused.value.problems) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sample_weight": np.ones(360)}, "sample_weight: is for statistical models"),
        ({"features": cs.Features()}, "features: is for statistical models"),
        ({"class_prior": "gone"}, "expected 'own' or 'removed'"),
        ({"min_count": -1}, "expected a number that is not negative"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        cs.describe(perceptron(), rows(), **options)


@pytest.mark.parametrize("stated", [{}, {"classes": 3}])
@pytest.mark.parametrize("kind", [torch.as_tensor, np.asarray])
def test_labels_that_are_not_finite_are_refused(stated, kind):
    inputs, labels = rows()
    targets = labels.astype(float)
    targets[[3, 200]] = np.nan, np.inf
    with pytest.raises(InputError, match=r"data: has NaN or infinite labels \(2 observations\); take"):
        cs.describe(perceptron(), (inputs, kind(targets)), **stated)
    batches = [(inputs[:100], kind(labels[:100].astype(float))), (inputs[100:], kind(targets[100:]))]
    with pytest.raises(InputError, match=r"data: batch 1: has NaN or infinite labels \(1 observations\)"):
        cs.describe(perceptron(), batches, **stated)


@pytest.mark.parametrize("token", [40, -1])
@pytest.mark.parametrize("row", [0, 299])
def test_tokens_outside_the_vocabulary_are_refused_wherever_they_stand(token, row):
    words = texts()
    words[row, 2] = token
    with pytest.raises(InputError, match=f"data: has tokens outside the vocabulary of 40: {token}; use the tokenizer"):
        cs.describe(Reader(), words)


def test_a_network_needs_data_or_a_number():
    with pytest.raises(OptionError, match="needed to describe a network"):
        cs.describe(perceptron())


def test_outputs_that_are_not_finite_are_refused():
    net = perceptron()
    net[0].weight.data[0] = torch.inf
    with pytest.raises(InputError, match="NaN or infinite values"):
        cs.describe(net, rows())


def test_classes_are_asked_for_where_outputs_are_no_vector():
    net = nn.Sequential(nn.Linear(6, 6), nn.Unflatten(1, (2, 3)))
    with (
        pytest.warns(cs.errors.UncomparedWarning),
        pytest.raises(OptionError, match="classes: needed, since the outputs"),
    ):
        cs.describe(net, rows())
    with pytest.warns(cs.errors.UncomparedWarning, match="neither by input nor by position"):
        described = cs.describe(net, rows(), classes=3).description
    assert described.class_counts.tolist() == [150, 120, 90]


# -- Fusing


def sites(**changed):
    """Return two described networks, the second of other data."""
    return [
        cs.describe(perceptron(seed), rows(seed, **changed) if seed else rows(), classes=CLASSES) for seed in range(2)
    ]


def test_described_networks_are_evaluated_by_their_modules():
    a, b = sites()
    evaluation = cs.evaluate(a, b, *rows(5))
    assert [score.name for score in evaluation.scores] == [
        s.name for s in cs.evaluate(a.module, b.module, *rows(5)).scores
    ]


def test_described_networks_are_fused_without_an_example():
    a, b = sites()
    assert a.symmetry.proved
    assert a.module is not None
    fusion = cs.fuse({"lund": a, "oslo": b})
    assert fusion.model(torch.zeros(2, 6)).shape == (2, 3)
    with_modules = cs.fuse({"lund": a.module, "oslo": b.module}, "consensus", example=torch.zeros(2, 6), refit=False)
    without = cs.fuse({"lund": a, "oslo": b}, "consensus", refit=False)
    assert torch.equal(fusion.model(torch.zeros(2, 6)), fusion.model(torch.zeros(2, 6)))
    for name, values in with_modules.network.arrays.items():
        np.testing.assert_allclose(values, without.network.arrays[name], rtol=1e-5)


def test_a_network_that_cannot_be_traced_is_described_all_the_same():
    nets = [cs.describe(Undecided(), rows(seed)) for seed in range(2)]
    assert not nets[0].symmetry.groups
    assert nets[0].symmetry.notes[0].startswith("not traced: Undecided")
    assert nets[0].description.inputs is not None
    assert cs.fuse(nets, "average").verdict.code in ("named", "harm")
    chosen = cs.fuse(nets)  # units stay as they are numbered
    assert chosen.verdict.code in ("chosen", "site", "labelled", "keep_ensemble")
    with pytest.raises(cs.errors.UnsupportedError, match="Undecided"):
        cs.fuse(nets, "consensus")


def test_descriptions_are_found_beside_files_and_among_the_inputs(tmp_path):
    paths = [tmp_path / f"{name}.safetensors" for name in "ab"]
    for net, path in zip(sites(scale=300.0), paths, strict=True):
        cs.save(net, path)
    beside = cs.check(paths)
    assert [problem.subject for problem in beside] == [str(paths[1])]
    moved = [description_path(path).rename(tmp_path / f"{number}.safetensors") for number, path in enumerate(paths)]
    assert cs.check(paths) == []
    assert [problem.text for problem in cs.check([*moved[::-1], *paths])] == [problem.text for problem in beside]
    assert [problem.text for problem in cs.check(paths, descriptions=moved)] == [problem.text for problem in beside]
    by_name = {"b": cs.load(moved[1]), "a": None}
    assert cs.check(paths, descriptions=by_name) == []
    assert "is the description of a network; give the networks too" in cs.check(moved)[0]


def test_a_description_is_bound_to_its_weights(tmp_path):
    a, b = sites()
    text = "describes other parameters than those of"
    for network in (a, b):
        network.module.requires_grad_(False)
    changed = replace(a, description=b.description)
    assert text in cs.check([changed, b])[0]
    cs.save(a, tmp_path / "a.safetensors")
    cs.save(b, tmp_path / "b.safetensors")
    a.module[0].bias += 1.0  # training goes on
    assert text in cs.check([a, b])[0]
    before = (tmp_path / "a.description.safetensors").read_bytes()
    cs.save(a.module, tmp_path / "a.safetensors", symmetry=a.symmetry)
    (tmp_path / "a.description.safetensors").write_bytes(before)  # as where another program wrote the weights
    (problem,) = cs.check([tmp_path / "a.safetensors", tmp_path / "b.safetensors"])
    assert text in problem
    (tmp_path / "a.description.safetensors").unlink()
    assert cs.check([tmp_path / "a.safetensors", tmp_path / "b.safetensors"]) == []
    assert "describes no network here" in cs.check([tmp_path / "a.safetensors", b.module, _saved(a, tmp_path)])[0]


def _saved(network, folder):
    path = folder / "other.description.safetensors"
    cs.save(replace(network.description, digest="0" * 64), path)
    return path


def test_running_statistics_are_bound_too():
    described = cs.describe(convolutional(), images())
    described.module[1].running_mean += 1.0
    assert "describes other parameters" in cs.check([described, cs.describe(convolutional(1), images())])[0]


# -- Sites against each other


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"scale": 255.0}, "its inputs are 2.* times the others'"),
        ({"scale": 1 / 255}, "its inputs are 2.* times the others'"),  # the larger of two is named
        ({"shift": 5000.0}, "its inputs are .* times the others'"),
    ],
)
def test_inputs_of_another_scale_are_said_by_name(changed, message):
    a, b = sites(**changed)
    (problem,) = cs.check({"lund": a, "oslo": b})
    assert problem.subject == ("lund" if changed.get("scale", 9) < 1 else "oslo")
    assert pytest.approx(1, abs=0.3) == float(problem.text.split()[3]) / 255 or "shift" in changed
    with pytest.raises(InputError, match=message):
        cs.fuse({"lund": a, "oslo": b})


def test_of_three_sites_the_one_that_differs_is_named():
    nets = [cs.describe(perceptron(seed), rows(seed, scale=1 / 255 if seed == 1 else 1.0)) for seed in range(3)]
    (problem,) = cs.check(dict(zip(("lund", "oslo", "turku"), nets, strict=True)))
    assert problem.subject == "oslo"
    assert "its inputs are 0.00" in problem


def test_sites_of_one_scale_and_skewed_classes_are_not_accused():
    nets = [cs.describe(perceptron(seed), rows(seed, counts)) for seed, counts in enumerate([(300, 20), (20, 0, 300)])]
    assert cs.check(nets) == []


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (("birch", "ash", "cedar"), "class number 0 is birch, not ash; .* outputs are never renumbered"),
        (("ash", "birch", "oak"), "has other classes than lund: only here oak, only there cedar"),
    ],
)
def test_other_classes_or_orders_are_refused(classes, message):
    a = cs.describe(perceptron(), rows(), classes=CLASSES)
    b = cs.describe(perceptron(1), rows(1), classes=classes)
    with pytest.raises(InputError, match=message):
        cs.fuse({"lund": a, "oslo": b})


def test_inputs_of_another_shape_or_kind_are_refused():
    flat = nn.Sequential(nn.Flatten(), *perceptron())
    a = cs.describe(flat, rows())
    b = cs.describe(flat, (rows(1)[0].reshape(-1, 2, 3), rows(1)[1]))
    text = r"inputs of shape \(2, 3\), and those of lund have \(6,\)"
    with pytest.raises(InputError, match=text):
        cs.fuse({"lund": a, "oslo": b})
    tokens = replace(b, description=replace(b.description, input_kind="tokens"))
    assert "has inputs of tokens, and lund has real numbers" in cs.check({"lund": a, "oslo": tokens})[0]


def test_sites_that_do_not_say_are_not_compared():
    a, b = sites()
    assert cs.check([a, b.module], "average") == []
    assert cs.check([a, cs.describe(perceptron(2), n_observations=50)], "average") == []


# -- The value itself


def test_moments_that_are_none_are_refused():
    for parts in ((np.zeros(2), np.zeros((1, 3)), np.zeros(2)), (np.zeros(2), np.zeros((0, 2)), np.full(2, np.inf))):
        with pytest.raises(InputError, match="moments"):
            Moments(5.0, *parts)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"n_observations": 0.0}, "positive number of observations"),
        ({"class_counts": np.array([1.0, 2.0])}, "2 counts for 3 classes"),
        ({"class_counts": np.array([1.0, 2.0, np.nan])}, "no counts"),
        ({"input_shape": (5,)}, "have 6 coordinates, and an input has 5"),
        ({"classes": ("a", "a", "b")}, "has a class twice"),
        ({"class_features": np.zeros((2, 8))}, r"features of shape \(2, 8\) for 3 classes"),
        ({"input_range": (1.0, 0.0)}, "expected the range of the inputs"),
    ],
)
def test_statements_that_contradict_each_other_are_refused(changed, message):
    description = describe_network(perceptron(), rows())
    with pytest.raises(InputError, match=message):
        replace(description, **changed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda said: {"tokens": None}, "tokens by class, but no counts of all"),
        (lambda said: {"class_counts": None}, "tokens by class, but no counts of its classes"),
        (lambda said: {"class_tokens": {7: said.tokens}}, "tokens of class number 7, of 2 classes"),
        (
            lambda said: {"class_tokens": {0: replace(said.tokens, unigrams=said.tokens.unigrams[:9])}},
            "tokens of class 0 are of another vocabulary",
        ),
        (
            lambda said: {"class_tokens": {0: replace(said.tokens, unigrams=2 * said.tokens.unigrams)}},
            "tokens of class 0 are more than those of all",
        ),
        (lambda said: {"class_tokens": {1: said.tokens}}, "tokens of class 1 are of [0-9]+ observations"),
        (
            lambda said: {"class_tokens": {0: replace(said.tokens, lengths=np.array([np.nan]))}},
            "counts of tokens that are no counts",
        ),
    ],
)
def test_tokens_by_class_that_contradict_the_others_are_refused(change, message):
    description = describe_network(Reader(), classes_of_texts((200, 180)))
    with pytest.raises(InputError, match=message):
        replace(description, **change(description))


def test_sums_that_do_not_tell_classes_apart_leave_the_site_whole_or_not_at_all(monkeypatch):
    monkeypatch.setattr("consilience.networks.descriptions.moments.MAX_CLASS_ENTRIES", 1)
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([0] * 150 + [1] * 120 + [2] * 3)
    inputs = torch.randn(len(labels), 4, generator=generator)
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    with pytest.warns(cs.errors.WithheldWarning, match="too large to leave some out"):
        withheld = cs.describe(net, (inputs, labels), classes=3).description
    assert withheld.inputs is None
    assert withheld.class_counts.tolist() == [150, 120, 0]
    whole = cs.describe(net, (inputs[:270], labels[:270]), classes=3).description
    assert whole.inputs.n_observations == 270


def test_pairs_of_tokens_that_enough_observations_have_are_told():
    accumulator = TokenAccumulator(3, None)
    accumulator.add(np.array([[0, 1, 2]] * 4000), np.zeros(4000, dtype=np.int64))
    told, _ = accumulator.result(np.array([0]), np.array([0]), 5.0)
    assert told.bigrams.tolist() == [[0, 1, 4000], [1, 2, 4000]]
