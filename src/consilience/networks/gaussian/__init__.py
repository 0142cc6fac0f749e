"""Bayesian networks: networks with a Gaussian for every weight, fused as networks whose arrays come twice."""
