"""Inspection of a checkpoint: a folder, or an index of several files, told from their headers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from consilience.checkpoints.card import NOT_COMPARED
from consilience.checkpoints.folder import INDEX, WEIGHTS, open_checkpoint, read_object
from consilience.checkpoints.output import PROVENANCE
from consilience.core.inspection import Row, listed, plain_words
from consilience.core.kind import Inspection
from consilience.drawing.words import format_count
from consilience.networks.inspect import network_people_rows


def inspect_checkpoint(path: Path) -> Inspection | None:
    """Return what the headers of a checkpoint say, and, of a merged one, how it was made.

    None for what is neither a folder with weights nor an index of files.
    """
    if not path.name.endswith(".index.json") and not any((path / name).is_file() for name in (WEIGHTS, INDEX)):
        return None
    checkpoint = open_checkpoint(path)
    stored = {name: tensor for name, (_, tensor) in checkpoint.tensors.items()}
    sizes = Counter[str]()
    for tensor in stored.values():
        sizes[tensor.dtype] += tensor.size
    n_parameters = sum(sizes.values())
    architectures = checkpoint.config.get("architectures")
    rows: list[Row] = [
        ("file", str(path)),
        ("format", f"a checkpoint in {format_count(len(checkpoint.files), 'file')} of weights"),
        *([("architecture", listed(list(map(str, architectures))))] if isinstance(architectures, list) else []),
        ("parameters", ", ".join(f"{size:,} of {dtype}" for dtype, size in sizes.items())),
        ("tensors", listed(list(stored))),
        ("size", f"{checkpoint.nbytes:,} bytes"),
    ]
    made = path / PROVENANCE
    is_merged = checkpoint.folder is not None and made.is_file()
    if is_merged:
        recipe = read_object(made).get("recipe")
        method = recipe.get("method") if isinstance(recipe, dict) else None
        rows += [("merged by", f"{method}: see {PROVENANCE}"), ("verdict", NOT_COMPARED)]
    plain = plain_words(
        f"a {'merged ' * is_merged}checkpoint of {format_count(n_parameters, 'parameter')}",
        None,
        "checkpoints of the same base",
        following="compare it on data of your own" if is_merged else "`consilience merge CHECKPOINT... -o merged`",
    )
    shapes = {name: list(tensor.shape) for name, tensor in stored.items()}
    document = {"kind": "checkpoint", "config": dict(checkpoint.config), "shapes": shapes}
    return Inspection(document, [*rows, *network_people_rows(stored)], plain)
