"""The section of a page about a choice: the candidates with their scores as a figure and a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set

from markupsafe import Markup

from consilience.core.findings import LossesAtSite, VerdictSummary
from consilience.core.page_blocks import strong
from consilience.core.site_losses import HELD_OUT, OWN, SITE, STANDARD_ERRORS_OF_HARM
from consilience.core.verdict import FUSED
from consilience.drawing.axes import Axes, from_zero
from consilience.drawing.blocks import Block, Column, Figure, Folded, Heading, Section, Table, text_column
from consilience.drawing.svg import WIDTH, element, line, text
from consilience.drawing.words import format_count, format_number, shorten

MAX_DRAWN = 40
"""Candidates with a row in the figure; more are counted. Bounds the size of the page; chosen by hand."""
MAX_OPEN_ROWS = 6
"""Candidates up to which the table below the figure is open. Chosen by eye."""

_STEP = 24.0
"""Height of a row. Chosen by eye."""
_SHARES = ("error", "disagreement")
"""How criteria begin that are shares of rows, written in percent as verdicts write them."""
_TITLES = {OWN: "what each site has today", FUSED: "the fused model"}
"""What candidates are called whose names are no names."""


def choice_section(found: VerdictSummary | None, noun: str, at_sites: Sequence[LossesAtSite] = ()) -> Section | None:
    """Return the candidates of a choice with their scores; None where nothing was compared.

    `noun` is what one candidate is, such as "network"; `at_sites` is what each site's held-out rows say.
    """
    if found is None or not found.losses:
        return None
    is_share = found.criterion.startswith(_SHARES) and all(abs(score) <= 1.0 for _, score in found.losses)
    scale = 100.0 if is_share else 1.0
    errors = {name: scale * error for name, error in found.errors.items()}
    scores = [(name, scale * score) for name, score in found.losses]
    unit = ", %" if is_share else ""
    chosen = found.stated.chosen or (FUSED if FUSED in dict(scores) else None)
    rows = scores[:MAX_DRAWN]
    reference = _reference(scores)
    figure = Figure(
        candidate_plot(rows, errors, chosen, reference, f"{found.criterion or 'score'}{unit}"),
        "Candidates by their scores",
        _caption(found.criterion, len(scores), {name for name, _ in rows}, errors, chosen, reference),
    )
    digits = 2 if is_share else 4
    columns = [
        text_column(noun.capitalize(), lambda row: strong(_title(row[0])) if row[0] == chosen else _title(row[0])),
        Column(f"Score{unit}", lambda row: row[1], digits=digits),
        Column("Standard error of the difference", lambda row: errors.get(row[0]), digits=digits) if errors else None,
    ]
    table = Table("Candidates", scores, columns, noun, "", "narrow")
    is_long = len(scores) > MAX_OPEN_ROWS
    shown: Block = Folded(f"All {format_count(len(scores), 'score')} as a table", [table]) if is_long else table
    title = "What held-out rows say" if found.criterion.endswith(HELD_OUT) else "What was chosen among"
    own = _own_and_chosen(at_sites, scale, unit, found.criterion, noun) if at_sites else []
    return Section("candidates", title, [figure, shown, *own])


def _own_and_chosen(
    at_sites: Sequence[LossesAtSite], scale: float, unit: str, criterion: str, noun: str
) -> list[Block]:
    """Return the loss of each site's own model and of the chosen one on the rows of this site."""
    rows = sorted(at_sites, key=lambda one: (one.own - one.chosen, one.site))[:MAX_DRAWN]
    more = (
        f" The {len(rows)} of {len(at_sites):,} sites that gain least are drawn." if len(at_sites) > len(rows) else ""
    )
    figure = Figure(
        sites_plot(rows, scale, f"{criterion}{unit}"),
        "Each site's own against the chosen",
        f"On the rows that each site held out: the grey square is its own {noun}, the diamond the chosen one; smaller"
        " is better. Bars are two standard errors of the difference to each side: a square beyond its bar is known to"
        f" differ.{more}",
    )
    digits = 2 if unit else 4
    columns = [
        text_column("Site", lambda one: shorten(one.site)),
        Column("Rows, about", lambda one: one.rows, digits=0),
        Column(f"Own{unit}", lambda one: scale * one.own, digits=digits),
        Column(f"Chosen{unit}", lambda one: scale * one.chosen, digits=digits),
        Column("Standard error of the difference", lambda one: scale * one.standard_error, digits=digits),
    ]
    table = Table("Losses at the sites", at_sites, columns, "site")
    is_long = len(at_sites) > MAX_OPEN_ROWS
    shown: Block = Folded(f"All {format_count(len(at_sites), 'site')} as a table", [table]) if is_long else table
    return [Heading("At each site"), figure, shown]


