"""Sections of the page about hidden Markov models: transitions, and states over time."""

from __future__ import annotations

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
from consilience.drawing.words import format_fixed, shorten
from consilience.posteriors.report.content import PosteriorContent
from consilience.posteriors.report.hidden_markov import MAX_DRAWN_STEPS, ChainContent, StateSummary
from consilience.posteriors.report.members import ComponentSummary
from consilience.posteriors.report.sections import member_text, numbered
from consilience.posteriors.report.state_drawings import SEQUENCES_AT_MOST, STATES_AT_MOST, timelines, transitions


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
