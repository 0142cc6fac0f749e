"""Small models that the tables of refusals are made from; each made once."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
from sklearn.cluster import KMeans
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture

import consilience as cs
from consilience import families as f

WORDS = tuple(f"word{number:02d}" for number in range(12))


def normal(seed=0, size=3, dim=2, **fields):
    """Return a posterior of Normal-Wishart components."""
    rng = np.random.default_rng(seed)
    family, kappa = f.NormalWishart(dim), rng.uniform(5, 50, size)
    mean = 5 * rng.normal(size=(size, dim))
    natural = family.to_natural(mean=mean, kappa=kappa, inverse_scale=[np.eye(dim)] * size, dof=kappa + dim)
    return cs.Posterior(family, natural, **{"counts": kappa, **fields})


def pair(*, second=None, **fields):
    """Return two posteriors that can be fused; the second with other fields."""
    return [normal(0, **fields), normal(1, **{**fields, **(second or {})})]


def named(*names, **more):
    """Return features of these names."""
    return cs.Features(names=names, **more)


def gamma(size=2, **fields):
    """Return a posterior of gamma components."""
    rates = np.arange(1.0, size + 1.0)
    return cs.Posterior(f.Gamma(), f.Gamma().to_natural(shape=rates + 1, rate=rates), **fields)


def points(*rows, **fields):
    """Return a posterior of points."""
    return cs.Posterior(f.Point(len(rows[0])), np.array(rows, dtype=float), **fields)


def topics(seed=0, words=WORDS, prior=0.1, **fields):
    """Return topics as a site of scikit-learn sends them."""
    family, rng = f.Dirichlet(len(words)), np.random.default_rng(seed)
    own = rng.poisson(20.0, size=(3, len(words))).astype(float) + 0.1
    given = {"features": named(*words), "counts": own.sum(axis=1)}
    given |= {"source": {"kind": "sklearn.LatentDirichletAllocation", "doc_topic_prior": "given"}}
    given |= {"attached": {"doc_topic_prior": cs.Attached(np.array(0.3), (), "mean")}}
    if prior is not None:
        rows = np.broadcast_to(np.asarray(prior, dtype=float), (1, len(words)))
        given["prior"] = family.to_natural(concentration=rows)[0]
    return cs.Posterior(family, family.to_natural(concentration=own), **{**given, **fields})


def rows(seed=0, count=60, dim=2):
    """Return rows of two clusters."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, dim)) + 8.0 * (np.arange(count) % 2)[:, None]


@cache
def mixture(seed=0, dim=2, covariance_type="full"):
    """Return a fitted mixture."""
    made = BayesianGaussianMixture(n_components=2, random_state=seed, covariance_type=covariance_type)
    return made.fit(rows(seed, dim=dim))


@cache
def gaussian_mixture(seed=0):
    """Return a mixture that does not record how many rows it saw."""
    return GaussianMixture(2, random_state=seed).fit(rows(seed))


@cache
def clusters(seed=0):
    """Return a fitted k-means."""
    return KMeans(2, n_init=1, random_state=seed).fit(rows(seed))


def mixture_file(seed=0, path="a.safetensors", **fields):
    """Write the posterior of a mixture, other fields in it, and return the path."""
    cs.save(replace(cs.describe(mixture(seed)), **fields), path)
    return path


def two_files(*, second=None):
    """Write two posteriors that can be fused, the second with other fields, and return their paths."""
    paths = ["a.safetensors", "b.safetensors"]
    for path, one in zip(paths, pair(features=named("x0", "x1"), second=second), strict=True):
        cs.save(one, path)
    return paths


def written(path, content):
    """Write bytes or text, and return the path."""
    Path(path).write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def fused_and_checked(name, make):
    """Return cases of ``fuse`` and of ``check`` for what a function gives: models, and options by name."""

    def called(function):
        def case(at):
            models, options = make()
            return function(models, **options)

        return case

    return {f"fuse, {name}": called(cs.fuse), f"check, {name}": called(cs.check)}


def by_fuse_and_check(table):
    """Return the cases of a table by both functions."""
    found = {}
    for name, make in table.items():
        found |= fused_and_checked(name, make)
    return found


def each(before, table, do):
    """Return a case for each entry of a table: what is done with its value."""
    return {f"{before}{name}": partial(_done, do, value) for name, value in table.items()}


def _done(do, value, _at):
    return do(value)


def option_cases(options, kind, fuse):
    """Return a case for each option of each method: -1.5, which means nothing to any."""
    table = {(method, option) for method, names in options.items() for option in names.split()}
    return each("", {f"{method} of {kind}, option {option}": (method, option) for method, option in sorted(table)},
                lambda asked: fuse(method=asked[0], **{asked[1]: -1.5}))  # fmt: skip
