"""Permutation, sign and scale symmetries of networks, and the transport of units between networks."""
