"""Sites of a round: mixtures on their own share of the same blobs, as files, and what they announce."""

import hashlib
from pathlib import Path

import numpy as np
from sklearn.mixture import BayesianGaussianMixture

import consilience as cs
from consilience.federated import Announcement, Contribution

CENTRES = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]])


def rows(seed, count=90, dim=2):
    """Draw rows around the centres."""
    rng = np.random.default_rng(seed)
    return (CENTRES[np.arange(count) % 3] + rng.normal(size=(count, 2)))[:, :dim]


def mixture(seed, dim=2):
    """Fit a mixture of three components."""
    return BayesianGaussianMixture(n_components=3, random_state=0, max_iter=200).fit(rows(seed, dim=dim))


def write_sites(folder, names):
    """Write the file of each site, called as the site, and return the paths by name."""
    paths = {name: Path(folder) / name for name in names}
    for seed, (_, path) in enumerate(sorted(paths.items())):
        cs.save(mixture(seed), path)
    return paths


def digest(path):
    """Return the SHA-256 of a file."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def contribution(site, path, attempt=1, number=1, fisher=None):
    """Return what a site sends."""
    announcement = Announcement(site, number, attempt, digest(path), "" if fisher is None else digest(fisher))
    return Contribution(announcement, Path(path), None if fisher is None else Path(fisher))
