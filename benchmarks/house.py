"""The house that one call walks through: files run, ways between rooms, files read, imports, size of the tree.

``python benchmarks/house.py [--label before] [--json PATH]`` writes its entry into ``benchmarks/house.json``; entries
of other labels stay, so that a tree before and after a change stand side by side. Only the public API is called and
everything else is traced or parsed, so the script runs unchanged on either tree. It takes about a minute.

**Files run.** The files of the package of which a function was entered in one call; modules were imported, and the same
call made once, before.

**Rooms.** A room is a second-level package, ``consilience/<room>/...``; modules at the top level (errors, checks) are
the ground that all rooms stand on, and a function there belongs to the room that called it. Only the main thread
counts.

- An *entry* is a call into a function of another room than the caller's; that of the traced function is none.
- A *return* is an entry into a room that the call had been in before, that of the traced function included.
- A *climb* is a run of returns from functions into other rooms with no entry between: control climbs back up.
- *Collapsed* counts the sequence of the rooms of all functions entered, without repetitions, whoever called.

Frames of comprehensions and generator expressions, and generators that go on, are no calls; every other function is,
however small.

**The way of the inputs** is what happens before a method's own work starts: before the first call of one of
``METHOD_STARTS`` on an object of a class with a base called ``...Method``. Where there is none in the main thread
(checks, evaluations, and merges of checkpoints), it is the whole call. Part of it are the entries that carry an input:
an argument or what is returned is one of the models, its path, a Posterior, Network or BayesianNetwork, or holds one
directly (in a list, a dict, or an attribute of an object of this package, or a list there).

**Reading.** Per input file (copies of it count as it): openings by Python and by ``safe_open``; header texts parsed
(``json.loads`` of the header or of its own document; of files with equal headers the mean); opens that read it all, or
part of it; bytes taken in all over its size; and SHA-256 digests of it.

**Tree.** Functions over fifty lines are counted without their docstrings. Complexity is one and one for each branch,
loop, handler, condition, part of a condition, and clause of a comprehension, those of inner functions included. An
untyped mapping is ``Mapping[str, Any]``, ``dict[str, Any]`` or the same of ``object``. A chapter is a file of under 130
lines that one other file of its folder imports and nobody else, at any place. Circles count imports anywhere but those
for types alone.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import compileall
import hashlib
import io
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
import tokenize
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

import numpy as np
import safetensors
import torch
from safetensors.torch import save_file
from sklearn.linear_model import LinearRegression
from sklearn.mixture import BayesianGaussianMixture

import consilience as cs

ROOT = Path(cs.__file__).parent
RESULTS = Path(__file__).with_suffix(".json")
SITES = 3
MIXTURES = 4
SHARD_SITES = 40
PILOT_SITES = 10
IMPORTS = 5  # fresh processes, of which the median counts
METHOD_STARTS = ("fuse", "match", "align", "survey", "merge", "average_direction")
"""Methods of a method by which its own work starts: the first two and the third for models in memory, then checkpoints;
the last is what a fusion of shards asks it first."""

CARRIERS = (cs.Posterior, cs.Network, cs.BayesianNetwork)
VAGUE_WORDS = """
found one ones own told held given known kept asked theirs ours mine far each back here there said heard taken made
wanted stated odd both more most what who how where when why listed named called
"""
VAGUE = frozenset(VAGUE_WORDS.split())
"""Names that say nothing about what is bound to them."""

Call = Callable[[], Any]


# What is traced ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scenario:
    """A call to trace, and its inputs: models, or the files that hold them."""

    name: str
    call: Call
    inputs: Sequence[Any]


def mixtures() -> list[Any]:
    """Return mixtures that were fitted to the same three blobs."""
    centres = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]])
    return [
        BayesianGaussianMixture(n_components=3, random_state=0, max_iter=200).fit(blobs(centres, seed))
        for seed in range(MIXTURES)
    ]


def blobs(centres: np.ndarray, seed: int) -> np.ndarray:
    """Draw thirty rows around each centre."""
    return np.repeat(centres, 30, axis=0) + np.random.default_rng(seed).normal(size=(30 * len(centres), 2))


def perceptron(seed: int = 0) -> torch.nn.Sequential:
    """Return a small network."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))


EXAMPLE = torch.linspace(-1, 1, 20).reshape(5, 4)


def saved(models: Sequence[Any], folder: Path, **more: Any) -> list[Path]:
    """Write a file for each model."""
    folder.mkdir()
    paths = [folder / f"site-{number}.safetensors" for number in range(len(models))]
    for model, path in zip(models, paths, strict=True):
        cs.save(model, path, **more)
    return paths


def mixture_scenarios(folder: Path) -> list[Scenario]:
    """Return fusions, a check and an evaluation of mixtures."""
    models = mixtures()
    paths = saved(models, folder / "mixtures")
    rows = blobs(np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]]), 99)
    fused = folder / "fused.safetensors"
    cs.fuse(paths).save(fused)
    return [
        Scenario("four mixtures, objects", lambda: cs.fuse(models), models),
        Scenario("four mixtures, files", lambda: cs.fuse(paths), paths),
        Scenario("check of mixtures, files", lambda: cs.check(paths), paths),
        Scenario("evaluate of mixtures, files", lambda: cs.evaluate(fused, paths[0], rows), [fused, paths[0]]),
    ]


