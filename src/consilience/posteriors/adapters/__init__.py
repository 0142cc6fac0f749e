"""Adapters: which libraries' models are taken in as posteriors, and given back."""
