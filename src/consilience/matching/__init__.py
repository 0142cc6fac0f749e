"""Matching: which components of different models are the same component."""

from __future__ import annotations

from consilience.matching.result import Matching

__all__ = ["Matching"]
