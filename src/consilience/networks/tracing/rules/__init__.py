"""Tracing rules of ATen operations: which axes each of them joins or fixes."""
