"""Descriptions of the sites of a fusion against each other: classes, shape, kind and scale of the inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.drawing.words import first_names
from consilience.errors import Problem
from consilience.networks.descriptions.description import Description

if TYPE_CHECKING:
    from torch import Tensor

MAX_SCALE_RATIO = 10.0
"""Inputs whose scale is this many times that of the other sites, or this small a part of it, are in other units. Chosen
by hand: images of 0 to 255 are 255 times those of 0 to 1, and sites of skewed classes differ by less than 2 on clothes,
digits and letters."""

MAX_NAMED = 6
"""Classes that a message names; more are counted. Chosen by hand for short messages."""

_DESCRIBE_ALIKE = (
    "describe the networks with the same `classes=`, in the order of the outputs, or give `classes='union'` to fuse"
)


def description_problems(descriptions: Sequence[Description], *, unites_classes: bool = False) -> list[Problem]:
    """Return why descriptions of several sites cannot be used together, a line for each fault.

    Sites that do not state something are not compared by it. The classes are never put into another order: which output
    is which class is said by their order alone. With `unites_classes` they may differ, and are known by their names.
    """
    if not descriptions:
        return []
    problems = [
        Problem(
            site.name,
            f"describes {site.n_observations:g} observations, fewer than its least number {site.min_count:g}",
            "leave the description out, or describe more data",
            "E-FEW",
        )
        for site in descriptions
        if site.n_observations < site.min_count
    ]
    if not unites_classes:
        problems += _differences(descriptions, lambda site: site.classes, _class_text)
    problems += _differences(descriptions, lambda site: site.input_kind, _kind_text)
    of_kind = [site for site in descriptions if site.input_kind == "real"]
    problems += _differences(of_kind, lambda site: site.input_shape, _shape_text)
    with_inputs = [site for site in descriptions if site.input_shape is not None]
    problems += _differences(
        with_inputs, lambda site: tuple((part.name, part.kind) for part in site.parts), _arguments_text
    )
    problems += _differences(descriptions, lambda site: site.output, _output_text)
    of_outputs = [site for site in descriptions if site.output_labels]
    problems += _differences(
        of_outputs, lambda site: tuple((one.name, one.width, one.classes) for one in site.output_labels), _labels_text
    )
    of_tokens = [site for site in descriptions if site.tokens is not None]
    problems += _differences(of_tokens, _vocabulary, _vocabulary_text)
    # Scales are compared of inputs that are alike in all else.
    if not problems:
        problems += _scale_problems(of_kind)
    return problems


def _differences(descriptions: Sequence[Description], statement: Any, text: Any) -> list[Problem]:
    """Return a line for each site whose statement is not that of most, the earliest where several are."""
    stated: list[tuple[Description, Hashable]] = [
        (site, value) for site in descriptions if (value := statement(site)) is not None
    ]
    if len({value for _, value in stated}) < 2:
        return []
    usual = Counter(value for _, value in stated).most_common(1)[0][0]
    other = next(site for site, value in stated if value == usual)
    return [text(site, other) for site, value in stated if value != usual]


def _class_text(site: Description, other: Description) -> Problem:
    """Return in what the classes of a site differ from another's."""
    own, others = site.classes or (), other.classes or ()
    if set(own) == set(others):
        place = next(number for number, (a, b) in enumerate(zip(own, others, strict=True)) if a != b)
        text = f"has the classes of {other.name} in another order: class number {place} is {own[place]}, not"
        remedy = "train it with the classes in the same order: outputs are never renumbered"
        return Problem(site.name, f"{text} {others[place]}", remedy, "E-MISMATCH")
    text = f"has other classes than {other.name}"
    if len(own) != len(others):
        text = f"has {len(own)} classes, and {other.name} {len(others)}"
    parts = []
    if new := [name for name in own if name not in others]:
        parts.append(f"only here {first_names(new, MAX_NAMED)}")
    if missing := [name for name in others if name not in own]:
        parts.append(f"only there {first_names(missing, MAX_NAMED)}")
    return Problem(site.name, f"{text}: {', '.join(parts)}", _DESCRIBE_ALIKE)


def _kind_text(site: Description, other: Description) -> Problem:
    called = {"real": "real numbers", "tokens": "tokens"}
    text = f"has inputs of {called[site.input_kind]}, and {other.name} has {called[other.input_kind]}"
    return Problem(site.name, text, "fuse networks of the same inputs", "E-MISMATCH")


