"""When a refusal is as good as another: its wording may change, its subject, its facts and its remedy may not go.

A line is taken apart into

- the subject, what stands before its first colon where that is short: a file, ``model 3``, an option;
- the facts: numbers, what is in quotes, files, options, names of parameters and types, what was found, what there is;
- whether it says what to do, after its last semicolon.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_WORDS = {"no": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9}
_STOP = _words(
    """a among an and are array arrays as at both but by each expected for found from has have here in is it its kind
like more none not of or other others shape than that the these this to type types value values which with
"""
)
_SUBJECTS_AT_MOST = 5
"""Words of a subject; more before a colon are a sentence."""
_KEY = _words(
    """Bayesian Fisher NaN buffer checkpoint counts definite directory dtype empty feature finite infinite module
negative permission pickle positive posterior prior symmetry truncated version vocabularies vocabulary weights"""
)
"""Nouns of the field that say what is wrong; a plural is as good."""
_IMPERATIVES = _words(
    """add allow ask call check choose combine compute convert copy draw drop fill fit fuse give go install keep
leave let look lower make name open pack pass pip prove provide put read rebuild reduce remove rename repeat
save see send set shorten split standardise start take train try unpack update use wrap write"""
)
_QUOTED = re.compile(r"(?<![\w)\]])'([^']+)'(?!\w)|`([^`]+)`|\"([^\"]+)\"")
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w]|\.\d)", re.IGNORECASE)
_NAME = re.compile(
    r"--[a-z][\w-]*"  # an option of the command
    r"|[A-Za-z_][\w*]*(?==)"  # an option before its value
    r"|[\w*-]+(?:[./][\w*-]+)+"  # a file, a parameter, a function
    r"|\w*[A-Za-z]\w*_\w+|\w+_[A-Za-z]\w*|\w+\d\w*"  # names with underscores or digits
    r"|(?<!\w)[A-Z]\w*[A-Z]\w*"  # types and abbreviations
)
_LISTED = re.compile(r"(?:there are|known:|it has|one of|types are|expected) ([\w, '\-.]+)")
_FOUND = re.compile(r"\bfound ([^;,:()\[\]]+)")


@dataclass(frozen=True)
class Lost:
    """What a new line does not say any more of an old one."""

    old: str
    new: str | None
    words: tuple[str, ...]

    def __str__(self) -> str:
        said = "nothing" if self.new is None else self.new
        return f"  was:  {self.old}\n  now:  {said}\n  lost: {'; '.join(self.words) or 'the whole line'}"


def subject_of(line: str) -> str:
    """Return what a line is about: what stands before its first colon, where that is no sentence."""
    head, colon, _ = line.partition(": ")
    return head if colon and ";" not in head and len(head.split()) <= _SUBJECTS_AT_MOST else ""


def remedy_of(line: str) -> str:
    """Return what a line says to do: what follows its last semicolon, if that is an order."""
    tail = line.rpartition("; ")[2] if "; " in line else ""
    return tail if _imperative(tail) else ""


def facts_of(line: str) -> list[str]:
    """Return the words and numbers of a line that another wording of it must have too."""
    found: list[str] = []
    for match in _QUOTED.finditer(line):
        quoted = next(group for group in match.groups() if group is not None)
        found += [word for word in _split(quoted) if len(word) > 3 or word == quoted]
    found += _NUMBER.findall(line)
    found += [name.strip(".") for name in _NAME.findall(line) if not name.startswith("_")]
    for listed in _LISTED.findall(line):
        if "," in listed:
            items = [word.strip() for word in re.split(r",| or | and ", listed)]
            found += [word for word in items if len(word) > 1 and " " not in word]
    for said in _FOUND.findall(line):
        found += [word for word in _split(said) if len(word) > 3 and word.lower() not in _STOP]
    found += [key for key in _KEY if re.search(rf"\b{key}\b", line)]
    return list(dict.fromkeys(word.strip().strip("'\"") for word in found if word.strip().strip("'\"")))


def lost_words(old: str, new: str) -> list[str]:
    """Return what an old line says and a new one does not."""
    found: list[str] = []
    if subject := subject_of(old):
        head = new.partition(": ")[0]
        words = [word for word in _split(subject) if word.lower() not in _STOP] or [subject]
        found += [f"subject {word!r}" for word in words if not _says(head, word)]
    found += [repr(word) for word in facts_of(old) if not _says(new, word)]
    if (remedy := remedy_of(old)) and not _imperative(new.partition(": ")[2] or new):
        found.append(f"the remedy {remedy!r}")
    return found


def losses(old: list[str], new: list[str]) -> list[Lost]:
    """Return which old lines have no new one that says as much, each beside the nearest."""
    if not old:
        return []
    words = [[lost_words(one, other) for other in new] for one in old]
    pairs: dict[int, int] = {}
    if new:
        rows, columns = linear_sum_assignment(np.array([[len(one) for one in row] for row in words]))
        pairs = dict(zip(rows.tolist(), columns.tolist(), strict=True))
    found = []
    for row, line in enumerate(old):
        if row not in pairs:
            found.append(Lost(line, None, ()))
        elif words[row][pairs[row]]:
            found.append(Lost(line, new[pairs[row]], tuple(words[row][pairs[row]])))
    return found


def _split(text: str) -> list[str]:
    return [word for word in re.split(r"[\s,;()\[\]{}'\"]+", text) if word]


def _imperative(text: str) -> bool:
    """Return whether a clause of a text begins with an order."""
    clauses = re.split(r"(?:^|[;:,.(]| or| and| so)\s+", text)
    return any(clause.split()[0].lower().strip(",") in _IMPERATIVES for clause in clauses if clause.split())


_RENAMED = {"samples": ("n_observations", "n_draws"), "observations": ("n_observations",)}
"""Arguments that have another name since the recording."""


def _says(line: str, word: str) -> bool:
    """Return whether a line has a word or a number, in any form that means the same."""
    if _NUMBER.fullmatch(word):
        value = float(word)
        exact = value == int(value) and "." not in word and "e" not in word.lower()
        numbers = [float(one) for one in _NUMBER.findall(line)]
        numbers += [float(_WORDS[one]) for one in re.findall(r"[a-z]+", line.lower()) if one in _WORDS]
        numbers += [float(one) for one in re.findall(r"\d+", line)] if exact else []
        return any(one == value if exact else abs(one - value) <= 0.01 * abs(value) for one in numbers)
    if any(_says(line, renamed) for renamed in _RENAMED.get(word, ())):
        return True
    if word.endswith(".safetensors") and re.search(rf"(?<![\w-]){re.escape(word[:-12])}(?![\w.])", line):
        return True  # in a list, files go by their stems
    stem = word[:-3] if word in _KEY and len(word) > 6 else word
    return re.search(rf"(?<!\w){re.escape(stem)}", line, re.IGNORECASE) is not None
