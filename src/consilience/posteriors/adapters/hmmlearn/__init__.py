"""hmmlearn's hidden Markov models, in and out."""
