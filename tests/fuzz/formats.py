"""Every format of files that is read, as what a stranger or a tired user may hand in: an honest file, and its readers.

Models are checked and fused beside an honest site's; what has several files lies in a folder, of which one is changed.
"""

import functools
import json
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from scipy import sparse
from sklearn.linear_model import LogisticRegression

import consilience as cs
from consilience.api.kinds import inspect_file
from consilience.checkpoints.recipe import read_merge_recipe
from consilience.core.recipe import read_recipe
from consilience.draws.cmdstan import read_cmdstan
from consilience.files.csv import read_csv
from consilience.files.labelled_arrays import read_labelled_arrays
from consilience.files.npy import read_array
from consilience.files.tables import read_named_table
from consilience.posteriors.sharded.shards import load_shard
from tests.checkpoints.some_adapters import factors, write_adapter
from tests.fuzz import mutants, reading

MERGEKIT = """models: [{model: a, parameters: {weight: 0.5}}, {model: b, parameters: {weight: 0.5}}]
merge_method: linear
dtype: bfloat16
"""
RECIPE = """models: [lund.safetensors, "*.safetensors"]
method: kl
options: {regularization: 1e-2, direction: forward}
seed: 3
output: fused.safetensors
"""
MERGE = """models: [a, b]
method: ties
options: {density: 0.2}
base: base
weights: [0.5, 0.5]
tensors: [{pattern: "lm_head.*", method: copy, from: 0}]
output: out
"""
CHAIN = """# method = sample (Default)
# num_warmup = 2
# save_warmup = 1
lp__,accept_stat__,divergent__,mu.1,mu.2,tau
""" + "".join(f"-{n}.5,0.9,0,{n / 7},{n / 9},1.{n}\n" for n in range(1, 12))
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [{"id": 4, "content": "<s>", "special": True}],
    "normalizer": None,
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "c": 3}, "merges": ["a b"]},
}
CONFIG = {"model_type": "llama", "hidden_size": 4, "vocab_size": 5, "rope_theta": 1e4, "eos_token_id": 4}


@dataclass(frozen=True)
class Format:
    """A format: its honest folder, the file in it that is changed, how, and what reads it."""

    write: Callable[[Path], None]  # writes the honest files into a folder
    file: str  # the one that is changed
    form: str  # what it is: "safetensors", "json", "text" or "bytes"
    readers: tuple[Callable[[Path], object], ...]  # each takes the folder; their memory counts
    users: tuple[Callable[[Path], object], ...] = ()  # what calculates with it too, whose memory does not


def _checkpoint(folder):
    """Write a checkpoint with its tokenizer in two files and an index."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    tensors = {
        "model.embed_tokens.weight": rng.normal(size=(5, 4)).astype(np.float32),
        "lm_head.weight": rng.normal(size=(5, 4)).astype(np.float32),
        "model.layers.0.mlp.weight": rng.normal(size=(4, 4)).astype(np.float32),
    }
    shards = {"model-00001-of-00002.safetensors": list(tensors)[:2], "model-00002-of-00002.safetensors": [*tensors][2:]}
    for name, its in shards.items():
        save_file({one: tensors[one] for one in its}, folder / name, {"format": "pt"})
    index = {"metadata": {}, "weight_map": {one: name for name, its in shards.items() for one in its}}
    for name, document in {
        "model.safetensors.index.json": index, "config.json": CONFIG, "tokenizer.json": TOKENIZER,
        "tokenizer_config.json": {"chat_template": "{{ messages }}", "added_tokens_decoder": {"4": {"content": "<s>"}}},
        "generation_config.json": {"eos_token_id": 4},
    }.items():  # fmt: skip
        (folder / name).write_text(json.dumps(document))


def _checkpoints(folder):
    for name in ("a", "b"):
        _checkpoint(folder / name)


def _merged(**options):
    def read(folder):
        cs.merge([folder / "a", folder / "b"], folder / "out", dry_run=True, **options)

    return read


def _adapters(folder):
    write_adapter(folder / "a", factors(0))
    ranks = {"model.layers.0.q_proj": 2}
    write_adapter(folder / "b", factors(1, ranks), rank_pattern={"layers.0.q_proj": 2})


def _stack(folder):
    cs.merge([folder / "a", folder / "b"], folder / "out", dry_run=True)
    cs.check([folder / "a", folder / "b"])


def _sites(name):
    """Return what writes two sites' files of a seed: the one that will be changed, and an honest one beside it."""

    def write(folder):
        for site in ("changed", "honest"):
            (folder / f"{site}.safetensors").write_bytes(mutants.seeds()[name])

    return write


