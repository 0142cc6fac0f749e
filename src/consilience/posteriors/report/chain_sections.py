"""Sections of the page about hidden Markov models: transitions, and states over time, with their drawings."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from markupsafe import Markup

from consilience.drawing.blocks import (
    MAX_ROWS,
    Column,
    Figure,
    Paragraph,
    Section,
    Table,
    chip,
    listed,
    markup,
    sentences,
    text_column,
)
from consilience.drawing.cells import cell, cell_legend
from consilience.drawing.svg import WIDTH, Scale, colour_class, drawing, element, integer_ticks, line, text
from consilience.drawing.words import format_count, format_fixed, shorten
from consilience.posteriors.report.content import PosteriorContent
from consilience.posteriors.report.hidden_markov import MAX_DRAWN_STEPS, ChainContent, StateSummary, Timeline
from consilience.posteriors.report.members import ComponentSummary
from consilience.posteriors.report.sections import member_text, numbered


def how_states_follow(content: PosteriorContent) -> Section | None:
    """Return the transition probabilities."""
    chain = content.chain
    if chain is None:
        return None
    drawing: Figure | Paragraph = Paragraph(
        f"With more than {STATES_AT_MOST} states no map of transitions is drawn; the model has them."
    )
    if len(chain.states) <= STATES_AT_MOST:
        caption = (
            "Each row is a state, each column one that may come next: the share of the transitions out of the state "
            "that all sites together expect, where it is at least 0.005. The model adds what its prior says of "
            "transitions, most of all where few were seen."
        )
        drawing = Figure(transitions(chain.states), "Transition probabilities", caption)
    columns = [
        text_column("State", lambda state: numbered(state.number)),
        Column("Transitions", lambda state: state.n_transitions, digits=1),
        Column(
            "Stays", lambda state: state.transition_shares[state.number] if state.transition_shares else None, digits=3
        ),
        Column("Dwell", _dwell),
        Column("Starts", lambda state: state.start_share, digits=3),
    ]
    caption = "Dwell: how many steps a state is expected to last once entered, one over the probability of leaving it."
    table = Table("Table of states", chain.states, columns, "state", caption, "narrow")
    return Section("chain", "How states follow each other", [drawing, table])


def _dwell(state: StateSummary) -> str:
    if state.dwell is not None:
        return format_fixed(state.dwell, 1)
    return "never left" if state.transition_shares else "–"


def states_over_time(content: PosteriorContent) -> Section | None:
    """Return the decoded sequences, and how they agree with true labels."""
    chain = content.chain
    if chain is None or not chain.timelines:
        return None
    drawings = timelines(chain)
    captions = [*([""] * (len(drawings) - 1)), _timelines_caption(chain)]
    figures = [
        Figure(drawing, f"States over time, figure {number}", caption)
        for number, (drawing, caption) in enumerate(zip(drawings, captions, strict=True), start=1)
    ]
    blocks = [*figures, _legend(content, chain), _agreement(chain) if chain.overall_agreement else None]
    return Section("time", "States over time", blocks)


def _timelines_caption(chain: ChainContent) -> Markup:
    lengths = {timeline.steps for timeline in chain.timelines}
    truth = ""
    if chain.label_partners:
        no_state_left = any(state < 0 for _, state in chain.label_partners)
        grey = ", and grey where no state is left" if no_state_left else ""
        truth = (
            ", and below it the true labels, each in the colour of the state that it overlaps most with, one to one"
            + grey
        )
    return sentences(
        f"The most probable path of states of the fused model through each sequence{truth}.",
        len(chain.timelines) > SEQUENCES_AT_MOST
        and f"{SEQUENCES_AT_MOST} of {len(chain.timelines)} sequences are drawn.",
        len(lengths) > 1 and "Each has its own scale of steps.",
        max(lengths) > MAX_DRAWN_STEPS
        and "Where steps are finer than the drawing, each place shows the state that it has most.",
    )


def _legend(content: PosteriorContent, chain: ChainContent) -> Table:
    """Return whose state each state is, and which true label has its colour."""
    names_of_state: dict[int, list[str]] = {}
    for name, state in chain.label_partners:
        names_of_state.setdefault(state, []).append(shorten(name, 40))

    def true_labels(component: ComponentSummary | None) -> Markup:
        return listed(names_of_state.get(-1 if component is None else component.number, ["–"])[:MAX_ROWS])

    rows: list[ComponentSummary | None] = [*content.components[:MAX_ROWS], *([None] if -1 in names_of_state else [])]
    columns = [
        text_column("State", lambda row: markup("{}none left", chip("k-")) if row is None else numbered(row.number)),
        text_column("Found at, as state", lambda row: None if row is None else member_text(row)),
        text_column("True label", true_labels) if chain.label_partners else None,
    ]
    return Table("Legend of states", rows, columns, "state", kind="legend")


def _agreement(chain: ChainContent) -> Table:
    overall = chain.overall_agreement if len(chain.agreements) > 1 else None

    def index(title: str, name: str) -> Column:
        return Column(title, attrgetter(name), digits=3, total=overall and getattr(overall, name))

    columns = [
        text_column("Sequence", lambda row: row.name, total=overall and f"All {len(chain.agreements)}"),
        Column("Steps", lambda row: row.steps, total=overall and overall.steps),
        Column(
            "Same",
            lambda row: f"{format_fixed(100 * row.matched_share, 1)} %",
            total=overall and f"{format_fixed(100 * overall.matched_share, 1)} %",
        ),
        index("Rand", "rand"),
        index("Adjusted Rand", "adjusted_rand"),
        index("Adjusted mutual information", "adjusted_mutual_information"),
    ]
    caption = (
        "Same: steps whose true label is the one of their state. Rand index: pairs of steps on which both agree "
        "whether they are alike; adjusted for chance it is 0 for states by lot. Adjusted mutual information is "
        "normalised by the mean of the entropies. 1 is perfect for all."
    )
    return Table("Agreement with the true labels", chain.agreements, columns, "sequence", caption)


STATES_AT_MOST = 40
"""Of more states than this no map is drawn: its cells would be too narrow for their numbers. Chosen by eye."""

_SHADE_BOUNDS = (0.01, 0.05, 0.2, 0.5, 0.8)
"""Probabilities from which on each shade is used; less than the first is blank. Chosen by eye."""

_SEQUENCES_PER_FIGURE = 8
"""Chosen by eye, so that a figure fits on a screen."""

SEQUENCES_AT_MOST = 40
"""Sequences beyond these are not drawn. Bounds the size of the page; chosen by hand."""

_LEFT, _RIGHT, _TOP, _BAND_HEIGHT = 150.0, 14.0, 8.0, 22.0
"""Margins of the timelines within the drawing, and height of the band of each. Chosen by eye."""


def transitions(states: Sequence[StateSummary]) -> Markup:
    """Return the map of transition probabilities, rows to columns."""
    left, top = 66.0, 50.0
    width = min(56.0, (WIDTH - left - 10.0) / len(states))
    step = min(30.0, max(width, 14.0))
    has_room = width >= 36
    parts = [text(left, 14, "to state", "axis"), text(0, top - 12, "from", "axis")]
    label_step = 1 if width >= 20 else 2
    for state in states:
        column_middle = left + (state.number + 0.5) * width
        if state.number % label_step == 0:
            parts.append(text(column_middle, top - 12, str(state.number), "tick", "middle"))
        y = top + step * state.number
        marker = {
            "cx": left - 40,
            "cy": y + step / 2,
            "r": min(5.0, step / 3),
            "kind": f"spot {colour_class(state.number)}",
        }
        parts.append(element("circle", **marker))
        parts.append(text(left - 12, y + step / 2 + 4.5, str(state.number), "tick", "end"))
        if not state.transition_shares:
            parts.append(text(left + 8, y + step / 2 + 4.5, "never left", "gone-text"))
        parts += [
            _cell(state.number, column, probability, left + column * width, y, (width, step), has_room)
            for column, probability in enumerate(state.transition_shares)
        ]
    map_height = top + step * len(states)
    meanings = ["< 0.01", *(f"≥ {bound:g}" for bound in _SHADE_BOUNDS)]
    parts += cell_legend(left, map_height + 22, 82, ((f"s{shade}", meaning) for shade, meaning in enumerate(meanings)))
    return drawing(parts, map_height + 44, _transitions_alt(states), max(left + width * len(states) + 8, left + 500.0))


def _shade_index(probability: float) -> int:
    return sum(round(probability, 2) >= bound for bound in _SHADE_BOUNDS)


def _cell(
    row: int, column: int, probability: float, x: float, y: float, size: tuple[float, float], has_room: bool
) -> Markup:
    width, height = size
    gap = 1.0 if width >= 16 else 0.5
    label = format_fixed(probability, 2) if has_room and probability >= 0.005 else ""
    tooltip = f"{row} → {column}: {format_fixed(probability, 4)}"
    kind = f"s{_shade_index(probability)}"
    return cell(x + gap, y + gap, width - 2 * gap, height - 2 * gap, kind, tooltip, label)


def _transitions_alt(states: Sequence[StateSummary]) -> str:
    described = [state for state in states[:12] if state.transition_shares]
    stay_probabilities = ", ".join(
        f"{state.number} with {format_fixed(state.transition_shares[state.number], 2)}" for state in described
    )
    more = f" and {len(states) - 12} more" if len(states) > 12 else ""
    n_states = format_count(len(states), "state")
    return f"Transition probabilities of {n_states}. Probabilities to stay: {stay_probabilities}{more}."


def timelines(chain: ChainContent) -> list[Markup]:
    """Return one figure for every few sequences: a band of decoded states, above one of true labels where known."""
    drawn = chain.timelines[:SEQUENCES_AT_MOST]
    starts = range(0, len(drawn), _SEQUENCES_PER_FIGURE)
    return [_figure(chain, drawn[start : start + _SEQUENCES_PER_FIGURE]) for start in starts]


def _figure(chain: ChainContent, drawn: Sequence[Timeline]) -> Markup:
    """Return some sequences below each other, each over the whole width; those of one length share a scale of steps."""
    same_length = len({timeline.steps for timeline in drawn}) == 1
    parts: list[Markup] = []
    y = _TOP
    for index, timeline in enumerate(drawn):
        x = Scale(0.0, float(timeline.steps), _LEFT, WIDTH - _RIGHT)
        parts += _bands(chain, timeline, x, y)
        y += _BAND_HEIGHT + (_BAND_HEIGHT + 2 if timeline.truth else 0.0)
        if not same_length or index == len(drawn) - 1:
            for mark in integer_ticks(0, timeline.steps, 8):
                parts.append(line(x(mark), y - 1, x(mark), y + 4, "grid"))
                parts.append(text(x(mark), y + 17, f"{mark:,}", "tick", "middle"))
            y += 18
        y += 14
    parts.append(text(WIDTH - _RIGHT, y + 6, "step", "axis", "end"))
    return drawing(parts, y + 14, _timelines_alt(chain, drawn))


def _bands(chain: ChainContent, timeline: Timeline, x: Scale, y: float) -> list[Markup]:
    parts = [text(_LEFT - 12, y + 15, shorten(timeline.name, 18), "name", "end")]
    for start, end, state in timeline.states:
        tooltip = f"state {state}, steps {start:,} to {end - 1:,}"
        parts += _run_shapes(x(start), x(end), y, colour_class(state), tooltip, str(state))
    if timeline.truth:
        parts.append(text(_LEFT - 12, y + _BAND_HEIGHT + 16, "truth", "tick", "end"))
    for start, end, label in timeline.truth:
        name, state = chain.label_partners[label]
        tooltip = f"{shorten(name)}, steps {start:,} to {end - 1:,}"
        parts += _run_shapes(x(start), x(end), y + _BAND_HEIGHT, colour_class(state), tooltip, shorten(name, 24))
    return parts


def _run_shapes(start: float, end: float, y: float, colour: str, tooltip: str, name: str) -> list[Markup]:
    """Return one run of a band; its name is written into it where there is room."""
    run_width = end - start
    gap = 0.4 if run_width > 4 else 0.0
    size = {"width": max(run_width - 2 * gap, 0.6), "height": _BAND_HEIGHT - 2}
    box = element("rect", x=start + gap, y=y, **size, kind=f"band {colour}")
    parts = [element("g", element("title", tooltip) + box)]
    if run_width > 7.4 * len(name) + 6:
        parts.append(text((start + end) / 2, y + 14.5, name, "band-text", "middle"))
    return parts


def _timelines_alt(chain: ChainContent, drawn: Sequence[Timeline]) -> str:
    agreement_of = {timeline.name: timeline for timeline in chain.agreements}
    descriptions = []
    for timeline in drawn:
        n_visited = len({state for _, _, state in timeline.states})
        words = f"{shorten(timeline.name)}: {format_count(timeline.steps, 'step')} in "
        words += f"{format_count(len(timeline.states), 'run')} of {format_count(n_visited, 'state')}"
        if timeline.name in agreement_of and timeline.truth:
            words += f", {format_fixed(100 * agreement_of[timeline.name].matched_share, 0)} % as the true labels"
        descriptions.append(words)
    return f"Decoded states over time. {'; '.join(descriptions)}."
