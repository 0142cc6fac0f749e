"""Engines carry maps and reduces without changing a bit of what comes out."""

from __future__ import annotations

import operator
from functools import partial, reduce

import numpy as np
import pytest

import consilience as cs
from consilience.engines import Engine, Local, make_engine
from consilience.engines.base import FAN_IN

VALUES = [np.random.default_rng(seed).standard_normal(7) for seed in range(70)]


def _load(number: int) -> np.ndarray:
    return VALUES[number]


def _scaled(values: np.ndarray, factor: float) -> np.ndarray:
    return factor * values


def _shifted(values: np.ndarray, shift: float, factor: float) -> np.ndarray:
    return factor * values + shift


def _added(parts: list[np.ndarray]) -> np.ndarray:
    return reduce(operator.add, parts)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("memory", [0, 3, 10**9], ids=["nothing kept", "some kept", "all kept"])
def test_local_threads_give_the_map_in_order_whatever_is_kept(threads: int, memory: int) -> None:
    engine = Local(threads, memory)
    shards = engine.place(_load, range(20), [1] * 20)
    for _ in range(2):
        results = engine.map(_shifted, shards, 2.0, each=list(range(20)))
        assert all(np.array_equal(result, 2.0 * VALUES[i] + i) for i, result in enumerate(results))


@pytest.mark.parametrize("count", [1, 2, FAN_IN, FAN_IN + 1, 70])
def test_the_reduce_is_one_tree_for_any_number_of_threads(count: int) -> None:
    results = [
        Local(threads).reduce(_scaled, _added, Local(threads).place(_load, range(count)), 0.1) for threads in (1, 2, 5)
    ]
    assert all(np.array_equal(result, results[0]) for result in results)
    np.testing.assert_allclose(results[0], 0.1 * np.sum(VALUES[:count], axis=0), rtol=1e-12, atol=1e-13)


def test_derived_shards_are_made_of_shards_and_kept_with_them() -> None:
    loads: list[int] = []

    def load(number: int) -> np.ndarray:
        loads.append(number)
        return VALUES[number]

    engine = Local(1, memory=2)
    derived = engine.derive(_scaled, engine.place(load, range(4), [1] * 4), 3.0)
    for _ in range(3):
        assert np.array_equal(engine.map(_scaled, derived, 1.0)[3], 3.0 * VALUES[3])
    assert loads.count(0) == loads.count(1) == 1
    assert loads.count(2) == loads.count(3) == 3


def test_an_error_in_a_shard_comes_through() -> None:
    engine = Local(2)
    shards = engine.place(_load, [0, 1, 999])
    with pytest.raises(IndexError):
        engine.map(_scaled, shards, 1.0)


def test_as_many_values_as_shards_are_told() -> None:
    engine = Local(1)
    with pytest.raises(ValueError, match="2 values for 3 shards"):
        engine.map(_shifted, engine.place(_load, range(3)), 1.0, each=[0.0, 1.0])


def test_an_engine_is_made_of_what_means_one() -> None:
    assert isinstance(make_engine(None), Local)
    assert isinstance(make_engine("local"), Local)
    own = Local(threads=1)
    assert make_engine(own) is own
    assert isinstance(own, Engine)


@pytest.mark.parametrize("engine", ["dusk", 3, object()])
def test_what_is_no_engine_is_refused_with_what_is(engine: object) -> None:
    with pytest.raises(cs.errors.OptionError, match=r"distributed\.Client"):
        make_engine(engine)


def test_a_scheduler_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import distributed

    monkeypatch.setattr(distributed, "Client", partial(_silent, distributed.Client))
    with pytest.raises(cs.errors.InputError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:1"):
        make_engine("tcp://127.0.0.1:1")


def _silent(_kind: object, address: str, **_options: object) -> None:
    raise OSError(f"timed out at {address}")
