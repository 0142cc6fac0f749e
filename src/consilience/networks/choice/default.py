"""The default fusion of networks: candidates are made, compared without labels, and one of them is returned.

1. **Weights** are numbers of observations, where every site says its own; else networks count equally.
2. **Inputs** on which candidates are made (fit), stopped early (early) and compared (held) are three independent sets,
   drawn from what sites describe, or matched to batch normalisation (``inputs``). Without either there are none.
3. **Teacher**: the ensemble of all sites, by the counts of their classes where they are said, or estimated on matched
   images (``teacher``).
4. **Candidates** (``make_candidates``): every site's own network; the matched network, and the plain average of a
   common initialisation; that with the rows of its head by class; that by Fisher information, where it came along; the
   same refitted layer by layer; that of networks matched by their activations on the inputs to fit on, refitted; of
   four and more networks, that of units joined within models too; all of these with the head in closed form; in a wider
   network that the caller asks for sites' own networks side by side; the best of them distilled from the teacher,
   and sites' own networks half of the way there where sites have their classes alike.
5. **Choice**: all are scored on the same inputs (``compare``) and one is taken (``choose``); verdict by ``verdict``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np

from consilience.errors import OptionError, UnsupportedError, reason_of
from consilience.networks.choice.candidate import CandidateOptions
from consilience.networks.choice.verdict import DESCRIBE, DESCRIBE_MORE, Choice
from consilience.networks.choice.workshop import Workshop
from consilience.networks.fusion import NetworkFusion
from consilience.networks.method import NetworkMethod
from consilience.networks.methods.auto import Auto

if TYPE_CHECKING:
    from consilience.networks.choice.inputs import ChoiceInputs

FEW = (
    "describe networks of more observations, give unlabelled `inputs=`, keep fusion.ensemble, or let sites make its"
    " head exact by a second message (`consilience round open --then head`)"
)
"""The remedy where sites are too small to describe their inputs. Of 20 sites of 75 rows the last one made 62 to 66 % of
rows 95 to 96 % (docs/evidence/heads.md)."""


def fuse_by_default(workshop: Workshop) -> NetworkFusion:
    """Return the fusion of networks whose network was chosen among candidates, without provenance."""
    started, method = time.monotonic(), cast(Auto, workshop.method)
    matching_rng, input_rng, candidate_rng = workshop.rng.spawn(3)
    workshop = replace(workshop, rng=matching_rng)

    def compare(inputs: ChoiceInputs) -> Choice:
        from consilience.networks.choice.make_candidates import NetworkComparison  # here, since it needs torch

        steps = inputs.steps_for(workshop.modules[0]) if method.steps is None else method.steps
        options = CandidateOptions(method.refit, steps, method.max_seconds)
        return NetworkComparison(workshop, inputs, candidate_rng, started, options).choose()

    with_images = method.steps != 0 and workshop.gains_by_images
    return fuse_by_choice(
        workshop, method.matching, method.n_inputs, compare, input_rng, method.max_seconds, matches_images=with_images
    )


def fuse_by_choice(
    workshop: Workshop,
    matching: NetworkMethod,
    n_inputs: int,
    compare: Callable[[ChoiceInputs], Choice],
    rng: np.random.Generator,
    max_seconds: float | None = None,
    *,
    matches_images: bool = False,
) -> NetworkFusion:
    """Return a fusion by a choice on synthetic inputs, or without one where no site describes its inputs.

    `compare` makes candidates on inputs and compares them, `n_inputs` of which they are fitted on; where it cannot,
    `matching` is the method to name. `matches_images` says whether images are matched besides drawing inputs.
    """
    sites = workshop.sites
    if workshop.models.template is None:
        allows_single = isinstance(workshop.method, Auto) and workshop.method.allow_single
        if workshop.reach is not None and not allows_single:
            raise module_needed()
        return workshop.unseen("The networks came without a module", "give `module=`, a function that makes one")
    try:
        inputs = workshop.choice_inputs(n_inputs, rng, max_seconds, matches_images=matches_images)
        if inputs is None:
            said = dict(zip(sites.names, sites.descriptions, strict=True))
            silent = [
                name
                for name, one in said.items()
                if one is None or not (one.inputs or one.tokens or one.class_moments or one.class_tokens)
            ]
            if not silent:  # each with so few of a class that neither it nor the inputs of all are described
                reason = "Too few of the sites' observations are of classes whose inputs are described"
                return workshop.unseen(reason, DESCRIBE_MORE)
            who = "No site" if len(silent) == len(sites.names) else "Not every site"
            # Whoever says the shape of its inputs described them from data.
            if all((of_site := said[name]) is not None and of_site.input_shape is not None for name in silent):
                return workshop.unseen(f"{who} has enough observations to describe its inputs by", FEW)
            return workshop.unseen(f"{who} described its inputs", DESCRIBE)
        return workshop.finish(compare(inputs))
    except UnsupportedError as error:
        remedy = f"name a method, such as {matching.name!r}"
        return workshop.unseen(f"Candidates cannot be compared ({reason_of(error)})", remedy)
    except OptionError as error:
        if error.problems[0].subject != "max_seconds":
            raise
        return workshop.unseen(f"No images were matched ({reason_of(error)})", "give more time")


def module_needed() -> OptionError:
    """Return the error for arrays alone, of which no candidate can be made and asked."""
    text = "is needed: the default compares networks by what they answer, and these came as arrays alone"
    remedy = (
        "give `module=...`, a function that makes one (PACKAGE.MODULE:FUNCTION in the shell), or name a method, such as"
        f" {Auto().matching.name!r}"
    )
    return OptionError("module", text, remedy, "E-NEEDED")
