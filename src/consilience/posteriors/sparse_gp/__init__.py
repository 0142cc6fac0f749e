"""Sparse Gaussian processes: kernels, the product of several posteriors, a learner and adapters."""
