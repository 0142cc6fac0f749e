"""Sections of the page about fused Bayesian networks, in addition to those of networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

from markupsafe import Markup

from consilience.drawing.axes import HALF_WIDTH, Axes, line_kind
from consilience.drawing.blocks import Block, Column, Figure, Section, Table, markup, sentences, text_column
from consilience.drawing.svg import colour_class, line
from consilience.drawing.words import format_count, format_fixed, shorten, with_minus_sign
from consilience.networks.gaussian.predictive import ClassEntropy, PredictiveScores
from consilience.networks.gaussian.report.content import MAX_SHARE_COLUMNS, BayesianContent, ReferenceDistances
from consilience.networks.report.quality import LayerSummary
from consilience.networks.report.sections import line_chip


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
        outside = f", and {content.inputs_outside:,} outside" if content.inputs_outside is not None else ""
        inputs = f"Of {format_count(content.inputs, 'input')}{outside}."
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


def _layers(layers: Sequence[tuple[LayerSummary, LayerSummary]]) -> Table:
    has_before = any(means.before is not None for means, _ in layers)

    def pair(what: str, place: int) -> list[Column | None]:
        return [
            Column(f"{what} before", lambda layer: layer[place].before, digits=3) if has_before else None,
            Column("After" if has_before else what, lambda layer: layer[place].after, digits=3),
        ]

    columns = [
        text_column("Layer", lambda layer: layer[0].name, limit=40),
        Column("Parameters", lambda layer: layer[0].entries),
        *pair("Means", 0),
        *pair("Deviations", 1),
    ]
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


MAX_MODELS = 10
"""Models beyond these are not drawn: report.css has ten colours."""

MAX_CLASSES = 20
"""Classes beyond these are not drawn. Chosen by eye, for the width of the page."""


def reliability_figure(predictions: Mapping[str, PredictiveScores]) -> Markup:
    """Return reliability curves: the accuracy of each bin against its confidence; on the diagonal they agree."""
    drawn = dict(list(predictions.items())[:MAX_MODELS])
    axes = Axes.over((0.0, 1.0), (0.0, 1.0), 270.0, HALF_WIDTH, inset=(0.0, 4.0))
    parts = axes.names("confidence", "accuracy") + axes.y_ticks() + axes.x_ticks(grid=False)
    parts.append(line(axes.x(0.0), axes.y(0.0), axes.x(1.0), axes.y(1.0), "honest"))
    for index, scores in enumerate(drawn.values()):
        points = [(one_bin.confidence, one_bin.accuracy) for one_bin in scores.reliability]
        parts += [axes.curve(points, line_kind(index)), *axes.dots(points, 2.5, f"spot {colour_class(index)}")]
    descriptions = [
        f"{shorten(name, 40)}: error {format_fixed(scores.calibration_error, 3)}" for name, scores in drawn.items()
    ]
    alt = f"Accuracy against confidence of {format_count(len(drawn), 'model')}, with the calibration error. "
    alt += f"{'; '.join(descriptions)}."
    return axes.drawing(parts + axes.legend(drawn), alt, len(drawn))


def class_entropy_figure(predictions: Mapping[str, PredictiveScores], outside: bool) -> Markup | None:
    """Return the entropies of every class, minus the mean of all inputs inside: means, and quartiles as strokes.

    None where no model has such entropies. `outside`: of inputs from outside the training distribution, those without
    classes all together.
    """
    drawn = {
        name: (scores, entropies)
        for name, scores in list(predictions.items())[:MAX_MODELS]
        if (entropies := _class_entropies_of(scores, outside)) is not None and entropies
    }
    if not drawn:
        return None
    low, high = _entropy_range([*predictions.values()][:MAX_MODELS])
    classes = sorted({entropy.label for _, entropies in drawn.values() for entropy in entropies})[:MAX_CLASSES]
    axes = Axes.over((0.0, float(len(classes))), (low, high), 200.0, margins=(62.0, 10.0), inset=(0.0, 4.0))
    region = "outside" if outside else "inside"
    parts = axes.names("class", f"entropy minus the mean inside, nats: inputs {region}") + axes.y_ticks()
    if low < 0 < high:
        parts.append(line(axes.left, axes.y(0.0), axes.right, axes.y(0.0), "honest"))
    class_middles = {label: position + 0.5 for position, label in enumerate(classes)}
    parts += axes.x_labels(class_middles.values(), map(str, classes))
    step = min(14.0 / axes.x.factor, 0.8 / len(drawn))  # between models, in classes
    for index, (name, (scores, entropies)) in enumerate(drawn.items()):
        colour = colour_class(list(predictions).index(name))
        for entropy in entropies:
            if entropy.label in class_middles:
                x = class_middles[entropy.label] + step * (index - 0.5 * (len(drawn) - 1))
                lower, upper = (axes.y(value - scores.entropy) for value in (entropy.lower, entropy.upper))
                parts.append(line(axes.x(x), lower, axes.x(x), upper, f"range {colour}"))
                parts += axes.dots([(x, entropy.mean - scores.entropy)], 3.5, f"spot {colour}")
    return axes.drawing(parts, _entropies_alt(drawn, region))


def _class_entropies_of(scores: PredictiveScores, outside: bool) -> Sequence[ClassEntropy] | None:
    if not outside:
        return scores.class_entropies
    return None if scores.outside is None else scores.outside.class_entropies


def _entropy_range(predictions: Sequence[PredictiveScores]) -> tuple[float, float]:
    """Return the range of all that is drawn, inside and outside, so that the two figures can be compared."""
    values = [
        value - scores.entropy
        for scores in predictions
        for outside in (False, True)
        for entropy in _class_entropies_of(scores, outside) or ()
        for value in (entropy.lower, entropy.mean, entropy.upper)
    ]
    low, high = min(0.0, *values), max(0.0, *values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _entropies_alt(drawn: Mapping[str, tuple[PredictiveScores, Sequence[ClassEntropy]]], region: str) -> str:
    descriptions = []
    for name, (scores, entropies) in drawn.items():
        least, most = (choose(entropies, key=lambda entropy: entropy.mean) for choose in (min, max))
        low, high = (with_minus_sign(format_fixed(side.mean - scores.entropy, 2)) for side in (least, most))
        descriptions.append(f"{shorten(name, 40)}: {low} for class {least.label} to {high} for class {most.label}")
    return f"Entropy by class of inputs {region}, minus the mean of those inside, nats. {'; '.join(descriptions)}."