def _check(folder):
    cs.check([folder / "honest.safetensors", folder / "changed.safetensors"])


def _fuse(folder):
    cs.fuse([folder / "honest.safetensors", folder / "changed.safetensors"])


def _model(name):
    changed = "changed.safetensors"
    load = (lambda folder: cs.load(folder / changed), lambda folder: inspect_file(folder / changed))
    return Format(_sites(name), changed, "safetensors", load, (_check, _fuse))


def _logits(folder):
    for seed, name in enumerate(("honest", "changed")):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(40, 3))
        y = np.where(X[:, 0] + rng.normal(size=40) > 0, "ill", "well")
        cs.save(LogisticRegression().fit(X, y), folder / f"{name}.safetensors", data=(X, y))


def _shards(form):
    def write(folder):
        rng = np.random.default_rng(0)
        (folder / "sites").mkdir()
        family = cs.families.Gamma()
        for site in range(6):
            eta = family.to_natural(shape=rng.uniform(1, 9, 2), rate=[1.0, 2.0])
            cs.save(cs.Posterior(family, eta, counts=[9.0, 8.0]), folder / "sites" / f"{site}.safetensors")
        cs.pack(folder / "sites", folder / "packed", form=form)

    def read(folder):
        shards = cs.shards(folder / "packed")
        for source in shards.sources:
            load_shard(source)

    name = f"packed/shard-00000.{form}"
    return Format(write, name, "safetensors" if form == "safetensors" else "bytes", (
        read, lambda folder: inspect_file(folder / name),
    ), (lambda folder: cs.check(cs.shards(folder / "packed")),))  # fmt: skip


def _file(name, content, form, *readers):
    """Return a format of a single file; `content` is its text, or a function that writes it."""

    def write(folder):
        content(folder / name) if callable(content) else (folder / name).write_text(content)

    return Format(write, name, form, tuple(lambda folder, read=read: read(folder / name) for read in readers))


def _recipe(name, text, reader):
    """Return a format of recipes, with the models that they name."""

    def write(folder):
        (folder / name).write_text(text)
        for place in ("a/model.safetensors", "b/model.safetensors", "lund.safetensors"):
            (folder / place).parent.mkdir(exist_ok=True)
            (folder / place).write_bytes(mutants.seeds()["checkpoint"])

    return Format(write, name, "text", (lambda folder: reader(folder / name),))


def _table(path):
    table = read_csv(path)
    table.column("c")
    table.numbers(range(len(table.rows[0])))


def _columns(path):
    table = read_named_table(path)
    for number in range(0 if table is None else len(table.header)):
        table.take(number)


def _parquet(path):
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"a": np.arange(30.0), "b": ["x", "yy", "z"] * 10, "c": np.arange(30)}), path)


_CELLS = "a,b,c\n" + "".join(f"{n},{n / 7},{n * 1e3}\n" for n in range(20))

_MODELS = (
    "wishart", "topics", "joint", "point", "known", "fused", "network", "bayesian", "statistics", "sums", "draws",
)  # fmt: skip
_OTHERS = ("checkpoint", "fisher", "fused draws", "description", "adapter")

FORMATS = {
    **{name: _model(name) for name in _MODELS},
    **{
        name: _file("file.safetensors", lambda path, name=name: path.write_bytes(mutants.seeds()[name]), "safetensors",
                    cs.load, inspect_file)
        for name in _OTHERS
    },
    "logit": Format(_logits, "changed.safetensors", "safetensors", (
        lambda folder: cs.load(folder / "changed.safetensors"),
    ), (_check, _fuse)),
    "symmetry": _file("symmetry.json", lambda path: path.write_bytes(mutants.seeds()["symmetry.json"]), "json",
                      inspect_file),
    "csv": _file("rows.csv", _CELLS, "text", _table, _columns),
    "tsv": _file("rows.tsv", _CELLS.replace(",", "\t"), "text", _table, _columns),
    "npy": _file("rows.npy", lambda path: np.save(path, np.arange(60.0).reshape(20, 3)), "bytes", read_array),
    "npz": _file("rows.npz", lambda path: np.savez(path, x=np.arange(60.0), y=np.arange(20)), "bytes",
                 read_labelled_arrays),
    "sparse npz": _file("rows.npz", lambda path: sparse.save_npz(path, sparse.eye_array(20, format="csr")), "bytes",
                        read_array),
    "parquet": _file("rows.parquet", _parquet, "bytes", _columns),
    "shard": _shards("safetensors"),
    "parquet shard": _shards("parquet"),
    "cmdstan": _file("chain.csv", CHAIN, "text", lambda path: read_cmdstan([path])),
    "recipe": _recipe("recipe.yml", RECIPE, read_recipe),
    "merge recipe": _recipe("merge.yml", MERGE, read_merge_recipe),
    "mergekit recipe": _recipe("mergekit.yml", MERGEKIT, read_merge_recipe),
    "tokenizer": Format(_checkpoints, "b/tokenizer.json", "json", (), (_merged(), _merged(vocabulary="union"))),
    "config": Format(_checkpoints, "b/config.json", "json", (), (_merged(), _merged(vocabulary="union"))),
    "index": Format(_checkpoints, "b/model.safetensors.index.json", "json", (), (_merged(),)),
    "adapter config": Format(_adapters, "b/adapter_config.json", "json", (), (_stack,)),
    "peft adapter": Format(_adapters, "b/adapter_model.safetensors", "safetensors", (), (_stack,)),
}  # fmt: skip
"""The formats by name."""


