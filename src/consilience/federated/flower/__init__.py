"""Rounds over Flower; `FusionStrategy` for a ServerApp of one's own needs Flower itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from consilience.federated.flower.strategy import FusionStrategy, model_of_record, model_record

__all__ = ["FusionStrategy", "model_of_record", "model_record"]


def __getattr__(name: str) -> Any:
    """Import what needs Flower when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from consilience.federated.flower import strategy

    return getattr(strategy, name)
