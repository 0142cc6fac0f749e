"""Inspection of posterior files, from headers; of topics, from their counts too."""

from __future__ import annotations

from collections.abc import Mapping

from consilience.core.features import Features
from consilience.core.inspection import Row, listed, people_rows, plain_words
from consilience.core.kind import Inspection
from consilience.core.min_count import MIN_COUNT, MIN_SITES, TWO_SITES, shown_count, shown_text
from consilience.drawing.words import format_count
from consilience.families import Dirichlet
from consilience.files.safetensors_file import SafetensorsFile
from consilience.posteriors.files import PosteriorHeader, ProvenanceHeader, read_posterior, read_summary
from consilience.posteriors.posterior import ORIGIN
from consilience.posteriors.topics.rounded_counts import rounding_of

_OF_WORDS = ("dirichlet", "categorical")
"""Families whose columns may be words."""


def inspect_posterior(file: SafetensorsFile) -> Inspection:
    """Return what the header of a posterior file says, and whether word counts are rounded."""
    summary = read_summary(file)
    shapes = {name: list(shape) for name, shape in summary.shapes.items()}
    header = summary.header
    stated = header.model_dump()
    if header.counts:  # as reports show them; the file has them exactly
        stated["counts"] = [shown_count(count) for count in header.counts]
    document = {"header": stated, "shapes": shapes}
    family = {key: value for key, value in header.family.items() if key != "name"}
    rows = [
        ("file", str(file)),
        ("format", f"{header.format} {header.format_version} (consilience {header.library_version})"),
        ("family", f"{header.family.get('name')} {family}"),
        ("components", str(next(iter(summary.shapes.get("natural", ())), 0))),
        ("model", ", ".join(f"{key} {value}" for key, value in header.source.items()) or "a posterior"),
    ]
    if header.counts:
        smallest, largest = shown_text(min(header.counts)), shown_text(max(header.counts))
        rows.append(("counts", f"smallest {smallest}, largest {largest} observations"))
    names = header.features.names
    if names:
        rows.append(("features", listed(names)))
    rows += [("categories", text) for text in Features(categories=header.features.categories).categories_in_words()]
    rows.append(("tensors", ", ".join(f"{name} {list(shape)}" for name, shape in sorted(summary.shapes.items()))))
    if header.provenance:
        rows += _provenance_rows(header.provenance)
    rows += _people_rows(file, header, summary.shapes)
    return Inspection(document, rows, _in_plain_words(header, summary.shapes))


def _provenance_rows(made: ProvenanceHeader) -> list[Row]:
    """Return how a fused posterior came about: method, verdict, average, and the models that went in."""
    rows: list[Row] = [("fused by", f"{made.method} {made.options} seed {made.seed}")]
    if made.verdict and made.verdict.get("text"):
        rows.append(("verdict", str(made.verdict["text"])))
    average = (made.result or {}).get("average")
    if isinstance(average, Mapping):
        reason = f": {average['reason']}" if average.get("reason") else ""
        rows.append(("average", f"{average.get('name')}{reason}"))
    return rows + [
        ("from", f"{one['name']}: {one['components']} components, sha256 {one.get('sha256')}") for one in made.inputs
    ]


def _in_plain_words(header: PosteriorHeader, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """Return in sentences what a posterior is and what to do with it."""
    components = format_count(next(iter(shapes.get("natural", ())), 0), "component")
    model = header.source.get("kind")
    of = f", of a {model}" if isinstance(model, str) else ""
    made = header.provenance
    whose = "a posterior that a site can send"
    if made is not None:
        whose = f"a fused posterior ({format_count(len(made.inputs), 'model')}, method {made.method})"
    partners = f"posteriors of the family {header.family.get('name')} with the same columns"
    if isinstance(model, str):
        partners += f", and in Python with a fitted {model}"
    total = sum(header.counts) if header.counts else None
    return plain_words(f"{whose}: {components}{of}", total, partners, made is not None)


def _word_counts(file: SafetensorsFile) -> str:
    """Return how exactly a file of topics says how often words are in the texts."""
    posterior, _ = read_posterior(file)
    step = None if posterior.prior is None else rounding_of(posterior.natural, posterior.prior)
    if step is None:
        return "to the last digit: of a word that one text has, how often (`round_counts` rounds them)"
    return f"multiples of {step:g}"


def _people_rows(file: SafetensorsFile, header: PosteriorHeader, shapes: Mapping[str, tuple[int, ...]]) -> list[Row]:
    """Return what a posterior tells about people, in plain words."""
    rows: list[Row] = []
    names = header.features.names
    if header.family.get("name") in _OF_WORDS and names:
        rows.append(
            ("words", "the vocabulary, names of people among it if texts had them, and how often topics use it")
        )
        if header.family.get("name") == Dirichlet.name:
            rows.append(("word counts", _word_counts(file)))
    else:
        rows.append(("components", "of each, the mean of its observations and how they vary: of one, that observation"))
    if header.counts or "counts" in shapes:
        rows.append(("counts", "how many observations each component has, in the file to the last digit"))
    if "weights" in shapes:
        rows.append(("weights", "which share of the observations each component has"))
    attached = sorted(name for name in shapes if name.startswith("attached") and name != f"attached.{ORIGIN}")
    if attached:
        rows.append(("sums", f"over all observations of a component: {listed(attached)}"))
    if header.provenance is not None:
        rows.append(
            ("sites", "their names, how many components each has, and digests, which confirm a guess of a file")
        )
        if len(header.provenance.inputs) == MIN_SITES - 1:
            rows.append(("two sites", TWO_SITES))
    smallest = min(header.counts) if header.counts else None
    if smallest is None:
        protection = "how few observations a component has is not said"
    elif smallest < MIN_COUNT:
        protection = f"components of fewer than {MIN_COUNT:g} observations are in it (min_count was smaller)"
    else:
        protection = f"no component has fewer than {MIN_COUNT:g} observations"
    return people_rows(rows, protection)
