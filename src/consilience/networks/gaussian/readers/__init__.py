"""Bayesian networks of other libraries, read and written as those libraries keep them."""
