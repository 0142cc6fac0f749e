"""Bayesian neural networks: a Gaussian for every weight, fused as networks whose arrays come twice."""
