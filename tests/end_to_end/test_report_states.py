"""What the report shows of hidden Markov models: how states follow each other, and the states behind sequences."""

from dataclasses import replace
from itertools import pairwise, permutations

import numpy as np
import pytest
from hmmlearn.hmm import CategoricalHMM
from numpy.testing import assert_allclose
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score, rand_score

import consilience as cs
from consilience.posteriors.hidden_markov.learner import StickyHDPHMM
from consilience.posteriors.report.hidden_markov import chain_of, runs
from consilience.posteriors.report.illustration import illustrate
from tests.copies import COPIES
from tests.end_to_end.pages import mixtures, readable, report, safe
from tests.posteriors.hmmlearn_sites import MEANS, TRANSITIONS, by_hand, chain
from tests.tolerances import ROUNDING

NAMES = np.array(["rest", "walking", "stairs", "running"])
STAY = np.full((3, 3), 0.05) + 0.85 * np.eye(3)
TWO = STAY[:2, :2] / 0.95


@pytest.fixture(scope="module")
def fused():
    """Two sites that share one of three states."""
    return cs.fuse([by_hand(TWO), by_hand(TWO, means=MEANS[1:3])], n_components=3, n_observations="equal")


@pytest.fixture(scope="module")
def recorded():
    """Rows and true labels of two sequences; the second is at times in a state that no site knows."""
    rng = np.random.default_rng(0)
    states = {name: chain(np.full(3, 1 / 3), STAY, steps, rng) for name, steps in (("monday", 90), ("tuesday", 200))}
    states["tuesday"][40:60] = 3
    rows = {name: MEANS[path] + rng.normal(size=(len(path), 2)) for name, path in states.items()}
    return rows, {name: NAMES[path] for name, path in states.items()}


def names_of(fusion):
    """Label of the true state nearest to each fused one."""
    return NAMES[np.square(MEANS[:, None] - fusion.model.means_).sum(axis=2).argmin(axis=0)]


def runs_of(found):
    """How many runs of True there are."""
    return np.count_nonzero(np.diff(found.astype(int), prepend=0) == 1)


def test_transitions_are_shares_of_what_sites_counted(fused, path):
    page = report(fused, path)
    safe(page)
    readable(page)
    assert "chain" in page.sections
    assert "time" not in page.sections
    counts = fused.posterior.attached["transition_counts"].values
    share = counts / counts.sum(axis=1, keepdims=True)
    description = next(text for text in page.said if text.startswith("Transition probabilities of 3 states."))
    assert description.endswith(", ".join(f"{g} with {share[g, g]:.2f}" for g in range(3)) + ".")
    for g in range(3):
        assert f"{g} {counts[g].sum():,.1f} {share[g, g]:.3f} {1 / (1 - share[g, g]):.1f} " in page.words
    assert "This page shows data" not in page.text
    assert page.words.endswith("parameters only.")


def test_states_over_time_are_those_of_the_fused_model(fused, recorded, path):
    rows, truth = recorded
    page = report(fused, path, data=rows, truth=truth)
    safe(page)
    readable(page)
    assert page.sections[page.sections.index("chain") + 1] == "time"
    assert "This page shows data, not parameters alone" in page.text
    states = {name: fused.model.predict(own) for name, own in rows.items()}
    bands = [one["class"] for one in page.all("rect") if one.get("class", "").startswith("band")]
    for state, label in enumerate(names_of(fused)):
        shown = [runs_of(own == state) for own in states.values()] + [runs_of(own == label) for own in truth.values()]
        assert bands.count(f"band k{state}") == sum(shown)
        assert f"{label} – running" in page.words if state == 3 else label in page.text
    assert bands.count("band k-") == 1  # the state that no site knows leaves its label without a colour
    assert "none left – running" in page.words
    said = next(text for text in page.said if text.startswith("Decoded states over time."))
    assert "monday: 90 steps in " in said
    assert "of 3 states" in said


def test_decoding_knows_names_states_and_labels(fused, recorded):
    rows, truth = recorded
    sequences = illustrate(fused.posterior, rows, truth).sequences
    assert [sequence.name for sequence in sequences] == ["monday", "tuesday"]
    for sequence in sequences:
        assert sequence.states.tolist() == fused.model.predict(rows[sequence.name]).tolist()
        assert sequence.truth == tuple(truth[sequence.name])
    (_, unlabelled) = illustrate(fused.posterior, rows, {"monday": truth["monday"]}).sequences
    assert unlabelled.truth is None


