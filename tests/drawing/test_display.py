"""How values show themselves."""

from dataclasses import dataclass

from consilience.drawing.display import MAX_SENTENCE_LINES, Displayed


@dataclass(frozen=True, repr=False)
class Value(Displayed):
    sentence: str

    def _headline(self):
        return "of two words"

    def _facts(self):
        return {"": self.sentence, "to do": "nothing"}


def test_a_long_sentence_goes_on_in_lines_that_stand_further_in():
    title, first, *others, last = repr(Value("word " * 200)).splitlines()
    assert title == "Value: of two words"
    assert first.startswith("  word")
    assert len(others) == MAX_SENTENCE_LINES - 1
    assert all(line.startswith("    word") for line in others)
    assert last == "  to do: nothing"
