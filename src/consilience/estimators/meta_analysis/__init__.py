"""Meta-analysis: estimates of several sites pooled with fixed and with random effects."""
