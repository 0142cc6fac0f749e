"""Sections of the page about fused Bayesian networks, beside those of networks."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from markupsafe import Markup

from consilience.bayesian.report.charts import MAX_MODELS, class_entropy_figure, reliability_figure
from consilience.bayesian.report.content import (
    MAX_SHARE_COLUMNS,
    BayesianContent,
    Gallery,
    GaussianLayer,
    ReferenceDistances,
)
from consilience.bayesian.report.images import picture_row
from consilience.drawing.blocks import (
    Block,
    BlockGroup,
    Column,
    Figure,
    Heading,
    Paragraph,
    Section,
    Table,
    markup,
    sentences,
    text_column,
)
from consilience.drawing.words import format_count, shorten
from consilience.networks.report.sections import line_chip
from consilience.posteriors.report.shared_blocks import strong


def what_it_predicts(content: BayesianContent) -> Section | None:
    """Return the scores of predictive probabilities."""
    predictions = content.predictions
    if not predictions:
        return None
    has_outside = bool(content.outside)
    rows = [(index, name, scores) for index, (name, scores) in enumerate(predictions.items())]
    columns = [
        text_column("Network", lambda row: markup("{}{}", line_chip(row[0], MAX_MODELS), shorten(row[1]))),
        Column("Accuracy, %", lambda row: 100 * row[2].accuracy, digits=2),
        Column("Log likelihood", lambda row: row[2].log_likelihood, digits=3),
        Column("Entropy", lambda row: row[2].entropy, digits=3),
        Column("Calibration", lambda row: row[2].calibration_error, digits=3),
        Column("Brier", lambda row: row[2].brier, digits=3),
        Column("Outside", lambda row: row[2].outside and row[2].outside.entropy, digits=3) if has_outside else None,
        Column("AUROC", lambda row: row[2].outside and row[2].outside.auroc, digits=3) if has_outside else None,
    ]
    table = Table("Table of predictive scores", rows, columns, "network", _scores_caption(content))
    drawn = f"The first {MAX_MODELS} of {len(predictions)} networks are drawn." if len(predictions) > MAX_MODELS else ""
    caption = sentences(
        "How often the most probable class is right, against its probability, in bins of equal width. Below the "
        "dashed line a network is surer than it should be, above it less sure.",
        drawn,
    )
    blocks: list[Block] = [table, Figure(reliability_figure(predictions), "Reliability curves", caption)]
    for outside, where, what in (
        (
            False,
            "inside",
            "Dots: mean entropy of the inputs of each class, minus that network’s mean of all; strokes: from the "
            "lower to the upper quartile. Colours as in the table.",
        ),
        (
            True,
            "outside",
            "The same of inputs from outside the training distribution, on the same scale: well above zero, a network "
            "knows that it has not met them.",
        ),
    ):
        if (drawing := class_entropy_figure(predictions, outside)) is not None:
            blocks.append(Figure(drawing, f"Entropies by class of inputs {where}", what))
    return Section("predictions", "What it predicts", blocks)


def _scores_caption(content: BayesianContent) -> Markup:
    inputs = ""
    if content.inputs is not None:
        beside = f", and {content.inputs_outside:,} outside" if content.inputs_outside is not None else ""
        inputs = f"Of {format_count(content.inputs, 'input')}{beside}."
    return sentences(
        inputs,
        "Probabilities are means over samples of the weights. Log likelihood: mean of the logarithm of the true "
        "class’s probability, nats, 0 at best. Entropy: mean uncertainty of the probabilities, nats. Calibration: "
        "expected calibration error, 0 for confidence that is as often right as it says. Brier: mean squared distance "
        "of the probabilities from the truth.",
        content.outside
        and "Outside: mean entropy of inputs from outside the training distribution; AUROC says how well entropy "
        "tells them from those inside, 1 perfectly and 0.5 not at all.",
    )


def what_it_is_sure_of(content: BayesianContent) -> Section:
    """Return the images that networks are most and least certain of."""
    warning = sentences(strong("These are images of the data."), "Keep this page where the data may be seen.")
    blocks: list[Block] = [Paragraph(warning, "status act")] if content.galleries else []
    for gallery in content.galleries:
        blocks += [Heading(shorten(gallery.model)), _pictures(gallery)]
    return Section("images", "What it is sure of, and what not", blocks, "What it is sure of")


def _pictures(gallery: Gallery) -> BlockGroup:
    name, n_most = shorten(gallery.model, 40), len(gallery.most)
    images = format_count(gallery.images, "image")
    sure = Figure(
        picture_row(gallery.most, "Most certain"),
        f"Images that {name} is most certain of",
        f"The {n_most} of {images} with the least entropy: predicted class, and entropy in nats.",
    )
    unsure = Figure(
        picture_row(gallery.least, "Least certain"),
        f"Images that {name} is least certain of",
        "Those with the largest, the least certain first.",
    )
    return BlockGroup([sure, unsure], "pictures")


def how_many_sites_have_a_unit(content: BayesianContent) -> Section | None:
    """Return the numbers of units by how many sites have them."""
    if content.all_shared:
        return None

    def count(number: int) -> Column:
        is_rest = number == MAX_SHARE_COLUMNS and len(content.sharing[0].by_sites) > MAX_SHARE_COLUMNS
        title = f"{number} or more" if is_rest else format_count(number, "site")
        return Column(title, lambda sharing: sharing.columns[number - 1])

    columns = [
        text_column("Group", attrgetter("group"), limit=40),
        Column("Fused", attrgetter("units")),
        *(count(number) for number in range(1, len(content.sharing[0].columns) + 1)),
    ]
    caption = (
        "Fused units by the number of sites of which a unit became it. What only some have came from their weights "
        "alone."
    )
    table = Table("Table of how many sites have a unit", content.sharing, columns, "group", caption)
    return Section("shared", "How many sites have a unit", [table])


def how_far_apart_posteriors_are(content: BayesianContent) -> Section:
    """Return the distances of means and deviations by layer, and of the posteriors from the reference's."""
    blocks = [
        _layers(content.gaussian_layers) if content.gaussian_layers else None,
        None if content.distances is None else _reference_distances(content.distances),
    ]
    link = "How far apart posteriors are"
    return Section("posteriors", "How far apart the posteriors are", [block for block in blocks if block], link)


