"""Who is who: which components of different models are the same thing."""

from __future__ import annotations

from consilience.matching.result import Matching

__all__ = ["Matching"]
