"""Topic models: Dirichlet and Gaussian topics, and how well they complete documents."""
