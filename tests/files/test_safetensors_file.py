"""One reader of safetensors: whole tensors, mapped ones and rows are the same numbers, in NumPy and in torch."""

import hashlib
import sys

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import save_file as save_torch

from consilience.errors import FileFormatError
from consilience.files.safetensors_file import SafetensorsFile

NUMPY_TYPES = [np.float64, np.float32, np.float16, np.int64, np.int32, np.int8, np.uint8, np.bool_]
TORCH_TYPES = [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float32]


@pytest.fixture
def numpy_file(tmp_path):
    rng = np.random.default_rng(0)
    tensors = {np.dtype(kind).name: (100 * rng.normal(size=(5, 3))).astype(kind) for kind in NUMPY_TYPES}
    tensors |= {"scalar": np.array(7.0), "empty": np.zeros((0, 4)), "deep": rng.normal(size=(2, 3, 4))}
    save_numpy(tensors, tmp_path / "numpy.safetensors")
    return tmp_path / "numpy.safetensors", tensors


@pytest.fixture
def torch_file(tmp_path):
    generator = torch.Generator().manual_seed(0)
    tensors = {str(kind): torch.randn(5, 3, generator=generator).to(kind) for kind in TORCH_TYPES}
    save_torch(tensors, tmp_path / "torch.safetensors")
    return tmp_path / "torch.safetensors", tensors


@pytest.mark.parametrize("how", ["arrays", "mapped_arrays"])
def test_numbers_in_types_of_numpy_are_read_into_its_arrays(numpy_file, how):
    path, tensors = numpy_file
    found = getattr(SafetensorsFile(path), how)()
    assert set(found) == set(tensors)
    for name, values in tensors.items():
        assert isinstance(found[name], np.ndarray)
        assert (found[name].dtype, found[name].shape) == (values.dtype, values.shape)
        assert np.array_equal(found[name], values)
    backwards = getattr(SafetensorsFile(path), how)(sorted(tensors, reverse=True))
    assert list(backwards) == sorted(tensors, reverse=True)
    assert all(np.array_equal(backwards[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("how", ["arrays", "mapped_arrays"])
def test_where_any_type_is_not_numpys_all_are_read_into_tensors(torch_file, how):
    path, tensors = torch_file
    found = getattr(SafetensorsFile(path), how)()
    assert set(found) == set(tensors)
    for name, values in tensors.items():
        assert isinstance(found[name], torch.Tensor)
        assert found[name].dtype == values.dtype
        assert torch.equal(found[name].view(torch.uint8), values.view(torch.uint8))


def test_what_is_mapped_can_be_changed_and_the_file_stays_as_it_was(numpy_file):
    path, tensors = numpy_file
    before = path.read_bytes()
    found = SafetensorsFile(path).mapped_arrays()
    found["float64"][0, 0] = 123.0
    assert path.read_bytes() == before
    assert np.array_equal(SafetensorsFile(path).arrays()["float64"], tensors["float64"])


def test_the_digest_of_a_file_is_taken_while_it_is_read(numpy_file):
    file = SafetensorsFile(numpy_file[0])
    file.arrays()
    assert file.sha256 == hashlib.sha256(numpy_file[0].read_bytes()).hexdigest()


@pytest.mark.parametrize(("first", "end"), [(0, None), (0, 2), (1, 4), (4, 5), (2, 2), (3, None), (0, 100)])
def test_rows_are_those_of_the_whole_tensor(numpy_file, first, end):
    path, tensors = numpy_file
    with SafetensorsFile(path).rows() as rows:
        for name, values in tensors.items():
            expected = values[first:end] if values.ndim else values
            found = rows(name, first, end)
            assert found.dtype == values.dtype
            assert np.array_equal(found.reshape(expected.shape), expected), name


def test_rows_are_read_without_torch(numpy_file, monkeypatch):
    path, tensors = numpy_file
    monkeypatch.setitem(sys.modules, "torch", None)
    with SafetensorsFile(path).rows() as rows:
        assert np.array_equal(rows("float32", 1, 4), tensors["float32"][1:4])


def test_rows_of_a_file_that_was_replaced_are_refused(numpy_file):
    path, tensors = numpy_file
    file = SafetensorsFile(path)
    file.header()
    save_numpy({**tensors, "one more": np.zeros(3)}, path)
    with pytest.raises(FileFormatError, match="was replaced after it was opened"), file.rows():
        pass
