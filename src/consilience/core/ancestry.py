"""Ancestry of inputs: what a fused file was fused from, so that nobody counts twice.

Inputs are known by digests of files and of contents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from consilience.core.frozen import FrozenDict
from consilience.errors import Problem

MAX_SHARED = 5
"""Sites that a message names at most. Chosen by hand."""

NO_ANCESTORS: Mapping[str, str] = FrozenDict({})
"""Of what was not fused from others."""


class FusedFrom(Protocol):
    """An input that knows its own digests and those of what it was fused from."""

    @property
    def name(self) -> str:
        """Its name in results."""

    @property
    def label(self) -> str:
        """Its name in messages."""

    @property
    def digest(self) -> str | None:
        """SHA-256 of its file; None for an object in memory."""

    @property
    def content_digest(self) -> str:
        """Digest of what it says."""

    @property
    def ancestors(self) -> Mapping[str, str]:
        """Names of what it was fused from, by their digests."""


def ancestors_of(provenance: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the names of what a file was fused from, by their digests; empty for a file that was not fused."""
    if provenance is None:
        return {}
    files = {record["sha256"]: record["name"] for record in provenance["inputs"] if record.get("sha256")}
    recorded = provenance["result"].get("site_digests")
    of_sites = recorded if isinstance(recorded, Mapping) else {}
    return {**{str(digest): str(name) for digest, name in of_sites.items()}, **files}


def counted_twice(described: Sequence[FusedFrom]) -> list[Problem]:
    """Return which inputs were fused from others that are given too, or share a site with one, a line each.

    What is compared are digests of files and of contents. Copies of a model are not refused: they may be meant.
    """
    problems: list[Problem] = []
    fused = [site for site in described if site.ancestors]
    for number, site in enumerate(fused):
        problems += [
            Problem(
                site.label,
                f"was fused from {other.label}, which is given too: it would count twice",
                f"leave {other.label} out, or fuse the sites' own files",
                "E-TWICE",
            )
            for other in described
            if other is not site and {other.content_digest, other.digest} & set(site.ancestors)
        ]
        for other in fused[number + 1 :]:
            shared = sorted({site.ancestors[digest] for digest in set(site.ancestors) & set(other.ancestors)})
            if shared:
                problems.append(
                    Problem(
                        other.label,
                        f"was fused from {', '.join(shared[:MAX_SHARED])}{', ...' if len(shared) > MAX_SHARED else ''},"
                        f" as {site.label} was: what they share would count twice",
                        "fuse the sites' own files",
                        "E-TWICE",
                    )
                )
    return problems


def site_digests(described: Sequence[FusedFrom]) -> dict[str, str]:
    """Return the names of all that a fusion rests on, fused files' own sites included, by digests.

    Contents with two names keep the first in alphabetical order, whoever came first.
    """
    names: dict[str, str] = {}
    for site in described:
        of_file = {} if site.digest is None else {site.digest: site.name}
        for digest, name in {**of_file, site.content_digest: site.name, **site.ancestors}.items():
            names[digest] = min(name, names.get(digest, name))
    return names
