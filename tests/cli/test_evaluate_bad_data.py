"""``consilience evaluate`` with data, labels or models that do not fit: one clear line, exit code 1."""

import io
import pickle
import re
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from sklearn.cluster import KMeans
from sklearn.decomposition import LatentDirichletAllocation

import consilience as cs
from consilience.core.observations import ExpectedColumns, read_observations
from tests.cli.bad_files import BAD, LISTED, TRAP, content, site

TWO = ("a.safetensors", "b.safetensors")
ROWS = np.random.default_rng(0).normal(size=(6, 2))


def npy(values, **options):
    stream = io.BytesIO()
    np.save(stream, values, **options)
    return stream.getvalue()


def npz(**arrays):
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def out_of_range():
    """A sparse matrix with an index beyond its shape, which compiled code would follow."""
    stream = io.BytesIO()
    matrix = sparse.csr_array(ROWS)
    matrix.indices[3] = 1_000_000
    sparse.save_npz(stream, matrix)
    return stream.getvalue()


class Trap:
    def __reduce__(self):
        return open, (TRAP, "w")


TRAPPED = np.array([[Trap(), Trap()]], dtype=object)

DATA = {
    # CSV
    "empty.csv": (b"", "is empty"),
    "blank.csv": (b"\n\n", "is empty"),
    "header.csv": (b"x0,x1\n", "has a header and no rows of data"),
    "binary.csv": (b"\x89PNG\xff\xfe\x00", "is not text in UTF-8; save it as CSV in UTF-8"),
    "latin.csv": ("x0,x1,größe\n1,2,3".encode("latin-1"), "is not text in UTF-8"),
    "endless.csv": (b'x0,x1\n"' + b"a" * 200_000, r"is not a CSV file \(field larger than field limit"),
    "ragged.csv": (b"x0,x1\n1,2\n3\n", "line 3: has 1 cells, expected 2 as in the first row"),
    "long.csv": (b"1,2\n3,4,5\n", "line 2: has 3 cells, expected 2"),
    "text.csv": (b"x0,x1\n1,2\n3,high\n", r"line 3, column 2 \(x1\): expected a finite number, found 'high'$"),
    "nameless.csv": (b"1,2\n\n3,high\n", "line 3, column 2: expected a finite number, found 'high'$"),
    "gap.csv": (b"x0,x1\n1,\n", r"line 2, column 2 \(x1\): expected a finite number, found an empty cell$"),
    "nan.csv": (b"x0,x1\n1,2\nnan,3\n", r"line 3, column 1 \(x0\): expected a finite number, found 'nan'$"),
    "inf.csv": (b"x0,x1\n1,inf\n-inf,NA\n", r"line 2, column 2 \(x1\): .* found 'inf'; 2 more cells like it$"),
    "semicolons.csv": (
        b"x0;x1\n1;2\n",
        "lacks the column 'x0' .and 1 more., found x0;x1; write it with commas between cells",
    ),
    "first.csv": (
        b"1,high\n2,3\n",
        "line 1, column 2: expected a number, as in column 1, found 'high'; a header has no",
    ),
    "narrow.csv": (b"1\n2\n", "has 1 columns, expected 2: x0, x1$"),
    "wide.csv": (b"1,2,3\n", "has 3 columns, expected 2: x0, x1$"),
    "lacking.csv": (b"x0,x2\n1,2\n", "lacks the column 'x1', found x0, x2; give"),
    "double.csv": (b"x0,x1,x1\n1,2,3\n", "has the column 'x1' 2 times, expected once"),
    "control.csv": (b"x0,x1\n1,\x1b[31m\n", r"found '\\x1b\[31m'$"),
    "far.csv": (b"1,2\n1e300,0\n", "row 1, counted from 0: is too far from every component of a.safetensors"),
    # arrays
    "empty.npy": (b"", "is empty"),
    "text.npy": (b"x0,x1\n1,2\n", "is not a .npy file; write it with numpy.save$"),
    "pickle.npy": (pickle.dumps(ROWS), "is not a .npy file"),
    "objects.npy": (npy(TRAPPED, allow_pickle=True), "holds Python objects, which are never loaded; save an array of"),
    "cut.npy": (npy(ROWS)[:-8], "is damaged or not an array of numbers"),
    "header.npy": (npy(ROWS)[:40], "is damaged or not an array of numbers"),
    "malice.npy": (npy(ROWS).replace(b"'descr'", b"exit() "), "is damaged or not an array of numbers"),
    "words.npy": (npy(np.array([["a", "b"]])), "expected numbers, found an array of type <U1"),
    "complex.npy": (npy(ROWS + 1j), "expected numbers, found an array of type complex128"),
    "vector.npy": (npy(ROWS[0]), r"expected an array \(rows, columns\), found shape \(2,\)"),
    "cube.npy": (npy(ROWS[None]), r"found shape \(1, 6, 2\)"),
    "wide.npy": (npy(np.ones((4, 5))), "has 5 columns, expected 2: x0, x1$"),
    "none.npy": (npy(np.ones((0, 2))), "has no rows"),
    "nan.npy": (
        npy(np.where(np.eye(6, 2, -3) > 0, np.nan, ROWS)),
        r"row 3, column 0 \(x0\), counted from 0: .* found nan; 1 more like it$",
    ),
    "infs.npy": (npy(np.full((2, 2), np.inf)), "row 0, column 0 .* found inf; 3 more like it$"),
    # archives
    "empty.npz": (b"", "is empty"),
    "array.npz": (npy(ROWS), "is not a .npz file; write it with numpy.savez$"),
    "several.npz": (npz(x=ROWS, y=ROWS), "holds 2 arrays, expected one: x, y$"),
    "nothing.npz": (npz(), "holds 0 arrays, expected one"),
    "objects.npz": (npz(x=TRAPPED), "holds Python objects, which are never loaded"),
    "cut.npz": (npz(x=ROWS)[:-30], "is damaged or not an array of numbers"),
    "stray.npz": (out_of_range(), "is damaged or not an array of numbers: .*ind"),
    "strange.npz": (npz(format=b"csr", shape=[6, 2], data=ROWS), "is damaged or not an array of numbers"),
    # other files
    "data.txt": (b"1,2\n", "expected a file named .csv, .parquet, .npy or .npz"),
    "data.xlsx": (b"PK\x03\x04", "expected a file named .csv, .parquet, .npy or .npz"),
    "data": (b"1,2\n", "expected a file named .csv, .parquet, .npy or .npz"),
}


