"""Motion capture of two subjects and the local models of each: read, fitted, kept in the cache folder.

Needs ``mocap6.npz`` in the folder ``CONSILIENCE_DATA`` (default ``../shared/data`` beside the repository): sequences of
the CMU Graphics Lab Motion Capture Database in the annotated form of Fox, Hughes, Sudderth, Jordan (2014).
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

import consilience as cs
from consilience.posteriors.hidden_markov.learner import StickyHDPHMM
from consilience.posteriors.hidden_markov.model import HiddenMarkovModel

DATA = Path(os.environ.get("CONSILIENCE_DATA", Path(__file__).parents[3] / "shared/data")) / "mocap6.npz"
CACHE = Path(os.environ.get("CONSILIENCE_CACHE", Path(__file__).parents[1] / ".cache"))
FITS = CACHE / "spahm/mocap"
TRUNCATIONS = (15, 20, 30)
PRIOR = {"gamma": 5.0, "eta": 0.5, "kappa": 10.0, "start_concentration": 5.0, "dof": 14.0, "inverse_scale": 1.0}
STARTS = 10


@dataclass(frozen=True, eq=False)
class Recording:
    """Sequences one after another.

    Parameters
    ----------
    name
        ``"subject 13"``, ``"subject 14"`` or ``"both"``.
    rows
        Twelve channels, ten rows a second (n, 12).
    lengths
        Rows of each sequence.
    exercises
        Annotated exercise of every row (n,).
    """

    name: str
    rows: np.ndarray
    lengths: list[int]
    exercises: np.ndarray


def load_subjects(path: Path = DATA) -> tuple[Recording, Recording]:
    """Return what each of the two subjects did, three sequences each."""
    with np.load(path) as stored:
        data = dict(stored)
    parts = []
    for subject in np.unique(data["subject"]):
        own = np.flatnonzero(data["subject"] == subject)
        taken = np.concatenate([np.arange(data["offsets"][i], data["offsets"][i + 1]) for i in own])
        lengths = np.diff(data["offsets"])[own].tolist()
        parts.append(Recording(f"subject {subject}", data["x"][taken], lengths, data["z"][taken].astype(np.int64)))
    return parts[0], parts[1]


def together(parts: tuple[Recording, Recording]) -> Recording:
    """Return all six sequences as one recording."""
    rows, exercises = (np.concatenate([getattr(part, name) for part in parts]) for name in ("rows", "exercises"))
    return Recording("both", rows, [*parts[0].lengths, *parts[1].lengths], exercises)


@dataclass(frozen=True, eq=False)
class Fit:
    """A model of a recording, the bound it reached, and its labels (n,) of the rows it was fitted to (Viterbi)."""

    recording: Recording
    model: HiddenMarkovModel
    bound: float
    seconds: float

    @cached_property
    def labels(self) -> np.ndarray:
        """State of every row on the most probable path."""
        return self.model.predict(self.recording.rows, self.recording.lengths)


def fitted(recording: Recording, truncation: int, precision: float, seed: int) -> Fit:
    """Return a model, from the cache where it is there."""
    name = recording.name.replace(" ", "-")
    path = FITS / f"{name}-K{truncation}-precision{precision:g}-starts{STARTS}-seed{seed}.safetensors"
    record = path.with_suffix(".json")
    if not record.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        begin = time.perf_counter()
        learner = StickyHDPHMM(truncation, mean_precision=precision, n_init=STARTS, seed=seed, **PRIOR)
        model = learner.fit(recording.rows, recording.lengths)
        cs.save(model, path, min_count=0)
        seconds = time.perf_counter() - begin
        record.write_text(json.dumps({"bound": float(model.bound[-1]), "seconds": seconds}))
        sys.stdout.write(f"fitted {path.stem}: {model.n_states} states, {model.bound[-1]:.1f}, {seconds:.0f} s\n")
        sys.stdout.flush()
    return Fit(recording, cs.rebuild(cs.load(path)), **json.loads(record.read_text()))


def best_by_bound(recording: Recording, precision: float, seed: int, truncations: tuple[int, ...]) -> Fit:
    """Return the fit of the truncation whose bound is highest: no labels are looked at."""
    fits = [fitted(recording, truncation, precision, seed) for truncation in truncations]
    return max(fits, key=lambda fit: fit.bound)
