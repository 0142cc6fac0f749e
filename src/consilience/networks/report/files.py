"""Fused networks as their page takes them, read from files: the fused one and those of its sites, where given.

A fused file has the provenance, not the matching: distances after matching and couplings are known to the fusion only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from consilience.core.provenance import read_inputs_of
from consilience.errors import FileFormatError
from consilience.files.safetensors_file import SafetensorsFile, as_file
from consilience.networks.files import NetworkFile, read_weights
from consilience.networks.network import Network
from consilience.networks.report.content import ShownNetworks, provenance_of


def shown_networks_of_files(
    fused: Path | SafetensorsFile,
    sites: Sequence[Path | SafetensorsFile] = (),
    read: Callable[[SafetensorsFile], NetworkFile] = read_weights,
) -> ShownNetworks:
    """Return a fused network file, and those of its sites, as its page takes them.

    Parameters
    ----------
    fused : Path or SafetensorsFile
        The file that a fusion was saved to.
    sites : sequence of Path or SafetensorsFile, optional
        Files of networks that it was made from, in any order, not necessarily all; each is known by its SHA-256. With
        all of them the page also shows how far apart they are as they stand. Default: none.
    read : callable, optional
        Function that reads one of these files. Default: `read_weights`.

    Raises
    ------
    FileFormatError
        For files that cannot be read, or a first one that no fusion wrote.
    InputError
        Listing the sites that the fused file was not made from.
    """
    fused = as_file(fused)
    file = read(fused)
    if file.provenance is None:
        raise FileFormatError(fused, "does not say how it was made, so there is nothing to report", "give a fused file")
    provenance = provenance_of(fused.label, file.provenance)
    digests = [record.sha256 for record in provenance.inputs]
    contents = read_inputs_of(fused, digests, [as_file(site) for site in sites], lambda site: (read(site), str(site)))
    symmetry = file.symmetry
    return ShownNetworks(
        fused.label,
        file.arrays,
        symmetry,
        file.provenance,
        [
            None
            if content is None
            else content[0]
            if symmetry is None
            else Network(content[0].arrays, symmetry, name=content[1])
            for content in contents
        ],
        provenance.result.get("repaired") is None and any(key.endswith("running_var") for key in file.arrays),
        is_from_file=True,
    )
