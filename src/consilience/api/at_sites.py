"""Choice among candidates by rows that sites held out, where all of it is in one memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from consilience.core.fusion import Fusion
from consilience.core.kind import Kind
from consilience.core.site_losses import SITE, SiteChoice, sums_of_losses
from consilience.errors import InputError, OptionError


def choose_at_sites(kind: Kind, fusion: Fusion, held_out: Any, module: Any = None, *, robust: bool = False) -> Fusion:
    """Return the fusion with the model that loses least on the rows that sites held out, and the verdict of these.

    `held_out` has the rows of sites by name. The own networks of all sites are candidates, and one of them is kept
    unless a fused one is better by a standard error; of other kinds a fused model is compared with each site's own.
    """
    own = kind.own_models(fusion)
    fused = kind.candidates(fusion)
    sites = {f"{SITE}{name}": model for name, model in own.items()} if kind.sites_are_candidates else {}
    names, criterion, is_share = [*fused, *sites], "", False
    sums = {}
    for site, data in held_out.items():
        try:
            rows = kind.losses([own[site], *fused.values(), *sites.values()], data, module)
            sums[site] = sums_of_losses(rows, 0.0)
        except InputError as error:
            raise InputError([problem.about(f"held_out: {site}") for problem in error.problems]) from error
        criterion, is_share = rows.criterion, rows.is_share
    weights = kind.observations(fusion)
    if not set(sums) <= set(weights):
        weights = {site: float(one.n) for site, one in sums.items()}
    choice = SiteChoice(
        names, [name in sites for name in names], sums, weights, criterion, is_share=is_share, is_robust=robust
    )
    return kind.with_candidate(fusion, choice.name).chosen_at(choice)


def refuse_unknown(held_out: Any, names: Sequence[str]) -> None:
    """Raise for anything but rows by the names of sites that take part in the fusion."""
    if not isinstance(held_out, Mapping) or not held_out:
        text = f"expected rows of sites by their names, found {type(held_out).__name__}"
        raise OptionError("held_out", text, "give {site: (X, y)}")
    if unknown := sorted(set(held_out) - set(names)):
        text = f"has rows of {', '.join(map(str, unknown))}; the models are of {', '.join(names)}"
        raise OptionError("held_out", text, "call sites as the models are called")
