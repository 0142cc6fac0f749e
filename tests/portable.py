"""Run the tests that compare numbers under every kernel that this processor has: ``python -m tests.portable``.

Last bits depend on kernels of linear algebra, on instruction sets and on threads. Each is varied alone, the others
as the machine chooses them and in one thread. A setting that the processor or the installation lacks is reported as
not run.
"""

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATTERNS = ("tests/golden", "tests/*/oracles", "tests/**/test_default_fusion.py", "tests/**/test_side_by_side.py")
"""Recorded numbers, answers known from elsewhere, and the promises of the default fusion of networks."""

KERNELS_OF_NUMPY = """
import numpy, scipy.linalg, threadpoolctl
print({one.get("architecture", "").lower() for one in threadpoolctl.threadpool_info() if one["user_api"] == "blas"})
"""
KERNELS_OF_TORCH = "import torch; print({torch.backends.cpu.get_cpu_capability().lower()})"
MKL_OF_TORCH = "import torch; print({'compatible'} if torch.backends.mkl.is_available() else set())"
THREADS_OF_TORCH = "import torch; print({str(torch.get_num_threads())})"


@dataclass(frozen=True)
class Setting:
    """One environment variable, and a program that prints the set of what is in effect under it."""

    variable: str
    value: str
    probe: str

    def __str__(self):
        return f"{self.variable}={self.value}"

    def environment(self):
        names = [setting.variable for setting in SETTINGS]
        others = {key: value for key, value in os.environ.items() if key not in names}
        return others | {"OMP_NUM_THREADS": "1"} | {self.variable: self.value}

    def is_in_effect(self):
        """Return whether libraries obey the setting: a kernel that the processor cannot run is replaced or crashes."""
        command = [sys.executable, "-c", self.probe]
        found = subprocess.run(command, env=self.environment(), capture_output=True, text=True, check=False)
        return found.returncode == 0 and found.stdout.strip() == str({self.value.lower()})


SETTINGS = (
    # SSE 4.2, AVX2 and AVX-512: each has products of its own in OpenBLAS.
    *(Setting("OPENBLAS_CORETYPE", kernel, KERNELS_OF_NUMPY) for kernel in ("Nehalem", "Haswell", "SkylakeX")),
    *(Setting("ATEN_CPU_CAPABILITY", level, KERNELS_OF_TORCH) for level in ("default", "avx2", "avx512")),
    Setting("MKL_CBWR", "COMPATIBLE", MKL_OF_TORCH),
    *(Setting("OMP_NUM_THREADS", count, THREADS_OF_TORCH) for count in ("1", "2")),
)


def run(setting, words):
    """Run the tests under a setting; return its row of the table."""
    if not setting.is_in_effect():
        return setting, "not run", "this machine lacks it"
    start = time.perf_counter()
    paths = sorted({str(path.relative_to(ROOT)) for path in chain.from_iterable(map(ROOT.glob, PATTERNS))})
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow or promise or golden", *words, *paths]
    done = subprocess.run(command, cwd=ROOT, env=setting.environment(), capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines() or done.stderr.splitlines() or [""]
    sys.stdout.writelines(f"{setting}: {line}\n" for line in lines if line.startswith(("FAILED", "ERROR")))
    sys.stdout.flush()
    outcome = "passed" if done.returncode == 0 else "failed"
    return setting, outcome, f"{lines[-1].strip('= ')} ({time.perf_counter() - start:.0f} s)"


def main():
    """Write the table; the status is 1 where a setting failed or none was run."""
    parser = argparse.ArgumentParser(description="The tests that compare numbers, under every kernel.")
    parser.add_argument("--only", default="", help="settings whose text contains this")
    options, words = parser.parse_known_args()
    rows = [run(setting, words) for setting in SETTINGS if options.only in str(setting)]
    for setting, outcome, said in rows:
        sys.stdout.write(f"{setting!s:30} {outcome:8} {said}\n")
    outcomes = {outcome for _, outcome, _ in rows}
    return int("failed" in outcomes or "passed" not in outcomes)


if __name__ == "__main__":
    sys.exit(main())