def network_scenarios(folder: Path) -> list[Scenario]:
    """Return fusions of networks: plain, described and Bayesian ones."""
    models = [perceptron(seed) for seed in range(SITES)]
    symmetry = cs.symmetry(models[0], EXAMPLE)
    paths = saved(models, folder / "networks", symmetry=symmetry)
    draws = np.random.default_rng(0)
    data = [(draws.normal(size=(200, 4)).astype(np.float32), np.arange(200) % 3) for _ in models]
    described = [cs.describe(model, data=rows, example=EXAMPLE) for model, rows in zip(models, data, strict=True)]
    posteriors = [
        cs.BayesianNetwork(model, means, {name: torch.full_like(mean, 0.01) for name, mean in means.items()})
        for model in models
        for means in [dict(model.named_parameters())]
    ]
    bayesian = saved(posteriors, folder / "bayesian", symmetry=symmetry)
    return [
        Scenario("networks, modules", lambda: cs.fuse(models, example=EXAMPLE), models),
        Scenario("networks, files", lambda: cs.fuse(paths, module=perceptron), paths),
        Scenario("three described networks", lambda: cs.fuse(described), described),
        Scenario("networks, plain average", lambda: cs.fuse(models, "average", example=EXAMPLE), models),
        Scenario("Bayesian networks, files", lambda: cs.fuse(bayesian), bayesian),
        Scenario("check of networks, files", lambda: cs.check(paths, module=perceptron), paths),
    ]


def estimator_scenarios(folder: Path) -> list[Scenario]:
    """Return fusions of regressions and of posterior draws, in files."""
    draws = np.random.default_rng(0)
    folder = folder / "estimators"
    folder.mkdir()
    regressions, chains = [], []
    for site in range(SITES):
        X = draws.normal(size=(60, 3))
        y = X @ [1.0, 2.0, 3.0] + draws.normal(size=60)
        regressions.append(folder / f"regression-{site}.safetensors")
        cs.save(LinearRegression().fit(X, y), regressions[-1], data=(X, y))
        chains.append(folder / f"draws-{site}.safetensors")
        cs.save(cs.Draws({"beta": draws.normal(size=(500, 2))}, prior="flat"), chains[-1])
    return [
        Scenario("three regressions, files", lambda: cs.fuse(regressions), regressions),
        Scenario("draws, files", lambda: cs.fuse(chains), chains),
    ]


def planted(seed: int) -> cs.Posterior:
    """Return a site with two of the same four Gaussians."""
    rng = np.random.default_rng(seed)
    family = cs.families.DiagonalGaussian(dim=3)
    means = 5 * np.eye(4, 3)[rng.permutation(4)[:2]] + 0.1 * rng.standard_normal((2, 3))
    return cs.Posterior(family, family.to_natural(mean=means, variance=np.ones((2, 3))))


def shard_scenarios(folder: Path) -> list[Scenario]:
    """Return a fusion of packed shards."""
    saved([planted(seed) for seed in range(SHARD_SITES)], folder / "shard-sites")
    packed = folder / "packed"
    cs.pack(folder / "shard-sites", packed, shard_bytes=2**10)
    inputs = sorted(path for path in packed.rglob("*.safetensors") if path.is_file())
    options = {"n_components": 4, "pilot_sites": PILOT_SITES, "shard_bytes": 2**10}
    return [Scenario("shards, packed", lambda: cs.fuse(packed, "kl", **options), inputs)]


def checkpoint_scenarios(folder: Path) -> list[Scenario]:
    """Return a merge of two checkpoints."""
    paths = []
    for seed in range(2):
        place = folder / f"checkpoint-{seed}"
        place.mkdir()
        draw = torch.Generator().manual_seed(seed)
        tensors = {f"layers.{i}.weight": torch.randn((40, 30), generator=draw) for i in range(3)}
        save_file(tensors, place / "model.safetensors", {"format": "pt"})
        (place / "config.json").write_text(json.dumps({"architectures": ["Toy"], "torch_dtype": "float32"}))
        paths.append(place)
    call = lambda: cs.merge(paths, folder / "merged", overwrite=True)  # noqa: E731
    return [Scenario("checkpoints", call, [place / "model.safetensors" for place in paths])]


def adapter_scenarios(folder: Path) -> list[Scenario]:
    """Return a merge of two low-rank adapters."""
    paths = []
    for seed in range(2):
        place = folder / f"adapter-{seed}"
        place.mkdir()
        draw = torch.Generator().manual_seed(seed)
        prefix = "base_model.model.layers.0.q_proj"
        tensors = {
            f"{prefix}.lora_A.weight": torch.randn((4, 30), generator=draw),
            f"{prefix}.lora_B.weight": torch.randn((40, 4), generator=draw),
        }
        save_file(tensors, place / "adapter_model.safetensors", {"format": "pt"})
        config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none"}
        (place / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "toy"}))
        paths.append(place)
    call = lambda: cs.merge(paths, folder / "merged-adapter", overwrite=True)  # noqa: E731
    return [Scenario("two adapters", call, [place / "adapter_model.safetensors" for place in paths])]


