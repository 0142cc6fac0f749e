"""Sections of the page about fused posteriors: a function of the content each, in the order of the page."""

from __future__ import annotations

from markupsafe import Markup

from consilience.core.candidates_section import choice_section
from consilience.core.findings import NumberSupport, VocabularySummary
from consilience.core.page_blocks import DIGEST_CAPTION, code, descent, digest_column, seed_text, site_name, strong
from consilience.core.site_losses import HELD_OUT
from consilience.core.verdict import FUSED
from consilience.drawing.blocks import (
    MAX_ROWS,
    BlockGroup,
    Column,
    Facts,
    Figure,
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
from consilience.drawing.words import format_beside, format_count, format_fixed, format_number, shorten
from consilience.posteriors.methods import METHODS
from consilience.posteriors.report import charts
from consilience.posteriors.report.charts import SITES_AT_MOST, matching_map, plane_figure, share_bars
from consilience.posteriors.report.content import PosteriorContent
from consilience.posteriors.report.members import ComponentSummary, SiteSummary
from consilience.posteriors.report.planar_components import ComponentPlane

_MAX_MEMBERS = 8
"""Sites of a component that are named. Chosen by eye."""

MAX_MOMENT_COLUMNS = 10
"""Components whose means and deviations have a column. Chosen by eye."""

NAMED_NUMBERS = 5
"""Numbers of components that are named with their probability, the likeliest first."""


def how_sites_judge_it(content: PosteriorContent) -> Section | None:
    """Return the losses on rows that sites held out; None where they were not asked."""
    verdict = content.verdict
    is_held_out = verdict is not None and verdict.criterion.endswith(HELD_OUT)
    return choice_section(verdict, "model", content.findings.at_sites) if is_held_out else None


def what_it_loses(content: PosteriorContent) -> Section | None:
    """Return what the fused model and every site's own lose against all side by side."""
    verdict = content.verdict
    if verdict is None or not verdict.losses or verdict.criterion.endswith(HELD_OUT):
        return None
    columns = [
        text_column("Model", lambda row: strong("the fused model") if row[0] == FUSED else shorten(row[0])),
        Column("Loss", lambda row: row[1], digits=3),
    ]
    caption = (
        f"The {shorten(verdict.criterion)}, against all models side by side: how much less probable, on average, each "
        "model finds an observation drawn from all of them than they do together. It is computed from parameters "
        "alone, so it believes what the sites say of themselves."
    )
    return Section("loss", "What is lost", [Table("Losses", verdict.losses, columns, "model", caption, "narrow")])


def what_went_in(content: PosteriorContent) -> Section:
    """Return the sites."""
    sites = content.sites
    counted = [site for site in sites if site.observations is not None]
    hashed = digest_column(sites)
    has_notes = content.findings.outliers or any(site.weight == 0 or site.n_dropped for site in sites)
    total = sum(site.observations or 0.0 for site in counted)
    smallest = min((site.smallest for site in counted if site.smallest is not None), default=None)
    columns = [
        text_column("Site", site_name, total=f"All {len(sites):,}"),
        Column("Components", lambda site: site.components, total=content.n_local),
        Column("Weight", lambda site: site.weight, digits=2),
        Column("Observations", lambda site: site.observations, digits=1, total=total) if counted else None,
        Column("Smallest count", lambda site: site.smallest, digits=1, total=smallest) if counted else None,
        hashed,
        text_column("Note", lambda site: _note(site, content), kind="remark") if has_notes else None,
    ]
    caption = sentences(_about_counts(content, bool(counted)), DIGEST_CAPTION if hashed else "")
    facts = Facts({"Categories of columns": "; ".join(content.categories)}) if content.categories else None
    return Section("in", "What went in", [Table("Table of sites", sites, columns, "site", caption), facts])


def _about_counts(content: PosteriorContent, are_known: bool) -> object:
    """Return what the counts of the sites are, or why none are shown."""
    if are_known:
        return (
            "Observations are effective counts. A component with few observations reveals much about each of them: "
            "look at the smallest count before a file travels."
        )
    if content.n_known_sites == 0:
        return markup(
            "The fused file alone does not hold the counts of its sites. Give {} the sites’ files as well to see them.",
            code("consilience report"),
        )
    if content.process is not None and content.process.fused.observations is not None:
        return Markup('The number of observations behind each is stated <a href="#function">with its kernel</a>.')
    return "These models do not say how many observations are behind them."


def _note(site: SiteSummary, content: PosteriorContent) -> Markup:
    """Return what is out of the ordinary about a site."""
    return sentences(
        f"Outlier: {shorten(site.outlier, 200)}." if site.outlier is not None else "",
        "No vote: weight 0." if site.weight == 0 else "",
        _dropped(site.n_dropped, content) if site.n_dropped else "",
    )


def _dropped(count: int, content: PosteriorContent) -> str:
    """Return how many components of a site are in no fused one, and why as far as the file says."""
    details = {name for name, _ in content.findings.scalar_details} | set(content.findings.hidden_details)
    reasons = []
    if details & {"left_out", "withheld"}:
        reasons.append("too few observations")
    if "unusable" in details:
        reasons.append("no usable parameters")
    if "robust" in details:
        reasons.append("`robust=` leaves out what does not fit with most sites")
    if "dropped" in details:
        reasons.append("fewer than half of the sites have such a component, which `minority='drop'` leaves out")
    because = " or ".join(reasons) or "the method found no fused component to join"
    return f"{format_count(count, 'component')} left out: {because}."


def what_came_out(content: PosteriorContent) -> Section:
    """Return the method with its average, and the fused components."""
    components, findings = content.components, content.findings
    summary = next((f": {kind.summary}" for kind in METHODS if kind.name == content.method), "")
    facts = {
        "Components": f"{len(components):,}{_support(findings.number, len(components))}",
        "Family": content.family,
        "Method": f"{shorten(content.method)}{summary}",
        "Average": _average(content),
        "Vocabulary": None if findings.vocabulary is None else _vocabulary(findings.vocabulary),
        "Spread": None if findings.spread is None else _SPREAD.format(*map(format_number, findings.spread)),
        "Seed": seed_text(content.seed),
    }
    has_confidence, has_entropy = content.has_confidence, content.has_entropy
    few_sites = len(content.sites) <= MAX_ROWS
    caption = sentences(
        markup("Components are numbered from 0, as in {}.", code("fusion.matching.labels")),
        content.is_matched
        and f"Members are the local components behind each{'; open a row to see whose they are' if few_sites else ''}.",
        has_confidence and "Confidence is the mean over members, from 0 to 1.",
        has_entropy
        and "Entropy says how uncertain the parameters of a component still are, in nats: the less, the surer, and "
        "below 0 is surer still. It depends on units, so compare it only with others on this page.",
    )
    columns = [
        text_column("Component", lambda component: numbered(component.number)),
        text_column("Members", lambda component: _members(component, few_sites)) if content.is_matched else None,
        Column("Sites", lambda component: len(component.members)) if content.is_matched else None,
        _column("Observations", "observations", 1) if components[0].observations is not None else None,
        _column("Weight", "weight", 3) if components[0].weight is not None else None,
        _column("Confidence", "confidence", 2) if has_confidence else None,
        _column("Entropy", "entropy", 2) if has_entropy else None,
    ]
    table = Table("Table of fused components", components, columns, "component", caption)
    return Section("out", "The fused model", [Facts(facts), table])


_SPREAD = (
    "Copies of a component differ from it by {}, components from their mean by {}: standard deviations of their "
    "points, over all dimensions. Given the matching, a fused point is known to a standard deviation of {} on average."
)


def _support(number: NumberSupport | None, n_components: int) -> str:
    """Return how probable the number of components is; nothing where no evidence was asked."""
    probability = dict(number.probabilities).get(str(n_components)) if number is not None else None
    if probability is None:
        return ""
    return f", of probability {format_fixed(probability, 2)} given how much copies differ"


def _column(title: str, name: str, digits: int) -> Column:
    return Column(title, lambda item: getattr(item, name), digits=digits)


def numbered(number: int) -> Markup:
    """Return the number of a component, with its colour."""
    return markup("{}{}", chip(colour_class(number)), number)


def _average_name(content: PosteriorContent) -> str:
    """Return which average was taken: what the result says, or the option in files that do not say."""
    average = content.findings.average
    return str(dict(content.options).get("combine")) if average is None else average.name


_AVERAGES = {
    "hierarchical": "hierarchical: what sites’ components have in common, copies discounted by how much sites differ",
    "barycenter": "barycenter: as wide as one site’s posterior, and wider where copies disagree",
    "product": "product: the posterior given all data, each site’s prior removed once",
}


def _average(content: PosteriorContent) -> str | None:
    """Return what matched components became together, and why."""
    if content.keeps_models:
        shown = ", and the Bayes product of their processes" if content.process else ""
        return (
            "none: the model asks every site’s model by itself. What this page shows of it are their components, side "
            f"by side{shown}"
        )
    if content.process:
        return (
            "Bayes product of the sites’ processes at the fused inducing inputs: the process given all data, the prior "
            "counted once"
        )
    name, average = _average_name(content), content.findings.average
    if name == "barycenter" and content.family == "point":
        return None
    meaning = _AVERAGES.get(name)
    if meaning is None or average is None:
        return meaning
    reasons = [shorten(text, _MAX_REASON) for text in (average.reason, average.priors) if text]
    return f"{meaning} ({'; '.join(reasons)})" if reasons else meaning


_MAX_REASON = 200
"""Letters of a reason that are shown; those of this library are shorter, those of a stranger's file may not be."""


def _vocabulary(words: VocabularySummary) -> Markup:
    """Return how vocabularies were aligned."""
    lacking = [f"{shorten(name)} lacks {format_number(lacks)}" for name, lacks in words.missing[:MAX_ROWS]]
    if len(words.missing) > MAX_ROWS:
        lacking.append(f"{format_count(len(words.missing) - MAX_ROWS, 'site')} more lack some")
    warnings = [
        strong(
            f"{shorten(name)} shares only {format_fixed(100 * share, 1)} % of its words with any other site: is it "
            "the same language, made from text in the same way?"
        )
        for name, share in words.shared_parts[:MAX_ROWS]
    ]
    counts = listed([f"{words.size:,} words in all", *lacking], "; ")
    return sentences(markup("{}.", counts), "A word that a site lacks has its topics’ prior there.", *warnings)


def _members(component: ComponentSummary, few_sites: bool) -> object:
    """Return how many local components are behind one, with whose they are to open."""
    count = format_value(component.n_members)
    if not (few_sites and component.members):
        return count
    return markup("<details><summary>{}</summary>{}</details>", count, listed(_member_names(component, MAX_ROWS), "; "))


def _member_names(component: ComponentSummary, limit: int) -> list[str]:
    members = (component.members or ())[:limit]
    return [f"{shorten(name, 40)} ({', '.join(map(str, numbers))})" for name, numbers in members]


def member_text(component: ComponentSummary) -> Markup:
    """Return the sites of a component with their numbers of it, the first few by name."""
    names = _member_names(component, _MAX_MEMBERS)
    n_more = len(component.members or ()) - _MAX_MEMBERS
    more = f" and {format_count(n_more, 'site')} more" if n_more > 0 else ""
    return markup("{}{}", ", ".join(names) or "–", more)


def who_is_who(content: PosteriorContent) -> Section:
    """Return the matching map, or the shares of many sites."""
    sites, components = content.sites, content.components
    surer = "; the stronger {} colour, the surer" if content.has_confidence else ""
    if not content.is_matched:
        block: Figure | Paragraph = Paragraph(
            "This file does not say which of its inputs’ components became which: it was written by a version that "
            "did not record it."
        )
    elif len(sites) <= SITES_AT_MOST:
        caption: object = (
            "Each row is a site, each column a fused component. The number in a cell is that of the site’s own "
            f"component{surer.format('its')}. An empty cell says that the site does not have the component."
        )
        block = Figure(matching_map(sites, len(components)), "Matching map", caption)
    else:
        caption = sentences(
            f"With more than {SITES_AT_MOST} sites the map is summed up: how many of the {len(sites):,} sites have "
            f"each component{surer.format('the')}.",
            markup("{} has every label.", code("fusion.matching")),
        )
        n_dropping = sum(site.n_dropped > 0 for site in sites)
        block = Figure(share_bars(components, len(sites), n_dropping), "Share of sites with each component", caption)
    return Section("who", "Matching", [block])


def the_components(content: PosteriorContent) -> Section:
    """Return what the components are: where they lie, their words, their parameters."""
    components, space = content.components, content.embedding_space
    word = "symbol" if content.chain else "word"
    came = ", and the sites it came from, with their own numbers of it" if content.is_matched else ""
    first = components[0]
    columns = [
        text_column("Component", lambda component: numbered(component.number)),
        text_column(f"{word.capitalize()}s", _words),
        text_column("From", member_text, kind="from") if content.is_matched else None,
    ]
    words_caption = f"The most probable {word}s of each fused component, with their probabilities in percent{came}."
    names = [name for name, _ in first.parameters]

    def parameter(place: int) -> Column:
        return Column(names[place].capitalize(), lambda component: component.parameters[place][1])

    number = text_column("Component", lambda component: str(component.number))
    parameters = [number, *map(parameter, range(len(names)))]
    blocks = [
        None if content.plane is None else _plane(content, content.plane),
        Table(f"Most probable {word}s", components, columns, "component", words_caption, "words")
        if first.words
        else None,
        None if space is None else _embedding(space),
        _moments(content),
        Table("Parameters", components, parameters, "component", kind="narrow") if names else None,
    ]
    return Section("components", "The components", blocks)


def _moments(content: PosteriorContent) -> Table | None:
    """Return means and deviations of the components in the units of the features: a row for each feature."""
    moments = content.moments
    if moments is None:
        return None
    n_shown = min(len(moments.mean), MAX_MOMENT_COLUMNS)

    def column(number: int) -> Column:
        def shown(place: int) -> str:
            mean, deviation = moments.mean[number, place], moments.deviation[number, place]
            if content.family == "point":
                return format_number(float(mean))
            return f"{format_beside(float(mean), float(deviation))} ± {format_number(float(deviation))}"

        return Column(numbered(number), shown, kind="n")

    def feature(place: int) -> str:
        unit = f" ({shorten(moments.units[place], 20)})" if moments.units[place] else ""
        return f"{shorten(moments.names[place], 40)}{unit}"

    columns = [text_column("Feature", feature, limit=80), *map(column, range(n_shown))]
    deviation = "the standard deviation of the observations in it"
    if not content.describes_data:
        deviation = "its standard error: how surely the mean is known, not how far observations are from it"
    caption = sentences(
        f"Mean of each fused component{'' if content.family == 'point' else f', and after ± {deviation}'}, in the units"
        " of the features.",
        len(moments.mean) > n_shown
        and markup("{} of {} components are shown; {} has all.", n_shown, len(moments.mean), code("fusion.to_frame()")),
    )
    return Table("Means and deviations", range(len(moments.names)), columns, "feature", caption)


def _words(component: ComponentSummary) -> Markup:
    shown = "{} <small>{}</small>"
    return listed(markup(shown, shorten(word, 40), format_fixed(100 * share, 1)) for word, share in component.words)


def _embedding(space: str) -> Paragraph:
    named = markup("the space of the embeddings {}", code(shorten(space))) if space else "a space of word embeddings"
    return Paragraph(
        markup(
            "These topics are centres in {}. Their words are those nearest to them, which only who has the embeddings "
            "can tell: {}.",
            named,
            code("fusion.model.top_words(10, embeddings, vocabulary)"),
        )
    )


def _drawn_law(content: PosteriorContent) -> str:
    return (
        "a component" if content.describes_data else "a component's posterior: it shows how surely its place is known"
    )


def _plane(content: PosteriorContent, plane: ComponentPlane) -> Figure:
    is_points = content.family == "point"
    if is_points:
        shape = "Each dot is a component, which has a place and no width."
    elif plane.kind == "line":
        shape = f"Each bar covers the middle half of {_drawn_law(content)}."
    else:
        shape = f"Each ellipse holds half of {_drawn_law(content)}."
    has_dropped = any(ellipse.component < 0 for ellipse in plane.local)
    grey = ", and grey where they were dropped" if has_dropped else ""
    differences = (
        "points differ most"
        if is_points
        else "means differ most, measured by the mean covariance within components; a unit is one standard deviation "
        "of a typical component"
    )
    is_projected = plane.kind == "projected"
    caption = sentences(
        shape,
        "Thick: the fused components, with their numbers.",
        plane.local and f"Thin: the local ones, in the colour of what they became{grey}.",
        len(plane.local) < plane.n_local
        and f"{len(plane.local):,} of {plane.n_local:,} local components are drawn, evenly chosen.",
        is_projected and f"The axes are the two directions in which fused {differences}.",
        is_projected
        and plane.share is not None
        and f"They show {format_fixed(100 * plane.share, 0)} % of the differences.",
        content.n_known_sites == 0 and "Give the sites’ files as well to see the local components.",
    )
    return Figure(plane_figure(plane), "The components", caption)


def how_certain(content: PosteriorContent) -> Section | None:
    """Return the entropies of the components."""
    if not any(component.entropy is not None and component.local_entropies for component in content.components):
        return None
    many = " (with many: their range, and a box around the middle half)" if content.n_local > charts.MAX_DOTS else ""
    meanings = {
        "barycenter": "A barycenter is about as wide as one site’s posterior.",
        "product": "A product adds up the evidence of all sites, so it is surer than each.",
        "hierarchical": "A hierarchical average is as sure of means as sites agree, and of the spread as a product.",
    }
    caption = sentences(
        "A diamond is the entropy of a fused component’s posterior, dots are those of the local components behind "
        f"it{many}. Further left is surer.",
        meanings.get(_average_name(content), ""),
    )
    figure = Figure(charts.entropy_chart(content.components), "Uncertainty of the components", caption)
    return Section("certain", "How certain", [figure])


def how_it_was_found(content: PosteriorContent) -> Section | None:
    """Return the path over numbers of components, and the descent of the objective."""
    findings, figures = content.findings, []
    if len(findings.path) > 1:
        caption = (
            "The criterion for each number of components that was tried: lower is better, and triangles at the top are "
            "beyond the scale. The number that came out is marked."
            if findings.measure == "criterion"
            else "The lowest cost of each number of components that was tried; the chosen one is marked. The cost "
            "falls steeply while true components are missing, slowly once copies of the same thing are split."
        )
        caption += _number_text(findings.number)
        curve = charts.path_curve(findings.path, len(content.components), findings.measure)
        figures.append(Figure(curve, "Path over numbers of components", caption))
    if (figure := descent(findings.history)) is not None:
        figures.append(figure)
    return Section("found", "How it was found", [BlockGroup(figures)]) if figures else None


def _number_text(number: NumberSupport | None) -> str:
    """Return what supports the number of components, in sentences after others."""
    if number is None:
        return ""
    shares = ", ".join(f"{count}: {format_fixed(share, 3)}" for count, share in number.probabilities[:NAMED_NUMBERS])
    sentences = [f" Probability of each number, given how much copies differ: {shares}."]
    if number.prior:
        sentences.append(f" Matchings were searched under the {number.prior} prior.")
    if number.losses:
        losses = ", ".join(f"{name} {format_number(loss)}" for name, loss in number.losses)
        sentences.append(f" What they lose against all models side by side, in nats per observation: {losses}.")
    if number.merged:
        sentences.append(f" {format_count(number.merged, 'component')} became one with another of the same site.")
    return "".join(sentences)


def how_sites_differ(content: PosteriorContent) -> Section:
    """Return outliers, components of a minority, and heterogeneity."""
    findings = content.findings
    outliers = Table(
        "Table of outliers",
        findings.outliers,
        [text_column("Site", lambda row: row[0]), text_column("Why", lambda row: row[1], limit=200)],
        "outlier",
        "Sites that the method took for outliers.",
    )
    minority = Table(
        "Table of components of a minority",
        findings.minority,
        [
            text_column("Component", lambda holding: str(holding.component)),
            Column("Sites", lambda holding: holding.sites),
            text_column(
                "Held by",
                lambda holding: (
                    shorten(", ".join(holding.names), 200) + (", ..." if holding.sites > len(holding.names) else "")
                ),
                limit=210,
            ),
            Column("Observations", lambda holding: holding.counts),
        ],
        "component",
        "Components that fewer than half of the sites hold: a rare disease, or a component that a site fabricated; "
        "parameters cannot tell which.",
    )
    heterogeneity = Table(
        "Table of heterogeneity",
        findings.heterogeneity,
        [text_column("Block", lambda row: row[0]), Column("Heterogeneity", lambda row: row[1])],
        "block",
        Markup(
            "How much copies of one component differ between sites beyond what their posteriors admit, by block of "
            "parameters: under heterogeneity <i>h</i> a copy of <i>n</i> observations is worth 1 / (1/<i>n</i> + "
            "<i>h</i>) of the shared component, so never more than 1 / <i>h</i>."
        ),
        "narrow",
    )
    blocks = [table if table.items else None for table in (outliers, minority, heterogeneity)]
    return Section("differ", "How sites differ", blocks)
