"""Bayesian neural networks with mean-field Gaussian posteriors: a torch module, and a mean and variance of each weight.

The posterior is q(theta) = prod_i N(theta_i | m_i, v_i) over the weights theta. The predictive distribution of a
classifier with logits f(x; theta) is estimated by S samples of all weights at once,

    p(y | x) = E_q[p(y | x, theta)] ~ 1/S sum_s softmax(f(x; m + sqrt(v) eps_s)),   eps_s ~ N(0, I),

with the same eps_s wherever the same seed is given (common random numbers), so that differences between two posteriors
are not differences between draws. Samples come in pairs eps, -eps (antithetic variates), whose predictions err in
opposite directions: 32 of them err about as much as 64 independent ones (docs/evidence/bayesian.md).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.checks import AnyArray, Array, is_count, is_number
from consilience.drawing.display import Displayed, names_in_line
from consilience.drawing.words import first_names, format_count, shorten
from consilience.errors import InputError, OptionError, Problem, UnsupportedError
from consilience.networks.descriptions.description import Description
from consilience.networks.fisher.information import network_digest
from consilience.networks.network import is_floating, non_finite_problems, same_values
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.unit_rows import take_units
from consilience.networks.torch_modules import arrays_of_module, is_module, module_with

if TYPE_CHECKING:
    from torch import Tensor, nn

MEAN, VARIANCE = "mean/", "variance/"
"""What the names of means and of variances begin with in a file."""

_MAX_NAMES = 3
"""Names, and lines about priors, that a message lists. Chosen by hand for short messages."""

_REMEDY = "give a positive variance for every parameter (a tiny one for a parameter that is a point)"


@dataclass(frozen=True, eq=False, repr=False)
class BayesianNetwork(Displayed):
    """A network whose weights are independent Gaussians.

    Parameters
    ----------
    module : torch.nn.Module or None
        A module of the architecture, which is not changed. Its buffers are used, its own weights are not. None for a
        network that was read from a file: it can be fused, but cannot predict.
    means, variances : mapping of str to array
        By name of the parameter, NumPy arrays or tensors of the parameter's shape; every parameter of the module once.
        Variances are positive.
    prior_variances : float or mapping of str to float, optional
        Variance v of the Gaussian prior N(0, v) of each weight: one for all, or by name of the parameter. Default:
        None, not known.
    classes : tuple of str, optional
        Names of the classes, in the order of the outputs. Networks with other classes or another order are not fused.
    symmetry : Symmetry, optional
        Which axes of the parameters move together. Default: None, not known.
    name : str
        What messages call the network.
    sha256 : str, optional
        Digest of the file that it was read from.
    n_observations : float, optional
        Observations that it was fitted to, its weight in a fusion unless weights are given. Default: None, not known.
    example : Tensor, optional
        Synthetic inputs of the right shape, by which its symmetry is traced where none is known. Default: None.
    description : Description, optional
        What its site says of it, from ``consilience.describe``. Default: None.

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
    n_observations: float | None = None
    example: Any = field(default=None, repr=False)
    description: Description | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.module is not None and not is_module(self.module):
            text = f"module: expected a torch module, found {type(self.module).__name__}"
            raise InputError(self.name, text, code="E-TYPE")
        for what in ("means", "variances"):
            values = getattr(self, what)
            if not isinstance(values, Mapping) or any(not hasattr(value, "shape") for value in values.values()):
                raise InputError(self.name, f"{what}: expected arrays by name of the parameter", code="E-TYPE")
            object.__setattr__(self, what, {k: v.detach() if hasattr(v, "detach") else v for k, v in values.items()})
        if self.classes is not None:
            object.__setattr__(self, "classes", tuple(str(label) for label in self.classes))
        problems = [*self._name_problems(), *self._shape_problems(), *self._value_problems()]
        problems += self._prior_problems()
        if problems:
            raise InputError(problems)

    def _headline(self) -> str:
        size = sum(math.prod(values.shape) for values in self.means.values())
        return f"{shorten(self.name, 40)}, {size:,} weights in {format_count(len(self.means), 'array')}"

    def _facts(self) -> dict[str, object | None]:
        return {
            "module": "none, so that it cannot predict" if self.module is None else type(self.module).__name__,
            "observations": None if self.n_observations is None else f"{self.n_observations:,.0f}",
            "classes": names_in_line(self.classes or ()),
            "prior": "none stated" if self.prior_variances is None else "stated",
            "symmetry": None if self.symmetry is None else self.symmetry._headline(),
        }

    def _name_problems(self) -> list[Problem]:
        if not self.means:
            return [Problem(self.name, "has no parameters", code="E-NEEDED")]
        without_variance = [key for key in self.means if key not in self.variances]
        without_mean = [key for key in self.variances if key not in self.means]
        found = [
            (without_variance, "no variance", _REMEDY, "E-NEEDED"),
            (without_mean, "a variance, but no mean", "give both", "E-NEEDED"),
        ]
        if self.module is not None:
            parameters = dict(self.module.named_parameters())
            missing = [key for key in parameters if key not in self.means]
            unknown = [key for key in self.means if key not in parameters]
            found += [
                (missing, "parameters of the module without a mean", "give every one", "E-NEEDED"),
                (unknown, "no parameters of the module", "give means of this architecture", "E-MISMATCH"),
            ]
        return [
            Problem(self.name, f"{first_names(names, _MAX_NAMES)}: {text}", remedy, code)
            for names, text, remedy, code in found
            if names
        ]

    def _shape_problems(self) -> list[Problem]:
        shapes = {} if self.module is None else {k: tuple(v.shape) for k, v in self.module.named_parameters()}
        problems = [
            Problem(
                self.name,
                f"{key}: the variance has shape {tuple(self.variances[key].shape)}, the mean {tuple(values.shape)}",
                "give one variance for every weight",
                "E-SHAPE",
            )
            for key, values in self.means.items()
            if key in self.variances and tuple(values.shape) != tuple(self.variances[key].shape)
        ]
        return problems + [
            Problem(
                self.name,
                f"{key}: the mean has shape {tuple(values.shape)}, the module's parameter {shapes[key]}",
                code="E-SHAPE",
            )
            for key, values in self.means.items()
            if key in shapes and tuple(values.shape) != shapes[key]
        ]

    def _value_problems(self) -> list[Problem]:
        arrays = {f"mean of {k}": v for k, v in self.means.items()}
        arrays |= {f"variance of {k}": v for k, v in self.variances.items()}
        problems = [
            Problem(self.name, f"{key} holds {v.dtype}, not floats", code="E-TYPE")
            for key, v in arrays.items()
            if not is_floating(v)
        ]
        problems += non_finite_problems(
            {key: values for key, values in arrays.items() if is_floating(values)}, self.name
        )
        return problems + [
            Problem(
                self.name,
                f"{key} has variances that are not positive, smallest {float(values.min()):.3g}",
                _REMEDY,
                "E-NUMBER",
            )
            for key, values in self.variances.items()
            if 0 not in values.shape and float(values.min()) <= 0
        ]

    def _prior_problems(self) -> list[Problem]:
        n, prior = self.n_observations, self.prior_variances
        if n is not None and not (is_number(n) and n > 0):
            return [Problem(self.name, f"n_observations: expected a positive number, found {n!r}", code="E-NUMBER")]
        if prior is None:
            return []
        variances = prior if isinstance(prior, Mapping) else dict.fromkeys(self.means, prior)
        problems = [
            Problem(
                self.name, f"prior_variances: expected a positive number for {key}, found {value!r}", code="E-NUMBER"
            )
            for key, value in variances.items()
            if not (is_number(value) and value > 0)
        ]
        if missing := [key for key in self.means if key not in variances]:
            problems.append(
                Problem(self.name, f"prior_variances: none for {first_names(missing, _MAX_NAMES)}", code="E-NEEDED")
            )
        return problems[:_MAX_NAMES]

    @property
    def prior(self) -> dict[str, float] | None:
        """The prior variance of every parameter by name; None where it is not known."""
        prior = self.prior_variances
        if prior is None:
            return None
        variances = prior if isinstance(prior, Mapping) else dict.fromkeys(self.means, prior)
        return {key: float(variances[key]) for key in self.means}

    @property
    def arrays(self) -> dict[str, AnyArray]:
        """The means and the module's buffers by name: the state of the network with the mean weights."""
        buffers = {} if self.module is None else arrays_of_module(self.module)
        return {**{key: values for key, values in buffers.items() if key not in self.means}, **self.means}

    @property
    def stored_arrays(self) -> dict[str, AnyArray]:
        """Means and variances by the names that they have in a file."""
        means = {f"{MEAN}{key}": values for key, values in self.means.items()}
        return {**means, **{f"{VARIANCE}{key}": values for key, values in self.variances.items()}}

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all means and variances, the same in memory and in a file; it binds a description to them."""
        return network_digest(self.stored_arrays, {})

    def with_module(self, module: nn.Module) -> BayesianNetwork:
        """Return the network with a module of its architecture, so that it can predict."""
        return replace(self, module=module)

    def with_units(self, symmetry: Symmetry, kept: Mapping[str, ArrayLike]) -> BayesianNetwork:
        """Return the network of some of the units only, such as those that are not switched off.

        Parameters
        ----------
        symmetry : Symmetry
            Symmetry of the module, from ``consilience.symmetry``.
        kept : mapping of str to array_like of int
            By group, the numbers of the units that stay. Groups that are not named keep all units.

        Raises
        ------
        OptionError
            For groups that do not exist or must keep their width, and numbers that are no units.
        """
        units = symmetry.units({key: tuple(values.shape) for key, values in self.arrays.items()}, self.name)
        masks = _unit_masks(symmetry, units, kept)

        def narrow(arrays: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
            names = {key: symmetry.aliases.get(key, key) for key in arrays}
            return {key: take_units(values, symmetry.layouts[names[key]], masks) for key, values in arrays.items()}

        means, variances = narrow(self.means), narrow(self.variances)
        module = None
        if self.module is not None:
            buffers = narrow({key: values for key, values in self.arrays.items() if key not in means})
            module = module_with(self.module, {**buffers, **means}, symmetry)
        return replace(self, module=module, means=means, variances=variances, description=None)

    def mean_module(self) -> nn.Module:
        """Return a copy of the module with the mean weights, in evaluation mode."""
        module = copy.deepcopy(self._module)
        module.load_state_dict(self._tensors[0], strict=False)
        return module.eval()

    @property
    def _module(self) -> nn.Module:
        if self.module is None:
            remedy = "use `with_module(module)` with a module of its architecture"
            raise UnsupportedError(self.name, "came without a module, so it cannot be asked", remedy)
        return self.module

    @cached_property
    def _tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Means and deviations as tensors of the module's parameters' type, on its device."""
        import torch

        parameters = dict(self._module.named_parameters())
        means = {k: torch.as_tensor(v).to(parameters[k]) for k, v in self.means.items()}
        # The root is taken in the precision of the variances, before they are cast to that of the parameters.
        deviations = {k: torch.as_tensor(self.variances[k]).sqrt().to(parameters[k]) for k in self.means}
        return means, deviations

    def noise(self, samples: int, rng: int | np.random.Generator = 0) -> Iterator[dict[str, Tensor]]:
        """Yield standard normal numbers eps for every weight, one dict by name for each sample; the same for a seed.

        Every second sample is the one before it with its sign changed.
        """
        import torch

        means = self._tensors[0]
        for number, seed in enumerate(sample_seeds(samples, rng)):
            noise = {}
            for key, values in means.items():
                # A generator for each array: its draws do not depend on the shapes of the arrays before it.
                generator = torch.Generator(values.device).manual_seed(seed)
                seed += 1
                noise[key] = torch.randn(values.shape, generator=generator, dtype=values.dtype, device=values.device)
            yield noise
            if 2 * number + 1 < samples:
                yield {key: -values for key, values in noise.items()}

    def state(self, noise: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights m + s eps for standard normal numbers eps."""
        means, deviations = self._tensors
        return {key: values + deviations[key] * noise[key] for key, values in means.items()}

    def logits(self, inputs: Any, state: Mapping[str, Tensor], batch_size: int = 4096) -> Tensor:
        """Return the logits (n, n_classes) of the module with the weights of `state`, in evaluation mode.

        Parameters
        ----------
        inputs : Tensor or array_like of shape (n, ...)
            Inputs, as the module takes them.
        state : mapping of str to Tensor
            Weights by name, as method `state` returns them.
        batch_size : int
            Inputs in one forward pass. Default: 4096.

        Raises
        ------
        InputError
            For inputs that the module does not take, and outputs that are not logits.
        """
        import torch

        module = self._evaluation_module
        device = next(iter(self._tensors[0].values())).device
        try:
            rows = torch.as_tensor(inputs)
        except (TypeError, ValueError, RuntimeError) as error:
            text = f"expected one tensor or array (n, ...), found {type(inputs).__name__}"
            raise InputError("inputs", text, code="E-TYPE") from error
        if rows.ndim == 0 or len(rows) == 0:
            text = f"expected (n, ...) with at least one input, found {tuple(rows.shape)}"
            raise InputError("inputs", text, code="E-SHAPE")
        rows = as_inputs(module, rows)
        outputs = []
        with torch.no_grad():
            for start in range(0, len(rows), batch_size):
                batch = rows[start : start + batch_size].to(device)
                try:
                    outputs.append(torch.func.functional_call(module, dict(state), (batch,)))
                except (RuntimeError, ValueError, IndexError, TypeError) as error:
                    raise InputError(
                        self.name,
                        f"the module does not take inputs of shape {tuple(batch.shape)}: {str(error).splitlines()[0]}",
                        code="E-SHAPE",
                    ) from error
        logits = torch.cat(outputs)  # (n, n_classes)
        if logits.ndim != 2 or len(logits) != len(rows) or logits.shape[1] < 2:
            text = (
                f"the module's output: expected logits of two classes or more ({len(rows)}, classes), "
                f"found {tuple(logits.shape)}"
            )
            raise InputError(self.name, text, code="E-SHAPE")
        return logits

    @cached_property
    def _evaluation_module(self) -> nn.Module:
        """A copy of the module in evaluation mode, made once for all draws."""
        return copy.deepcopy(self._module).eval()

    def predict(
        self, inputs: Any, samples: int = 128, rng: int | np.random.Generator = 0, batch_size: int = 4096
    ) -> Array:
        """Return predictive probabilities (n, n_classes): the mean of the softmax over samples of all weights.

        Parameters
        ----------
        inputs : Tensor or array_like of shape (n, ...)
            Inputs, as the module takes them.
        samples : int
            Number S of samples of the weights. Default: 128, the test samples of table 1 of Rossi et al. 2023.
        rng : int or numpy.random.Generator
            Seed or generator; the same seed gives the same samples. Default: 0.
        batch_size : int
            Inputs in one forward pass. Default: 4096.

        Raises
        ------
        InputError
            When the module does not answer with logits (n, classes).
        UnsupportedError
            When there is no module.
        """
        summed: Any = 0.0  # probabilities (n, n_classes), in float64
        for noise in self.noise(samples, rng):
            summed = summed + self.logits(inputs, self.state(noise), batch_size).double().softmax(dim=1)
        probabilities: Array = (summed / samples).cpu().numpy()
        return probabilities


def _unit_masks(
    symmetry: Symmetry, units: Mapping[str, int], kept: Mapping[str, ArrayLike]
) -> dict[str, NDArray[np.bool_]]:
    """Return which units stay (units,), by group; see `BayesianNetwork.with_units`."""
    masks = {name: np.ones(count, dtype=np.bool_) for name, count in units.items()}
    for name, unit_numbers in kept.items():
        numbers = np.unique(np.asarray(unit_numbers))
        if name not in masks or not symmetry.by_name[name].resizable or symmetry.by_name[name].parent is not None:
            text = f"group {name!r} does not exist, or must keep its width; there are {', '.join(masks)}"
            raise OptionError("kept", text)
        if not numbers.size or numbers.dtype.kind not in "iu" or numbers[0] < 0 or numbers[-1] >= units[name]:
            raise OptionError("kept", f"group {name}: expected numbers from 0 to {units[name] - 1}, at least one")
        masks[name] = np.isin(np.arange(units[name]), numbers)
    # What is inside a unit (the entries of an attention head) stays or goes with it.
    for child in (group for group in symmetry.all_groups if group.parent is not None):
        masks[child.name] = np.repeat(masks[str(child.parent)], child.size)
    return masks


def differing_buffers(bnn_a: BayesianNetwork, bnn_b: BayesianNetwork) -> list[str]:
    """Return the names of the buffers of two networks with modules that are not the same."""
    buffers_a, buffers_b = ({k: v for k, v in bnn.arrays.items() if k not in bnn.means} for bnn in (bnn_a, bnn_b))
    return [
        key
        for key in sorted({*buffers_a, *buffers_b})
        if key not in buffers_a or key not in buffers_b or not same_values(buffers_a[key], buffers_b[key])
    ]


def as_inputs(module: nn.Module, inputs: Tensor) -> Tensor:
    """Return inputs in the type of a module's parameters; whole numbers stay integers where it embeds them."""
    import torch

    parameter = next((p for p in module.parameters() if p.is_floating_point()), torch.zeros(()))
    has_embedding = any(isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag)) for part in module.modules())
    if has_embedding and not inputs.is_floating_point():
        return inputs
    return inputs.to(parameter.dtype)


def sample_seeds(samples: int, rng: int | np.random.Generator) -> list[int]:
    """Return a seed for each pair of `samples` draws of all weights.

    Raises OptionError when `samples` is not a positive whole number.
    """
    if not is_count(samples):
        raise OptionError("samples", f"expected a positive whole number, found {samples!r}")
    generator = np.random.default_rng(rng)
    return [int(seed) for seed in generator.integers(0, 2**62, size=(samples + 1) // 2)]
