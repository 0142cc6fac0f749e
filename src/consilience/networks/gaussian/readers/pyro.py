"""Pyro's mean-field guides, AutoDiagonalNormal and AutoNormal: a Gaussian for every weight that a model samples.

A PyroModule samples its weights at sites named like the module's parameters, after the names of the modules around it:
``net.0.weight`` for ``0.weight``. Sites are matched to the parameters of a plain torch module, as they are or with one
prefix, common to all, taken off.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Collection
from math import prod
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from consilience.checks import AnyArray
from consilience.errors import InputError, Problem, UnsupportedError
from consilience.networks.gaussian.network import BayesianNetwork
from consilience.networks.gaussian.readers.tensors import (
    DEVIATION,
    GaussianParameter,
    build_network,
    copy_like,
    has_class,
    require_same_parameters,
)

if TYPE_CHECKING:
    from torch import nn

_GUIDES = "pyro.infer.autoguide"
_MEAN_FIELD_GUIDES = ("AutoDiagonalNormal", "AutoNormal")


def accepts(model: object) -> bool:
    """Return whether a model is any of Pyro's automatic guides."""
    return has_class(model, _GUIDES, "AutoGuide")


def read(model: Any, module: nn.Module | None, name: str) -> BayesianNetwork:
    """Return the Bayesian network of a guide; priors Normal(0, s) with one s a site become prior variances."""
    sites = _sites(model, name)
    problems = [
        Problem(
            name,
            f"site {site} lies in {latent['fn'].support}, so its posterior is no Gaussian",
            "give it a Normal prior, or sample only weights",
        )
        for site, latent in sites.items()
        if not _is_real(latent["fn"].support)
    ]
    moments = _moments(model)
    names = _parameter_names(sites, None if module is None else [key for key, _ in module.named_parameters()])
    parameters = {
        names[site]: GaussianParameter(mean, deviation, DEVIATION, f"site {site}", f"scale of site {site}")
        for site, (mean, deviation) in moments.items()
        if _is_real(sites[site]["fn"].support)
    }
    by_parameter = {names[site]: _prior_variance(latent["fn"]) for site, latent in sites.items()}
    stated = {key: value for key, value in by_parameter.items() if value is not None}
    prior_variances = stated if len(stated) == len(by_parameter) else None
    return build_network(parameters, module, name, prior_variances, tuple(problems))


def write(bnn: BayesianNetwork, like: Any) -> Any:
    """Return a copy of a guide, of the same model, with other means and deviations.

    The copy has a name of its own in Pyro's parameter store, where it would otherwise find the values of `like`.
    """
    import torch

    sites = _sites(like, bnn.name)
    names = _parameter_names(sites, list(bnn.means))
    moments = _moments(like)
    shapes = {names[site]: tuple(mean.shape) for site, (mean, _) in moments.items()}
    require_same_parameters(bnn, shapes, f"this {type(like).__name__}")
    means = {site: copy_like(bnn.means[names[site]], moments[site][0]) for site in sites}
    scales = {site: copy_like(bnn.variances[names[site]], moments[site][1].double()) ** 0.5 for site in sites}
    written = _copy_guide(like)
    if has_class(like, _GUIDES, "AutoDiagonalNormal"):  # one vector over all sites
        written.loc = torch.nn.Parameter(torch.cat([v.reshape(-1) for v in means.values()]).clone())
        written.scale = torch.cat([v.reshape(-1) for v in scales.values()]).to(like.loc.dtype)
    else:  # AutoNormal: modules of locs and scales, nested as the sites' names are
        for site in sites:
            path, _, last = site.rpartition(".")
            for tree, values in ((written.locs, means[site]), (written.scales, scales[site].to(means[site].dtype))):
                setattr(attrgetter(path)(tree) if path else tree, last, values)
    _rename_in_store(written, [*means.values(), *scales.values()])
    return written


