"""An object of every kind of model, and a file of every format: what the laws of kinds and formats run on."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file
from sklearn.naive_bayes import GaussianNB
from torch import nn

import consilience as cs
from consilience.api.kinds import FORMATS, KINDS, SHARDS
from tests.specimens import Specimens


def posterior(seed=0):
    family, rng = cs.families.DiagonalGaussian(2), np.random.default_rng(seed)
    natural = family.to_natural(mean=rng.normal(size=(3, 2)), variance=rng.uniform(0.5, 2.0, (3, 2)))
    return cs.Posterior(family, natural, counts=rng.uniform(20.0, 60.0, 3))


def network(seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).eval()


def bayesian_network(seed=0):
    module = network(seed)
    means = {name: values.detach() for name, values in module.named_parameters()}
    return cs.BayesianNetwork(module, means, {name: torch.full_like(values, 0.1) for name, values in means.items()})


def symmetry():
    return cs.symmetry(network(), torch.zeros(2, 3))


def estimator(seed=0):
    rng = np.random.default_rng(seed)
    classes = np.repeat(["ash", "elm"], 20)
    return GaussianNB().fit(rng.normal(size=(40, 2)) + (classes == "elm")[:, None], classes)


def draws(seed=0):
    values = np.random.default_rng(seed).normal(size=(2, 150, 2))
    return cs.Draws({"beta": values}, prior=0.5, n_observations=30)


def adapter(seed=0):
    rng, size = np.random.default_rng(seed), 8
    with TemporaryDirectory() as folder:
        factors = {
            f"base_model.model.layers.{layer}.q.lora_{part}.weight": rng.normal(size=shape).astype(np.float32)
            for layer in range(2)
            for part, shape in (("A", (2, size)), ("B", (size, 2)))
        }
        save_arrays(factors, Path(folder) / "adapter_model.safetensors")
        config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q"]}
        (Path(folder) / "adapter_config.json").write_text(json.dumps(config))
        return cs.LoraAdapter.read(folder)


OBJECTS = Specimens(
    "OBJECTS in tests/api/kinds_zoo.py",
    {
        "estimators": estimator,
        "draws": draws,
        "adapters": adapter,
        "posteriors": posterior,
        "bayesian": bayesian_network,
        "networks": network,
    },
)
"""By the kind's name, what makes an object of it from a seed; a new kind is a new entry here."""


def _saved(model, path, **told):
    cs.save(model, path, **told)
    return path


def _checkpoint(path):
    save_file(dict(network().state_dict()), path)
    return path


def _fisher(path):
    rows = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    return _saved(cs.fisher(network(), rows, minimum=1), path)


def _description(path):
    rows = torch.randn(120, 3, generator=torch.Generator().manual_seed(0))
    return _saved(cs.describe(network(), (rows, torch.arange(120) % 2)).description, path)


FILES = Specimens(
    "FILES in tests/api/kinds_zoo.py",
    {
        "statistics": lambda path: _saved(estimator(), path),
        "draws": lambda path: _saved(draws(), path),
        "adapter": lambda path: _saved(adapter(), path),
        "posterior": lambda path: _saved(posterior(), path),
        "bayesian": lambda path: _saved(bayesian_network(), path, symmetry=symmetry()),
        "network": lambda path: _saved(network(), path, symmetry=symmetry()),
        "fisher": _fisher,
        "description": _description,
        "checkpoint": _checkpoint,
    },
)
"""By the format's name, what writes a file of it; a new format is a new entry here."""


def packed(folder):
    """Return a shard of a few sites."""
    for seed in range(3):
        cs.save(posterior(seed), folder / f"site-{seed}.safetensors")
    cs.pack(folder, folder / "packed")
    return next((folder / "packed").glob("*.safetensors"))


KIND_NAMES = [kind.name for kind in KINDS]
FORMAT_NAMES = [form.name for form in FORMATS]
"""What the laws run over: the tables themselves."""
OF_SHARDS = [form.name for form in SHARDS.formats]
