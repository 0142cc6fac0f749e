"""Fused Bayesian networks as their page takes them, read from files: the fused one and those of its sites, if given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from consilience.bayesian.file_format import read_bayesian_summary
from consilience.bayesian.files import read_bayesian_network
from consilience.bayesian.gaussian_arrays import gaussian_arrays, gaussian_symmetry
from consilience.files.safetensors_file import SafetensorsFile
from consilience.networks.files import NetworkFile
from consilience.networks.report.content import ShownNetworks
from consilience.networks.report.page import shown_networks_of_files


def shown_bayesian_of_files(
    fused: Path | SafetensorsFile, sites: Sequence[Path | SafetensorsFile] = ()
) -> ShownNetworks:
    """Return a fused Bayesian network's file, and those of its sites, as its page takes them.

    Parameters and errors are those of `shown_networks_of_files`.
    """
    return shown_networks_of_files(fused, sites, _read_gaussian)


def _read_gaussian(path: SafetensorsFile) -> NetworkFile:
    """Return a file's means and standard deviations as one network."""
    bnn = read_bayesian_network(path)
    symmetry = None if bnn.symmetry is None else gaussian_symmetry(bnn.symmetry, list(bnn.means))
    return NetworkFile(
        gaussian_arrays(bnn.means, bnn.variances), symmetry, read_bayesian_summary(path).header.provenance
    )
