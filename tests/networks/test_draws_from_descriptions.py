"""Laws of inputs drawn from descriptions."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from consilience.errors import InputError, OptionError, UnsupportedError
from consilience.networks.descriptions.description import Description, Moments, TokenCounts
from consilience.networks.synthetic.draws import draw_inputs, draw_twice, systematic_allocation

N_MANY = 40_000
# Of means and covariances of unit size over 40,000 draws: five standard errors.
SAMPLED = 5 * 2**0.5 / N_MANY**0.5
CLASSES = ("cat", "dog", "eel")


def moments(seed, d=6, rank=2, n=20.0):
    rng = np.random.default_rng(seed)
    return Moments(n, rng.normal(size=d), rng.normal(size=(rank, d)) / 2, rng.uniform(0.1, 1.0, d))


def site(digest, n=100.0, seed=0, shape=(6,), **fields):
    said = {"inputs": moments(seed, int(np.prod(shape))), "name": f"site {digest}"} | fields
    return Description(digest, n, shape, **said)


def labelled_site(digest, counts, described, seed=0, **fields):
    """A site whose classes have the mean of 10 * class + seed in all coordinates, and next to no variance."""
    by_class = {
        label: Moments(counts[label], np.full(2, 10.0 * label + seed), np.zeros((0, 2)), np.full(2, 1e-6))
        for label in described
    }
    return Description(
        digest, sum(counts), (2,), classes=CLASSES, class_counts=np.array(counts, dtype=float), class_moments=by_class,
        name=f"site {digest}", **fields,
    )  # fmt: skip


# -- Real inputs.


@pytest.mark.parametrize("rank", [0, 2, 6])
def test_moments_of_draws_tend_to_those_described(rank):
    said = moments(3, rank=rank)
    drawn = draw_inputs([site("a", inputs=said)], N_MANY, rng=0).inputs.double().numpy()
    assert_allclose(drawn.mean(axis=0), said.mean, atol=SAMPLED * said.variance.max() ** 0.5)
    assert_allclose(np.cov(drawn.T), said.covariance, atol=2 * SAMPLED * said.variance.max())


def test_images_keep_the_correlation_that_is_described():
    rng = np.random.default_rng(0)
    bright = Moments(100, np.zeros(12), np.ones((1, 12)) + 0.1 * rng.normal(size=(1, 12)), np.full(12, 0.01))
    drawn = draw_inputs([site("a", shape=(3, 2, 2), inputs=bright)], 5000, rng=0).inputs
    assert drawn.shape == (5000, 3, 2, 2)
    assert np.corrcoef(drawn.flatten(1).numpy().T).min() > 0.9


def test_images_of_which_only_variances_are_described_have_edges_and_these_moments():
    said = Moments(100, np.repeat([0.3, 0.7], 144), np.zeros((0, 288)), np.repeat([0.04, 0.25], 144))
    drawn = draw_inputs([site("a", shape=(2, 12, 12), inputs=said)], 3000, rng=0).inputs.double()
    assert_allclose(drawn.mean(dim=(0, 2, 3)), [0.3, 0.7], atol=0.02)
    assert_allclose(drawn.std(dim=(0, 2, 3)), [0.2, 0.5], rtol=0.03)
    # Almost half of all neighbours are of one leaf.
    assert (drawn.diff(dim=3) == 0).double().mean() > 0.4


def test_draws_stay_within_the_range_of_their_own_site():
    narrow, wide = site("a", input_range=(-0.1, 0.2)), site("b", input_range=(-9.0, 9.0))
    drawn = draw_inputs([narrow, wide], 500, rng=0)
    of_narrow = drawn.inputs[drawn.sites == 0]
    assert (of_narrow.min(), of_narrow.max()) == (torch.tensor(-0.1), torch.tensor(0.2))
    assert drawn.inputs[drawn.sites == 1].abs().max() > 0.5


def test_every_site_has_its_share_of_the_draws():
    drawn = draw_inputs([site("a", 300), site("b", 100)], 1000, rng=0)
    assert_array_equal(drawn.sites.bincount(), [750, 250])
    assert drawn.labels is None
    # ... in random order
    assert drawn.sites[:100].unique().tolist() == [0, 1]


def test_the_number_of_draws_of_a_component_is_that_expected_rounded_up_or_down():
    masses = np.array([1.0, 2.5, 0.1, 0.0, 7.0])
    rng = np.random.default_rng(0)
    numbers = np.array([systematic_allocation(masses, 13, rng) for _ in range(4000)])
    expected = 13 * masses / masses.sum()
    assert (np.abs(numbers - expected) < 1).all()
    assert (numbers.sum(axis=1) == 13).all()
    assert_allclose(numbers.mean(axis=0), expected, atol=5 * 0.5 / 4000**0.5)


def test_same_seed_same_bytes_and_other_seeds_other_draws():
    sites = [site("a"), site("b", seed=1)]
    first, again, other = (draw_inputs(sites, 50, rng=seed) for seed in (1, 1, 2))
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.sites, again.sites)
    assert not torch.equal(first.inputs, other.inputs)


@pytest.mark.parametrize("labelled", [False, True])
def test_the_order_of_the_sites_changes_nothing(labelled):
    sites = [labelled_site("b", (10, 20, 30), (0, 1), seed=1), labelled_site("a", (30, 5, 0), (0,), seed=2)]
    sites = [replace(described, inputs=moments(n, d=2)) for n, described in enumerate(sites)]
    one, other = (draw_inputs(order, 100, rng=3, labelled=labelled) for order in (sites, sites[::-1]))
    assert torch.equal(one.inputs, other.inputs)
    assert torch.equal(one.sites, 1 - other.sites)
    assert labelled is False or torch.equal(one.labels, other.labels)


def test_draws_to_fit_and_draws_to_judge_share_nothing_and_do_not_depend_on_each_others_number():
    sites = [site("a"), site("b", seed=1)]
    fit, held = draw_twice(sites, 200, 150, rng=0)
    assert (len(fit), len(held)) == (200, 150)
    assert not torch.isin(fit.inputs, held.inputs).any()
    assert torch.equal(held.inputs, draw_twice(sites, 7, 150, rng=0)[1].inputs)
    assert torch.equal(fit.inputs, draw_twice(sites, 200, 7, rng=0)[0].inputs)


def test_a_site_that_does_not_describe_its_inputs_is_named():
    drawn = draw_inputs([site("a"), site("b", inputs=None)], 10, rng=0)
    assert drawn.missing_sites == ("site b",)
    assert drawn.sites.unique().tolist() == [0]


# -- Classes.


def test_labels_travel_with_the_draws_in_the_frequencies_of_classes():
    sites = [labelled_site("a", (60, 20, 0), (0, 1)), labelled_site("b", (0, 20, 100), (1, 2))]
    drawn = draw_inputs(sites, 400, rng=0, labelled=True)
    assert_array_equal(drawn.labels.bincount(), [120, 80, 200])
    assert_array_equal(torch.round(drawn.inputs[:, 0] / 10), drawn.labels)
    assert drawn.missing_classes == ()


def test_a_withheld_class_is_drawn_from_other_sites_by_their_counts_of_it():
    sites = [
        labelled_site("a", (40, 40, 0), (0,)),
        labelled_site("b", (0, 30, 0), (1,), seed=1),
        labelled_site("c", (0, 10, 0), (1,), seed=2),
    ]
    drawn = draw_inputs(sites, 120, rng=0, labelled=True)
    # 80 dogs, 40 of them at a site that does not describe them: they come from the others as 30 to 10
    assert_array_equal(drawn.sites[drawn.labels == 1].bincount(), [0, 60, 20])
    assert drawn.labels.bincount().tolist() == [40, 80]
    assert drawn.missing_classes == ("eel",)


def test_classes_that_no_site_describes_are_left_out_and_named():
    drawn = draw_inputs([labelled_site("a", (40, 40, 20), (0, 2))], 60, rng=0, labelled=True)
    assert drawn.missing_classes == ("dog",)
    assert drawn.labels.bincount().tolist() == [40, 0, 20]


def test_an_image_of_a_class_of_few_observations_keeps_the_mean_and_variance_of_every_pixel():
    mean, deviation = np.arange(64.0) / 64, np.linspace(0.1, 0.2, 64)
    by_class = {0: Moments(30, mean, np.zeros((0, 64)), deviation**2)}
    described = Description("a", 30, (1, 8, 8), classes=("cat",), class_counts=np.array([30.0]), class_moments=by_class)
    drawn = draw_inputs([described], 4000, rng=0, labelled=True).inputs.double().flatten(1)
    assert_allclose(drawn.mean(dim=0), mean, atol=5 * 0.2 / 4000**0.5)
    assert_allclose(drawn.std(dim=0), deviation, rtol=0.1)


# -- Texts.


def texts(digest="t", vocabulary=5, length=12, padding=0, seed=0, chain=True, **fields):
    """A site whose texts alternate 1 2 1 2 ..., or 3 4 3 4 ...: 100 of each, of 6 to 12 tokens."""
    lengths = np.zeros(length + 1)
    lengths[[6, 12]] = 100
    bigrams = np.array([[1, 2, 450], [2, 1, 350], [3, 4, 450], [4, 3, 350]]) if chain else np.zeros((0, 3))
    unigrams = np.array([0, 450, 450, 450, 450][:vocabulary], dtype=float)
    counts = TokenCounts(unigrams, bigrams, lengths, padding)
    return Description(digest, 200, (length,), "tokens", tokens=counts, name=f"site {digest}", **fields)


def test_texts_have_the_lengths_of_the_histogram_and_padding_behind():
    drawn = draw_inputs([texts()], 1000, rng=0).inputs
    assert drawn.dtype == torch.int64
    n_tokens = (drawn != 0).sum(dim=1)
    assert set(n_tokens.tolist()) == {6, 12}
    assert_allclose((n_tokens == 6).double().mean(), 0.5, atol=5 * 0.5 / 1000**0.5)
    assert (drawn[n_tokens == 6][:, 6:] == 0).all()


def test_texts_follow_the_chain_of_bigrams():
    drawn = draw_inputs([texts()], 3000, rng=0).inputs.numpy()
    pairs = Counter((int(a), int(b)) for row in drawn for a, b in pairwise(row) if a and b)
    total = sum(pairs.values())
    # The site has 200 texts and 1,600 pairs. That no text goes on behind its last token, a 2 or a 4, looks like pairs
    # too rare to be said: after those an eighth goes by single tokens.
    for pair in ((1, 2), (3, 4)):
        assert pairs[pair] / total > 0.22
    strangers = sum(number for pair, number in pairs.items() if pair not in {(1, 2), (2, 1), (3, 4), (4, 3)})
    assert strangers / total < 0.1


def test_frequencies_of_tokens_are_those_described_with_and_without_pairs():
    for chain in (True, False):
        drawn = draw_inputs([texts(chain=chain)], 4000, rng=0).inputs
        frequencies = drawn[drawn != 0].bincount(minlength=5).double()
        assert_allclose(frequencies[1:] / frequencies.sum(), np.full(4, 0.25), atol=0.02)


def test_without_pairs_tokens_are_independent():
    drawn = draw_inputs([texts(chain=False)], 3000, rng=0).inputs[:, :6]
    same = (drawn[:, 1:] == drawn[:, :-1]).double().mean()
    assert_allclose(same, 0.25, atol=5 * 0.45 / 15_000**0.5)


def test_pairs_that_are_too_rare_to_be_said_go_by_single_tokens():
    # Half of the pairs that start with 1 are said.
    half = texts()
    counts = replace(half.tokens, bigrams=np.array([[1, 2, 200]]))
    drawn = draw_inputs([replace(half, tokens=counts)], 6000, rng=0).inputs[:, :6]
    after_one = drawn[:, 1:][drawn[:, :-1] == 1]
    # 200 of the 400 that have a token behind them, and a quarter of the others
    assert_allclose((after_one == 2).double().mean(), 0.5 + 0.125, atol=0.03)


def site_of_topics(digest, counts, described, seed=0):
    """A site of three classes; texts of class c have the tokens 2 c + 1 and 2 c + 2 alone, of 3 + c tokens."""
    topics = {
        label: TokenCounts(np.repeat(np.eye(3)[label], 2) * 60, np.zeros((0, 3)), np.eye(8)[3 + label] * 30)
        for label in range(3)
    }
    topics = {
        label: replace(of_class, unigrams=np.concatenate([[0.0], of_class.unigrams]), padding=0)
        for label, of_class in topics.items()
    }
    whole = TokenCounts(np.full(7, 90.0), np.zeros((0, 3)), np.ones(8), 0)
    return Description(
        digest, sum(counts), (7,), "tokens", classes=CLASSES, class_counts=np.array(counts, dtype=float),
        tokens=whole, class_tokens={label: topics[label] for label in described}, name=f"site {digest}",
    )  # fmt: skip


def test_labels_travel_with_texts_of_their_class():
    sites = [site_of_topics("a", (60, 30, 0), (0, 1)), site_of_topics("b", (0, 30, 80), (1, 2))]
    drawn = draw_inputs(sites, 400, rng=0, labelled=True)
    assert_array_equal(drawn.labels.bincount(), [120, 120, 160])
    n_tokens = (drawn.inputs != 0).sum(dim=1)
    assert torch.equal(n_tokens, 3 + drawn.labels)
    said = drawn.inputs[drawn.inputs != 0]
    assert torch.equal((said - 1) // 2, drawn.labels.repeat_interleave(n_tokens))


def test_texts_of_a_class_that_a_site_withholds_are_drawn_from_the_others():
    sites = [site_of_topics("a", (40, 40, 0), (0,)), site_of_topics("b", (0, 40, 40), (1,))]
    drawn = draw_inputs(sites, 120, rng=0, labelled=True)
    assert drawn.missing_classes == ("eel",)
    assert drawn.labels.bincount().tolist() == [40, 80]
    assert drawn.sites[drawn.labels == 1].unique().tolist() == [1]


def test_the_order_of_sites_changes_no_text():
    sites = [texts("b"), replace(texts("a"), n_observations=50.0)]
    one, other = (draw_inputs(order, 40, rng=1) for order in (sites, sites[::-1]))
    assert torch.equal(one.inputs, other.inputs)


# -- Bad input.


def test_what_does_not_fit_together_is_refused_by_name():
    with pytest.raises(InputError, match=r"site b: has inputs of shape \(2, 3\), and site a of \(6,\)"):
        draw_inputs([site("a"), site("b", shape=(2, 3))], 10)
    with pytest.raises(InputError, match="site t: has inputs of kind tokens"):
        draw_inputs([site("a", shape=(12,)), texts()], 10)
    sites = [labelled_site("a", (5, 5, 5), (0, 1)), labelled_site("b", (5, 5, 5), (0, 1))]
    with pytest.raises(InputError, match="site b: has other classes, or another order of them, than site a"):
        draw_inputs([sites[0], replace(sites[1], classes=("dog", "cat", "eel"))], 10, labelled=True)
    with pytest.raises(InputError, match="expected at least one"):
        draw_inputs([], 10)
    with pytest.raises(OptionError, match="count"):
        draw_inputs([site("a")], 0)


def test_what_nobody_says_is_asked_for():
    with pytest.raises(UnsupportedError, match="no site says moments of the inputs; describe the networks"):
        draw_inputs([site("a", inputs=None)], 10)
    with pytest.raises(UnsupportedError, match="no site says moments by class"):
        draw_inputs([site("a")], 10, labelled=True)
    with pytest.raises(UnsupportedError, match="no site says token counts"):
        draw_inputs([replace(texts(), tokens=None)], 10)
    with pytest.raises(UnsupportedError, match="no site says counts of tokens by class"):
        draw_inputs([texts()], 10, labelled=True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lengths": np.ones(20)}, "texts of 19 tokens, and inputs of 12"),
        ({"padding": None}, "texts of fewer than 12 tokens, and no padding"),
    ],
)
def test_lengths_that_inputs_cannot_have_are_refused(fields, message):
    described = texts()
    with pytest.raises(InputError, match=f"site t: has {message}"):
        draw_inputs([replace(described, tokens=replace(described.tokens, **fields))], 10)


def test_a_site_whose_tokens_are_all_too_rare_is_named():
    rare = texts("r")
    rare = replace(rare, tokens=replace(rare.tokens, unigrams=np.zeros(5)))
    drawn = draw_inputs([rare, texts()], 10)
    assert drawn.missing_sites == ("site r",)


def test_texts_have_the_length_of_inputs_where_no_length_may_be_said():
    rare = texts()
    drawn = draw_inputs([replace(rare, tokens=replace(rare.tokens, lengths=np.zeros(1)))], 10).inputs
    assert (drawn != 0).all()


def test_texts_of_sites_are_filled_up_to_the_longest():
    drawn = draw_inputs([texts("a", length=12), replace(texts("b", length=12), input_shape=(15,))], 20)
    assert drawn.inputs.shape == (20, 15)
    assert (drawn.inputs[:, 12:] == 0).all()


def test_what_rounding_leaves_to_a_constant_column_is_drawn_as_zero():
    said = Moments(100, np.zeros(3), np.array([[1.0, 1e-30, 1e-12]]), np.array([0.5, 0.0, 0.0]))
    drawn = draw_inputs([Description("a1", 100, (3,), inputs=said)], 200).inputs
    assert not drawn[:, 1].any()
    assert drawn[:, 2].all()
