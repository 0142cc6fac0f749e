"""Files as a hostile site may send them: honest ones, changed in bytes, in the header, in the document, in the numbers.

A mutant follows from its number alone, so that one that makes trouble can be made again.
"""

import functools
import json
import struct
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from sklearn.linear_model import Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import consilience as cs
from consilience import families as f
from consilience.core.features import Features
from consilience.networks.descriptions.description import ChannelStatistics, Description, Moments, TokenCounts
from consilience.networks.files import write_network, write_symmetry
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.symmetry.axes import Axis, Group, Layout, Segment
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.posteriors.posterior import Attached

KEY = "consilience"
HUGE = (2**31, 2**40, 2**53, 2**63, 2**64, 10**9, 10**18, 10**30, -1, 0, 1e308, -1e308, 5e-324)
NUMBERS = (float("nan"), float("inf"), -float("inf"), 1e308, -1e308, 5e-324, 0.0, -1.0, 1e12, 1e155)
TEXTS = (
    "",
    "\x00",
    "\ud800",
    "\U0001f600" * 3,
    "natural",
    "a" * 3000,
    "../../etc/passwd",
    "__class__",
    "NaN",
    "é" * 50,
)
FAMILIES = (
    "gaussian", "diagonal-gaussian", "spherical-gaussian", "known-covariance-gaussian", "normal-wishart",
    "normal-gamma", "spherical-normal-gamma", "dirichlet", "beta", "gamma", "categorical", "point", "product",
)  # fmt: skip
TYPES = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F4", "I64", "U8", "BOOL", "C64", "X9")


def _posterior(family, rng, parameters, **more):
    return cs.Posterior(family, family.to_natural(**parameters), **more)


def _written(write):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        write(path)
        return path.read_bytes()


def _adapter(rng):
    """Return a LoRA adapter of two modules."""
    with tempfile.TemporaryDirectory() as folder:
        names = [f"base_model.model.{layer}.lora_{part}.weight" for layer in (0, 1) for part in "AB"]
        save_file({name: rng.normal(size=(2, 2)) for name in names}, Path(folder) / "adapter_model.safetensors")
        config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "rank_pattern": {}, "target_modules": ["0", "1"]}
        (Path(folder) / "adapter_config.json").write_text(json.dumps(config))
        return cs.LoraAdapter.read(folder)


