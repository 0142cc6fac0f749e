"""Quotas of files from strangers: told from the header, and the memory that headers may cost."""

import struct

import numpy as np
import pytest
from safetensors.numpy import save_file

import consilience as cs
from consilience import families as f
from consilience.files.budget import allowed_memory, pad_text
from consilience.files.limits import Limits, exceeded_limits


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "site.safetensors"
    cs.save(cs.Posterior(f.Gamma(), f.Gamma().to_natural(shape=[2.0, 3.0], rate=[1.0, 1.0])), path)
    return path


def test_a_file_within_its_limits_is_taken(path):
    assert exceeded_limits(path, Limits()) == []
    assert exceeded_limits(path, Limits(path.stat().st_size, 10_000, 1, 2, 4)) == []


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"file_bytes": 100}, "bytes, which is more than the 100 that are taken here"),
        ({"header_bytes": 100}, "bytes of header, which is more than the 100"),
        ({"components": 1}, "has 2 components, which is more than the 1"),
        ({"parameters": 3}, "has 4 parameters, which is more than the 3"),
    ],
)
def test_what_is_beyond_a_limit_is_told(path, limits, message):
    (line,) = exceeded_limits(path, Limits(**limits))
    assert line.startswith(f"{path}: has ")
    assert message in line


def test_tensors_are_counted(tmp_path):
    save_file({"a": np.zeros(1), "b": np.zeros(1)}, tmp_path / "x")
    (line,) = exceeded_limits(tmp_path / "x", Limits(tensors=1))
    assert "has 2 tensors" in line


@pytest.mark.parametrize("content", [b"", b"abc", struct.pack("<Q", 10**12), struct.pack("<Q", 2) + b"[]"])
def test_what_is_no_safetensors_file_is_told_too(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    (line,) = exceeded_limits(tmp_path / "x", Limits())
    assert line.startswith(str(tmp_path / "x"))


@pytest.mark.parametrize("name", ["nowhere", "\0", ""])
def test_what_cannot_be_read_is_told_too(tmp_path, name):
    (line,) = exceeded_limits(tmp_path / name, Limits())
    assert "cannot be read" in line


def test_a_header_is_not_read_before_its_length_is_small_enough(tmp_path):
    (tmp_path / "x").write_bytes(struct.pack("<Q", 5000) + b"\xff" * 5000)  # what no parser takes
    (line,) = exceeded_limits(tmp_path / "x", Limits(header_bytes=1000))
    assert "bytes of header" in line


@pytest.mark.parametrize("value", [0, -1, 1.5, True, None])
def test_a_limit_is_a_positive_integer(value):
    with pytest.raises(cs.errors.OptionError, match="limit tensors must be a positive integer"):
        Limits(tensors=value)


def test_padding_is_for_long_lists_only():
    assert pad_text('{"a": [1, 2, 3]}', 0) == '{"a": [1, 2, 3]}'
    text = '{"a": [' + ",".join(['{"b": 1}'] * 20_000) + "]}"
    assert len(pad_text(text, 0)) > len(text)
    assert pad_text(text, 10**8) == text


def test_a_list_that_nobody_would_read_again_is_not_written():
    with pytest.raises(cs.errors.InputError, match="consilience pack"):
        pad_text(":" * 300_000, 10**9)


def test_reading_may_take_ten_times_a_file_and_a_mebibyte():
    assert allowed_memory(0) == 2**20
    assert allowed_memory(100) - allowed_memory(0) == 1000
