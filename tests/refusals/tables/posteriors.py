"""What is refused of posteriors of statistical models: fused, checked, described, saved, loaded, compared."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from scipy import sparse
from sklearn.cluster import KMeans
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PowerTransformer

import consilience as cs
from consilience import families as f
from tests.cli.bad_files import BAD
from tests.refusals.tables.things import (
    WORDS,
    by_fuse_and_check,
    clusters,
    each,
    gamma,
    gaussian_mixture,
    mixture,
    mixture_file,
    named,
    normal,
    option_cases,
    pair,
    points,
    rows,
    topics,
    two_files,
    written,
)


def fused_of_two():
    """Fuse two files, and return the path of the fused one."""
    cs.fuse(two_files()).save("fused.safetensors")
    return "fused.safetensors"


def normal_at(place):
    """Return a mixture of one component of two columns, of which the second is far from zero."""
    table = np.random.default_rng(0).normal(size=(300, 2)) + np.array([0.0, place])
    return GaussianMixture(1, random_state=0).fit(table)


def power_pipeline():
    """Return a Pipeline whose first step cannot be undone from what is known of it."""
    return make_pipeline(PowerTransformer(), BayesianGaussianMixture(n_components=2, random_state=0)).fit(rows())


# -- What is handed in: models, and options.

MODELS = by_fuse_and_check({
    "one model": lambda: ([normal()], {}),
    "no model": lambda: ([], {}),
    "a set": lambda: ({"a", "b"}, {}),
    "a number": lambda: (5, {}),
    "a generator": lambda: ((one for one in pair()), {}),
    "mixtures of timestamps in other units": lambda: (
        [normal_at(1.7e9), normal_at(1.7e12)], {"n_observations": [300, 300]},
    ),
    "one posterior alone": lambda: (normal(), {}),
    "an unknown class": lambda: ([normal(), object()], {}),
    "two unknown classes": lambda: ([object(), 5], {}),
    "a model that is not fitted": lambda: ([clusters(), KMeans(2)], {}),
    "another family": lambda: ([normal(), gamma()], {}),
    "another dimension": lambda: ([normal(), normal(1, dim=3)], {}),
    "another kind": lambda: ([mixture(), clusters()], {}),
    "a kind and a posterior": lambda: ([mixture(), normal()], {}),
    "another covariance_type": lambda: ([mixture(), mixture(1, covariance_type="diag")], {}),
    "other feature names": lambda: (
        pair(features=named("x", "y"), second={"features": named("x", "age")}), {}),
    "other units": lambda: (
        pair(features=cs.Features(units=("m", "s")), second={"features": cs.Features(units=("m", "h"))}), {}),
    "another scaling": lambda: (
        pair(features=cs.Features(scaling={"mean": (0.0, 1.0)}),
             second={"features": cs.Features(scaling={"mean": (0.0, 2.0)})}), {}),
    "other classes": lambda: (
        pair(features=cs.Features(classes=("a", "b", "c")),
             second={"features": cs.Features(classes=("a", "b", "d"))}), {}),
    "an attached array that one lacks": lambda: (
        pair(attached={"bias": cs.Attached(np.array(1.0), (), "mean")}, second={"attached": {}}), {}),
    "an attached array of another rule": lambda: (
        pair(attached={"bias": cs.Attached(np.array(1.0), (), "mean")},
             second={"attached": {"bias": cs.Attached(np.array(1.0), (), "sum")}}), {}),
    "the same file twice": lambda: ([two_files()[0], "a.safetensors"], {}),
    "a copy under another name": lambda: (
        [two_files()[0], written("c.safetensors", Path("a.safetensors").read_bytes())], {}),
    "a file that is not there": lambda: ([two_files()[0], "nobody.safetensors"], {}),
    "a path with a zero byte": lambda: ([two_files()[0], "zero\0.safetensors"], {}),
    "a path that is too long": lambda: ([two_files()[0], "n" * 300], {}),
    "everything wrong at once": lambda: (
        [two_files()[0], "nobody.safetensors", object(), normal(3, dim=3), "a.safetensors"], {}),
    "too few weights": lambda: (pair(), {"weights": [1.0]}),
    "a negative weight": lambda: (pair(), {"weights": [1.0, -1.0]}),
    "a weight that is NaN": lambda: (pair(), {"weights": [1.0, np.nan]}),
    "weights that are zero": lambda: (pair(), {"weights": [0.0, 0.0]}),
    "weights that are words": lambda: (pair(), {"weights": ["much", "little"]}),
    "too few samples": lambda: ([gaussian_mixture(0), gaussian_mixture(1)], {"n_observations": [60]}),
    "negative samples": lambda: ([gaussian_mixture(0), gaussian_mixture(1)], {"n_observations": [60, -1]}),
    "samples of zero": lambda: ([gaussian_mixture(0), gaussian_mixture(1)], {"n_observations": [60, 0]}),
    "samples that are words": lambda: ([gaussian_mixture(0), gaussian_mixture(1)], {"n_observations": ["many", "few"]}),
    "an engine that is none": lambda: (two_files(), {"engine": 5}),
    "a method that does not exist": lambda: (pair(), {"method": "mean"}),
    "a method that is misspelt": lambda: (pair(), {"method": "spham"}),
    "a method that is a number": lambda: (pair(), {"method": 3}),
    "a method for networks": lambda: (pair(), {"method": "consensus"}),
    "a method object for networks": lambda: (pair(), {"method": cs.methods.Consensus()}),
    "a method object for Bayesian networks": lambda: (pair(), {"method": cs.methods.PosteriorAlignment()}),
    "an option that does not exist": lambda: (pair(), {"speed": 9}),
    "an option that is misspelt": lambda: (pair(), {"regularisation": 1.0}),
    "options beside a method object": lambda: (pair(), {"method": cs.methods.KLFusion(), "restarts": 3}),
    "an example for posteriors": lambda: (pair(), {"example": 1}),
    "a reference for posteriors": lambda: (pair(), {"reference": 0}),
    "target_widths for posteriors": lambda: (pair(), {"target_widths": {"0": 3}}),
    "fishers for posteriors": lambda: (pair(), {"fishers": [1, 2]}),
    # What a method cannot do with these models.
    "average of other sizes": lambda: ([normal(), normal(1, size=4)], {"method": "average"}),
    "amps of other sizes": lambda: (
        [gamma(2, prior=np.zeros(2)), gamma(3, prior=np.zeros(2))], {"method": "amps"}),
    "amps without a prior": lambda: ([gamma(), gamma()], {"method": "amps"}),
    "amps that grows without counts": lambda: (
        [gamma(prior=f.Gamma().to_natural(shape=[1.0], rate=[1.0])[0])] * 2, {"method": "amps", "growth": True}),
    "amps of points": lambda: ([points([0, 1.0], [3, 4.0])] * 2, {"method": "amps"}),
    "a product without a prior": lambda: (pair(), {"combine": "product"}),
    "a product of points": lambda: ([points([0, 1.0], [3, 4.0])] * 2, {"method": "kl", "combine": "product"}),
    "fewer components than a model has": lambda: (pair(), {"n_components": 2}),
    "a limit below a model": lambda: (pair(), {"max_components": 2}),
    "spahm with a limit below a model": lambda: (pair(), {"method": "spahm", "max_components": 2}),
    "spahm with variances of another dimension": lambda: (
        pair(), {"method": "spahm", "within_variance": (1.0, 1.0, 1.0)}),
    "spahm, conjugate without a prior": lambda: (pair(), {"method": "spahm", "likelihood": "conjugate"}),
    "a divergence that the family lacks": lambda: (
        [gamma(), gamma()], {"method": "kl", "divergence": "alpha", "order": 0.5}),
    "robust with two models": lambda: (pair(), {"robust": "trim"}),
    "a median that is a product": lambda: ([normal(n) for n in range(4)], {"robust": "median", "combine": "product"}),
    "robust where nothing is matched": lambda: (
        [normal(n) for n in range(4)], {"method": "concatenate", "robust": "trim"}),
    "robust with counts that one lacks": lambda: (
        [normal(0), normal(1), normal(2, counts=None)], {"robust": "trim"}),
    # What sites say.
    "a number of observations that nobody states": lambda: ([gaussian_mixture(), gaussian_mixture(1)], {}),
    "a number that contradicts what is recorded": lambda: ([mixture(), mixture(1)], {"n_observations": [9, 7000]}),
    "equal numbers where they are recorded": lambda: ([mixture(), mixture(1)], {"n_observations": "equal"}),
    "numbers in words": lambda: ([gaussian_mixture(), gaussian_mixture(1)], {"n_observations": "alike"}),
    "a min_count that leaves nothing": lambda: ([mixture(), mixture(1)], {"min_count": 1e6}),
    "a min_count below zero": lambda: (pair(), {"min_count": -1}),
    "counts of zero": lambda: (
        pair(counts=[0.0, 0.0, 0.0], second={"counts": [0.0, 0.0, 0.0]}), {"min_count": 0}),
    "weights that contradict counts": lambda: (
        pair(second={"counts": [90.0, 5.0, 5.0], "weights": [0.05, 0.05, 0.9]}), {}),
    "a fused file and its own site": lambda: ([fused_of_two(), "a.safetensors"], {}),
    "a pipeline of a step that is not affine": lambda: ([mixture(), power_pipeline()], {}),
    # Words.
    "words that only some name": lambda: (
        [topics(), topics(1, features=cs.Features()), topics(2, words=WORDS[::-1])], {}),
    "words in common with none": lambda: ([topics(), topics(1, words=tuple(f"mot{n}" for n in range(12)))], {}),
    "a word twice": lambda: ([topics(), topics(1, words=(*WORDS[:11], WORDS[0]))], {}),
    "words that take a prior not stated": lambda: ([topics(), topics(1, words=WORDS[:9], prior=None)], {}),
    "words whose prior differs": lambda: (
        [topics(), topics(1, words=WORDS[:9], prior=0.1 + np.arange(9.0))], {}),
    "words with units": lambda: (
        [topics(), topics(1, words=WORDS[::-1], features=named(*WORDS[::-1], units=("m",) * 12))], {}),
})  # fmt: skip

FEW = {
    **each("fuse, rng ", {repr(bad): bad for bad in (-1, 1.5, "seed", None)}, lambda bad: cs.fuse(pair(), rng=bad)),
    "fuse, an engine for models in memory": lambda at: cs.fuse(pair(), engine="local"),
    "fuse, no component left by minority": lambda at: cs.fuse(
        [points([10.0 * n]) for n in range(5)], "kl", regularization=0.0, n_components=5, minority="drop"
    ),
    "fuse, a product with priors of another kind": lambda at: cs.fuse(
        pair(prior=normal(5).natural.mean(axis=0) * 100), "average", combine="product"
    ),
    "method, options that do not go together": lambda at: cs.methods.SPAHM(marginal=False, optimize=False),
}

# -- Options of methods: any value that none of them takes.

OPTIONS = {
    "kl": "combine robust trim minority n_components regularization max_components assignment direction divergence"
          " order restarts max_iterations tolerance gap min_matching_count",
    "spahm": "combine robust trim minority likelihood concentration mass within_variance between_variance "
             "variances max_components restarts max_iterations clip min_matching_count",
    "amps": "combine robust trim minority growth concentration revisit restarts max_iterations",
    "kmeans": "combine robust trim minority n_components direction restarts max_iterations min_matching_count",
    "dp": "combine robust trim minority assignment covariance_type concentration max_components penalty direction"
          " restarts max_iterations min_matching_count",
    "average": "combine robust trim minority",
    "concatenate": "combine robust trim minority",
    "ensemble": "combine robust trim minority",
}  # fmt: skip


# -- Files.

NOT_ALONE = {"other-features", "other-family", "other-dimension", "source-other", "features-other"}
FILES = each(
    "load, ", {name: content for name, (content, _) in BAD.items() if name not in {"header-is-huge", *NOT_ALONE}},
    lambda content: cs.load(written("bad.safetensors", content)),
)  # fmt: skip
FILES |= {
    "load, a folder": lambda at: cs.load(at),
    "load, nothing": lambda at: cs.load("nowhere.safetensors"),
    "fuse, a bad file among good ones": lambda at: cs.fuse(
        [*two_files(), written("bad.safetensors", BAD["truncated"][0])]),
    "save, no folder": lambda at: cs.save(normal(), "nowhere/a.safetensors"),
    "save, a folder": lambda at: cs.save(normal(), at),
    "save, in a file": lambda at: cs.save(normal(), written("a.txt", "x") + "/b.safetensors"),
    "save, too long a name": lambda at: cs.save(normal(), "n" * 300),
    "save, a zero byte": lambda at: cs.save(normal(), "zero\0byte"),
    "save, no JSON": lambda at: cs.save(normal(source={"kind": object()}), "a.safetensors"),
    "save, NaN in a source": lambda at: cs.save(normal(source={"kind": float("nan")}), "a.safetensors"),
    "save, an unknown class": lambda at: cs.save(5, "a.safetensors"),
    "save, not fitted": lambda at: cs.save(KMeans(2), "a.safetensors"),
    "save, negative samples": lambda at: cs.save(gaussian_mixture(), "a.safetensors", n_observations=-4),
    "save, features that are none": lambda at: cs.save(mixture(), "a.safetensors", features=[1, 2]),
    "save, too many feature names": lambda at: cs.save(mixture(), "a.safetensors", features=named("x", "y", "z")),
    "save, a fusion that is an ensemble": lambda at: cs.fuse(pair(), method="ensemble").save("a.safetensors"),
    "fusion, saved where there is no folder": lambda at: cs.fuse(pair(), method="average").save("no/a.safetensors"),
    "fusion, reported with truth alone": lambda at: cs.fuse(pair()).report("a.html", truth=[1]),
    "fusion, reported with data of another width": lambda at: cs.fuse(pair()).report("a.html", data=[rows(dim=3)]),
    "fusion, reported with no data": lambda at: cs.fuse(pair()).report("a.html", data=[]),
    "fusion, reported into no folder": lambda at: cs.fuse(pair()).report("no/a.html"),
    "fusion of an ensemble, reported with data": lambda at: cs.fuse(
        pair(), method="ensemble").report("a.html", data=[rows()]),
}  # fmt: skip

# -- Posteriors and models themselves.

KERNEL = {"variance": 1.0, "lengthscales": [1.0]}
THEMSELVES = {
    "describe, an unknown class": lambda at: cs.describe(object()),
    "describe, not fitted": lambda at: cs.describe(GaussianMixture(2)),
    "describe, no samples": lambda at: cs.describe(gaussian_mixture(), n_observations=0),
    "describe, classes of a mixture": lambda at: cs.describe(mixture(), classes=2),
    "describe, weights of no rows": lambda at: cs.describe(mixture(), sample_weight=np.ones(3)),
    "describe, data of other columns": lambda at: cs.describe(mixture(), np.ones((60, 5))),
    "describe, data of another length": lambda at: cs.describe(mixture(), np.ones((7, 2))),
    "describe, everything withheld": lambda at: cs.describe(mixture(), min_count=1e6),
    "describe, features that are none": lambda at: cs.describe(mixture(), features={"names": ["x"]}),
    "rebuild, no library's model": lambda at: cs.rebuild(normal(source={"kind": "prophet.Oracle"})),
    "rebuild, another family": lambda at: cs.rebuild(normal(source={"kind": "sklearn.KMeans"})),
    "rebuild, what is lacking": lambda at: cs.rebuild(
        replace(cs.describe(mixture()), attached={})),
    "posterior, no family": lambda at: cs.Posterior("gamma", np.ones((2, 2))),
    "posterior, ragged numbers": lambda at: cs.Posterior(f.Gamma(), [[1, 2], [3]]),
    "posterior, another shape": lambda at: cs.Posterior(f.Gamma(), np.ones((2, 3))),
    "posterior, no components": lambda at: cs.Posterior(f.Gamma(), np.ones((0, 2))),
    "posterior, NaN": lambda at: cs.Posterior(f.Gamma(), [[1.0, -1.0], [np.nan, -1.0]]),
    "posterior, not in the family": lambda at: cs.Posterior(f.Gamma(), [[1.0, -1.0], [1.0, 1.0]]),
    "posterior, counts of another length": lambda at: gamma(counts=[1.0]),
    "posterior, negative counts": lambda at: gamma(counts=[1.0, -1.0]),
    "posterior, infinite weights": lambda at: gamma(weights=[1.0, np.inf]),
    "posterior, a prior of another length": lambda at: gamma(prior=np.ones(3)),
    "posterior, a prior that is NaN": lambda at: gamma(prior=[np.nan, 1.0]),
    "posterior, an attached array of other axes": lambda at: gamma(
        attached={"bias": cs.Attached(np.ones(2), (), "mean")}),
    "posterior, an attached array of another length": lambda at: gamma(
        attached={"bias": cs.Attached(np.ones(3), ("component",), "mean")}),
    "posterior, an attached array of no rule": lambda at: gamma(
        attached={"bias": cs.Attached(np.ones(2), ("component",), "guess")}),
    "posterior, an attached array without precision": lambda at: gamma(
        attached={"bias": cs.Attached(np.ones(2), ("component",), "precision-mean")}),
    "posterior, a precision of zero": lambda at: gamma(
        attached={"bias": cs.Attached(np.ones(2), ("component",), "precision-mean", np.zeros(2))}),
    "posterior, too few feature names": lambda at: normal(features=named("x")),
    "family, a covariance of another shape": lambda at: f.KnownCovarianceGaussian([[1.0, 2.0]]),
    "family, a covariance that is not positive": lambda at: f.KnownCovarianceGaussian([[1.0, 2.0], [2.0, 1.0]]),
    "family, no blocks": lambda at: f.Product({}),
    "family, other blocks": lambda at: f.Product({"a": f.Gamma()}).to_natural(b={}),
    "family, two scales": lambda at: f.NormalWishart(1).to_natural(mean=[[0.0]], kappa=[1.0], dof=[3.0]),
    "family, means of another width": lambda at: f.DiagonalGaussian(2).to_natural(
        mean=[[0.0, 1.0, 2.0]], variance=[[1.0, 1.0]]),
    "family, probabilities that are none": lambda at: f.Categorical(2).to_natural(probabilities=[[0.5, 0.6]]),
    "family, a config of no family": lambda at: f.family_from_config({"name": "cauchy", "dim": 2}),
    "family, a config of no dimension": lambda at: f.family_from_config({"name": "gaussian", "dim": 0}),
    "family, a config of too large a dimension": lambda at: f.family_from_config({"name": "gaussian", "dim": 10**12}),
    "family, another direction": lambda at: f.Gamma().barycenter(gamma().natural, [0.5, 0.5], direction="up"),
    "family, the entropy of a point": lambda at: f.Point(2).entropy(np.ones((1, 2))),
}  # fmt: skip

# -- Models compared on data.

ROWS = rows(3, count=6)


def compared(data, labels=None, fused=None, own=None, **more):
    """Return a case of ``evaluate``."""
    return lambda at: cs.evaluate(
        mixture(0) if fused is None else fused(), mixture(1) if own is None else own(), data, labels, **more
    )


TABLES = {
    "empty.csv": b"", "header.csv": b"x0,x1\n", "binary.csv": b"\x89PNG\xff\xfe\x00",
    "endless.csv": b'x0,x1\n"' + b"a" * 200_000, "ragged.csv": b"x0,x1\n1,2\n3\n", "text.csv": b"x0,x1\n1,2\n3,high\n",
    "gap.csv": b"x0,x1\n1,\n", "inf.csv": b"x0,x1\n1,inf\n-inf,NA\n", "first.csv": b"1,high\n2,3\n",
    "wide.csv": b"1,2,3\n",
    "empty.npy": b"", "text.npy": b"x0,x1\n1,2\n", "text.npz": b"x0,x1\n1,2\n",
}  # fmt: skip
EVALUATED = {
    **{
        f"evaluate, data {name}": compared(data)
        for name, data in {
            "None": None, "a number": 5, "a word": "abc", "empty": [], "ragged": [[1, 2], [3]], "words": [["a", "b"]],
            "objects": [[None, object()]], "a dict": {"x0": 1}, "of another width": np.ones((3, 3)),
            "without rows": np.ones((0, 2)), "with NaN": np.where(np.eye(6, 2, -3) > 0, np.nan, ROWS),
            "far away": [[1e300, 0.0]], "complex": ROWS + 1j, "in a file not there": "nowhere.csv",
            "in a strange file": "data.xlsx",
        }.items()
    },
    **{
        f"evaluate, labels {name}": compared(ROWS, labels)
        for name, labels in {
            "too few": [1, 2], "a table": np.ones((6, 1)), "missing": [1, 2, None, 1, 2, 3], "a number": 5,
            "sparse": sparse.eye(6), "a column not there": "kind",
        }.items()
    },
    **each("evaluate, file ", {name: (name, content) for name, content in TABLES.items()},
           lambda file: cs.evaluate(mixture(0), mixture(1), written(*file))),
    "evaluate, a column that lacks": lambda at: cs.evaluate(
        mixture_file(0, features=named("x0", "x1")), mixture(1), written("lacking.csv", "x0,x2\n1,2\n")),
    "evaluate, a column twice": lambda at: cs.evaluate(
        mixture_file(0, features=named("x0", "x1")), mixture(1), written("double.csv", "x0,x1,x1\n1,2,3\n")),
    "evaluate, labels of two columns": lambda at: cs.evaluate(
        mixture(0), mixture(1), ROWS, written("gap.csv", "1,2\n" * 6)),
    "evaluate, an array of objects": lambda at: (
        np.save("objects.npy", np.array([[{}, {}]], dtype=object), allow_pickle=True),
        cs.evaluate(mixture(0), mixture(1), "objects.npy")),
    "evaluate, several arrays": lambda at: (
        np.savez("several.npz", x=ROWS, y=ROWS), cs.evaluate(mixture(0), mixture(1), "several.npz")),
    "evaluate, your own is of another kind": compared(ROWS, own=clusters),
    "evaluate, your own is no model": compared(ROWS, own=lambda: 5),
    "evaluate, the fused is not fitted": compared(ROWS, fused=lambda: KMeans(2)),
    "evaluate, your own is of another width": compared(ROWS, own=lambda: mixture(1, dim=3)),
    "evaluate, of no library's model": compared(ROWS, fused=lambda: normal(0), own=lambda: normal(1)),
    "evaluate, a module for mixtures": compared(ROWS, module=5),
    "evaluate, no counts of words": lambda at: cs.evaluate(*[
        LatentDirichletAllocation(2, max_iter=1, random_state=n).fit(np.arange(12).reshape(6, 2)) for n in (0, 1)
    ], ROWS**2),
    "evaluate, documents that are too short": lambda at: cs.evaluate(*[
        LatentDirichletAllocation(2, max_iter=1, random_state=n).fit(np.arange(12).reshape(6, 2)) for n in (0, 1)
    ], np.eye(2)),
    "evaluate, an ensemble of points": lambda at: cs.evaluate(
        cs.fuse([clusters(0), clusters(1)], method="ensemble"), clusters(0), ROWS),
    **each("predictive_scores, ", {
            "words": (["a", "b"], [0, 1], {}),
            "a vector": ([0.5, 0.5], [0, 1], {}),
            "NaN": ([[0.5, np.nan]], [0], {}),
            "logits": ([[0.5, -0.5]], [0], {}),
            "of another sum": ([[0.5, 0.6]], [0], {}),
            "labels that are words": ([[0.5, 0.5]], ["a"], {}),
            "too many labels": ([[0.5, 0.5]], [0, 1], {}),
            "labels of no class": ([[0.5, 0.5]], [2], {}),
            "no bins": ([[0.5, 0.5]], [0], {"bins": 0}),
            "outside of other classes": ([[0.5, 0.5]], [0], {"outside": [[0.2, 0.3, 0.5]]}),
            "outside_labels alone": ([[0.5, 0.5]], [0], {"outside_labels": [1]}),
    }, lambda given: cs.predictive_scores(*given[:2], **given[2])),
}  # fmt: skip

CASES = MODELS | FEW | option_cases(OPTIONS, "posteriors", partial(cs.fuse, pair())) | FILES | THEMSELVES | EVALUATED