@functools.cache
def seeds():
    """Return honest files by name: bytes."""
    rng = np.random.default_rng(0)
    spd = np.stack([np.eye(2) + 0.1 * k for k in range(3)])
    mean = rng.normal(size=(3, 2))
    wishart = {"mean": mean, "kappa": [2.0, 3.0, 4.0], "scale": spd, "dof": [5.0, 6.0, 7.0]}
    full = _posterior(
        f.NormalWishart(2),
        rng,
        wishart,
        prior=f.NormalWishart(2).to_natural(mean=mean[:1], kappa=[1.0], scale=spd[:1], dof=[3.0])[0],
        counts=np.array([10.0, 20.0, 30.0]),
        weights=np.array([0.2, 0.3, 0.5]),
        attached={
            "moves": Attached(np.ones((3, 3)), ("component", "component"), "sum"),
            "level": Attached(np.ones((3, 2)), ("component", "fixed"), "precision-mean", np.ones((3, 2))),
        },
        features=Features(("a", "b"), ("m", "s"), {"mean": (0.0, 1.0)}, ("x", "y")),
        source={"kind": "sklearn.BayesianGaussianMixture", "covariance_type": "full"},
    )
    words = tuple(f"word{i}" for i in range(30))
    topics = _posterior(
        f.Dirichlet(30), rng, {"concentration": rng.gamma(1.0, size=(4, 30)) + 0.1}, features=Features(words)
    )
    joint = f.Product({"place": f.Gaussian(2), "rate": f.Gamma()})
    parts = {"place": {"mean": mean, "covariance": spd}, "rate": {"shape": [1.0, 2.0, 3.0], "rate": [1.0, 1.0, 2.0]}}
    arrays = {"0.weight": rng.normal(size=(3, 4)), "0.bias": rng.normal(size=3), "2.weight": rng.normal(size=(2, 3))}
    fixed = lambda n: Axis((Segment(None, inner=n),), "input")  # noqa: E731  (a name for one line)
    unit = Axis((Segment("hidden"),))
    symmetry = Symmetry(
        {
            "0.weight": Layout((unit, fixed(4))),
            "0.bias": Layout((unit,)),
            "2.weight": Layout((Axis((Segment(None, inner=2),)), Axis((Segment("hidden"),), "input"))),
        },
        (Group("hidden", 3, 0),),
    )
    small = {name: values.astype(np.float32) for name, values in arrays.items()}
    fisher = FisherInformation(
        residual={name: np.abs(values) for name, values in small.items()},
        factors={name: np.stack([values, values]) for name, values in small.items()},
    )
    bayesian = cs.BayesianNetwork(
        None, arrays, {name: np.abs(values) + 0.1 for name, values in arrays.items()}, symmetry=symmetry
    )
    moments = Moments(200.0, np.zeros(4), np.eye(2, 4), np.ones(4))
    described = Description(
        "0" * 64,
        200.0,
        (4,),
        input_range=(-3.0, 3.0),
        inputs=moments,
        classes=("a", "b"),
        class_counts=np.array([120.0, 80.0]),
        class_moments={0: replace(moments, n_observations=120.0), 1: replace(moments, n_observations=80.0)},
        channels={"0": ChannelStatistics(np.zeros(3), np.ones(3))},
        tokens=TokenCounts(np.ones(5), np.array([[1, 2, 9]]), np.ones(3), 0, 2.0),
        class_tokens={1: TokenCounts(np.eye(5)[2], np.zeros((0, 3), dtype=np.int64), np.ones(3), 0, 1.0)},
        class_features=np.zeros((2, 3)),
        notes=("reduced",),
    )
    pair = [full, full.take(np.array([2, 1, 0]))]
    classifier = GaussianNB().fit(rng.normal(size=(20, 3)), np.repeat(["a", "b"], 10))

    def sums(seed):
        X = np.random.default_rng(seed).normal(size=(12, 3))
        steps = make_pipeline(StandardScaler(), Ridge(alpha=0.5))
        return cs.describe(steps.fit(X, X[:, 0]), (X, X[:, 0]), features=Features(("a", "b", "c")))

    def sampled(seed):
        draws = {
            "mu": np.random.default_rng(seed).normal(size=(2, 110, 2)),
            "tau": np.full((2, 110), 2.0) ** rng.normal(size=(2, 110)),
        }
        told = {"constraints": {"tau": "positive"}, "coords": {"place": ["a", "b"]}, "dims": {"mu": ("place",)}}
        return cs.Draws(draws, prior={"mu": ("normal", 0, 9), "tau": ("half_cauchy", 5)}, n_observations=40, **told)

    with warnings.catch_warnings(action="ignore"):  # of equal contents
        fused = cs.fuse([replace(one, source={}) for one in pair], method="average")
    tables = {
        "wishart": functools.partial(cs.save, full),
        "topics": functools.partial(cs.save, topics),
        "joint": functools.partial(cs.save, _posterior(joint, rng, parts)),
        "point": functools.partial(cs.save, cs.Posterior(f.Point(2), mean)),
        "known": functools.partial(
            cs.save, cs.Posterior(f.KnownCovarianceGaussian(spd[0]), mean, source={"kind": "x"})
        ),
        "fused": fused.save,
        "network": lambda path: write_network(path, small, symmetry, {"method": "average", "inputs": [{"name": "a"}]}),
        "checkpoint": lambda path: write_network(path, {name: v.astype(np.float16) for name, v in small.items()}),
        "symmetry.json": lambda path: write_symmetry(path, symmetry),
        "fisher": functools.partial(cs.save, fisher),
        "bayesian": functools.partial(cs.save, bayesian),
        "statistics": functools.partial(cs.save, classifier),
        "sums": cs.fuse([sums(0), sums(1)]).save,
        "draws": functools.partial(cs.save, sampled(0)),
        "fused draws": cs.fuse([sampled(0), sampled(1)], "consensus_mc").save,
        "description": functools.partial(cs.save, described),
        "adapter": cs.fuse([_adapter(rng), _adapter(rng)]).save,
    }
    return {name: _written(write) for name, write in tables.items()}


def assembled(header, data):
    """Return a safetensors file of a header (JSON values or bytes) and the bytes after it."""
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode("utf-8", "replace")
    return struct.pack("<Q", len(text)) + text + data


