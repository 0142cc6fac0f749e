"""What the states of one split fit, kept as files so that a run may be stopped and started again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from temperature_data import SCALE, SHIFT, Split, Temperatures

import consilience as cs
from consilience.posteriors.sparse_gp.kernels import make_kernel
from consilience.posteriors.sparse_gp.learner import TitsiasGP
from consilience.posteriors.sparse_gp.model import SparseGP

CACHE = Path(os.environ.get("CONSILIENCE_CACHE", Path(__file__).parents[1] / ".cache"))
FITS = CACHE / "spahm/temperatures"
POINTS, MANY_POINTS = 50, 300
MASS = 50.0


@dataclass(frozen=True, eq=False)
class Trial:
    """One split, and what the states fitted to it."""

    data: Temperatures
    rows: Split
    kernel: str
    seed: int

    def fit(self, name: str, learners: Callable[[int], TitsiasGP]) -> list[SparseGP]:
        """Return the fits of all states, from files where these are there."""
        found = []
        for party, rows in enumerate(self.rows.train):
            path = FITS / f"{self.kernel}-seed{self.seed}" / name / f"{self.data.states[party]}.safetensors"
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                cs.save(learners(party).fit(self.data.X[rows], self.data.y[rows]), path)
            found.append(cs.rebuild(cs.load(path)))
        return found

    @cache  # noqa: B019  (a trial is used up before the next begins)
    def local(self) -> list[SparseGP]:
        """Return the fit of every state on its own."""
        common = {"shift": SHIFT, "scale": SCALE, "max_iterations": 100}
        return self.fit("local", lambda party: TitsiasGP(POINTS, kernel=self.kernel, seed=party, **common))

    @cache  # noqa: B019
    def local_many(self) -> list[SparseGP]:
        """Return the fit of every state on its own, with more inducing points."""
        common = {"shift": SHIFT, "scale": SCALE, "min_count": 2, "learn_parameters": False, "learn_inducing": False}
        first = self.local()
        return self.fit(
            "local-many",
            lambda party: TitsiasGP(MANY_POINTS, seed=party, **parameters_of(first[party]), **common),
        )

    @cache  # noqa: B019
    def shared(self) -> list[SparseGP]:
        """Return the fits of all states with one kernel: geometric means of theirs, and the mean constant."""
        local = self.local()
        logs = np.mean([np.log([gp.kernel.variance, gp.noise, *gp.kernel.lengthscales]) for gp in local], axis=0)
        variance, noise, *lengthscales = np.exp(logs)
        told = {
            "kernel": make_kernel(self.kernel, variance, lengthscales),
            "noise": noise,
            "constant": mean(gp.constant for gp in local),
        }
        common = {"shift": SHIFT, "scale": SCALE, "max_iterations": 100, "learn_parameters": False}
        return self.fit("shared", lambda party: TitsiasGP(POINTS, seed=party, **told, **common))

    @cache  # noqa: B019
    def fused(self) -> tuple[cs.Fusion, float]:
        """Return the library's fusion of the fits with a shared kernel, and the seconds that it took."""
        start = time.perf_counter()
        fusion = cs.fuse(self.shared(), method="spahm", mass=MASS, rng=self.seed)
        return fusion, time.perf_counter() - start


def parameters_of(gp: SparseGP) -> dict[str, Any]:
    """Return kernel, noise and constant as options of a learner."""
    return {"kernel": gp.kernel, "noise": gp.noise, "constant": gp.constant}
