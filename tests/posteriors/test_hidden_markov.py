"""HiddenMarkovModel: what it says of data, out to files and back, and fused."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import multivariate_t
from sklearn.metrics import adjusted_mutual_info_score

import consilience as cs
from consilience.posteriors.adapters.table import ADAPTERS
from consilience.posteriors.hidden_markov.forward_backward import forward_backward, viterbi
from consilience.posteriors.hidden_markov.learner import StickyHDPHMM
from consilience.posteriors.hidden_markov.model import HiddenMarkovModel
from consilience.posteriors.hidden_markov.sticky_transitions import expected_logs
from tests.copies import COPIES
from tests.posteriors.hidden_chains import CENTRES, SITES, fitted, simulated
from tests.tolerances import CONJUGATE_UPDATE, ROUNDING

pytestmark = pytest.mark.covering(2)

KIND = "consilience.StickyHDPHMM"
HYPER_PARAMETERS = ("gamma", "eta", "kappa", "start_concentration")


class Table:
    """What the library needs of a table with named columns."""

    def __init__(self, **values):
        self.values, self.columns = values, list(values)

    def __getitem__(self, columns):
        return Table(**{name: self.values[name] for name in columns})

    def to_numpy(self):
        return np.column_stack(list(self.values.values()))


def new(site=0):
    """Rows that no site was fitted to."""
    return simulated(SITES[site], seed=7, lengths=(40, 1, 25))


# -- The value


def test_labels_and_probabilities_are_those_of_expected_logs():
    """The evidence by mean parameters, which the model itself does not use."""
    model, (rows, _, lengths) = fitted(), new()
    ones = np.ones((len(rows), 1))
    squares = (rows[:, :, None] * rows[:, None, :]).reshape(len(rows), -1)
    statistics = np.concatenate([rows, -0.5 * ones, -0.5 * squares, 0.5 * ones], axis=1)
    posterior = model.posterior
    evidence = statistics @ posterior.family.mean_parameters(posterior.natural).T - np.log(2.0 * np.pi)
    chain = (expected_logs(model.start), expected_logs(model.transition), evidence, lengths)
    assert model.decode(rows, lengths).tolist() == model.predict(rows, lengths).tolist() == viterbi(*chain).tolist()
    expected = forward_backward(*chain).responsibilities
    assert_allclose(model.predict_proba(rows, lengths), expected, atol=1e-9)
    assert model.predict(rows, lengths, method="marginal").tolist() == expected.argmax(axis=1).tolist()


def test_scores_are_predictive_densities_given_the_rows_before():
    model, (rows, _, lengths) = fitted(), new()
    parameters = model.posterior.parameters()
    densities = np.empty((len(rows), model.n_states))
    for state, (mean, kappa, scale, dof) in enumerate(
        zip(*(parameters[n] for n in ("mean", "kappa", "scale", "dof")), strict=True)
    ):
        free = dof - 1.0  # nu - D + 1
        shape = np.linalg.inv(scale) * (kappa + 1.0) / (kappa * free)
        densities[:, state] = multivariate_t.pdf(rows, mean, shape, free)
    expected = []
    for part in np.split(densities, np.cumsum(lengths)[:-1]):
        predicted = model.start_probabilities
        for density in part:
            joint = predicted * density
            expected.append(np.log(joint.sum()))
            predicted = joint / joint.sum() @ model.transition_probabilities
    assert_allclose(model.score_samples(rows, lengths), expected, rtol=1e-9)


def test_many_rows_are_scored_in_parts(monkeypatch):
    model, (rows, _, lengths) = fitted(), new()
    expected = model.score_samples(rows, lengths)
    monkeypatch.setattr("consilience.posteriors.hidden_markov.model.CHUNK_ENTRIES", 50)
    assert_allclose(model.score_samples(rows, lengths), expected, rtol=ROUNDING)


def test_probabilities_sum_to_one_and_rows_have_counts_and_prior():
    model = fitted()
    posterior = model.posterior
    assert_allclose(model.start_probabilities.sum(), 1.0, rtol=ROUNDING)
    assert_allclose(model.transition_probabilities.sum(axis=1), 1.0, rtol=ROUNDING)
    assert_allclose(model.predict_proba(new()[0]).sum(axis=1), 1.0, rtol=ROUNDING)
    counts, starts = (posterior.attached[name].values for name in ("transition_counts", "start_counts"))
    assert_allclose(model.transition.sum(axis=1), counts.sum(axis=1) + 0.5 + 10.0, rtol=ROUNDING)
    assert_allclose(model.start.sum(), starts.sum() + 5.0, rtol=ROUNDING)
    assert_allclose(counts.sum(), 300 - 3, rtol=ROUNDING)
    assert_allclose(starts.sum(), 3.0, rtol=ROUNDING)
    assert_allclose(counts.sum(axis=0) + starts, posterior.counts, rtol=1e-9)


def test_states_in_another_order_say_the_same():
    model, (rows, _, lengths) = fitted(), new()
    order = np.array([2, 0, 3, 1])
    other = cs.rebuild(model.posterior.take(order))
    assert order[other.predict(rows, lengths)].tolist() == model.predict(rows, lengths).tolist()
    assert_allclose(other.score_samples(rows, lengths), model.score_samples(rows, lengths), rtol=ROUNDING)
    assert_allclose(other.transition[:, :-1], model.transition[np.ix_(order, order)], rtol=ROUNDING)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model.predict(np.zeros((3, 5))), "^X: has 5 columns, expected 2"),
        (lambda model: model.predict([[0.0, np.inf]]), "^X: row 0, column 1, counted from 0: expected a finite"),
        (lambda model: model.score_samples(np.zeros((3, 2)), [1, 1]), "^lengths: add up to 2, but there are 3 rows"),
        (lambda model: model.predict(np.zeros((3, 2)), method="best"), "^method: expected 'viterbi' or 'marginal'"),
    ],
)
def test_data_that_do_not_fit_are_refused(call, message):
    with pytest.raises(cs.ConsilienceError, match=message):
        call(fitted())


# -- Out and back


def test_the_model_knows_its_adapter():
    class Mine(HiddenMarkovModel):
        pass

    model = fitted()
    for one in (model, Mine(model.posterior, model.start, model.transition)):
        assert [adapter.kind for adapter in ADAPTERS if adapter.accepts(one)] == [KIND]
        assert cs.describe(one) is model.posterior


def test_what_is_attached_follows_the_matching():
    attached = cs.describe(fitted()).attached
    assert {name: (one.axes, one.rule) for name, one in attached.items()} == {
        "start_counts": (("component",), "sum"),
        "transition_counts": (("component", "component"), "sum"),
        **dict.fromkeys(HYPER_PARAMETERS, ((), "mean")),
    }
    assert [float(attached[name].values) for name in HYPER_PARAMETERS] == [5.0, 0.5, 10.0, 5.0]


def test_files_keep_the_model(tmp_path):
    model, (rows, _, lengths) = fitted(), new()
    cs.save(model, tmp_path / "site.safetensors")
    rebuilt = cs.rebuild(cs.load(tmp_path / "site.safetensors"))
    assert rebuilt.posterior.natural.tobytes() == model.posterior.natural.tobytes()
    assert rebuilt.transition.tobytes() == model.transition.tobytes()
    assert rebuilt.score_samples(rows, lengths).tobytes() == model.score_samples(rows, lengths).tobytes()
    assert rebuilt.bound.size == 0


def test_names_of_columns_are_kept_and_asked_for():
    rows, _, lengths = simulated(SITES[0])
    table = Table(left=rows[:, 0], right=rows[:, 1])
    model = StickyHDPHMM(n_states=8, n_init=2).fit(table, lengths)
    assert model.posterior.features == cs.Features(names=("left", "right"), from_columns=True)
    assert model.posterior.natural.tobytes() == fitted().posterior.natural.tobytes()
    swapped = Table(other=rows[:, 0], right=rows[:, 1], left=rows[:, 0])
    assert model.predict(swapped, lengths).tolist() == fitted().predict(rows, lengths).tolist()
    with pytest.raises(cs.errors.InputError, match="lacks the column 'left'"):
        model.predict(Table(right=rows[:, 1], wrong=rows[:, 0]))


def test_a_posterior_that_lacks_something_is_refused():
    posterior = fitted().posterior
    for lost in posterior.attached:
        attached = {name: values for name, values in posterior.attached.items() if name != lost}
        with pytest.raises(cs.errors.InputError, match=rf"lacks '{lost}', which rebuilding needs \[E-NEEDED\]$"):
            cs.rebuild(replace(posterior, attached=attached))
    family = cs.families.Gamma()
    other = cs.Posterior(family, family.to_natural(shape=[2.0], rate=[1.0]), source=posterior.source)
    with pytest.raises(
        cs.errors.InputError, match=r"a HiddenMarkovModel has normal-wishart components, found Gamma\(\) \[E-TYPE\]$"
    ):
        cs.rebuild(other)
    negative = cs.Attached(-np.ones(4), ("component",), "sum")
    with pytest.raises(
        cs.errors.InputError, match=r"^start_counts: expected counts that are not negative, found -1 \[E-NUMBER\]$"
    ):
        cs.rebuild(replace(posterior, attached={**posterior.attached, "start_counts": negative}))


# -- Fused


def labels_of(fusion):
    """Labels of both sites' own rows, from their own models through the matching."""
    return [
        fusion.matching.of_site(site)[fitted(site).predict(*simulated(SITES[site], seed=site)[::2])] for site in (0, 1)
    ]


