"""The result of a fusion as named arrays in one form: their exact bytes, and a summary that bears other rounding.

Only what is determined is recorded: of low-rank factors, whose singular directions have no sign and among equal
singular values no order, their product; of a search its end and not its course, whose last step rounding may add.

Nothing here names a module of the library but ``consilience`` itself, so that the form outlasts any move inside.
"""

import hashlib
import json
import re
import struct
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from numbers import Number
from pathlib import Path

import numpy as np
import torch

import consilience as cs

_PROVENANCE = ("provenance", "library_version")
"""What a saved file says of how it came to be: words, versions and paths, which may change."""
FILE = ":file"
"""How names of digests of a file's document end: its words and whole numbers."""
_DECIDED_BY_ROUNDING = ("history", "starts", "iterations", "steps", "largest_rhat")
"""Details that rounding decides: how a search went, which of its starts was first at the same end, and ranks of the two
draws beside the median, which are as far from it."""
_OF_BYTES = "digests"
"""A tensor of digests, which the first rounding changes."""
_FACTORS = "factors/"
"""How names of tensors of low-rank factors begin in files of Fisher information."""


def arrays_of(value, name="", known=()):
    """Return the arrays that a value holds, by a name for each; what is not there, or only words, is left out."""
    if value is None or id(value) in known:
        return {}
    many = _parts(value)
    if many is not None:
        return {
            key: array
            for part, inner in many.items()
            for key, array in arrays_of(inner, f"{name}.{part}".lstrip("."), (*known, id(value))).items()
        }
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous()
        if value.dtype == torch.bfloat16:  # which NumPy does not have
            return {f"{name}:bfloat16": value.view(torch.int16).numpy()}
        if value.dtype.itemsize == 1 and value.is_floating_point():
            return {f"{name}:float8": value.view(torch.uint8).numpy()}
        return {name: value.numpy()}
    return {name: np.asarray(value)}


def _parts(value):
    """Return what a value is made of, by name; None for an array, a number or a word."""
    match value:
        case cs.results.PosteriorFusion():
            return _posterior_fusion(value)
        case cs.results.BayesianFusion() | cs.results.NetworkFusion():
            return _network_fusion(value)
        case cs.results.EstimatorFusion():
            return {**_of_every_fusion(value), "statistics": value.statistics, "matching": value.matching}
        case cs.results.DrawsFusion():
            return {**_of_every_fusion(value), "draws": value.draws, "matching": value.matching}
        case cs.results.AdapterFusion():
            return {**_of_every_fusion(value), "products": _products_of_adapter(value.model)}
        case cs.Draws():
            return dict(value.variables)
        case cs.Statistics():
            return dict(value.tensors())
        case cs.results.Matching():
            names = ("labels", "owner", "coupling", "confidence", "signs")
            return {name: getattr(value, name) for name in names}
        case cs.Posterior():
            attached = {name: one.values for name, one in value.attached.items()}
            columns = {name: getattr(value, name) for name in ("natural", "prior", "counts", "weights")}
            return {**columns, "attached": attached, "about": _in_words(value)}
        case cs.Attached():
            return {"values": value.values, "precision": value.precision}
        case cs.BayesianNetwork():
            return {"means": value.means, "variances": value.variances, "prior": value.prior, "classes": value.classes}
        case cs.results.FisherInformation():
            names = ("residual", "diagonal", "observations", "prior_precision", "seen", "linear")
            return {name: getattr(value, name) for name in names} | {"products": _products(value.factors)}
        case cs.Symmetry():
            return {"digest": value.digest, "groups": value.groups, "proved": value.proved}
        case cs.Network():
            return dict(value.arrays)
        case cs.results.Merge():
            many = value.output.is_dir()
            paths = sorted(value.output.glob("*.safetensors")) if many else [value.output]
            return {"bytes": value.bytes, "files": {path.name: path for path in paths}}
        case torch.nn.Module():
            return dict(value.state_dict())
        case Path():
            return {"tensors": tensors_of(value), FILE: file_digest(value)}
        case Mapping():
            return {str(key): value[key] for key in sorted(value, key=str)}
        case np.ndarray() | torch.Tensor() | str() | bytes() | Number() | np.generic():
            return None
        case list() | tuple():
            return {str(place): part for place, part in enumerate(value)}
    if is_dataclass(value):
        return asdict(value)
    raise TypeError(f"a result that has no canonical form: {type(value).__name__}")


