"""Symmetries of PyTorch modules, traced from their exported graphs and proved by trial."""