def test_agreement_is_that_of_scikit_learn_and_of_the_best_of_all_pairings(fused, recorded, path):
    rows, truth = recorded
    chain = chain_of(fused.posterior, illustrate(fused.posterior, rows, truth).sequences)
    pairs = {name: (truth[name], fused.model.predict(values)) for name, values in rows.items()}
    together = tuple(np.concatenate(parts) for parts in zip(*pairs.values(), strict=True))
    page = report(fused, path, data=rows, truth=truth)
    for agreement, (true, states) in zip(
        (*chain.agreements, chain.overall_agreement), (*pairs.values(), together), strict=True
    ):
        assert agreement.steps == len(true)
        assert_allclose(agreement.rand, rand_score(true, states), rtol=ROUNDING)
        assert_allclose(agreement.adjusted_rand, adjusted_rand_score(true, states), rtol=ROUNDING)
        assert_allclose(agreement.adjusted_mutual_information, adjusted_mutual_info_score(true, states), rtol=ROUNDING)
        indices = [
            f"{value:.3f}" for value in (agreement.rand, agreement.adjusted_rand, agreement.adjusted_mutual_information)
        ]
        assert f"{100 * agreement.matched_share:.1f} % {' '.join(indices)}" in page.words
    best = max(np.mean(NAMES[list(order)][together[1]] == together[0]) for order in permutations(range(4), 3))
    assert_allclose(chain.overall_agreement.matched_share, best, rtol=ROUNDING)
    assert {state: name for name, state in chain.label_partners if state >= 0} == dict(enumerate(names_of(fused)))
    assert 0.9 < best < 1.0


def test_one_array_is_one_sequence(fused, recorded, path):
    rows, truth = recorded
    page = report(fused, path, data=rows["monday"], truth=truth["monday"].tolist())
    assert any("data: 90 steps in " in text for text in page.said)
    assert "All 1" not in page.text


