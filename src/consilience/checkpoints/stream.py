"""The stream: one thread reads, some calculate, one writes, and two take digests, over a few buffers that go round.

Nothing is allocated in proportion to a model or a tensor. What a piece of a tensor becomes depends on nothing but the
piece and the facts of its tensor, so the number of threads and the size of pieces change no byte.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

import numpy as np

from consilience.checkpoints.buffers import (
    BUFFERS,
    PIECE,
    SLOTS,
    Slot,
    Strips,
    double,
    finite,
    finite_patterns,
    not_finite,
    of_length,
    piece_length,
)
from consilience.checkpoints.methods.base import BLOCK, Block, Facts, Floats, Setting
from consilience.checkpoints.numbers import FLOATS
from consilience.checkpoints.plan import Shard, Task
from consilience.checkpoints.tensor_reader import Bytes, Tail
from consilience.errors import InputError

_FLUSH = 256 * 2**20
"""After so many bytes the system is asked to bring them to the disk, so that the end need not wait for all."""


class Stream:
    """The threads and buffers of a merge.

    Parameters
    ----------
    threads
        How many calculate.
    hashing
        One thread for digests of the output.
    seed
        Of random choices.
    piece
        Entries of a piece at most, a multiple of a block.
    """

    def __init__(self, threads: int, hashing: ThreadPoolExecutor, seed: int, piece: int = PIECE) -> None:
        self._computing = ThreadPoolExecutor(threads, thread_name_prefix="merge")
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="write")
        self._flushing = ThreadPoolExecutor(1, thread_name_prefix="flush")
        self._hashing, self._seed, self._piece = hashing, seed, piece
        self._slots: SimpleQueue[Slot] = SimpleQueue()
        for _ in range(SLOTS):
            self._slots.put(Slot())
        self._scratch = threading.local()
        self._pending: deque[Future[Any]] = deque()

    def close(self) -> None:
        """End all threads; what has not begun is dropped."""
        for pool in (self._computing, self._writing, self._flushing):
            pool.shutdown(wait=True, cancel_futures=True)

    def write_shard(
        self,
        shard: Shard,
        path: Path,
        strips_of: Callable[[Task], Strips],
        facts_of: Callable[[Task], Facts],
        order: Callable[[Task], Any],
        done: Callable[[int], None],
    ) -> tuple[str, list[str]]:
        """Write one file; return its SHA-256, and the names of copied tensors in which models differ.

        Parameters
        ----------
        shard
            What to write.
        path
            Where to.
        strips_of
            Gives a tensor's bytes in all models, when its turn comes.
        facts_of
            Gives what is known of a tensor before any survey.
        order
            Key of the order in which tensors are read: that of the input, whatever that of the output.
        done
            Told how many bytes have been written.
        """
        head = shard.header
        starts, at = {}, len(head)
        for task in shard.tasks:
            starts[task.name] = at
            at += task.nbytes
        differing: list[str] = []
        with path.open("wb", buffering=0) as out:
            tail = Tail(self._hashing)
            self._put(out, tail, 0, head)
            flushed = 0
            for task in sorted(shard.tasks, key=order):
                strips = strips_of(task)
                if task.treatment.method is None:
                    self._copied(task, strips, out, tail, starts[task.name], differing)
                else:
                    self._merged(task, strips, facts_of(task), out, tail, starts[task.name])
                done(task.nbytes)
                flushed += task.nbytes
                if flushed >= _FLUSH:
                    flushed = 0
                    self._pending.append(self._flushing.submit(os.fsync, out.fileno()))
            self._settle()
            self._flushing.submit(os.fsync, out.fileno()).result()
        return tail.finish(path), differing

    def _settle(self, most: int = 0) -> None:
        """Wait until no more than `most` things are on their way; raise what went wrong in them."""
        while len(self._pending) > most:
            self._pending.popleft().result()

    def _pieces(self, strips: Strips, size: int) -> Iterator[tuple[int, int]]:
        """Yield where pieces start and how many entries they have."""
        piece = piece_length(sum(FLOATS[strip.dtype].itemsize for strip in strips.all), self._piece)
        for start in range(0, size, piece):
            yield start, min(piece, size - start)

    @contextmanager
    def _slot(self) -> Iterator[tuple[Slot, list[Future[Any]]]]:
        """Yield free buffers and a list for what still needs them; they are free again when all of that is done."""
        while len(self._pending) > 4 * SLOTS:
            self._settle(4 * SLOTS)
        slot = self._slots.get()
        users: list[Future[Any]] = []
        try:
            yield slot, users
        finally:
            left = len(users)
            if not left:
                self._slots.put(slot)
            lock = threading.Lock()

            def released(_: Future[Any]) -> None:
                nonlocal left
                with lock:
                    left -= 1
                    free = not left
                if free:
                    self._slots.put(slot)

            for user in users:
                user.add_done_callback(released)

    def _filled(self, strips: Strips, slot: Slot, start: int, count: int, users: list[Future[Any]]) -> list[Bytes]:
        """Read one piece of every strip."""
        found = []
        while len(slot.read) < len(strips.all):
            slot.read.append(np.empty(0, dtype=np.uint8))
        for number, strip in enumerate(strips.all):
            itemsize = FLOATS[strip.dtype].itemsize
            into = slot.read[number] = of_length(slot.read[number], count * itemsize)
            into = into[: count * itemsize]
            if (hashed := strip.fill(into, start * itemsize)) is not None:
                users.append(hashed)
            found.append(into)
        return found

    def _merged(self, task: Task, strips: Strips, facts: Facts, out: BinaryIO, tail: Tail, at: int) -> None:
        """Merge one tensor, after as many surveys as its method asks for."""
        method = task.treatment.method
        assert method is not None  # noqa: S101  (the caller looked)
        setting = Setting(task.name, task.size, task.treatment.weights, self._seed)
        for number in range(method.surveys):
            facts = self._surveyed(number, task, strips, setting, facts)
        kind = FLOATS[task.dtype]
        for start, count in self._pieces(strips, task.size):
            with self._slot() as (slot, users):
                read = self._filled(strips, slot, start, count, users)
                slot.written = of_length(slot.written, count * kind.itemsize)
                written = slot.written[: count * kind.itemsize]
                merged = self._computing.submit(self._merge, task, strips, setting, facts, read, start, written)
                put = self._writing.submit(self._put_after, merged, out, tail, at + start * kind.itemsize, written)
                users += [merged, put]
                self._pending.append(put)

    def _surveyed(self, number: int, task: Task, strips: Strips, setting: Setting, facts: Facts) -> Facts:
        """Return facts after one pass over a tensor."""
        method = task.treatment.method
        assert method is not None  # noqa: S101
        total: Any = None
        waiting: deque[Future[list[Any]]] = deque()

        def add(found: list[Any]) -> None:
            nonlocal total
            for one in found:
                total = one if total is None else total + one

        for start, count in self._pieces(strips, task.size):
            with self._slot() as (slot, users):
                read = self._filled(strips, slot, start, count, users)
                seen = self._computing.submit(self._survey, number, task, strips, setting, facts, read, start)
                users.append(seen)
                waiting.append(seen)
            while len(waiting) > SLOTS:
                add(waiting.popleft().result())
        for seen in waiting:
            add(seen.result())
        return facts if total is None else method.conclude(number, total, setting, facts)

    def _blocks(self, task: Task, strips: Strips, read: Sequence[Bytes], start: int) -> Iterator[tuple[int, Block]]:
        """Yield the blocks of a piece, decoded, each with where it starts in the piece."""
        wide = np.dtype(np.float64 if double(task, strips) else np.float32)
        kinds = [FLOATS[strip.dtype] for strip in strips.all]
        count = len(read[0]) // kinds[0].itemsize
        scratch = self._room(len(kinds), wide)
        method = task.treatment.method
        models = len(strips.models)
        for first in range(0, count, BLOCK):
            length = min(BLOCK, count - first)
            decoded = []
            for room, kind, data in zip(scratch, kinds, read, strict=True):
                values = room[:length]
                kind.decode(data[first * kind.itemsize : (first + length) * kind.itemsize], values)
                decoded.append(values)
            if method is not None and not method.shows:
                for values, strip in zip(decoded, strips.all, strict=True):
                    if not finite(values):
                        raise InputError(not_finite(task.name, strip.name))
            based = strips.base is not None
            yield (
                first,
                Block(
                    (start + first) // BLOCK,
                    decoded[:models],
                    decoded[models] if based else None,
                    decoded[models + based :],
                ),
            )

    def _room(self, count: int, wide: np.dtype[Any]) -> list[Floats]:
        """Return this thread's own arrays of a block each."""
        rooms: dict[str, list[Floats]] = self._scratch.__dict__.setdefault("rooms", {})
        found = rooms.setdefault(wide.str, [])
        while len(found) < count:
            found.append(np.empty(BLOCK, dtype=wide))
        return found[:count]

    def _survey(
        self, number: int, task: Task, strips: Strips, setting: Setting, facts: Facts, read: list[Bytes], start: int
    ) -> list[Any]:
        method = task.treatment.method
        assert method is not None  # noqa: S101
        with np.errstate(all="ignore"):
            return [
                method.survey(number, block, setting, facts) for _, block in self._blocks(task, strips, read, start)
            ]

    def _merge(
        self, task: Task, strips: Strips, setting: Setting, facts: Facts, read: list[Bytes], start: int, written: Bytes
    ) -> None:
        method, kind = task.treatment.method, FLOATS[task.dtype]
        assert method is not None  # noqa: S101
        with np.errstate(all="ignore"):
            for first, block in self._blocks(task, strips, read, start):
                values = method.merge(block, setting, facts)
                largest = max(float(values.max()), -float(values.min()))
                if not isfinite(largest):
                    raise InputError(self._blame(task, strips, read))
                out = written[first * kind.itemsize : (first + len(values)) * kind.itemsize]
                kind.encode(values, out)
                if not kind.saturates and largest > 2.0**15 and not finite_patterns(kind, out):
                    raise InputError(
                        f"{task.name}: merged values reach {largest:.3g}, beyond {kind.name}; choose another dtype"
                    )

    def _blame(self, task: Task, strips: Strips, read: Sequence[Bytes]) -> list[str]:
        """Return which models have values that are not finite."""
        found = []
        for strip, data in zip(strips.all, read, strict=True):
            kind = FLOATS[strip.dtype]
            values = np.empty(len(data) // kind.itemsize, dtype=np.float64)
            kind.decode(data, values)
            if not finite(values):
                found.append(not_finite(task.name, strip.name))
        return found or [f"{task.name}: the merge is beyond all numbers; look at the method's options and weights"]

    def _copied(self, task: Task, strips: Strips, out: BinaryIO, tail: Tail, at: int, differing: list[str]) -> None:
        """Copy one tensor as it is stored, and see whether the other models have the same."""
        source = task.treatment.source
        chosen = strips.models if task.compared else (strips.models[source],)
        own = chosen.index(strips.models[source])
        alike = True
        step = max(2**16, min(2**22, BUFFERS // (SLOTS * max(1, len(chosen)))))
        for start in range(0, task.nbytes, step):
            count = min(step, task.nbytes - start)
            with self._slot() as (slot, users):
                while len(slot.read) < len(chosen):
                    slot.read.append(np.empty(0, dtype=np.uint8))
                for number, strip in enumerate(chosen):
                    slot.read[number] = of_length(slot.read[number], count)
                    if (hashed := strip.fill(slot.read[number][:count], start)) is not None:
                        users.append(hashed)
                data = slot.read[own][:count]
                alike = alike and all(np.array_equal(data, one[:count]) for one in slot.read[: len(chosen)])
                put = self._writing.submit(self._put, out, tail, at + start, data)
                users.append(put)
                self._pending.append(put)
        if not alike:
            differing.append(task.name)

    def _put_after(self, merged: Future[None], out: BinaryIO, tail: Tail, at: int, data: Bytes) -> None:
        merged.result()
        self._put(out, tail, at, data)

    def _put(self, out: BinaryIO, tail: Tail, at: int, data: Bytes | bytes) -> None:
        """Write bytes where they belong, and take them into the digest."""
        out.seek(at)
        view = data.data if isinstance(data, np.ndarray) else memoryview(data)
        while len(view):
            view = view[out.write(view) :]
        if (hashed := tail.feed(at, data)) is not None:
            hashed.result()