def _sites(guide: Any, name: str) -> dict[str, Any]:
    """Return the trace's record of every latent site, by name."""
    kind = type(guide).__name__
    if not has_class(guide, _GUIDES, *_MEAN_FIELD_GUIDES):
        text = f"a guide of class {kind} is no independent Gaussian for every weight"
        raise UnsupportedError(name, text, f"use pyro's {_MEAN_FIELD_GUIDES[0]}")
    if guide.prototype_trace is None:
        remedy = "call it once with the model's arguments, or fit it"
        raise InputError(name, f"this {kind} has not seen its model", remedy, "E-NEEDED")
    return dict(guide.prototype_trace.iter_stochastic_nodes())


def _moments(guide: Any) -> dict[str, tuple[AnyArray, AnyArray]]:
    """Return means and deviations by site, in the order of the model."""
    from torch.distributions import biject_to

    sites = dict(guide.prototype_trace.iter_stochastic_nodes())
    if has_class(guide, _GUIDES, "AutoNormal"):
        return {site: tuple(attrgetter(site)(tree).detach() for tree in (guide.locs, guide.scales)) for site in sites}
    posterior = guide.get_posterior().base_dist
    shapes = [biject_to(latent["fn"].support).inv(latent["value"]).shape for latent in sites.values()]
    mean, deviation = (
        vector.detach().split([prod(shape) for shape in shapes]) for vector in (posterior.loc, posterior.scale)
    )
    return {
        site: (mean[i].reshape(shape), deviation[i].reshape(shape))
        for i, (site, shape) in enumerate(zip(sites, shapes, strict=True))
    }


def _parameter_names(sites: Collection[str], names: Collection[str] | None) -> dict[str, str]:
    """Return the parameter of every site: its name, without the prefix common to all by which most names fit."""
    if names is None:
        return {site: site for site in sites}
    parts = next(iter(sites)).split(".")
    prefixes = ["".join(f"{part}." for part in parts[:depth]) for depth in range(len(parts))]
    common_prefixes = [prefix for prefix in prefixes if all(site.startswith(prefix) for site in sites)]
    best = max(common_prefixes, key=lambda prefix: len({site.removeprefix(prefix) for site in sites} & set(names)))
    return {site: site.removeprefix(best) for site in sites}


def _is_real(support: Any) -> bool:
    """Return whether a support is all real numbers, of any shape."""
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    return type(support).__name__ in ("_Real", "_RealVector")


def _prior_variance(distribution: Any) -> float | None:
    """Return the variance of a prior Normal(0, s) that is the same for all of a site; None for any other."""
    while has_class(distribution, "torch.distributions", "Independent"):
        distribution = distribution.base_dist
    if not has_class(distribution, "torch.distributions", "Normal") or bool((distribution.loc != 0).any()):
        return None
    scale = distribution.scale.detach().double()
    return float(scale.max()) ** 2 if float(scale.min()) == float(scale.max()) else None


def _copy_guide(guide: Any) -> Any:
    """Return a copy of a guide that shares its model; copying alone would take the model from both."""
    model, master = guide._model, guide.master
    guide._model, guide.master = None, None
    try:
        copied = copy.deepcopy(guide, {id(guide.prototype_trace): guide.prototype_trace})
    finally:
        guide._model, guide.master = model, master
    copied._model = model
    return copied


def _rename_in_store(guide: Any, arrays: list[AnyArray]) -> None:
    """Give a copied guide, and what is inside, names in Pyro's parameter store that follow from its values."""
    digest = hashlib.sha256(b"".join(values.cpu().numpy().tobytes() for values in arrays)).hexdigest()[:16]
    old = guide._pyro_name
    for part in guide.modules():
        if getattr(part, "_pyro_name", "").startswith(old):
            part._pyro_name = f"{old.partition('_fused_')[0]}_fused_{digest}{part._pyro_name.removeprefix(old)}"
