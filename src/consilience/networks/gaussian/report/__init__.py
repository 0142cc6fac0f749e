"""The report of a fusion of Bayesian networks."""
