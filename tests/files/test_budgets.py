"""Few bytes never become much memory: tables, arrays and recipes that are bombs are refused before they are built."""

import io
import time
import tracemalloc
import zipfile

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from scipy import sparse

from consilience.core.recipe import parse_yaml
from consilience.errors import FileFormatError
from consilience.files.budget import allowed_memory
from consilience.files.csv import read_csv
from consilience.files.labelled_arrays import read_labelled_arrays
from consilience.files.npy import read_array
from consilience.files.tables import read_named_table, read_parquet
from consilience.posteriors.sharded.file import read_shard

SECONDS = 5.0
"""Of the processor: a second by the threat model, and tracing takes its share."""


def refused(path, read, match):
    """Assert that a reader refuses a file within its budget of memory and time."""
    with pytest.raises(FileFormatError):
        read(path)  # which imports what it takes
    tracemalloc.start()
    start = time.process_time()
    with pytest.raises(FileFormatError, match=match):
        read(path)
    seconds, peak = time.process_time() - start, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= allowed_memory(path.stat().st_size)
    assert seconds < SECONDS


LONG = [b"a" * 100_000] * 2000
PLAIN = {"compression": "none", "use_dictionary": False}
SHARDS = {
    "dictionary": (lambda: {"natural": LONG}, {"compression": "none"}),
    "differences": (lambda: {"natural": LONG}, {**PLAIN, "column_encoding": "DELTA_BYTE_ARRAY"}),
    "zstd": (lambda: {"natural": LONG}, {"compression": "zstd", "use_dictionary": False}),
    "nulls": (lambda: {"natural": pyarrow.nulls(5_000_000, pyarrow.binary(800))}, PLAIN),
    "nested": (lambda: {"natural": [LONG[:1]] * 3}, PLAIN),
}


@pytest.mark.parametrize("name", SHARDS)
def test_parquet_shards_are_plain_values(tmp_path, name):
    columns, how = SHARDS[name]
    parquet.write_table(pyarrow.table(columns()), tmp_path / "bomb.parquet", **how)
    refused(tmp_path / "bomb.parquet", lambda path: read_shard(path, str(path)), "expected plain values|fewer bytes")


TABLES = {"zeros": lambda: np.zeros(5_000_000), "nothing": lambda: pyarrow.nulls(5_000_000, pyarrow.float64())}


@pytest.mark.parametrize("name", TABLES)
def test_parquet_data_take_no_more_than_their_size_allows(tmp_path, name):
    parquet.write_table(pyarrow.table({"x": TABLES[name]()}), tmp_path / "bomb.parquet")
    refused(tmp_path / "bomb.parquet", read_parquet, "over 10 times its size; write it as CSV")


def test_texts_of_a_dictionary_are_read_as_numbers_of_entries(tmp_path):
    parquet.write_table(pyarrow.table({"s": ["a" * 1000, "b"] * 50_000}), tmp_path / "a.parquet")
    column = read_parquet(tmp_path / "a.parquet").take(0)
    assert (len(column), column[1], len(set(map(id, column)))) == (100_000, "b", 2)


