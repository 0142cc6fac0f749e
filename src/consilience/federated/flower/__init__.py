"""Rounds over Flower."""
