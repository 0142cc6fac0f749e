"""Admission of contributions to a round: each is validated alone, then compared with the others.

Alone: its size from the header before anything else is read, its digest, then all that the readers check (schema,
values). Together: the facets (kind, family, shapes, ...) of an expected file, or those that more than half of the
contributions have; and sizes against the median one. What fails is left out with its reason and stops no other site.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from consilience.api.kinds import format_of, kind_of_file
from consilience.core.kind import WIDTHS, Facets
from consilience.errors import ConsilienceError, Problem
from consilience.federated.contribution import Contribution
from consilience.files.limits import Limits, exceeded_limits
from consilience.files.safetensors_file import SafetensorsFile

MAX_SIZE_RATIO = 10
"""A contribution may have so many times the components, and the bytes, of the median one: matching a larger one would
take far longer than the others. Chosen by hand; nobody has measured other values."""

MIN_COMPONENT_LIMIT, MIN_BYTE_LIMIT = 50, 2**20
"""Components and bytes that are always admitted, so that small models may differ in size. Chosen by hand."""

_MAX_SHOWN = 120
"""Characters of a facet that a message shows. Chosen by hand."""


@dataclass(frozen=True)
class CheckedContribution:
    """The facts about a contribution, or the problems for which it is rejected.

    Parameters
    ----------
    problems : tuple of Problem
        Everything that is wrong with it. Default: nothing.
    facets : mapping of str to str or None, optional
        What must agree with the other contributions. Default: None, where there are problems.
    smallest_count : float, optional
        Fewest observations behind a component. Default: None, where the file does not state them.
    components : int
        Components of a posterior, or units of a network.
    bytes : int
        Length of its files.
    file, fisher : SafetensorsFile, optional
        The files, headers and digests read. Default: None, where there are problems or no Fisher information.
    """

    problems: tuple[Problem, ...] = ()
    facets: Facets | None = None
    smallest_count: float | None = None
    components: int = 0
    bytes: int = 0
    file: SafetensorsFile | None = None
    fisher: SafetensorsFile | None = None

    @classmethod
    def rejected(cls, text: str) -> CheckedContribution:
        """Return that a contribution is rejected, and why."""
        return cls((Problem.of(text),))


def check_alone(contribution: Contribution, limits: Limits) -> CheckedContribution:
    """Return the facts about a contribution, or its problems; nothing that it may hold raises.

    Parameters
    ----------
    contribution : Contribution
        The server's copies of its files.
    limits : Limits
        Largest sizes of a file.
    """
    if contribution.problem is not None or contribution.path is None:
        return CheckedContribution.rejected(contribution.problem or "its file never came")
    if contribution.announcement.fisher and contribution.fisher is None:
        return CheckedContribution.rejected("the file of its Fisher information never came")
    paths = [path for path in (contribution.path, contribution.fisher) if path is not None]
    files = [SafetensorsFile(path) for path in paths]
    for file, digest in zip(files, contribution.announcement.digests, strict=True):
        if problems := [_without_paths(problem, [file]) for problem in exceeded_limits(file, limits)]:
            return CheckedContribution(tuple(problems))
        # The digest after the size: a file that is too long is not read.
        if file.digest != digest:
            return CheckedContribution.rejected("its content is not what was announced; send it again")
    return check_files(*files)


def check_files(file: SafetensorsFile, fisher: SafetensorsFile | None = None) -> CheckedContribution:
    """Return the facts about a model's file, with that of its Fisher information, or their problems."""
    files = [file] if fisher is None else [file, fisher]
    try:
        format_of(file)
        facts = kind_of_file(file).site_facts(file, fisher)
        size = sum(part.path.stat().st_size for part in files)
    except ConsilienceError as error:
        return CheckedContribution(tuple(_without_paths(problem, files) for problem in error.problems))
    except MemoryError:  # of a file within the limits, but not within this machine
        return CheckedContribution.rejected("takes more memory than there is")
    return CheckedContribution((), facts.facets, facts.smallest, facts.components, size, file, fisher)


def oversized(contributions: Mapping[str, CheckedContribution]) -> dict[str, str]:
    """Return the sites whose contributions are far larger than the median one, with the reason.

    Parameters
    ----------
    contributions : mapping of str to CheckedContribution
        Contributions without problems, by site.
    """
    reasons: dict[str, str] = {}
    for quantity, always_admitted in (("components", MIN_COMPONENT_LIMIT), ("bytes", MIN_BYTE_LIMIT)):
        sizes = {site: getattr(contribution, quantity) for site, contribution in contributions.items()}
        if not sizes:
            continue
        median = sorted(sizes.values())[(len(sizes) - 1) // 2]  # the lower of two: half of the sites cannot raise it
        limit = max(always_admitted, MAX_SIZE_RATIO * median)
        for site, size in sizes.items():
            if size > limit:
                reasons.setdefault(site, f"has {size} {quantity}, and {limit} are the most beside those of the others")
    return reasons


def _without_paths(problem: Problem, files: Sequence[SafetensorsFile]) -> Problem:
    """Return a problem without the server's own paths; the site is named before it."""
    if problem.subject in map(str, files):
        problem = problem.without_subject()
    for file in files:
        problem = problem.renamed(file.path, file.path.name)
    return problem


def mismatches(
    facets_by_site: Mapping[str, Facets], expected: Facets | None, equal_widths: bool = False
) -> dict[str, str]:
    """Return the sites whose contributions do not fit an expected file, or the majority of them, with the reason.

    Parameters
    ----------
    facets_by_site : mapping of str to mapping
        The facets of every contribution.
    expected : mapping or None
        The facets that all should have; None to take, facet by facet, the value of more than half of the sites that
        state one. Without a majority nobody is left out.
    equal_widths : bool
        Whether networks must have equal widths. Default: False.
    """
    reasons: dict[str, str] = {}
    for facet in dict.fromkeys(name for facets in facets_by_site.values() for name in facets):
        if facet == WIDTHS and not equal_widths:
            continue
        stated = {  # by the sites that still fit
            site: facets[facet]
            for site, facets in facets_by_site.items()
            if site not in reasons and facets.get(facet) is not None
        }
        if expected is not None:
            required = expected.get(facet)
            standard = "the expected file"
        else:
            most_common = Counter(stated.values()).most_common(1)
            value, count = most_common[0] if most_common else (None, 0)
            required = value if 2 * count > len(stated) else None
            standard = f"{count} of {len(stated)} contributions"
        if required is None:
            continue
        for site in sorted(stated):
            if stated[site] != required:
                reasons[site] = f"its {facet} is not that of {standard}{_both_values(stated[site], required)}"
    return reasons


def _both_values(stated: str | None, required: str) -> str:
    """Return both values where they are short enough to read."""
    return f": {stated}, expected {required}" if max(len(stated or ""), len(required)) <= _MAX_SHOWN else ""
