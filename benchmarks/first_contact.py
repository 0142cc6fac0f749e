"""From a clone to a fused file of one's own, by the commands that README and `consilience --help` print.

    nice python benchmarks/first_contact.py
    python experiments/write_tables.py                          the table of docs/start/tutorial.md

Four newcomers start from nothing in a folder of their own: clone, environment and installation, once without extras and
once with that of networks. Then each runs a script that fits and saves the models of some sites (of adapters, that
writes two), and the commands. What is measured is written to benchmarks/first_contact.json: seconds on the clock of
every command, on a machine that does other things too, and the first line that `evaluate` prints. Packages come from
wherever pip is told to take them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))
from record import versions

ROOT = Path(__file__).resolve().parents[1]
RESULT = Path(__file__).with_suffix(".json")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
"""Of a newcomer, to whom nothing says where this copy of the library lies."""

MIXTURE = """
import numpy as np
from sklearn.datasets import load_iris
from sklearn.mixture import GaussianMixture
import consilience as cs
X, kind = load_iris(return_X_y=True)
held = np.random.default_rng(1).random(len(X)) < 0.3
for site, kinds in {"lund": [0, 1], "oslo": [1, 2], "riga": [0, 2]}.items():
    rows = X[np.isin(kind, kinds) & ~held]
    cs.save(GaussianMixture(2, random_state=0).fit(rows), f"{site}.safetensors", data=rows)
np.savetxt("held-out.csv", X[held], delimiter=",", header="a,b,c,d", comments="")
"""
REGRESSION = """
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
import consilience as cs
X, y = load_breast_cancer(return_X_y=True)
X = X[:, :4] / X[:, :4].std(axis=0)
owner = np.random.default_rng(1).integers(0, 4, len(y))
for number, site in enumerate(["lund", "oslo", "riga"]):
    own = X[owner == number], y[owner == number]
    cs.save(LogisticRegression().fit(*own), f"{site}.safetensors", data=own)
held = np.c_[X[owner == 3], y[owner == 3]]
np.savetxt("held-out.csv", held, delimiter=",", header="a,b,c,d,benign", comments="")
"""
NETWORK = """
import numpy as np, torch
from sklearn.datasets import load_digits
import consilience as cs
from nets import make_net
digits = load_digits()
x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
held = torch.rand(len(y), generator=torch.Generator().manual_seed(0)) < 0.25
for site, sees in {"lund": y < 6, "oslo": y > 3}.items():
    rows = sees & ~held
    torch.manual_seed(0)
    net = make_net()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(200):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
    cs.save(net.eval(), f"{site}.safetensors", data=(x[rows], y[rows]), classes=10)
np.savez("held-out.npz", x=x[held].numpy(), y=y[held].numpy())
"""
ARCHITECTURE = """
import torch
def make_net():
    return torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.ReLU(), torch.nn.Linear(48, 10))
"""
ADAPTERS = """
import json, pathlib
import numpy as np
from safetensors.numpy import save_file
config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
for seed, name in enumerate(["adapter-law", "adapter-medicine"]):
    rng, folder = np.random.default_rng(seed), pathlib.Path(name)
    folder.mkdir()
    factors = {f"base_model.model.layers.{layer}.q_proj.lora_{part}.weight": rng.normal(size=shape).astype("f4")
               for layer in range(4) for part, shape in (("A", (4, 64)), ("B", (64, 4)))}
    save_file(factors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config))
"""
THREE, TWO = "lund.safetensors oslo.safetensors riga.safetensors", "lund.safetensors oslo.safetensors"
MODULE = "--module nets:make_net"
CSV, NPZ = "--data held-out.csv", f"--data held-out.npz {MODULE}"

WALKS: dict[str, tuple[str, str, list[str]]] = {
    "mixtures of three sites": (MIXTURE, "", [
        f"check {THREE}", f"fuse {THREE} -o fused.safetensors", f"evaluate fused.safetensors lund.safetensors {CSV}"]),
    "logistic regressions of three sites": (REGRESSION, "", [
        f"check {THREE}", f"fuse {THREE} -o fused.safetensors", f"evaluate fused.safetensors lund.safetensors {CSV}"]),
    "networks of two sites": (NETWORK, "[networks]", [
        f"check {TWO} {MODULE}", f"fuse {TWO} -o fused.safetensors {MODULE}",
        f"evaluate fused.safetensors lund.safetensors {NPZ}"]),
    "two LoRA adapters": (ADAPTERS, "", [
        "check adapter-law adapter-medicine", "merge adapter-law adapter-medicine -o adapter-both"]),
}  # fmt: skip
"""By walk the script of the sites, the extra that it needs, and the commands; the second makes the fused file."""


def timed(words: list[str], folder: Path) -> tuple[float, str]:
    """Return the seconds of a command in a folder, and what it printed; raise where it fails."""
    start = time.perf_counter()
    done = subprocess.run(words, cwd=folder, env=ENVIRONMENT, check=False, capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stdout}{done.stderr}")
    return round(time.perf_counter() - start, 1), done.stdout


def installed(home: Path, extra: str) -> tuple[Path, dict[str, float]]:
    """Return the programs of a fresh environment, and the seconds of every command on the way."""
    home.mkdir()
    clone = home / "consilience"
    commands = {
        "git clone": ["git", "clone", "-q", str(ROOT), str(clone)],
        "python -m venv": [sys.executable, "-m", "venv", str(clone / ".venv")],
        "pip install": [str(clone / ".venv/bin/pip"), "install", "-q", "-c", "constraints.txt", f".{extra}"],
    }
    seconds = {name: timed(words, clone if clone.exists() else home)[0] for name, words in commands.items()}
    return clone / ".venv/bin", seconds


def walked(programs: Path, folder: Path, script: str, commands: list[str]) -> dict[str, Any]:
    """Return the seconds of the script and of every command, and the first line that the last one prints."""
    folder.mkdir()
    (folder / "nets.py").write_text(ARCHITECTURE)
    (folder / "sites.py").write_text(script)
    seconds = {"python sites.py": timed([str(programs / "python"), "sites.py"], folder)[0]}
    said = ""
    for words in commands:
        seconds[f"consilience {words}"], said = timed([str(programs / "consilience"), *words.split()], folder)
    return {"seconds": seconds, "said": said.partition("\n")[0]}


def main() -> None:
    """Walk all four ways and write what they took."""
    found: dict[str, Any] = {"install": {}, "walks": {}}
    with tempfile.TemporaryDirectory() as place:
        environments = {}
        for extra in dict.fromkeys(extra for _, extra, _ in WALKS.values()):
            home = Path(place) / f"home{len(environments)}"
            environments[extra], found["install"][extra or "no extra"] = installed(home, extra)
        for number, (name, (script, extra, commands)) in enumerate(WALKS.items()):
            walk = walked(environments[extra], Path(place) / f"walk{number}", script, commands)
            found["walks"][name] = {"extra": extra or "no extra", **walk}
    found["versions"] = versions()
    RESULT.write_text(f"{json.dumps(found, indent=1)}\n")


if __name__ == "__main__":
    main()
