"""Networks with Fisher information, small enough for P x P matrices, and how it would be counted one by one."""

from functools import cache

import torch
from torch import nn

import consilience as cs


def perceptron(seed=0, inputs=3, hidden=4, classes=3):
    """Return a small network of double precision."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, classes)).double().eval()


def observations(seed, number=40, width=3):
    """Return inputs (number, width)."""
    return torch.randn(number, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def one_by_one(module, inputs, likelihood="categorical", noise=1.0):
    """Return rows (observations * outputs, P) whose products sum to the information, a backward pass for each."""
    parameters = [values for values in module.parameters() if values.requires_grad]
    rows = []
    for x in inputs:
        outputs = module(x[None])
        outputs = outputs.reshape(1, -1) if likelihood != "categorical" else outputs
        flat = outputs.flatten(2) if outputs.ndim > 2 else outputs[:, :, None]
        for position in range(flat.shape[2]):
            logits = flat[0, :, position]
            for output in range(len(logits)):
                if likelihood == "categorical":
                    probability = logits.softmax(0)[output].detach()
                    value = probability.sqrt() * logits.log_softmax(0)[output]
                elif likelihood == "bernoulli":
                    probability = logits[output].sigmoid().detach()
                    value = (probability * (1 - probability)).sqrt() * logits[output]
                else:
                    value = logits[output] / noise
                gradients = torch.autograd.grad(value, parameters, retain_graph=True, materialize_grads=True)
                rows.append(torch.cat([gradient.reshape(-1) for gradient in gradients]))
    return torch.stack(rows)


def flat(arrays):
    """Return arrays by name as one vector, or rows of one more axis."""
    return torch.cat([torch.as_tensor(values).reshape(-1) for values in arrays.values()])


def dense(information):
    """Return the whole matrix (P, P)."""
    residual = torch.diag(flat(information.residual))
    if not information.factors:
        return residual
    rows = torch.cat(
        [torch.as_tensor(factors).reshape(information.rank, -1) for factors in information.factors.values()], dim=1
    )
    return rows.T @ rows + residual


def vector(module):
    """Return the parameters of a module in one vector."""
    return torch.cat([values.detach().reshape(-1) for values in module.parameters()])


@cache
def informed(kind="factors", prior_precision=0.7, number=3):
    """Return networks of one start, and what is known of them; made once for all tests, never changed."""
    models = []
    for seed in range(number):
        model = perceptron()
        with torch.no_grad():
            for values, step in zip(model.parameters(), perceptron(seed + 1).parameters(), strict=True):
                values += 0.3 * step
        models.append(model)
    informations = [
        cs.fisher(model, observations(seed) + seed, kind, rank=None, prior_precision=prior_precision, minimum=1)
        for seed, model in enumerate(models)
    ]
    return models, informations
