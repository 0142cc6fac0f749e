"""Inspection of a description's file from its header: what it says of a network's data, and what of people."""

from __future__ import annotations

from math import prod

from consilience.core.inspection import PEOPLE, Row, listed, plain_words
from consilience.core.kind import Inspection
from consilience.drawing.words import format_count
from consilience.files.safetensors_file import SafetensorsFile
from consilience.networks.descriptions.files import WHOLE_NUMBERS, DescriptionHeader, read_description_header
from consilience.networks.fisher.files import layer_people_rows


def inspect_description(file: SafetensorsFile) -> Inspection:
    """Return the inspection of a description's file, from its header."""
    header = read_description_header(file)
    shapes = dict(file.header().shapes)
    sizes = _sizes(shapes)
    people = people_rows(header, has_features="class_features" in shapes)
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
        "nothing alone: it goes beside its network, with the networks and descriptions of other sites",
        following="send it with its network; `consilience fuse` finds it beside the network's file",
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


def _sizes(shapes: dict[str, tuple[int, ...]]) -> dict[str, int]:
    """Return the bytes of every statement that has arrays."""
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        what = _CALLED[name.partition("/")[0]]
        sizes[what] = sizes.get(what, 0) + prod(shape) * (8 if name in WHOLE_NUMBERS else 4)
    return sizes


def _statement_rows(header: DescriptionHeader, shapes: dict[str, tuple[int, ...]]) -> list[Row]:
    """Return what a description says, a line for each statement."""
    rows: list[Row] = [("observations", f"{header.n_observations:,g}")]
    if header.input_shape is not None:
        kind = "tokens" if header.input_kind == "tokens" else "real numbers"
        spread = (
            "" if header.input_range is None else ", from {:.4g} to {:.4g} but for 0.1 %".format(*header.input_range)
        )
        rows.append(("inputs", f"{kind} of shape {tuple(header.input_shape)}{spread}"))
    if header.inputs_n_observations is not None:
        rank, d = shapes["inputs/factor"]
        rows.append(("moments", f"mean, variance and {format_count(rank, 'direction')} of {d:,} numbers"))
    if header.classes is not None:
        counts = header.class_counts
        texts = (
            header.classes
            if counts is None
            else [f"{name} {count:,g}" for name, count in zip(header.classes, counts, strict=False)]
        )
        rows.append(("classes", f"{len(header.classes)}: {listed(texts)}"))
    if header.withheld:
        rows.append(("withheld", f"of fewer than {header.min_count:g} observations: {listed(header.withheld)}"))
    if header.class_numbers:
        n_classes = len(header.class_numbers)
        low, high = min(header.class_ranks), max(header.class_ranks)
        ranks = format_count(high, "direction") if low == high else f"{low} to {high} directions"
        rows.append(("by class", f"moments of {n_classes} class{'es' * (n_classes > 1)}, {ranks}"))
    if header.mixture_sizes:
        n_parts = len(header.mixture_n_observations)
        rows.append(("parts", f"moments of {format_count(n_parts, 'part')} of these classes"))
    if header.own_error is not None:
        rows.append(("errors", f"the network errs on {header.own_error:.1%} of the site's own of these classes"))
    if header.class_counts is not None:
        prior = "contain" if header.class_prior == "own" else "do not contain"
        rows.append(("prior", f"the network's probabilities {prior} the frequencies of these classes"))
    if header.channels:
        n_channels = sum(shapes[f"channels/{layer}"][1] for layer in header.channels)
        rows.append(("channels", f"{n_channels:,} of {format_count(len(header.channels), 'layer')}"))
    if "tokens/unigrams" in shapes:
        n_pairs = shapes["tokens/bigrams"][0]
        rows.append(("tokens", f"vocabulary of {shapes['tokens/unigrams'][0]:,}, {format_count(n_pairs, 'pair')}"))
    if header.class_token_numbers:
        n_classes, n_counts = len(header.class_token_numbers), shapes["class_tokens/unigrams"][0]
        text = f"{format_count(n_counts, 'count')} of {n_classes} class{'es' * (n_classes > 1)}"
        rows.append(("tokens by class", text))
    if "class_features" in shapes:
        rows.append(("features", f"means by class of {shapes['class_features'][1]:,}, which the last layer reads"))
    if header.layers:
        rows.append(
            (
                "layers",
                f"Kronecker factors of {format_count(len(header.layers), 'layer')}, means over "
                f"{header.layer_observations:,g} observations",
            )
        )
    return rows


def people_rows(header: DescriptionHeader, *, has_features: bool) -> list[Row]:
    """Return what a description tells about people, in plain words."""
    withholds = header.min_count > 0
    least = f"fewer than {header.min_count:g}"
    rows = [(PEOPLE, "")]
    if header.class_counts is not None:
        withheld = f"; of classes of {least} only that they exist" if withholds else ", however few"
        rows.append(("counts", f"how many observations of each class the site has{withheld}"))
    elif header.n_observations:
        rows.append(("counts", "how many observations the site has"))
    if header.inputs_n_observations is not None:
        rows.append(("mean input", "what the site's inputs look like on average, and how they vary"))
    if header.input_range is not None:
        beyond = f", and {header.min_count:g} at least" if withholds else ""
        rows.append(("range", f"how far inputs reach, but for the outermost 0.1 % of the observations{beyond}"))
    if header.class_numbers:
        few = min(header.class_n_observations)
        rows.append(
            (
                "mean by class",
                f"what inputs of each class look like on average: of images, a mean image; of {few:g} at least",
            )
        )
    if header.mixture_sizes:
        few = min(header.mixture_n_observations)
        rows.append(
            ("parts of classes", f"how inputs of each class fall into groups that are alike, of {few:.3g} at least")
        )
    if has_features:
        rows.append(("features", "what the network's last layer reads of each class on average"))
    if header.inputs_n_observations is not None or header.class_numbers or has_features:
        rows.append(
            (
                "membership",
                "whoever has an input of many numbers can test whether it was among the observations of a mean",
            )
        )
    if header.n_rare_tokens is not None:
        rows.append(("words", "which words, and pairs of words, the site's texts use often"))
    if header.class_token_numbers:
        rows.append(("words by class", "which words the site's texts of each class use often"))
    if header.channels:
        rows.append(("channels", "how the network answers on average; nothing of a single input"))
    if header.layers:
        rows += layer_people_rows(header.layer_observations, header.min_count)
    rows.append(("differences", "two descriptions of one site betray who was added between them: send one per model"))
    kept = f"statistics of {least} observations are withheld" if withholds else "no class is withheld for being small"
    rows.append(("protection", f"{kept}; no noise is added, so no formal privacy is given"))
    return rows
