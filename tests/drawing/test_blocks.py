"""Blocks of a page: what they render, and that texts in them stay texts."""

import base64
import csv
import io
import re

from markupsafe import Markup

from consilience.drawing.blocks import (
    MAX_ROWS,
    BlockGroup,
    Column,
    Facts,
    Figure,
    Heading,
    Items,
    Paragraph,
    Section,
    Table,
    format_value,
    listed,
    markup,
    sentences,
    sort_rules,
    text_column,
)
from consilience.drawing.html import Page
from tests.end_to_end.pages import Page as PageRead
from tests.end_to_end.pages import safe

HOSTILE = '<script>"&\u202e'
DRAWING = Markup('<svg role="img" aria-label="nothing"></svg>')


def page_of(*sections, lead=("two models", "→ one")):
    return PageRead(Page("Fusion report", lead, [Paragraph("Converged.", "status")], sections, "One file.").render())


def test_hostile_texts_are_texts_in_every_block():
    columns = [text_column(HOSTILE, lambda row: row, total=HOSTILE), Column(HOSTILE, lambda row: row, total=HOSTILE)]
    blocks = [
        Paragraph(HOSTILE, HOSTILE),
        Heading(HOSTILE),
        Items([HOSTILE], HOSTILE),
        Facts({HOSTILE: HOSTILE}),
        Figure(DRAWING, HOSTILE, HOSTILE),
        Table(HOSTILE, [HOSTILE], columns, HOSTILE, HOSTILE, HOSTILE),
        BlockGroup([Paragraph(HOSTILE)], HOSTILE),
    ]
    page = page_of(Section(HOSTILE, HOSTILE, blocks, HOSTILE), lead=(HOSTILE, HOSTILE))
    safe(page)
    assert page.all("script") == []
    assert "\u202e" not in page.source
    assert page.text.count(r'<script>"&\u202e') >= 14


def test_what_is_not_there_is_left_out():
    facts = Facts({"Method": "kl", "Average": None})
    empty, without = Section("empty", "Empty", []), Section("nothing", "Nothing", [None, None])
    page = page_of(Section("out", "The fused model", [facts, None], "Out"), None, empty, without)
    assert page.sections == ["out"]
    assert [link["href"] for link in page.all("a")] == ["#out"]
    assert "Average" not in page.text
    assert sentences("A.", "", None, False, "B.") == "A. B."


def test_rows_beyond_the_most_are_counted():
    table = Table(
        "Table", range(MAX_ROWS + 2), [text_column("Number", str), None, Column("Twice", lambda n: 2 * n)], "row"
    )
    page = PageRead(table.render())
    assert len(page.all("tr")) == 1 + MAX_ROWS + 1
    assert "and 2 rows more" in page.words
    assert len(page.all("th")) == 2 + MAX_ROWS


def test_numbers_are_written_as_their_column_says():
    rows = [("a", 1.25), ("b", None), ("c", Markup("<b>3</b>"))]
    columns = [
        text_column("Name", lambda row: row[0], total="All"),
        Column("Value", lambda row: row[1], digits=1, total=9),
    ]
    words = PageRead(Table("Table", rows, columns, "row").render()).words
    assert words == "Name Value a 1.2 b – c 3 All 9.0 CSV"
    assert format_value(10**400).startswith("1000")
    assert format_value("never left", 2) == "never left"


def test_markup_of_ours_is_kept():
    assert markup("{}, {}", Markup("<i>h</i>"), "<i>") == "<i>h</i>, &lt;i&gt;"
    assert listed(["a", Markup("<b>b</b>"), "<"], "; ") == "a; <b>b</b>; &lt;"


def test_the_policy_allows_the_styles_that_the_page_has_and_no_others():
    section = Section("in", "What went in", [Paragraph("Two models.")])
    plain = PageRead(Page("Fusion report", ("a", "b"), [], [section], "One file.").render())
    network = PageRead(
        Page("Fusion report", ("a", "b"), [], [section], "One file.", ("report.css", "network.css")).render()
    )
    safe(plain)
    safe(network)
    policies = [[one["content"] for one in page.all("meta") if "http-equiv" in one] for page in (plain, network)]
    assert len(policies[0]) == len(policies[1]) == 1
    assert policies[0] != policies[1]


def saved(page, suffix):
    """Return the file in the link of a page."""
    data = re.search(rf'download="[a-z0-9-]+\.{suffix}" href="data:[^;]*;base64,([^"]*)"', str(page)).group(1)
    return base64.b64decode(data).decode()


def sites_table(names, weights):
    columns = [text_column("Site", lambda row: row[0]), Column("Weight", lambda row: row[1], digits=1)]
    return Table("Sites", list(zip(names, weights, strict=True)), columns, "site")


def test_a_table_is_saved_whole_with_full_numbers_and_without_formulas():
    names = [*(f"site {n}" for n in range(99)), "=HYPERLINK(1)"]
    rows = list(csv.reader(io.StringIO(saved(sites_table(names, [1 / 3] * 100).render(), "csv"))))
    assert rows[0] == ["Site", "Weight"]
    assert rows[1] == ["site 0", repr(1 / 3)]
    assert rows[-1][0] == "'=HYPERLINK(1)"
    assert len(rows) == 101


def test_ranks_of_a_table_order_numbers_by_size_and_names_naturally_and_what_is_missing_last():
    page = str(sites_table(["site 10", "site 9", "site 1"], [None, 10.0, 9.0]).render())
    assert re.findall(r'<tr role="row" class="(a\d b\d)">', page) == ["a2 b2", "a1 b1", "a0 b0"]
    rules = sort_rules(page)
    assert "table:has(.by-b:checked) .b2{--rank:2}" in rules
    assert sort_rules(str(markup('<tr role="row" class="{}">', "a1"))) == ["table:has(.by-a:checked) .a1{--rank:1}"]


def test_every_sort_button_says_what_it_does_and_few_rows_have_none():
    page = str(sites_table(["a", "b", "c"], [1.0, 2.0, 3.0]).render())
    labels = re.findall(r'<input type="radio" [^>]*aria-label="([^"]*)"', page)
    assert labels == [f"Sort by {name}, {way}" for name in ("Site", "Weight") for way in ("ascending", "descending")]
    assert "<input" not in str(sites_table(["a", "b"], [1.0, 2.0]).render())


def test_a_saved_figure_stands_alone_with_its_colours():
    figure = Figure(markup('<svg viewBox="0 0 9 9"><rect class="box k0"></rect></svg>'), "Weights of 2 sites")
    drawing = saved(figure.render(), "svg")
    assert drawing.startswith('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><style>')
    assert ".k0{color: #1f5fa8;}" in drawing
    assert "var(" not in drawing
    assert "diamond" not in drawing
