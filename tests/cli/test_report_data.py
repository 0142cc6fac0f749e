"""``consilience report --data``: states over time and rows beside a curve, from files, and whatever does not fit."""

import contextlib
import re
import shutil

import numpy as np
import pytest

import consilience as cs
from consilience.posteriors.sparse_gp.kernels import RBF
from consilience.posteriors.sparse_gp.model import SparseGP
from tests.cli.bad_files import content, site
from tests.copies import COPIES
from tests.posteriors.hmmlearn_sites import MEANS, by_hand

PAGE = "report.html"
SITES = ("one.safetensors", "two.safetensors")
FUSED = "chain.safetensors"
STAY = np.array([[0.9, 0.1], [0.2, 0.8]])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with the files of two sites and of the fused model."""
    made = tmp_path_factory.mktemp("files")
    for name, means in zip(SITES, (MEANS[:2], MEANS[1:3]), strict=True):
        cs.save(by_hand(STAY, means=means), made / name, n_observations=100, features=cs.Features(names=("x", "y")))
    with contextlib.chdir(made):  # files are named as a user in the folder names them
        cs.fuse(SITES, n_components=3).save(FUSED)
    return made


@pytest.fixture
def rows(files, folder):
    """Two sequences with their true labels, beside the files of two sites and of the fused model."""
    shutil.copytree(files, folder, dirs_exist_ok=True)
    rng = np.random.default_rng(0)
    return {
        name: (MEANS[states] + rng.normal(size=(len(states), 2)), np.array(["rest", "walk", "run"])[states])
        for name, states in {"monday": np.repeat([0, 1, 2], 9), "tuesday": np.repeat([2, 1, 0, 1], 12)}.items()
    }


def csv(path, header, *columns):
    lines = [",".join(map(str, cells)) for cells in zip(*(column.tolist() for column in columns), strict=True)]
    path.write_text("\n".join([header, *lines]) + "\n")


def written(folder, rows):
    for name, (values, truth) in rows.items():
        csv(folder / f"{name}.csv", "state,y,note,x", truth, values[:, 1], values[:, 0], values[:, 0])
    return [word for name in rows for word in ("--data", f"{name}.csv")]


def test_sequences_in_files_give_the_page_of_the_library(folder, command, rows):
    done = command("report", FUSED, *SITES, "-o", PAGE, *written(folder, rows), "--truth", "state")
    assert (done.code, done.out, done.err) == (0, f"wrote {PAGE}\n", "")
    page = (folder / PAGE).read_bytes()
    data, truth = ({name: pair[part] for name, pair in rows.items()} for part in (0, 1))
    cs.fuse(SITES, n_components=3).report("library.html", data=data, truth=truth)
    assert page == (folder / "library.html").read_bytes()
    text = page.decode()
    assert "Decoded states over time. monday: 27 steps" in text
    assert "Adjusted mutual information" in text
    assert re.search(r"<th[^>]*>All 2</th>\s*<td[^>]*>75</td>", text)


def test_a_truth_is_not_needed_nor_are_names(folder, command, rows):
    values = rows["monday"][0]
    np.save(folder / "plain.npy", values)
    csv(folder / "nameless.csv", ",".join(map(str, values[0])), values[1:, 0], values[1:, 1])
    assert command("report", FUSED, "-o", PAGE, "--data", "plain.npy", "--data", "nameless.csv").code == 0
    text = (folder / PAGE).read_text()
    assert "plain: 27 steps" in text
    assert "nameless: 27 steps" in text
    assert "True label" not in text


@COPIES
def test_without_names_all_columns_but_the_truth_are_data(folder, command, rows):
    values, truth = rows["monday"]
    cs.fuse([by_hand(STAY), by_hand(STAY)], n_observations="equal", n_components=2).save(FUSED)
    csv(folder / "a.csv", "first,truth,second", values[:, 0], truth, values[:, 1])
    assert command("report", FUSED, "-o", PAGE, "--data", "a.csv", "--truth", "truth").code == 0
    done = command("report", FUSED, "-o", PAGE, "--data", "a.csv", "--truth", "label")
    assert done.complaints() == ["a.csv: has 3 columns, none of them called 'label', expected 2"]


def test_files_of_one_name_are_told_apart_by_folder(folder, command, rows):
    for day in ("monday", "tuesday"):
        (folder / day).mkdir()
        np.save(folder / day / "rows.npy", rows[day][0])
    assert command("report", FUSED, "-o", PAGE, "--data", "monday/rows.npy", "--data", "tuesday/rows.npy").code == 0
    assert "tuesday/rows.npy: 48 steps" in (folder / PAGE).read_text()


def test_rows_beside_the_curve_of_a_process(folder, command):
    processes = [
        SparseGP(np.linspace(*ends)[:, None], np.ones(4), 0.1 * np.eye(4), RBF(1.0, [1.0]), noise=0.1)
        for ends in ((0, 3, 4), (2, 5, 4))
    ]
    cs.fuse(processes, "concatenate").save(FUSED)
    csv(folder / "rows.csv", "hour,degrees", np.arange(6.0), np.ones(6))
    assert command("report", FUSED, "-o", PAGE, "--data", "rows.csv").code == 0
    assert "8 fused inducing inputs. 6 rows of data." in (folder / PAGE).read_text()
    done = command("report", FUSED, "-o", PAGE, "--data", "rows.csv", "--truth", "hour")
    assert (done.code, done.complaints()) == (1, ["--truth: a sparse Gaussian process has no states; leave it out"])


REFUSED = {
    "no column": (
        ["--data", "monday.csv", "--truth", "label"],
        "^truth of 'monday': 'label' is neither a column of mon",
    ),
    "no file": (["--data", "nobody.csv"], "^nobody.csv: cannot be read: No such file"),
    "no data": (["--data", "text.txt"], "^text.txt: expected a file named .csv, .parquet, .npy or .npz"),
    "wide": (["--data", "wide.npy"], "^wide.npy: has 3 columns, expected 2: x, y"),
    "lacking": (["--data", "lacking.csv"], "^lacking.csv: lacks the column 'y', found x, z"),
    "gap": (
        ["--data", "monday.csv", "--truth", "empty"],
        "^truth of 'monday': row 1, .*: expected a class, found none",
    ),
    "long truth": (["--data", "short.npy", "--truth", "labels.csv"], "^truth of 'short': expected one class for each"),
    "twice": (["--data", "monday.csv", "--data", "monday.csv"], "^monday.csv: is given twice; leave one out"),
    "over the data": (["-o", "monday.csv", "--data", "monday.csv"], "^monday.csv: is also a file of data; give"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_data_that_do_not_fit_are_refused_with_one_line(folder, command, rows, unchanged, case):
    values, truth = rows["monday"]
    gaps = np.where(np.arange(27) == 1, "", truth)
    csv(folder / "monday.csv", "state,empty,y,x", truth, gaps, values[:, 1], values[:, 0])
    csv(folder / "lacking.csv", "x,z", values[:, 1], values[:, 0])
    (folder / "text.txt").write_text("1,2\n")
    (folder / "labels.csv").write_text("a\nb\nc\n")
    np.save(folder / "wide.npy", np.ones((4, 3)))
    np.save(folder / "short.npy", np.ones((4, 2)))
    unchanged()
    arguments, message = REFUSED[case]
    done = command("report", FUSED, "-o", PAGE, *arguments)
    assert (done.code, done.out) == (1, "")
    (line,) = done.complaints()
    assert re.search(message, line), line


def test_every_problem_with_data_has_a_line(folder, command, rows, unchanged):
    np.save(folder / "wide.npy", np.ones((4, 3)))
    np.save(folder / "nan.npy", np.full((4, 2), np.nan))
    unchanged()
    done = command("report", FUSED, "-o", PAGE, "--data", "wide.npy", "--data", "nan.npy", "--data", "nobody.npy")
    assert done.code == 1
    wide, nan, nobody = done.complaints()
    assert wide.startswith("wide.npy: has 3 columns")
    assert nan.startswith("nan.npy: row 0, column 0 (x), counted from 0: expected a finite number")
    assert nobody.startswith("nobody.npy: cannot be read")


def test_a_model_that_shows_nothing_of_data_says_so(folder, command, unchanged):
    for number in (0, 1):
        (folder / f"{number}.safetensors").write_bytes(content(site(number)))
    np.save(folder / "rows.npy", np.ones((4, 2)))
    assert command("fuse", "a.safetensors", "b.safetensors", "-o", FUSED, "--quiet").code == 0
    unchanged()
    done = command("report", FUSED, "-o", PAGE, "--data", "rows.npy")
    (line,) = done.complaints()
    assert done.code == 1
    assert line.startswith("--data: are not shown in the report of a posterior over normal-wishart components; hidden")


def test_a_truth_without_data_is_a_mistake_of_usage(command, rows, unchanged):
    unchanged()
    done = command("report", FUSED, "-o", PAGE, "--truth", "state")
    assert (done.code, done.complaints()) == (2, ["--truth: is shown with data, expected data too"])


def test_labels_and_names_from_files_cannot_command_the_page(folder, command, rows):
    values, _ = rows["monday"]
    hostile = np.array(["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "\u202eevil"])
    csv(folder / "<b>day.csv", "x,y,truth", values[:, 0], values[:, 1], np.char.replace(np.tile(hostile, 9), '"', "'"))
    assert command("report", FUSED, "-o", PAGE, "--data", "<b>day.csv", "--truth", "truth").code == 0
    page = (folder / PAGE).read_text()
    assert "<script" not in page
    assert "<img" not in page
    assert "<b>" not in page
    assert "\u202e" not in page
    assert "&lt;script&gt;" in page
