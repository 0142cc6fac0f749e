"""Every method for checkpoints with options, and what it is given beside the models: what the laws of all run on."""

import numpy as np
import torch
from safetensors.torch import save_file

from consilience.checkpoints.methods import TENSOR_METHODS
from consilience.networks.fisher.files import write_fisher
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.fisher.kronecker import KroneckerFactors
from tests.checkpoints.some_checkpoints import SHAPES
from tests.specimens import Specimens

SPECIMENS = Specimens(
    "SPECIMENS in tests/checkpoints/methods_zoo.py",
    {
        "average": {"average": ({}, {"weights": [2, 1]})},
        "fisher": {"fisher": ({"normalize": True}, {"fishers": True, "weights": [2, 1]})},
        "ties": {"ties": ({"density": 0.3}, {"base": True})},
        "dare": {
            "dare": ({"density": 0.4}, {"base": True}),
            "dare, ties": ({"density": 0.4, "combine": "ties"}, {"base": True, "weights": [2, 1]}),
        },
        "task_arithmetic": {"task_arithmetic": ({"scaling": 0.7}, {"base": True})},
        "slerp": {"slerp": ({"t": 0.3}, {})},
        "breadcrumbs": {"breadcrumbs": ({"density": 0.5, "gamma": 0.1}, {"base": True})},
        "della": {
            "della": ({"density": 0.5}, {"base": True}),
            "della, linear": ({"combine": "linear"}, {"base": True}),
        },
        "sce": {"sce": ({}, {"base": True}), "sce, selected": ({"select": 0.3}, {"base": True})},
        "model_stock": {
            "model_stock": ({}, {"base": True}),
            "model_stock, rows": ({"axis": "rows"}, {"base": True}),
        },
        "karcher": {"karcher": ({}, {"weights": [2, 1]})},
        "multislerp": {"multislerp": ({}, {}), "multislerp, base": ({}, {"base": True})},
        "nuslerp": {
            "nuslerp": ({}, {"weights": [2, 1]}),
            "nuslerp, columns": ({"axis": "columns"}, {"base": True}),
        },
        "ram": {"ram": ({}, {"base": True}), "ram, boost": ({"boost": 0.1}, {"base": True})},
        "nearswap": {"nearswap": ({"t": 0.01}, {"base": True, "models": 1})},
        "arcee_fusion": {"arcee_fusion": ({}, {"base": True, "models": 1})},
        "tsv_m": {"tsv_m": ({}, {"base": True})},
        "iso": {"iso": ({}, {"base": True}), "iso, tasks": ({"common": 0.5}, {"base": True, "weights": [2, 1]})},
        "knots": {"knots": ({}, {"base": True}), "knots, linear": ({"combine": "linear"}, {"base": True})},
        "wudi": {"wudi": ({}, {"base": True}), "wudi, centered": ({"centered": True}, {"base": True})},
        "regmean": {"regmean": ({}, {"factors": True})},
        "passthrough": {"passthrough": ({"scale": 0.5}, {"models": 1})},
    },
)
"""By the method's name, its options and what it is given, by what tests call them; a new method is a new entry here."""
NAMES = [kind.name for kind in TENSOR_METHODS]
"""What the laws run over: the table itself."""


def factors(path, model):
    """Write Kronecker factors of two layers of a model, one of them a diagonal."""
    draw = np.random.default_rng(sum(model.encode()))
    layers = {}
    for name in ("model.layers.0.mlp.down_proj", "model.layers.0.mlp.up_proj"):
        outputs, inputs = SHAPES[f"{name}.weight"]
        root = draw.normal(size=(2 * inputs, inputs))
        moments = root.T @ root / (2 * inputs)
        if name.endswith("up_proj"):
            moments = np.diag(np.diag(moments))
        layers[name] = KroneckerFactors(moments[None], np.eye(outputs)[None], has_bias=False)
    write_fisher(path, FisherInformation({}, layers=layers))
    return path


def information(path, model):
    """Write the diagonal information of a model; none of one tensor, and zeros in part of another."""
    draw = torch.Generator().manual_seed(sum(model.encode()))
    found = {name: torch.rand(shape, generator=draw) for name, shape in SHAPES.items() if name != "lm_head.weight"}
    found["model.norm.weight"][:5] = 0.0
    save_file(found, path)
    return path
