"""Contributions, each checked alone, and then held against each other: nothing of one site's can stop the others.

Alone: the size from the header before anything is read, the digest, then all that the readers check (schema, values).
Together: by what an expected file has, or by what more than half of the contributions have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from consilience.api.kinds import format_of, kind_of_file
from consilience.core.kind import WIDTHS, Facets
from consilience.errors import ConsilienceError, InputError
from consilience.federated.contribution import Contribution
from consilience.files.limits import Limits, exceeded_limits
from consilience.files.safetensors_file import SafetensorsFile

_TIMES, _FEW_COMPONENTS, _FEW_BYTES = 10, 50, 2**20
"""A contribution may have so many times the components and bytes of the median one, and these anyway."""


@dataclass(frozen=True)
class Checked:
    """What a contribution is, or why it cannot be taken.

    Parameters
    ----------
    problems
        Everything wrong with it, a line each.
    facets
        What must agree with the others.
    smallest
        Fewest observations behind a component, where the file says.
    components
        Components of a posterior, or units of a network.
    bytes
        Of its files.
    file, fisher
        The files themselves, whose headers and digests are known; None for what cannot be taken.
    """

    problems: tuple[str, ...] = ()
    facets: Facets | None = None
    smallest: float | None = None
    components: int = 0
    bytes: int = 0
    file: SafetensorsFile | None = None
    fisher: SafetensorsFile | None = None


def check_alone(contribution: Contribution, limits: Limits) -> Checked:
    """Return what a contribution is, or everything that is wrong with it, whatever it may hold."""
    if contribution.problem is not None or contribution.path is None:
        return Checked((contribution.problem or "its file never came",))
    if contribution.announcement.fisher and contribution.fisher is None:
        return Checked(("the file of its Fisher information never came",))
    paths = [path for path in (contribution.path, contribution.fisher) if path is not None]
    files = [SafetensorsFile(path) for path in paths]
    for file, digest in zip(files, contribution.announcement.digests, strict=True):
        if problems := [_without_paths(problem, [file]) for problem in exceeded_limits(file, limits)]:
            return Checked(tuple(problems))
        if file.digest != digest:
            return Checked(("its content is not what was announced; send it again",))
    return check_files(*files)


def check_files(file: SafetensorsFile, fisher: SafetensorsFile | None = None) -> Checked:
    """Return what a model's file (with that of its Fisher information) is, or everything that is wrong with it."""
    files = [file] if fisher is None else [file, fisher]
    try:
        format_of(file)
        facts = kind_of_file(file).site_facts(file, fisher)
        size = sum(one.path.stat().st_size for one in files)
    except ConsilienceError as error:
        problems = error.problems if isinstance(error, InputError) else (str(error),)
        return Checked(tuple(_without_paths(problem, files) for problem in problems))
    except MemoryError:
        return Checked(("takes more memory than there is",))
    return Checked((), facts.facets, facts.smallest, facts.components, size, file, fisher)


def oversized(found: Mapping[str, Checked]) -> dict[str, str]:
    """Return which contributions are far larger than most, and by what: fusing them would take far longer.

    Parameters
    ----------
    found
        Good contributions by site.
    """
    out: dict[str, str] = {}
    for name, floor in (("components", _FEW_COMPONENTS), ("bytes", _FEW_BYTES)):
        sizes = {site: getattr(one, name) for site, one in found.items()}
        if not sizes:
            continue
        most = max(floor, _TIMES * sorted(sizes.values())[(len(sizes) - 1) // 2])
        for site, size in sizes.items():
            if size > most:
                out.setdefault(site, f"has {size} {name}, and {most} are the most beside those of the others")
    return out


def _without_paths(text: str, files: Sequence[SafetensorsFile]) -> str:
    """Return a message without the server's own paths, of which the site is already named."""
    for file in files:
        text = text.removeprefix(f"{file}: ").replace(str(file.path), file.path.name)
    return text


def misfits(found: Mapping[str, Facets], expected: Facets | None, equal_widths: bool = False) -> dict[str, str]:
    """Return which contributions do not fit, and why: by an expected file, or by the majority of them.

    Parameters
    ----------
    found
        By site.
    expected
        Of the file that all should be like; None to go by what more than half of those that say it have.
    equal_widths
        Whether networks must have equal widths.
    """
    out: dict[str, str] = {}
    for facet in dict.fromkeys(name for facets in found.values() for name in facets):
        if facet == WIDTHS and not equal_widths:
            continue
        stated = {s: facets[facet] for s, facets in found.items() if s not in out and facets.get(facet) is not None}
        if expected is not None:
            wanted = expected.get(facet)
            where = "the expected file"
        else:
            top = Counter(stated.values()).most_common(1)
            wanted = top[0][0] if top and 2 * top[0][1] > len(stated) else None
            where = f"{top[0][1] if top else 0} of {len(stated)} contributions"
        if wanted is None:
            continue
        for site in sorted(stated):
            if stated[site] != wanted:
                out[site] = f"its {facet} is not that of {where}{_short(stated[site], wanted)}"
    return out


def _short(found: str | None, wanted: str) -> str:
    """Return both values where they are short enough to read."""
    return f": {found}, expected {wanted}" if max(len(found or ""), len(wanted)) <= 120 else ""
