"""Laws of ``robust=True`` for sums: sites that are far are left out, and the rest are summed exactly."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.naive_bayes import GaussianNB, MultinomialNB

import consilience as cs
from consilience.errors import InputError, OptionError
from tests.copies import COPIES

pytestmark = pytest.mark.covering(2)

SLOPES = np.array([1.0, -2.0, 0.5])


def regression(rng, sign=1.0, shift=0.0, count=200, noise=1.0):
    rows = rng.normal(size=(count, 3))
    target = sign * (rows @ (SLOPES + shift)) + noise * rng.normal(size=count)
    return rows, target


def described(data):
    return cs.describe(LinearRegression().fit(*data), data=data)


@pytest.mark.parametrize("attack", [{"sign": -1.0}, {"shift": 1.0}, {"shift": 1.0, "count": 20000}, {"noise": 20.0}])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_hostile_sums_are_left_out_and_the_rest_is_the_fit_of_its_rows(attack, count):
    rng = np.random.default_rng([count, 2])
    honest = [regression(rng) for _ in range(10 - count)]
    bad = [regression(rng, **attack) for _ in range(count)]
    fusion = cs.fuse({f"s{i}": described(data) for i, data in enumerate([*honest, *bad])}, robust=True)
    left = {record["model"] for record in fusion.details["robust"]["left_out"]}
    assert {f"s{i}" for i in range(10 - count, 10)} <= left
    kept = [data for i, data in enumerate(honest) if f"s{i}" not in left]
    rows, target = (np.concatenate(parts) for parts in zip(*kept, strict=True))
    assert_allclose(fusion.model.coef_, LinearRegression().fit(rows, target).coef_, rtol=1e-9)


def test_neither_the_order_of_sites_nor_the_units_of_columns_change_who_is_left_out():
    rng = np.random.default_rng(4)
    sites = [regression(rng) for _ in range(6)] + [regression(rng, sign=-1.0)]
    fusion = cs.fuse({f"s{i}": described(data) for i, data in enumerate(sites)}, robust=True)
    moved = {f"s{i}": described((100.0 * rows + 7.0, 3.0 * target - 2.0)) for i, (rows, target) in enumerate(sites)}
    other = cs.fuse(dict(reversed(moved.items())), robust=True)
    assert [record["model"] for record in fusion.details["robust"]["left_out"]] == [
        record["model"] for record in other.details["robust"]["left_out"]
    ]
    assert_allclose(other.model.coef_, 0.03 * fusion.model.coef_, rtol=1e-9)


@COPIES
def test_equal_sums_are_a_fixed_point_and_nobody_is_left_out():
    rng = np.random.default_rng(5)
    rows, target = regression(rng)
    orders = [rng.permutation(200) for _ in range(7)]  # equal but for rounding: the same sums are refused
    fusion = cs.fuse({f"s{i}": described((rows[order], target[order])) for i, order in enumerate(orders)}, robust=True)
    assert fusion.details["robust"]["left_out"] == []
    assert_allclose(fusion.model.coef_, LinearRegression().fit(rows, target).coef_, rtol=1e-9)


@pytest.mark.filterwarnings("ignore::consilience.errors.UnitsWarning")
@pytest.mark.parametrize("shift", [1.0, 1e3, 1e9])
def test_one_of_five_moves_coefficients_no_farther_than_honest_ones_differ(shift):
    rng = np.random.default_rng(6)
    honest = [regression(rng) for _ in range(4)]
    sites = [described(data) for data in [*honest, regression(rng, shift=shift)]]
    coefficients = np.stack([LinearRegression().fit(*data).coef_ for data in honest])
    moved = np.abs(cs.fuse(sites, robust=True).model.coef_ - coefficients.mean(axis=0))
    assert (moved <= np.ptp(coefficients, axis=0)).all()


def test_a_site_of_many_rows_counts_as_the_median_one():
    rng = np.random.default_rng(0)
    sites = {f"s{i}": described(regression(rng)) for i in range(5)}
    sites["large"] = described(regression(rng, count=5000))
    fusion = cs.fuse(sites, robust=True)
    assert fusion.details["robust"]["cut"] == ["large"]
    n_kept = 6 - len(fusion.details["robust"]["left_out"])
    assert_allclose(fusion.statistics.n_observations, n_kept * 200.0, rtol=1e-12)
    assert any("median number of rows" in text for text in fusion.statistics.approximations)


@pytest.mark.parametrize("kind", ["gaussian", "multinomial"])
def test_classifiers_are_judged_by_class(kind):
    rng = np.random.default_rng(1)

    def site(shift):
        labels = rng.integers(0, 3, 200)
        if kind == "gaussian":
            rows = rng.normal(size=(200, 4)) + labels[:, None] + shift * (labels == 1)[:, None]
            return cs.describe(GaussianNB().fit(rows, labels), data=(rows, labels))
        words = np.array([[5.0, 3.0, 2.0], [1.0, 3.0, 6.0], [3.0, 4.0, 3.0]]) + shift * np.eye(3)
        rows = rng.poisson(words[labels])
        return cs.describe(MultinomialNB().fit(rows, labels), data=(rows, labels))

    fusion = cs.fuse([*(site(0.0) for _ in range(6)), site(4.0), site(4.0)], robust=True)
    left = {record["model"] for record in fusion.details["robust"]["left_out"]}
    assert {"model 6", "model 7"} <= left


def test_what_it_means_nothing_for_is_refused():
    rng = np.random.default_rng(0)
    sites = [described(regression(rng)) for _ in range(4)]
    with pytest.raises(OptionError, match="robust must be True, False or None"):
        cs.fuse(sites, robust="trim")
    with pytest.raises(InputError, match="at least 3 sites"):
        cs.fuse(sites[:2], robust=True)
    rows = rng.normal(size=(100, 3))
    logistic = [
        cs.describe(LogisticRegression().fit(rows + i, rows[:, 0] > 0), data=(rows + i, rows[:, 0] > 0))
        for i in range(3)
    ]
    with pytest.raises(InputError, match="do not say what one site would have fitted"):
        cs.fuse(logistic, robust=True)


def naive_bayes(rng, kinds, shift=0.0):
    """Return a GaussianNB of sixty rows of each class, with means four apart."""
    labels = np.repeat(kinds, 60)
    return GaussianNB().fit(rng.normal(size=(len(labels), 2)) + 4.0 * labels[:, None] + shift, labels)


@pytest.mark.parametrize("foreign_first", [False, True])
def test_a_site_of_other_classes_does_not_shield_a_hostile_one(foreign_first):
    """Sites are judged by the classes that most have; none that all have is needed."""
    rng = np.random.default_rng(0)
    foreign = {"foreign": naive_bayes(rng, (8, 9))}
    others = {f"s{k}": naive_bayes(rng, (0, 1, 2)) for k in range(5)} | {"hostile": naive_bayes(rng, (0, 1, 2), 1e4)}
    fusion = cs.fuse(foreign | others if foreign_first else others | foreign, robust=True)
    assert "hostile" in {record["model"] for record in fusion.details["robust"]["left_out"]}
    assert np.abs(fusion.model.theta_).max() < 40.0


def test_sites_that_lack_a_class_are_judged_by_those_they_have():
    rng = np.random.default_rng(0)
    kinds = [(0, 1), (1, 2), (0, 2), (0, 1), (1, 2), (0, 2), (0, 1, 2)]
    sites = {f"s{k}": naive_bayes(rng, some) for k, some in enumerate(kinds)}
    assert cs.fuse(sites, robust=True).details["robust"]["left_out"] == []
    fusion = cs.fuse(sites | {"hostile": naive_bayes(rng, (1, 2), 1e4)}, robust=True)
    assert "hostile" in {record["model"] for record in fusion.details["robust"]["left_out"]}
    assert np.abs(fusion.model.theta_).max() < 40.0


def test_where_no_class_is_at_three_sites_nothing_can_be_judged_and_robust_is_refused():
    rng = np.random.default_rng(0)
    models = [naive_bayes(rng, (2 * k, 2 * k + 1)) for k in range(3)]
    with pytest.raises(InputError, match="a class that at least 3 sites have"):
        cs.fuse(models, robust=True)


def with_rare_class(rng, n_holders, n_hostile=0, shift=1e3):
    """Return nine sites of which some have class 7 too, and the last of these tell of it far away."""
    sites = {}
    for k in range(9):
        labels = np.repeat((0, 1, 2, 7) if k < n_holders else (0, 1, 2), 60)
        rows = rng.normal(size=(len(labels), 2)) + 4.0 * labels[:, None]
        if n_holders - n_hostile <= k < n_holders:
            rows[labels == 7] += shift
        sites[f"s{k}"] = GaussianNB().fit(rows, labels)
    return sites


@pytest.mark.parametrize(("n_holders", "n_hostile"), [(3, 1), (4, 1)])
def test_a_rare_class_is_judged_among_its_holders_and_costs_them_nothing_else(n_holders, n_hostile):
    fusion = cs.fuse(with_rare_class(np.random.default_rng(3), n_holders, n_hostile), robust=True)
    robust = fusion.details["robust"]
    assert robust["left_out"] == []
    assert {(one["model"], one["class"]) for one in robust["left_out_of_classes"]} == {(f"s{n_holders - 1}", "7")}
    assert_allclose(fusion.model.theta_[-1], [28.0, 28.0], atol=0.5)
    assert fusion.model.class_count_.tolist()[:3] == pytest.approx([540.0] * 3, rel=0.2)


def test_a_class_of_two_sites_is_withheld_and_said_to_be():
    fusion = cs.fuse(with_rare_class(np.random.default_rng(3), 2), robust=True)
    assert fusion.details["robust"]["withheld_classes"] == ["7"]
    assert fusion.model.classes_.tolist() == [0, 1, 2]
    assert any("fewer than 3 sites" in text for text in fusion.statistics.approximations)
    assert cs.fuse(with_rare_class(np.random.default_rng(3), 2)).model.classes_.tolist() == [0, 1, 2, 7]


def test_honest_holders_of_a_rare_class_are_all_believed():
    for seed in range(20):
        fusion = cs.fuse(with_rare_class(np.random.default_rng(seed), 4), robust=True)
        assert "left_out_of_classes" not in fusion.details["robust"], seed
        assert fusion.model.classes_.tolist() == [0, 1, 2, 7]


def test_a_site_of_rare_classes_alone_is_left_out_by_name():
    rng = np.random.default_rng(0)
    sites = {f"s{k}": naive_bayes(rng, (0, 1)) for k in range(5)} | {"foreign": naive_bayes(rng, (8, 9))}
    fusion = cs.fuse(sites, robust=True)
    assert {"model": "foreign", "step": "no class that enough sites have"}.items() <= next(
        record for record in fusion.details["robust"]["left_out"] if record["model"] == "foreign"
    ).items()
    assert fusion.model.classes_.tolist() == [0, 1]


def test_sums_are_a_method_by_name_and_by_class():
    rng = np.random.default_rng(3)
    sites = {f"s{i}": described(regression(rng)) for i in range(4)}
    fused = cs.fuse(sites)
    for method in ("sums", "auto", cs.methods.Sums()):
        assert_allclose(cs.fuse(sites, method=method).model.coef_, fused.model.coef_, rtol=0)
    robust = cs.fuse(sites, method=cs.methods.Sums(robust=True))
    assert_allclose(robust.model.coef_, cs.fuse(sites, robust=True).model.coef_, rtol=0)
    assert robust.provenance["method"] == "sums"
    with pytest.raises(
        OptionError,
        match="and Bayesian networks, not for estimators; give one of sums",
    ):
        cs.fuse(sites, method="kl")
