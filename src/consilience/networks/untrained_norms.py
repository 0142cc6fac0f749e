"""Batch normalisation whose running statistics never saw data: in evaluation mode it normalises nothing.

Statistics start with mean 0 and variance 1 in all channels. Those of a network that was trained in ``eval()`` mode, or
whose statistics were reset, are still there, whatever its weights are.
"""

from __future__ import annotations

from collections.abc import Mapping

from consilience.checks import AnyArray
from consilience.networks.descriptions.disclosure import named
from consilience.networks.network import to_numpy


def untrained_norms(arrays: Mapping[str, AnyArray]) -> list[str]:
    """Return the paths of batch normalisation with mean 0 and variance 1 in all channels.

    Examples
    --------
    >>> import numpy as np
    >>> untrained_norms({"bn.running_mean": np.zeros(3), "bn.running_var": np.ones(3)})
    ['bn']
    >>> import numpy as np
    >>> untrained_norms({"bn.running_mean": np.zeros(3), "bn.running_var": np.array([1.0, 1.0, 0.9])})
    []
    """
    keys = {key.removesuffix("running_var"): key for key in arrays if key.endswith("running_var")}
    return [
        path.removesuffix(".")
        for path, key in keys.items()
        if (mean := f"{path}running_mean") in arrays
        and not to_numpy(arrays[mean]).any()
        and (to_numpy(arrays[key]) == 1).all()
    ]


def never_saw_data(paths: list[str]) -> str:
    """Return the note on batch normalisation layers that have never seen data."""
    return f"batch normalisation {named(paths)} has never seen data (mean 0, variance 1)"
