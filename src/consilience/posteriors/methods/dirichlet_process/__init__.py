"""Clustering of components under a Dirichlet process."""
