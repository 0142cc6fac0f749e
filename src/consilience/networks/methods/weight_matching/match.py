"""Weight matching: put units that receive and send alike into the same slots, all groups and all models together.

Everything that touches a unit counts, not only what it receives; E of ``slots`` is lowered group by group and model by
model until no visit helps. Several starts, the lowest E is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from consilience.checks import Array
from consilience.core.progress import Progress
from consilience.core.status import Status
from consilience.networks.method import Alignment, NetworkEnsemble
from consilience.networks.methods.weight_matching.coordinate_descent import Descent, descend, visit
from consilience.networks.methods.weight_matching.state import Others, Placed, Slots
from consilience.networks.network import Network
from consilience.networks.symmetry.scaling import shared_groups
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import Injection


def matched(
    ensemble: NetworkEnsemble,
    starts: Sequence[str],
    max_passes: int,
    rng: np.random.Generator,
    progress: Progress,
    tolerance: float = 0.0,
    signs: bool = False,
) -> Alignment:
    """Return the best of several descents.

    Parameters
    ----------
    ensemble
        The networks.
    starts
        "identity", "random" (units drawn), or "receiving" (each model matched by what its units receive, layer by
        layer) for each descent.
    max_passes
        Passes over all models at most, in each descent.
    rng
        For random starts and orders.
    progress
        Told about descents.
    tolerance
        A pass over more than two models that lowers E by no more than this share is the last.
    signs
        Whether units may change sign, where that changes no output.
    """
    kept = {name for name, width in ensemble.target_units.items() if _all_have(ensemble.networks, name, width)}
    held = frozenset(kept & shared_groups(ensemble.networks))
    slots = Slots(ensemble.symmetry, ensemble.target_units, ensemble.same_units, signs, held)
    descents: list[Descent] = []
    for number, (start, child) in enumerate(zip(starts, rng.spawn(len(starts)), strict=True)):
        models = first_slots(slots, ensemble, start, child)
        descents.append(descend(slots, models, ensemble.weights, ensemble.reference, child, max_passes, tolerance))
        progress(number + 1, len(starts))
    best = min(descents, key=lambda one: float(one.history[-1]))
    transports = in_order_of(ensemble.reference, [model.slots for model in best.models], ensemble.symmetry)
    status = Status.CONVERGED if best.converged else Status.MAX_ITERATIONS
    ends = [float(one.history[-1]) for one in descents]
    return Alignment(transports, float(best.history[-1]), best.history, status, {"starts": ends})


def _all_have(networks: Sequence[Network], group: str, width: int) -> bool:
    return all(network.units[group] == width for network in networks)


def first_slots(slots: Slots, ensemble: NetworkEnsemble, start: str, rng: np.random.Generator) -> list[Placed]:
    """Return models in slots to start from."""
    symmetry = ensemble.symmetry
    order = [ensemble.reference, *(i for i in range(len(ensemble.networks)) if i != ensemble.reference)]
    placed: dict[int, Placed] = {}
    taken = {name: np.zeros(width) for name, width in slots.width.items()}
    for i in order:
        network = ensemble.networks[i]
        own = _free_first(network, slots, taken)
        if start == "random" and i != ensemble.reference:
            own |= {name: one for name, one in _shuffled(own, symmetry, rng).items() if name not in slots.held}
        placed[i] = slots.place(network, own)
        if start == "receiving" and len(placed) > 1:
            others = [(float(ensemble.weights[j]), model) for j, model in placed.items() if j != i]
            others = [(weight, model) for weight, model in others if weight]
            if others:
                _by_receiving(slots, placed[i], slots.others(others))
        for name, injection in placed[i].slots.items():
            taken[name] += injection.owned
    return [placed[i] for i in range(len(ensemble.networks))]


def _free_first(network: Network, slots: Slots, taken: Mapping[str, Array]) -> dict[str, Injection]:
    """Return slots for every unit: those that the fewest models have, in their order."""
    return {
        name: Injection(np.sort(np.argsort(taken[name], kind="stable")[: network.units[name]]), width)
        for name, width in slots.width.items()
    }


def _shuffled(own: Mapping[str, Injection], symmetry: Symmetry, rng: np.random.Generator) -> dict[str, Injection]:
    """Return the same slots in random order; the units inside a unit stay together."""
    found: dict[str, Injection] = {}
    for name, group in symmetry.by_name.items():
        injection = own[name]
        if group.parent is None:
            found[name] = Injection(rng.permutation(injection.slots), injection.width)
        else:
            inside = np.array([rng.permutation(group.size) for _ in range(injection.width // group.size)])
            parents = found[group.parent].slots
            found[name] = Injection((parents[:, None] * group.size + inside).ravel(), injection.width)
    return found


def _by_receiving(slots: Slots, one: Placed, others: Others) -> None:
    """Put one model's units next to those of others that receive the same, from the input to the output."""
    symmetry = slots.symmetry
    known: set[str] = set()
    for top in (name for name, group in symmetry.by_name.items() if group.parent is None):
        names = [top, *(child.name for child in symmetry.children(top))]
        places = {
            name: [
                place
                for place in slots.places(name, one.arrays)
                if place.side != "input" and symmetry.beside(place) <= known
            ]
            for name in names
        }
        if any(places.values()) and top not in slots.held:
            visit(slots, one, others, top, places)
        known.update(names)


def in_order_of(
    reference: int, slots: Sequence[Mapping[str, Injection]], symmetry: Symmetry
) -> tuple[dict[str, Injection], ...]:
    """Return the same placement with slots renumbered so that the reference's units come first, as they are."""
    moves = {}
    for name in symmetry.by_name:
        own = slots[reference][name]
        target = np.full(own.width, -1, dtype=np.int64)
        target[own.slots] = np.arange(len(own.slots))
        target[target < 0] = np.arange(len(own.slots), own.width)
        signs = None
        if own.signs is not None:
            signs = np.ones(own.width)
            signs[own.slots] = own.signs
        moves[name] = Injection(target, own.width, signs)
    return tuple({name: own[name].then(moves[name]) for name in moves} for own in slots)
