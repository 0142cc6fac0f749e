"""Laws of files of curves and surfaces."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from consilience.errors import FileFormatError, InputError
from consilience.networks.landscape.barrier import Barrier, barrier
from consilience.networks.landscape.plane import Plane, plane
from tests.networks.landscape_nets import make, task


def test_saved_curves_and_surfaces_come_back_identical(tmp_path):
    nets = [make("perceptron", seed) for seed in (1, 2, 3)]
    evaluate = task("perceptron", nets[0])
    curve = barrier(*nets[:2], evaluate, points=5)
    curve = Barrier(curve.t, {**curve.values, "broken": np.array([0.0, 1.0, np.inf, 1.0, 0.1])})
    curve.save(tmp_path / "line.safetensors")
    loaded = Barrier.load(tmp_path / "line.safetensors")
    assert list(loaded.values) == list(curve.values)
    assert loaded.summary() == curve.summary()
    assert_array_equal(loaded.t, curve.t)
    surface = plane(*nets, evaluate, points=3, marked={"fused": nets[0], "a": nets[1]})
    surface.save(str(tmp_path / "plane.safetensors"))
    again = Plane.load(str(tmp_path / "plane.safetensors"))
    assert again.markers == surface.markers
    assert (again.dx, again.dy, list(again.values)) == (surface.dx, surface.dy, list(surface.values))
    for name in ("alphas", "betas"):
        assert_array_equal(getattr(again, name), getattr(surface, name))
    for name, values in surface.values.items():
        assert_array_equal(again.values[name], values)


def test_the_same_curve_gives_the_same_bytes(tmp_path):
    curve = Barrier(np.array([0.0, 0.5, 1.0]), {"loss": np.array([1.0, 4.0, 3.0])})
    for name in "ab":
        curve.save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_files_of_something_else_are_refused(tmp_path):
    from safetensors.numpy import save_file

    curve = Barrier(np.array([0.0, 0.5, 1.0]), {"loss": np.array([1.0, 4.0, 3.0])})
    path = tmp_path / "line.safetensors"
    curve.save(path)
    with pytest.raises(FileFormatError, match=r"line.safetensors: is a loss barrier, expected a plane file"):
        Plane.load(path)
    with pytest.raises(FileFormatError, match="cannot be read: No such file"):
        Barrier.load(tmp_path / "none.safetensors")
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(FileFormatError, match="truncated or not a safetensors file"):
        Barrier.load(path)
    arrays = {"t": np.array([0.0, 1.0])}
    header = '{"format": "consilience-%s", "format_version": 1, "library_version": "0", "names": %s}'
    for kind, names in (("barrier", '{"values": ["loss"]}'), ("plane", '{"markers": []}')):
        save_file(arrays, path, metadata={"consilience": header % (kind, names)})
        with pytest.raises(FileFormatError, match="is damaged"):
            {"barrier": Barrier, "plane": Plane}[kind].load(path)
    for metadata in (None, {"consilience": "[]"}):
        save_file(arrays, path, metadata=metadata)
        with pytest.raises(FileFormatError, match=r"metadata.*write it with"):
            Barrier.load(path)
    save_file(arrays, path, metadata={"consilience": "{"})
    with pytest.raises(FileFormatError, match="metadata is not valid JSON"):
        Barrier.load(path)


def test_curves_and_surfaces_of_the_wrong_shape_are_refused():
    with pytest.raises(InputError, match="ascending places from 0 to 1"):
        Barrier(np.array([0.0, 0.7]), {})
    with pytest.raises(InputError, match="expected curves of 2 numbers"):
        Barrier(np.array([0.0, 1.0]), {"loss": np.zeros(3)})
    with pytest.raises(InputError, match=r"surfaces of shape \(2, 3\)"):
        Plane(np.zeros(3), np.zeros(2), 1.0, 1.0, {"loss": np.zeros((3, 2))}, ())


def test_results_cannot_be_changed_by_accident():
    values = np.array([1.0, 4.0, 3.0])
    curve = Barrier(np.array([0.0, 0.5, 1.0]), {"loss": values})
    with pytest.raises(ValueError, match="read-only"):
        curve.curve()[0] = 3.0
    values[0] = 9.0
    assert curve.curve()[0] == 1.0
