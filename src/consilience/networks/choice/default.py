"""The default fusion of networks: candidates are made, compared without labels, and one of them is returned.

1. **Weights** are numbers of observations, where every site says its own; else networks count alike.
2. **Inputs** on which candidates are made (fit), stopped early (early) and compared (held) are three independent sets,
   drawn from what sites describe (``inputs``). Nothing rests on inputs that were made up without a description.
3. **Teacher**: the ensemble of all sites, by the counts of their classes where they are said (``teacher``).
4. **Candidates** (``compare``): every site's own network; the average, for networks of one start, or the matched
   network; that with the rows of its head by class; that by Fisher information, where it came along; the same refitted
   layer by layer; that of networks matched by their activations on the inputs to fit on, refitted; both with the head
   in closed form; and the best of these distilled from the teacher.
5. **Choice** by ``choose``, verdict by ``verdict``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from consilience.core.progress import Progress
from consilience.errors import UnsupportedError
from consilience.networks.choice.sites import Sites
from consilience.networks.choice.verdict import DESCRIBE
from consilience.networks.choice.workshop import Workshop
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.fuse_aligned import NetworkArguments
from consilience.networks.fusion import NetworkFusion
from consilience.networks.methods.auto import Auto
from consilience.networks.shared_symmetry import NetworksWithSymmetry


def fuse_by_default(
    models: NetworksWithSymmetry,
    sites: Sites,
    arguments: NetworkArguments,
    information: Sequence[FisherInformation] | None,
    method: Auto,
    rng: np.random.Generator,
    progress: Progress,
) -> NetworkFusion:
    """Return the fusion of networks whose network was chosen among candidates, without provenance.

    Parameters
    ----------
    models : NetworksWithSymmetry
        The J networks, in the order of the call.
    sites : Sites
        What they say, in the same order.
    arguments : NetworkArguments
        Of the call.
    information : sequence of FisherInformation, optional
        Of every network.
    method : Auto
        How units are matched, and the bounds on work.
    rng : numpy.random.Generator
        Source of all random choices.
    progress : callable
        Called with (steps done, steps in all).
    """
    started = time.monotonic()
    matching_rng, input_rng, candidate_rng = rng.spawn(3)
    workshop = Workshop(models, sites, arguments, information, method, matching_rng, progress)
    if models.template is None:
        return workshop.unseen("The networks came without a module", "give module=, a function that makes one")
    from consilience.networks.choice.compare import Comparison  # here, since it needs torch
    from consilience.networks.choice.inputs import choice_inputs

    try:
        inputs = choice_inputs(
            workshop.ordered,
            workshop.modules,
            arguments.inputs,
            arguments.example,
            method.n_inputs,
            input_rng,
            progress,
        )
        if inputs is None:
            says = [said is not None and said.input_shape is not None for said in sites.descriptions]
            silent = [name for name, one_says in zip(sites.names, says, strict=True) if not one_says]
            who = (
                "No site described its inputs"
                if len(silent) == len(sites.names)
                else "Not every site described its inputs"
            )
            return workshop.unseen(who, DESCRIBE)
        return workshop.finish(Comparison(workshop, inputs, candidate_rng, started).choose())
    except UnsupportedError as error:
        reason = " ".join(str(error).split())
        return workshop.unseen(f"Candidates cannot be compared ({reason})", "name a method, such as 'consensus'")
