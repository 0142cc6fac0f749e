"""Charts of predictive probabilities: reliability curves, and predictive entropies by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from consilience.bayesian.report.predictions import ClassEntropies, Predictive
from consilience.drawing.axes import HALF_WIDTH, Axes, line_kind
from consilience.drawing.svg import colour_class, line
from consilience.drawing.words import format_count, format_fixed, shorten, with_minus_sign

MAX_MODELS = 10
"""Models beyond these are not drawn: report.css has ten colours."""

MAX_CLASSES = 20
"""Classes beyond these are not drawn. Chosen by eye, for the width of the page."""


def reliability_figure(predictions: Mapping[str, Predictive]) -> Markup:
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


def class_entropy_figure(predictions: Mapping[str, Predictive], outside: bool) -> Markup | None:
    """Return the entropies of every class, minus the mean of all inputs inside: means, and quartiles as strokes.

    Parameters
    ----------
    predictions : mapping of str to Predictive
        Scores by model.
    outside : bool
        Whether of inputs from outside the training distribution; of those without classes all together.

    Returns
    -------
    Markup or None
        The figure; None where no model has such entropies.
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


def _class_entropies_of(scores: Predictive, outside: bool) -> Sequence[ClassEntropies] | None:
    if not outside:
        return scores.class_entropies
    return None if scores.outside is None else scores.outside.class_entropies


def _entropy_range(predictions: Sequence[Predictive]) -> tuple[float, float]:
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


def _entropies_alt(drawn: Mapping[str, tuple[Predictive, Sequence[ClassEntropies]]], region: str) -> str:
    descriptions = []
    for name, (scores, entropies) in drawn.items():
        least, most = (choose(entropies, key=lambda entropy: entropy.mean) for choose in (min, max))
        low, high = (with_minus_sign(format_fixed(side.mean - scores.entropy, 2)) for side in (least, most))
        descriptions.append(f"{shorten(name, 40)}: {low} for class {least.label} to {high} for class {most.label}")
    return f"Entropy by class of inputs {region}, minus the mean of those inside, nats. {'; '.join(descriptions)}."