def round_scenarios(folder: Path) -> list[Scenario]:
    """Return a round over a folder: every site sends, and the server fuses."""
    paths = saved(mixtures(), folder / "round-sites")
    names = [path.stem for path in paths]

    def call() -> None:
        place = Path(tempfile.mkdtemp(dir=folder, prefix="round-"))
        for name, path in zip(names, paths, strict=True):
            cs.federated.send_folder(path, place / "place", name)
        cs.federated.serve_folder(place / "place", place / "fused.safetensors", sites=names, deadline=60, poll=0.05)

    return [Scenario("round over a folder", call, paths)]


def scenarios(folder: Path) -> list[Scenario]:
    """Return everything that is traced."""
    makers = (
        mixture_scenarios, network_scenarios, estimator_scenarios, shard_scenarios, checkpoint_scenarios,
        adapter_scenarios, round_scenarios,
    )  # fmt: skip
    return [scenario for maker in makers for scenario in maker(folder)]


# Files run and rooms -------------------------------------------------------------------------------------------------


@dataclass
class Step:
    """A call or a return of a function of the package, with the rooms that control was in and is in."""

    kind: str
    before: str | None
    room: str | None
    function: str
    carries: bool = False


@dataclass
class Tracer:
    """A profile function that records what one call enters."""

    inputs: Sequence[Any]
    steps: list[Step] = field(default_factory=list)
    files: set[str] = field(default_factory=set)
    method_start: int | None = None
    _stack: list[tuple[str | None, Step | None]] = field(default_factory=list)
    _generators: set[FrameType] = field(default_factory=set)
    _thread: int = field(default_factory=threading.get_ident)

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        """Take an event from the interpreter."""
        name = frame.f_code.co_filename
        if event not in ("call", "return") or not name.startswith(f"{ROOT}{os.sep}"):
            return
        parts = Path(name).relative_to(ROOT).parts
        self.files.add("/".join(parts))
        plain = frame.f_code.co_name
        if threading.get_ident() != self._thread or (plain.startswith("<") and plain != "<lambda>"):
            return
        if event == "call":
            self._enter(frame, parts)
        elif self._stack:
            self._leave(result)

    def _enter(self, frame: FrameType, parts: tuple[str, ...]) -> None:
        before = self._stack[-1][0] if self._stack else None
        room = parts[0] if len(parts) > 1 else before
        if frame in self._generators:  # it goes on
            self._stack.append((room, None))
            return
        step = Step("call", before, room, f"{'/'.join(parts)}:{frame.f_code.co_qualname}", self._has_input(frame))
        self._stack.append((room, step))
        if frame.f_code.co_flags & 0x20:  # a generator: its frame comes again whenever it goes on
            self._generators.add(frame)
        if self.method_start is None and starts_method(frame):
            self.method_start = len(self.steps)
        self.steps.append(step)

    def _leave(self, result: Any) -> None:
        room, step = self._stack.pop()
        if step is None:
            return
        step.carries = step.carries or self._is_carrier(result)
        after = self._stack[-1][0] if self._stack else None
        self.steps.append(Step("return", room, after, step.function))

    def _has_input(self, frame: FrameType) -> bool:
        code, local = frame.f_code, frame.f_locals
        starred = bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + starred]
        return any(self._is_carrier(local.get(name)) for name in names)

    def _is_carrier(self, value: Any) -> bool:
        """Return whether a value is an input or holds one directly."""
        if self._is_input(value):
            return True
        if isinstance(value, dict | list | tuple):
            return any(self._is_input(item) for item in items_of(value))
        if not type(value).__module__.startswith("consilience"):
            return False
        attributes = list(getattr(value, "__dict__", {}).values())
        return any(self._is_input(item) for each in attributes for item in [each, *items_of(each)])

    def _is_input(self, value: Any) -> bool:
        if isinstance(value, CARRIERS):
            return True
        if isinstance(value, str | Path):
            return any(isinstance(item, Path) and str(item) == str(value) for item in self.inputs)
        return any(item is value for item in self.inputs)


def items_of(value: Any) -> list[Any]:
    """Return the items of a container; those after the hundredth are like the others."""
    if isinstance(value, dict):
        return list(value.values())[:100]
    return list(value[:100]) if isinstance(value, list | tuple) else []


def starts_method(frame: FrameType) -> bool:
    """Return whether a call is where a method's own work starts."""
    if frame.f_code.co_name not in METHOD_STARTS:
        return False
    return any(base.__name__.endswith("Method") for base in type(frame.f_locals.get("self")).__mro__)


def traced(scenario: Scenario) -> Tracer:
    """Make a call twice, and return what the second entered."""
    scenario.call()
    tracer = Tracer(scenario.inputs)
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    try:
        scenario.call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return tracer


