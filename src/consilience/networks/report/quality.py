"""How far apart the units of each group are, before and after matching, as bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from consilience.drawing.svg import WIDTH, Scale, drawing, element, line, text, tick_label, ticks
from consilience.drawing.words import counted, fixed, shortened

ROWS_AT_MOST = 60
_STEP, _TOP, _BOTTOM = 34.0, 30.0, 46.0


@dataclass(frozen=True)
class Group:
    """One group of units that move together.

    Parameters
    ----------
    units
        Of each model, in their order.
    fused
        Of the fused network.
    shared
        How many of these more than one model has; None where that is not known.
    after, before
        Distance of the models from their average with units matched and as they are, as a share of the mean square;
        None where it is not known.
    parent
        The group whose units its own lie in.
    """

    name: str
    units: tuple[int, ...]
    fused: int
    shared: int | None = None
    after: float | None = None
    before: float | None = None
    parent: str | None = None

    @property
    def told(self) -> str:
        """The units of the models in a few words."""
        if len(set(self.units)) <= 1:
            return f"{self.units[0]:,}" + (" each" if len(self.units) > 1 else "") if self.units else "–"
        return ", ".join(f"{count:,}" for count in self.units[:8]) + (" …" if len(self.units) > 8 else "")


def bars(groups: Sequence[Group], apart: float | None) -> Markup:
    """Return the distances of every group; `apart` is that of models with nothing in common, drawn as a line."""
    shown = [one for one in groups if one.after is not None or one.before is not None][:ROWS_AT_MOST]
    values = [value for one in shown for value in (one.before, one.after) if value is not None]
    names = [shortened(one.name, 30) for one in shown]
    left = max(60.0, 16.0 + 7.4 * max(map(len, names)))
    x = Scale(0.0, max([*values, *([] if apart is None else [1.08 * apart]), 1e-3]), left, WIDTH - 60)
    foot = _TOP + _STEP * len(shown)
    marks = ticks(0.0, x.high, 6)
    parts = [text(0, 14, "group", "axis")]
    parts += [line(x(mark), _TOP - 4, x(mark), foot, "grid") for mark in marks]
    parts += [text(x(mark), foot + 18, tick_label(mark, marks), "tick", "middle") for mark in marks]
    parts.append(text(WIDTH - 60, foot + 40, "distance from the average, as a share of the mean square", "axis", "end"))
    if apart is not None:
        parts.append(line(x(apart), _TOP - 4, x(apart), foot, "chosen"))
        parts.append(text(x(apart), 16, "nothing in common", "tick", "middle"))
    for row, (one, name) in enumerate(zip(shown, names, strict=True)):
        y = _TOP + _STEP * row
        parts.append(text(left - 12, y + 21, name, "name", "end"))
        for value, offset, kind in ((one.before, 4.0, "bar-before"), (one.after, 16.0, "bar-after")):
            if value is not None:
                length = max(x(value) - left, 1.0)
                parts.append(element("rect", x=left, y=y + offset, width=length, height=11, kind=kind))
                parts.append(text(left + length + 6, y + offset + 10, fixed(value, 3), "tick clear"))
    return drawing(parts, foot + _BOTTOM, _alt(shown))


def _alt(shown: Sequence[Group]) -> str:
    told = [
        f"{shortened(one.name, 40)} "
        + " then ".join(
            f"{fixed(value, 3)} {when}"
            for value, when in ((one.before, "before"), (one.after, "after"))
            if value is not None
        )
        for one in shown[:12]
    ]
    more = f", and {len(shown) - 12} more" if len(shown) > 12 else ""
    return f"Distances of the models from their average in {counted(len(shown), 'group')}: {'; '.join(told)}{more}."
