"""What the command refuses: exit codes and what stands on stderr."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

import consilience as cs
from tests.cli.bad_files import LISTED, content, site
from tests.cli.running import command
from tests.cli.some_nets import MODULE, SITES, TRACED, write_nets
from tests.refusals.tables.checkpoints import sites, two
from tests.refusals.tables.nets import bayesian_files
from tests.refusals.tables.things import each, mixture_file, written

OUTPUT = ("-o", "fused.safetensors")
TWO = ("a.safetensors", "b.safetensors")


@cache
def of_site(seed, size=3):
    """Return the bytes of the file of a site."""
    return content(site(seed, components=size))


def two_sites():
    """Write the files of two sites, their copy, one of another size, a folder and a pipe."""
    for seed, name in enumerate(TWO):
        Path(name).write_bytes(of_site(seed))
    Path("copy.safetensors").write_bytes(Path("a.safetensors").read_bytes())
    Path("large.safetensors").write_bytes(of_site(5, 4))
    Path("folder").mkdir()
    os.mkfifo("pipe")


def of_posteriors(words):
    """Run the command beside the files of two sites."""
    two_sites()
    return command(*words)


def by_words(before, words, after=()):
    """Return a table of commands from what stands between two ends."""
    return {f"{line[:60]!r}": (*before, *line.split(), *after) for line in words}


FUSED = ("fuse", *TWO, *OUTPUT)
USAGE = each("command, ", {
    **{f"{line!r}": line.split() for line in (
        "", "melt", "fuse", "fuse -o c", "fuse a.safetensors b.safetensors", "fuse a.safetensors -o c --fast",
        "fuse a.safetensors -o c --seed one", "fuse a.safetensors -o c --seed -1", "check", "inspect", "demo --seeds 0",
        "fuse a.safetensors b.safetensors -o c --engine cloud", "fuse a.safetensors b.safetensors -o c --reference -1",
        "evaluate", "evaluate a.safetensors", "evaluate a.safetensors b.safetensors", "report", "report a.safetensors",
        "evaluate a.safetensors b.safetensors c.safetensors --data d.csv", "network symmetry",
        "network symmetry --module somenets:make_mlp", "explain E-LOST",
        "methods --kind models", "methods slerp --kind draws", "network barrier", "network barrier a.safetensors",
        "merge", "merge a", "merge a b -o out --threads none", "pack", "pack sites", "network", "network melt", "site",
        "describe", "symmetry",
        "network fisher", "round", "round open", "round send", "round opne", "send", "merge a b -o out --seed -1",
    )},
    **by_words(FUSED, (
        "--method mean", "--method consensus", "--set speed=9", "--set regularization", "--set =1",
        "--set n_components=[[",
        "--set n_components=2020-13-45", "--set n_components=few",
        "--set n_components=0",
        "--set restarts=yes", "--set regularization=-1", "--set regularization=.nan", "--set min_count=.inf",
        "--set direction=[up]", "--set combine={}", "--set models=c", "--set weights=1", "--set robust=mean",
        "--set trim=0.6", "--set minority=some", "--weights 1", "--weights 1,2,3", "--weights 1,-1", "--weights 1,nan",
        "--weights 0,0", "--weights 1;2", "--weights 1,", "--engine dask", "--engine local --scheduler tcp://x:1",
        "--module a:b --example 1,6", "--target-width 0=9", "--symmetry net.json", "--reference 0", "--inputs data.npz",
        "--set n_components=2", "--set max_components=2", "--set combine=product", "--recipe nowhere.yaml",
        "--report nowhere/page.html", "--report fused.safetensors", "--method kl --set robust=trim",
    )),
    **{f"'fuse to {name[:20]}'": ("fuse", *TWO, "-o", name) for name in (
        "nowhere/fused.safetensors", "folder", "", "b.safetensors/fused.safetensors", "pipe", "b.safetensors",
        "folder/../a.safetensors", "n" * 300)},
    **{f"'{name} {' '.join(words)[:60]}'": (name, *words, *(OUTPUT if name == "fuse" else ())) for words in (
        ["a.safetensors"], ["a.safetensors", "a.safetensors", "b.safetensors"], ["a.safetensors", "copy.safetensors"],
        ["a.safetensors", "large.safetensors", "--method", "average"], ["a.safetensors", "folder"],
        ["a.safetensors", "missing.safetensors"], ["a.safetensors", "b.safetensors", "n" * 300],
        ["a.safetensors", "*.nothing"], ["a.safetensors", "b.safetensors", "--weights", "1"],
    ) for name in ("fuse", "check")},
    **by_words(("report",), (
        "missing.safetensors -o page.html", "a.safetensors -o page.html", "a.safetensors -o nowhere/page.html",
        "a.safetensors -o a.safetensors", "a.safetensors --barrier b.safetensors -o page.html", "folder -o page.html",
        "a.safetensors a.safetensors a.safetensors -o page.html",
    )),
    **by_words((), (
        "inspect missing.safetensors", "inspect folder", "pack missing -o out", "pack folder -o out",
        "pack folder -o out --shard-size big", "pack folder -o out --dtype float16", "demo a.safetensors/demo --quiet",
        "evaluate a.safetensors missing.safetensors --data x.csv",
        "evaluate a.safetensors b.safetensors --data missing.csv",
        "merge missing folder -o out", "merge a b -o out --method median",
        "network fisher missing.safetensors --module a:b --data x.npz -o c",
    )),
}, of_posteriors)  # fmt: skip

BAD = {
    **each("command, fuse a file that is ", {name: bad for name, (bad, _) in LISTED.items()}, lambda bad: (
        two_sites(), written("bad.safetensors", bad), command("fuse", "a.safetensors", "bad.safetensors",
        *OUTPUT))[-1]),
    **each("command, inspect a file that is ", {name: bad for name, (bad,
    _) in LISTED.items() if not name.startswith("other-")
           and name not in ("nan", "infinite", "not-positive-definite", "without-metadata", "empty-model")},
           lambda bad: (written("bad.safetensors", bad), command("inspect", "bad.safetensors"))[-1]),
}  # fmt: skip

RECIPES = {
    "a list": "[]", "models a number": "models: 5", "a model a number": "models: [1]", "unknown key": "colour: blue",
    "key a number": "1: 2", "seed a truth": "seed: true", "seed negative": "seed: -1",
    "weights words": "weights: [much, little]",
    "options a list": "options: [fast]", "not YAML": "models: [a\nmethod: kl", "not text": b"\xff\xfe\x00",
    "no such day": "seed: 2020-13-45", "deep": "models: " + "[" * 700,
    "malice": "method: !!python/object/apply:os.system [echo]",
    "missing file": "models: [a.safetensors, nobody]\noutput: c",
    "zero byte": 'models: [a.safetensors, "b\\0"]\noutput: c',
    "nobody matches": "models: ['*.nothing', a.safetensors]\noutput: c",
    "empty name": "models: ['', a.safetensors]\noutput: c",
    "no folder": "models: [a.safetensors, b.safetensors]\noutput: nowhere/c", "empty": "",
    "no output": "models: [a.safetensors, b.safetensors]",
    "option unknown": "models: [a.safetensors, b.safetensors]\noutput: c\noptions: {speed: 9}",
    "option reserved": "models: [a.safetensors, b.safetensors]\noutput: c\noptions: {models: [c]}",
    "weights too few": "models: [a.safetensors, b.safetensors]\noutput: c\nweights: [1]",
    "method unknown": "models: [a.safetensors, b.safetensors]\noutput: c\nmethod: mean",
    "a module": "models: [a.safetensors, b.safetensors]\noutput: c\nmodule: somenets:make_mlp",
}  # fmt: skip
ASKED = each("command, fuse a recipe: ", RECIPES, lambda text: (
    two_sites(), written("recipe.yaml", text), command("fuse", "--recipe", "recipe.yaml"))[-1])  # fmt: skip

# -- Networks.


@contextmanager
def users_code():
    """Put the current folder on the path, with a user's own modules and the checkpoints of two sites in it."""
    folder, before = str(Path.cwd()), sys.dont_write_bytecode
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True
    try:
        yield write_nets(Path(folder))
    finally:
        sys.path.remove(folder)
        sys.dont_write_bytecode = before
        for name in ("somenets", "crash", "typo"):
            sys.modules.pop(name, None)


