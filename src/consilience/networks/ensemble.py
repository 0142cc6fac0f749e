"""Ensembles of networks: the mean of their predictions, to which every fused network is compared.

With class probabilities p_j of J members and weights w_j that sum to 1, the ensemble returns

    log sum_j w_j p_j(c | x)      (mean="probabilities")
    sum_j w_j logit_j(c | x)      (mean="logits")
    log sum_j s_j(x) p_j(c | x)   (mean="stationary"),

with s_j(x) how likely an input comes from site j, by the sites' counts of classes (``classes.stationary``): the pooled
posterior where the sites differ in the frequencies of their classes. Logarithms of mean probabilities serve wherever
logits do, since a softmax returns the probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from consilience.checks import Array
from consilience.errors import InputError
from consilience.networks.classes.logit_adjustment import log_class_counts
from consilience.networks.classes.logits import OneOutput, as_logits, two_class_logits
from consilience.networks.classes.shares import as_class_counts, class_shares, pooled_class_distribution
from consilience.networks.classes.stationary import MIXING, site_posterior
from consilience.networks.module_outputs import ask, form_of

Mean = Literal["probabilities", "logits", "stationary"]
ClassPrior = Literal["own", "removed"]


class AnswerMean(nn.Module):
    """The mean of the members' answers to one output, as `ModuleEnsemble` takes its options.

    `weights` (J,) of the members sum to 1; the stationary mean takes the counts instead.
    """

    weights: Tensor
    shares: Tensor
    prior: Tensor
    restored: Tensor

    def __init__(
        self,
        weights: Array,
        mean: Mean = "probabilities",
        *,
        class_counts: ArrayLike | None = None,
        n_observations: ArrayLike | None = None,
        class_prior: Sequence[ClassPrior] | None = None,
        classes: Sequence[str] | None = None,
        one_output: OneOutput | None = None,
    ) -> None:
        super().__init__()
        n_members = len(weights)
        self.register_buffer("weights", torch.as_tensor(weights), persistent=False)
        self.mean: Mean = mean
        self.one_output = one_output
        self.classes = None if classes is None else tuple(classes)
        self.class_prior: tuple[ClassPrior, ...] = tuple(class_prior or ["own"] * n_members)
        self.class_counts = None if class_counts is None else as_class_counts(class_counts)
        self.n_observations: Array | None = None
        _refuse_lengths(n_members, class_prior=self.class_prior, class_counts=self.class_counts)
        if unknown := set(self.class_prior) - {"own", "removed"}:
            raise InputError("class_prior", f"expected 'own' or 'removed', found {min(map(repr, unknown))}")
        if self.class_counts is None:
            if mean == "stationary":
                text = "the stationary mean needs the sites' counts of classes"
                raise InputError("class_counts", text, code="E-NEEDED")
            return
        if self.classes is not None and len(self.classes) != self.class_counts.shape[1]:
            text = f"{len(self.classes)} names for {self.class_counts.shape[1]} classes"
            raise InputError("classes", text, code="E-SHAPE")
        sizes = self.class_counts.sum(axis=1) if n_observations is None else n_observations
        shares = class_shares(self.class_counts, sizes)
        self.n_observations = np.asarray(sizes, dtype=np.float64)
        removed = np.array([prior == "removed" for prior in self.class_prior])
        restored = np.where(removed[:, None], log_class_counts(self.class_counts), 0.0)
        self.register_buffer("shares", torch.as_tensor(shares), persistent=False)  # (J, C)
        prior = pooled_class_distribution(self.class_counts)
        self.register_buffer("prior", torch.as_tensor(prior), persistent=False)  # (C,)
        self.register_buffer("restored", torch.as_tensor(restored), persistent=False)  # (J, C)

    def forward(self, outputs: Sequence[Tensor]) -> Tensor:
        """Return the mean (..., C) of the members' outputs (..., C): logits, or logarithms of mean probabilities."""
        if self.one_output is not None:
            outputs = [two_class_logits(of_member, self.one_output) for of_member in outputs]
        # One number (n,) or (n, 1), of which a softmax would be 1 whatever it is, is averaged as it is.
        is_mean_of_outputs = self.mean == "logits" or outputs[0].ndim < 2 or outputs[0].shape[-1] == 1
        if not is_mean_of_outputs:
            outputs = [as_logits(of_member) for of_member in outputs]
        logits = torch.stack(list(outputs), dim=-1)  # (..., C, J)
        if self.mean == "stationary":
            return self._stationary(logits)
        weights = self.weights.to(logits.dtype)
        if is_mean_of_outputs:
            return logits @ weights
        return torch.logsumexp(torch.log_softmax(logits, dim=-2) + weights.log(), dim=-1)

    def _stationary(self, logits: Tensor) -> Tensor:
        """Return the logarithms of the pooled posterior (..., C) of the members' logits (..., C, J)."""
        n_classes = self.shares.shape[1]
        if logits.shape[-2] != n_classes:
            text = f"there are counts of {n_classes} classes, and the members answer {logits.shape[-2]}"
            raise InputError("class_counts", text, code="E-SHAPE")
        restored = logits.double() + self.restored.T  # (..., C, J)
        answers = torch.log_softmax(restored, dim=-2).reshape(-1, n_classes, len(self.weights)).permute(2, 0, 1)
        sites = site_posterior(answers.exp(), self.shares, self.prior, MIXING)  # (n, J)
        pooled = torch.logsumexp(answers + sites.T[:, :, None].log(), dim=0)  # (n, C)
        return pooled.to(logits.dtype).reshape(logits.shape[:-1])


