"""Sums of losses at sites and the choice that they make, against the rows themselves."""

import numpy as np
import pytest

from consilience.core.site_losses import RowLosses, SiteChoice, sums_of_losses
from consilience.errors import InputError

NAMES = ["fused", "other", "site:a", "site:b"]


def site(seed, errors, n=200, n_classes=3):
    """Return losses of models that err so often, the first the site's own, on rows with classes."""
    rng = np.random.default_rng(seed)
    values = (rng.random((len(errors), n)) < np.array(errors)[:, None]).astype(float)
    return RowLosses(
        "error", values, values + rng.random(values.shape), rng.integers(n_classes, size=n), n_classes, True
    )


def choice(rows, weights=None, is_site=(False, False, True, True), **options):
    sums = {name: sums_of_losses(one, 5) for name, one in rows.items()}
    weights = weights or dict.fromkeys(rows, 1.0)
    return SiteChoice(NAMES[: len(is_site)], is_site, sums, weights, "error", is_share=True, **options)


def test_sums_say_what_the_rows_say():
    rows = {"a": site(0, [0.2, 0.1, 0.3, 0.2, 0.25]), "b": site(1, [0.3, 0.1, 0.3, 0.2, 0.3], n=120)}
    found = choice(rows, {"a": 3.0, "b": 1.0})
    shares = {"a": 0.75, "b": 0.25}
    for one, other in ((0, 1), (3, 1), (2, 4)):
        mean, variance = 0.0, 0.0
        for name, of_site in rows.items():
            differences = of_site.values[one] - of_site.values[other]
            mean += shares[name] * differences.mean()
            variance += shares[name] ** 2 * differences.var(ddof=1) / len(differences)
        assert found.difference(one, other) == pytest.approx((mean, variance**0.5), rel=1e-9)
    expected = sum(shares[name] * of_site.values.mean(axis=1) for name, of_site in rows.items())
    np.testing.assert_allclose(found.losses, expected)


def test_a_site_is_kept_unless_a_fused_model_is_better_by_a_standard_error():
    clear = choice({"a": site(0, [0.3, 0.1, 0.4, 0.3, 0.35])})
    assert (clear.name, clear.harmless) == ("fused", True)
    alike = choice({"a": site(0, [0.3, 0.301, 0.4, 0.3, 0.35], n=60)})
    assert alike.name.startswith("site:")
    assert "No fused model is clearly better" in alike.verdict().text


def test_where_no_model_is_shared_what_each_site_has_is_compared_with():
    own = (False, False)
    better = choice({"a": site(0, [0.3, 0.1, 0.4]), "b": site(1, [0.3, 0.1, 0.4])}, is_site=own)
    assert (better.name, better.harmless, better.is_shared) == ("fused", True, False)
    worse = choice({"a": site(0, [0.05, 0.3, 0.4]), "b": site(1, [0.05, 0.3, 0.4])}, is_site=own)
    assert (worse.name, worse.harmless, worse.verdict().code) == ("fused", None, "sites")
    assert "For its own mix of rows each site has a better model today" in worse.verdict().text
    shared = choice({"a": site(0, [0.05, 0.3, 0.4, 0.05, 0.05]), "b": site(1, [0.05, 0.3, 0.4, 0.05, 0.05])})
    assert shared.name.startswith("site:")
    mixed = choice({"a": site(0, [0.05, 0.2, 0.4]), "b": site(1, [0.4, 0.2, 0.4])}, is_site=own)
    assert [one.sign for one in mixed.by_site] == [-1, 1]
    assert "On its own rows the own model is better at a (" in mixed.verdict().text


def test_of_equal_losses_the_ties_decide():
    rows = site(0, [0.3, 0.2, 0.2])
    rows.values[2] = rows.values[1]
    rows.ties[2] = rows.ties[1] - 0.1
    assert choice({"a": rows}, is_site=(False, False)).name == "other"


def test_a_lying_site_moves_a_mean_by_its_weight_and_a_median_not_at_all():
    honest = {name: site(seed, [0.3, 0.1, 0.2]) for seed, name in enumerate("abcd")}
    liar = RowLosses("squared error", np.tile([[0.0], [1e9], [0.0]], 200), np.zeros((3, 200)))
    both = {**honest, "e": liar}
    assert choice(both, is_site=(False, False)).name == "other"
    assert choice(both, is_site=(False, False), is_robust=True).name == "fused"


@pytest.mark.parametrize("seed", range(20))
def test_withheld_classes_are_not_small_together(seed):
    rng = np.random.default_rng(seed)
    n_classes = int(rng.integers(2, 12))
    shares = rng.dirichlet(np.full(n_classes, 0.3))
    labels = rng.choice(n_classes, size=90, p=shares)
    sums = sums_of_losses(RowLosses("error", rng.random((2, 90)), rng.random((2, 90)), labels, n_classes), 5)
    true = np.bincount(labels, minlength=n_classes)
    said = sums.counts > 0
    assert np.array_equal(sums.counts[said], true[said])
    assert (sums.counts[said] >= 5).all()
    assert true[~said].sum() == 0 or true[~said].sum() >= 5
    np.testing.assert_allclose(sums.errors[:, ~said], 0.0)


def test_classes_in_which_the_own_model_is_better_are_named():
    rows = site(0, [0.2, 0.1])
    of_class = rows.labels == 1
    rows.values[0, of_class], rows.values[1, of_class] = 0.0, 1.0
    found = choice({"a": rows}, is_site=(False,))
    assert [(one[0], one[1]) for one in found.worse_classes] == [("a", 1)]
    assert "The own model is better in class 1 at a (0.0% against 100.0%)." in found.verdict().text
    assert found.to_json()["worse_classes"][0]["class"] == 1


def test_too_few_rows_say_nothing():
    with pytest.raises(InputError, match="has 49 rows, and a comparison needs 50"):
        sums_of_losses(site(0, [0.1, 0.1], n=49), 5)