def true_labels():
    return np.concatenate([simulated(SITES[site], seed=site)[1] for site in (0, 1)])


@COPIES
@pytest.mark.parametrize("method", ["kl", "average"])
def test_copies_are_fused_into_what_they_are_copies_of(method):
    model, (rows, _, lengths) = fitted(), simulated(SITES[0])
    fusion = cs.fuse([model, model], method)
    assert sorted(fusion.matching.of_site(0)) == list(range(4))
    assert fusion.matching.of_site(0).tolist() == fusion.matching.of_site(1).tolist()
    local_labels = model.predict(rows, lengths)
    assert adjusted_mutual_info_score(local_labels, fusion.matching.of_site(0)[local_labels]) == pytest.approx(1.0)
    assert adjusted_mutual_info_score(local_labels, fusion.model.predict(rows, lengths)) == pytest.approx(1.0)


@pytest.mark.parametrize("combine", ["barycenter", "product"])
def test_states_of_sites_are_found_to_be_the_same(combine):
    fusion = cs.fuse([fitted(0), fitted(1)], combine=combine)
    assert isinstance(fusion.model, HiddenMarkovModel)
    assert fusion.n_components == len(CENTRES)
    assert adjusted_mutual_info_score(true_labels(), np.concatenate(labels_of(fusion))) > 0.95
    rows = np.concatenate([simulated(SITES[site], seed=site)[0] for site in (0, 1)])
    lengths = [150, 90, 60] * 2
    assert adjusted_mutual_info_score(true_labels(), fusion.model.predict(rows, lengths)) > 0.95
    pooled = StickyHDPHMM(n_states=8, n_init=2).fit(rows, lengths)
    assert adjusted_mutual_info_score(true_labels(), pooled.predict(rows, lengths)) > 0.95


