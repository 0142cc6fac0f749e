"""Charts of predictive probabilities: reliability curves, and predictive entropies by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from consilience.bayesian.report.predictions import ClassEntropies, Predictive
from consilience.drawing.svg import WIDTH, Scale, colour_class, drawing, element, line, text, tick_label, ticks
from consilience.drawing.words import format_count, format_fixed, shorten, with_minus_sign

MAX_MODELS = 10
"""Models beyond these are not drawn: report.css has ten colours."""

MAX_CLASSES = 20
"""Classes beyond these are not drawn. Chosen by eye, for the width of the page."""

_WIDTH, _LEFT, _TOP, _BOTTOM = 390.0, 62.0, 30.0, 46.0
"""Width of the reliability figure, and margins of both plots within their drawings. Chosen by eye."""


def reliability_figure(predictions: Mapping[str, Predictive]) -> Markup:
    """Return reliability curves: the accuracy of each bin against its confidence; on the diagonal they agree."""
    drawn = dict(list(predictions.items())[:MAX_MODELS])
    plot_height = 270.0
    axis_y, right_x = _TOP + plot_height, _WIDTH - 14.0
    x, y = Scale(0.0, 1.0, _LEFT, right_x), Scale(0.0, 1.0, axis_y, _TOP + 4)
    marks = ticks(0.0, 1.0)
    parts = [text(0, 14, "accuracy", "axis"), text(right_x, axis_y + 38, "confidence", "axis", "end")]
    for mark in marks:
        parts.append(line(_LEFT, y(mark), right_x, y(mark), "grid"))
        parts.append(text(_LEFT - 8, y(mark) + 4, tick_label(mark, marks), "tick", "end"))
        parts.append(text(x(mark), axis_y + 20, tick_label(mark, marks), "tick", "middle"))
    parts.append(line(x(0.0), y(0.0), x(1.0), y(1.0), "honest"))
    for index, scores in enumerate(drawn.values()):
        points = [
            (x(reliability_bin.confidence), y(reliability_bin.accuracy)) for reliability_bin in scores.reliability
        ]
        polyline = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(element("polyline", points=polyline, kind=f"line {colour_class(index)} d{index % 4}"))
        parts += [element("circle", cx=a, cy=b, r=2.5, kind=f"spot {colour_class(index)}") for a, b in points]
    descriptions = [
        f"{shorten(name, 40)}: error {format_fixed(scores.calibration_error, 3)}" for name, scores in drawn.items()
    ]
    alt = f"Accuracy against confidence of {format_count(len(drawn), 'model')}, with the calibration error. "
    alt += f"{'; '.join(descriptions)}."
    return drawing(
        [*parts, *_legend(drawn, axis_y + _BOTTOM + 8)], axis_y + _BOTTOM + 20.0 * len(drawn) + 6, alt, _WIDTH
    )


def _legend(names: Mapping[str, Predictive], start: float) -> list[Markup]:
    parts = []
    for index, name in enumerate(names):
        line_y = start + 20.0 * index
        parts.append(line(_LEFT, line_y, _LEFT + 34, line_y, f"line {colour_class(index)} d{index % 4}"))
        parts.append(text(_LEFT + 42, line_y + 4, shorten(name, 42), "tick"))
    return parts


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
    axis_y, right_x = _TOP + 200.0, WIDTH - 10.0
    y = Scale(low, high, axis_y, _TOP + 4)
    marks = ticks(low, high)
    region = "outside" if outside else "inside"
    parts = [text(0, 14, f"entropy minus the mean inside, nats: inputs {region}", "axis")]
    for mark in marks:
        parts.append(line(_LEFT, y(mark), right_x, y(mark), "grid"))
        parts.append(text(_LEFT - 8, y(mark) + 4, tick_label(mark, marks), "tick", "end"))
    if low < 0 < high:
        parts.append(line(_LEFT, y(0.0), right_x, y(0.0), "honest"))
    class_width = (right_x - _LEFT) / len(classes)
    step = min(14.0, 0.8 * class_width / len(drawn))
    for position, label in enumerate(classes):
        class_x = _LEFT + class_width * (position + 0.5)
        parts.append(text(class_x, axis_y + 20, str(label), "tick", "middle"))
        for index, (scores, entropies) in enumerate(drawn.values()):
            mark_x = class_x + step * (index - 0.5 * (len(drawn) - 1))
            for entropy in entropies:
                if entropy.label == label:
                    colour = colour_class(list(predictions).index(list(drawn)[index]))
                    parts.append(
                        line(
                            mark_x,
                            y(entropy.lower - scores.entropy),
                            mark_x,
                            y(entropy.upper - scores.entropy),
                            f"range {colour}",
                        )
                    )
                    parts.append(
                        element("circle", cx=mark_x, cy=y(entropy.mean - scores.entropy), r=3.5, kind=f"spot {colour}")
                    )
    parts.append(text(right_x, axis_y + 40, "class", "axis", "end"))
    return drawing(parts, axis_y + _BOTTOM, _entropies_alt(drawn, region))


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
