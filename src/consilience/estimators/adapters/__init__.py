"""Adapters of estimators: a fitted estimator as sums, and the estimator that sums give."""
