"""Posteriors over components: those of mixtures, topic models, hidden Markov models, Gaussian processes."""
