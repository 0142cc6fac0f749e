"""Updates of networks with a common initialisation as a vector of sums: sum w d and sum w, d = theta - theta_start.

The average of networks with a common initialisation is theta_start + sum w d / sum w (McMahan and others, 2017).
Updates of single precision with weights 1 are exact in fixed point.

Gaussian noise may be added: each site adds a part, and the sum has what the analytic Gaussian mechanism asks. Of n
sites that may take part T open the sum, so that at least T parts are in it: parts of variance s^2 / T make up s^2 or
more. A site's contribution is a vector of norm `clip` at most (it is cut to that), and the guarantee is of the whole
contribution of a site: from the sum nobody distinguishes what it sent from zeros, but with (epsilon, delta). Sites that
work together and leave out their parts take as much of it away.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from consilience.checks import AnyArray, Array, Json, is_number
from consilience.core.provenance import make_provenance
from consilience.errors import InputError, OptionError
from consilience.estimators.heads.privacy import gaussian_scale
from consilience.federated.masking.fixed_point import Words, decode, encode
from consilience.federated.masking.plan import MaskedPlan
from consilience.federated.masking.summands import Summand, SumResult
from consilience.files.document import DESCRIPTION
from consilience.files.safetensors_file import SafetensorsFile
from consilience.networks.descriptions.files import DESCRIPTION_FILES
from consilience.networks.files import read_network, write_network
from consilience.networks.network import to_numpy
from consilience.networks.weight_parts import REMOVAL, find_parts, unknown_parts


@dataclass(frozen=True)
class SumNoise:
    """Noise on a sum of vectors of bounded norm.

    Raises OptionError for numbers that are not positive, and a delta of 1 or more.

    Examples
    --------
    >>> round(SumNoise(1.0, 1e-6, 2.0).scale, 2)
    8.45
    """

    # Differential privacy of the contribution of a site.
    epsilon: float
    delta: float
    clip: float  # norm to which contributions are cut

    def __post_init__(self) -> None:
        if not is_number(self.clip) or not 0 < self.clip < np.inf:
            raise OptionError("clip", f"expected a positive number, found {self.clip!r}")
        gaussian_scale(self.epsilon, self.delta)

    @property
    def scale(self) -> float:
        """Deviation s of the noise in the sum, of each number."""
        return gaussian_scale(self.epsilon, self.delta, self.clip)

    def clipped(self, vector: Array) -> Array:
        """Return a vector cut to the norm `clip`."""
        norm = float(np.linalg.norm(vector))
        return vector if norm <= self.clip else vector * (self.clip / norm)

    def part(self, length: int, threshold: int) -> Array:
        """Return a site's part of the noise (L,), anew from the system's randomness."""
        rng = np.random.default_rng(secrets.randbits(256))
        return rng.standard_normal(length) * (self.scale / sqrt(threshold))

    def warning(self, length: int, n_sites: int, threshold: int) -> str | None:
        """Return that noise is larger than all that sites can send, where it is; None where it is not.

        The norm of the noise is s sqrt(L n / T) where all n sites add their parts, that of the sum n clip at most.
        """
        noise = self.scale * sqrt(length * n_sites / threshold)
        if noise <= n_sites * self.clip:
            return None
        return (
            f"noise for epsilon {self.epsilon:g} and delta {self.delta:g} has norm {noise:.3g} in {length:,} numbers, "
            f"and the contributions of {n_sites} sites together {n_sites * self.clip:.3g} at most: the sum will say "
            "little; take a larger epsilon, more sites, or fewer numbers"
        )

    def to_json(self) -> dict[str, Json]:
        """Return the noise as JSON values."""
        return {"epsilon": self.epsilon, "delta": self.delta, "clip": self.clip}


EQUAL, BY_OBSERVATIONS = "equal", "n_observations"
"""How networks are weighted: equally, or by the numbers of observations in their descriptions, which stay masked."""


MAX_SHARE = 0.5
"""Share of all weight above which sites are warned that one of them is nearly the sum: then the others weigh less."""


class NetworkSum(Summand):
    """Weighted averages of networks with a common initialisation.

    `weights` are "equal", "n_observations" or public numbers by site. `noise` is on the sum of equally weighted
    updates. `site` is whose words are asked for, none at the server. Noise is shared out by the plan's `threshold`.
    Raises OptionError for other weights than positive ones, and for noise with weights: updates of unequal weight have
    no common bound.
    """

    name: ClassVar[str] = "network"

    def __init__(
        self,
        file: SafetensorsFile,
        weights: str | Mapping[str, float] = EQUAL,
        noise: SumNoise | None = None,
        site: str | None = None,
        threshold: int = 1,
    ) -> None:
        if isinstance(weights, str) and weights not in (EQUAL, BY_OBSERVATIONS):
            text = f"expected {EQUAL!r}, {BY_OBSERVATIONS!r} or numbers by site, found {weights!r}"
            raise OptionError("weights", text)
        if not isinstance(weights, str) and not all(is_number(one) and 0.0 < one < np.inf for one in weights.values()):
            raise OptionError("weights", f"expected positive numbers by site, found {dict(weights)!r:.200}")
        if noise is not None and weights != EQUAL:
            raise OptionError("weights", "with noise all sites count alike: only then are contributions bounded")
        network = read_network(file)
        self.file, self.symmetry = file, network.symmetry
        self.start: Mapping[str, AnyArray] = {name: network.arrays[name] for name in sorted(network.arrays)}
        self.weights, self.noise, self.site, self.threshold = weights, noise, site, threshold
        if not self.start:
            raise InputError(file, "has no arrays", code="E-NEEDED")
        shapes = {name: tuple(values.shape) for name, values in self.start.items()}
        if parametrised := dict.fromkeys([*(parts.name for parts in find_parts(shapes)), *unknown_parts(shapes)]):
            listed = ", ".join(list(parametrised)[:3])
            text = f"has parametrised layers ({listed}), and a sum of parts is no sum of weights"
            remedy = f"{REMOVAL} or its hook (remove_weight_norm, remove_spectral_norm, prune.remove), at every site"
            raise InputError(file, text, remedy, "E-TYPE")

    @property
    def length(self) -> int:
        """Number L of numbers: all updates, and the weight."""
        return sum(prod(values.shape) for values in self.start.values()) + 1

    @property
    def content(self) -> Mapping[str, Json]:
        """What the plan says of weights and noise."""
        weights = self.weights if isinstance(self.weights, str) else dict(sorted(self.weights.items()))
        return {"weights": weights, **({} if self.noise is None else {"noise": self.noise.to_json()})}

    def warnings(self, plan: MaskedPlan) -> list[str]:
        """Return whether one site outweighs the others, and what noise there is; see `Summand.warnings`."""
        lines = []
        if not isinstance(self.weights, str):
            share, site = max((weight, name) for name, weight in self.weights.items())
            share /= sum(self.weights.values())
            if share > MAX_SHARE:
                lines.append(f"{site} has {share:.0%} of the weight: the sum is nearly what it sends")
        if self.noise is None:
            return lines
        noise = self.noise
        lines += [
            f"updates are cut to norm {noise.clip:g} and get noise: (epsilon {noise.epsilon:g}, delta {noise.delta:g}) "
            "differential privacy of what each site sends; a site that leaves out its part takes "
            f"1 / {plan.threshold} of the variance"
        ]
        warning = self.noise.warning(self.length - 1, len(plan.sites), plan.threshold)
        return lines if warning is None else [*lines, warning]

    def words(self, source: Any, n_sites: int, fractional_bits: int) -> Words:
        """Return w d and w of a site's network in fixed point; see `Summand.words`."""
        file, *others = source
        arrays = read_network(file).arrays
        if set(arrays) != set(self.start):
            odd = sorted(set(arrays) ^ set(self.start))
            text = f"and the expected start do not have the same arrays: {', '.join(odd)[:200]}"
            raise InputError(file, text, code="E-ROUND")
        for name, values in self.start.items():
            if tuple(arrays[name].shape) != tuple(values.shape):
                shapes = tuple(arrays[name].shape), tuple(values.shape)
                text = f"array {name} has shape {shapes[0]}, and that of the start {shapes[1]}"
                raise InputError(file, text, code="E-SHAPE")
        update = np.concatenate([(to_numpy(arrays[name]) - to_numpy(self.start[name])).ravel() for name in self.start])
        if not np.all(np.isfinite(update)):
            raise InputError(file, "has values that are NaN or infinite", code="E-NUMBER")
        weight = self._weight(file, others)
        if self.noise is not None:
            update = self.noise.clipped(update) + self.noise.part(len(update), self.threshold)
        try:
            return encode(np.append(weight * update, weight), n_sites, fractional_bits)
        except InputError as error:
            raise InputError(problem.about(file) for problem in error.problems) from error

    def _weight(self, file: SafetensorsFile, companions: Sequence[SafetensorsFile]) -> float:
        """Return how much this site counts."""
        if companions and self.weights != BY_OBSERVATIONS:
            text = "is not used: the server's plan has other weights"
            raise InputError(companions[0], text, "leave it out", "E-MISMATCH")
        if not isinstance(self.weights, str):
            if self.site is None or self.site not in self.weights:
                raise InputError("weights", f"has none of {self.site}", code="E-ROUND")
            return float(self.weights[self.site])
        if self.weights == EQUAL:
            return 1.0
        if not companions or companions[0].format != DESCRIPTION:
            text = "has no description, and networks of this sum count by the observations that it states"
            remedy = "send it with its description, which `consilience site describe` writes"
            raise InputError(file, text, remedy, "E-NEEDED")
        return float(DESCRIPTION_FILES.read_header(companions[0])[0].n_observations)

    def result(self, words: Words, sites: Sequence[str], plan: Mapping[str, Json], fractional_bits: int) -> SumResult:
        """Return the average of the networks; see `Summand.result`."""
        sums = decode(words, fractional_bits)
        if not sums[-1] > 0.0:
            raise InputError("the sum of all sites", "has no positive weight", code="E-ROUND")
        update, arrays, offset = sums[:-1] / sums[-1], {}, 0
        for name, values in self.start.items():
            size = prod(values.shape)
            fused = to_numpy(values) + update[offset : offset + size].reshape(tuple(values.shape))
            arrays[name], offset = _like(fused, values), offset + size
        details = {"n_sites": len(sites), "masked": dict(plan)}
        records = [{"name": site, "components": 0} for site in sites]
        provenance = make_provenance("average", {"masked": True, **self.content}, None, records, details)
        further = {"weight": float(sums[-1])}
        return SumResult((arrays, self.symmetry, provenance), further if self.weights == BY_OBSERVATIONS else {})

    def save(self, result: SumResult, path: Path) -> None:
        """Write the averaged network, with the symmetry of the start."""
        arrays, symmetry, provenance = result.model
        write_network(path, arrays, symmetry, provenance if symmetry is not None else None)


def _like(values: Array, original: AnyArray) -> AnyArray:
    """Return numbers in the type and library of an array; whole numbers are rounded."""
    if hasattr(original, "detach"):
        import torch

        is_real = original.dtype.is_floating_point
        rounded = values if is_real else np.rint(values)
        return torch.from_numpy(np.array(rounded)).to(original.dtype)
    is_real = np.issubdtype(original.dtype, np.floating)
    return (values if is_real else np.rint(values)).astype(original.dtype)