def taken_apart(content):
    """Return the header, the document in it, and the bytes after it; None where it has none."""
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    text = header.get("__metadata__", {}).get(KEY)
    return header, None if text is None else json.loads(text), content[8 + length :]


def put_together(header, document, data):
    """Return the file of a header with this document in it."""
    if document is not None:
        text = document if isinstance(document, str) else json.dumps(document, separators=(",", ":"))
        header = {**header, "__metadata__": {KEY: text}}
    return assembled(header, data)


def places(value, found=None):
    """Return every (container, key) inside a JSON value."""
    found = [] if found is None else found
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        found.append((value, key))
        places(inner, found)
    return found


def strange(rng, most):
    """Return a value that does not belong: absurd numbers and texts, deep nests, many small things."""
    count = int(rng.integers(1, most))
    kinds = (
        lambda: HUGE[rng.integers(len(HUGE))],
        lambda: NUMBERS[rng.integers(len(NUMBERS))],
        lambda: TEXTS[rng.integers(len(TEXTS))],
        lambda: None,
        lambda: bool(rng.integers(2)),
        lambda: [],
        lambda: {},
        lambda: [[] for _ in range(count)],
        lambda: [{} for _ in range(count)],
        lambda: [0] * count,
        lambda: [1.5] * count,
        lambda: ["a"] * count,
        lambda: [{"a": 1} for _ in range(count)],
        lambda: {f"{n:x}": 1 for n in range(count)},
        lambda: {f"{n:x}": [[None, 1, 1]] for n in range(count)},
        lambda: functools.reduce(lambda inner, _: [inner], range(int(rng.integers(1, 300))), 0),
        lambda: functools.reduce(lambda inner, _: {"a": inner}, range(int(rng.integers(1, 300))), 0),
        lambda: int("9" * int(rng.integers(1, 4000))),
        lambda: {"name": FAMILIES[rng.integers(len(FAMILIES))], "dim": HUGE[rng.integers(len(HUGE))]},
        lambda: {"name": "product", "blocks": {f"{n}": {"name": "gamma"} for n in range(min(count, 500))}},
        lambda: TYPES[rng.integers(len(TYPES))],
    )
    return kinds[rng.integers(len(kinds))]()


MOST_PLACES = 100_000
"""Values in a mutant at most, about: three products of long lists would fill the memory of whoever writes the file."""


