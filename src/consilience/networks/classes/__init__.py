"""What counts of classes decide: shares of sites, the stationary ensemble, rows of the head, logit adjustment."""
