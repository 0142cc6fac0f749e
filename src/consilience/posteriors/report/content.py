"""Content of the report of fused posteriors, as plain values.

It is computed from a fused posterior, its provenance, and the posteriors of the sites as far as they are known. A
provenance may come from a file of somebody else: what contradicts itself or the posteriors is an `InputError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from consilience.checks import Json
from consilience.core.findings import Findings, VerdictSummary, findings_of, verdict_of
from consilience.core.provenance import read_inputs_of
from consilience.drawing.words import natural_key, short_names
from consilience.errors import FileFormatError, InputError
from consilience.files.safetensors_file import SafetensorsFile
from consilience.posteriors.details import PosteriorDetails
from consilience.posteriors.files import read_posterior
from consilience.posteriors.methods import METHODS
from consilience.posteriors.origin import about
from consilience.posteriors.posterior import ORIGIN, Posterior
from consilience.posteriors.report.gaussian_processes import ProcessContent, process_of
from consilience.posteriors.report.hidden_markov import ChainContent, chain_of
from consilience.posteriors.report.illustration import Illustration, illustrate
from consilience.posteriors.report.members import ComponentSummary, SiteSummary, components_of, labels_of, site_of
from consilience.posteriors.report.planar_components import ComponentPlane, plane_of
from consilience.posteriors.summary import ComponentMoments, feature_moments, notes_of
from consilience.posteriors.topics.gaussian_topics import KIND as GAUSSIAN_TOPICS
from consilience.posteriors.vocabulary import expand_vocabulary, is_topic_posterior


@dataclass(frozen=True)
class PosteriorContent:
    """Everything the report shows; see ``content_of``."""

    family: str  # name of the exponential family of the components
    describes_data: bool  # whether components are laws of data; else of parameters, such as a cluster's centre
    method: str
    options: tuple[tuple[str, Any], ...]  # of the method, by name
    seed: int | None  # None where the fusion was given a generator
    versions: tuple[tuple[str, str], ...]  # of libraries, by name
    sites: tuple[SiteSummary, ...]  # in the natural order of their names
    components: tuple[ComponentSummary, ...]
    verdict: VerdictSummary | None  # None where the file does not state one
    notes: tuple[str, ...]  # on single models: what was left out and why, and who is far apart
    moments: ComponentMoments | None  # in the units of the features; None for components without a place
    findings: Findings
    plane: ComponentPlane | None  # None for families without locations and for processes
    n_known_sites: int  # those whose posterior is known
    chain: ChainContent | None  # of a hidden Markov model; None for other models
    process: ProcessContent | None  # of a sparse Gaussian process; None for other models
    embedding_space: str | None  # that Gaussian topics lie in, empty where they do not say; None for other models
    categories: tuple[str, ...] = ()  # of each column that is categorical, in a line for each

    @property
    def n_local(self) -> int:
        """Number L of local components."""
        return sum(site.components for site in self.sites)

    @property
    def is_matched(self) -> bool:
        """Whether the fused component of every local one is known."""
        return all(site.labels is not None for site in self.sites)

    @property
    def has_confidence(self) -> bool:
        """Whether the confidence of any match is known."""
        return any(component.confidence is not None for component in self.components)

    @property
    def has_entropy(self) -> bool:
        """Whether any fused component has an entropy."""
        return any(component.entropy is not None for component in self.components)

    @property
    def keeps_models(self) -> bool:
        """Whether the fused model asks every site's model by itself."""
        return any(kind.keeps_models for kind in METHODS if kind.name == self.method)


