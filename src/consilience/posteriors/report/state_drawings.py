"""Drawings of hidden Markov models: where states lead, and the states behind sequences."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from consilience.drawing.svg import WIDTH, Scale, drawing, element, line, text, tint, whole_ticks
from consilience.drawing.words import counted, fixed, shortened
from consilience.posteriors.report.hidden_markov import Chain, State, Timeline

STATES_AT_MOST = 40
"""Of more states than this no map is drawn."""

_SHADES = (0.01, 0.05, 0.2, 0.5, 0.8)
_IN_A_FIGURE = 8
SEQUENCES_AT_MOST = 40
"""Sequences beyond these are not drawn."""

_LEFT, _RIGHT, _TOP, _BAND = 150.0, 14.0, 8.0, 22.0


def transitions(states: Sequence[State]) -> Markup:
    """Return the map of transition probabilities, rows to columns."""
    left, top = 66.0, 50.0
    width = min(56.0, (WIDTH - left - 10.0) / len(states))
    step = min(30.0, max(width, 14.0))
    said = width >= 36
    parts = [text(left, 14, "to state", "axis"), text(0, top - 12, "from", "axis")]
    every = 1 if width >= 20 else 2
    for state in states:
        middle = left + (state.number + 0.5) * width
        if state.number % every == 0:
            parts.append(text(middle, top - 12, str(state.number), "tick", "middle"))
        y = top + step * state.number
        spot = {"cx": left - 40, "cy": y + step / 2, "r": min(5.0, step / 3), "kind": f"spot {tint(state.number)}"}
        parts.append(element("circle", **spot))
        parts.append(text(left - 12, y + step / 2 + 4.5, str(state.number), "tick", "end"))
        if not state.onward:
            parts.append(text(left + 8, y + step / 2 + 4.5, "never left", "gone-text"))
        parts += [
            _cell(state.number, column, share, left + column * width, y, (width, step), said)
            for column, share in enumerate(state.onward)
        ]
    foot = top + step * len(states)
    parts += _legend(foot + 22, left)
    return drawing(parts, foot + 44, _transitions_alt(states), max(left + width * len(states) + 8, left + 500.0))


def _shade(share: float) -> int:
    return sum(round(share, 2) >= least for least in _SHADES)


def _cell(row: int, column: int, share: float, x: float, y: float, size: tuple[float, float], said: bool) -> Markup:
    width, height = size
    gap = 1.0 if width >= 16 else 0.5
    inner = [
        element("title", f"{row} → {column}: {fixed(share, 4)}"),
        element(
            "rect", x=x + gap, y=y + gap, width=width - 2 * gap, height=height - 2 * gap, rx=2, kind=f"s{_shade(share)}"
        ),
    ]
    if said and share >= 0.005:
        inner.append(text(x + width / 2, y + height / 2 + 4.5, fixed(share, 2), "cell-text", "middle"))
    return element("g", Markup("").join(inner))


def _legend(y: float, left: float) -> list[Markup]:
    parts = []
    for shade, name in enumerate(["< 0.01", *(f"≥ {least:g}" for least in _SHADES)]):
        x = left + 82 * shade
        parts.append(element("rect", x=x, y=y - 2, width=20, height=15, rx=2, kind=f"s{shade}"))
        parts.append(text(x + 26, y + 10, name, "tick"))
    return parts


def _transitions_alt(states: Sequence[State]) -> str:
    shown = [state for state in states[:12] if state.onward]
    stays = ", ".join(f"{state.number} with {fixed(state.onward[state.number], 2)}" for state in shown)
    more = f" and {len(states) - 12} more" if len(states) > 12 else ""
    return f"Transition probabilities of {counted(len(states), 'state')}. Probabilities to stay: {stays}{more}."


def timelines(chain: Chain) -> list[Markup]:
    """Return one figure for every few sequences: a band of decoded states, above one of true labels where known."""
    shown = chain.timelines[:SEQUENCES_AT_MOST]
    return [_figure(chain, shown[first : first + _IN_A_FIGURE]) for first in range(0, len(shown), _IN_A_FIGURE)]


def _figure(chain: Chain, shown: Sequence[Timeline]) -> Markup:
    """Return some sequences below each other, each over the whole width; those of one length share a scale of steps."""
    alike = len({one.steps for one in shown}) == 1
    parts: list[Markup] = []
    y = _TOP
    for place, one in enumerate(shown):
        x = Scale(0.0, float(one.steps), _LEFT, WIDTH - _RIGHT)
        parts += _bands(chain, one, x, y)
        y += _BAND + (_BAND + 2 if one.truth else 0.0)
        if not alike or place == len(shown) - 1:
            for mark in whole_ticks(0, one.steps, 8):
                parts.append(line(x(mark), y - 1, x(mark), y + 4, "grid"))
                parts.append(text(x(mark), y + 17, f"{mark:,}", "tick", "middle"))
            y += 18
        y += 14
    parts.append(text(WIDTH - _RIGHT, y + 6, "step", "axis", "end"))
    return drawing(parts, y + 14, _timelines_alt(chain, shown))


def _bands(chain: Chain, one: Timeline, x: Scale, y: float) -> list[Markup]:
    parts = [text(_LEFT - 12, y + 15, shortened(one.name, 18), "name", "end")]
    for start, end, state in one.states:
        parts += _run(x(start), x(end), y, tint(state), f"state {state}, steps {start:,} to {end - 1:,}", str(state))
    if one.truth:
        parts.append(text(_LEFT - 12, y + _BAND + 16, "truth", "tick", "end"))
    for start, end, label in one.truth:
        name, state = chain.truths[label]
        said = f"{shortened(name)}, steps {start:,} to {end - 1:,}"
        parts += _run(x(start), x(end), y + _BAND, tint(state), said, shortened(name, 24))
    return parts


def _run(start: float, end: float, y: float, colour: str, said: str, name: str) -> list[Markup]:
    """Return one run of a band; its name is written into it where there is room."""
    wide = end - start
    gap = 0.4 if wide > 4 else 0.0
    box = element("rect", x=start + gap, y=y, width=max(wide - 2 * gap, 0.6), height=_BAND - 2, kind=f"band {colour}")
    parts = [element("g", element("title", said) + box)]
    if wide > 7.4 * len(name) + 6:
        parts.append(text((start + end) / 2, y + 14.5, name, "band-text", "middle"))
    return parts


def _timelines_alt(chain: Chain, shown: Sequence[Timeline]) -> str:
    known = {one.name: one for one in chain.agreements}
    said = []
    for one in shown:
        visited = len({state for _, _, state in one.states})
        words = f"{shortened(one.name)}: {counted(one.steps, 'step')} in {counted(len(one.states), 'run')} of "
        words += counted(visited, "state")
        if one.name in known and one.truth:
            words += f", {fixed(100 * known[one.name].same, 0)} % as the true labels"
        said.append(words)
    return f"Decoded states over time. {'; '.join(said)}."
