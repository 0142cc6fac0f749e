"""Whatever is handed in: one clear line per problem, the right exit code, and no trace on the disk."""

import errno
import os
import re
import resource
import stat
from pathlib import Path

import numpy as np
import pytest

import consilience as cs
from tests.cli.bad_files import BAD, GOOD, LISTED, TRAP, content, forged, site, with_natural

OUTPUT = "fused.safetensors"
FUSE_ALL = ("fuse", "a.safetensors", "b.safetensors", "-o", OUTPUT)


def lay(folder, name):
    path = folder / f"{name}.safetensors"
    path.write_bytes(BAD[name][0])
    return path.name


# Each starts Python anew; without a process all of them are asked elsewhere.
@pytest.mark.slow
@pytest.mark.parametrize("name", LISTED)
def test_a_process_refuses_each_kind_of_bad_file(folder, process, unchanged, name):
    bad = lay(folder, name)
    unchanged()
    done = process("fuse", "a.safetensors", bad, "-o", OUTPUT)
    assert done.code == 1
    assert done.out == ""
    (line,) = done.complaints()
    assert re.search(f"^{re.escape(bad)}: .*{BAD[name][1]}", line), line


@pytest.mark.parametrize("name", BAD)
def test_every_bad_file_is_refused_and_named(folder, command, unchanged, name):
    bad = lay(folder, name)
    unchanged()
    for arguments in (("fuse", "a.safetensors", bad, "-o", OUTPUT), ("check", "a.safetensors", bad)):
        done = command(*arguments)
        assert done.code == 1
        assert done.out == ""
        (line,) = done.complaints()
        assert re.search(f"^{re.escape(bad)}: .*{BAD[name][1]}", line), line
    assert not (folder / TRAP).exists()


@pytest.mark.parametrize("name", BAD)
def test_inspecting_a_bad_file_says_what_it_is_or_what_is_wrong(folder, command, unchanged, name):
    bad = lay(folder, name)
    unchanged()
    for arguments in (("inspect", bad), ("inspect", "--json", bad)):
        done = command(*arguments)
        assert done.code in (0, 1)
        assert len(done.complaints()) == done.code
        assert all(sign.isprintable() or sign == "\n" for sign in done.out)


def test_check_names_every_bad_file_at_once(folder, process, unchanged):
    files = [lay(folder, name) for name in BAD]
    (folder / "c.safetensors").write_bytes((folder / "a.safetensors").read_bytes())
    files += ["c.safetensors", "d.safetensors"]
    unchanged()

    def modest():  # what headers claim must not be allocated
        resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30, 3 * 2**30))

    done = process("check", "a.safetensors", "b.safetensors", *files, preexec_fn=modest)
    assert done.code == 1
    assert done.out == ""
    complaint_of = dict(line.split(": ", 1) for line in done.complaints())
    assert sorted(complaint_of) == sorted(files)
    for name in BAD:
        assert re.search(BAD[name][1], complaint_of[f"{name}.safetensors"])
    assert complaint_of["c.safetensors"] == "is the same file as a.safetensors; leave one out"
    assert complaint_of["d.safetensors"].startswith("cannot be read: No such file or directory; give ")


def test_every_bad_component_has_a_line(folder, command):
    (folder / "c.safetensors").write_bytes(with_natural([0, 2], [0, 5], [np.nan, 1e6]))
    assert command("check", "a.safetensors", "c.safetensors").complaints() == [
        "c.safetensors: component 0 has NaN or infinite natural parameters",
        "c.safetensors: component 2 has a scale matrix that is not positive definite",
    ]


ABSURD = {"mean": (0, 1e300), "kappa": (2, -1e-300), "scale": (3, -1e308)}


@pytest.mark.parametrize("which", ABSURD)
def test_finite_but_absurd_numbers_are_refused_too(folder, command, which):
    (folder / "c.safetensors").write_bytes(with_natural(1, *ABSURD[which]))
    done = command("check", "a.safetensors", "c.safetensors")
    assert done.complaints() == ["c.safetensors: component 1 has a scale matrix that is not positive definite"]


SETS = {
    "single": (["a"], "fusing takes at least two models, found 1"),
    "same twice": (["a", "a", "b"], "a.safetensors: is the same file as a.safetensors; leave one out"),
    "copies": (["a", "copy", "b"], "copy.safetensors: is the same file as a.safetensors; leave one out"),
    "told too few": (["a", "b", "--set", "n_components=2"], "n_components is 2, but a has 3 components"),
    "limit too low": (["a", "b", "--set", "max_components=2"], "max_components is 2, but .* give at least 3"),
    "sizes differ": (["a", "large", "--method", "average"], r"equal size, found \[3, 4\] components; use method 'kl'"),
    "no prior": (
        ["a", "b", "--set", "combine=product"],
        "needs every model's prior, which is missing in a",
    ),
    "a folder": (["a", "folder"], "folder.safetensors: no file named .* is here"),
    "missing": (["a", "b", "missing"], "missing.safetensors: cannot be read: No such file"),
    "impossible": (["a", "b", "n" * 300], "cannot be read: File name too long"),
}


IN_PROCESSES = [("process", case) for case in ("single", "copies", "told too few")]


