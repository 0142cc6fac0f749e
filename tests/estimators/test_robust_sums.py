"""Laws of ``robust=True`` for sums: sites that are far are left out, and the rest are summed exactly."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.naive_bayes import GaussianNB, MultinomialNB

import consilience as cs
from consilience.errors import InputError, OptionError
from consilience.estimators.credible_information import coefficients_about, cut_information
from tests.copies import COPIES

pytestmark = pytest.mark.covering(2)

SLOPES = np.array([1.0, -2.0, 0.5])


def regression(rng, sign=1.0, shift=0.0, count=200, noise=1.0):
    rows = rng.normal(size=(count, 3))
    target = sign * (rows @ (SLOPES + shift)) + noise * rng.normal(size=count)
    return rows, target


def with_scaled_inputs(rng, scale, shift, count=200):
    """Return rows whose inputs are `scale` times as large, and whose coefficients differ by `shift`."""
    rows = scale * rng.normal(size=(count, 3))
    return rows, rows @ (SLOPES + shift) + rng.normal(size=count)


def with_leverage(rng, size, shift):
    """Return rows of which one lies so far away, with an answer by other coefficients."""
    rows, target = regression(rng)
    rows[0] = size * np.array([1.0, 1.0, 0.0])
    target[0] = rows[0] @ (SLOPES + shift)
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


def error_of(sites, **options):
    return float(np.linalg.norm(cs.fuse(sites, **options).model.coef_ - SLOPES))


@pytest.mark.filterwarnings("ignore::consilience.errors.UnitsWarning")
@pytest.mark.parametrize(
    ("attack", "n_hostile"),
    [
        (lambda rng: with_scaled_inputs(rng, 30.0, 0.15), 1),
        (lambda rng: with_scaled_inputs(rng, np.array([1e3, 1.0, 1.0]), 0.15), 1),
        (lambda rng: with_leverage(rng, 1e4, 0.15), 1),
        (lambda rng: with_leverage(rng, 1e4, 0.15), 3),
    ],
)
def test_a_site_counts_as_the_usual_one_in_every_direction_however_much_its_inputs_tell(attack, n_hostile):
    """Rows are no bound: inputs thirty times as large tell nine hundred times as much of the coefficients."""
    errors = {"clean": 0.0, "plain": 0.0, "robust": 0.0, "within": 0.0}
    for seed in range(12):
        rng = np.random.default_rng([seed, n_hostile])
        honest = [described(differing(rng)) for _ in range(10 - n_hostile)]
        bad = [described(attack(rng)) for _ in range(n_hostile)]
        same = [described(regression(rng, shift=0.15)) for _ in range(n_hostile)]  # it tells no more than others
        errors["clean"] += error_of(honest)
        errors["plain"] += error_of([*honest, *bad])
        errors["robust"] += error_of([*honest, *bad], robust=True)
        errors["within"] += error_of([*honest, *same])
    assert errors["plain"] > 2.0 * errors["clean"]
    assert errors["robust"] <= 1.05 * max(errors["clean"], errors["within"])


def differing(rng):
    """Return rows of a site whose own coefficients differ from those of others."""
    return regression(rng, shift=0.1 * rng.normal(size=3))


def test_what_is_cut_keeps_its_coefficients_and_is_told():
    rng = np.random.default_rng(8)
    sites = {f"s{k}": described(regression(rng)) for k in range(6)}
    sites["wide"] = described(with_scaled_inputs(rng, 30.0, 0.0))
    fusion = cs.fuse(sites, robust=True)
    assert set(fusion.details["robust"]["cut_information"]) == {"wide"}
    assert 400.0 < fusion.details["robust"]["cut_information"]["wide"] < 2000.0
    assert any("wide" in text for text in fusion.statistics.approximations)
    assert "within what honest ones differ by" in fusion.verdict.text
    (cut,), _ = cut_information([sites["wide"]])
    assert cut is sites["wide"]  # alone it is the usual one
    kept, largest = cut_information(list(sites.values()))
    assert (largest[:-1] == 1.0).all()
    assert all(one is site for one, site in zip(kept[:-1], sites.values(), strict=False))
    for centre in (np.zeros(3), np.array([1.0, -1.0, 2.0])):
        before, after = (coefficients_about(one.rows, centre) for one in (sites["wide"], kept[-1]))
        assert_allclose(after, before, rtol=1e-9)
    assert kept[-1].problems() == []
    variances = kept[-1].rows.variances / kept[-1].rows.weight
    assert (variances[:3] < 5.0).all()


@pytest.mark.filterwarnings("ignore::consilience.errors.UnitsWarning")
def test_units_and_places_of_columns_change_nothing_of_what_is_cut():
    rng = np.random.default_rng(9)
    data = [regression(rng) for _ in range(6)] + [with_scaled_inputs(rng, np.array([30.0, 1.0, 1.0]), 0.1)]
    units, places = np.array([0.1, 1.0, 100.0]), np.array([5.0, -20.0, 1e3])
    fusion = cs.fuse([described(one) for one in data], robust=True)
    moved = cs.fuse([described((rows * units + places, target)) for rows, target in data], robust=True)
    assert_allclose(moved.model.coef_ * units, fusion.model.coef_, rtol=1e-6)
    ratios = [one.details["robust"]["cut_information"] for one in (fusion, moved)]
    assert ratios[0].keys() == ratios[1].keys() == {"model 6"}
    assert_allclose(ratios[1]["model 6"], ratios[0]["model 6"], rtol=1e-2)


@pytest.mark.filterwarnings("ignore::consilience.errors.UnitsWarning")
def test_holders_of_a_rare_column_are_compared_with_each_other():
    rng = np.random.default_rng(10)

    def site(held, size=1.0):
        rows = rng.normal(size=(200, 3))
        rows[:, 2] = size * (rng.random(200) < 0.2) if held else 0.0
        return described((rows, rows @ SLOPES + rng.normal(size=200)))

    sites = [site(held=True) for _ in range(3)] + [site(held=False) for _ in range(5)]
    fusion = cs.fuse(sites, robust=True)
    assert "cut_information" not in fusion.details["robust"]
    assert fusion.details["robust"]["left_out"] == []
    assert abs(fusion.model.coef_[2] - SLOPES[2]) < 0.5
    far = cs.fuse([*sites, site(held=True, size=1e3)], robust=True)
    assert set(far.details["robust"]["cut_information"]) == {"model 8"}


@pytest.mark.filterwarnings("ignore::consilience.errors.UnitsWarning")
def test_a_constant_added_to_targets_is_seen_in_the_intercept():
    rng = np.random.default_rng(11)
    honest = [regression(rng) for _ in range(6)]
    rows, target = regression(rng)
    fusion = cs.fuse([described(one) for one in [*honest, (rows, target + 100.0)]], robust=True)
    assert "model 6" in {record["model"] for record in fusion.details["robust"]["left_out"]}
    assert abs(fusion.model.intercept_) < 0.5


@pytest.mark.parametrize("n_mimics", [1, 2, 3, 4])
def test_sums_that_are_sent_again_count_once(n_mimics):
    rng = np.random.default_rng([12, n_mimics])
    honest = [regression(rng) for _ in range(10 - n_mimics)]
    mimics = [(honest[0][0], honest[0][1] + 1e-3 * rng.normal(size=200)) for _ in range(n_mimics)]
    fusion = cs.fuse([described(data) for data in [*honest, *mimics]], robust=True)
    steps = [record["step"] for record in fusion.details["robust"]["left_out"]]
    assert steps.count("copy of another") == n_mimics
    rows, target = (np.concatenate(parts) for parts in zip(*honest, strict=True))
    if steps.count("gate") == 0:
        assert_allclose(fusion.model.coef_, LinearRegression().fit(rows, target).coef_, rtol=1e-2)


def of_eight_columns(rng, rows=None):
    """Return rows, drawn unless they are given, of a site whose own coefficients differ from those of others."""
    rows = rng.normal(size=(200, 8)) if rows is None else rows
    return rows, rows @ (1.0 + 0.1 * rng.normal(size=8)) + rng.normal(size=200)


@pytest.mark.parametrize("n_mimics", [1, 2, 3, 4])
def test_rows_that_are_sent_again_with_other_targets_count_once(n_mimics):
    n_found = 0
    for seed in range(5):
        rng = np.random.default_rng([15, n_mimics, seed])
        honest = [of_eight_columns(rng) for _ in range(10 - n_mimics)]
        rows, target = honest[0]
        moved = [(rows, target + rows @ (0.04 * rng.normal(size=8))) for _ in range(n_mimics)]  # honest ones: 0.12
        fusion = cs.fuse([described(data) for data in [*honest, *moved]], robust=True)
        n_found += sum(record["step"] == "copy of another" for record in fusion.details["robust"]["left_out"])
    assert n_found >= 2 / 3 * 5 * n_mimics  # by their noise some pass for others


def test_sites_that_share_a_design_are_copies_no_more_often_than_once_in_twenty():
    n_rounds = 0
    for seed in range(40):
        rng = np.random.default_rng([16, seed])
        drawn = [of_eight_columns(rng) for _ in range(6)]
        designed = [of_eight_columns(rng, drawn[0][0]) for _ in range(4)]
        fusion = cs.fuse([described(data) for data in [*drawn, *designed]], robust=True)
        n_rounds += any(record["step"] == "copy of another" for record in fusion.details["robust"]["left_out"])
    assert n_rounds <= 2


def test_sums_whose_correlations_alone_are_others_are_left_out():
    """Means and variances of columns say nothing of a rotation."""
    rng = np.random.default_rng(13)

    def site(correlation):
        first, other = rng.normal(size=(2, 300))
        rows = np.stack([first, correlation * first + np.sqrt(1.0 - correlation**2) * other], axis=1)
        return cs.describe(PCA().fit(rows), data=rows)

    fusion = cs.fuse([*(site(0.8) for _ in range(6)), site(-0.8), site(-0.8)], robust=True)
    assert {"model 6", "model 7"} <= {record["model"] for record in fusion.details["robust"]["left_out"]}
    assert fusion.model.components_[0].prod() > 0.4


@pytest.mark.filterwarnings("ignore::consilience.errors.UnitsWarning")
def test_four_far_sites_of_ten_do_not_make_copies_of_honest_ones():
    """They make the usual distance of the others their largest; two honest copies fewer, and they would be half."""
    for seed in range(20):
        rng = np.random.default_rng([seed, 14])
        honest, bad = [differing(rng) for _ in range(6)], [differing(rng) for _ in range(4)]
        sites = [described(one) for one in [*honest, *((rows, target + 100.0) for rows, target in bad)]]
        fusion = cs.fuse(sites, robust=True)
        left = {record["model"] for record in fusion.details["robust"]["left_out"]}
        assert {f"model {site}" for site in range(6, 10)} <= left
        assert abs(fusion.model.intercept_) < 0.5
