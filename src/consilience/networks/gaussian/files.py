"""Files of Bayesian networks with the symmetry of their parameters, without the module and its buffers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from consilience.checks import Json
from consilience.errors import InputError, UnsupportedError
from consilience.networks.descriptions.files import description_path, remove_description_of_another
from consilience.networks.gaussian.file_format import refuse_tied_names, write_bayesian
from consilience.networks.gaussian.gaussian_arrays import inherit_proof, without_deviations
from consilience.networks.gaussian.network import BayesianNetwork
from consilience.networks.symmetry.axes import Group, Layout
from consilience.networks.symmetry.symmetry import Symmetry


def write_bayesian_network(
    path: Path, bnn: BayesianNetwork, symmetry: Symmetry | None = None, provenance: Mapping[str, Json] | None = None
) -> None:
    """Write a Bayesian network to a file, whole or not at all.

    Its module is not written. `symmetry` is that of the module (with its buffers) or of the parameters; default: the
    network's own, or traced where it has synthetic inputs. With one, files alone can be fused.
    """
    of_parameters = known_symmetry(bnn, symmetry, bnn.example, f"{path}: cannot be written")
    write_bayesian(path, bnn, of_parameters, provenance)
    if description_path(path).is_file():
        remove_description_of_another(path, bnn.digest)


def known_symmetry(bnn: BayesianNetwork, symmetry: Symmetry | None, example: Any, where: str) -> Symmetry | None:
    """Return the symmetry of a network's parameters: as given, its own, or traced; None where none is known.

    `where` names the network in messages.
    """
    full = bnn.symmetry if symmetry is None else symmetry
    if full is None and bnn.module is not None and example is not None:
        from consilience.networks.tracing.proof import symmetry as trace_and_prove  # here, since it needs torch

        try:
            full = trace_and_prove(bnn.module, example)
        except (InputError, UnsupportedError):  # the file is a network's all the same
            return None
    return None if full is None else symmetry_of_parameters(full, bnn.means, where)


def symmetry_of_parameters(symmetry: Symmetry, names: Collection[str], where: str = "network") -> Symmetry:
    """Return the symmetry of a module's parameters alone, given that of all its arrays or of a Gaussian network.

    What was proved stays proved where the arrays left out do not move: a counter of batches. Where one does (running
    means and variances of batch normalisation), moving the parameters alone would change the function. Such a symmetry
    is not proved, and a note says which arrays must move along.

    Tied parameters are in `names` under the first of their names; `where` names the network in messages. Raises
    InputError for a tied parameter under another of its names.

    Examples
    --------
    >>> from consilience.networks.symmetry.axes import Axis, Group, Segment
    >>> rows = Layout((Axis((Segment("hidden"),)),))
    >>> symmetry = Symmetry({"bias": rows, "running_mean": rows}, (Group("hidden", 3, 0),))
    >>> restricted = symmetry_of_parameters(symmetry, ["bias"])
    >>> list(restricted.layouts), restricted.notes
    (['bias'], ('running_mean: moves with hidden, but is no parameter, so it must move along where it is kept',))
    """
    plain = without_deviations(symmetry)
    refuse_tied_names(plain, names, where)
    layouts = {name: layout for name, layout in plain.layouts.items() if name in names}
    # Arrays that are left out although they move, with their groups.
    moving_buffers = {
        name: groups for name, layout in plain.layouts.items() if name not in names and (groups := _groups_of(layout))
    }
    restricted = Symmetry(
        layouts,
        _groups_among(plain, layouts.values()),
        {alias: name for alias, name in plain.aliases.items() if name in layouts},
        plain.notes
        + tuple(
            f"{name}: moves with {', '.join(groups)}, but is no parameter, so it must move along where it is kept"
            for name, groups in moving_buffers.items()
        ),
    )
    return restricted if moving_buffers else inherit_proof(restricted, plain)


def _groups_among(symmetry: Symmetry, layouts: Iterable[Layout]) -> tuple[Group, ...]:
    """Return the groups that some arrays follow, and those that have these inside."""
    used = {name for layout in layouts for name in _groups_of(layout)}
    used |= {group.parent for group in symmetry.all_groups if group.name in used and group.parent is not None}
    return tuple(group for group in symmetry.all_groups if group.name in used)


def _groups_of(layout: Layout) -> list[str]:
    """Return the groups that an array's axes follow, each once."""
    return list(dict.fromkeys(s.group for axis in layout.axes for s in axis.segments if s.group is not None))
