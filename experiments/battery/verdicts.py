"""What verdicts say on the battery, and what is true on held-out rows.

    python experiments/battery/verdicts.py --half tune|report|second

Every cell is fused by the default, told the true number, and told a third of it, which no fusion survives unharmed; by
both methods; and with a strong site more, whose components are the products of all sites' by the true matching, as one
fitted to all data would have them. The first half shaped the thresholds of the verdict, the others did not.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))
from battery import local_fits, real
from battery.cells import HALVES
from battery.local_fits import Cell
from battery.metrics import concatenation, plug_in
from record import versions

import consilience as cs

HERE = Path(__file__).parent
MAX_RECORDED = 12
"""Sites up to which their losses are recorded."""
FUSIONS: dict[str, Callable[[list[cs.Posterior], int], cs.results.PosteriorFusion]] = {
    "default": lambda sites, _: cs.fuse(sites),
    "told": lambda sites, n_true: cs.fuse(sites, n_components=n_true),
    "told a third": lambda sites, n_true: cs.fuse(sites, n_components=max(1, n_true // 3)),
    "k-means, told a third": lambda sites, n_true: cs.fuse(sites, "kmeans", n_components=max(1, n_true // 3)),
}


def with_strong_site(cell: Cell) -> Cell:
    """Return the cell with one site more, which knows all components from half of the held-out rows."""
    family, prior = cell.posteriors[0].family, cell.posteriors[0].prior
    is_its = np.arange(len(cell.held_out)) % 2 == 0
    rows, labels = cell.held_out[is_its], cell.held_out_labels[is_its]
    groups = [rows[labels == label] for label in np.unique(labels)]
    mean, kappa, inverse_scale, dof = (value[0] for value in family.standard(prior[None]))
    natural = []
    for group in groups:
        n, centre = len(group), group.mean(axis=0)
        scatter = (group - centre).T @ (group - centre)
        between = kappa * n / (kappa + n) * np.outer(centre - mean, centre - mean)
        natural.append(
            family.to_natural(
                mean=((kappa * mean + n * centre) / (kappa + n))[None],
                kappa=[kappa + n],
                inverse_scale=(inverse_scale + scatter + between)[None],
                dof=[dof + n],
            )[0]
        )
    counts = np.array([float(len(group)) for group in groups])
    strong = cs.Posterior(family, np.array(natural), prior=prior, counts=counts)
    sites = [*(replace(one, weights=None) for one in cell.posteriors), strong]
    return replace(
        cell, posteriors=sites, held_out=cell.held_out[~is_its], held_out_labels=cell.held_out_labels[~is_its]
    )


def judged(cell: Cell, fusion: cs.results.PosteriorFusion) -> dict[str, Any]:
    """Return what the verdict says, and the gain over the best site and the loss against all on held-out rows."""
    rows, sites, verdict = cell.held_out, cell.posteriors, fusion.verdict
    fused = plug_in(fusion.posterior).log_density(rows)
    gains = [fused - plug_in(site).log_density(rows) for site in sites]
    least = min(gains, key=lambda gain: float(gain.mean()))
    together = concatenation(cell).log_density(rows)
    return {
        "code": verdict.code,
        "harmless": verdict.harmless,
        "candidates": dict(verdict.candidates) if len(sites) <= MAX_RECORDED else {},
        "loss": verdict.loss,
        "gain": float(least.mean()),
        "gain_error": float(least.std() / len(rows) ** 0.5),
        "true_loss": float((together - fused).mean()),
    }


def records(half: str) -> Iterator[dict[str, Any]]:
    """Return a record of every cell and fusion that comes to an end."""
    for setting in local_fits.plan(half):
        if isinstance(setting, real.RealSetting) and not real.is_there(setting):
            continue
        cell = local_fits.load(setting)
        for prefix, ensemble in {"": cell, "a strong site, ": with_strong_site(cell)}.items():
            for name, fuse in FUSIONS.items():
                try:
                    fusion = fuse(ensemble.posteriors, cell.n_true)
                except cs.ConsilienceError:  # a third is fewer than the largest site has
                    continue
                yield {"cell": setting.name, "fusion": prefix + name, **judged(ensemble, fusion)}


def main() -> None:
    """Write the verdicts of a half."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=HALVES, required=True)
    half = parser.parse_args().half
    rows = []
    for record in records(half):
        rows.append(record)
        said = f"{record['code']}, harmless {record['harmless']}, gain {record['gain']:+.3f}"
        sys.stdout.write(f"{record['cell']}, {record['fusion']}: {said}\n")
        sys.stdout.flush()
    content = {"half": half, "versions": versions(), "rows": rows}
    (HERE / f"verdicts-{half}.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
