"""KL-fusion: components matched by Kullback-Leibler divergence and averaged, their number known or not."""