def of_networks(words):
    """Run the command beside the checkpoints of two sites, and data that fit or do not."""
    with users_code() as nets:
        two_sites()
        written("crash.py", "1 / 0")
        written("typo.py", "def make(:")
        written("bad.json", '{"format": "consilience-symmetry"}')
        save_file(nets.wide().state_dict(), "wide.safetensors")
        save_file(nets.normalised().state_dict(), "other.safetensors")
        for name, values in ARRAYS.items():
            np.save(f"{name}.npy", values, allow_pickle=True)
        np.savez("many.npz", p=np.ones((4, 6)), q=np.ones(4))
        np.savez("wrong.npz", x=np.ones((4, 5)), y=np.zeros(4))
        torch.save(nets.make_mlp().state_dict(), "p.pt")
        return command(*words)


ARRAYS = {
    "wrong": np.ones((4, 5)), "nan": np.full((4, 6), np.nan), "words": np.array(["one", "two"]),
    "scalar": np.float64(3),
    "inputs": np.ones((8, 6)), "few": np.array([0, 1, 2]), "half": np.full(8, 0.5), "large": np.full(8, 3),
    "objects": np.array([{}], dtype=object),
}  # fmt: skip
HINTED = ("fuse", *SITES, *TRACED, *OUTPUT)
NETWORKS = each("command on networks, ", {
    **by_words(HINTED, (
        "--target-width 0=0", "--target-width fc1=9", "--target-width 9", "--target-width 0=many",
        "--target-width 0=9 --target somenets:wide", "--target somenets:number", "--reference 2",
        "--inputs nowhere.npy",
        "--inputs one.safetensors", "--inputs wrong.npy", "--inputs nan.npy", "--inputs words.npy",
        "--inputs scalar.npy",
        "--inputs many.npz", "--method kl", "--method ensemble", "--set speed=9", "--set module=x", "--weights 1",
        "--symmetry nowhere.json", "--symmetry one.safetensors", "--symmetry somenets.py", "--symmetry bad.json",
        "--method ot --set cost=activations", "--target-width 0=9 --method rebasin", "--target somenets:normalised",
        "--engine local --scheduler tcp://x:1", "--engine dask --scheduler tcp://x:1", "--method fisher",
    )),
    **{f"--module {name}": ("fuse", *SITES, "--module", name, "--example", "1,6", *OUTPUT) for name in (
        "nowhere.nets:make", "crash:make", "typo:make", "somenets:nothing", "somenets", "somenets:number",
        "somenets:broken",
        "somenets:nn.Linear", "json:JSONDecoder")},
    **{f"--example {spec}": ("network", "symmetry", *MODULE, "--example", spec, "-o", "net.json") for spec in (
        "1,5", "int64:1,6", "1,six", "0,6", "99999999,99999999", "real:1,6", "nowhere.npy", "objects.npy")},
    **by_words(("evaluate", *SITES, *MODULE, "--data"), (
        "inputs.npy", "inputs.npy --labels few.npy", "inputs.npy --labels half.npy", "inputs.npy --labels words.npy",
        "inputs.npy --labels large.npy", "inputs.npy --labels nowhere", "wrong.npz", "nowhere.npz", "somenets.py")),
    **by_words(("network", "barrier", *SITES, *MODULE, "--data"), (
        "inputs.npy", "inputs.npy --labels few.npy", "wrong.npz", "nowhere.npz", "data.npz -o data.npz",
        "data.npz --points 1")),
    **{line: line.split() for line in (
        "fuse one.safetensors two.safetensors -o c", "check one.safetensors two.safetensors",
        "fuse one.safetensors two.safetensors -o c --reference 0",
        "fuse one.safetensors a.safetensors -o c --module somenets:make_mlp --example 1,6",
        "fuse one.safetensors other.safetensors -o c --module somenets:make_mlp --example 1,6",
        "check one.safetensors other.safetensors --module somenets:make_mlp --example 1,6",
        "fuse one.safetensors one.safetensors -o c --module somenets:make_mlp --example 1,6",
        "fuse one.safetensors -o c --module somenets:make_mlp --example 1,6",
        "fuse one.safetensors p.pt -o c --module somenets:make_mlp --example 1,6", "fuse p.pt p.pt -o c",
        "fuse one.safetensors two.safetensors -o one.safetensors --module somenets:make_mlp --example 1,6",
        "fuse one.safetensors two.safetensors -o c --example 1,6",
        "fuse one.safetensors two.safetensors -o c --inputs data.npz",
        "evaluate one.safetensors two.safetensors --data data.npz",
        "evaluate one.safetensors a.safetensors --module somenets:make_mlp --data data.npz",
        "evaluate a.safetensors b.safetensors --module somenets:make_mlp --data data.npz",
        "evaluate one.safetensors other.safetensors --module somenets:make_mlp --data data.npz",
        "network barrier one.safetensors wide.safetensors --module somenets:make_mlp --data data.npz",
        "network barrier one.safetensors two.safetensors --data data.npz", "inspect bad.json", "inspect p.pt",
        "network symmetry --module somenets:Undecided --example 1,6 -o net.json",
        "network symmetry --module somenets:make_mlp --example 1,6 -o no/net.json",
        "network fisher one.safetensors --module somenets:make_mlp --data nowhere.npz -o c",
        "network fisher one.safetensors --module somenets:make_mlp --data data.npz -o one.safetensors",
        "network fisher one.safetensors --module somenets:make_mlp --data wrong.npz -o c",
        "network fisher a.safetensors --module somenets:make_mlp --data data.npz -o c",
        "report one.safetensors -o page.html", "report one.safetensors --data data.npz -o page.html",
        "report a.safetensors --barrier one.safetensors -o page.html",
    )},
}, of_networks)  # fmt: skip


