"""The command ``pack``, and ``fuse``, ``check`` and ``inspect`` of what it writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.running import Finished
from tests.posteriors.shard_sites import planted_sites, written

Command = Callable[..., Finished]


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(planted_sites(40)[0], tmp_path_factory.mktemp("pack") / "sites")


def test_packed_and_fused(sites: Path, tmp_path: Path, command: Command) -> None:
    packed = command("pack", sites, "-o", tmp_path / "packed", "--shard-size", "4kB", "--dtype", "float32")
    assert packed.code == 0, packed.err
    assert "40 models with" in packed.out
    assert "float32 moved no component by more than" in packed.out
    fused = command("fuse", tmp_path / "packed", "-o", tmp_path / "f.safetensors", "--set", "pilot_sites=10",
                "--method", "spahm", "--report", tmp_path / "f.html")  # fmt: skip
    assert fused.code == 0, fused.err
    said, verdict, counted = fused.out.splitlines()[:3]
    assert said.startswith("One model of 6 components, fused from 40 models. ")
    assert verdict.startswith("Of a sample of 10 of the 40 sites: ")
    assert counted.startswith("40 models with")
    assert "-> 6 components (method spahm)" in fused.out
    assert command("check", tmp_path / "packed").out == "ok: 40 models can be fused\n"
    shard = next((tmp_path / "packed").iterdir())
    shown = command("inspect", shard)
    assert shown.code == 0, shown.err
    assert "sites:" in shown.out
    assert "DiagonalGaussian" in shown.out or "diagonal-gaussian" in shown.out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["pack", "SITES"], 2, "--output"),
        (["pack", "NOWHERE", "-o", "OUT"], 1, "cannot be read"),
        (["pack", "SITES", "-o", "OUT", "--shard-size", "big"], 2, "--shard-size"),
        (["fuse", "SITES", "-o", "SITES/f.safetensors"], 1, "is in a folder of models"),
        (["fuse", "SITES", "-o", "OUT", "--engine", "dask"], 2, "--scheduler"),
        (["fuse", "SITES", "-o", "OUT", "--engine", "local", "--scheduler", "tcp://x:1"], 2, "--engine dask"),
        (["fuse", "SITES", "-o", "OUT", "--module", "a:b"], 2, "for networks only"),
        (["fuse", "SITES", "-o", "OUT", "--set", "pilot_sites=0"], 2, "pilot_sites"),
    ],
)
def test_bad_input_is_a_line(
    sites: Path, tmp_path: Path, command: Command, arguments: list[str], code: int, message: str
) -> None:
    places = {"SITES": str(sites), "NOWHERE": str(tmp_path / "none"), "OUT": str(tmp_path / "out")}
    words = [places.get(argument, argument.replace("SITES/", f"{sites}/")) for argument in arguments]
    done = command(*words)
    assert (done.code, message in done.err) == (code, True), done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "out").exists()


def test_files_whose_names_are_no_text_are_fused_into_one_that_can_be_read(tmp_path: Path, command: Command) -> None:
    folder = written(planted_sites(3)[0], tmp_path / "sites")
    for site in folder.iterdir():
        site.rename(folder / f"{site.stem}-\udcff.safetensors")
    done = command("fuse", *sorted(folder.iterdir()), "-o", tmp_path / "fused.safetensors", "--quiet")
    assert (done.code, done.err) == (0, "")
    assert command("inspect", tmp_path / "fused.safetensors").code == 0
