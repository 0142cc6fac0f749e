"""Every file that somebody may hand to the command by mistake or malice, with what must be said about it."""

import io
import json
import pickle
import struct
import tempfile
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save as to_safetensors

import consilience as cs
from consilience.families import NormalGamma, NormalWishart

TRAP = "the-pickle-was-loaded"


def site(seed=0, components=3, dim=2, family=None, names=None, **fields):
    """Return what an honest site sends: a posterior of a few well separated components."""
    rng = np.random.default_rng(seed)
    mean, kappa = 5 * rng.normal(size=(components, dim)), rng.uniform(5, 50, components)
    if family is NormalGamma:
        family = NormalGamma(dim)
        natural = family.to_natural(mean=mean, kappa=kappa, shape=kappa, rate=rng.uniform(1, 3, (components, dim)))
    else:
        family = NormalWishart(dim)
        natural = family.to_natural(mean=mean, kappa=kappa, inverse_scale=[np.eye(dim)] * components, dof=kappa + dim)
    features = cs.Features(names=[f"x{i}" for i in range(dim)] if names is None else names)
    return cs.Posterior(family, natural, **{"counts": kappa, "features": features, **fields})


def content(posterior):
    """Return the bytes of the file of a posterior."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "site.safetensors"
        cs.save(posterior, path)
        return path.read_bytes()


def parts(posterior):
    """Return the JSON document and the tensors of the file of a posterior."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "site.safetensors"
        cs.save(posterior, path)
        with safe_open(path, framework="numpy") as file:
            return json.loads(file.metadata()["consilience"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


GOOD = content(site(9))
DOCUMENT, TENSORS = parts(site(9))
NATURAL = TENSORS["natural"]


def forged(tensors=None, document=None, **changes):
    """Return a file with a changed JSON document (or another text in its place) and other tensors."""
    text = json.dumps({**DOCUMENT, **changes}) if document is None else document
    return to_safetensors(TENSORS if tensors is None else tensors, metadata={"consilience": text})


def raw(header, data=b""):
    """Return a file with this header, true or not, and this data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def claiming(dtype="F64", shape=NATURAL.shape, offsets=(0, NATURAL.nbytes)):
    """Return a file whose header claims this of the only tensor."""
    entry = {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}
    metadata = {"consilience": json.dumps(DOCUMENT)}
    return raw({"__metadata__": metadata, "natural": entry}, NATURAL.tobytes())


def with_natural(row, column, value):
    """Return a file with one natural parameter changed."""
    changed = NATURAL.copy()
    changed[row, column] = value
    return forged({**TENSORS, "natural": changed})


def of_family(**config):
    """Return a file with another family in its header."""
    return forged(family=config)


def nested_product(depth):
    """Return a file whose family is a product of a product of a product ..."""
    config = json.dumps({"name": "gamma"})
    for _ in range(depth):
        config = f'{{"name": "product", "blocks": {{"a": {config}}}}}'
    return forged(document=json.dumps({**DOCUMENT, "family": "?"}).replace('"?"', config))


def archive():
    """Return a zip archive, which is what torch and numpy write."""
    stream = io.BytesIO()
    np.savez(stream, natural=NATURAL)
    return stream.getvalue()


class _Trap:
    """Leaves a file when its pickle is loaded."""

    def __reduce__(self):
        return open, (TRAP, "w")


NOT_SAFETENSORS = "is truncated or not a safetensors file"
NOT_VALID = "its metadata is not valid"

# The list of the requirement: one of each kind. Tested in processes of their own.
LISTED = {
    "truncated": (GOOD[: len(GOOD) // 2], NOT_SAFETENSORS),
    "empty": (b"", "is empty"),
    "not-safetensors": (b"name,value\nalpha,1\n" * 9, NOT_SAFETENSORS),
    "lying-header": (claiming(shape=(3000, 8)), NOT_SAFETENSORS),
    "newer-version": (forged(format_version=2), "has format version 2, this library reads up to 1; update consilience"),
    "without-metadata": (to_safetensors({"natural": NATURAL}), "has no consilience metadata"),
    "nan": (with_natural(1, 0, np.nan), "component 1 has NaN or infinite natural parameters"),
    "infinite": (with_natural(2, 3, np.inf), "component 2 has NaN or infinite natural parameters"),
    "not-positive-definite": (with_natural(1, 3, 1e6), "component 1 has a scale matrix that is not positive definite"),
    "other-dimension": (content(site(3, dim=4)), "has 4 columns, expected 2 as in a"),
    "other-family": (content(site(3, family=NormalGamma)), r"is NormalGamma\(dim=2\), expected NormalWishart"),
    "empty-model": (forged({"natural": np.zeros((0, 8))}, counts=None), "the model has no components"),
    "pickle": (pickle.dumps(_Trap()), "is a pickle or zip archive, which is never loaded"),
}

# More of the same kinds.
VARIANTS = {
    "truncated-length": (GOOD[:3], NOT_SAFETENSORS),
    "truncated-header": (GOOD[:40], NOT_SAFETENSORS),
    "truncated-end": (GOOD[:-1], NOT_SAFETENSORS),
    "trailing-bytes": (GOOD + b"more", NOT_SAFETENSORS),
    "pickle-in-text": (pickle.dumps({"a": 1}, protocol=0), NOT_SAFETENSORS),
    "zip": (archive(), "is a zip archive of NumPy arrays"),
    "header-is-huge": (struct.pack("<Q", 2**63) + GOOD[8:], NOT_SAFETENSORS),
    "header-is-longer-than-file": (struct.pack("<Q", 90_000_000) + GOOD[8:], NOT_SAFETENSORS),
    "header-is-a-list": (raw([1, 2]), NOT_SAFETENSORS),
    "header-is-a-number": (raw(b"5"), NOT_SAFETENSORS),
    "header-is-not-text": (raw(b'{"\xff": 1}'), NOT_SAFETENSORS),
    "shape-overflows": (claiming(shape=(2**62, 2**62)), NOT_SAFETENSORS),
    "offsets-beyond-file": (claiming(offsets=(0, 10 * NATURAL.nbytes)), NOT_SAFETENSORS),
    "offsets-negative": (claiming(offsets=(-8, NATURAL.nbytes)), NOT_SAFETENSORS),
    "offsets-reversed": (claiming(offsets=(NATURAL.nbytes, 0)), NOT_SAFETENSORS),
    "dtype-too-small": (claiming("F32"), NOT_SAFETENSORS),
    "dtype-unknown": (claiming("X99"), NOT_SAFETENSORS),
    "dtype-integer": (claiming("I64"), "'natural' has type I64, expected F64"),
    "dtype-brain": (claiming("BF16", shape=(3, 32)), "'natural' has type BF16, expected F64"),
    "dtype-four-bits": (claiming("F4", shape=(3, 128)), "'natural' has type F4, expected F64"),
    "shape-flat": (
        claiming(shape=(24,)),
        r"natural parameters of NormalWishart\(dim=2\) must be \(n, 8\), found \(24,\)",
    ),
    "shape-of-nothing": (claiming(shape=(2**40, 0), offsets=(0, 0))[: -NATURAL.nbytes], "the model has no components"),
    "metadata-is-a-number": (raw({"__metadata__": {"consilience": 5}}), NOT_SAFETENSORS),
    "metadata-of-others": (
        to_safetensors({"natural": NATURAL}, metadata={"format": "pt"}),
        "has no consilience metadata",
    ),
    "json-broken": (forged(document="{nope"), f"{NOT_VALID} JSON"),
    "json-a-list": (forged(document="[]"), f"{NOT_VALID} at the whole"),
    "json-null": (forged(document="null"), f"{NOT_VALID} at the whole"),
    "json-deep": (forged(document="[" * 5_000 + "]" * 5_000), f"{NOT_VALID} JSON"),
    "json-deep-but-read": (forged(source={"kind": json.loads("[" * 400 + "]" * 400)}), "nested deeper than 64 levels"),
    "json-digits": (forged(document='{"format_version": ' + "9" * 5000 + "}"), f"{NOT_VALID} JSON"),
    "json-unknown-key": (forged(surprise=1), f"{NOT_VALID} at surprise"),
    "version-text": (forged(format_version="2"), f"{NOT_VALID} at format_version"),
    "version-huge": (forged(format_version=10**30), "update consilience"),
    "version-zero": (forged(format_version=0), f"{NOT_VALID} at format_version"),
    "format-other": (forged(format="recipe"), "is of format 'recipe', expected a posterior file"),
    "counts-too-few": (forged(counts=[1.0, 2.0]), r"counts must be \(3,\), found \(2,\)"),
    "counts-nan": (forged(counts=[1.0, float("nan"), 2.0]), "component 1 has counts nan"),
    "counts-infinite": (forged(counts=[1.0, 2.0, float("inf")]), "component 2 has counts inf"),
    "counts-negative": (forged(counts=[-1.0, 2.0, 3.0]), "component 0 has counts -1.0"),
    "counts-beyond-float": (forged(counts=[1, 2, 10**400]), f"{NOT_VALID} at counts.2"),
    "counts-text": (forged(counts="many"), f"{NOT_VALID} at counts"),
    "dim-absurd": (of_family(name="normal-wishart", dim=10**9), r"found \(3, 8\)"),
    "dim-beyond-integers": (of_family(name="gaussian", dim=10**200), "dim must not exceed"),
    "dim-negative": (of_family(name="normal-wishart", dim=-2), "dim must be a positive integer, found -2"),
    "dim-text": (of_family(name="normal-wishart", dim="2"), "dim must be a positive integer, found '2'"),
    "dim-missing": (of_family(name="normal-wishart"), "missing 1 required positional argument: 'dim'"),
    "family-unknown": (of_family(name="cauchy", dim=2), "family 'cauchy' is not known to this version; known: beta"),
    "family-without-name": (of_family(dim=2), "family None is not known"),
    "family-name-a-list": (of_family(name=[], dim=2), "its family cannot be made|family .* not known"),
    "family-surplus": (of_family(name="beta", dim=2), "family 'beta' with configuration"),
    "family-a-list": (forged(family=[]), f"{NOT_VALID} at family"),
    "family-ragged": (of_family(name="known-covariance-gaussian", covariance=[[1, 2], [3]]), "cannot be made"),
    "family-of-words": (of_family(name="known-covariance-gaussian", covariance=[["a"]]), "cannot be made"),
    "family-beyond-float": (of_family(name="known-covariance-gaussian", covariance=[[10**400]]), "cannot be made"),
    "family-not-positive": (
        of_family(name="known-covariance-gaussian", covariance=[[1, 2], [2, 1]]),
        "positive definite",
    ),
    "family-no-blocks": (of_family(name="product", blocks={}), "expected at least one block"),
    "family-block-a-text": (of_family(name="product", blocks={"a": "x"}), "cannot be made"),
    "family-deep": (nested_product(200), "nested deeper than 64 levels"),
    "source-a-list": (forged(source=[]), f"{NOT_VALID} at source"),
    "source-nan": (forged(source={"kind": float("nan")}), f"{NOT_VALID} at source"),
    "source-other": (forged(source={"kind": "sklearn.KMeans"}), "has kind 'sklearn.KMeans', expected None as in a"),
    "provenance-a-list": (forged(provenance=[]), f"{NOT_VALID} at provenance"),
    "provenance-wrong": (forged(provenance={"inputs": 5}), f"{NOT_VALID} at provenance"),
    "features-numbers": (forged(features={"names": [1, 2]}), f"{NOT_VALID} at features.names.0"),
    "features-too-few": (forged(features={"names": ["x0"]}), "has 1 feature names for 2 dimensions"),
    "features-other": (forged(features={"names": ["x0", "age"]}), "number 1 is 'age', expected 'x1'"),
    "features-unprintable": (forged(features={"names": ["x0", "\ud800\n\x1b[31m"]}), "surrogates not allowed"),
    "kappa-not-positive": (with_natural(1, 2, 1.0), "component 1 has kappa = -2, which must be positive"),
    "dof-too-low": (with_natural(0, -1, -5.0), "component 0 has -8 degrees of freedom, which must exceed D - 1 = 1"),
    "prior-nan": (forged({**TENSORS, "prior": np.full(8, np.nan)}), "the prior has NaN or infinite"),
    "prior-too-short": (forged({**TENSORS, "prior": np.ones(3)}), r"prior must be \(8,\), found \(3,\)"),
    "weights-negative": (forged({**TENSORS, "weights": np.array([1.0, -1.0, 1.0])}), "component 1 has weights -1.0"),
    "weights-a-table": (forged({**TENSORS, "weights": np.ones((3, 1))}), r"weights must be \(3,\), found \(3, 1\)"),
    "weights-empty": (forged({**TENSORS, "weights": np.ones(0)}), "tensor 'weights' is empty"),
    "tensor-surplus": (forged({**TENSORS, "surplus": np.ones(3)}), "does not announce: surplus"),
    "tensor-missing": (forged({"weights": np.ones(3)}), "lacks the tensors natural"),
    "attached-missing": (forged(attached={"bias": {"axes": [], "rule": "mean"}}), "lacks the tensors attached.bias"),
    "attached-rule": (forged(attached={"bias": {"axes": [], "rule": "guess"}}), f"{NOT_VALID} at attached.bias.rule"),
    "attached-too-long": (
        forged({**TENSORS, "attached.bias": np.ones(4)}, attached={"bias": {"axes": ["component"], "rule": "mean"}}),
        "attached array 'bias' has shape .* must have length 3",
    ),
    "attached-nan": (
        forged({**TENSORS, "attached.bias": np.array(np.nan)}, attached={"bias": {"axes": [], "rule": "mean"}}),
        "attached array 'bias' has NaN or infinite values",
    ),
}

BAD = LISTED | VARIANTS