def _layers(layers: Sequence[GaussianLayer]) -> Table:
    has_before = any(layer.means_before is not None for layer in layers)
    has_after = any(layer.means_after is not None for layer in layers)

    def pair(what: str) -> list[Column | None]:
        before, after = attrgetter(f"{what.lower()}_before"), attrgetter(f"{what.lower()}_after")
        return [
            Column(f"{what} before" if has_after else what, before, digits=3) if has_before else None,
            Column("After" if has_before else what, after, digits=3) if has_after else None,
        ]

    columns = [
        text_column("Layer", attrgetter("name"), limit=40),
        Column("Parameters", attrgetter("parameters")),
        *pair("Means"),
        *pair("Deviations"),
    ]
    when = ", as the sites are."
    if has_after:
        when = ": as the sites are, and with their units matched." if has_before else ", with units matched."
    caption = (
        "By layer, the weighted mean squared distance of the sites’ means and of their standard deviations from their "
        f"average, each as a share of its mean square{when}"
    )
    return Table("Table of layers", layers, columns, "layer", caption)


def _reference_distances(distances: ReferenceDistances) -> Table:
    before, after = distances.totals
    columns = [
        text_column("Parameter", lambda row: row[0], limit=40, total="All"),
        Column("Before alignment", lambda row: row[1], total=before),
        Column("After", lambda row: row[2], total=after),
    ]
    metric = shorten(distances.metric, 80)
    caption = f"Distance of the other posteriors from the reference’s, summed over them: {metric}."
    return Table("Table of distances from the reference", distances.rows, columns, "parameter", caption, "narrow")
