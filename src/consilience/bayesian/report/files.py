"""Content of the report of fused Bayesian networks, read from files: the fused one and those of its sites, if given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from consilience.bayesian.file_format import read_bayesian_summary
from consilience.bayesian.files import read_bayesian_network
from consilience.bayesian.gaussian_arrays import gaussian_arrays, gaussian_symmetry
from consilience.bayesian.report.content import BayesianContent, bayesian_content, sharing_of_result
from consilience.files.safetensors_file import SafetensorsFile, as_file
from consilience.networks.files import NetworkFile
from consilience.networks.report.files import network_content_of_files


def bayesian_content_of_files(
    fused: Path | SafetensorsFile, sites: Sequence[Path | SafetensorsFile] = ()
) -> BayesianContent:
    """Return what the report shows of a fused Bayesian network's file; see `network_content_of_files`.

    Parameters
    ----------
    fused : Path or SafetensorsFile
        The file that a fusion was saved to.
    sites : sequence of Path or SafetensorsFile, optional
        Files of networks that it was made from. Default: none.

    Raises
    ------
    FileFormatError
        For files that cannot be read, or a first one that no fusion wrote.
    InputError
        Listing the sites that the fused file was not made from.
    """
    fused = as_file(fused)
    content = network_content_of_files(fused, sites, _read_gaussian)
    provenance = read_bayesian_summary(fused).header.provenance or {}
    units = {group.name: group.fused for group in content.groups}
    return bayesian_content(
        content, provenance["result"], sharing=sharing_of_result(provenance["result"], units, len(content.sites))
    )


def _read_gaussian(path: SafetensorsFile) -> NetworkFile:
    """Return a file's means and standard deviations as one network."""
    bnn = read_bayesian_network(path)
    symmetry = None if bnn.symmetry is None else gaussian_symmetry(bnn.symmetry, list(bnn.means))
    return NetworkFile(
        gaussian_arrays(bnn.means, bnn.variances), symmetry, read_bayesian_summary(path).header.provenance
    )