def _in_values(value, rng, most):
    """Change one or a few places of a JSON value, in place."""
    for _ in range(int(rng.integers(1, 4))):
        found = places(value)
        if not found:
            return
        inside, key = found[rng.integers(len(found))]
        choice = rng.integers(6)
        if choice == 0:
            del inside[key]
        elif choice == 1:
            other, name = found[rng.integers(len(found))]
            inside[key] = json.loads(json.dumps(other[name]))
        elif choice == 2 and isinstance(inside, dict):
            inside[TEXTS[rng.integers(len(TEXTS))]] = strange(rng, most)
        elif choice == 3 and isinstance(inside[key], list) and inside[key]:
            times = min(int(rng.integers(2, 50)), max(1, MOST_PLACES // len(found)))
            text = json.dumps(inside[key])  # copies: what is put into one of them is not put into all
            inside[key] = [one for _ in range(times) for one in json.loads(text)]
        elif choice == 4 and isinstance(inside[key], int | float):
            inside[key] = [HUGE, NUMBERS][rng.integers(2)][rng.integers(len(NUMBERS))]
        else:
            inside[key] = strange(rng, most)


def _in_text(text, rng):
    """Return a JSON text with a key twice, a place cut out, or odd characters put in."""
    at = int(rng.integers(0, len(text)))
    odd = (
        '"',
        "\\",
        ",",
        "[",
        "{",
        "}",
        "]",
        ":",
        "\\ud800",
        "1e999",
        "-0",
        "/*",
        " " * 200,
        '{"a":1,"a":2}',
        "\x00",
        "NaN",
    )
    match rng.integers(4):
        case 0:
            return text[:at] + odd[rng.integers(len(odd))] + text[at:]
        case 1:
            return text[:at] + text[at + int(rng.integers(1, 30)) :]
        case 2:
            return text.replace("{", '{"format":"x",', 1) if rng.integers(2) else text.replace("[", "[[", 1)
        case _:
            end = min(len(text), at + int(rng.integers(1, 60)))
            return text[:end] + text[at:end] * int(rng.integers(1, 40)) + text[end:]


def bytes_mutant(content, rng):
    """Return bytes of which some were changed, cut out, put in or repeated."""
    changed = bytearray(content)
    for _ in range(int(rng.integers(1, 6))):
        at = int(rng.integers(0, len(changed)))
        match rng.integers(6):
            case 0:
                changed[at] ^= 1 << int(rng.integers(8))
            case 1:
                del changed[at : at + int(rng.integers(1, 40))]
            case 2:
                changed[at:at] = rng.bytes(int(rng.integers(1, 20)))
            case 3:
                del changed[at:]
            case 4:
                changed[:8] = struct.pack("<Q", int(rng.choice([0, 1, 8, len(changed), 2**31, 2**40, 2**62])))
            case _:
                changed[at:at] = changed[at : at + int(rng.integers(1, 200))]
        if not changed:
            return b""
    return bytes(changed)


def _in_numbers(header, document, data, rng):
    numbers = bytearray(data)
    for _ in range(int(rng.integers(1, 8))):
        if len(numbers) < 8:
            break
        at = 8 * int(rng.integers(0, len(numbers) // 8))
        numbers[at : at + 8] = struct.pack("<d", NUMBERS[rng.integers(len(NUMBERS))])
    return put_together(header, document, bytes(numbers))


def _in_tensors(header, document, data, rng, most):
    """Change what the header says of tensors: types, shapes, offsets; add many tiny ones."""
    header = json.loads(json.dumps(header))
    names = [name for name in header if name != "__metadata__"]
    name = names[rng.integers(len(names))]
    entry = header[name]
    match rng.integers(7):
        case 0:
            entry["dtype"] = TYPES[rng.integers(len(TYPES))]
        case 1:
            entry["shape"] = [int(rng.integers(0, 5)) for _ in range(int(rng.integers(0, 6)))]
        case 2:  # no entries, however long
            entry["shape"], entry["data_offsets"] = [0, int(2 ** rng.integers(1, 63))], [0, 0]
        case 3:
            entry["shape"] = entry["shape"] + [1] * int(rng.integers(1, most))
        case 4:
            entry["data_offsets"] = [int(rng.integers(0, len(data) + 9)), int(rng.integers(0, len(data) + 9))]
        case 5:
            for number in range(int(rng.integers(1, most))):
                header[f"t{number}"] = {"dtype": "U8", "shape": [0], "data_offsets": [len(data), len(data)]}
        case _:
            header[TEXTS[rng.integers(len(TEXTS))]] = header.pop(name)
    return put_together(header, document, data)


MOST, RARELY = 300, 100
"""Small things that are put in one place at most; a share of mutants has so many times as many."""


def _most(rng):
    return MOST * RARELY if rng.random() < 0.02 else MOST


def json_mutant(content, rng):
    """Return a changed copy of a JSON file."""
    if rng.integers(3) == 0:
        return _in_text(content.decode(), rng).encode("utf-8", "replace")
    document = json.loads(content)
    _in_values(document, rng, _most(rng))
    return json.dumps(document).encode("utf-8", "replace")


def safetensors_mutant(content, rng):
    """Return a changed copy of a safetensors file, with a document or without."""
    header, document, data = taken_apart(content)
    many = _most(rng)
    match rng.integers(8):
        case 0:
            return bytes_mutant(content, rng)
        case 1:
            _in_values(header, rng, many)
            return assembled(header, data)
        case 2:
            return _in_tensors(header, document, data, rng, many)
        case 3:
            return _in_numbers(header, document, data, rng)
        case 4 if document is not None:
            return put_together(header, _in_text(json.dumps(document), rng), data)
        case _ if document is not None:
            _in_values(document, rng, many)
            return put_together(header, document, data)
        case _:
            return assembled(_in_text(json.dumps(header), rng).encode("utf-8", "replace"), data)


def message_mutant(content, rng, most=300):
    """Return a changed copy of a message: a safetensors file with a document, and perhaps with tensors."""
    header, document, data = taken_apart(content)
    match rng.integers(5):
        case 0:
            return bytes_mutant(content, rng)
        case 1 if len(header) > 1:  # has tensors
            return _in_tensors(header, document, data, rng, most)
        case 2:
            return _in_numbers(header, document, data, rng)
        case 3:
            return put_together(header, _in_text(json.dumps(document), rng), data)
        case _:
            _in_values(document, rng, most)
            return put_together(header, document, data)
