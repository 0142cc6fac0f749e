"""Gromov-Wasserstein-barycenter fusion of recurrent layers."""
