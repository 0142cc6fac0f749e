"""Digest of all arrays of a network, which binds a description to it."""

from __future__ import annotations

from collections.abc import Mapping

from consilience.checks import AnyArray
from consilience.networks.fisher.information import parameter_digest


def network_digest(arrays: Mapping[str, AnyArray], aliases: Mapping[str, str]) -> str:
    """Return the SHA-256 of a network's parameters and buffers, the same in memory and in its file.

    Arrays hold tied weights under one of their names or under all; files have all names.
    """
    named = dict(arrays)
    for alias, name in aliases.items():
        if name in named:
            named.setdefault(alias, named[name])
        elif alias in named:
            named[name] = named[alias]
    return parameter_digest(named, named)