def crossings(steps: Sequence[Step]) -> list[Step]:
    """Return the calls and returns between two rooms."""
    return [step for step in steps if step.before is not None and step.room is not None and step.before != step.room]


def repeated(rooms: Sequence[str], first: str | None = None) -> int:
    """Return how many of these rooms were entered before."""
    return len(rooms) - len(set(rooms) - {first})


def way(steps: Sequence[Step]) -> dict[str, Any]:
    """Return the counts of a way through the rooms, as the module defines them."""
    between = crossings(steps)
    start = next((step.room for step in steps if step.room is not None), None)
    entered = [step.room for step in between if step.kind == "call" and step.room is not None]
    carried = [step.room for step in between if step.kind == "call" and step.carries and step.room is not None]
    rooms = [step.room for step in steps if step.kind == "call" and step.room is not None]
    collapsed = [room for room, _ in groupby(rooms)]
    return {
        "rooms": sorted(set(rooms)),
        "entries": len(entered),
        "returns": repeated(entered, start),
        "climbs": sum(kind == "return" for kind, _ in groupby(step.kind for step in between)),
        "carrying": {"entries": len(carried), "returns": repeated(carried, start)},
        "collapsed": {"entries": len(collapsed), "returns": repeated(collapsed)},
    }


def listing(steps: Sequence[Step]) -> str:
    """Return the sequence of rooms: ``>io`` is a call into io, ``<io`` a return to it."""
    signs = {"call": ">", "return": "<"}
    return " ".join(f"{signs[step.kind]}{step.room}" for step in crossings(steps))


def edges(steps: Sequence[Step]) -> dict[str, int]:
    """Return how often which room called which."""
    pairs = Counter(f"{step.before} > {step.room}" for step in crossings(steps) if step.kind == "call")
    return dict(pairs.most_common())


def walked(scenario: Scenario) -> dict[str, Any]:
    """Return what one call ran and the ways it took."""
    tracer = traced(scenario)
    until = tracer.method_start
    inputs = tracer.steps[:until]
    files = sorted(tracer.files)
    return {
        "files": files,
        "files_run": len(files),
        "lines_run": sum(len((ROOT / file).read_text().splitlines()) for file in files),
        "method_starts_at": None if until is None else tracer.steps[until].function,
        "whole": way(tracer.steps),
        "inputs": way(inputs) | {"edges": edges(inputs), "sequence": listing(inputs)},
    }


