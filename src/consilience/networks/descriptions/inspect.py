"""Inspection of a description's file from its header: what it says of a network's data, and what of people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from consilience.core.inspection import PEOPLE, Row, listed, plain_words
from consilience.core.kind import Inspection
from consilience.drawing.words import format_count
from consilience.files.safetensors_file import SafetensorsFile, TensorHeader
from consilience.networks.descriptions.files import DESCRIPTION_FILES, DescriptionHeader
from consilience.networks.fisher.files import layer_people_rows


def inspect_description(file: SafetensorsFile) -> Inspection:
    """Return the inspection of a description's file, from its header."""
    header, tensors = DESCRIPTION_FILES.read_header(file)
    shapes = tensors.shapes
    sizes = _sizes(tensors)
    people = people_rows(header)
    rows = [
        ("file", str(file)),
        ("format", f"{header.format} {header.format_version} (consilience {header.library_version})"),
        ("network", f"sha256 {header.digest} of its arrays"),
        *_statement_rows(header, shapes),
        ("sizes", ", ".join(f"{what} {size:,} bytes" for what, size in sizes.items()) or "no arrays"),
        *[("note", note) for note in header.notes],
        *people,
    ]
    document = {
        "kind": "description",
        "header": header.model_dump(),
        "shapes": {name: list(shape) for name, shape in shapes.items()},
        "bytes": sizes,
        "people": [text for _, text in people],
    }
    plain = plain_words(
        "what a site says of a network's data: counts, moments and statistics, and no observation",
        header.n_observations,
        "nothing alone: it is used with its network, and with the networks and descriptions of other sites",
        following="send it with its network; `consilience fuse` finds it next to the network's file",
    )
    return Inspection(document, rows, plain)


_CALLED = {
    "inputs": "moments of the inputs",
    "classes": "moments by class",
    "mixtures": "moments of parts of classes",
    "channels": "statistics of channels",
    "tokens": "counts of tokens",
    "class_tokens": "counts of tokens by class",
    "class_features": "features by class",
    "layers": "second moments of layers",
}
"""What the parts of the names of tensors are called."""


def _sizes(tensors: TensorHeader) -> dict[str, int]:
    """Return the bytes of every statement that has arrays."""
    sizes: dict[str, int] = {}
    for name, shape in tensors.shapes.items():
        what = _CALLED[name.partition("/")[0]]
        sizes[what] = sizes.get(what, 0) + prod(shape) * (8 if tensors.dtypes[name] == "int64" else 4)
    return sizes


def _statement_rows(header: DescriptionHeader, shapes: Mapping[str, tuple[int, ...]]) -> list[Row]:
    """Return what a description says, a line for each statement."""
    rank, d = shapes.get("inputs/factor", (0, 0))
    moments = f"mean, variance and {format_count(rank, 'direction')} of {d:,} numbers"
    n_channels, n_layers = sum(shapes[f"channels/{layer}"][1] for layer in header.channels), len(header.channels)
    rows: list[Row | None] = [
        ("observations", f"{header.n_observations:,g}"),
        _input_row(header),
        None if header.inputs is None else ("moments", moments),
        *_class_rows(header),
        None if not header.channels else ("channels", f"{n_channels:,} of {format_count(n_layers, 'layer')}"),
        *_token_rows(header, shapes),
    ]
    if header.own_loss is not None:
        rows.append(("next tokens", f"{header.own_loss:.4g} nats of loss on the site's own texts"))
    if header.whole_columns:
        n_values = sum(shapes[f"whole/{column}"][0] for column in header.whole_columns)
        text = f"{format_count(n_values, 'value')} of {format_count(len(header.whole_columns), 'column')}, counted"
        rows.append(("whole numbers", text))
    if header.has_class_features:
        rows.append(("features", f"means by class of {shapes['class_features'][1]:,}, which the last layer reads"))
    if header.layers:
        text = f"Kronecker factors of {format_count(len(header.layers), 'layer')}, means over"
        rows.append(("layers", f"{text} {header.layer_observations:,g} observations"))
    return [row for row in rows if row is not None]


def _input_row(header: DescriptionHeader) -> Row | None:
    if header.input_shape is None:
        return None
    kind = "tokens" if header.input_kind == "tokens" else "real numbers"
    spread = "" if header.input_range is None else ", from {:.4g} to {:.4g} but for 0.1 %".format(*header.input_range)
    return "inputs", f"{kind} of shape {tuple(header.input_shape)}{spread}"


