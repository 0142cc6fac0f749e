"""Synthetic inputs from the descriptions of networks: draws from moments, dead leaves, matched images."""
