"""Figures and pages drawn from plain values."""
