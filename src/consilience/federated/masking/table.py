"""The table of summands: what is summed of the files of a kind, and what is not, by a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consilience.api.kinds import ESTIMATORS, NETWORKS, POSTERIORS, kind_of_file
from consilience.errors import InputError, OptionError, UnsupportedError
from consilience.federated.masking.network_sum import EQUAL, NetworkSum
from consilience.federated.masking.noise import SumNoise
from consilience.federated.masking.plan import MaskedPlan
from consilience.federated.masking.request_sum import RequestSum
from consilience.federated.masking.statistics_sum import StatisticsSum
from consilience.federated.masking.summands import Summand
from consilience.federated.requests.base import REQUEST_FORMAT, read_request
from consilience.federated.requests.exchange import check_request
from consilience.files.safetensors_file import SafetensorsFile

_NOT_SUMS = {
    POSTERIORS.name: "components of mixtures, topics and states are matched, for which each site's own must be seen; "
    "from a common start their EM is sums: `consilience serve --then em`"
}
"""Why the files of a kind are no sums, by its name."""


@dataclass(frozen=True)
class Masked:
    """That a round is masked, and how.

    Parameters
    ----------
    signing_keys : path
        A folder with the public signing key ``NAME.pub`` of every site (``ssh-keygen -t ed25519``).
    by_observations : bool
        Whether networks are weighted by the observations in their descriptions, which stay masked. Default: False, all
        alike, or by the round's ``weights``.
    noise : SumNoise, optional
        Gaussian noise on averages of networks. Default: none.

    Examples
    --------
    >>> Masked("keys").noise is None
    True
    """

    signing_keys: str | Path
    by_observations: bool = False
    noise: SumNoise | None = None


def summand_of(
    file: SafetensorsFile, weights: str | Mapping[str, float], noise: SumNoise | None, site: str | None, threshold: int
) -> Summand:
    """Return what is summed of files like an expected one.

    `file` has statistics, the start of networks, or a request; the rest is as for `NetworkSum`. Raises UnsupportedError
    for kinds that match, gate or compare, with the reason. Raises OptionError for weights and noise where there is no
    use for them.
    """
    is_request = file.format == REQUEST_FORMAT
    kind = None if is_request else kind_of_file(file)
    if kind is NETWORKS:
        return NetworkSum(file, weights, noise, site, threshold)
    if noise is not None:
        text = "is for averages of networks, whose updates can be cut to a norm: rows of estimators have no bound here"
        raise OptionError("noise", text, "bound the features at the sites: `consilience.learners.Head(noise=...)`")
    if weights != EQUAL:
        raise OptionError("weights", "is for averages of networks: sums count every row once; leave it out")
    if is_request:
        return RequestSum(check_request(read_request(file), file))
    if kind is ESTIMATORS:
        return StatisticsSum(file)
    name = "models" if kind is None else kind.name
    reason = _NOT_SUMS.get(name, "they are fused by more than sums")
    raise UnsupportedError(str(file), f"masked sums are not for {name}: {reason}", "use a round that is not masked")


def summand_of_plan(file: SafetensorsFile, plan: MaskedPlan, site: str) -> Summand:
    """Return what a plan sums, at a site.

    Raises InputError for a plan that says something else of the file.
    """
    weights: Any = plan.content.get("weights", EQUAL)
    noise = plan.content.get("noise")
    if not isinstance(weights, str | Mapping):
        raise InputError("the plan", f"has the weights {weights!r:.80}, which are none", code="E-ROUND")
    try:
        summand = summand_of(file, weights, None if noise is None else SumNoise(**noise), site, plan.threshold)
    except (OptionError, UnsupportedError, TypeError) as error:
        raise InputError("the plan", f"cannot be followed: {error}", code="E-ROUND") from error
    if summand.name != plan.content.get("summand"):
        text = f"sums a {plan.content.get('summand')!r:.80}, and its file is a {summand.name}"
        raise InputError("the plan", text, code="E-ROUND")
    return summand
