"""Heads on shared features: classifiers of frozen features whose sums add up, and the features that need no data."""