@functools.cache
def honest(name):
    """Return the honest files of a format: bytes by path within its folder."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        FORMATS[name].write(Path(folder))
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def write_honest(name, folder):
    """Write the honest files of a format into a folder."""
    for place, content in honest(name).items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_bytes(content)


ODD_TEXTS = (
    ",", ",,,", "\t", '"', "'", "\n", "\r", "\x00", "nan", "1e999", "-", "- ", ": ", "{", "[", "]", "}", "&a ", "*a",
    "<<: ", "!!binary ", "!!python/object:os.system ", "../", "/etc/", "**/", "#", "\ufeff", "|\n", ">", "%YAML 9.9\n",
    "? ", "~", "0x" + "f" * 30, "1:60:60", "2001-01-01", "1_000", "é" * 40, "9" * 400, "lp__,",
)  # fmt: skip
"""What is put into texts: marks of CSV and YAML, absurd numbers, places elsewhere."""


def _in_text(text, rng):
    """Return a text with marks put in, a part cut out, repeated or moved."""
    for _ in range(int(rng.integers(1, 3))):
        at, end = sorted(int(place) for place in rng.integers(0, len(text) + 1, 2))
        end = min(end, at + 60)
        match rng.integers(4):
            case 0:
                text = text[:at] + ODD_TEXTS[rng.integers(len(ODD_TEXTS))] + text[at:]
            case 1:
                text = text[:at] + text[end:]
            case 2:
                text = text[:at] + text[at:end] * int(rng.integers(2, 40)) + text[end:]
            case _:
                text = text[:at] + ODD_TEXTS[rng.integers(len(ODD_TEXTS))] * int(rng.integers(1, 300)) + text[end:]
    return text.encode("utf-8", "replace")


def changed(name, number):
    """Return a changed copy of the file of a format, by a number from which alone it follows."""
    form, content = FORMATS[name].form, honest(name)[FORMATS[name].file]
    rng = np.random.default_rng([number, *name.encode()])
    if form == "safetensors":
        return mutants.safetensors_mutant(content, rng)
    if form == "json":
        return mutants.json_mutant(content, rng)
    if form == "text" and rng.integers(4):
        return _in_text(content.decode(), rng)
    if rng.integers(2):  # nearly honest: a bit or two
        flipped = bytearray(content)
        for place in rng.integers(0, len(content), int(rng.integers(1, 3))):
            flipped[place] ^= 1 << int(rng.integers(8))
        return bytes(flipped)
    return mutants.bytes_mutant(content, rng)


def outcomes(name, number, folder):
    """Yield what each reader and user of a format does with a changed copy: as `reading.outcome`, and whether too much.

    `folder` is an empty one.
    """
    form, content = FORMATS[name], changed(name, number)
    write_honest(name, folder)
    (folder / form.file).write_bytes(content)
    allowance = reading.RECIPE_BYTES if "recipe" in name else 0
    for reader in (*form.readers, *form.users):
        said, crash, seconds, peak = reading.outcome(folder, reader)
        if reading.too_much(len(content), seconds, peak, allowance):  # what was imported for it is not counted
            said, crash, seconds, peak = reading.outcome(folder, reader)
        counted = peak if reader in form.readers else 0
        is_bad = said in ("crashed", "hung") or reading.too_much(len(content), seconds, counted, allowance)
        yield said, crash, seconds, counted, len(content), is_bad
