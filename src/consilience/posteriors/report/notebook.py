"""What a notebook shows of fused posteriors below the verdict: blocks of the report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from consilience.drawing.blocks import Block, Figure, Table
from consilience.posteriors.report import sections
from consilience.posteriors.report.content import content_of

_SECTIONS = (sections.who_is_who, sections.the_components)


def notebook_blocks(fusion: Any) -> Iterator[Block]:
    """Yield the figures and tables of the matching and of the components.

    Parameters
    ----------
    fusion : PosteriorFusion
        The fusion; of shards, whose sites are not at hand, nothing is shown.
    """
    if not fusion.inputs:
        return
    by_name = {site.name: site.value for site in fusion.inputs}
    posteriors = [by_name.get(record["name"]) for record in fusion.record["inputs"]]
    content = content_of(fusion.record, fusion.posterior, posteriors)
    for section in _SECTIONS:
        yield from (block for block in section(content).blocks if isinstance(block, Figure | Table))