class ModuleEnsemble(nn.Module):
    """An ensemble of networks as one module.

    Parameters
    ----------
    modules : sequence of Module
        J networks that take the same inputs and return logits (..., C), or several outputs.
    weights : array of shape (J,)
        Weight of each network in the mean; they sum to 1. The stationary mean takes the counts instead.
    mean : {"probabilities", "logits", "stationary"}, optional
        What is averaged. Mean probabilities are returned as logarithms. Default: "probabilities".
    class_counts : array_like of shape (J, C), optional
        Observations of every class at the site of each network; the stationary mean needs them.
    n_observations : array_like of shape (J,), optional
        Observations of each site, its share in classes that nobody holds. Default: the sums of its counts.
    class_prior : sequence of {"own", "removed"}, optional
        Whether the answers of each network contain the frequencies of its site's classes, as after the cross-entropy,
        or not, as after a logit-adjusted loss; the stationary mean puts them back. Default: "own".
    classes : sequence of str, optional
        Names of the classes, in the order of the outputs.
    names : sequence of str, optional
        Names of the members. Default: "member 0" and so on.
    one_output : {"logits", "probabilities"}, optional
        Of members that tell two classes apart by one output, whether it is the log odds of the second class or its
        probability; the ensemble has two outputs. Default: members have an output for every class.
    outputs : sequence of AnswerMean, optional
        Of members that return several outputs, the mean of each; the ensemble returns as many, in the same form.
        Default: probabilities of outputs of several numbers, the mean of the others.

    Raises
    ------
    InputError
        For a stationary mean without counts, and for counts, names and the like that are not one for each network.

    Examples
    --------
    >>> sites = [nn.Linear(2, 3), nn.Linear(2, 3)]
    >>> counts = [[90, 10, 0], [0, 10, 90]]
    >>> ensemble = ModuleEnsemble(sites, np.array([0.5, 0.5]), "stationary", class_counts=counts)
    >>> with torch.no_grad():
    ...     ensemble(torch.zeros(4, 2)).exp().sum(1).round(decimals=5)
    tensor([1., 1., 1., 1.])
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        weights: Array,
        mean: Mean = "probabilities",
        *,
        class_counts: ArrayLike | None = None,
        n_observations: ArrayLike | None = None,
        class_prior: Sequence[ClassPrior] | None = None,
        classes: Sequence[str] | None = None,
        names: Sequence[str] | None = None,
        one_output: OneOutput | None = None,
        outputs: Sequence[AnswerMean] | None = None,
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(modules)
        self.names = tuple(f"member {j}" for j in range(len(modules))) if names is None else tuple(names)
        _refuse_lengths(len(modules), names=self.names, weights=weights)
        self.answer = AnswerMean(
            weights,
            mean,
            class_counts=class_counts,
            n_observations=n_observations,
            class_prior=class_prior,
            classes=classes,
            one_output=one_output,
        )
        self.outputs = nn.ModuleList(outputs or ())

    @property
    def mean(self) -> Mean:
        """What is averaged."""
        return self.answer.mean

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return logits (..., C), or logarithms of mean probabilities; of several outputs each, in their form."""
        answers = [ask(member, *args, **kwargs) for member in self.members]
        self._refuse_other_answers(answers)
        first = answers[0]
        if isinstance(first, Tensor):
            mean: Tensor = self.answer(answers)
            return mean
        parts = [list(one.values()) if isinstance(one, Mapping) else list(one) for one in answers]
        means = self.outputs if len(self.outputs) else [self.answer] * len(parts[0])
        if len(means) != len(parts[0]):
            text = f"there are means of {len(means)} outputs, and the members answer {len(parts[0])}"
            raise InputError("outputs", text, code="E-SHAPE")
        merged = [one(of_output) for one, of_output in zip(means, zip(*parts, strict=True), strict=True)]
        return dict(zip(first, merged, strict=True)) if isinstance(first, Mapping) else tuple(merged)

    def _refuse_other_answers(self, answers: Sequence[Any]) -> None:
        """Raise InputError where members do not answer tensors of the same shapes."""
        forms = [_shapes(of_member) for of_member in answers]
        if None not in forms and len(set(forms)) == 1:
            return
        found = "; ".join(f"{name} {form_of(one)}" for name, one in zip(self.names, answers, strict=True))
        text = f"expected tensors of the same shapes from every member, found {found}"
        raise InputError("outputs", text, "wrap the networks so that they return what is meant", "E-SHAPE")


def _shapes(answer: Any) -> tuple[Any, ...] | None:
    """Return the shapes of an answer, or by name those of several; None where it has none."""
    if isinstance(answer, Tensor):
        return tuple(answer.shape)
    named = (
        answer if isinstance(answer, Mapping) else dict(enumerate(answer)) if isinstance(answer, list | tuple) else {}
    )
    if not named or not all(isinstance(one, Tensor) for one in named.values()):
        return None
    return tuple((name, tuple(one.shape)) for name, one in named.items())


def _refuse_lengths(n_members: int, **stated: Any) -> None:
    """Raise for statements that are not one for each member."""
    for name, values in stated.items():
        if values is not None and len(values) != n_members:
            text = f"expected one for each of {n_members} networks, found {len(values)}"
            raise InputError(name, text, code="E-SHAPE")
