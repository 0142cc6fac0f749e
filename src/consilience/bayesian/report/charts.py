"""Charts of predictive probabilities: how reliable they are, and how sure of each class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from consilience.bayesian.report.predictions import ClassEntropies, Predictive
from consilience.drawing.svg import WIDTH, Scale, drawing, element, line, text, tick_label, ticks, tint
from consilience.drawing.words import counted, fixed, shortened, signed

MODELS_AT_MOST = 10
"""Colours that can be told apart."""

CLASSES_AT_MOST = 20
"""More classes than these are not drawn."""

_SIDE, _LEFT, _TOP, _BOTTOM = 390.0, 62.0, 30.0, 46.0


def reliability(predictions: Mapping[str, Predictive]) -> Markup:
    """Return how often networks are right, against how sure they are; on the diagonal they are honest."""
    shown = dict(list(predictions.items())[:MODELS_AT_MOST])
    plot = 270.0
    foot, right = _TOP + plot, _SIDE - 14.0
    x, y = Scale(0.0, 1.0, _LEFT, right), Scale(0.0, 1.0, foot, _TOP + 4)
    marks = ticks(0.0, 1.0)
    parts = [text(0, 14, "accuracy", "axis"), text(right, foot + 38, "confidence", "axis", "end")]
    for mark in marks:
        parts.append(line(_LEFT, y(mark), right, y(mark), "grid"))
        parts.append(text(_LEFT - 8, y(mark) + 4, tick_label(mark, marks), "tick", "end"))
        parts.append(text(x(mark), foot + 20, tick_label(mark, marks), "tick", "middle"))
    parts.append(line(x(0.0), y(0.0), x(1.0), y(1.0), "honest"))
    for place, one in enumerate(shown.values()):
        points = [(x(bin_.confidence), y(bin_.accuracy)) for bin_ in one.reliability]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(element("polyline", points=path, kind=f"line {tint(place)} d{place % 4}"))
        parts += [element("circle", cx=a, cy=b, r=2.5, kind=f"spot {tint(place)}") for a, b in points]
    told = [f"{shortened(name, 40)}: error {fixed(one.calibration_error, 3)}" for name, one in shown.items()]
    alt = (
        f"Accuracy against confidence of {counted(len(shown), 'model')}, with the calibration error. {'; '.join(told)}."
    )
    return drawing([*parts, *_legend(shown, foot + _BOTTOM + 8)], foot + _BOTTOM + 20.0 * len(shown) + 6, alt, _SIDE)


def _legend(names: Mapping[str, Predictive], start: float) -> list[Markup]:
    parts = []
    for place, name in enumerate(names):
        level = start + 20.0 * place
        parts.append(line(_LEFT, level, _LEFT + 34, level, f"line {tint(place)} d{place % 4}"))
        parts.append(text(_LEFT + 42, level + 4, shortened(name, 42), "tick"))
    return parts


def class_entropies(predictions: Mapping[str, Predictive], outside: bool) -> Markup | None:
    """Return the entropies of every class, minus the mean of all inputs inside: means, and quartiles as strokes.

    Parameters
    ----------
    predictions
        By model.
    outside
        Whether of inputs from outside the training distribution; of those without classes all together.
    """
    shown = {
        name: (one, found)
        for name, one in list(predictions.items())[:MODELS_AT_MOST]
        if (found := _of(one, outside)) is not None and found
    }
    if not shown:
        return None
    low, high = _extent([*predictions.values()][:MODELS_AT_MOST])
    classes = sorted({own.label for _, found in shown.values() for own in found})[:CLASSES_AT_MOST]
    foot, right = _TOP + 200.0, WIDTH - 10.0
    y = Scale(low, high, foot, _TOP + 4)
    marks = ticks(low, high)
    said = "outside" if outside else "inside"
    parts = [text(0, 14, f"entropy minus the mean inside, nats: inputs {said}", "axis")]
    for mark in marks:
        parts.append(line(_LEFT, y(mark), right, y(mark), "grid"))
        parts.append(text(_LEFT - 8, y(mark) + 4, tick_label(mark, marks), "tick", "end"))
    if low < 0 < high:
        parts.append(line(_LEFT, y(0.0), right, y(0.0), "honest"))
    slot = (right - _LEFT) / len(classes)
    step = min(14.0, 0.8 * slot / len(shown))
    for number, label in enumerate(classes):
        middle = _LEFT + slot * (number + 0.5)
        parts.append(text(middle, foot + 20, str(label), "tick", "middle"))
        for place, (one, found) in enumerate(shown.values()):
            at = middle + step * (place - 0.5 * (len(shown) - 1))
            for own in found:
                if own.label == label:
                    kind = tint(list(predictions).index(list(shown)[place]))
                    parts.append(line(at, y(own.lower - one.entropy), at, y(own.upper - one.entropy), f"range {kind}"))
                    parts.append(element("circle", cx=at, cy=y(own.mean - one.entropy), r=3.5, kind=f"spot {kind}"))
    parts.append(text(right, foot + 40, "class", "axis", "end"))
    return drawing(parts, foot + _BOTTOM, _entropies_alt(shown, said))


def _of(one: Predictive, outside: bool) -> Sequence[ClassEntropies] | None:
    if not outside:
        return one.class_entropies
    return None if one.outside is None else one.outside.class_entropies


def _extent(predictions: Sequence[Predictive]) -> tuple[float, float]:
    """Return the range of all that is drawn, inside and outside, so that the two figures can be compared."""
    values = [
        value - one.entropy
        for one in predictions
        for outside in (False, True)
        for own in _of(one, outside) or ()
        for value in (own.lower, own.mean, own.upper)
    ]
    low, high = min(0.0, *values), max(0.0, *values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _entropies_alt(shown: Mapping[str, tuple[Predictive, Sequence[ClassEntropies]]], said: str) -> str:
    told = []
    for name, (one, found) in shown.items():
        least, most = (f(found, key=lambda own: own.mean) for f in (min, max))
        told.append(
            f"{shortened(name, 40)}: {signed(fixed(least.mean - one.entropy, 2))} for class {least.label} to "
            f"{signed(fixed(most.mean - one.entropy, 2))} for class {most.label}"
        )
    return f"Entropy by class of inputs {said}, minus the mean of those inside, nats. {'; '.join(told)}."
