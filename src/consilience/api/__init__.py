"""The public functions for models of every kind, and the table of kinds."""