# Files read ----------------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """How input files were read in one call."""

    digests: dict[str, Path]
    headers: dict[str, list[Path]]
    sizes: dict[Path, int]
    counts: dict[Path, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    bytes_read: list[tuple[Path, list[int]]] = field(default_factory=list)
    parsed: Counter[str] = field(default_factory=Counter)
    active: bool = True

    @staticmethod
    def of(paths: Sequence[Path]) -> Tally:
        """Return an empty one for these files."""
        headers: dict[str, list[Path]] = defaultdict(list)
        for path in paths:
            for text in header_texts(path):
                headers[text].append(path)
        digests = {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in paths}
        return Tally(digests, headers, {path: path.stat().st_size for path in paths})

    def input_at(self, place: Any) -> Path | None:
        """Return the input file that a path names or is a copy of."""
        if not self.active or not isinstance(place, str | bytes | os.PathLike):
            return None
        path = Path(os.fsdecode(place))
        if path in self.sizes:
            return path
        try:
            if not path.is_file() or path.stat().st_size not in self.sizes.values():
                return None
        except OSError:
            return None
        with paused(self):
            return self.digests.get(ORIGINALS["sha256"](path.read_bytes()).hexdigest())

    def count(self, what: str, place: Any) -> None:
        """Count something of an input file; other files are ignored."""
        path = self.input_at(place)
        if path is not None:
            self.counts[path][what] += 1

    def summary(self) -> dict[str, float]:
        """Return the means over the input files."""
        for path, taken in self.bytes_read:
            self.counts[path]["full reads" if sum(taken) >= self.sizes[path] else "partial reads"] += 1
            self.counts[path]["bytes"] += sum(taken)
        files = len(self.sizes)
        total: Counter[str] = sum((Counter(c) for c in self.counts.values()), Counter())
        relative = sum(self.counts[path]["bytes"] / size for path, size in self.sizes.items())
        names = ("opens", "safe_open", "full reads", "partial reads", "digests")
        return {
            **{name: round(total[name] / files, 3) for name in names},
            "header parses": round(sum(self.parsed.values()) / files, 3),
            "bytes over size": round(relative / files, 3),
            "opens in all": round((total["opens"] + total["safe_open"]) / files, 3),
        }


TALLIES: list[Tally] = []
"""The one that counts now, or none."""

ORIGINALS: dict[str, Any] = {
    "open": builtins.open,
    "safe_open": safetensors.safe_open,
    "sha256": hashlib.sha256,
    "loads": json.loads,
}


@contextmanager
def paused(tally: Tally) -> Iterator[None]:
    """Count nothing for a while."""
    tally.active = False
    try:
        yield
    finally:
        tally.active = True


def header_texts(path: Path) -> list[str]:
    """Return the JSON texts in the header of a safetensors file: the header's own, and documents in its metadata."""
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        text = stream.read(length).decode()
    documents = json.loads(text).get("__metadata__", {}).values()
    return [text, *(value for value in documents if value.lstrip().startswith("{"))]


def hear_open(event: str, details: tuple[Any, ...]) -> None:
    """Count files that Python opens for reading; ``safe_open`` of safetensors raises no such event."""
    if event == "open" and TALLIES:
        place, mode, flags = details
        writes = any(sign in mode for sign in "wax+") if mode else bool((flags or 0) & (os.O_WRONLY | os.O_RDWR))
        if not writes:
            TALLIES[-1].count("opens", place)


class CountedRaw(io.FileIO):
    """An unbuffered file that adds up what is read from it."""

    taken: list[int]

    def read(self, size: int | None = -1) -> Any:
        """Read, and count."""
        block = super().read(-1 if size is None else size)
        self.taken.append(len(block or b""))
        return block

    def readinto(self, buffer: Any) -> Any:
        """Read, and count."""
        count = super().readinto(buffer)
        self.taken.append(count or 0)
        return count


class CountedBuffer(io.BufferedReader):
    """A buffered file that adds up what its reader takes, not what the buffer does."""

    taken: list[int]

    def read(self, size: int | None = -1) -> bytes:
        """Read, and count."""
        block = super().read(size)
        self.taken.append(len(block))
        return block

    def read1(self, size: int = -1) -> bytes:
        """Read, and count."""
        block = super().read1(size)
        self.taken.append(len(block))
        return block

    def readinto(self, buffer: Any) -> int:
        """Read, and count."""
        count = super().readinto(buffer)
        self.taken.append(count)
        return count


def counted_open(file: Any, mode: str = "r", buffering: int = -1, *more: Any, **named: Any) -> Any:
    """Open a file; an input that is read as bytes is counted."""
    path = TALLIES[-1].input_at(file) if TALLIES and mode in ("rb", "br") else None
    if path is None:
        return ORIGINALS["open"](file, mode, buffering, *more, **named)
    stream: Any = CountedRaw(file, "rb") if buffering == 0 else CountedBuffer(io.FileIO(file, "rb"))
    stream.taken = []
    TALLIES[-1].bytes_read.append((path, stream.taken))
    return stream


class CountedSlice:
    """A tensor of a safetensors file of which a part can be taken, and is counted."""

    def __init__(self, part: Any, add: Callable[[int], None]) -> None:
        self._part, self._add = part, add

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def __getitem__(self, key: Any) -> Any:
        values = self._part[key]
        self._add(values.nbytes)
        return values


class CountedSafeOpen:
    """A safetensors file that adds up the tensors that are taken from it."""

    def __init__(self, filename: Any, *more: Any, **named: Any) -> None:
        self._file = ORIGINALS["safe_open"](filename, *more, **named)
        self._path = TALLIES[-1].input_at(filename) if TALLIES else None
        if self._path is not None:
            TALLIES[-1].count("safe_open", self._path)

    def __enter__(self) -> CountedSafeOpen:
        self._file.__enter__()
        return self

    def __exit__(self, *details: Any) -> Any:
        return self._file.__exit__(*details)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def get_tensor(self, name: str) -> Any:
        """Return a tensor, and count it."""
        tensor = self._file.get_tensor(name)
        self._add(tensor.nbytes)
        return tensor

    def get_slice(self, name: str) -> CountedSlice:
        """Return a tensor to take parts of, and count these."""
        return CountedSlice(self._file.get_slice(name), self._add)

    def _add(self, size: int) -> None:
        if self._path is not None and TALLIES:
            TALLIES[-1].counts[self._path]["bytes"] += size


class CountedHash:
    """A SHA-256 that notes when it is that of an input file."""

    def __init__(self, data: Any = b"", **named: Any) -> None:
        self._hash = ORIGINALS["sha256"](data, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hash, name)

    def digest(self) -> bytes:
        """Return the digest, and count it."""
        note_digest(self._hash.hexdigest())
        return self._hash.digest()

    def hexdigest(self) -> str:
        """Return the digest in hexadecimal, and count it."""
        note_digest(self._hash.hexdigest())
        return self._hash.hexdigest()


def note_digest(digest: str) -> None:
    """Count a digest if it is that of an input file."""
    if TALLIES and TALLIES[-1].active and digest in TALLIES[-1].digests:
        TALLIES[-1].count("digests", TALLIES[-1].digests[digest])


def counted_loads(text: Any, *more: Any, **named: Any) -> Any:
    """Parse JSON; the headers of input files are counted."""
    if TALLIES and TALLIES[-1].active:
        plain = text.decode(errors="replace") if isinstance(text, bytes | bytearray) else text
        if plain in TALLIES[-1].headers:
            TALLIES[-1].parsed[plain] += 1
    return ORIGINALS["loads"](text, *more, **named)


@contextmanager
def counting(tally: Tally) -> Iterator[None]:
    """Put the counting functions in the place of the originals, wherever a module holds one."""
    counted = {"open": counted_open, "safe_open": CountedSafeOpen, "sha256": CountedHash, "loads": counted_loads}
    replaced = []
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] not in ("consilience", "safetensors", "hashlib", "json", "io", "builtins"):
            continue
        for key, value in list(vars(module).items()):
            for what, original in ORIGINALS.items():
                if value is original:
                    replaced.append((module, key, value))
                    setattr(module, key, counted[what])
    TALLIES.append(tally)
    try:
        yield
    finally:
        TALLIES.pop()
        for module, key, value in replaced:
            setattr(module, key, value)