def sites_plot(rows: Sequence[LossesAtSite], scale: float, criterion: str) -> Markup:
    """Return a row for every site: its own model as a grey square, the chosen as a diamond with an error bar."""
    losses = [scale * loss for one in rows for loss in (one.own, one.chosen)]
    floor = 0.0 if min(losses) >= 0.0 else -math.inf  # of losses that cannot be negative, neither can bars
    bars = [_bar(one, scale, floor) for one in rows]
    ends = [*losses, *(end for bar in bars for end in bar)]
    labels = [shorten(one.site, 30) for one in rows]
    left = min(250.0, 24.0 + 7.4 * max(map(len, labels)))  # widths of texts are estimated: no font can be measured here
    axes = Axes.over(
        from_zero(min(ends), max(ends)), (float(len(rows)), 0.0), _STEP * len(rows), WIDTH, (left, 12.0), (14.0, 0.0)
    )
    parts = axes.names(shorten(f"{criterion}; left is better", 90), "site") + axes.x_ticks(7)
    parts += axes.rows([row + 0.5 for row in range(len(rows))], labels)
    for row, (one, (low, high)) in enumerate(zip(rows, bars, strict=True)):
        y = axes.y(row + 0.5)
        parts.append(line(axes.x(low), y, axes.x(high), y, "range k1"))
        parts.append(element("rect", x=axes.x(scale * one.own) - 4, y=y - 4, width=8.0, height=8.0, kind="box k-"))
        parts.append(axes.diamond((scale * one.chosen, row + 0.5), 7.0, "diamond k1"))
    said = "; ".join(
        f"{one.site} {format_number(scale * one.own)} and {format_number(scale * one.chosen)}" for one in rows
    )
    return axes.drawing(parts, f"{format_count(len(rows), 'site')}, own and chosen model by {criterion}: {said}.")


def _bar(one: LossesAtSite, scale: float, floor: float) -> tuple[float, float]:
    """Return the ends of two standard errors of the difference to each side of the chosen model's loss."""
    error = STANDARD_ERRORS_OF_HARM * one.standard_error
    return max(floor, scale * (one.chosen - error)), scale * (one.chosen + error)


def candidate_plot(
    rows: Sequence[tuple[str, float]],
    errors: Mapping[str, float],
    chosen: str | None,
    reference: tuple[str, float] | None,
    criterion: str,
) -> Markup:
    """Return a row for every candidate with its score and standard error, the best site's as a line over all rows.

    The one `chosen` is a diamond, sites' own are grey squares, all others squares.
    """
    ends = [score + sign * errors.get(name, 0.0) for name, score in rows for sign in (-1.0, 1.0)]
    ends += [] if reference is None else [reference[1]]
    labels = [shorten(_title(name), 30) for name, _ in rows]
    left = min(250.0, 24.0 + 7.4 * max(map(len, labels)))  # widths of texts are estimated: no font can be measured here
    axes = Axes.over(
        from_zero(min(ends), max(ends)), (float(len(rows)), 0.0), _STEP * len(rows), WIDTH, (left, 12.0), (14.0, 0.0)
    )
    parts = axes.names(shorten(f"{criterion}; left is better", 90), "candidate") + axes.x_ticks(7)
    parts += axes.rows([row + 0.5 for row in range(len(rows))], labels)
    if reference is not None:
        parts.append(axes.upright(reference[1]))
        side, shift = ("start", 6) if axes.x(reference[1]) < 0.6 * WIDTH else ("end", -6)
        parts.append(text(axes.x(reference[1]) + shift, axes.top - 6, _reference_name(reference[0]), "axis", side))
    for row, (name, score) in enumerate(rows):
        y, error = axes.y(row + 0.5), errors.get(name, 0.0)
        colour = "k1" if name == chosen else "k-" if _is_site(name) else "k0"
        if error > 0.0:
            parts.append(line(axes.x(score - error), y, axes.x(score + error), y, f"range {colour}"))
        if name == chosen:
            parts.append(axes.diamond((score, row + 0.5), 7.0, f"diamond {colour}"))
        else:
            parts.append(element("rect", x=axes.x(score) - 4, y=y - 4, width=8.0, height=8.0, kind=f"box {colour}"))
    return axes.drawing(parts, _in_words(rows, chosen, reference, criterion))


def _in_words(
    rows: Sequence[tuple[str, float]], chosen: str | None, reference: tuple[str, float] | None, criterion: str
) -> str:
    """Return what the figure shows, for readers who do not see it."""
    ends = f"from {format_number(rows[0][1])} to {format_number(rows[-1][1])}"
    said = f"{format_count(len(rows), 'candidate')} by {criterion}, {ends}."
    scores = dict(rows)
    if chosen in scores:
        said += f" {_title(chosen)} was taken, with {format_number(scores[chosen])}."
    if reference is not None:
        said += f" The line, {_reference_name(reference[0])}, is at {format_number(reference[1])}."
    return said


def _caption(
    criterion: str,
    n_scores: int,
    drawn: Set[str],
    errors: Mapping[str, float],
    chosen: str | None,
    reference: tuple[str, float] | None,
) -> str:
    """Return what to see in the figure."""
    if criterion.endswith(HELD_OUT):
        said = [f"The {shorten(criterion, 120)}, over all sites together: smaller is better."]
    else:
        said = [
            f"The {shorten(criterion, 120) or 'score'}: smaller is better. It is not measured on rows of the sites, and"
            " orders candidates better than it tells their accuracy."
        ]
    if chosen in drawn:
        said.append("The diamond was taken.")
    if reference is not None:
        said.append(f"The dashed line is {_reference_name(reference[0])}.")
        if errors:
            said.append("Horizontal bars are one standard error of the difference from it to each side.")
    if n_scores > len(drawn):
        said.append(f"The best {len(drawn)} of {n_scores:,} are drawn.")
    return " ".join(said)


def _is_site(name: str) -> bool:
    return name.startswith(SITE) or name == OWN


def _title(name: str) -> str:
    return _TITLES.get(name) or name


def _reference(scores: Sequence[tuple[str, float]]) -> tuple[str, float] | None:
    """Return the best of the sites' own models, with its score; None where none was compared."""
    return min((one for one in scores if _is_site(one[0])), key=lambda one: one[1], default=None)


def _reference_name(name: str) -> str:
    return "what each site has today" if name == OWN else "the best site's own"
