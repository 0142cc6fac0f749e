"""Record the result of every golden fusion: ``python -m tests.golden.record``, from a clean checkout.

With names of cases only these are recorded anew; with ``--digests`` the digests of their bytes are printed instead.
It says nothing of whether the results are right, only what they are: record anew when results are meant to change, and
look at the difference of ``recorded.json`` before it is committed.
"""

import json
import platform
import subprocess
import sys
import tempfile
import warnings
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import version
from io import StringIO
from pathlib import Path

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what torch and gpytorch say while they are imported
    import gpytorch  # noqa: F401
    import torch
from threadpoolctl import threadpool_info, threadpool_limits

from tests.golden.canonical import arrays_of, bytes_digest, bytes_of_file, covered_by, provenance_of, summary_of
from tests.golden.cases import CASES

ROOT = Path(__file__).parents[2]
RECORDED = Path(__file__).with_name("recorded.json")
LIBRARIES = ("numpy", "scipy", "scikit-learn", "torch", "hmmlearn", "gensim", "gpytorch", "POT", "safetensors")


@contextmanager
def one_thread():
    """Run linear algebra in one thread, whatever the environment says: sums are split by threads, and so rounded."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


def processor():
    """Return the model of the processor."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text().splitlines() if known.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor()


def fingerprint():
    """Return what the last bits depend on, for who wonders about a difference: processor, kernels and versions."""
    blas = [library for library in threadpool_info() if library["user_api"] == "blas"]
    kernels = {" ".join(str(one.get(key)) for key in ("internal_api", "architecture", "version")) for one in blas}
    return {
        "processor": processor(),
        "kernels": sorted(kernels),
        "torch kernels": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        **{name: version(name) for name in LIBRARIES},
    }


def run(name, folder):
    """Return what a case gives, as it is recorded."""
    with one_thread(), redirect_stdout(StringIO()):  # the command prints
        results = CASES[name](folder)
        arrays = arrays_of(results)
    said = {path.stem: provenance_of(path) for path in sorted(folder.glob("*.safetensors")) if provenance_of(path)}
    return {
        "covers": covered_by(results),
        "provenance": said,
        "arrays": {name: summary_of(name, array) for name, array in sorted(arrays.items())},
    }


def digests(name, folder):
    """Return a digest of the bytes of every array that a case gives, and of every file that it saves."""
    with one_thread(), redirect_stdout(StringIO()):
        arrays = arrays_of(CASES[name](folder))
    files = {path.name: bytes_of_file(path) for path in folder.glob("*.safetensors")}
    return files | {name: bytes_digest(array) for name, array in arrays.items()}


def digests_of(names):
    """Return the digests of several cases by name."""
    found = {}
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = digests(name, Path(folder))
    return found


def record(names):
    """Return everything, as it is written, of which these cases are run."""
    before = json.loads(RECORDED.read_text())["cases"] if RECORDED.exists() else {}
    cases = {name: before.get(name) for name in CASES}
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            cases[name] = run(name, Path(folder))
    return {"machine": fingerprint(), "cases": cases}


def written(document):
    """Return the text of the file: a line for each case, so that a difference shows which changed."""
    lines = [f"{json.dumps(name)}: {json.dumps(case, sort_keys=True)}" for name, case in document["cases"].items()]
    body = ",\n".join(lines)
    return f'{{"machine": {json.dumps(document["machine"], sort_keys=True)},\n"cases": {{\n{body}\n}}}}\n'


def main():
    """Rewrite the file, unless there are changes that are not committed; or print digests."""
    names = [word for word in sys.argv[1:] if not word.startswith("--")] or list(CASES)
    if "--digests" in sys.argv:
        json.dump(digests_of(names), sys.stdout)
        return
    git = ["git", "status", "--porcelain", "--untracked-files=no"]
    changed = subprocess.run(git, cwd=RECORDED.parent, capture_output=True, text=True, check=True).stdout
    if changed and "--force" not in sys.argv:
        sys.exit("commit first, so that what is recorded is known; or give --force")
    RECORDED.write_text(written(record(names)))


if __name__ == "__main__":
    main()