def reading(scenario: Scenario) -> dict[str, float] | None:
    """Return how one call reads its input files; None where there are none."""
    paths = [item for item in scenario.inputs if isinstance(item, Path)]
    if not paths:
        return None
    tally = Tally.of(paths)
    with counting(tally):
        scenario.call()
    return tally.summary()


# Imports -------------------------------------------------------------------------------------------------------------


def started(arguments: Sequence[str]) -> dict[str, float]:
    """Return the seconds and the modules of a fresh process, and the seconds that its imports say they took."""
    environment = os.environ | {"PYTHONPATH": str(ROOT.parent)}
    command = [sys.executable, "-X", "importtime", *arguments]
    start = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)  # noqa: S603
    seconds = time.perf_counter() - start
    lines = re.findall(r"import time:\s+(\d+) \|\s+(\d+) \|\s+(\S+)", done.stderr)
    own = [name for _, _, name in lines if name.split(".")[0] == "consilience"]
    return {
        "seconds": seconds,
        "import_seconds": sum(int(alone) for alone, _, _ in lines) / 1e6,
        "modules": len(lines),
        "modules_of_consilience": len(own),
    }


def imports() -> dict[str, dict[str, float]]:
    """Return medians over fresh processes."""
    commands = {
        "import consilience": ["-c", "import consilience"],
        "consilience --help": ["-m", "consilience", "--help"],
    }
    compileall.compile_dir(ROOT, quiet=1)  # where Python writes no bytecode, a start would compile every module anew
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
    for _ in range(IMPORTS):
        for name, arguments in commands.items():
            runs[name].append(started(arguments))
    return {name: {key: median(run[key] for run in several) for key in several[0]} for name, several in runs.items()}


# The tree ------------------------------------------------------------------------------------------------------------


def tree() -> dict[str, Any]:
    """Return the size of the package and what its text is like."""
    sources = {path.relative_to(ROOT): path.read_text() for path in sorted(ROOT.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in sources.items()}
    lines = sum(len(text.splitlines()) for text in sources.values())
    rooms = Counter(path.parts[0] for path in sources if len(path.parts) > 1)
    comments = sum(comment_lines(text) for text in sources.values())
    docstrings = sum(docstring_lines(parsed) for parsed in trees.values())
    return {
        "files": len(sources),
        "lines": lines,
        "rooms": len(rooms),
        "files_by_room": dict(sorted(rooms.items())),
        "most_lines_of_a_file": max(len(text.splitlines()) for text in sources.values()),
        "class_names_defined_twice": repeated_classes(trees),
        "import_cycles": cycles(import_graph(trees)),
        "circles": cycles(import_graph(trees, anywhere=True)),
        "code_lines": sum(code_lines(text) for text in sources.values()),
        "functions_over_50_lines": sum(length_of(node) > 50 for parsed in trees.values() for node in functions(parsed)),
        "complexity_over_15": sum(complexity(node) > 15 for parsed in trees.values() for node in functions(parsed)),
        "untyped_mappings": sum(len(UNTYPED.findall(text)) for text in sources.values()),
        "chapters": chapters(sources, trees),
        "comment_lines": comments,
        "comments_per_thousand_lines": 1000 * comments / lines,
        "docstring_lines": docstrings,
        "docstrings_per_thousand_lines": 1000 * docstrings / lines,
        "constants": constants(sources, trees),
        "names": vague_names(trees),
    }


UNTYPED = re.compile(r"\b(?:Mapping|MutableMapping|dict)\[str, (?:Any|object)\]")
BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.Assert, ast.match_case)
MAX_CHAPTER_LINES = 130


