"""What every fusion returns, whatever was fused."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from consilience.checks import Array
from consilience.core.status import Status

if TYPE_CHECKING:
    from consilience.networks.network import Network
    from consilience.posteriors.posterior import Posterior

_ELSEWHERE = {
    "posterior": "what was fused are networks: see .network",
    "atoms": "what was fused are networks: see .network",
    "network": "what was fused are posteriors: see .posterior",
    "aligned": "what was fused are posteriors: see .inputs and .matching",
    "aligned_models": "what was fused are posteriors: see .inputs and .matching",
    "quality": "what was fused are posteriors: see .matching.confidence",
}


class Fusion(ABC):
    """A fused model and how it came about: a PosteriorFusion or a NetworkFusion.

    Parameters
    ----------
    objective
        Value of the method's objective at the end; NaN for a method without one.
    history
        The objective after each iteration (iterations,).
    status
        How the fusion ended; ``status.value`` says what to do about it.
    details
        What the method found on its way.
    provenance
        Method, options, seed, inputs and versions, as JSON values; every saved file carries it.
    """

    kind: ClassVar[str]
    objective: float
    history: Array
    status: Status
    details: Mapping[str, Any]
    provenance: Mapping[str, Any]
    keeps_models: bool
    matching: Any

    if TYPE_CHECKING:
        posterior: Posterior
        network: Network
        atoms: Posterior | None
    else:

        def __getattr__(self, name: str) -> Any:
            """Say where to look for what fusions of the other kind have."""
            because = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{because}")

    @property
    @abstractmethod
    def model(self) -> Any:
        """The fused model, of the kind that went in."""

    @property
    @abstractmethod
    def n_components(self) -> int:
        """Number of fused components, or of fused units of a network."""

    @abstractmethod
    def save(self, path: str | Path) -> None:
        """Write the fused model with its provenance, whole or not at all."""

    @abstractmethod
    def report(self, path: str | Path, *args: Any, **kwargs: Any) -> None:
        """Write a page about the fusion, whole or not at all: one HTML file without scripts that fetches nothing."""
