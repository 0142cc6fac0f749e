"""Two checkpoints of 2 GB averaged: this library, mergekit and a bare stream, in turn, with time and memory of each.

``python benchmarks/checkpoints.py --mergekit PYTHON [--folder DIR] [--repeats 5]``, Linux only. PYTHON is that of an
environment with mergekit 0.1.5; without it only the others run. Memory is the peak of anonymous resident memory,
sampled every 20 ms: what a process allocated, without pages of files that the system keeps for it. The files are in the
system's cache when the clocks start, as mergekit's own figures are usually taken; ``fsync`` is part of ours and of the
bare stream's time, and no part of mergekit's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from consilience.checkpoints.header import header_bytes, read_header

sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))
from record import versions

RESULTS = Path(__file__).with_suffix(".json")

LAYERS, HIDDEN, FEED, VOCABULARY = 22, 2048, 5632, 16000
"""A Llama of a billion parameters."""

OURS = """
import sys
import consilience as cs
cs.merge(sys.argv[1:3], sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else "average", overwrite=True)
"""

BARE = """
import os, sys
import numpy as np
from consilience.checkpoints.header import read_header
one, two, out = sys.argv[1:4]
files = [open(os.path.join(path, "model.safetensors"), "rb", buffering=0) for path in (one, two)]
size = os.fstat(files[0].fileno()).st_size
rooms = [bytearray(2**21) for _ in files]
with open(out, "wb", buffering=0) as target:
    for start in range(0, size, 2**21):
        length = min(2**21, size - start)
        for file, room in zip(files, rooms):
            file.readinto(memoryview(room)[:length])
        values = [np.frombuffer(room, dtype=np.uint16, count=length // 2) for room in rooms]
        wide = [(value.astype(np.uint32) << 16).view(np.float32) for value in values]
        target.write(((wide[0] + wide[1]).view(np.uint32) >> 16).astype(np.uint16))
    os.fsync(target.fileno())
"""


def shapes() -> dict[str, tuple[int, ...]]:
    """Return the tensors of a Llama."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        for name, shape in (
            ("self_attn.q_proj", (HIDDEN, HIDDEN)),
            ("self_attn.k_proj", (HIDDEN // 8, HIDDEN)),
            ("self_attn.v_proj", (HIDDEN // 8, HIDDEN)),
            ("self_attn.o_proj", (HIDDEN, HIDDEN)),
            ("mlp.gate_proj", (FEED, HIDDEN)),
            ("mlp.up_proj", (FEED, HIDDEN)),
            ("mlp.down_proj", (HIDDEN, FEED)),
            ("input_layernorm", (HIDDEN,)),
            ("post_attention_layernorm", (HIDDEN,)),
        ):
            found[f"{at}.{name}.weight"] = shape
    return found | {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCABULARY, HIDDEN)}


def write_checkpoint(folder: Path, seed: int) -> int:
    """Write a checkpoint of random bfloat16 weights; return its bytes."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    listed = [(name, "BF16", shape, 2 * int(np.prod(shape))) for name, shape in shapes().items()]
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(header_bytes(listed, {"format": "pt"}))
        for _, _, shape, _ in listed:
            values = (0.02 * rng.standard_normal(int(np.prod(shape)), dtype=np.float32)).view(np.uint32)
            stream.write((values >> 16).astype(np.uint16).data)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
        "hidden_size": HIDDEN, "intermediate_size": FEED, "num_hidden_layers": LAYERS, "num_attention_heads": 32,
        "num_key_value_heads": 4, "vocab_size": VOCABULARY, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False, "hidden_act": "silu",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return (folder / "model.safetensors").stat().st_size


def anonymous(pid: int) -> int:
    """Return the anonymous resident memory of a process in bytes."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def measured(command: list[str], environment: dict[str, str]) -> dict[str, float]:
    """Run a command; return its seconds and peak memory in bytes."""
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, env=os.environ | environment, stdout=said, stderr=said)  # noqa: S603
        peak = 0
        while process.poll() is None:
            peak = max(peak, anonymous(process.pid))
            time.sleep(0.02)
        taken = time.perf_counter() - start
        if process.returncode:
            said.seek(0)
            sys.exit(said.read()[-4000:])
    return {"seconds": taken, "peak_bytes": peak}


def version_of(python: str) -> str:
    """Return the version of mergekit in an environment."""
    code = "from importlib.metadata import version; print(version('mergekit'), version('torch'))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603


def largest_difference(one: Path, two: Path) -> float:
    """Return the largest difference of two merged checkpoints, relative to the spacing of bfloat16."""
    ours, theirs = read_header(one), {}
    for path in two.glob("*.safetensors"):
        theirs |= {name: (path, stored) for name, stored in read_header(path).tensors.items()}
    worst = 0.0
    for name, stored in list(ours.tensors.items())[:20]:
        path, other = theirs[name]
        pair = [
            (np.fromfile(file, np.uint16, stored.size, offset=at).astype(np.uint32) << 16).view(np.float32)
            for file, at in ((one, stored.start), (path, other.start))
        ]
        spacing = np.maximum(np.abs(pair[0]), 1e-30) * 2.0**-7
        worst = max(worst, float(np.max(np.abs(pair[0] - pair[1]) / spacing)))
    return worst


def main() -> None:
    """Run everything in turn, and write the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mergekit", help="Python of an environment with mergekit")
    parser.add_argument("--folder", type=Path, help="where to make 8 GB of files")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=given.folder, prefix="checkpoints-"))
    try:
        sizes = [write_checkpoint(folder / name, seed) for seed, name in enumerate("ab")]
        os.sync()
        one, two = str(folder / "a"), str(folder / "b")
        commands: dict[str, tuple[list[str], Path]] = {
            "consilience": ([sys.executable, "-c", OURS, one, two, str(folder / "ours")], folder / "ours"),
            "bare": ([sys.executable, "-c", BARE, one, two, str(folder / "bare")], folder / "bare"),
        }
        if given.mergekit:
            recipe = folder / "recipe.yaml"
            models = "".join(f"  - model: {path}\n    parameters:\n      weight: 0.5\n" for path in (one, two))
            recipe.write_text(f"merge_method: linear\nmodels:\n{models}dtype: bfloat16\n")
            tool = str(Path(given.mergekit).parent / "mergekit-yaml")
            commands["mergekit"] = ([tool, str(recipe), str(folder / "theirs")], folder / "theirs")
        found: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
        for turn in range(given.repeats + 1):  # the first warms caches and is not counted
            for name, (command, out) in commands.items():
                if out.is_dir():
                    shutil.rmtree(out)
                out.unlink(missing_ok=True)
                once = measured(command, {"HF_HUB_OFFLINE": "1"})
                os.sync()
                if turn:
                    found[name].append(once)
        results: dict[str, Any] = {
            name: {
                "seconds": median(one["seconds"] for one in runs),
                "all_seconds": [one["seconds"] for one in runs],
                "peak_gb": max(one["peak_bytes"] for one in runs) / 1e9,
            }
            for name, runs in found.items()
        }
        if given.mergekit:
            results["times_as_fast_as_mergekit"] = results["mergekit"]["seconds"] / results["consilience"]["seconds"]
            results["largest_difference_in_spacings"] = largest_difference(
                folder / "ours" / "model.safetensors", folder / "theirs"
            )
        results["settings"] = {
            "bytes": sizes, "repeats": given.repeats, "cores": os.cpu_count(), "dtype": "bfloat16", "method": "average",
            "cache": "warm", "fsync": "ours and bare",
        }  # fmt: skip
        results["versions"] = versions() | ({"mergekit, torch": version_of(given.mergekit)} if given.mergekit else {})
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        sys.stdout.write(json.dumps(results, indent=1, sort_keys=True) + "\n")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