def functions(parsed: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function, inner ones too."""
    yield from (node for node in ast.walk(parsed) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def length_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function without its docstring."""
    first = function.body[0]
    has_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    docstring = (first.end_lineno or 0) - first.lineno + 1 if has_docstring else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


def complexity(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return one and the number of branches; see the module."""
    count = 1
    for statement in function.body:
        for node in ast.walk(statement):
            count += isinstance(node, BRANCHES)
            count += 1 + len(node.ifs) if isinstance(node, ast.comprehension) else 0
            count += len(node.values) - 1 if isinstance(node, ast.BoolOp) else 0
    return count


def code_lines(text: str) -> int:
    """Return the lines that are neither blank nor a comment alone."""
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in text.splitlines())


def chapters(sources: dict[Path, str], trees: dict[Path, ast.Module]) -> int:
    """Return how many short files one neighbour alone imports; see the module."""
    graph = import_graph(trees, anywhere=True, for_types=True)
    files = {module_name(path): path for path in trees}
    importers: dict[str, set[str]] = defaultdict(set)
    for module, targets in graph.items():
        for target in targets:
            importers[target].add(module)
    return sum(
        len(sources[path].splitlines()) < MAX_CHAPTER_LINES
        and len(importers[module]) == 1
        and files[next(iter(importers[module]))].parent == path.parent
        for module, path in files.items()
        if path.name not in ("__init__.py", "__main__.py")
    )


def comment_lines(text: str) -> int:
    """Return the lines that have a comment, beside code or alone."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return len({token.start[0] for token in tokens if token.type == tokenize.COMMENT})


def docstring_lines(parsed: ast.Module) -> int:
    """Return the lines of docstrings, those below constants included."""
    texts = [
        node
        for node in ast.walk(parsed)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in texts)


def repeated_classes(trees: dict[Path, ast.Module]) -> dict[str, list[str]]:
    """Return the names of classes that several modules define."""
    places: dict[str, list[str]] = defaultdict(list)
    for path, parsed in trees.items():
        for node in ast.walk(parsed):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path))
    return {name: files for name, files in sorted(places.items()) if len(files) > 1}


