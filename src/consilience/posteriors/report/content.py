"""Everything the report shows, as plain values: from a fused posterior, its provenance, and the sites' posteriors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.drawing.words import natural_key, short_names
from consilience.errors import InputError
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.report.details import Findings, findings_of
from consilience.posteriors.report.gaussian_processes import Process, process_of
from consilience.posteriors.report.hidden_markov import Chain, chain_of
from consilience.posteriors.report.illustration import Illustration
from consilience.posteriors.report.members import Component, Site, components_of, labels_of, site_of
from consilience.posteriors.report.planar_components import Plane, plane_of
from consilience.posteriors.topics.gaussian_topics import KIND as GAUSSIAN_TOPICS


@dataclass(frozen=True)
class Content:
    """Everything the report shows; see ``content_of``.

    Parameters
    ----------
    n_known
        Number of sites whose posterior is known.
    chain, process
        What is shown of a hidden Markov model and of a sparse Gaussian process.
    embeddings
        The space that Gaussian topics lie in, empty where they do not say; None for other models.
    """

    family: str
    method: str
    options: tuple[tuple[str, Any], ...]
    seed: int | None
    versions: tuple[tuple[str, str], ...]
    sites: tuple[Site, ...]
    components: tuple[Component, ...]
    findings: Findings
    plane: Plane | None
    n_known: int
    chain: Chain | None
    process: Process | None
    embeddings: str | None

    @property
    def n_local(self) -> int:
        """Number L of local components."""
        return sum(site.components for site in self.sites)

    @property
    def matched(self) -> bool:
        """Whether it is known who is who."""
        return all(site.labels is not None for site in self.sites)


def content_of(
    provenance: Mapping[str, Any],
    fused: Posterior,
    posteriors: Sequence[Posterior | None],
    shown: Illustration | None = None,
) -> Content:
    """Return what the report shows.

    Parameters
    ----------
    provenance
        As ``io.provenance.make_provenance`` returns it.
    fused
        The fused posterior.
    posteriors
        That of each input of the provenance, in its order; None where it is not known.
    shown
        What data show of the fused model.

    Raises
    ------
    InputError
        Listing where the provenance contradicts itself or the posteriors.
    """
    records = provenance["inputs"]
    problems = [
        f"its provenance says of {record['name']!r} {text}"
        for record, posterior in zip(records, posteriors, strict=True)
        for text in _contradictions(record, posterior, fused)
    ]
    if problems:
        raise InputError(problems)
    findings = findings_of(provenance["result"])
    short = short_names([record["name"] for record in records])
    order = sorted(
        range(len(records)), key=lambda i: (natural_key(records[i]["name"]), str(records[i].get("sha256", "")))
    )
    why: dict[str, str] = {}
    for name, reason in findings.outliers:
        why[name] = f"{why[name]}; {reason}" if name in why else reason
    sites = [site_of(records[i], short[i], posteriors[i], why.get(records[i]["name"])) for i in order]
    known = [(sites[place], posterior) for place, i in enumerate(order) if (posterior := posteriors[i]) is not None]
    labels = np.concatenate([np.zeros(0, dtype=np.int64), *(labels_of(site) for site, _ in known)])
    local = np.concatenate([np.zeros((0, fused.family.size)), *(posterior.natural for _, posterior in known)])
    shown = Illustration() if shown is None else shown
    process = process_of(fused, [(site.name, posterior) for site, posterior in known], shown.rows)
    return Content(
        family=fused.family.name,
        method=provenance["method"],
        options=tuple(sorted(provenance["options"].items())),
        seed=provenance["seed"],
        versions=tuple(sorted(provenance["versions"].items())),
        sites=tuple(sites),
        components=components_of(fused, sites, local, labels),
        findings=findings,
        plane=plane_of(fused, local, labels) if process is None else None,
        n_known=len(known),
        chain=chain_of(fused, shown.sequences),
        process=process,
        embeddings=str(fused.source.get("space") or "") if fused.source.get("kind") == GAUSSIAN_TOPICS else None,
    )


def _contradictions(record: Mapping[str, Any], posterior: Posterior | None, fused: Posterior) -> list[str]:
    """Return what cannot be true of one input."""
    count, labels, confidence = record["components"], record.get("labels"), record.get("confidence")
    found = []
    if count < 1:
        found.append(f"that it has {count} components")
    for what, values in (("labels", labels), ("confidences", confidence)):
        if values is not None and len(values) != count:
            found.append(f"{len(values)} {what} for {count} components")
    if labels and not -1 <= min(labels) <= max(labels) < fused.n_components:
        found.append(f"labels {min(labels)} to {max(labels)} for {fused.n_components} fused components")
    if posterior is not None and posterior.family != fused.family:
        found.append(f"that it was fused to {fused.family}, but it is {posterior.family}")
    elif posterior is not None and posterior.n_components != count:
        found.append(f"that it has {count} components, but it has {posterior.n_components}")
    return found
