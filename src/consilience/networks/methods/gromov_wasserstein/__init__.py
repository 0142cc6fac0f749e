"""Gromov-Wasserstein-barycenter fusion of networks with recurrent layers."""