def _class_rows(header: DescriptionHeader) -> Iterator[Row]:
    """Yield the statements about classes."""
    counts, moments, n_classes = header.class_counts, header.class_moments, len(header.class_numbers)
    if header.classes is not None:
        named = [f"{name} {count:,g}" for name, count in zip(header.classes, counts or (), strict=False)]
        yield "classes", f"{len(header.classes)}: {listed(header.classes if counts is None else named)}"
    if header.withheld:
        yield "withheld", f"of fewer than {header.min_count:g} observations: {listed(header.withheld)}"
    if moments is not None:
        low, high = min(moments.ranks), max(moments.ranks)
        ranks = format_count(high, "direction") if low == high else f"{low} to {high} directions"
        yield "by class", f"moments of {n_classes} class{'es' * (n_classes > 1)}, {ranks}"
    if header.class_mixtures is not None:
        yield "parts", f"moments of {format_count(len(header.class_mixtures.ranks), 'part')} of these classes"
    if header.share_network:
        yield "shared", "the other sites may get the network, where all sites say so"
    if header.own_error is not None:
        yield "errors", f"the network errs on {header.own_error:.1%} of the site's own of these classes"
    for place, one in enumerate(header.output_labels):
        named = [f"{name} {count:,g}" for name, count in zip(one.classes or (), one.counts or (), strict=False)]
        what = f"{one.width} numbers" if one.classes is None else listed(named or one.classes)
        yield f"output {one.name or place}", what if one.own_loss is None else f"{what}; own loss {one.own_loss:.4g}"
    if counts is not None:
        prior = "contain" if header.class_prior == "own" else "do not contain"
        yield "prior", f"the network's probabilities {prior} the frequencies of these classes"


def _token_rows(header: DescriptionHeader, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[Row]:
    """Yield the statements about tokens."""
    if header.tokens is not None:
        n_pairs = shapes["tokens/bigrams"][0]
        yield "tokens", f"vocabulary of {shapes['tokens/unigrams'][0]:,}, {format_count(n_pairs, 'pair')}"
    if header.class_tokens is not None:
        n_classes, n_counts = len(header.class_tokens.numbers), shapes["class_tokens/unigrams"][0]
        yield "tokens by class", f"{format_count(n_counts, 'count')} of {n_classes} class{'es' * (n_classes > 1)}"


def people_rows(header: DescriptionHeader) -> list[Row]:
    """Return what a description tells about people, in plain words."""
    withholds = header.min_count > 0
    least = f"fewer than {header.min_count:g}"
    withheld = f"; of classes of {least} only that they exist" if withholds else ", however few"
    beyond = f", and {header.min_count:g} at least" if withholds else ""
    kept = f"statistics of {least} observations are withheld" if withholds else "no class is withheld for being small"
    by_class, parts = header.class_moments, header.class_mixtures
    fewest, fewest_of_part = (0.0 if one is None else min(one.n_observations) for one in (by_class, parts))
    has_counts, has_means = (
        header.class_counts is not None,
        bool(header.inputs or by_class or header.has_class_features),
    )
    # Whether a row is said, what it is called, and what it tells.
    rows: list[tuple[object, str, str]] = [
        (True, PEOPLE, ""),
        (has_counts, "counts", f"how many observations of each class the site has{withheld}"),
        (not has_counts and header.n_observations, "counts", "how many observations the site has"),
        (
            any(one.counts for one in header.output_labels),
            "counts by output",
            f"how many observations have each class of each output{withheld}",
        ),
        (header.inputs, "mean input", "what the site's inputs look like on average, and how they vary"),
        (
            header.input_range is not None,
            "range",
            f"how far inputs reach, but for the outermost 0.1 % of the observations{beyond}",
        ),
        (
            by_class,
            "mean by class",
            f"what inputs of each class look like on average: of images, a mean image; of {fewest:g} at least",
        ),
        (
            parts,
            "parts of classes",
            f"how inputs of each class fall into groups that are alike, of {fewest_of_part:.3g} at least",
        ),
        (header.has_class_features, "features", "what the network's last layer reads of each class on average"),
        (
            has_means,
            "membership",
            "whoever has an input of many numbers can test whether it was among the observations of a mean",
        ),
        (header.whole_columns, "values", "how many observations have each value of some columns of whole numbers"),
        (header.tokens, "words", "which words, and pairs of words, the site's texts use often"),
        (header.class_tokens, "words by class", "which words the site's texts of each class use often"),
        (header.channels, "channels", "how the network answers on average; nothing of a single input"),
    ]
    return [
        *((title, text) for is_said, title, text in rows if is_said),
        *(layer_people_rows(header.layer_observations, header.min_count) if header.layers else ()),
        ("differences", "two descriptions of one site betray who was added between them: send one per model"),
        ("protection", f"{kept}; no noise is added, so no formal privacy is given"),
    ]
