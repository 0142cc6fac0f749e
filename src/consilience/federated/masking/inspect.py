"""Inspection of the messages of masked sums, from headers alone."""

from __future__ import annotations

from consilience.core.inspection import people_rows, plain_words
from consilience.core.kind import Inspection
from consilience.federated.masking.messages import ADVERTISE, CONFIRM, DEAL, MASK, REVEAL, read_header
from consilience.files.safetensors_file import SafetensorsFile

_TOLD = {
    ADVERTISE: "public keys, which tell nothing of data",
    DEAL: "shares of secrets of this sum, each sealed for one site",
    MASK: "numbers under masks: random words to whoever has fewer secrets than the threshold",
    CONFIRM: "that the site has seen whose numbers are summed",
    REVEAL: "shares that open the sum, or make up for a site that left; of no site both",
}


def inspect_masked(file: SafetensorsFile) -> Inspection:
    """Return what the header of a message of a masked sum says.

    Raises
    ------
    FileFormatError
        For any other file.
    """
    header, tensors = read_header(file)
    rows = [
        ("file", str(file)),
        ("format", f"{header.format} {header.format_version} (consilience {header.library_version})"),
        ("round", header.round),
        ("step", f"{header.step}, {'from ' if header.signature else 'of the server, about '}{', '.join(header.sites)}"),
        ("signed", "yes" if header.signature else "no"),
        ("tensors", ", ".join(f"{name} {list(shape)}" for name, shape in sorted(tensors.shapes.items())) or "none"),
        *people_rows(
            [("message", _TOLD[header.step])], "of the site's numbers alone; the sum tells what a fused file tells"
        ),
    ]
    shapes = {name: list(shape) for name, shape in tensors.shapes.items()}
    plain = plain_words(
        f"message {header.step} of a masked sum: {_TOLD[header.step].split(':')[0].split(',')[0]}",
        0.0,
        "nothing: the server adds up what all sites send",
        following="nothing; sites and server go on by themselves",
    )
    return Inspection({"header": header.model_dump(), "shapes": shapes}, rows, plain)
