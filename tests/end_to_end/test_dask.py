"""Shards on a Dask cluster of this machine: the same bits as here, also when a worker is killed in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import consilience as cs
from tests.posteriors.shard_sites import planted_sites, written

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of the cluster that a killed worker belonged to
    pytest.mark.filterwarnings("ignore::DeprecationWarning:distributed"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("dask")
    posteriors, _ = planted_sites(400, noise=1.5)
    cs.pack(written(posteriors, place / "sites"), place / "packed", shard_bytes=4000, dtype="float32")
    return place / "packed"


@pytest.fixture(scope="module")
def client() -> Iterator[object]:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.mark.parametrize(
    "options",
    [
        {"method": "kl", "n_components": 6, "tolerance": 0.0},
        {"method": "spahm"},
        {"method": "kmeans", "n_components": 6},
    ],
    ids=["kl", "spahm", "kmeans"],
)
def test_two_workers_give_the_same_bits_and_so_does_what_is_left_of_them(
    folder: Path, client: object, options: dict[str, object]
) -> None:
    here = cs.fuse(folder, pilot_sites=20, **options)
    killed: list[int] = []

    def kill(done: int, _total: int) -> None:
        if done == 1 and not killed:
            killed.append(next(iter(client.run(os.getpid).values())))  # type: ignore[attr-defined]
            os.kill(killed[0], signal.SIGKILL)

    for progress in (False, kill):
        there = cs.fuse(folder, engine=client, pilot_sites=20, progress=progress, **options)
        assert np.array_equal(there.posterior.natural, here.posterior.natural)
        assert np.array_equal(there.matching.labels, here.matching.labels)
        assert np.array_equal(there.history, here.history)
    assert killed


def test_the_command_takes_the_address_of_a_scheduler(folder: Path, client: object, tmp_path: Path) -> None:
    address = client.scheduler.address  # type: ignore[attr-defined]
    command = [sys.executable, "-m", "consilience", "fuse", str(folder), "--method", "spahm"]
    for name, more in (("there", ["--scheduler", address]), ("here", [])):
        done = subprocess.run([*command, "-o", f"{tmp_path}/{name}.safetensors", *more], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "here.safetensors").read_bytes() == (tmp_path / "there.safetensors").read_bytes()


def test_a_broken_shard_is_named_from_afar(folder: Path, client: object, tmp_path: Path) -> None:
    file = tmp_path / "shard.safetensors"
    data = bytearray(next(iter(folder.iterdir())).read_bytes())
    data[-200:-100] = b"\xff" * 100
    file.write_bytes(data)
    with pytest.raises(cs.errors.InputError, match=r"shard\.safetensors"):
        cs.fuse([file, *sorted(folder.iterdir())[1:3]], engine=client)