def content_of(
    provenance: Mapping[str, Any],
    fused: Posterior,
    posteriors: Sequence[Posterior | None],
    illustration: Illustration | None = None,
) -> PosteriorContent:
    """Return what the report shows, or raise with what contradicts itself or the posteriors in the provenance.

    The provenance has method, options, seed, inputs, result and versions, as ``core.provenance`` writes them.
    Posteriors are those of its inputs, in their order, None where one is not known.
    """
    records = provenance["inputs"]
    _refuse_contradictions(records, posteriors, fused)
    findings = findings_of(provenance["result"])
    names = short_names([record["name"] for record in records])
    keys = [(natural_key(record["name"]), str(record.get("sha256", ""))) for record in records]
    site_order = sorted(range(len(records)), key=keys.__getitem__)
    outlier_reasons = _reasons_by_name(findings)
    sites = [site_of(records[i], names[i], posteriors[i], outlier_reasons.get(records[i]["name"])) for i in site_order]
    given = zip(sites, (posteriors[i] for i in site_order), strict=True)
    described = [(site, posterior) for site, posterior in given if posterior is not None]
    # (L,) and (L, P) of the sites whose posteriors are known; the empty first part gives the dtype where none is.
    local_labels = np.concatenate([np.zeros(0, dtype=np.int64), *(labels_of(site) for site, _ in described)])
    local_natural = np.concatenate([np.zeros((0, fused.family.size)), *(one.natural for _, one in described)])
    illustration = Illustration() if illustration is None else illustration
    process = process_of(fused, [(site.name, posterior) for site, posterior in described], illustration.rows)
    return PosteriorContent(
        family=fused.family.name,
        describes_data=fused.family.describes_data,
        method=provenance["method"],
        options=tuple(sorted(provenance["options"].items())),
        seed=provenance["seed"],
        versions=tuple(sorted(provenance["versions"].items())),
        sites=tuple(sites),
        components=components_of(fused, sites, local_natural, local_labels),
        verdict=verdict_of(provenance.get("verdict")),
        notes=_notes(provenance["result"]),
        moments=feature_moments(fused) if process is None else None,
        findings=findings,
        plane=plane_of(fused, local_natural, local_labels) if process is None else None,
        n_known_sites=len(described),
        chain=chain_of(fused, illustration.sequences),
        process=process,
        categories=fused.features.categories_in_words(),
        embedding_space=str(fused.source.get("space") or "") if fused.source.get("kind") == GAUSSIAN_TOPICS else None,
    )


def _reasons_by_name(findings: Findings) -> dict[str, str]:
    """Return why sites are outliers, all reasons of one site in one text."""
    reasons: dict[str, str] = {}
    for name, reason in findings.outliers:
        reasons[name] = f"{reasons[name]}; {reason}" if name in reasons else reason
    return reasons


def _notes(result: Mapping[str, Json]) -> tuple[str, ...]:
    """Return notes on single models; none where the result, which may be somebody else's, is of another form."""
    try:
        return tuple(notes_of(cast(PosteriorDetails, result)))
    except (TypeError, KeyError, AttributeError, ValueError):
        return ()


def _refuse_contradictions(
    records: Sequence[Mapping[str, Any]], posteriors: Sequence[Posterior | None], fused: Posterior
) -> None:
    """Raise InputError where the provenance contradicts itself or the posteriors."""
    problems = [
        f"its provenance says of {record['name']!r} {text}"
        for record, posterior in zip(records, posteriors, strict=True)
        for text in _contradictions(record, posterior, fused)
    ]
    if problems:
        raise InputError(problems)


def _contradictions(record: Mapping[str, Any], posterior: Posterior | None, fused: Posterior) -> list[str]:
    """Return what cannot be true of one input."""
    count, labels, confidence = record["components"], record.get("labels"), record.get("confidence")
    problems = []
    if count < 1:
        problems.append(f"that it has {count} components")
    for noun, values in (("labels", labels), ("confidences", confidence)):
        if values is not None and len(values) != count:
            problems.append(f"{len(values)} {noun} for {count} components")
    if labels and not -1 <= min(labels) <= max(labels) < fused.n_components:
        problems.append(f"labels {min(labels)} to {max(labels)} for {fused.n_components} fused components")
    if posterior is not None and posterior.family != fused.family:
        problems.append(f"that it was fused to {fused.family}, but it is {posterior.family}")
    elif posterior is not None and posterior.n_components != count:
        problems.append(f"that it has {count} components, but it has {posterior.n_components}")
    return problems


def content_of_files(
    fused: SafetensorsFile, sites: Sequence[SafetensorsFile], data: Any = None, truth: Any = None
) -> PosteriorContent:
    """Return what the report shows of a file that a fusion wrote.

    Sites are files of models that it was made from, in any order, not necessarily all; each is known by its SHA-256,
    and all that it was not made from are listed in one error. Data to show the fused model on, and their truth, are as
    in ``illustration.illustrate``.
    """
    fused_posterior, provenance = read_posterior(fused)
    if provenance is None:
        raise FileFormatError(fused, "does not say how it was made, so there is nothing to report", "give a fused file")
    records = provenance["inputs"]
    if not records:
        raise FileFormatError(fused, "its provenance names no inputs")
    digests = [record.get("sha256") for record in records]
    site_posteriors = read_inputs_of(
        fused, digests, sites, lambda site: _as_fused(fused_posterior, read_posterior(site)[0])
    )
    illustration = illustrate(fused_posterior, data, truth)
    try:
        return content_of(provenance, fused_posterior, site_posteriors, illustration)
    except InputError as error:
        raise FileFormatError(problem.about(fused) for problem in error.problems) from error


def _as_fused(fused: Posterior, site: Posterior) -> Posterior:
    """Return a site's posterior as it was fused: topics over the fused words, components about the fused origin."""
    if ORIGIN in fused.attached and fused.family == site.family:
        return about(site, fused.attached[ORIGIN].values)
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
