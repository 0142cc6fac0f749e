"""Files: posteriors, recipes and where a result came from."""