def of_checkpoints(words):
    """Run the command beside two checkpoints in folders."""
    two()
    written("recipe.yaml", "models: [a, b]\ncolour: blue")
    written("patterns.yaml", "models: [a, b]\noutput: out\ntensors: [{pattern: '*', method: median}]")
    return command(*words)


def of_shards(words):
    """Run the command beside a folder of sites."""
    sites()
    return command(*words)


def of_bayesian(words):
    """Run the command beside Bayesian networks."""
    bayesian_files()
    two_sites()
    return command(*words)


OTHERS = {
    **each("command on checkpoints, ", by_words(("merge", "a", "b", "-o", "out"), (
        "--method median", "--method ties", "--set density", "--set density=1", "--set models=c", "--weights 1",
        "--weights a,b",
        "--base a", "--dtype int8", "--shard-size big", "--symmetry nowhere.json", "--fisher a",
        "--recipe nowhere.yaml", "--recipe recipe.yaml", "--recipe patterns.yaml", "--method slerp --weights 1,2",
        "--module nowhere:make --example 1,6", "c",
    )) | by_words(("merge",), ("a b -o a", "a b -o no/out", "a -o", "a b -o recipe.yaml")), of_checkpoints),
    **each("command on shards, ", by_words((), (
        "fuse sites -o sites/f.safetensors", "fuse sites -o c --engine dask", "fuse sites -o c --module a:b",
        "fuse sites -o c --set pilot_sites=0", "fuse sites -o c --weights 1 --set pilot_sites=2",
        "check sites --weights 1",
        "fuse sites -o c --method concatenate --set pilot_sites=2", "pack sites -o sites",
        "pack sites -o no/packed --dtype x",
        "pack sites -o out --form csv", "fuse sites -o c --reference 0",
    )), of_shards),
    **each("command on Bayesian networks, ", by_words((), (
        "fuse one.safetensors a.safetensors -o c", "fuse one.safetensors two.safetensors -o c --method spahm",
        "fuse one.safetensors two.safetensors -o c --inputs data.npz", "fuse one.safetensors one.safetensors -o c",
        "fuse one.safetensors -o c", "fuse one.safetensors two.safetensors -o c --method ensemble",
        "evaluate one.safetensors two.safetensors --data data.npz",
        "fuse one.safetensors two.safetensors -o c --set speed=9",
        "fuse one.safetensors missing.safetensors -o c", "report one.safetensors -o page.html",
        "fuse one.safetensors two.safetensors -o c --weights 1",
    )), of_bayesian),
    "command, evaluate models on data of another width": lambda at: (
        mixture_file(0), mixture_file(1, "b.safetensors"), written("data.csv", "1,2,3\n"),
        command("evaluate", *TWO, "--data", "data.csv"))[-1],
    "command, report a fused file whose sites are others": lambda at: (
        two_sites(), cs.fuse(list(TWO)).save("f.safetensors"),
        command("report", "f.safetensors", "large.safetensors", "-o", "page.html"))[-1],
    "command, report a site twice": lambda at: (
        two_sites(), cs.fuse(list(TWO)).save("f.safetensors"),
        command("report", "f.safetensors", "a.safetensors", "a.safetensors", "-o", "page.html"))[-1],
    "command, report over a site": lambda at: (
        two_sites(), cs.fuse(list(TWO)).save("f.safetensors"),
        command("report", "f.safetensors", *TWO, "-o", "a.safetensors"))[-1],
    "command, report posteriors in memory with sites": lambda at: (
        two_sites(), cs.fuse([site(0), site(1)]).save("f.safetensors"),
        command("report", "f.safetensors", "a.safetensors", "-o", "page.html"))[-1],
    "command, report truth without data": lambda at: (
        two_sites(), cs.fuse(list(TWO)).save("f.safetensors"),
        command("report", "f.safetensors", *TWO, "--truth", "x.npy", "-o", "page.html"))[-1],
}  # fmt: skip

CASES = USAGE | BAD | ASKED | NETWORKS | OTHERS
