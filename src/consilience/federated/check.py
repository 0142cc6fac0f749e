"""Admission of contributions to a round: each is validated alone, then compared with the others.

Alone: its size from the header before anything else is read, its digest, then all that the readers check (schema,
values) and what can be calculated with it. Together: the facets (kind, family, shapes, ...) of an expected file, or
those that more than half of the contributions have; and sizes, places and variances against the median one. What fails
is left out with its reason and stops no other site.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from consilience.api.kinds import format_of, kind_of_file
from consilience.core.kind import WIDTHS, Extent, Facets, SiteFacts
from consilience.errors import ConsilienceError, Problem, fault_of
from consilience.federated.contribution import Contribution
from consilience.federated.isolation import MIN_SITES
from consilience.files.limits import Limits, exceeded_limits
from consilience.files.safetensors_file import SafetensorsFile

MAX_SIZE_RATIO = 10
"""A contribution may have so many times the components, and the bytes, of the median one: matching a larger one would
take far longer than the others. Chosen by hand; nobody has measured other values."""

MIN_COMPONENT_LIMIT, MIN_BYTE_LIMIT = 50, 2**20
"""Components and bytes that are always admitted, so that small models may differ in size. Chosen by hand."""

MAX_SCALE_RATIO, MIN_RELATIVE_SCALE = 100.0, 1e-3
"""A network's array may be so many times as large, as its root mean square, as in the median network, which counts as a
thousandth of its own largest array at least: biases near 0 vary by more. Chosen by hand; honest networks of one task
differ by less than 10."""

MAX_DISTANCE = 1e4
"""A component's mean may be so many deviations away from where the median site's data are. Rebuilding a scale matrix
from natural parameters loses 9e-6 of it at 1e5 deviations, 0.2 % at 1e6 and 5 % at 1e7."""

MAX_VARIANCE_RATIO = 1e12
"""Ratio of the extreme variances of two sites beyond which sums of both lose twelve of sixteen digits."""

_MAX_SHOWN = 120
"""Characters of a facet that a message shows. Chosen by hand."""


@dataclass(frozen=True)
class CheckedContribution:
    """The facts about a contribution, or the problems for which it is rejected."""

    problems: tuple[Problem, ...] = ()  # everything that is wrong with it
    # What must agree with the other contributions. Default: None, where there are problems.
    facets: Facets | None = None
    components: int = 0  # components of a posterior, or units of a network
    bytes: int = 0  # length of its files
    facts: SiteFacts | None = None  # what its kind says of it. Default: None, where there are problems.
    # The files, headers and digests read. Default: None, where there are problems or no Fisher information.
    file: SafetensorsFile | None = None
    fisher: SafetensorsFile | None = None

    @classmethod
    def rejected(cls, text: str) -> CheckedContribution:
        """Return that a contribution is rejected, and why."""
        return cls((Problem.of(text),))


def check_alone(contribution: Contribution, limits: Limits) -> CheckedContribution:
    """Return the facts about a contribution, or its problems; nothing that it may hold raises."""
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
    """Return the facts about a model's file, with that of its Fisher information, or their problems.

    A fused model's file can be checked by it as well.
    """
    files = [file] if fisher is None else [file, fisher]
    try:
        format_of(file)
        facts = kind_of_file(file).site_facts(file, fisher)
        size = sum(part.path.stat().st_size for part in files)
    except ConsilienceError as error:
        return CheckedContribution(tuple(_without_paths(problem, files) for problem in error.problems))
    except MemoryError:  # of a file within the limits, but not within this machine
        return CheckedContribution.rejected("takes more memory than there is")
    except (ArithmeticError, ValueError) as error:  # of values at the extremes of what a format can hold
        return CheckedContribution.rejected(f"has values with which nothing can be calculated ({error})")
    except Exception as error:  # whatever one site's file makes fail must not end the round of all
        return CheckedContribution.rejected(fault_of(error).text)
    return CheckedContribution((), facts.facets, facts.components, size, facts, file, fisher)


def oversized(contributions: Mapping[str, CheckedContribution]) -> dict[str, str]:
    """Return the sites whose contributions are far larger than the median one, with the reason.

    Of contributions without problems, by site.
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
                reason = f"has {size} {quantity}, and at most {limit} are admitted given those of the other sites"
                reasons.setdefault(site, reason)
    return reasons


