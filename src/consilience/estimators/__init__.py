"""Estimators whose sufficient statistics add up: regressions, classifiers, covariances and scalers, fused exactly."""
