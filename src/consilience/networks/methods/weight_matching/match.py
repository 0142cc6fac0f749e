"""Weight matching of networks: the best of several coordinate descents over the slots of all groups and models.

All arrays that touch a unit count, those that it receives and those that it sends. The objective E of
``weight_matching.state`` falls group by group and model by model until no visit lowers it (``coordinate_descent``). Its
local minima depend on the start, so several starts are descended and the lowest E is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from consilience.core.details import Status
from consilience.core.progress import Progress
from consilience.networks.method import Alignment, NetworkEnsemble
from consilience.networks.methods.weight_matching.activations import match_activations
from consilience.networks.methods.weight_matching.coordinate_descent import CoordinateDescent, descend, visit_group
from consilience.networks.methods.weight_matching.state import MatchingState, PlacedModel, RemainingModels
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import Injection
from consilience.networks.symmetry.unit_rows import shared_groups

MAX_MATCHING_PASSES = 100
"""Passes over all models at most where a method has no option for them, as in the published code of weight matching."""


def descent_starts(
    ensemble: NetworkEnsemble, restarts: int, first: Sequence[str] = ("identity", "receiving")
) -> list[str]:
    """Return the starts of so many descents: the first ones, then random; by activations too where these are known."""
    by_activations = ["activations"] if ensemble.activations is not None else []
    return [*[*first, *["random"] * restarts][:restarts], *by_activations]


def match_weights(
    ensemble: NetworkEnsemble,
    starts: Sequence[str],
    max_passes: int,
    rng: np.random.Generator,
    progress: Progress,
    tolerance: float = 0.0,
    signs: bool = False,
) -> Alignment:
    """Return the alignment of lowest E over several descents.

    A descent starts with units as they are numbered ("identity"), in random order, with each model matched by what its
    units receive, layer by layer, to the models before it ("receiving"), or by the correlation of its units'
    activations with those of the reference, where all have the fused width ("activations"). A pass over more than two
    models that lowers E by no more than the tolerance is the last. Slots are numbered so that the reference model's
    units come first; ``details["starts"]`` holds the final E of every descent.
    """
    widths = ensemble.target_units
    full_groups = {name for name in widths if all(network.units[name] == widths[name] for network in ensemble.networks)}
    # Units made by the same (frozen) weights in all models are the same units; matching could only confuse them.
    fixed_groups = frozenset(full_groups & shared_groups(ensemble.networks))
    state = MatchingState(ensemble.symmetry, ensemble.target_units, ensemble.same_units, signs, fixed_groups)
    descents: list[CoordinateDescent] = []
    # A generator of its own for every start, so that adding starts does not change the first ones.
    for number, (start, child) in enumerate(zip(starts, rng.spawn(len(starts)), strict=True)):
        models = initial_placement(state, ensemble, start, child)
        descents.append(descend(state, models, ensemble.weights, ensemble.reference, child, max_passes, tolerance))
        progress(number + 1, len(starts))
    best = min(descents, key=lambda descent: float(descent.history[-1]))
    transports = renumber_by_reference(
        ensemble.reference, [model.transports for model in best.models], ensemble.symmetry
    )
    status = Status.CONVERGED if best.converged else Status.MAX_ITERATIONS
    final_objectives = [float(descent.history[-1]) for descent in descents]
    return Alignment(transports, float(best.history[-1]), best.history, status, {"starts": final_objectives})


def initial_placement(
    state: MatchingState, ensemble: NetworkEnsemble, start: str, rng: np.random.Generator
) -> list[PlacedModel]:
    """Return the models in the slots from which a descent starts (``match_weights``), in the order of the ensemble.

    The reference model is placed first. Every model fills the slots that the fewest models fill so far, so that units
    meet only where there is no room for all.
    """
    weights: list[float] = ensemble.weights.tolist()
    others = [i for i in range(len(weights)) if i != ensemble.reference]
    placed: dict[int, PlacedModel] = {}
    n_models_in_slot = {name: np.zeros(width) for name, width in state.width.items()}
    has_slots = all(dict(network.units) == dict(state.width) for network in ensemble.networks)
    by_activations = match_activations(ensemble, correlation=True)[0] if start == "activations" and has_slots else None
    for i in (ensemble.reference, *others):
        transports = {}  # into the slots that the fewest models fill, in their order
        for name, width in state.width.items():
            slots = np.argsort(n_models_in_slot[name], kind="stable")[: ensemble.networks[i].units[name]]
            transports[name] = Injection(np.sort(slots), width)
        moves: Mapping[str, Injection] = {} if by_activations is None else by_activations[i]
        if start == "random" and i != ensemble.reference:
            moves = _shuffle_slots(transports, ensemble.symmetry, rng)
        transports |= {name: moves[name] for name in moves.keys() - state.fixed_groups}
        model = state.place(ensemble.networks[i], transports)
        # Matched to the models placed before it, since later ones have no place yet.
        before = [(weights[j], one) for j, one in placed.items() if weights[j]]
        if start == "receiving" and before:
            match_incoming(state, model, state.remaining_models(before))
        for name, injection in model.transports.items():
            n_models_in_slot[name] += injection.owned
        placed[i] = model
    return [placed[i] for i in range(len(ensemble.networks))]


def _shuffle_slots(
    transports: Mapping[str, Injection], symmetry: Symmetry, rng: np.random.Generator
) -> dict[str, Injection]:
    """Return the same slots in random order; the units inside a unit stay together."""
    shuffled: dict[str, Injection] = {}
    for name, group in symmetry.by_name.items():
        injection = transports[name]
        if group.parent is None:
            shuffled[name] = Injection(rng.permutation(injection.slots), injection.width)
        else:
            # An own order inside every unit of the parent.
            inside = np.array([rng.permutation(group.size) for _ in range(injection.width // group.size)])
            parent_slots = shuffled[group.parent].slots
            slots = (parent_slots[:, None] * group.size + inside).ravel()
            shuffled[name] = Injection(slots, injection.width)
    return shuffled


def match_incoming(state: MatchingState, model: PlacedModel, remaining: RemainingModels) -> None:
    """Match one model, in place, to the remaining ones by incoming weights only, from the input to the output."""
    symmetry = state.symmetry
    matched_groups: set[str] = set()
    for top in (name for name, group in symmetry.by_name.items() if group.parent is None):
        names = [top, *(child.name for child in symmetry.children(top))]
        # Only places whose other axes are matched already: their entries have the same meaning in all models.
        of_groups = {name: state.places(name, model.arrays) for name in names}
        places = {
            name: [place for place in of_group if place.side != "input" and symmetry.beside(place) <= matched_groups]
            for name, of_group in of_groups.items()
        }
        if any(places.values()) and top not in state.fixed_groups:
            visit_group(state, model, remaining, top, places)
        matched_groups.update(names)


def renumber_by_reference(
    reference: int, transports: Sequence[Mapping[str, Injection]], symmetry: Symmetry
) -> tuple[dict[str, Injection], ...]:
    """Return the same placement with slots renumbered so that the reference's units come first, in their order."""
    moves = {}
    for name in symmetry.by_name:
        injection = transports[reference][name]
        target = np.full(injection.width, -1, dtype=np.int64)  # new number of each slot
        target[injection.slots] = np.arange(len(injection.slots))
        target[target < 0] = np.arange(len(injection.slots), injection.width)
        signs = None
        if injection.signs is not None:  # undo the signs of the reference, so that its units come back as they were
            signs = np.ones(injection.width)
            signs[injection.slots] = injection.signs
        moves[name] = Injection(target, injection.width, signs)
    return tuple({name: model[name].then(moves[name]) for name in moves} for model in transports)