def npy(header):
    """Return a .npy file without numbers."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue()


def test_arrays_take_no_more_than_their_size_allows(tmp_path):
    np.savez_compressed(tmp_path / "zeros.npz", x=np.zeros(20_000_000))
    for read in (read_array, read_labelled_arrays):
        refused(tmp_path / "zeros.npz", read, "over 10 times its size; write it without compression")
    says = npy({"descr": "<f8", "fortran_order": False, "shape": (2**40, 2**20)})
    with zipfile.ZipFile(tmp_path / "says.npz", "w") as archive:
        archive.writestr("x.npy", says)
    (tmp_path / "says.npy").write_bytes(says)
    for name in ("says.npz", "says.npy"):
        refused(tmp_path / name, read_array, "its header says .* bytes of numbers, and 0 are there")
    sparse.save_npz(tmp_path / "rows.npz", sparse.coo_array(([1.0], ([5], [1])), shape=(2**31 - 1, 3)))
    refused(tmp_path / "rows.npz", read_array, "over 10 times its size")


def test_headers_of_arrays_take_no_more_than_a_header_may(tmp_path):
    """NumPy asks for as many bytes at once as a header says that it has, of format 2 up to 4 GiB."""
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x02\x00" + (2**29).to_bytes(4, "little") + b"{" + bytes(600))
    tracemalloc.start()
    try:
        with pytest.raises(FileFormatError, match="is damaged or not an array"):
            read_array(tmp_path / "a.npy")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_honest_arrays_are_read(tmp_path, save):
    values = np.random.default_rng(0).normal(size=(500, 3))
    save(tmp_path / "a.npz", x=values, y=np.arange(500))
    both = read_labelled_arrays(tmp_path / "a.npz")
    np.testing.assert_array_equal(both.inputs, values)
    np.testing.assert_array_equal(both.labels, np.arange(500))
    sparse.save_npz(tmp_path / "s.npz", sparse.csr_array(values))
    np.testing.assert_array_equal(read_array(tmp_path / "s.npz").toarray(), values)


@pytest.mark.parametrize("cell", ["7", "ab", "1.5e3", ""])
def test_cells_of_tables_take_no_more_than_their_size_allows(tmp_path, cell):
    path = tmp_path / "rows.csv"
    path.write_text("a,b,c\n" + f"{cell},{cell},1\n" * 40_000)
    read_csv(path)
    tracemalloc.start()
    if cell[:1].isdigit():
        assert read_csv(path).numbers([0, 1, 2]).shape == (40_000, 3)
    else:
        read_named_table(path).take(0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= allowed_memory(path.stat().st_size)


def test_a_line_of_too_many_cells_and_one_long_text_are_refused(tmp_path):
    path = tmp_path / "wide.csv"
    path.write_text("ab," * 400_000 + "ab\n")
    refused(path, read_csv, "a line of far more cells than the size of the file accounts for")
    path.write_text("a,b\n" + "x" * 100_000 + ",1\n" + "y,1\n" * 20_000)
    refused(path, lambda path: read_named_table(path).take(0), "over 10 times its size; write it in shorter cells")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_rows_of_tables_are_those_of_the_csv_module(tmp_path, end):
    lines = ["\ufeffname,note,x", "", 'a,"two, words",1', '"b",""" and",2', 'c,"over', "", 'lines",3', "é,\u2028,4"]
    (tmp_path / "a.csv").write_bytes(end.join(lines).encode())
    table = read_csv(tmp_path / "a.csv")
    rows = [["a", "two, words", "1"], ["b", '" and', "2"], ["c", f"over{end * 2}lines", "3"], ["é", "\u2028", "4"]]
    assert (table.header, list(table.rows)) == (("name", "note", "x"), rows)
    assert [table.rows[place] for place in range(4)] == rows
    assert list(table.lines) == [3, 4, 7, 8]


BOMBS = {
    "aliases": "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]",
    "merge keys": "a: {x: 1}\nb: {<<: {y: 2}}",
    "hexadecimal": "seed: 0x" + "f" * 2000,
    "digits": "seed: " + "9" * 3000,
    "brackets": "[" * 20_001,
    "depth": "[" * 65 + "]" * 65,
    "binary": "a: !!binary aGVsbG8=",
    "objects": "a: !!python/object/apply:os.system [ls]",
    "long text": "a: " + "x" * 5000,
    "many values": "[" + "1," * 21_000 + "1]",
    "bytes": "#" * 2**17 + "\na: 1",
}


@pytest.mark.parametrize("name", BOMBS)
def test_recipes_that_are_bombs_are_refused_before_they_are_built(name):
    start = time.process_time()
    with pytest.raises(ValueError, match=r"has|more than|nested too deeply") as error:
        parse_yaml(BOMBS[name])
    assert time.process_time() - start < SECONDS
    assert len(str(error.value)) <= 300


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1:60:60", "1:60:60"), ("12:30:00", "12:30:00"), ("2001-01-01", "2001-01-01"), ("1e-6", 1e-6), ("0x1F", 31),
        ("18446744073709551615", 2**64 - 1), ("0.00012345678901234567", 0.00012345678901234567), ("yes", True),
        ("~", None), ("-1.5E+3", -1500.0), (".inf", float("inf")), ("1.2.3", "1.2.3"), ("1e", "1e"),
    ],
)  # fmt: skip
def test_plain_values_of_recipes(text, value):
    assert parse_yaml(text) == value
