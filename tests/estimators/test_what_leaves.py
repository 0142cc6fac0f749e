"""What leaves a site with the default min_count: nothing from which a single row follows."""

import numpy as np
import pytest
from sklearn.naive_bayes import GaussianNB

import consilience as cs
from consilience.estimators.describe import ApproximateStatisticsWarning
from tests.estimators.estimators_zoo import class_rows


def test_weighted_rows_leave_without_their_unweighted_moments():
    X, y = class_rows(0)
    weights = np.ones(len(X))
    weights[7] = 3.0  # the difference of weighted and unweighted sums would be twice this row
    model = GaussianNB().fit(X, y, sample_weight=weights)
    with pytest.warns(ApproximateStatisticsWarning, match="min_count=0 only"):
        sent = cs.describe(model, (X, y), sample_weight=weights)
    assert set(sent.moments) == {"rows"}
    whole = cs.describe(model, (X, y), sample_weight=weights, min_count=0)
    assert set(whole.moments) == {"rows", "unweighted"}
    assert set(cs.describe(whole).moments) == {"rows"}
    plain = cs.describe(GaussianNB().fit(X[1:], y[1:]))
    for sites in ([sent, plain], [whole, plain]):
        verdict = cs.fuse(sites).verdict
        assert (verdict.code, verdict.harmless) == ("approximate", None)
        assert verdict.remedy == "min_count=0 at the sites and here sends what is missing"
    assert cs.fuse([whole, plain], min_count=0).verdict.code == "exact"
    mixed = cs.fuse([whole, cs.describe(sent, features=cs.Features(names="abcd"))], min_count=0)
    assert set(mixed.statistics.moments) == {"rows"}  # of all rows they are not known
    np.testing.assert_allclose(cs.rebuild(sent).theta_, model.theta_, rtol=1e-12)
    np.testing.assert_allclose(cs.rebuild(sent).var_, model.var_, rtol=1e-6)
