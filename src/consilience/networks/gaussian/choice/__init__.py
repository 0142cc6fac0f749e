"""The default fusion of Bayesian networks: several candidates, and a choice among them without labels."""