def covered_by(results):
    """Return which methods, kinds of models and families are behind results, sorted."""
    covered = set()
    for value in results.values():
        match value:
            case cs.results.PosteriorFusion():
                covered |= {f"posteriors by {value.provenance['method']}", *_families(value.posterior.family)}
                if "kind" in value.posterior.source:
                    covered.add(f"kind {value.posterior.source['kind']}")
            case cs.results.BayesianFusion():
                covered.add(f"bayesian by {value.provenance['method']}")
            case cs.results.NetworkFusion():
                covered.add(f"networks by {value.provenance['method']}")
            case cs.results.EstimatorFusion():
                covered.add(f"estimators by {value.statistics.kind.rpartition('.')[2]}")
            case cs.results.DrawsFusion():
                covered.add(f"draws by {value.provenance['method']}")
            case cs.results.AdapterFusion():
                covered.add(f"adapters by {value.provenance['method']}")
            case cs.results.Merge():
                covered.add(f"checkpoints by {value.provenance['recipe']['method']}")
    return sorted(covered)


def _families(family):
    inner = [name for _, block in getattr(family, "blocks", ()) for name in _families(block)]
    return [f"family {family.name}", *inner]


def _in_words(posterior):
    """Return what a posterior says of its model and columns, as one text."""
    said = {"source": dict(posterior.source), "features": posterior.features.to_json()}
    return json.dumps(said, sort_keys=True, default=lambda value: np.asarray(value).tolist())


def _posterior_fusion(fusion):
    shared = _of_every_fusion(fusion)
    return {**shared, "posterior": fusion.posterior, "matching": fusion.matching, "atoms": fusion.atoms}


def _network_fusion(fusion):
    shared = _of_every_fusion(fusion)
    if fusion.keeps_models:
        return {**shared, "matching": fusion.matching}
    model = None
    if isinstance(fusion, cs.results.BayesianFusion):
        model = {"means": _in_one(fusion.model.means), "variances": _in_one(fusion.model.variances)}
    aligned = {str(place): _in_one(one.arrays) for place, one in enumerate(fusion.aligned)}
    return {**shared, "network": fusion.network, "matching": fusion.matching, "aligned": aligned, "model": model}


def _of_every_fusion(fusion):
    """Objective, status, and the numbers among the details: neither wording nor the course of a search."""
    return {
        "objective": fusion.objective,
        "status": fusion.status.name,
        "n_components": fusion.n_components,
        "details": _numbers(fusion.details),
    }


def _numbers(details):
    """Return numbers among what a method found, in as few arrays as they fit into."""
    if isinstance(details, Mapping):
        kept = {key: part for key, part in details.items() if key not in _DECIDED_BY_ROUNDING}
        return {Path(str(key)).name: _numbers(part) for key, part in kept.items()}  # some keys are paths of files
    if isinstance(details, list | tuple):
        if all(isinstance(part, Number) for part in details):
            return np.array(details)
        if all(isinstance(part, Mapping) and part.keys() == details[0].keys() for part in details):
            return {str(key): _numbers([part[key] for part in details]) for key in details[0]}
        return {str(place): _numbers(part) for place, part in enumerate(details)}
    return None if isinstance(details, str) else details


def _in_one(arrays):
    """Return all arrays of a network in one vector: a line on each of them would say little more."""
    widest = [np.asarray(arrays[name]).astype(np.float64).ravel() for name in sorted(arrays)]
    return np.concatenate([np.zeros(0), *widest])


# -- Files


