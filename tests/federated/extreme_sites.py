"""Contributions at the extremes of what their formats can hold: well-formed, and such that much of it overflows."""

from dataclasses import replace

import numpy as np
from sklearn.linear_model import LinearRegression
from sklearn.naive_bayes import GaussianNB

import consilience as cs
from consilience.errors import ConsilienceError
from consilience.networks.descriptions.files import read_description, write_description
from consilience.networks.files import write_network
from tests.families.zoo import ZOO

MAGNITUDES = (1e-308, 1e-300, 1e-150, 1e-20, 1e-8, 1e7, 1e9, 1e14, 1e16, 1e40, 1e150, 1e300, 1e308)
"""Factors and values with which 1 / x, x^2, sums and gamma functions lose digits, vanish or overflow."""
ATTEMPTS = 20


def _magnitude(rng):
    return float(rng.choice(MAGNITUDES)) * float(rng.choice([1.0, 1.0, -1.0]))


def _scaled(rng, values):
    """Return an array with all, some or one of its values at an extreme."""
    values = np.array(values, dtype=np.float64)
    chosen = rng.random(values.shape) < rng.choice([0.1, 0.5, 1.0])
    if not chosen.any() and values.size:
        chosen.flat[rng.integers(values.size)] = True
    with np.errstate(all="ignore"):
        extreme = values * _magnitude(rng) if rng.random() < 0.7 else np.full(values.shape, _magnitude(rng))
    return np.where(chosen & np.isfinite(extreme), extreme, values)


def posterior(name, rng, base):
    """Return a site's posterior near `base` (L, P) of a family of the zoo."""
    specimen = ZOO[name]
    natural = specimen.near(rng, base, 0.05)
    counts = rng.uniform(20.0, 40.0, len(natural))
    return cs.Posterior(specimen.family, natural, prior=specimen.prior, counts=counts, weights=counts / counts.sum())


def extreme_posterior(rng, honest):
    """Return a posterior like an honest one with one field, or all, at an extreme, if a member of its family can be."""
    family = honest.family
    for _ in range(ATTEMPTS):
        fields = {name: getattr(honest, name) for name in ("natural", "prior", "counts", "weights")}
        changed = rng.choice(["natural", "parameters", "prior", "counts", "weights", "all"])
        try:
            with np.errstate(all="ignore"):
                if changed == "parameters":
                    parameters = dict(family.from_natural(honest.natural))
                    names = [key for key, values in parameters.items() if not isinstance(values, dict)]
                    if not names:
                        continue
                    key = str(rng.choice(names))
                    factor = _magnitude(rng)
                    parameters[key] = np.asarray(parameters[key]) * (abs(factor) if rng.random() < 0.7 else factor)
                    fields["natural"] = family.to_natural(**parameters)
                elif changed == "natural":
                    fields["natural"] = honest.natural * abs(_magnitude(rng))
                elif changed == "all":
                    fields = {key: np.abs(_magnitude(rng)) * values for key, values in fields.items()}
                else:
                    fields[str(changed)] = _scaled(rng, fields[str(changed)])
                return cs.Posterior(family, fields.pop("natural"), **fields)
        except (ConsilienceError, ArithmeticError, ValueError, np.linalg.LinAlgError):
            continue  # no member of the family
    return replace(honest, counts=np.full(honest.n_components, 1e308))


def posterior_sites(name, rng, n_sites, hostile, folder):
    """Write the files of a family's sites, some of them extreme, and return the paths by name."""
    specimen = ZOO[name]
    base = specimen.draw(rng, 2)
    paths = {}
    for site in range(n_sites):
        local = posterior(name, rng, base)
        paths[f"s{site}"] = folder / f"s{site}"
        cs.save(extreme_posterior(rng, local) if site in hostile else local, paths[f"s{site}"], min_count=0)
    return {site: (path, None) for site, path in paths.items()}


def network_sites(rng, n_sites, hostile, folder):
    """Write networks of one start, some with extreme arrays."""
    start = {"0.weight": rng.normal(size=(4, 3)), "0.bias": rng.normal(size=4), "2.weight": rng.normal(size=(2, 4))}
    paths = {}
    for site in range(n_sites):
        arrays = {name: (values + 0.1 * rng.normal(size=values.shape)) for name, values in start.items()}
        if site in hostile:
            for name in rng.choice(sorted(arrays), rng.integers(1, 4), replace=False):
                arrays[name] = _scaled(rng, arrays[name])
        dtype = rng.choice(["float32", "float64"]) if site in hostile else "float32"
        limit = np.finfo(dtype).max
        write_network(folder / f"s{site}", {k: np.clip(v, -limit, limit).astype(dtype) for k, v in arrays.items()})
        paths[f"s{site}"] = (folder / f"s{site}", None)
    return paths


def statistics_sites(rng, n_sites, hostile, folder):
    """Write exact sums of regressions or classifiers, some of them extreme."""
    paths, coefficients = {}, rng.normal(size=3)
    is_classifier = bool(rng.integers(2))
    for site in range(n_sites):
        rows = rng.normal(size=(60, 3))
        target = rows @ coefficients + 0.1 * rng.normal(size=60)
        if is_classifier:
            model = GaussianNB().fit(rows, target > 0)
            statistics = cs.describe(model, data=(rows, target > 0))
        else:
            statistics = cs.describe(LinearRegression().fit(rows, target), data=(rows, target))
        if site in hostile:
            statistics = extreme_statistics(rng, statistics)
        cs.save(statistics, folder / f"s{site}", min_count=0)
        paths[f"s{site}"] = (folder / f"s{site}", None)
    return paths


def extreme_statistics(rng, statistics):
    """Return statistics of which some array is at an extreme, if the readers would take them."""
    for _ in range(ATTEMPTS):
        moments = {}
        with np.errstate(all="ignore"):
            for name, record in statistics.moments.items():
                part = str(rng.choice(["n", "weight", "mean", "scatter", "n and weight"]))
                factor = abs(_magnitude(rng))
                changes = {key: getattr(record, key) * factor for key in part.split(" and ")}
                moments[name] = replace(record, **changes)
            changed = replace(statistics, moments=moments)
        if not changed.problems():
            return changed
    return statistics


def described_sites(rng, n_sites, hostile, folder, module, inputs):
    """Write described networks of one start, some of whose descriptions are extreme."""
    paths = {}
    for site in range(n_sites):
        path = folder / f"s{site}.safetensors"
        cs.save(module(site), path, data=(inputs + 0.1 * rng.normal(size=inputs.shape), np.arange(len(inputs)) % 2))
        companion = folder / f"s{site}.description.safetensors"
        if site in hostile:
            write_description(companion, _extreme_description(rng, read_description(companion)))
        paths[f"s{site}"] = (path, companion)
    return paths


def _extreme_description(rng, description):
    """Return a description with its class counts or moments at an extreme."""
    for _ in range(ATTEMPTS):
        try:
            with np.errstate(all="ignore"):
                if description.class_counts is not None and rng.random() < 0.5:
                    counts = np.abs(_scaled(rng, np.nan_to_num(description.class_counts)))
                    return replace(description, class_counts=counts)
                moments = description.inputs
                return replace(
                    description, inputs=replace(moments, mean=np.clip(_scaled(rng, moments.mean), -3e38, 3e38))
                )
        except (ConsilienceError, TypeError, ValueError, AttributeError):
            continue
    return description
