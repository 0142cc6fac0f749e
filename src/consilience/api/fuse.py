"""The public functions ``fuse`` and ``check``: which kind of models it is decides who does the work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from consilience.bayesian.fuse import check_bayesian, fuse_bayesian
from consilience.bayesian.shared_symmetry import are_bayesian
from consilience.core.fusion import Fusion
from consilience.core.progress import Progress, seeded, shown
from consilience.errors import OptionError
from consilience.networks.fuse import check_networks, fuse_networks
from consilience.networks.fuse_aligned import ARGUMENTS
from consilience.networks.inputs import are_networks
from consilience.networks.method import NetworkMethod
from consilience.networks.methods import needs_no_symmetry
from consilience.posteriors.fuse import check_posteriors, fuse_posteriors
from consilience.posteriors.method import Method
from consilience.posteriors.sharded.fuse import are_shards, check_shards, fuse_shards
from consilience.posteriors.sharded.shards import Shards


def fuse(
    models: Sequence[Any] | Shards | str | Path,
    method: str | Method | NetworkMethod | None = None,
    *,
    weights: ArrayLike | None = None,
    rng: int | np.random.Generator = 0,
    engine: Any = None,
    progress: bool | Progress = False,
    samples: Sequence[float] | None = None,
    **options: Any,
) -> Fusion:
    """Fuse models that were trained apart into one.

    Parameters
    ----------
    models
        Fitted models, Posteriors, or paths of posterior files, mixed if they describe the same kind of thing. Topic
        models that name their words may have different vocabularies: the fused one has all words. Or networks: torch
        modules, Networks, or paths of their files. Or the posteriors of very many sites, which are not loaded as a
        whole: ``consilience.shards``, a folder, a pattern, packed files, addresses.
    method
        A name (see ``consilience methods``) or a method object; None takes the recommended one, and Fisher merging for
        networks that come with Fisher information.
    weights
        How much each model counts (J,); None counts all the same.
    rng
        Seed or Generator; the same seed gives the same bytes.
    engine
        Where the work on shards runs: None, here; an address of a Dask scheduler, a ``distributed.Client``, or an
        ``consilience.engines`` object.
    progress
        True shows a bar on a terminal; a callable is told (steps done, steps in all).
    samples
        Number of observations behind each model (J,), for models that do not record it
        (GaussianMixture, GaussianHMM, CategoricalHMM).
    **options
        The method's options; for networks also

        - ``example``: an input that the modules take, to find and to prove which axes move together;
        - ``symmetry``: these axes, from ``consilience.symmetry`` or its file, where files do not have them;
        - ``module``: a module of the architecture, or a function that makes one, where the networks are files;
        - ``target``: a module whose widths the fused network is to have, or ``target_widths``: units by group;
        - ``inputs``: unlabeled inputs, for methods that ask the models;
        - ``fishers``: what ``consilience.fisher`` gave for each, or its files, for methods that weigh by it;
        - ``reference``: number of the model to start from, whose numbering of units the fused network keeps.

        For shards also ``pilot_sites``, the sites in the sample that a fusion starts from, and ``shard_bytes``.

    Returns
    -------
    Fusion
        A PosteriorFusion, a NetworkFusion, or a BayesianFusion.

    Raises
    ------
    InputError
        Listing everything that is wrong with the models.
    OptionError
        For options that do not exist or do not fit the models.
    UnsupportedError
        For models that no adapter knows.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.mixture import BayesianGaussianMixture
    >>> X = np.random.default_rng(0).normal(size=(200, 2)) + np.repeat([[0.0, 0.0], [8.0, 8.0]], 100, axis=0)
    >>> a, b = (BayesianGaussianMixture(n_components=2, random_state=0).fit(X[start::2]) for start in (0, 1))
    >>> fusion = fuse([a, b], n_components=2)
    >>> fusion.model.predict([[0.0, 0.0], [8.0, 8.0]]).shape
    (2,)
    """
    seed, generator = seeded(rng)
    sharded = are_shards(models, engine)
    with shown(progress, "fusing", "pass" if sharded else "start") as report:
        if sharded:
            if samples is not None:
                raise OptionError("samples: for fitted models only; files say how many observations they had")
            return fuse_shards(models, _for_posteriors(method), weights, engine, generator, seed, report, options)
        if engine is not None:
            raise OptionError(
                f"engine: runs shards of posterior files; expected None for models in memory, found {engine!r}"
            )
        models = cast("Sequence[Any]", models)
        if are_bayesian(models):
            return fuse_bayesian(models, method, weights, generator, seed, report, options)
        if isinstance(method, NetworkMethod) or _are_networks(models, method, options):
            return fuse_networks(models, method, weights, generator, seed, report, options)
        return fuse_posteriors(models, method, weights, generator, seed, report, samples, options)


def check(
    models: Sequence[Any] | Shards | str | Path,
    method: str | Method | NetworkMethod | None = None,
    *,
    weights: ArrayLike | None = None,
    engine: Any = None,
    samples: Sequence[float] | None = None,
    **options: Any,
) -> list[str]:
    """Return everything that would go wrong in ``fuse`` with these arguments, a line each; empty when nothing would.

    Files are read one after another and their parameters checked; posteriors are small beside the data they stand for.

    Raises
    ------
    OptionError
        When the method or an option does not exist.
    """
    if are_shards(models, engine):
        return check_shards(models, _for_posteriors(method), weights, engine, options)
    models = cast("Sequence[Any]", models)
    if are_bayesian(models):
        return check_bayesian(models, method, weights, options)
    if isinstance(method, NetworkMethod) or _are_networks(models, method, options):
        return check_networks(models, method, weights, options)
    return check_posteriors(models, method, weights, samples, options)


def _for_posteriors(method: str | Method | NetworkMethod | None) -> str | Method | None:
    """Return a method for shards, which hold posteriors."""
    if isinstance(method, NetworkMethod):
        raise OptionError(f"{type(method).__name__} fuses networks, and shards hold posteriors")
    return method


def _are_networks(models: Any, method: str | Method | None, options: Mapping[str, Any]) -> bool:
    """Return whether the models are networks.

    Plain checkpoints are with an option that only networks take, or a method that needs to know nothing of their units.
    """
    told = any(key in options for key in ARGUMENTS)
    return are_networks(models, told or needs_no_symmetry(method))
