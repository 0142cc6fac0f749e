"""A Bayesian neural network: a torch module with an independent Gaussian for each of its weights.

The posterior is q(theta) = prod_i N(theta_i | m_i, v_i); predictions average over samples of all weights at once,

    p(y | x) = E_q[p(y | x, theta)] ~ 1/S sum_s softmax(f(x; m + sqrt(v) eps_s)),

with the same eps_s wherever the same seed is given (common random numbers).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from consilience.checks import AnyArray, Array, is_count, is_number
from consilience.errors import InputError, OptionError, UnsupportedError
from consilience.networks.network import is_floating, non_finite_problems
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.unit_rows import take_units
from consilience.networks.torch_modules import arrays_of_module, is_module, module_with

if TYPE_CHECKING:
    from torch import Tensor, nn

_FEW = 3
_REMEDY = "give a positive variance for every parameter (a tiny one for a parameter that is a point)"


@dataclass(frozen=True, eq=False)
class BayesianNetwork:
    """A network whose weights are independent Gaussians.

    Parameters
    ----------
    module
        A torch module of the architecture: its weights are not looked at, its buffers are; it is left as it is. None
        for a network that was read from a file, which can be fused but not asked.
    means, variances
        By name of the parameter, arrays of its shape (NumPy or torch); every parameter of the module once. Variances
        are positive.
    prior_variances
        Variance of the Gaussian prior N(0, v) of every weight, one for all or by name of the parameter; None where it
        is not known.
    classes
        What the outputs stand for, in their order; networks that state other classes or another order are not fused.
    symmetry
        Which axes move together, where it is known.
    name
        What it is called in messages.
    sha256
        Digest of the file that it was read from.

    Raises
    ------
    InputError
        Naming the parameters that lack a mean or variance, of a wrong shape, not finite, or with variances that are
        not positive.

    Examples
    --------
    >>> import torch
    >>> net = torch.nn.Linear(2, 3)
    >>> means = {"weight": torch.zeros(3, 2), "bias": torch.tensor([2.0, 0.0, 0.0])}
    >>> bnn = BayesianNetwork(net, means, {name: torch.full_like(m, 1e-8) for name, m in means.items()})
    >>> bnn.predict(torch.zeros(1, 2), samples=4).round(2).tolist()
    [[0.79, 0.11, 0.11]]
    """

    module: nn.Module | None
    means: Mapping[str, AnyArray]
    variances: Mapping[str, AnyArray]
    prior_variances: float | Mapping[str, float] | None = None
    classes: tuple[str, ...] | None = None
    symmetry: Symmetry | None = None
    name: str = "Bayesian network"
    sha256: str | None = None

    def __post_init__(self) -> None:
        if self.module is not None and not is_module(self.module):
            raise InputError(f"{self.name}: module: expected a torch module, found {type(self.module).__name__}")
        for what in ("means", "variances"):
            values = getattr(self, what)
            if not isinstance(values, Mapping) or any(not hasattr(one, "shape") for one in values.values()):
                raise InputError(f"{self.name}: {what}: expected arrays by name of the parameter")
            object.__setattr__(self, what, {k: v.detach() if hasattr(v, "detach") else v for k, v in values.items()})
        if self.classes is not None:
            object.__setattr__(self, "classes", tuple(str(one) for one in self.classes))
        problems = [*self._names(), *self._shapes(), *self._numbers()]
        problems += self._prior()
        if problems:
            raise InputError(problems)

    def _names(self) -> list[str]:
        if not self.means:
            return [f"{self.name}: has no parameters"]
        found = []
        if lacking := [key for key in self.means if key not in self.variances]:
            found.append(f"{self.name}: {_few(lacking)}: no variance; {_REMEDY}")
        if odd := [key for key in self.variances if key not in self.means]:
            found.append(f"{self.name}: {_few(odd)}: a variance, but no mean; give both")
        if self.module is not None:
            own = dict(self.module.named_parameters())
            if lacking := [key for key in own if key not in self.means]:
                found.append(f"{self.name}: {_few(lacking)}: parameters of the module without a mean; give every one")
            if odd := [key for key in self.means if key not in own]:
                found.append(f"{self.name}: {_few(odd)}: no parameters of the module; give means of this architecture")
        return found

    def _shapes(self) -> list[str]:
        own = {} if self.module is None else {k: tuple(v.shape) for k, v in self.module.named_parameters()}
        found = [
            f"{self.name}: {key}: the variance has shape {tuple(self.variances[key].shape)}, the mean "
            f"{tuple(values.shape)}; give one variance for every weight"
            for key, values in self.means.items()
            if key in self.variances and tuple(values.shape) != tuple(self.variances[key].shape)
        ]
        return found + [
            f"{self.name}: {key}: the mean has shape {tuple(values.shape)}, the module's parameter {own[key]}"
            for key, values in self.means.items()
            if key in own and tuple(values.shape) != own[key]
        ]

    def _numbers(self) -> list[str]:
        arrays = {f"mean of {k}": v for k, v in self.means.items()}
        arrays |= {f"variance of {k}": v for k, v in self.variances.items()}
        found = [f"{self.name}: {key} holds {v.dtype}, not floats" for key, v in arrays.items() if not is_floating(v)]
        found += non_finite_problems({key: values for key, values in arrays.items() if is_floating(values)}, self.name)
        return found + [
            f"{self.name}: {key} has variances that are not positive, smallest {float(values.min()):.3g}; {_REMEDY}"
            for key, values in self.variances.items()
            if 0 not in values.shape and float(values.min()) <= 0
        ]

    def _prior(self) -> list[str]:
        given = self.prior_variances
        if given is None:
            return []
        values = given if isinstance(given, Mapping) else dict.fromkeys(self.means, given)
        found = [
            f"{self.name}: prior_variances: expected a positive number for {key}, found {value!r}"
            for key, value in values.items()
            if not (is_number(value) and value > 0)
        ]
        if lacking := [key for key in self.means if key not in values]:
            found.append(f"{self.name}: prior_variances: none for {_few(lacking)}")
        return found[:_FEW]

    @property
    def prior(self) -> dict[str, float] | None:
        """The prior variance of every parameter by name; None where it is not known."""
        given = self.prior_variances
        if given is None:
            return None
        values = given if isinstance(given, Mapping) else dict.fromkeys(self.means, given)
        return {key: float(values[key]) for key in self.means}

    @property
    def arrays(self) -> dict[str, AnyArray]:
        """The means and the module's buffers by name: the state of the network with the mean weights."""
        buffers = {} if self.module is None else arrays_of_module(self.module)
        return {**{key: values for key, values in buffers.items() if key not in self.means}, **self.means}

    def with_module(self, module: nn.Module) -> BayesianNetwork:
        """Return it with a module of its architecture, so that it can be asked."""
        return replace(self, module=module)

    def with_units(self, symmetry: Symmetry, kept: Mapping[str, ArrayLike]) -> BayesianNetwork:
        """Return the network of some of the units only, such as those that are not switched off.

        Parameters
        ----------
        symmetry
            Of the module: what ``consilience.symmetry`` found.
        kept
            By group, the numbers of the units that stay, ascending; groups that are not named keep all.

        Raises
        ------
        OptionError
            For groups that do not exist or must keep their width, and numbers that are no units.
        """
        units = symmetry.units({key: tuple(values.shape) for key, values in self.arrays.items()}, self.name)
        masks = {name: np.ones(count, dtype=np.bool_) for name, count in units.items()}
        for name, given in kept.items():
            numbers = np.unique(np.asarray(given))
            if name not in masks or not symmetry.by_name[name].resizable or symmetry.by_name[name].parent is not None:
                raise OptionError(
                    f"kept: group {name!r} does not exist, or must keep its width; there are {', '.join(masks)}"
                )
            if not numbers.size or numbers.dtype.kind not in "iu" or numbers[0] < 0 or numbers[-1] >= units[name]:
                raise OptionError(f"kept: group {name}: expected numbers from 0 to {units[name] - 1}, at least one")
            masks[name] = np.isin(np.arange(units[name]), numbers)
        for child in (group for group in symmetry.all_groups if group.parent is not None):
            masks[child.name] = np.repeat(masks[str(child.parent)], child.size)

        def narrow(arrays: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
            names = {key: symmetry.aliases.get(key, key) for key in arrays}
            return {key: take_units(values, symmetry.layouts[names[key]], masks) for key, values in arrays.items()}

        means, variances = narrow(self.means), narrow(self.variances)
        module = None
        if self.module is not None:
            buffers = narrow({key: values for key, values in self.arrays.items() if key not in means})
            module = module_with(self.module, {**buffers, **means}, symmetry)
        return replace(self, module=module, means=means, variances=variances)

    def mean_module(self) -> nn.Module:
        """Return a copy of the module with the mean weights, in evaluation mode."""
        module = copy.deepcopy(self._module)
        module.load_state_dict(self._tensors[0], strict=False)
        return module.eval()

    @property
    def _module(self) -> nn.Module:
        if self.module is None:
            raise UnsupportedError(
                f"{self.name}: came without a module, so it cannot be asked; use with_module(module) with a module of "
                "its architecture"
            )
        return self.module

    @cached_property
    def _tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Means and deviations as tensors of the module's parameters' type, on its device."""
        import torch

        own = dict(self._module.named_parameters())
        means = {k: torch.as_tensor(v).to(own[k]) for k, v in self.means.items()}
        deviations = {k: torch.as_tensor(self.variances[k]).sqrt().to(own[k]) for k in self.means}
        return means, deviations

    def noise(self, samples: int, rng: int | np.random.Generator = 0) -> Iterator[dict[str, Tensor]]:
        """Yield standard normal numbers for every weight, one dict by name for each sample; the same for a seed."""
        import torch

        means = self._tensors[0]
        for seed in sample_seeds(samples, rng):
            found = {}
            for key, values in means.items():
                generator = torch.Generator(values.device).manual_seed(seed)
                seed += 1
                found[key] = torch.randn(values.shape, generator=generator, dtype=values.dtype, device=values.device)
            yield found

    def state(self, noise: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights m + s eps for standard normal numbers eps."""
        means, deviations = self._tensors
        return {key: values + deviations[key] * noise[key] for key, values in means.items()}

    def logits(self, inputs: Any, state: Mapping[str, Tensor], batch_size: int = 4096) -> Tensor:
        """Return what the module answers with given weights (n, ...), in evaluation mode.

        Parameters
        ----------
        inputs
            Tensor or array (n, ...).
        state
            Weights by name, of `state`.
        batch_size
            Inputs in one pass.
        """
        import torch

        module = self._evaluating
        like = next(iter(self._tensors[0].values()))
        try:
            rows = torch.as_tensor(inputs)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"inputs: expected one tensor or array (n, ...), found {type(inputs).__name__}") from error
        if rows.ndim == 0 or len(rows) == 0:
            raise InputError(f"inputs: expected (n, ...) with at least one input, found {tuple(rows.shape)}")
        rows = as_inputs(module, rows)
        found = []
        with torch.no_grad():
            for start in range(0, len(rows), batch_size):
                part = rows[start : start + batch_size].to(like.device)
                try:
                    found.append(torch.func.functional_call(module, dict(state), (part,)))
                except (RuntimeError, ValueError, IndexError, TypeError) as error:
                    raise InputError(
                        f"{self.name}: the module does not take inputs of shape {tuple(part.shape)}: "
                        f"{str(error).splitlines()[0]}"
                    ) from error
        answer = torch.cat(found)
        if answer.ndim != 2 or len(answer) != len(rows) or answer.shape[1] < 2:
            raise InputError(
                f"{self.name}: the module's output: expected logits of two classes or more ({len(rows)}, classes), "
                f"found {tuple(answer.shape)}"
            )
        return answer

    @cached_property
    def _evaluating(self) -> nn.Module:
        return copy.deepcopy(self._module).eval()

    def predict(
        self, inputs: Any, samples: int = 128, rng: int | np.random.Generator = 0, batch_size: int = 4096
    ) -> Array:
        """Return predictive probabilities (n, classes): the mean of the softmax over samples of all weights.

        Parameters
        ----------
        inputs
            Tensor or array (n, ...), as the module takes them.
        samples
            Samples S of the weights.
        rng
            Seed, or a generator; the same seed gives the same samples.
        batch_size
            Inputs in one pass.

        Raises
        ------
        InputError
            When the module does not answer with logits (n, classes).
        UnsupportedError
            When there is no module.
        """
        total: Any = 0.0
        for noise in self.noise(samples, rng):
            total = total + self.logits(inputs, self.state(noise), batch_size).double().softmax(dim=1)
        found: Array = (total / samples).cpu().numpy()
        return found


def as_inputs(module: nn.Module, inputs: Tensor) -> Tensor:
    """Return inputs in the type of a module's parameters; whole numbers stay where it looks them up."""
    import torch

    like = next((p for p in module.parameters() if p.is_floating_point()), torch.zeros(()))
    looked_up = any(isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag)) for part in module.modules())
    if looked_up and not inputs.is_floating_point():
        return inputs
    return inputs.to(like.dtype)


def sample_seeds(samples: int, rng: int | np.random.Generator) -> list[int]:
    """Return a seed for each of `samples` draws of all weights.

    Raises
    ------
    OptionError
        When `samples` is not a positive whole number.
    """
    if not is_count(samples):
        raise OptionError(f"samples: expected a positive whole number, found {samples!r}")
    generator = np.random.default_rng(rng)
    return [int(seed) for seed in generator.integers(0, 2**62, size=samples)]


def _few(names: list[str]) -> str:
    return ", ".join(names[:_FEW]) + (f" and {len(names) - _FEW} more" if len(names) > _FEW else "")
