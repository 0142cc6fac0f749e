"""Content of the report of fused posteriors, read from files: the fused one and those of its sites, where given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from consilience.core.provenance import read_inputs_of
from consilience.errors import FileFormatError, InputError
from consilience.files.safetensors_file import SafetensorsFile
from consilience.posteriors.files import read_posterior
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.report.content import PosteriorContent, content_of
from consilience.posteriors.report.illustration import illustrate
from consilience.posteriors.vocabulary import expand_vocabulary, is_topic_posterior


def content_of_files(
    fused: SafetensorsFile, sites: Sequence[SafetensorsFile], data: Any = None, truth: Any = None
) -> PosteriorContent:
    """Return what the report shows of a fused file.

    Parameters
    ----------
    fused : SafetensorsFile
        The file that a fusion was saved to.
    sites : sequence of SafetensorsFile
        Files of models that it was made from, in any order, not necessarily all; each is known by its SHA-256.
    data, truth : optional
        Data to show the fused model on, and true labels of them, as in
        ``consilience.posteriors.report.illustration.illustrate``. Default: none.

    Raises
    ------
    FileFormatError
        For files that cannot be read, or a first one that no fusion wrote.
    InputError
        Listing the sites that the fused file was not made from, what contradicts itself, and data that do not fit.
    OptionError
        For a truth without data.
    """
    fused_posterior, provenance = read_posterior(fused)
    if provenance is None:
        raise FileFormatError(fused, "does not say how it was made, so there is nothing to report", "give a fused file")
    records = provenance["inputs"]
    if not records:
        raise FileFormatError(fused, "its provenance names no inputs")
    digests = [record.get("sha256") for record in records]
    site_posteriors = read_inputs_of(
        fused, digests, sites, lambda site: _over_fused_words(fused_posterior, read_posterior(site)[0])
    )
    illustration = illustrate(fused_posterior, data, truth)
    try:
        return content_of(provenance, fused_posterior, site_posteriors, illustration)
    except InputError as error:
        raise FileFormatError(problem.about(fused) for problem in error.problems) from error


def _over_fused_words(fused: Posterior, site: Posterior) -> Posterior:
    """Return a site's topics over the words of the fused ones, as they were fused; other posteriors as they are."""
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