def test_labels_may_be_numbers_and_more_than_states(fused, recorded):
    rows, _ = recorded
    chain = chain_of(fused.posterior, illustrate(fused.posterior, rows["monday"], np.arange(90) // 9 + 1).sequences)
    assert [name for name, _ in chain.label_partners] == [str(number) for number in range(1, 11)]  # 10 comes after 9
    states = [state for _, state in chain.label_partners if state >= 0]
    assert len(states) == len(set(states)) <= 3


def test_a_long_sequence_is_drawn_in_as_many_places_as_can_be_seen():
    labels = np.random.default_rng(0).integers(0, 5, 100_000)
    labels[30_000:60_000] = 2
    bins = runs(labels)
    assert len(bins) <= 700
    assert (bins[0][0], bins[-1][1]) == (0, len(labels))
    assert all(a[1] == b[0] and a[2] != b[2] for a, b in pairwise(bins))
    longest = max(bins, key=lambda run: run[1] - run[0])
    assert longest[2] == 2
    assert_allclose(longest[:2], (30_000, 60_000), atol=2 * 100_000 / 700)
    few = labels[:500]
    assert np.repeat([run[2] for run in runs(few)], [run[1] - run[0] for run in runs(few)]).tolist() == few.tolist()


@COPIES
def test_many_sequences_and_many_states_are_summed_up(path):
    one = StickyHDPHMM(n_states=2, n_init=1).fit(np.random.default_rng(0).normal(size=(40, 1))).posterior
    count, kappa = 50, np.full(50, 20.0)
    means, scales = 10.0 * np.arange(count)[:, None], 20.0 * np.ones((count, 1, 1))
    natural = one.family.to_natural(mean=means, kappa=kappa, inverse_scale=scales, dof=kappa)
    counts = {
        "start_counts": cs.Attached(np.ones(count), ("component",), "sum"),
        "transition_counts": cs.Attached(np.eye(count) + 1.0, ("component", "component"), "sum"),
    }
    sites = [replace(one, natural=natural, counts=kappa, attached={**one.attached, **counts}) for _ in "ab"]
    rows = np.random.default_rng(0).uniform(0, 490, (60, 1))
    page = report(cs.fuse(sites, "average"), path, data={f"day {day}": rows for day in range(50)})
    safe(page)
    readable(page)
    assert "With more than 40 states no map of transitions is drawn" in page.text
    assert "40 of 50 sequences are drawn." in page.text
    assert sum(text.startswith("Decoded states over time") for text in page.said) == 5
    assert len(page.source) < 1_000_000


def test_a_sticky_hdp_hmm_is_shown_too(recorded, path):
    rows, truth = recorded
    sites = [StickyHDPHMM(n_states=5, n_init=1, seed=seed).fit(rows["tuesday"][seed::2]) for seed in (0, 1)]
    fusion = cs.fuse(sites)
    (_, found) = illustrate(fusion.posterior, rows).sequences
    assert found.states.tolist() == fusion.model.predict(rows["tuesday"]).tolist()
    page = report(fusion, path, data=rows, truth=truth)
    safe(page)
    readable(page)
    assert {"chain", "time"} <= set(page.sections)


@COPIES
def test_states_that_emit_symbols_and_a_state_that_is_never_left(path):
    model = CategoricalHMM(2, n_features=3)
    model.startprob_, model.transmat_ = np.full(2, 0.5), np.array([[0.9, 0.1], [0.0, 1.0]])
    model.emissionprob_ = np.array([[0.8, 0.1, 0.1], [0.1, 0.1, 0.8]])
    fusion = cs.fuse([model, model], n_components=2, n_observations="equal")
    page = report(fusion, path, data=np.array([[0], [0], [2], [2]]), truth=list("aabb"))
    readable(page)
    found = fusion.posterior.parameters()["concentration"][1]
    assert f"symbol 2 {100 * found[2] / found.sum():.1f}" in page.words
    assert " 1.000 never left " in page.words
    with pytest.raises(
        cs.errors.InputError, match=r"^data: row 1, counted from 0: expected a symbol from 0 to 2, found 5"
    ):
        fusion.report(path, data=np.array([[0], [5]]))


@COPIES
def test_transitions_without_a_library_are_shown_but_decode_nothing(path):
    family = cs.families.Gaussian(1)
    natural = family.to_natural(mean=[[0.0], [5.0]], covariance=np.ones((2, 1, 1)))
    attached = {
        "start_counts": cs.Attached(np.zeros(2), ("component",), "sum"),
        "transition_counts": cs.Attached([[3.0, 1.0], [0.0, 0.0]], ("component", "component"), "sum"),
    }
    fusion = cs.fuse([cs.Posterior(family, natural, attached=attached)] * 2, n_components=2)
    page = report(fusion, path)
    readable(page)
    assert "0 8.0 0.750 4.0 –" in page.words
    assert "1 0.0 – – –" in page.words
    with pytest.raises(cs.errors.InputError, match=r"^data: are not shown in the report of a posterior over gaussian"):
        fusion.report(path, data=np.ones((3, 1)))


FIVE = np.ones((5, 2))
REFUSED = {
    "wide": ({"data": np.ones((5, 3))}, r"^data: has 3 columns, expected 2 \[E-SHAPE\]$"),
    "two wide": (
        {"data": {"a": FIVE[:, :1], "b": np.ones((5, 3))}},
        r"^data 'a': has 1 columns.*\ndata 'b': has 3",
    ),
    "nan": ({"data": {"a": [[1.0, np.nan]]}}, "^data 'a': row 0, column 1, counted from 0: expected a finite number"),
    "far": ({"data": [[1e300, 0.0]]}, "^data: row 0 has probability zero in this model"),
    "no rows": ({"data": FIVE[:0]}, "^data: has no rows"),
    "nothing": ({"data": {}}, "^data: expected at least one array of rows, found none"),
    "short": (
        {"data": {"a": FIVE}, "truth": {"a": [1]}},
        "^truth of 'a': expected one class for each of the 5 rows, found",
    ),
    "stranger": ({"data": {"a": FIVE}, "truth": {"b": [1]}}, "^truth: has labels of 'b', but there are no such data"),
    "one for two": (
        {"data": {"a": FIVE, "b": FIVE}, "truth": [1] * 5},
        "^truth: expected labels by name, as the data are, found list",
    ),
    "no column": ({"data": FIVE, "truth": "state"}, "^truth: 'state' is neither a column of data nor a file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_data_that_do_not_fit_are_refused_and_named(fused, path, case):
    arguments, message = REFUSED[case]
    with pytest.raises(cs.errors.InputError, match=message):
        fused.report(path, **arguments)
    assert not path.exists()


@COPIES
def test_a_truth_needs_data_and_data_a_model_that_shows_them(fused, path):
    with pytest.raises(cs.errors.OptionError, match=r"^truth: is shown with data"):
        fused.report(path, truth=[1, 2])
    with pytest.raises(cs.errors.InputError, match=r"^data: are not shown in the report of a sklearn.Bayesian"):
        cs.fuse(mixtures(3), n_components=3).report(path, data=FIVE)
    with pytest.raises(cs.errors.InputError, match=r"^data: an ensemble asks every model by itself"):
        cs.fuse([by_hand(TRANSITIONS)] * 2, "ensemble", n_observations="equal").report(path, data=FIVE)
    assert not path.exists()
