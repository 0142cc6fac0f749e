"""The report of a fusion of posteriors."""
