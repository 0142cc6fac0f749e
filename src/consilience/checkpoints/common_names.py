"""Names in common of the checkpoints of a merge: without prefixes of wrappers, and with the same bookkeeping."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from consilience.checkpoints.folder import Checkpoint
from consilience.checkpoints.inputs import MergeInputs
from consilience.drawing.words import first_names
from consilience.errors import Problem
from consilience.networks.entry_names import common_names, is_bookkeeping

_MAX_LISTED = 3
"""Tensors that a note names; more are counted. Chosen by hand."""


def with_common_names(
    inputs: MergeInputs, expected: Collection[str] | None
) -> tuple[MergeInputs, list[str], list[Problem]]:
    """Return the checkpoints under names in common, notes on what was left out, and prefixes that keep them apart.

    Parameters
    ----------
    inputs : MergeInputs
        The checkpoints, opened. Those with Fisher diagonals, which are of parameters by their names, keep theirs.
    expected : collection of str, optional
        Names of the arrays that a symmetry has. Default: what the checkpoints agree in.
    """
    checkpoints = [*inputs.models, *(() if inputs.base is None else (inputs.base,))]
    shapes = [{name: stored.shape for name, (_, stored) in one.tensors.items()} for one in checkpoints]
    found = common_names(shapes, [one.name for one in checkpoints], expected)
    own_names = [{name: name for name in one} for one in shapes] if inputs.fishers else list(found.own_names)
    bookkeeping = {
        name: None
        for one, of_shapes in zip(own_names, shapes, strict=True)
        for name, own in one.items()
        if is_bookkeeping(name, of_shapes[own])
    }
    dropped = [name for name in bookkeeping if not all(name in one for one in own_names)]
    notes = [] if inputs.fishers else list(found.notes)
    if dropped:
        notes.append(f"{first_names(dropped, _MAX_LISTED)}: bookkeeping that not all models have, left out")
    renamed = [_renamed(one, names, dropped) for one, names in zip(checkpoints, own_names, strict=True)]
    count = len(inputs.models)
    base = None if inputs.base is None else renamed[count]
    return replace(inputs, models=tuple(renamed[:count]), base=base), notes, list(found.problems)


def _renamed(checkpoint: Checkpoint, own_names: dict[str, str], dropped: Collection[str]) -> Checkpoint:
    """Return a checkpoint with other names of its tensors, without some of them."""
    tensors = {name: checkpoint.tensors[own] for name, own in own_names.items() if name not in dropped}
    return replace(checkpoint, tensors=tensors)
