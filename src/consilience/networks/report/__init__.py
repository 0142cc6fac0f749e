"""The report of a fusion of networks."""
