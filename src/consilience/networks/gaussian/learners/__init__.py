"""Mean-field variational inference of Bayesian networks at a site."""