def test_a_product_is_the_posterior_of_all_rows():
    fusion = cs.fuse([fitted(0), fitted(1)], combine="product")
    family, natural = fusion.posterior.family, np.tile(fusion.posterior.prior, (fusion.n_components, 1))
    for site in (0, 1):
        rows, _, lengths = simulated(SITES[site], seed=site)
        member = fitted(site).predict_proba(rows, lengths)
        own = family.to_natural(
            mean=rows,
            kappa=np.ones(len(rows)),
            dof=np.ones(len(rows)) + 2.0,
            inverse_scale=[np.zeros((2, 2))] * len(rows),
        )
        np.add.at(natural, fusion.matching.of_site(site), member.T @ (own))
    assert_allclose(fusion.posterior.natural, natural, rtol=1e-5, atol=1e-3)


def test_fused_transitions_are_summed_counts_under_a_common_prior():
    fusion = cs.fuse([fitted(0), fitted(1)])
    counts, starts = np.zeros((5, 5)), np.zeros(5)
    for site in (0, 1):
        place, attached = fusion.matching.of_site(site), fitted(site).posterior.attached
        counts[np.ix_(place, place)] += attached["transition_counts"].values
        starts[place] += attached["start_counts"].values
    assert_allclose(fusion.posterior.attached["transition_counts"].values, counts, rtol=CONJUGATE_UPDATE)
    model = fusion.model
    weights = (model.transition[:, :5] - counts - 10.0 * np.eye(5)) / 0.5
    assert_allclose(weights, np.tile(weights[0], (5, 1)), atol=1e-9)  # eta E[beta] in every row
    assert_allclose(weights[0].sum() + model.transition[0, -1] / 0.5, 1.0, rtol=1e-9)
    assert_allclose(model.start[:5], starts + 5.0 * weights[0], atol=1e-9)


def test_a_fused_model_can_be_compared_with_a_sites_own_and_fused_again():
    fusion = cs.fuse([fitted(0), fitted(1)])
    comparison = cs.evaluate(fusion, fitted(0), new(1)[0])
    assert comparison.better == "fused"  # it knows a state that this site never saw
    assert comparison.scores[0].name == "log density given the rows before"
    rows, _, lengths = simulated(SITES[1], seed=7)
    third = StickyHDPHMM(n_states=8, n_init=2).fit(rows, lengths)
    assert cs.fuse([fusion.model, third]).n_components == len(CENTRES)


def test_sites_that_do_not_agree_are_refused():
    other = StickyHDPHMM(n_states=2, n_init=1).fit(np.random.default_rng(0).normal(size=(20, 3)))
    with pytest.raises(cs.errors.InputError, match="model 1: has 3 columns, expected 2 as in"):
        cs.fuse([fitted(), other])
