"""Contributions, each checked alone, and then held against each other: nothing of one site's can stop the others.

Alone: the size from the header before anything is read, the digest, then all that the readers check (schema, values).
Together: by what an expected file has, or by what more than half of the contributions have.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from consilience.bayesian.files import read_bayesian_network
from consilience.core.provenance import file_digest
from consilience.errors import ConsilienceError, InputError
from consilience.federated.contribution import Contribution
from consilience.files.limits import Limits, exceeded_limits
from consilience.networks.files import NetworkFile, file_kind, read_network
from consilience.networks.fisher.files import read_fisher
from consilience.networks.fisher.inputs import gather_information
from consilience.networks.inputs import GivenNetwork
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.posteriors.files import read_posterior
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.vocabulary import is_topic_posterior

_TIMES, _FEW_COMPONENTS, _FEW_BYTES = 10, 50, 2**20
"""A contribution may have so many times the components and bytes of the median one, and these anyway."""

WIDTHS = "widths"
"""The facet that only some methods need to agree."""

Facets = Mapping[str, str | None]
"""What must agree between contributions, by what to call it; None where a file does not say."""


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
    """

    problems: tuple[str, ...] = ()
    facets: Facets | None = None
    smallest: float | None = None
    components: int = 0
    bytes: int = 0


def check_alone(one: Contribution, limits: Limits) -> Checked:
    """Return what a contribution is, or everything that is wrong with it, whatever it may hold."""
    if one.problem is not None or one.path is None:
        return Checked((one.problem or "its file never came",))
    files = [path for path in (one.path, one.fisher) if path is not None]
    if one.announcement.fisher and one.fisher is None:
        return Checked(("the file of its Fisher information never came",))
    for path, digest in zip(files, one.announcement.digests, strict=True):
        if problems := [_without(problem, path) for problem in exceeded_limits(path, limits)]:
            return Checked(tuple(problems))
        if file_digest(path) != digest:
            return Checked(("its content is not what was announced; send it again",))
    return check_files(one.path, one.fisher)


def check_files(path: Path, fisher: Path | None) -> Checked:
    """Return what a model's file (with that of its Fisher information) is, or everything that is wrong with it."""
    try:
        return replace(_read(path, fisher), bytes=sum(one.stat().st_size for one in (path, fisher) if one is not None))
    except ConsilienceError as error:
        problems = error.problems if isinstance(error, InputError) else (str(error),)
        known = [known for known in (path, fisher) if known is not None]
        return Checked(tuple(_without(problem, *known) for problem in problems))
    except MemoryError:
        return Checked(("takes more memory than there is",))


def _read(path: Path, fisher: Path | None) -> Checked:
    kind = file_kind(path)
    if kind == "fisher":
        raise InputError(f"{path}: is Fisher information, expected a model; send it beside its network's file")
    if kind == "posterior":
        if fisher is not None:
            raise InputError(f"{path}: is a posterior, of which no Fisher information is taken; send it alone")
        posterior = read_posterior(path)[0]
        counts = posterior.counts
        smallest = None if counts is None else float(counts.min())
        return Checked((), _of_posterior(posterior), smallest, posterior.n_components)
    if kind == "bayesian":
        if fisher is not None:
            raise InputError(f"{path}: is a Bayesian network, whose variances say what is known; send it alone")
        bnn = read_bayesian_network(path)
        _refuse_not_finite(path, {**bnn.means, **{f"variance of {key}": one for key, one in bnn.variances.items()}})
        return Checked((), _of_network("bayesian", bnn.means, bnn.symmetry, None))
    file = read_network(path)
    _refuse_not_finite(path, file.arrays)
    if fisher is not None:
        _refuse_of_another(path, fisher, file)
    return Checked((), _of_network("network", file.arrays, file.symmetry, fisher))


def _refuse_of_another(path: Path, fisher: Path, file: NetworkFile) -> None:
    """Raise for Fisher information that cannot be read or is of another network."""
    information = read_fisher(fisher)
    _refuse_not_finite(fisher, {**information.residual, **information.factors})
    given = GivenNetwork(str(path), file.arrays, file.symmetry, None, None)
    gather_information([given], None, [fisher])


def _refuse_not_finite(path: Path, arrays: Mapping[str, Any]) -> None:
    bad = [name for name, values in arrays.items() if not _finite(values)]
    if bad:
        raise InputError([f"{path}: array {name} has values that are not finite" for name in bad[:8]])


def _finite(values: Any) -> bool:
    if isinstance(values, np.ndarray):
        return values.dtype.kind not in "fc" or bool(np.isfinite(values).all())
    return not values.is_floating_point() or bool(values.float().isfinite().all())


_STATED = ("counts", "weights", "prior")


def _of_posterior(posterior: Posterior) -> Facets:
    family = {"name": posterior.family.name}
    words = (
        is_topic_posterior(posterior) and posterior.features.names is not None
    )  # other words are aligned, not refused
    features = posterior.features
    return {
        "kind": "posterior",
        "source": _text(dict(posterior.source)),
        "family": _text(family if words else {**family, **posterior.family.config()}),
        "attached arrays": _text({name: [list(a.axes), a.rule] for name, a in posterior.attached.items()}),
        "Fisher information": "none",
        **{name: "stated" if getattr(posterior, name) is not None else "not stated" for name in _STATED},
        "names of columns": None if words or features.names is None else _text(features.names),
        **{name: _stated(getattr(features, name)) for name in ("units", "scaling", "classes")},
    }


def _of_network(kind: str, arrays: Mapping[str, Any], symmetry: Symmetry | None, fisher: Path | None) -> Facets:
    """Return what must agree: not the widths, which the layouts leave open."""
    layouts = None if symmetry is None else symmetry.digest
    shapes = _text({name: list(values.shape) for name, values in sorted(arrays.items())})
    return {
        "kind": kind,
        "arrays": _text({name: len(values.shape) for name, values in sorted(arrays.items())}),
        "symmetry": layouts,
        "shapes": shapes if layouts is None else None,
        WIDTHS: shapes if layouts is not None else None,
        "Fisher information": "none" if fisher is None else "sent",
    }


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


def _stated(value: Any) -> str | None:
    return None if value is None else _text(value)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _without(text: str, *paths: Path) -> str:
    """Return a message without the server's own paths, of which the site is already named."""
    for path in paths:
        text = text.removeprefix(f"{path}: ").replace(str(path), path.name)
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
