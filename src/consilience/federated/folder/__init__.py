"""Rounds in a shared folder or a bucket."""
