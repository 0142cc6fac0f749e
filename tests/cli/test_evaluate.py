"""``consilience evaluate`` when all is well: every form of data, labels, JSON."""

import contextlib
import json
import shutil

import numpy as np
import pytest
from scipy import sparse
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.mixture import GaussianMixture

import consilience as cs

FILES = ("fused.safetensors", "own.safetensors")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with the models of two sites of two groups each and the fused one, and held-out rows of all groups."""
    made = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(0)
    groups = np.repeat([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]], 60, axis=0) + rng.normal(size=(180, 2))
    features = cs.Features(names=("age", "weight"))
    models = [GaussianMixture(2, random_state=0).fit(groups[part]) for part in (slice(0, 120, 2), slice(60, 180, 2))]
    for name, model in zip(("own", "other"), models, strict=True):
        cs.save(model, made / f"{name}.safetensors", n_observations=60, features=features)
    with contextlib.chdir(made):  # files are named as a user in the folder names them
        cs.fuse(["own.safetensors", "other.safetensors"], n_components=3).save("fused.safetensors")
    return made, groups[1::2]


@pytest.fixture
def rows(files, folder):
    """Held-out rows of a site that knows two groups of three, beside its model and the fused one."""
    made, held_out = files
    shutil.copytree(made, folder, dirs_exist_ok=True)
    return held_out.copy()


def csv(path, values, header=None, last=None):
    lines = [] if header is None else [header]
    for number, row in enumerate(values.tolist()):
        lines.append(",".join(map(repr, row)) + ("" if last is None else f",{last[number]}"))
    path.write_text("\n".join(lines) + "\n")


def test_it_says_what_the_function_finds(folder, rows, command):
    csv(folder / "data.csv", rows, "age,weight")
    done = command("evaluate", *FILES, "--data", "data.csv")
    assert (done.code, done.err) == (0, "")
    expected = cs.evaluate(*FILES, rows)
    assert done.out == f"{expected}\n"
    assert done.out.startswith("the fused model is better by ")
    assert sorted(path.name for path in folder.glob("*.csv")) == ["data.csv"]


def write_npz(path, values):
    np.savez(path, rows=values)


def write_sparse(path, values):
    sparse.save_npz(path, sparse.csr_array(values))


FORMS = {
    "names.csv": lambda path, values: csv(path, values, "age,weight"),
    "order.csv": lambda path, values: csv(path, values[:, ::-1], "weight,age"),
    "others.csv": lambda path, values: csv(path, np.hstack([values + 5, values[:, ::-1]]), "id,,weight,age"),
    "spaces.csv": lambda path, values: csv(path, values, ' age ,"weight"'),
    "windows.csv": lambda path, values: path.write_bytes(
        b"\xef\xbb\xbfage,weight\r\n" + b"".join(f"{a!r},{b!r}\r\n".encode() for a, b in values.tolist()) + b"\r\n"
    ),
    "nameless.csv": csv,
    "CAPITALS.CSV": csv,
    "array.npy": lambda path, values: np.save(path, values),
    "columns.npy": lambda path, values: np.save(path, np.asfortranarray(values)),
    "array.npz": write_npz,
    "sparse.npz": write_sparse,
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_data_gives_the_same(folder, rows, command, name):
    FORMS[name](folder / name, rows)
    done = command("evaluate", *FILES, "--data", name)
    assert (done.code, done.err) == (0, "")
    assert done.out == f"{cs.evaluate(*FILES, rows)}\n"


def test_json_is_the_same_in_values(folder, rows, command):
    csv(folder / "data.csv", rows)
    done = command("evaluate", *FILES, "--data", "data.csv", "--json")
    assert json.loads(done.out) == json.loads(json.dumps(cs.evaluate(*FILES, rows).to_json()))
    csv(folder / "data.csv", rows[:1])
    single = json.loads(command("evaluate", *FILES, "--data", "data.csv", "--json").out)
    assert single["difference"]["standard_error"] is None


KINDS = np.repeat(["cat", "dog", "eel"], 30)
LABELS = {
    "column": lambda _folder: "kind",
    "file": lambda folder: write(folder / "kinds.txt", "\n".join(KINDS)),
    "file with a name": lambda folder: write(folder / "kinds.csv", "kind\n" + "\n".join(KINDS) + "\n"),
    "numbers": lambda folder: write(folder / "kinds.csv", "\n".join(map(str, np.repeat([3, 1, 2], 30)))),
    "array": lambda folder: np.save(folder / "kinds.npy", KINDS) or "kinds.npy",
}


def write(path, text):
    path.write_text(text)
    return path.name


@pytest.mark.parametrize("case", LABELS)
@pytest.mark.parametrize("header", ["age,weight,kind", "kind"])
def test_labels_may_stand_in_a_column_or_a_file(folder, rows, command, case, header):
    if header == "kind":
        (folder / "data.csv").write_text(
            "kind,age,weight\n"
            + "\n".join(f"{kind},{a!r},{b!r}" for kind, (a, b) in zip(KINDS, rows.tolist(), strict=True))
        )
    else:
        csv(folder / "data.csv", rows, header, KINDS)
    done = command("evaluate", *FILES, "--data", "data.csv", "--labels", LABELS[case](folder))
    assert (done.code, done.err) == (0, "")
    assert done.out == f"{cs.evaluate(*FILES, rows, labels=KINDS)}\n"
    assert "adjusted mutual information with the classes" in done.out


def test_labels_are_no_column_of_models_without_names(folder, rows, command):
    for name in FILES:
        posterior = cs.load(name)
        cs.save(cs.describe(posterior, features=cs.Features()), name)
    csv(folder / "data.csv", rows, "x,y,kind", KINDS)
    assert command("evaluate", *FILES, "--data", "data.csv", "--labels", "kind").code == 0
    (line,) = command("evaluate", *FILES, "--data", "data.csv").complaints()
    assert line == "data.csv: has 3 columns, expected 2"


class Table:
    """As much of a data frame as evaluation uses."""

    def __init__(self, columns):
        self.held = columns
        self.columns = list(columns)

    def __getitem__(self, names):
        return Table({name: self.held[name] for name in names}) if isinstance(names, list) else Column(self.held[names])

    def to_numpy(self):
        return np.stack(list(self.held.values()), axis=1)


class Column:
    def __init__(self, values):
        self.values = values

    def to_numpy(self):
        return self.values


def test_a_table_with_named_columns_is_taken_by_name(rows):
    table = Table({"kind": KINDS, "weight": rows[:, 1], "age": rows[:, 0]})
    assert str(cs.evaluate(*FILES, table, labels="kind")) == str(cs.evaluate(*FILES, rows, labels=KINDS))
    with pytest.raises(
        cs.errors.InputError, match=r"^data: lacks the column 'age', found weight; give the columns of the models"
    ):
        cs.evaluate(*FILES, Table({"weight": rows[:, 1]}))


@pytest.mark.parametrize("form", ["csv", "npy", "npz"])
def test_topics(folder, command, form):
    documents = np.random.default_rng(0).multinomial(30, np.full(20, 0.05), 60)
    models = [LatentDirichletAllocation(3, max_iter=2, random_state=seed).fit(documents[seed::3]) for seed in (0, 1)]
    for model, name in zip(models, FILES, strict=True):
        cs.save(model, folder / name)
    held_out = np.vstack([documents[2::3], np.eye(20, dtype=int)[:1]])
    if form == "csv":
        csv(folder / "data.csv", held_out)
    elif form == "npy":
        np.save(folder / "data.npy", held_out)
    else:
        sparse.save_npz(folder / "data.npz", sparse.coo_array(held_out))
    done = command("evaluate", *FILES, "--data", f"data.{form}")
    assert (done.code, done.err) == (0, "")
    assert done.out == f"{cs.evaluate(*FILES, held_out)}\n"
    assert "log likelihood of held-out tokens, nats per token" in done.out
    assert "20 documents)" in done.out.splitlines()[0]
    assert "note: 1 documents were skipped" in done.out
