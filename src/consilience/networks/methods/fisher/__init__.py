"""Fisher merging and self-supervised Fisher merging of networks."""
