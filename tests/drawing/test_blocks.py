"""Blocks of a page: what they render, and that texts in them stay texts."""

from markupsafe import Markup

from consilience.drawing.blocks import (
    MAX_ROWS,
    Column,
    Facts,
    Figure,
    Group,
    Heading,
    Items,
    Paragraph,
    Section,
    Table,
    format_value,
    listed,
    markup,
    sentences,
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
        Group([Paragraph(HOSTILE)], HOSTILE),
    ]
    page = page_of(Section(HOSTILE, HOSTILE, blocks, HOSTILE), lead=(HOSTILE, HOSTILE))
    safe(page)
    assert page.all("script") == []
    assert "\u202e" not in page.source
    assert page.text.count(r'<script>"&\u202e') >= 14


def test_what_is_not_there_is_left_out():
    facts = Facts({"Method": "kl", "Average": None})
    empty, without = Section("empty", "Empty", []), Section("nothing", "Nothing", [None, None])
    page = page_of(Section("out", "What came out", [facts, None], "Out"), None, empty, without)
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
    assert words == "Name Value a 1.2 b – c 3 All 9.0"
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
    assert plain.all("meta")[1] != network.all("meta")[1]
