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

from consilience.bayesian.network import BayesianNetwork
from consilience.bayesian.readers.tensors import DEVIATION, Weight, assembled, converted, has_class, writable
from consilience.checks import AnyArray
from consilience.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from torch import nn

_GUIDES = "pyro.infer.autoguide"
_KNOWN = ("AutoDiagonalNormal", "AutoNormal")


def accepts(model: object) -> bool:
    """Return whether a model is any of Pyro's automatic guides."""
    return has_class(model, _GUIDES, "AutoGuide")


def read(model: Any, module: nn.Module | None, name: str) -> BayesianNetwork:
    """Return the Bayesian network of a guide; priors Normal(0, s) with one s a site become prior variances."""
    sites = _sites(model, name)
    found = [
        f"{name}: site {site} lies in {told['fn'].support}, so its posterior is no Gaussian; give it a Normal "
        "prior, or sample only weights"
        for site, told in sites.items()
        if not _real(told["fn"].support)
    ]
    moments = _moments(model)
    names = _stripped(sites, None if module is None else [key for key, _ in module.named_parameters()])
    weights = {
        names[site]: Weight(mean, deviation, DEVIATION, f"site {site}", f"scale of site {site}")
        for site, (mean, deviation) in moments.items()
        if _real(sites[site]["fn"].support)
    }
    priors = {names[site]: _prior(told["fn"]) for site, told in sites.items()}
    known = {key: value for key, value in priors.items() if value is not None}
    return assembled(weights, module, name, known if len(known) == len(priors) else None, tuple(found))


def write(bnn: BayesianNetwork, like: Any) -> Any:
    """Return a copy of a guide, of the same model, with other means and deviations.

    The copy has a name of its own in Pyro's parameter store, where it would otherwise find the values of `like`.
    """
    import torch

    sites = _sites(like, bnn.name)
    names = _stripped(sites, list(bnn.means))
    moments = _moments(like)
    writable(bnn, {names[key]: tuple(v.shape) for key, (v, _) in moments.items()}, f"this {type(like).__name__}")
    means = {site: converted(bnn.means[names[site]], moments[site][0]) for site in sites}
    scales = {site: converted(bnn.variances[names[site]], moments[site][1].double()) ** 0.5 for site in sites}
    found = _copied(like)
    if has_class(like, _GUIDES, "AutoDiagonalNormal"):
        found.loc = torch.nn.Parameter(torch.cat([v.reshape(-1) for v in means.values()]).clone())
        found.scale = torch.cat([v.reshape(-1) for v in scales.values()]).to(like.loc.dtype)
    else:
        for site in sites:
            path, _, last = site.rpartition(".")
            for holder, values in ((found.locs, means[site]), (found.scales, scales[site].to(means[site].dtype))):
                setattr(attrgetter(path)(holder) if path else holder, last, values)
    _renamed(found, [*means.values(), *scales.values()])
    return found


def _sites(guide: Any, name: str) -> dict[str, Any]:
    """Return what a guide knows of every latent site."""
    kind = type(guide).__name__
    if not has_class(guide, _GUIDES, *_KNOWN):
        raise UnsupportedError(
            f"{name}: a guide of class {kind} is no independent Gaussian for every weight; use pyro's {_KNOWN[0]}"
        )
    if guide.prototype_trace is None:
        raise InputError(
            f"{name}: this {kind} has not seen its model; call it once with the model's arguments, or fit it"
        )
    return dict(guide.prototype_trace.iter_stochastic_nodes())


def _moments(guide: Any) -> dict[str, tuple[AnyArray, AnyArray]]:
    """Return means and deviations by site, in the order of the model."""
    from torch.distributions import biject_to

    sites = dict(guide.prototype_trace.iter_stochastic_nodes())
    if has_class(guide, _GUIDES, "AutoNormal"):
        return {site: tuple(attrgetter(site)(one).detach() for one in (guide.locs, guide.scales)) for site in sites}
    posterior = guide.get_posterior().base_dist
    shapes = [biject_to(told["fn"].support).inv(told["value"]).shape for told in sites.values()]
    mean, deviation = (
        vector.detach().split([prod(shape) for shape in shapes]) for vector in (posterior.loc, posterior.scale)
    )
    return {
        site: (mean[i].reshape(shape), deviation[i].reshape(shape))
        for i, (site, shape) in enumerate(zip(sites, shapes, strict=True))
    }


def _stripped(sites: Collection[str], names: Collection[str] | None) -> dict[str, str]:
    """Return the parameter of every site: its name, or what is left without the prefix that fits most of the names."""
    if names is None:
        return {site: site for site in sites}
    parts = next(iter(sites)).split(".")
    prefixes = ["".join(f"{part}." for part in parts[:depth]) for depth in range(len(parts))]
    common = [prefix for prefix in prefixes if all(site.startswith(prefix) for site in sites)]
    best = max(common, key=lambda prefix: len({site.removeprefix(prefix) for site in sites} & set(names)))
    return {site: site.removeprefix(best) for site in sites}


def _real(support: Any) -> bool:
    """Return whether a support is all real numbers, of any shape."""
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    return type(support).__name__ in ("_Real", "_RealVector")


def _prior(distribution: Any) -> float | None:
    """Return the variance of a prior Normal(0, s) that is the same for all of a site; None for any other."""
    while has_class(distribution, "torch.distributions", "Independent"):
        distribution = distribution.base_dist
    if not has_class(distribution, "torch.distributions", "Normal") or bool((distribution.loc != 0).any()):
        return None
    scale = distribution.scale.detach().double()
    return float(scale.max()) ** 2 if float(scale.min()) == float(scale.max()) else None


def _copied(guide: Any) -> Any:
    """Return a copy of a guide that shares its model; copying alone would take the model from both."""
    model, master = guide._model, guide.master
    guide._model, guide.master = None, None
    try:
        found = copy.deepcopy(guide, {id(guide.prototype_trace): guide.prototype_trace})
    finally:
        guide._model, guide.master = model, master
    found._model = model
    return found


def _renamed(guide: Any, arrays: list[AnyArray]) -> None:
    """Give a copied guide, and what is inside, names in Pyro's parameter store that follow from its values."""
    digest = hashlib.sha256(b"".join(values.cpu().numpy().tobytes() for values in arrays)).hexdigest()[:16]
    old = guide._pyro_name
    for part in guide.modules():
        if getattr(part, "_pyro_name", "").startswith(old):
            part._pyro_name = f"{old.partition('_fused_')[0]}_fused_{digest}{part._pyro_name.removeprefix(old)}"
