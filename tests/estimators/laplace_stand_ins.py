"""Approximations of laplace-torch of the structure "full": its own where it is installed, and small ones that stand in.

laplace-torch comes with more than the tests should need. The stand-ins have its documented attributes, its way of
keeping a last layer within an extractor of features, and the generalised Gauss-Newton matrix by its definition.
"""

from __future__ import annotations

import copy
import warnings

import torch
from torch import nn
from torch.func import functional_call, jacrev
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, TensorDataset


def installed():
    """Return laplace-torch; None where it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what it imports
            import laplace
    except ImportError:
        return None
    return laplace


class FeatureExtractor(nn.Module):
    """A network whose last layer's inputs are kept by a hook."""

    def __init__(self, model, last_layer_name):
        super().__init__()
        self.model, self._features = model, {}
        self.set_last_layer(last_layer_name)

    def set_last_layer(self, name):
        self._last_layer_name = name
        object.__setattr__(self, "last_layer", dict(self.model.named_modules())[name])
        self.last_layer.register_forward_hook(self._get_hook(name))

    def _get_hook(self, name):
        def hook(_, inputs, __):
            self._features[name] = inputs[0].detach()

        return hook

    def forward(self, x):
        return self.model(x)

    def forward_with_features(self, x):
        return self(x), self._features[self._last_layer_name]


class BaseLaplace:
    """The documented attributes of all approximations."""

    __module__ = "laplace.baselaplace"

    def __init__(self, model, likelihood, sigma_noise=1.0, prior_precision=1.0, prior_mean=0.0, temperature=1.0):
        self.model, self.likelihood, self.temperature = model, likelihood, temperature
        self.sigma_noise, self.prior_precision, self.prior_mean = sigma_noise, prior_precision, prior_mean
        self.n_data, self.n_outputs, self.loss = 0, 0, 0.0

    def __setattr__(self, name, value):
        if name in ("prior_precision", "prior_mean", "sigma_noise"):
            value = torch.as_tensor(value, dtype=next(self.model.parameters()).dtype).detach()
            value = value if name == "sigma_noise" else value.reshape(-1)
        super().__setattr__(name, value)


class FullLaplace(BaseLaplace):
    """All weights."""

    __module__ = "laplace.baselaplace"

    def network(self):
        return self.model

    def covered(self):
        return {name: values for name, values in self.model.named_parameters() if values.requires_grad}

    def fit(self, loader):
        rows = loader.dataset.tensors[0]
        self.mean = parameters_to_vector(self.covered().values()).detach()
        J = self.jacobians(rows)
        with torch.no_grad():
            outputs = self.network()(rows)
        n, c = outputs.shape
        loss_hessians = torch.eye(c, dtype=outputs.dtype).expand(n, c, c)
        if self.likelihood == "classification":
            p = outputs.softmax(dim=1)
            loss_hessians = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        self.H = torch.einsum("ncp,ncd,ndq->pq", J, loss_hessians, J)
        self.n_data, self.n_outputs, self.loss = n, c, float(n)
        return self

    def jacobians(self, rows):
        network, covered = self.network(), {name: values.detach() for name, values in self.covered().items()}
        by_name = jacrev(lambda weights: functional_call(network, weights, (rows,)))(covered)  # each (n, c, *shape)
        return torch.cat([by_name[name].flatten(2) for name in covered], dim=2).detach()

    @property
    def prior_precision_diag(self):
        given, sizes = self.prior_precision, torch.tensor([values.numel() for values in self.covered().values()])
        if len(given) == 1:
            return given.expand(int(sizes.sum()))
        return given if len(given) == int(sizes.sum()) else given.repeat_interleave(sizes)

    @property
    def posterior_precision(self):
        return self.H / (self.sigma_noise**2 * self.temperature) + torch.diag(self.prior_precision_diag)

    def __call__(self, x):
        J, covariance = self.jacobians(x), torch.linalg.inv(self.posterior_precision)
        with torch.no_grad():
            outputs = self.outputs(x)
        variances = torch.einsum("ncp,pq,ndq->ncd", J, covariance, J)
        if self.likelihood == "regression":
            return outputs, variances
        kappa = 1 / torch.sqrt(1 + torch.pi / 8 * variances.diagonal(dim1=1, dim2=2))
        return (kappa * outputs).softmax(dim=1)

    def outputs(self, x):
        return self.model(x)


class FullLLLaplace(FullLaplace):
    """The last layer only, which predicts from the features that the extractor keeps."""

    __module__ = "laplace.lllaplace"

    def __init__(self, model, likelihood, **options):
        super().__init__(model, likelihood, **options)
        last = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)][-1]
        self.model = FeatureExtractor(copy.deepcopy(model), last)

    def network(self):
        return self.model.model

    def covered(self):
        prefix = self.model._last_layer_name
        return {f"{prefix}.{name}": values for name, values in self.model.last_layer.named_parameters()}

    def fit(self, loader):
        self.data = next(iter(loader))
        return super().fit(loader)

    def outputs(self, x):
        _, features = self.model.forward_with_features(x)
        return features @ self.model.last_layer.weight.T + self.model.last_layer.bias


STAND_INS = {"all": FullLaplace, "last_layer": FullLLLaplace}


def fitted(library, network, X, y, subset="all", likelihood="classification", **options):
    """Return a fitted approximation of laplace-torch, or of a stand-in where `library` is None."""
    loader = DataLoader(TensorDataset(torch.as_tensor(X), torch.as_tensor(y)), batch_size=64)
    if library is None:
        model = STAND_INS[subset](network, likelihood, **options)
    else:
        model = library.Laplace(network, likelihood, subset_of_weights=subset, hessian_structure="full", **options)
    model.fit(loader)
    return model
