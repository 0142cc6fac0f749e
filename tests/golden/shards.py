"""Golden fusions of shards: more sites than the pilot holds, packed in either form or as a folder of files."""

import numpy as np

import consilience as cs
from tests.golden.table import case, cases, saved

SITES, GROUPS, DIM, PILOT = 24, 4, 3, 8


def written(folder, family=None, sites=SITES):
    """Write sites that each hold two or three of some well separated components, and return their folder."""
    rng = np.random.default_rng(30)
    family = family or cs.families.DiagonalGaussian(dim=DIM)
    planted = 6.0 * rng.normal(size=(GROUPS, DIM))
    place = folder / "sites"
    place.mkdir()
    for number in range(sites):
        own = rng.permutation(GROUPS)[: rng.integers(2, 4)]
        means = planted[own] + 0.1 * rng.normal(size=(len(own), DIM))
        variances = 0.05 * rng.gamma(20.0, 0.05, size=means.shape)
        posterior = cs.Posterior(
            family,
            family.to_natural(mean=means, variance=variances),
            prior=family.to_natural(mean=np.zeros((1, DIM)), variance=np.full((1, DIM), 100.0))[0],
            counts=rng.uniform(20.0, 60.0, len(own)),
            weights=rng.random(len(own)),
            attached={"steps": cs.Attached(rng.poisson(9.0, (len(own),) * 2), ("component", "component"), "sum")},
        )
        cs.save(posterior, place / f"site-{number:03d}.safetensors")
    return place


FUSIONS = {
    "kl": {"method": "kl"},
    "kl, number given": {"method": "kl", "n_components": GROUPS},
    "kl, priced": {"method": "kl", "regularization": 0.5},
    "kl, reverse": {"method": "kl", "n_components": GROUPS, "direction": "reverse"},
    "kl, product": {"method": "kl", "n_components": GROUPS, "combine": "product"},
    "kl, weights": {"method": "kl", "n_components": GROUPS, "weights": np.linspace(1.0, 2.0, SITES).tolist()},
    "spahm": {"method": "spahm"},
    "spahm, another sample": {"method": "spahm", "rng": 5},
    "kmeans": {"method": "kmeans", "n_components": GROUPS},
}


@cases("shards in safetensors: {}", FUSIONS, quick=3)
def _packed(folder, options):
    packed = cs.pack(written(folder), folder / "packed", shard_bytes=2000)
    # Local runs as many threads as there are processors, and must give the same bytes with any number.
    one = cs.fuse(packed.folder, pilot_sites=PILOT, **options)
    threads = cs.fuse(packed.folder, pilot_sites=PILOT, engine=cs.engines.Local(threads=2), **options)
    first = packed.folder / sorted(packed.files)[0]
    return {
        "packed": {"sites": packed.n_sites, "components": packed.n_components, "files": len(packed.files)},
        "first shard": first,
        **saved(one, folder),
        "threads": threads.posterior,
    }


FORMS = {
    "parquet": {"form": "parquet"},
    "float32": {"dtype": "float32"},
    "parquet, float32": {"form": "parquet", "dtype": "float32"},
}


@cases("shards packed otherwise: {}", FORMS)
def _forms(folder, options):
    packed = cs.pack(written(folder), folder / "packed", shard_bytes=2000, **options)
    fusion = cs.fuse(cs.shards(packed.folder), "kl", pilot_sites=PILOT, n_components=GROUPS)
    return {**saved(fusion, folder), "divergence": packed.divergence, "files": len(packed.files)}


@cases("shards of posterior files: {}", {"spahm": "spahm", "kl": "kl"})
def _files(folder, method):
    place = written(folder)
    fusion = cs.fuse(place, method, pilot_sites=PILOT, shard_bytes=2000)
    pattern = cs.fuse(str(place / "site-00*.safetensors"), method)  # no more than the pilot: as if handed in one by one
    return {**saved(fusion, folder), "few": pattern}


@case("shards of one size: average")
def _average(folder):
    place = folder / "sites"
    place.mkdir()
    rng, family = np.random.default_rng(31), cs.families.Gamma()
    for number in range(SITES):
        natural = family.to_natural(shape=rng.uniform(2.0, 9.0, 3), rate=rng.uniform(1.0, 2.0, 3))
        cs.save(cs.Posterior(family, natural), place / f"site-{number:03d}.safetensors")
    return saved(cs.fuse(place, "average", pilot_sites=PILOT, shard_bytes=500), folder)
