"""Posterior draws as a kind of model: subposteriors of sites are combined into draws of the full posterior."""
