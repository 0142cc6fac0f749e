"""What all kinds of models share: options of methods, results, provenance, recipes, progress."""
