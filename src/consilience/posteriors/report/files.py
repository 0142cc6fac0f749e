"""What the report shows, from a fused file and, where they are given, the files of its sites."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from consilience.core.provenance import file_digest
from consilience.errors import FileFormatError, InputError
from consilience.posteriors.files import read_posterior
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.report.content import Content, content_of
from consilience.posteriors.report.illustration import illustrate
from consilience.posteriors.vocabulary import expand_vocabulary, is_topic_posterior


def content_of_files(fused: Path, sites: Sequence[Path], data: Any = None, truth: Any = None) -> Content:
    """Return what the report shows of a fused file.

    Parameters
    ----------
    fused
        The file that a fusion was saved to.
    sites
        Files of models that it was made from, in any order, not necessarily all; each is known by its SHA-256.
    data, truth
        What to show of the fused model, as in ``models.illustration.illustrate``.

    Raises
    ------
    FileFormatError
        For files that cannot be read, or a first one that no fusion wrote.
    InputError
        Listing the sites that the fused file was not made from, what contradicts itself, and data that do not fit.
    OptionError
        For a truth without data.
    """
    posterior, provenance = read_posterior(fused)
    if provenance is None:
        raise FileFormatError(
            f"{fused}: does not say how it was made, so there is nothing to report; give a fused file"
        )
    records = provenance["inputs"]
    place = {record["sha256"]: i for i, record in enumerate(records) if record.get("sha256") is not None}
    if not records:
        raise FileFormatError(f"{fused}: its provenance names no inputs")
    found: list[Posterior | None] = [None] * len(records)
    given: dict[int, Path] = {}
    problems: list[str] = []
    for site in sites:
        try:
            read, digest = read_posterior(site)[0], file_digest(site)
        except InputError as error:
            problems += error.problems
            continue
        if not place:
            problems.append(
                f"{site}: {fused} was made from models in memory, so no file can be known to be one of them"
            )
        elif digest not in place:
            problems.append(
                f"{site}: is not one of the files that {fused} was made from: none has SHA-256 {digest[:12]}…"
            )
        elif place[digest] in given:
            problems.append(f"{site}: is the same file as {given[place[digest]]}; leave one out")
        else:
            found[place[digest]], given[place[digest]] = _in_words_of(posterior, read), site
    if problems:
        raise InputError(problems)
    shown = illustrate(posterior, data, truth)
    try:
        return content_of(provenance, posterior, found, shown)
    except InputError as error:
        raise FileFormatError([f"{fused}: {problem}" for problem in error.problems]) from error


def _in_words_of(fused: Posterior, site: Posterior) -> Posterior:
    """Return a site's topics over the words of the fused ones, as they were fused."""
    words = fused.features.names
    if (
        not (is_topic_posterior(fused) and is_topic_posterior(site))
        or words is None
        or site.features.names in (None, words)
    ):
        return site
    try:
        return expand_vocabulary(site, words)
    except InputError:  # it was not fused to these words, which is said of its family or is not seen
        return site
