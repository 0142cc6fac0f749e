"""scikit-learn's mixtures, clusterings and topic models, in and out."""