def site_order(facts_by_site: Mapping[str, SiteFacts]) -> list[str]:
    """Return the sites, nearest to the median site first, ties by name.

    The distance of two sites is the largest difference of the logarithms of the sizes of their arrays; that of which
    the median to all others is smallest is the median site.
    """
    sites = sorted(facts_by_site)
    names = sorted({name for facts in facts_by_site.values() for name in facts.scales})
    scales = np.array([[facts_by_site[site].scales.get(name, 0.0) for name in names] for site in sites])
    if not names or len(sites) < 2:
        return sites
    logarithms = np.log(np.maximum(scales, np.finfo(np.float64).tiny))  # (J, arrays)
    distances = np.abs(logarithms[:, None] - logarithms).max(axis=2)  # (J, J)
    median_site = int(np.argmin(np.median(distances, axis=1)))
    return [sites[i] for i in np.argsort(distances[median_site], kind="stable").tolist()]


def implausible(facts_by_site: Mapping[str, SiteFacts]) -> dict[str, str]:
    """Return the sites whose contributions are too far from the median site's to calculate with both, with the reason.

    Their contributions have the same facets.
    """
    if len(facts_by_site) < MIN_SITES:
        return {}
    median = facts_by_site[site_order(facts_by_site)[0]]
    reasons = {}
    for site, facts in facts_by_site.items():
        if (reason := _too_large(facts, facts_by_site) or _too_far(facts.extent, median.extent)) is not None:
            reasons[site] = reason
    return reasons


def _too_large(facts: SiteFacts, facts_by_site: Mapping[str, SiteFacts]) -> str | None:
    """Return which array of a site is far larger than that of most, or all zero where theirs is not."""
    others = list(facts_by_site.values())
    medians = {name: float(np.median([other.scales.get(name, 0.0) for other in others])) for name in facts.scales}
    floor = MIN_RELATIVE_SCALE * max((medians[name] for name in facts.bounded_scales), default=0.0)
    for name in sorted(facts.bounded_scales):
        limit = MAX_SCALE_RATIO * max(medians[name], floor)
        if facts.scales[name] > limit:
            admitted = f"at most {limit:.3g} is admitted given that of most sites"
            return f"has {name} of size {facts.scales[name]:.3g}, and {admitted}"
        if facts.scales[name] == 0.0 and medians[name] > floor:
            return f"has {name} of zeros, and that of most sites has the size {medians[name]:.3g}"
    return None


def _too_far(extent: Extent | None, median: Extent | None) -> str | None:
    """Return why sums of these components and the median site's would lose all digits; None where they would not."""
    if extent is None or median is None or len(extent.mean) != len(median.mean):
        return None
    offsets = np.abs(np.array([extent.lowest, extent.highest]) - median.mean)  # (2, D)
    distance = float((offsets / np.maximum(median.deviation, np.finfo(np.float64).tiny)).max())
    if not distance <= MAX_DISTANCE:
        text = f"has a component {distance:.3g} deviations from the data of the median site"
        return f"{text}, and {MAX_DISTANCE:g} is the most"
    ratios = [max(a / b, b / a) for a, b in zip(extent.variances, median.variances, strict=True) if a > 0 and b > 0]
    if max(ratios, default=1.0) > MAX_VARIANCE_RATIO:
        text = f"has variances that differ from those of the median site by a factor of {max(ratios):.3g}"
        return f"{text}, and {MAX_VARIANCE_RATIO:g} is the most"
    return None


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

    `expected` None takes, facet by facet, the value of more than half of the sites that state one; without a majority
    nobody is left out. Networks must have equal widths where `equal_widths`.
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
