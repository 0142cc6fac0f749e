"""The default of network fusion on a cell, with all that sites say of themselves, with counts alone, and with nothing.

A site describes its network on its own training rows; whoever fuses sees the described networks. Test rows score what
comes out, every candidate too, so that the criterion of the choice can be compared with the truth.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from network_battery.baselines import fused_answers
from network_battery.scores import scores
from network_battery.training import Cell

import consilience as cs

LEVELS = ("with", "counts", "none")
"""What sites say: all that ``describe`` gives; observations, classes and their counts; nothing, as plain modules."""
SITE = "site:"
"""What names of candidates begin with that are a site's own network."""


def describe_sites(cell: Cell) -> tuple[dict[str, Any], float]:
    """Return the described networks by name, and the processor time that it took a site in the mean."""
    start = time.process_time()
    described = {
        f"site {number}": cs.describe(model, data=data, classes=cell.data.n_classes, example=cell.example)
        for number, (model, data) in enumerate(zip(cell.models, cell.data.sites, strict=True))
    }
    return described, (time.process_time() - start) / cell.setting.sites


def counts_alone(described: Any) -> Any:
    """Return a described network whose description has nothing but observations, classes and their counts."""
    said = described.description
    counts = cs.Description(
        said.digest,
        said.n_observations,
        classes=said.classes,
        class_counts=said.class_counts,
        withheld=said.withheld,
        min_count=said.min_count,
    )
    return replace(described, description=counts)


def bytes_of(described: Any) -> dict[str, int]:
    """Return the bytes of a described network's file and of what is written beside it."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "site.safetensors"
        cs.save(described, path)
        written = {file: file.stat().st_size for file in Path(folder).iterdir()}
    return {"weights": written.pop(path), "description": sum(written.values())}


def candidate_modules(fusion: Any) -> dict[str, Any]:
    """Return the candidates of a fusion by name, as modules or Bayesian networks; empty where it tells none."""
    candidates = getattr(fusion, "candidates", None)
    if not isinstance(candidates, Mapping):
        return {}
    is_model = (torch.nn.Module, cs.BayesianNetwork)
    return {name: one if isinstance(one, is_model) or not callable(one) else one() for name, one in candidates.items()}


def result_of(cell: Cell, models: Mapping[str, Any], level: str, rng: int = 0) -> dict[str, Any]:
    """Return verdict, scores and candidates of the default on models by name, under a seed."""
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the verdict is recorded whole
        fusion = cs.fuse(models, rng=rng, **({"example": cell.example} if level == "none" else {}))
        answers = fused_answers(cell, fusion.model)
    result = scores(cell, answers) | {"seconds": time.process_time() - start, "status": fusion.status.name}
    verdict = getattr(fusion, "verdict", None)
    result["verdict"] = None if verdict is None else verdict.to_json()
    stated = {} if verdict is None else dict(verdict.candidates)
    networks = candidate_modules(fusion)
    own = {f"{SITE}{name}": site for site, name in enumerate(models)}
    result["candidates"] = {}
    for name in dict.fromkeys([*stated, *networks]):
        if name in own:
            of_candidate = cell.answers[own[name]]
        elif name in networks:
            of_candidate = fused_answers(cell, networks[name])
        else:
            of_candidate = None
        found = {} if of_candidate is None else scores(cell, of_candidate)
        score = stated.get(name)
        result["candidates"][name] = found | {"score": None if score is None or not np.isfinite(score) else score}
    ensemble = getattr(fusion, "ensemble", None)
    result["ensemble"] = None if ensemble is None else scores(cell, fused_answers(cell, ensemble))
    return result


def default(level: str) -> Callable[[Cell], dict[str, Any]]:
    """Return the method that describes the sites of a cell at a level, fuses them by default, and scores the result."""

    def method(cell: Cell) -> dict[str, Any]:
        if level == "none":
            return result_of(cell, {f"site {number}": model for number, model in enumerate(cell.models)}, level)
        described, seconds = describe_sites(cell)
        if level == "counts":
            described = {name: counts_alone(one) for name, one in described.items()}
        facts = {"seconds_to_describe": seconds, "bytes": bytes_of(next(iter(described.values())))}
        return result_of(cell, described, level) | facts

    return method


DEFAULTS = {f"default, {level}": default(level) for level in LEVELS}