@pytest.mark.parametrize(
    ("how", "case"),
    [
        *(("command", case) for case in SETS),
        *(pytest.param(*parameters, marks=pytest.mark.slow) for parameters in IN_PROCESSES),
    ],
)
def test_files_that_are_good_alone_but_not_together(folder, request, unchanged, how, case):
    (folder / "copy.safetensors").write_bytes((folder / "a.safetensors").read_bytes())
    (folder / "large.safetensors").write_bytes(content(site(5, components=4)))
    (folder / "folder.safetensors").mkdir()
    unchanged()
    words, message = SETS[case]
    options = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    arguments = [*(f"{word}.safetensors" for word in words[:options]), *words[options:]]
    run = request.getfixturevalue(how)
    for name, extra in (("fuse", ["-o", OUTPUT]),) if how == "process" else (("fuse", ["-o", OUTPUT]), ("check", [])):
        done = run(name, *arguments, *extra)
        assert (done.code, done.out) == (1, "")
        (line,) = done.complaints()
        assert re.search(message, line), line


OUTPUTS = {
    "no folder": ("nowhere/fused.safetensors", "there is no folder nowhere"),
    "a folder": ("folder", "it is a folder"),
    "here": ("", "it is a folder"),
    "inside a file": ("b.safetensors/fused.safetensors", "there is no folder b.safetensors"),
    "a pipe": ("pipe", "it is not an ordinary file"),
    "an input": ("b.safetensors", "is one of the models to fuse; give another output"),
    "an input by another name": ("folder/../a.safetensors", "is one of the models to fuse"),
    "too long": ("n" * 300, "File name too long"),
    "read-only": ("locked/fused.safetensors", "Permission denied"),
}


ROOT = pytest.mark.skipif(os.geteuid() == 0, reason="root may write to read-only folders")


@pytest.mark.parametrize("case", [pytest.param(case, marks=ROOT if case == "read-only" else ()) for case in OUTPUTS])
def test_an_output_that_cannot_be_written_is_refused_before_any_work(folder, command, unchanged, case, monkeypatch):
    (folder / "folder").mkdir()
    (folder / "locked").mkdir(mode=0o500)
    os.mkfifo(folder / "pipe")
    unchanged()
    monkeypatch.setattr("consilience.api.fuse", lambda *_args, **_options: pytest.fail("worked in vain"))
    output, message = OUTPUTS[case]
    done = command("fuse", "a.safetensors", "b.safetensors", "-o", output)
    assert (done.code, done.out) == (1, "")
    (line,) = done.complaints()
    assert message in line
    assert stat.S_ISFIFO((folder / "pipe").stat().st_mode)


def test_a_file_size_limit_leaves_nothing_behind(process, unchanged):
    unchanged()

    def tight():
        resource.setrlimit(resource.RLIMIT_FSIZE, (256, 256))

    done = process(*FUSE_ALL, preexec_fn=tight)
    assert (done.code, done.out) == (1, "")
    assert done.complaints() == [f"{OUTPUT}: cannot be written: File too large"]


def full_disk(path, data):
    with path.open("wb") as file:
        file.write(data[: len(data) // 2])
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def late_full_disk(_descriptor):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupted(path, data):
    with path.open("wb") as file:
        file.write(data[: len(data) // 2])
    raise KeyboardInterrupt


@pytest.mark.parametrize("before", [None, b'{"format": "consilience-posterior"} of yesterday'])
@pytest.mark.parametrize(
    ("function", "failure", "code", "message"),
    [
        ("pathlib.Path.write_bytes", full_disk, 1, f"{OUTPUT}: cannot be written: No space left on device"),
        ("os.fsync", late_full_disk, 1, f"{OUTPUT}: cannot be written: No space left on device"),
        ("pathlib.Path.write_bytes", interrupted, 130, "interrupted; no file was left half-written"),
    ],
)
def test_a_failure_in_the_middle_of_writing_leaves_what_was_there(
    folder, command, unchanged, monkeypatch, before, function, failure, code, message
):
    if before is not None:
        (folder / OUTPUT).write_bytes(before)
    unchanged()
    monkeypatch.setattr(function, failure)
    done = command(*FUSE_ALL)
    monkeypatch.undo()
    assert (done.code, done.out) == (code, "")
    (line,) = [line for line in done.err.splitlines() if line]
    assert re.sub(r" \[E-[A-Z]+\]$", "", line) == f"consilience: {message}"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_under_the_summary_is_one_line_too(folder, process):
    with open("/dev/full", "w") as full:
        done = process(*FUSE_ALL, stdout=full)
    assert done.code == 1
    (line,) = done.complaints()
    assert "No space left on device" in line
    assert (folder / OUTPUT).exists()


@pytest.mark.parametrize("path", ["nowhere/site", "a.safetensors/site", "", "n" * 300, "zero\0byte"])
def test_saving_to_an_impossible_place_is_refused(folder, unchanged, path):
    unchanged()
    with pytest.raises(cs.errors.InputError, match=": cannot be written: "):
        cs.save(site(), path)


def test_saving_what_is_not_json_is_refused(folder, unchanged):
    unchanged()
    for source in ({"kind": object()}, {"kind": float("nan")}):
        with pytest.raises(
            cs.errors.InputError, match=r"c.safetensors: cannot be written: its header would not be JSON"
        ):
            cs.save(site(source=source), "c.safetensors")


def test_a_good_file_is_good(folder, command):
    """So that the forged files are refused for what was changed in them."""
    (folder / "c.safetensors").write_bytes(forged())
    (folder / "d.safetensors").write_bytes(GOOD)
    done = command("check", "a.safetensors", "b.safetensors", "c.safetensors")
    assert (done.code, done.out, done.err) == (0, "ok: 3 models can be fused\n", "")