def _document(path):
    """Return the header of a safetensors file, the library's document in it, and the bytes of its tensors."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    metadata = header.get("__metadata__", {})
    document = json.loads(metadata["consilience"]) if "consilience" in metadata else {}
    return header, document, content[8 + length :]


def file_digest(path):
    """Return the SHA-256 of the header of a safetensors file, without provenance, digests and rounded numbers."""
    header, document, _ = _document(path)
    for key in _PROVENANCE:
        document.pop(key, None)
    if document:
        header["__metadata__"]["consilience"] = document
    return hashlib.sha256(json.dumps(_in_whole_numbers(header), sort_keys=True).encode()).hexdigest()


def _in_whole_numbers(value):
    """Return a document without the course of searches, fractions, and digests of bytes, which hang on rounding."""
    if isinstance(value, dict):
        return {key: _in_whole_numbers(part) for key, part in value.items() if key not in _DECIDED_BY_ROUNDING}
    if isinstance(value, list):
        return [_in_whole_numbers(part) for part in value]
    if isinstance(value, str):
        return re.sub(r"[0-9a-f]{64}|-?\d+\.\d+(e-?\d+)?", "_", value)
    return None if isinstance(value, float) else value


def bytes_of_file(path):
    """Return the SHA-256 of a safetensors file without its provenance."""
    header, document, data = _document(path)
    for key in _PROVENANCE:
        document.pop(key, None)
    if document:
        header["__metadata__"]["consilience"] = document
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode() + b"\n" + data).hexdigest()


def tensors_of(path):
    """Return the tensors of a safetensors file by name, of low-rank factors their product."""
    from safetensors.torch import load_file

    tensors = load_file(path)
    tensors.pop(_OF_BYTES, None)
    factors = {name: tensors.pop(name) for name in sorted(tensors) if name.startswith(_FACTORS)}
    return tensors | {"products": _products(factors)}


def _products(factors):
    """Return G^T G (P, P) of factors G (rank, P) that are split by parameter; None where there are none."""
    if not factors:
        return None
    rows = np.concatenate(
        [np.asarray(factors[name]).reshape(len(factors[name]), -1) for name in sorted(factors)], axis=1
    )
    return rows.T @ rows


def _products_of_adapter(adapter):
    """Return B A of every module: factors of a lower rank have no order or sign."""
    arrays = {
        name: np.frombuffer(adapter.bytes_of(name), dtype=np.float64).reshape(one.shape)
        for name, one in adapter.tensors.items()
    }
    pairs = {name: name.replace("lora_A", "lora_B") for name in sorted(arrays) if "lora_A" in name}
    return {a: arrays[b] @ arrays[a] for a, b in pairs.items()}


def provenance_of(path):
    """Return the keys of what a saved file says of how it came to be, nested ones after a dot."""
    said = _document(path)[1].get("provenance") or {}
    inner = [f"{key}.{name}" for key in ("result", "options") for name in said.get(key) or ()]
    return sorted([*said, *inner])


# -- Digests and summaries


def bytes_digest(array):
    """Return the SHA-256 of the type, shape and bytes of an array."""
    array = np.ascontiguousarray(array)
    if array.dtype.kind == "U":  # whose bytes depend on the longest word
        return hashlib.sha256(json.dumps(array.tolist()).encode()).hexdigest()
    written = f"{array.dtype.str}{array.shape}".encode()
    return hashlib.sha256(written + array.astype(array.dtype.newbyteorder("<")).tobytes()).hexdigest()


def is_rounded(name, array):
    """Return whether an array holds numbers that another machine may round otherwise."""
    return array.dtype.kind == "f" or name.endswith(":bfloat16")


def summary_of(name, array):
    """Return a line on an array: type, shape, and where numbers are rounded two projections, else a short digest.

    The projections are the sum of |x| and x with a fixed vector; what is not finite is counted instead. Entries of the
    vector lie between -1 and 1, so an error relative to the first bounds that of the second.
    """
    shape = "x".join(map(str, array.shape)) or "-"
    if not is_rounded(name, array):
        return f"{array.dtype.kind} {shape} {bytes_digest(array)[:8]}"
    values = _widened(name, array)
    finite = np.isfinite(values)
    values = np.where(finite, values, 0.0)
    vector = np.random.Generator(np.random.PCG64(0)).uniform(-1.0, 1.0, len(values))
    size, projection, lost = np.abs(values).sum(), values @ vector, np.count_nonzero(~finite)
    kind = "bf16" if name.endswith(":bfloat16") else array.dtype.str[1:]
    return f"{kind} {shape} {size:.9e} {projection:.9e} {lost}"


def _widened(name, array):
    if name.endswith(":bfloat16"):
        array = (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64).ravel()
