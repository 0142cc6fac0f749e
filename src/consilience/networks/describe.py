"""Describe: a network with its symmetry, and what its site says of it beside the weights."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from consilience.core.held_out import digest_of_rows, refuse_trained_on
from consilience.errors import InputError, OptionError, UnsupportedError, reason_of
from consilience.networks.fusion import NetworkFusion
from consilience.networks.network import Network, negative_variance_problems, non_finite_problems, untrained_infinities
from consilience.networks.parametrised_layers import Parametrised, plain_module
from consilience.networks.symmetry.symmetry import Symmetry, trivial_symmetry
from consilience.networks.torch_modules import aliases_of_module, arrays_of_module, initialised, is_module, unwrapped

if TYPE_CHECKING:
    from torch import nn

    from consilience.networks.descriptions.description import Description


def describe_model(
    model: Any,
    data: Any = None,
    *,
    n_observations: float | None = None,
    classes: Any = None,
    example: Any = None,
    min_count: float | None = None,
    class_prior: Literal["own", "removed"] | None = None,
    layers: bool | None = None,
    output: str | int | None = None,
    held_out: Any = None,
    share_network: bool = False,
    symmetry: Symmetry | None = None,
) -> Network:
    """Return a network with its symmetry, its module and its description; see ``consilience.describe``.

    A network that cannot be traced gets the trivial symmetry, whose notes say why: methods that need none take it.
    `symmetry` is by default that of a Network, or else traced and proved on the example. Raises InputError for data or
    options that do not fit, and OptionError where there is nothing to describe the network with.
    """
    if isinstance(model, NetworkFusion):
        model = model.model
    module: Any = model.module if isinstance(model, Network) else model
    if not is_module(module):
        raise OptionError("data", "are given to a network by its module, and this one has none", "describe the module")
    from consilience.networks.module_outputs import with_output

    held_out_digest = digest_of_held_out(data, held_out)
    module = with_output(initialised(unwrapped(module), example), output)
    from consilience.networks.descriptions.measure import measure_network  # here, since it needs torch

    name = type(module).__name__
    plain = plain_module(module)
    arrays = arrays_of_module(plain)
    constants = untrained_infinities(arrays, plain)
    if problems := [*non_finite_problems(arrays, name, constants), *negative_variance_problems(arrays, name)]:
        raise InputError(problems)
    description, first_inputs = measure_network(
        module,
        data,
        n_observations=n_observations,
        classes=classes,
        example=example,
        min_count=min_count,
        class_prior=class_prior,
        layers=layers,
        name=f"description of {name}",
    )
    description = replace(description, output=output, held_out=held_out_digest, share_network=bool(share_network))
    if held_out is not None:
        description = _judged(description, module, held_out)
    if symmetry is None and isinstance(model, Network) and not model.is_untraced:
        symmetry = model.symmetry
    if symmetry is None:
        symmetry = _traced(plain, first_inputs if example is None else example)
    return Network(arrays, symmetry, name, description, module, Parametrised.of_module(module))


def digest_of_held_out(data: Any, held_out: Any) -> str | None:
    """Return the digest of held-out rows, None where there are none; raise where some of them were trained on."""
    if held_out is None:
        return None
    if data is not None:
        refuse_trained_on(data, held_out)
    return digest_of_rows(held_out)


def _judged(description: Description, module: nn.Module, held_out: Any) -> Description:
    """Return a description whose error, or loss of next tokens, is that on held-out rows."""
    from consilience.networks.held_losses import losses_of_networks  # here, since it needs torch

    rows = losses_of_networks([module], held_out)
    loss = float(f"{rows.values[0].mean():.4g}")
    if description.own_error is not None and rows.n_classes:
        return replace(description, own_error=loss)
    return description if description.own_loss is None else replace(description, own_loss=loss)


def _traced(module: nn.Module, example: Any) -> Symmetry:
    """Return the symmetry of a module, traced and proved; the trivial one with the reason where it cannot be."""

    def untraced(reason: str) -> Symmetry:
        return trivial_symmetry(arrays_of_module(module), aliases_of_module(module), (f"not traced: {reason}",))

    if example is None:
        return untraced("no example to trace it with")
    from consilience.networks.tracing.proof import symmetry

    try:
        return symmetry(module, example)
    except (InputError, UnsupportedError) as error:
        return untraced(reason_of(error))