def refused(done, name, message):
    assert (done.code, done.out) == (1, "")
    (line,) = done.complaints()
    assert re.search(f"^{re.escape(name)}: .*{message}", line), line


@pytest.mark.parametrize("name", DATA)
def test_bad_data_are_refused_and_named(folder, command, unchanged, name):
    (folder / name).write_bytes(DATA[name][0])
    unchanged()
    refused(command("evaluate", *TWO, "--data", name), name, DATA[name][1].removeprefix("^"))
    assert not (folder / TRAP).exists()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) for name in ("text.csv", "objects.npy", "stray.npz", "far.csv")],
)
def test_a_process_refuses_bad_data_too(folder, process, name):
    (folder / name).write_bytes(DATA[name][0])
    refused(process("evaluate", *TWO, "--data", name), name, DATA[name][1])


@pytest.mark.parametrize("kind", ["csv", "npy", "npz"])
def test_what_is_no_file_is_refused(folder, command, kind):
    (folder / f"folder.{kind}").mkdir()
    refused(
        command("evaluate", *TWO, "--data", f"folder.{kind}"), f"folder.{kind}", "Is a directory; give a file in it$"
    )
    refused(
        command("evaluate", *TWO, "--data", f"no.{kind}"),
        f"no.{kind}",
        "cannot be read: No such file or directory; give ",
    )
    long = "n" * 300 + f".{kind}"
    refused(command("evaluate", *TWO, "--data", long), long, "cannot be read: File name too long$")
    with pytest.raises(cs.errors.InputError, match="cannot be read: embedded null byte"):
        cs.evaluate(*TWO, f"zero\0.{kind}")


def test_an_archive_that_unpacks_to_more_than_memory_is_refused(folder, command):
    header = npy(np.zeros((1, 2))).split(b"\n")[0].replace(b"(1, 2), }", b"(%d, 2)}" % 10**15)
    with zipfile.ZipFile(folder / "bomb.npz", "w") as archive:
        archive.writestr("x.npy", header.ljust(127) + b"\n")
    refused(command("evaluate", *TWO, "--data", "bomb.npz"), "bomb.npz", "more than fits in memory|is damaged")


LABELS = {
    "nowhere": (None, "'nowhere' is neither a column of data.csv nor a file$"),
    "few.txt": ("a\nb\n", r"expected one class for each of the 6 rows, found shape \(1,\)$"),
    "many.txt": ("a\n" * 9, r"found shape \(8,\)$"),
    "gap.csv": ("1,2\n" * 6, "has 2 columns, expected one: the class of every row$"),
    "nan.txt": ("1\n2\nnan\n1\n2\n1\n", "row 2, counted from 0: expected a class, found none$"),
    "empty.txt": ("", "is empty$"),
}


@pytest.mark.parametrize("name", LABELS)
def test_bad_labels_are_refused(folder, command, unchanged, name):
    (folder / "data.csv").write_text("x0,x1\n" + "\n".join(f"{a},{b}" for a, b in ROWS))
    text, message = LABELS[name]
    if text is not None:
        (folder / name).write_text(text)
    unchanged()
    whose = name if "columns" in message or "empty" in message else "--labels"
    refused(command("evaluate", *TWO, "--data", "data.csv", "--labels", name), whose, message)


@pytest.mark.parametrize("labels", [[1, 2], np.ones((6, 1)), [1, 2, None, 1, 2, 3], ["", *"abcde"], 5, sparse.eye(6)])
def test_bad_labels_of_the_function_are_refused(folder, labels):
    with pytest.raises(
        cs.errors.InputError, match=r"^labels: (expected one class|row \d, counted from 0: expected a class)"
    ):
        cs.evaluate(*TWO, ROWS, labels=labels)