def module_name(path: Path) -> str:
    """Return what a file is imported as."""
    parts = ("consilience", *path.with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def module_imports(
    parsed: ast.Module, *, anywhere: bool = False, for_types: bool = False
) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports that run when a module is imported; or those anywhere, with those for types or without."""
    if anywhere:
        blocks = [node for node in ast.walk(parsed) if isinstance(node, ast.If)]
        types = {
            id(node)
            for block in blocks
            if "TYPE_CHECKING" in ast.unparse(block.test)
            for statement in block.body
            for node in ast.walk(statement)
        }
        for node in ast.walk(parsed):
            if isinstance(node, ast.Import | ast.ImportFrom) and (for_types or id(node) not in types):
                yield node
        return
    waiting: list[ast.AST] = list(parsed.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.ClassDef | ast.ExceptHandler):
            waiting += ast.iter_child_nodes(node)


def import_graph(
    trees: dict[Path, ast.Module], *, anywhere: bool = False, for_types: bool = False
) -> dict[str, set[str]]:
    """Return which module imports which, without the packages around a module, which are imported on the way.

    A name taken from a package that is a module counts as that module.
    """
    names = {module_name(path) for path in trees}
    graph: dict[str, set[str]] = {name: set() for name in names}
    for path, parsed in trees.items():
        targets: set[str] = set()
        own = module_name(path)
        for node in module_imports(parsed, anywhere=anywhere, for_types=for_types):
            if isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names}
                continue
            package = own.split(".") if path.name == "__init__.py" else own.split(".")[:-1]
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{origin}.{alias.name}"
                targets.add(inner if inner in names else origin)
        graph[own] = targets & names - {own}
    return graph


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected sets of more than one module (Tarjan)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

    sys.setrecursionlimit(10_000)  # as many modules may follow each other

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for target in graph[node]:
            if target not in number:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], number[target])
        if low[node] == number[node]:
            place = stack.index(node)
            components.append(sorted(stack[place:]))
            del stack[place:]

    for node in sorted(graph):
        if node not in number:
            visit(node)
    return sorted(component for component in components if len(component) > 1)


def constants(sources: dict[Path, str], trees: dict[Path, ast.Module]) -> dict[str, int]:
    """Return how many numbers have a name at the level of a module, and how many of these say what they are."""
    counts = Counter({"numeric": 0, "explained": 0})
    for path, parsed in trees.items():
        text = ["", *sources[path].splitlines()]
        for place, node in enumerate(parsed.body):
            if is_numeric_constant(node):
                following = parsed.body[place + 1] if place + 1 < len(parsed.body) else None
                counts["numeric"] += 1
                counts["explained"] += is_explained(node, following, text)
    return dict(counts)


def is_numeric_constant(node: ast.stmt) -> bool:
    """Return whether a statement binds an upper-case name to an expression of numbers alone."""
    if isinstance(node, ast.Assign):
        targets, value = node.targets, node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        targets, value = [node.target], node.value
    else:
        return False
    names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    if not names or not all(re.fullmatch(r"_*[A-Z][A-Z0-9_]*", name) for name in names):
        return False
    leaves = [leaf for leaf in ast.walk(value) if isinstance(leaf, ast.Constant | ast.Name | ast.Call | ast.Attribute)]
    return bool(leaves) and all(
        isinstance(leaf, ast.Constant) and isinstance(leaf.value, int | float) and not isinstance(leaf.value, bool)
        for leaf in leaves
    )


def is_explained(node: ast.stmt, following: ast.stmt | None, text: Sequence[str]) -> bool:
    """Return whether a string stands below a constant, or a comment beside or above it."""
    below = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
    beside = any("#" in text[line] for line in range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return below or beside or text[node.lineno - 1].lstrip().startswith("#")


def vague_names(trees: dict[Path, ast.Module]) -> dict[str, Any]:
    """Return how many of all bindings, of variables and arguments, have a name that says nothing."""
    names: Counter[str] = Counter()
    for parsed in trees.values():
        for node in ast.walk(parsed):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names[node.id] += 1
            elif isinstance(node, ast.arg):
                names[node.arg] += 1
    vague = {name: count for name, count in names.most_common() if name in VAGUE}
    total = names.total()
    return {"bindings": total, "vague": sum(vague.values()), "share": sum(vague.values()) / total, "by_name": vague}


# The table -----------------------------------------------------------------------------------------------------------


def measured() -> dict[str, Any]:
    """Return everything for the tree that is imported."""
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for scenario in scenarios(Path(place)):
            rows[scenario.name] = walked(scenario) | {"reading": reading(scenario)}
    runs = Counter(file for row in rows.values() for file in row["files"])
    fusions = [set(row["files"]) for name, row in rows.items() if not name.startswith(("check", "evaluate"))]
    for row in rows.values():
        del row["files"]
    return {
        "calls": rows,
        "files_shared_by_all_fusions": sorted(set.intersection(*fusions)),
        "files_run_by_any": len(runs),
        "imports": imports(),
        "tree": tree(),
        "settings": {
            "sites": SITES, "mixtures": MIXTURES, "shard_sites": SHARD_SITES, "pilot_sites": PILOT_SITES,
            "processes": IMPORTS,
            "method_starts": list(METHOD_STARTS), "vague_names": sorted(VAGUE),
        },
        "versions": versions(),
    }  # fmt: skip


def versions() -> dict[str, str]:
    """Return what the numbers depend on; the digest says which state of the library ran."""
    source = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(ROOT.rglob("*.py"))))
    libraries = ("consilience", "numpy", "safetensors", "scikit-learn", "scipy", "torch")
    return {
        **{name: version(name) for name in libraries},
        "library_source": source.hexdigest()[:12],
        "machine": platform.machine(),
        "python": platform.python_version(),
    }


COLUMNS = "files lines entries returns climbs carrying whole opens headers parses full sha"


def table(label: str, entry: dict[str, Any]) -> str:
    """Return an entry for people to read."""
    columns = COLUMNS.split()
    lines = [f"{label}: way of the inputs (entries, returns, climbs; entries that carry), entries of the whole call,"]
    lines += ["and per input file: opens in all, by safe_open, header parses, full reads, digests", ""]
    lines.append(f"{'':30s}" + "".join(f"{column:>9s}" for column in columns))
    for name, row in entry["calls"].items():
        inputs, read = row["inputs"], row["reading"] or {}
        values = [row["files_run"], row["lines_run"], inputs["entries"], inputs["returns"], inputs["climbs"]]
        values += [inputs["carrying"]["entries"], row["whole"]["entries"]]
        keys = ("opens in all", "safe_open", "header parses", "full reads", "digests")
        values += [f"{read[key]:g}" if read else "" for key in keys]
        lines.append(f"{name:30s}" + "".join(f"{value:>9}" for value in values))
    lines += ["", f"files shared by all fusions: {len(entry['files_shared_by_all_fusions'])}"]
    unseen = [name for name, row in entry["calls"].items() if row["method_starts_at"] is None]
    lines.append(f"no method's own work was seen to start, so that inputs are the whole: {', '.join(unseen)}")
    for name, run in entry["imports"].items():
        lines.append(f"{name}: {run['import_seconds']:.2f} s of imports, {run['modules']:g} modules")
    return "\n".join([*lines, *tree_lines(entry["tree"])])


def tree_lines(size: dict[str, Any]) -> list[str]:
    """Return what the tree is like, for people to read."""
    numbers, names = size["constants"], size["names"]
    return [
        f"tree: {size['files']} files, {size['lines']} lines, {size['rooms']} rooms {size['files_by_room']}",
        f"{size['code_lines']} lines of code; functions over 50 lines: {size['functions_over_50_lines']}",
        f"complexity over 15: {size['complexity_over_15']}; untyped mappings: {size['untyped_mappings']}",
        f"chapters: {size['chapters']}; classes of the same name: {len(size['class_names_defined_twice'])}",
        f"cycles: {len(size['import_cycles'])}, with imports inside functions {len(size['circles'])}",
        f"per thousand lines: {size['comments_per_thousand_lines']:.1f} with comments, "
        f"{size['docstrings_per_thousand_lines']:.1f} of docstrings",
        f"numeric constants: {numbers['numeric']}, explained: {numbers['explained']}",
        f"vague names: {names['vague']} of {names['bindings']} bindings ({100 * names['share']:.1f} %)",
    ]


def main() -> None:
    """Measure, print, and write the entry."""
    parser = argparse.ArgumentParser(description="Measure the house.")
    parser.add_argument("--label", "--tree", default="after", help="what to call this tree")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where to write")
    arguments = parser.parse_args()
    sys.addaudithook(hear_open)
    entry = measured()
    results = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    results[arguments.label] = entry
    arguments.json.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    sys.stdout.write(table(arguments.label, entry) + "\n")


if __name__ == "__main__":
    main()
