"""SPAHM: components matched under a Beta-Bernoulli process."""
