"""The public functions ``save`` and ``load``: what a site writes, and reading it back."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from consilience.api.kinds import KINDS, POSTERIORS, load_file, provenance_of
from consilience.core.features import features_of
from consilience.core.kind import Saving
from consilience.errors import OptionError
from consilience.files.atomic import refuse_to_replace

if TYPE_CHECKING:
    from torch import nn

    from consilience.checkpoints.lora.adapter import LoraAdapter
    from consilience.core.features import Features
    from consilience.draws.draws import Draws
    from consilience.estimators.statistics import Statistics
    from consilience.networks.descriptions.description import Description
    from consilience.networks.fisher.information import FisherInformation
    from consilience.networks.gaussian.network import BayesianNetwork
    from consilience.networks.network import Network
    from consilience.networks.symmetry.symmetry import Symmetry
    from consilience.posteriors.posterior import Posterior


def save(
    model: Any,
    path: str | Path,
    *,
    data: Any = None,
    n_observations: float | None = None,
    sample_weight: Any = None,
    classes: Any = None,
    example: Any = None,
    features: Features | Sequence[str] | Mapping[str, str | Sequence[str]] | None = None,
    symmetry: Symmetry | None = None,
    min_count: float | None = None,
    withhold_columns: bool | None = None,
    round_counts: float | None = None,
    layers: bool | None = None,
    held_out: Any = None,
    share_network: bool | None = None,
    overwrite: bool = False,
) -> None:
    """Write a model to a file that can be fused: a posterior, a network, its Fisher information. Parameters, no data.

    A network that was described, or is described here since `data` or `n_observations` are given, has its description
    in a file beside: ``site.description.safetensors`` beside ``site.safetensors``.

    A Bayesian network's file has a mean and a variance for every parameter; its module and the module's buffers stay.
    Its number of observations alone is in the file itself; with `data` there is a description beside it too.

    Of a statistical model, ``save(model, path, ...)`` writes what ``describe(model, ...)`` returns; so it does of an
    estimator that is fused by its sums. The file of a fused model has its provenance, as that of ``fusion.save`` does;
    of one that was trained further it has none.

    Parameters
    ----------
    model : object
        A fitted model, a Posterior, a torch module, a Network, a fusion of networks, a BayesianNetwork, a Description,
        a LoraAdapter, what ``consilience.fisher`` gave, or an ensemble of networks,
        ``fuse(models, "ensemble").model``.
    path : str or Path
        Where to; usually ``*.safetensors``. The file appears whole or not at all. Of an ensemble, a new folder: a file
        for every member, and ``ensemble.json``.
    data : array_like of shape (n, D), DataFrame, str or Path, optional
        The data that it was trained on, as ``describe`` takes them: of a statistical model to be counted, of a network
        to be described. They are not written.
    n_observations : float, optional
        Number of observations the model was fitted to, for models that do not record it (GaussianMixture, GaussianHMM,
        CategoricalHMM), and networks. Default: counted in `data`, or unknown.
    sample_weight : array_like of shape (n,), optional
        Weight of every row of `data`, for the same statistical models. Default: 1.
    classes : int or sequence of str, optional
        Of a network that is described: its classes, in the order of its outputs.
    example : tensor, tuple or dict, optional
        Of a network that is described: an input that it takes.
    features : sequence of str, mapping of str to str or sequence of str, or Features, optional
        What the columns mean: their names, their units by name, or `Features`. Default: what the model knows of them.
    symmetry : Symmetry, optional
        Of a torch module or a BayesianNetwork, so that its file alone can be fused: what ``consilience.symmetry``
        found. Default: a BayesianNetwork's own.
    min_count : float, optional
        Components of a statistical model with fewer effective observations, and classes of fewer observations, are
        withheld, and a `WithheldWarning` names them; 0 withholds nothing. Default: 5.
    withhold_columns : bool, optional
        Of an estimator that is fused by its sums: whether columns that set few rows apart are constant in the sums, as
        ``describe`` says. Default: False.
    round_counts : float, optional
        Of a topic model: the word counts of its topics are rounded to multiples of this, so that they do not tell in
        how many texts a rare word is. Default: not rounded.
    layers : bool, optional
        Of a network that is described: whether the description has the Kronecker factors of its layers too, as
        ``describe`` says. Default: False.
    held_out : optional
        Of a network that is described: the rows that ``consilience.hold_out`` kept apart, as ``describe`` takes them.
    share_network : bool, optional
        Of a network that is described: whether the other sites may get it, as ``describe`` says. Default: False.
    overwrite : bool, optional
        Whether a file that is there may be replaced which this library did not write. Default: False.

    Raises
    ------
    InputError
        When the model cannot be described or the path cannot be written.
    OptionError
        For what means nothing for such a model.
    UnsupportedError
        When no adapter knows the model's class.
    """
    if isinstance(model, str | os.PathLike) and not isinstance(path, str | os.PathLike):
        raise OptionError("path", "stands before the model", "write `consilience.save(model, path)`", "E-TYPE")
    refuse_to_replace(path, overwrite)
    keywords = {
        "data": data, "n_observations": n_observations, "sample_weight": sample_weight, "classes": classes,
        "example": example, "min_count": min_count, "withhold_columns": withhold_columns,
        "round_counts": round_counts, "layers": layers,
        "held_out": held_out, "share_network": share_network,
    }  # fmt: skip
    stated = {name: value for name, value in keywords.items() if value is not None}
    kind = next((kind for kind in KINDS if kind.writes(model)), POSTERIORS)
    features = features_of(features, model, data)
    kind.refuse_foreign(name for name in (*stated, *(() if features is None else ("features",))) if name != "data")
    saving = Saving(features, symmetry, stated, provenance_of(kind, model))
    kind.save(model, Path(path), saving)


@overload
def load(
    path: str | Path,
) -> Posterior | Statistics | Draws | LoraAdapter | Network | BayesianNetwork | FisherInformation | Description: ...
@overload
def load(path: str | Path, *, module: Any) -> nn.Module: ...
def load(path: str | Path, *, module: Any = None) -> Any:
    """Return what is in a file, or the ensemble in a folder.

    A file holds a posterior, statistics, draws, an adapter, a network, Fisher information, or the description of a
    network.
    A Bayesian network comes without a module: give it one with ``with_module`` to ask it.

    Parameters
    ----------
    path : str or Path
        The file, or the folder of an ensemble.
    module : Module, callable, or sequence or mapping of such, optional
        For an ensemble: a network of its members' architecture, or a function that makes one; for members of several
        architectures, one for each, in their order or by name.

    Returns
    -------
    Posterior, Statistics, Draws, LoraAdapter, Network, BayesianNetwork, FisherInformation, Description or Module
        A Module for an ensemble, in evaluation mode.

    Raises
    ------
    FileFormatError
        When the file is none of these, or of a version that this library does not read.
    InputError
        When its values are not valid, naming the components at fault, or an ensemble's members are of another
        architecture.
    OptionError
        For an ensemble without `module`, and for a file of something else with it.
    """
    return load_file(path, module)