@pytest.mark.parametrize("data", [None, 5, "abc", [], [[1, 2], [3]], [["a", "b"]], [[None, object()]], {"x0": 1}])
def test_bad_data_of_the_function_are_refused(folder, data):
    with pytest.raises(cs.errors.InputError, match=r"^(data|abc): (expected|has)"):
        cs.evaluate(*TWO, data)


MODELS = {
    "other kind": (
        lambda: KMeans(2, n_init=1).fit(ROWS),
        "is a sklearn.KMeans, expected a sklearn.Bayesian.* as a.safe",
    ),
    "other width": (lambda: mixture(site(1, dim=3)), "has 3 columns, expected 2 as a.safetensors$"),
    "other names": (lambda: mixture(site(1, names=("x0", "y"))), "has other features: number 1 is 'y', expected 'x1'"),
    "other order": (lambda: mixture(site(1, names=("x1", "x0"))), "has the same features in another order"),
    "no model": (lambda: site(1), "no library's model, which has no score"),
    "unknown": (lambda: replace(site(1), source={"kind": "prophet.Oracle"}), "cannot rebuild a 'prophet.Oracle'"),
    "lacking": (lambda: replace(site(1), source={"kind": "sklearn.KMeans"}), "a KMeans has .* components, found"),
}


def mixture(posterior):
    """Return a posterior as one of scikit-learn's mixtures."""
    source = {"kind": "sklearn.BayesianGaussianMixture", "covariance_type": "full"}
    source |= {"weight_concentration_prior_type": "dirichlet_distribution"}
    concentration = cs.Attached(np.array(1.0), (), "mean")
    return replace(posterior, source=source, attached={"weight_concentration_prior": concentration})


@pytest.fixture(autouse=True)
def models(folder):
    """The files a and b, as files of models that have a score."""
    for seed, name in enumerate(TWO):
        (folder / name).write_bytes(content(mixture(site(seed))))


@pytest.mark.parametrize("case", MODELS)
def test_models_that_cannot_be_compared_are_refused(folder, command, unchanged, case):
    make, message = MODELS[case]
    cs.save(make(), folder / "c.safetensors", min_count=0)  # one of the centres is that of a single row
    np.save(folder / "data.npy", ROWS)
    unchanged()
    refused(command("evaluate", "a.safetensors", "c.safetensors", "--data", "data.npy"), "c.safetensors", message)


@pytest.mark.parametrize("name", [name for name in LISTED if not name.startswith("other-")])
@pytest.mark.parametrize("place", [0, 1])
def test_bad_model_files_are_refused(folder, command, unchanged, name, place):
    (folder / "c.safetensors").write_bytes(BAD[name][0])
    np.save(folder / "data.npy", ROWS)
    unchanged()
    files = [*TWO]
    files[place] = "c.safetensors"
    refused(command("evaluate", *files, "--data", "data.npy"), "c.safetensors", BAD[name][1])


def test_models_of_the_function_are_named_by_their_role(folder):
    with pytest.raises(
        cs.errors.UnsupportedError,
        match=r"^your own model: no adapter for builtins\.int; there are some for mixtures, .* \[E-MODEL\]$",
    ):
        cs.evaluate("a.safetensors", 5, ROWS)
    with pytest.raises(
        cs.errors.InputError, match=r"^the fused model: this KMeans is not fitted yet; call fit first \[E-UNFITTED\]$"
    ):
        cs.evaluate(KMeans(), "a.safetensors", ROWS)


def test_what_are_not_counts_of_words_are_refused(folder, command):
    model = LatentDirichletAllocation(2, max_iter=1, random_state=0).fit(np.arange(12).reshape(6, 2))
    for name in TWO:
        cs.save(model, folder / name)
    for values, message in (
        (ROWS**2, r"row 0, column 0 \(counted from 0\): expected a number of tokens"),
        (np.eye(2), "none of"),
    ):
        np.save(folder / "data.npy", values)
        refused(command("evaluate", *TWO, "--data", "data.npy"), "data.npy", message)


USAGE = {
    "": "Missing argument 'FUSED'",
    "a.safetensors": "Missing argument 'OWN'",
    "a.safetensors b.safetensors": "Missing option '--data'",
    "a.safetensors b.safetensors c.safetensors --data d.csv": "unexpected extra argument",
}


@pytest.mark.parametrize("words", USAGE)
def test_usage_is_explained(command, words):
    done = command("evaluate", *words.split())
    assert (done.code, done.out) == (2, "")
    assert USAGE[words] in done.err


def test_semicolons_are_seen_where_the_columns_have_no_names(tmp_path):
    (tmp_path / "rows.csv").write_text("a;b\n1;2\n")
    with pytest.raises(cs.errors.InputError, match="has 1 columns, expected 2; write it with commas between cells"):
        read_observations(tmp_path / "rows.csv", None, ExpectedColumns(2, None, False))