def _shape_text(site: Description, other: Description) -> Problem:
    text = f"has inputs of shape {site.input_shape}, and those of {other.name} have {other.input_shape}"
    return Problem(site.name, text, "describe the networks with inputs of one shape", "E-MISMATCH")


def _output_text(site: Description, other: Description) -> Problem:
    text = f"describes the output {site.output!r}, and {other.name} {other.output!r}"
    return Problem(site.name, text, "describe the same output of all networks", "E-MISMATCH")


def _labels_text(site: Description, other: Description) -> Problem:
    text = f"describes other labels of the networks' outputs than {other.name}"
    return Problem(site.name, text, "describe the networks with labels of the same outputs and kinds", "E-MISMATCH")


def _arguments_text(site: Description, other: Description) -> Problem:
    def named(one: Description) -> str:
        return ", ".join(part.name or part.kind for part in one.parts) or "one tensor"

    text = f"has arguments {named(site)}, and those of {other.name} are {named(other)}"
    return Problem(site.name, text, "describe the networks with the same arguments", "E-MISMATCH")


def _vocabulary(site: Description) -> int | None:
    return None if site.tokens is None else len(site.tokens.unigrams)


def _vocabulary_text(site: Description, other: Description) -> Problem:
    text = f"has a vocabulary of {_vocabulary(site)} tokens, and {other.name} of {_vocabulary(other)}"
    return Problem(site.name, text, "use one tokenizer at all sites", "E-MISMATCH")


def _scale_problems(descriptions: Sequence[Description]) -> list[Problem]:
    """Return whose inputs are of another scale than those of the median site."""
    spreads = [
        (site, float(moments.mean.mean()), float(np.sqrt(moments.variance.mean())))
        for site in descriptions
        if (moments := site.inputs) is not None
    ]
    ranges = [(site, *site.input_range) for site in descriptions if site.input_range is not None]
    # The root mean square sees an offset too.
    sizes = [(site, float(np.hypot(m, s)), f"mean {m:.3g}, deviation {s:.3g}") for site, m, s in spreads]
    deviations = [(site, s, f"deviation {s:.3g}") for site, _, s in spreads]
    widths = [(site, high - low, f"from {low:.3g} to {high:.3g}") for site, low, high in ranges]
    flagged: dict[str, Problem] = {}  # the first that is wrong with each
    for whose, found in (
        ("inputs are", sizes),
        ("deviation of the inputs is", deviations),
        ("range of the inputs is", widths),
    ):
        for site, ratio, text in _out_of_scale(found):
            text = f"its {whose} {_times(ratio)} the others' ({text})"
            remedy = "scale the inputs in the same way at all sites, and train and describe again"
            flagged.setdefault(site.name, Problem(site.name, text, remedy))
    return list(flagged.values())


def _times(ratio: float) -> str:
    return f"{ratio:.3g} times" if ratio > 1 else f"{ratio:.3g} of"


def given_scale_problems(descriptions: Sequence[Description], inputs: Tensor) -> list[Problem]:
    """Return that given inputs (n, ...) are of another scale than those that the sites describe; empty where not."""
    moments = [site.inputs for site in descriptions if site.inputs is not None]
    if not moments or not inputs.is_floating_point():
        return []
    # The lower median of root mean squares, as sites are compared with each other.
    sizes = np.sort([float(np.hypot(of_site.mean.mean(), of_site.variance.mean() ** 0.5)) for of_site in moments])
    median = float(sizes[(len(sizes) - 1) // 2])
    mean, deviation = float(inputs.double().mean()), float(inputs.double().std(correction=0))
    ratio = float(np.hypot(mean, deviation)) / median if median > 0 else 1.0
    if not np.isfinite(ratio) or 1 / MAX_SCALE_RATIO <= ratio <= MAX_SCALE_RATIO:
        return []
    text = f"are {_times(ratio)} those that the sites describe (mean {mean:.3g}, deviation {deviation:.3g})"
    return [Problem("inputs", text, "scale them as the networks' own data were")]


def _out_of_scale(found: Sequence[tuple[Description, float, str]]) -> Iterator[tuple[Description, float, str]]:
    """Yield which sites, each with a size and a text, are far from the median one, with their ratio to it."""
    # The lower median: of two sites the larger is named.
    median = float(np.sort([size for _, size, _ in found])[(len(found) - 1) // 2]) if len(found) > 1 else 0.0
    for site, size, text in found if median > 0 else ():
        if not 1 / MAX_SCALE_RATIO <= size / median <= MAX_SCALE_RATIO:
            yield site, size / median, text
