"""Hidden Markov models with Gaussian states: inference, the sticky HDP-HMM and its learner."""
