"""Rounds in which sites send what they learned and a server fuses it."""
