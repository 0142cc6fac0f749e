"""Robust averages and matching for sites that may send anything."""
