"""Sections of the page about fused networks: a function of the content each, in the order of the page."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from markupsafe import Markup

from consilience.checks import Array
from consilience.core.candidates_section import choice_section
from consilience.core.page_blocks import DIGEST_CAPTION, act, code, descent, digest_column, seed_text, site_name, strong
from consilience.drawing.blocks import (
    MAX_ROWS,
    Block,
    BlockGroup,
    Column,
    Facts,
    Figure,
    Heading,
    Items,
    Paragraph,
    Section,
    Table,
    chip,
    format_value,
    listed,
    markup,
    sentences,
    text_column,
)
from consilience.drawing.svg import colour_class
from consilience.drawing.words import format_count, format_fixed, shorten
from consilience.networks.report.content import InputNetworkSummary, NetworkContent, NetworkFindings
from consilience.networks.report.couplings import MAX_MAPS, Coupling, coupling_map, share_legend
from consilience.networks.report.quality import GroupSummary, bars

_MAX_METRICS, _MAX_FACTS = 12, 6
"""Scores, and facts by group, beyond these have no column. Chosen by eye."""

_MAX_HISTORY_STEPS = 2_000
"""Steps of a history beyond these are not drawn. Bounds the size of the page; chosen by hand."""

_MAX_NAMED = 8
"""Couplings beyond these are not named in a sentence. Chosen by eye."""


def warnings(content: NetworkContent) -> list[Block | None]:
    """Return what a reader should do before the network is used."""
    findings = content.network_findings
    repair = act(
        strong("Repair the batch normalisation."),
        "Its statistics were averaged, which leaves them wrong for the averaged weights, so this network does worse "
        "than it can.",
        "`consilience.repair(fusion, inputs)` measures them anew on unlabeled inputs; "
        "`consilience.repair(fusion, moments=...)` needs only the moments that sites may send.",
    )
    unproved = act(
        strong("The symmetry is not proved."),
        "If units that do not move together were moved, the fused network means nothing. Give "
        "`example=` and a module, so that it is traced and proved, or compare the outputs of an aligned model with its "
        "own.",
    )
    is_refused = (findings.refit or "").startswith("not done")
    reason = shorten((findings.refit or "").replace("not done: ", ""), 300).capitalize()
    return [
        repair if findings.needs_repair else None,
        unproved if findings.is_proved is False else None,
        act(strong("Layers were not fitted anew."), f"{reason}.") if is_refused else None,
    ]


def what_was_chosen(content: NetworkContent) -> Section | None:
    """Return the candidates of a choice with their scores; None where nothing was compared."""
    return choice_section(content.verdict, "network", content.findings.at_sites)


def what_went_in(content: NetworkContent) -> Section:
    """Return the networks."""
    sites = content.sites
    has_units = not content.side_by_side and any(site.units for site in sites)
    hashed = digest_column(sites)
    columns = [
        text_column("Network", site_name),
        Column("Units", attrgetter("units")) if has_units else None,
        Column("Parameters", attrgetter("parameters")) if any(site.parameters is not None for site in sites) else None,
        Column("Weight", attrgetter("weight"), digits=3),
        hashed,
    ]
    caption = sentences(
        content.side_by_side and "Each is asked by itself, so no units are matched.",
        has_units and "Units are those that can be renumbered without changing an output.",
        hashed and DIGEST_CAPTION,
    )
    return Section("in", "What went in", [Table("Table of networks", sites, columns, content.noun, caption)])


def what_data_say(content: NetworkContent) -> Section | None:
    """Return the Fisher information that came with the networks."""
    informed = [site for site in content.sites if site.fisher is not None]
    if not informed:
        return None
    columns = [
        text_column("Network", attrgetter("name")),
        text_column("Information", _information),
        Column("Observations", lambda site: _stated(site.fisher.observations)),
        Column("Prior precision", lambda site: _stated(site.fisher.prior_precision)),
    ]
    caption = (
        "Fisher information: how strongly the answers of a network depend on its parameters, summed over so many "
        "observations. The prior is that of training."
    )
    table = Table("Table of Fisher information", informed, columns, "network", caption)
    return Section("known", "What the sites' data say of parameters", [table], "What data say")


def _information(site: InputNetworkSummary) -> str:
    rank = site.fisher.rank if site.fisher else 0
    return f"diagonal and {format_count(rank, 'factor')}" if rank else "diagonal"


def _stated(value: float | None) -> str:
    return "not stated" if value is None else format_value(value)


def what_came_out(content: NetworkContent) -> Section:
    """Return the method, the size of the fused network, its proof and its repair."""
    findings, groups = content.network_findings, content.groups
    layers = findings.refit if findings.refit != findings.repaired else None
    facts = {
        "Method": f"{shorten(content.method)}{f': {content.summary}' if content.summary else ''}",
        "Units": f"{content.units:,} in {format_count(len(groups), 'group')} that move together" if groups else None,
        "Parameters": None if content.side_by_side else f"{content.parameters:,}{content.parameter_note}",
        "Symmetry": _proof(findings),
        "Repair": _repair(findings),
        "Layers": None if layers is None else shorten(layers, 300),
        "Seed": seed_text(content.seed),
    }
    blocks: list[Block] = [Facts(facts)]
    if findings.notes:
        blocks.append(Heading(content.notes_heading))
        if content.notes_text:
            blocks.append(Paragraph(content.notes_text))
        notes = [shorten(note, 300) for note in findings.notes[:MAX_ROWS]]
        n_more = len(findings.notes) - MAX_ROWS
        blocks.append(Items(notes + ([f"and {format_count(n_more, 'note')} more"] if n_more > 0 else [])))
    return Section("out", "The fused network", blocks)


def _proof(findings: NetworkFindings) -> str | None:
    if not findings.is_proved:
        return None if findings.is_proved is None else "not proved"
    return (
        f"proved: {format_count(findings.trials or 0, 'random change')} of every group moved outputs by at most "
        f"{format_value(findings.deviation)} of their size"
    )


def _repair(findings: NetworkFindings) -> str | None:
    if findings.repaired is None:
        return "none yet: statistics of batch normalisation are averages" if findings.needs_repair else None
    training = "; in training mode it is another network, by its gamma and beta" if findings.needs_repair else ""
    return f"{shorten(findings.repaired, 300)}{training}"


def how_good_it_is(content: NetworkContent) -> Section | None:
    """Return the scores that were given with the fusion."""
    if not content.scores:
        return None

    def score(metric: str) -> Column:
        return Column(shorten(metric, 30), lambda row: row[1].get(metric), digits=content.digits(metric))

    columns = [text_column("Network", lambda row: row[0]), *map(score, content.metrics[:_MAX_METRICS])]
    table = Table("Table of scores", list(content.scores.items()), columns, "network", kind="narrow")
    more = f"The first {_MAX_METRICS} of {len(content.metrics):,} scores are shown."
    return Section(
        "scores", "How good it is", [table, Paragraph(more, "note") if len(content.metrics) > _MAX_METRICS else None]
    )


def how_well_units_match(content: NetworkContent) -> Section | None:
    """Return the distances of the models by group and by layer."""
    groups, layers = content.groups, content.layers
    if not groups:
        return None
    has_shared = any(group.shared is not None for group in groups)
    figure: Block | None = None
    if any(group.after is not None or group.before is not None for group in groups):
        figure = Figure(
            bars(groups, content.unrelated_distance), "Distances of the models by group", _distance_caption(content)
        )
    elif content.is_from_file:
        figure = Paragraph(
            sentences(
                "The file does not hold who became whom. Give",
                code("consilience report"),
                "the files of all sites as well to see how far apart they are as they stand; the page that",
                code("fusion.report"),
                "writes shows both.",
            )
        )
    columns = [
        text_column("Group", _group_name),
        Column("Units of the models", lambda group: group.unit_counts_text),
        Column("Fused", attrgetter("fused")),
        Column("Shared", attrgetter("shared")) if has_shared else None,
        *_distance_columns(groups),
    ]
    caption = sentences(
        "A group is a set of units that move together, named after the array that makes them.",
        has_shared and "Shared: fused units that more than one model has.",
    )
    layer_columns = [
        text_column("Layer", attrgetter("name"), limit=40),
        Column("Entries", attrgetter("entries")),
        *_distance_columns(layers),
    ]
    by_layer = Table("Table of layers", layers, layer_columns, "layer", "The same by layer.", "narrow")
    # Layers are known where all networks are, so that these tables need not come together.
    blocks = [figure, Table("Table of groups", groups, columns, "group", caption), by_layer if layers else None]
    return Section("groups", "How well units match", blocks)


def _distance_caption(content: NetworkContent) -> Markup:
    has_after = any(group.after is not None for group in content.groups)
    has_before = any(group.before is not None for group in content.groups)
    swatch = '<span class="swatch {}"></span>{}'
    if has_before and has_after:
        before, after = (
            markup(swatch, "before", "as the models are,"),
            markup(swatch, "after", "with their units matched."),
        )
        shown: object = sentences(before, after)
    else:
        shown = "With units matched." if has_after else "As the models are, no unit moved."
    unrelated = ""
    if content.unrelated_distance is not None:
        unrelated = f", {format_fixed(content.unrelated_distance, 3)} for models that have nothing in common"
    return sentences(
        shown,
        f"{content.distance_definition}: 0 for copies{unrelated}.",
        len(content.groups) > MAX_ROWS and f"{MAX_ROWS} of {len(content.groups):,} groups are drawn.",
    )


def _group_name(group: GroupSummary) -> Markup:
    inside = ""
    if group.parent is not None:
        inside = markup('<br><span class="note">inside {}</span>', shorten(group.parent, 40))
    return markup("{}{}", shorten(group.name, 40), inside)


def _distance_columns(items: Sequence[Any]) -> list[Column | None]:
    """Return the columns of distances before and after matching, as far as these are known."""
    has_before, has_after = (any(getattr(item, name) is not None for item in items) for name in ("before", "after"))
    return [
        Column("Distance before", attrgetter("before"), digits=3) if has_before else None,
        Column("After" if has_before else "Distance", attrgetter("after"), digits=3) if has_after else None,
    ]


def who_is_who(content: NetworkContent) -> Section | None:
    """Return the maps of the couplings."""
    couplings = content.couplings
    if not content.groups or not couplings:
        return None
    drawn = [(coupling, coupling.shares) for coupling in couplings if coupling.shares is not None]
    soft = [coupling for coupling in couplings if coupling.diagnostics is not None]
    blocks: list[Block | None] = [*_maps(drawn, len(soft), len(couplings))]
    unmoved = [coupling for coupling in couplings if not coupling.is_moved]
    n_undrawn = len(couplings) - len(unmoved) - len(drawn)
    if n_undrawn > 0:
        verb, more = "is" if n_undrawn == 1 else "are", format_count(n_undrawn, "more matching")
        undrawn = markup("{} maps are drawn; {} {} in {}.", MAX_MAPS, more, verb, code("fusion.matching"))
        blocks.append(Paragraph(undrawn, "note"))
    if unmoved:
        blocks.append(Paragraph(_unmoved_text(unmoved, len(couplings))))
    return Section("who", "Matching", [*blocks, _diagnostics(soft) if soft else None])


def _maps(drawn: Sequence[tuple[Coupling, Array]], n_soft: int, n_couplings: int) -> list[Block]:
    """Return the maps that are drawn, after what their cells and shades mean; nothing without a map."""
    if not drawn:
        return []
    explained = sentences(
        "Each row is a fused unit, each column a unit of one model; the shade is the share of the fused unit that "
        "came from there.",
        n_soft < n_couplings
        and "Units are in the model’s own order where each became one fused unit, so a diagonal says that "
        "numbers were kept.",
        n_soft > 0
        and "Where units were spread, columns are ordered by the fused unit that received most of each: a sharp "
        "diagonal is a permutation.",
        any(coupling.is_blocked for coupling, _ in drawn)
        and "Larger groups are drawn in blocks of neighbouring units, whose shares are means over rows and sums "
        "over columns.",
    )
    legend = [markup('<span class="swatch h{}"></span>{}', shade, shares) for shade, shares in share_legend()]
    maps = [Figure(coupling_map(coupling, shares), "", _map_caption(coupling)) for coupling, shares in drawn]
    return [Paragraph(explained), Items(legend, "swatches"), BlockGroup(maps, "tiles")]


def _map_caption(coupling: Coupling) -> Markup:
    texts = [shorten(coupling.model, 30)]
    if coupling.n_unmoved is not None:
        numbers = "their numbers" if coupling.n_units > 1 else "its number"
        texts[0] += f": {coupling.n_unmoved:,} of {format_count(coupling.n_units, 'unit')} kept {numbers}"
    if coupling.n_sign_flips:
        texts.append(f"{coupling.n_sign_flips:,} changed sign")
    if coupling.is_blocked:
        texts.append(f"cells of {coupling.block_shape[0]} × {coupling.block_shape[1]} units")
    return markup("{}, {}", strong(f"Group {shorten(coupling.group, 40)}"), listed(texts, "; "))


def _unmoved_text(unmoved: Sequence[Coupling], n_couplings: int) -> str:
    if len(unmoved) == n_couplings:
        return "No unit of any model moved."
    named = ", ".join(
        f"group {shorten(coupling.group, 40)} of {shorten(coupling.model, 30)}" for coupling in unmoved[:_MAX_NAMED]
    )
    n_more = len(unmoved) - _MAX_NAMED
    more = f" and {format_count(n_more, 'more matching')}" if n_more > 0 else ""
    return f"Not drawn, since all units kept their numbers: {named}{more}."


def _diagnostics(soft: Sequence[Coupling]) -> Table:
    columns = [
        text_column("Group", attrgetter("group"), limit=40),
        text_column("Model", attrgetter("model"), limit=40),
        Column("Partners", attrgetter("diagnostics.effective_partners"), digits=2),
        Column("Largest", attrgetter("diagnostics.mean_largest"), digits=3),
        Column("Off", attrgetter("diagnostics.off_permutation"), digits=3),
        Column("Distance", attrgetter("diagnostics.distance"), digits=2),
    ]
    caption = (
        "Partners: how many units, in effect, a fused unit is made of: the exponential of the mean entropy of its "
        "shares. Largest: mean share of its largest part. Both are 1 for a permutation. Off: mass that is not on the "
        "nearest permutation; distance: Frobenius norm of the coupling, times its number of rows, minus that "
        "permutation."
    )
    return Table("Table of couplings", soft, columns, "coupling", caption)


def how_it_was_found(content: NetworkContent) -> Section | None:
    """Return the objective of the starts and over the steps, and facts by group."""
    findings, shown = content.network_findings, content.findings.history[:_MAX_HISTORY_STEPS]
    n_steps, starts = len(content.findings.history), findings.starts
    drawn = f", of which the first {len(shown):,} are drawn" if n_steps > len(shown) else ""
    figure = descent(shown, f"The objective after each step{drawn}.")
    blocks: list[Block | None] = []
    if starts:
        which = "each start" if len(starts) > 1 else "the start"
        more = f" and {format_count(len(starts) - MAX_ROWS, 'more start')}" if len(starts) > MAX_ROWS else ""
        blocks.append(Paragraph(f"Objective of {which}: {', '.join(map(format_value, starts[:MAX_ROWS]))}{more}."))
    blocks.append(figure)

    def fact(name: str) -> Column:
        title = shorten(name.replace("_", " ").capitalize(), 30)
        return Column(title, lambda row: dict(row[1]).get(name))

    if findings.group_facts:
        names = list(dict.fromkeys(name for _, facts in findings.group_facts for name, _ in facts))[:_MAX_FACTS]
        columns = [text_column("Group", lambda row: row[0], limit=40), *map(fact, names)]
        label = "Table of what was found in each group"
        blocks.append(Table(label, findings.group_facts, columns, "group", kind="narrow"))
    return Section("found", "How it was found", [block for block in blocks if block is not None])


def line_chip(index: int, n_drawn: int) -> Markup:
    """Return the colour of a line or network, if it is among those drawn."""
    return chip(colour_class(index)) if index < n_drawn else Markup("")
