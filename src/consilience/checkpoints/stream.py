"""Streaming execution of merges: reading, computing, writing and hashing overlap over a few circulating buffers.

One thread reads pieces of tensors (the caller's), some merge them, one writes, one brings bytes to the disk, and two
take digests. Nothing is allocated in proportion to a model or a tensor. A merged piece depends on nothing but the piece
and the facts of its tensor, so neither the number of threads nor the size of pieces changes a byte.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO
from math import isfinite
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

import numpy as np

from consilience.checkpoints.buffers import (
    N_PIECE_BUFFERS,
    PIECE_ENTRIES,
    PieceBuffers,
    TensorReaders,
    all_finite,
    all_stored_finite,
    fits_single,
    grown,
    needs_float64,
    non_finite_problem,
    piece_length,
)
from consilience.checkpoints.carried_tensors import convert, is_constant, refuse_other_constant
from consilience.checkpoints.changes import changes_of, gram_of, looked_at
from consilience.checkpoints.methods.base import (
    BLOCK_ENTRIES,
    SINGLE_ERROR,
    Facts,
    Floats,
    TensorBlock,
    TensorMethod,
    TensorSetting,
    block_length,
)
from consilience.checkpoints.methods.order_statistics import RUN_ENTRIES, sample_starts
from consilience.checkpoints.numbers import FLOAT_TYPES, near_ties, off_ties
from consilience.checkpoints.plan import OutputShard, TensorTask
from consilience.checkpoints.tensor_reader import ByteArray, RunningDigest
from consilience.checks import Array
from consilience.errors import InputError, Problem
from consilience.files.opening import open_unbuffered

_FLUSH_BYTES = 256 * 2**20
"""After so many bytes the system is asked to bring them to the disk, so that the end need not wait for all. Chosen by
hand."""

_MAX_PENDING = 4 * N_PIECE_BUFFERS
"""Writes and flushes under way before their errors are looked for. Chosen by hand; pieces are bounded by their buffers
anyway."""

_COPY_BYTES = 2**22
"""Bytes of a copied tensor that are read at once. Chosen by hand; no byte depends on it."""

_OVERFLOW_CHECK_FROM = 2.0**15
"""Below this no type that does not saturate overflows (the largest float16 is 65504), so patterns need no check."""


@dataclass(frozen=True, eq=False)
class _TensorMerge:
    """The merge of one tensor: what is done, where the tensor is read, and what is known of it."""

    task: TensorTask
    readers: TensorReaders
    method: TensorMethod
    setting: TensorSetting
    facts: Facts

    @cached_property
    def is_single(self) -> bool:
        """Whether all is bfloat16, and merged in 32 bits but for what is uncertain there."""
        types = {self.task.dtype, *(reader.dtype for reader in self.readers.all)}
        return self.method.merges_in_single and types == {"BF16"}

    @property
    def block_length(self) -> int:
        """Entries of a block: a fixed number, or as many whole rows as it holds, one at least."""
        return block_length(self.method, self.setting.row_length)


class Stream:
    """The threads and buffers of a merge.

    `hashing` has one thread, for digests of the output; `piece` is the most entries of a piece, a multiple of
    `BLOCK_ENTRIES`.
    """

    def __init__(self, threads: int, hashing: ThreadPoolExecutor, seed: int, piece: int = PIECE_ENTRIES) -> None:
        self._computing = ThreadPoolExecutor(threads, thread_name_prefix="merge")
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="write")
        self._flushing = ThreadPoolExecutor(1, thread_name_prefix="flush")
        self._hashing, self._seed, self._piece = hashing, seed, piece
        self._free_buffers: SimpleQueue[PieceBuffers] = SimpleQueue()
        for _ in range(N_PIECE_BUFFERS):
            self._free_buffers.put(PieceBuffers())
        self._thread_local = threading.local()
        self._pending: deque[Future[Any]] = deque()
        self._constants: deque[TensorTask] = deque()  # tensors with a piece that was carried over for its infinities
        # By tensor and block, what `changes` adds up, and of which share of the tensor's entries.
        self._grams: dict[tuple[str, int], tuple[Array, float]] = {}

    def take_changes(self) -> dict[str, Array]:
        """Return the sums of `changes` by tensor since they were taken last, blocks added in their order."""
        sums: dict[str, Array] = {}
        shares: dict[str, float] = {}
        for name, number in sorted(self._grams):
            gram, share = self._grams[name, number]
            sums[name] = sums[name] + gram if name in sums else gram
            shares[name] = shares.get(name, 0.0) + share
        self._grams.clear()
        return {name: gram / min(1.0, shares[name]) for name, gram in sums.items()}

    def close(self) -> None:
        """End all threads; what has not begun is dropped."""
        for pool in (self._computing, self._writing, self._flushing):
            pool.shutdown(wait=True, cancel_futures=True)

    def write_shard(
        self,
        shard: OutputShard,
        path: Path,
        readers_of: Callable[[TensorTask], TensorReaders],
        facts_of: Callable[[TensorTask], Facts],
        input_position: Callable[[TensorTask], Any],
        on_written: Callable[[int], None],
    ) -> str:
        """Write one file and return its SHA-256.

        `readers_of` is asked when a tensor's turn comes; `facts_of` gives what is known before any survey. Tensors are
        read in the order of `input_position`, whatever that of the output; `on_written` is called with the number of
        bytes of each finished tensor.
        """
        head = shard.header
        starts, position = {}, len(head)
        for task in shard.tasks:
            starts[task.name] = position
            position += task.nbytes
        self._constants.clear()
        with path.open("wb", buffering=0) as out:
            digest = RunningDigest(self._hashing)
            self._put(out, digest, 0, head)
            unflushed_bytes = 0
            # In the order of the input, so that digests of input files go along with the reads.
            for task in sorted(shard.tasks, key=input_position):
                readers = readers_of(task)
                if task.treatment.method is None:
                    self._copy_tensor(task, readers, out, digest, starts[task.name])
                else:
                    self._merge_tensor(task, readers, facts_of(task), out, digest, starts[task.name])
                on_written(task.nbytes)
                unflushed_bytes += task.nbytes
                if unflushed_bytes >= _FLUSH_BYTES:
                    unflushed_bytes = 0
                    self._pending.append(self._flushing.submit(os.fsync, out.fileno()))
            self._wait_for_pending()
            for task in {task.name: task for task in self._constants}.values():
                refuse_other_constant(task.name, readers_of(task).models, task.size)
            self._flushing.submit(os.fsync, out.fileno()).result()
        with open_unbuffered(path) as written:
            return digest.finish(written)

    def _wait_for_pending(self, max_pending: int = 0) -> None:
        """Wait until no more than `max_pending` writes are under way; raise what went wrong in them."""
        while len(self._pending) > max_pending:
            self._pending.popleft().result()

    def _pieces(self, merge: _TensorMerge) -> Iterator[tuple[int, int]]:
        """Yield the first entry of every piece of a tensor, and its number of entries: whole blocks."""
        entry_bytes = sum(FLOAT_TYPES[reader.dtype].itemsize for reader in merge.readers.all)
        block, size = merge.block_length, merge.task.size
        piece = max(1, piece_length(entry_bytes, self._piece) // block) * block
        for start in range(0, size, piece):
            yield start, min(piece, size - start)

    @contextmanager
    def _piece_buffers(self) -> Iterator[tuple[PieceBuffers, list[Future[Any]]]]:
        """Yield free buffers and a list of the futures that use them; when these are done, they are free again."""
        self._wait_for_pending(_MAX_PENDING)
        buffers = self._free_buffers.get()
        users: list[Future[Any]] = []
        try:
            yield buffers, users
        finally:
            n_users = len(users)
            if not n_users:
                self._free_buffers.put(buffers)
            lock = threading.Lock()

            def release(_: Future[Any]) -> None:
                nonlocal n_users
                with lock:
                    n_users -= 1
                    is_free = not n_users
                if is_free:
                    self._free_buffers.put(buffers)

            for user in users:
                user.add_done_callback(release)

    def _read_piece(
        self, readers: TensorReaders, buffers: PieceBuffers, start: int, count: int, users: list[Future[Any]]
    ) -> list[ByteArray]:
        """Return the bytes of one piece in every reader: `count` entries from entry `start` on."""
        stored = []
        while len(buffers.read) < len(readers.all):
            buffers.read.append(np.empty(0, dtype=np.uint8))
        for number, reader in enumerate(readers.all):
            itemsize = FLOAT_TYPES[reader.dtype].itemsize
            buffers.read[number] = grown(buffers.read[number], count * itemsize)
            into = buffers.read[number][: count * itemsize]
            if (hashing := reader.fill(into, start * itemsize)) is not None:
                users.append(hashing)
            stored.append(into)
        return stored

    def _read_sample(
        self, readers: TensorReaders, buffers: PieceBuffers, size: int, users: list[Future[Any]]
    ) -> list[ByteArray]:
        """Return the bytes of a sample of a tensor in every reader: runs of entries, one behind another."""
        starts = sample_starts(size)
        length = size if len(starts) == 1 else RUN_ENTRIES
        while len(buffers.read) < len(readers.all):
            buffers.read.append(np.empty(0, dtype=np.uint8))
        stored = []
        for number, reader in enumerate(readers.all):
            nbytes = length * FLOAT_TYPES[reader.dtype].itemsize
            buffers.read[number] = grown(buffers.read[number], len(starts) * nbytes)
            for run, start in enumerate(starts):
                into = buffers.read[number][run * nbytes : (run + 1) * nbytes]
                if (hashing := reader.fill(into, start * FLOAT_TYPES[reader.dtype].itemsize)) is not None:
                    users.append(hashing)
            stored.append(buffers.read[number][: len(starts) * nbytes])
        return stored

    def _merge_tensor(
        self,
        task: TensorTask,
        readers: TensorReaders,
        facts: Facts,
        out: BinaryIO,
        digest: RunningDigest,
        position: int,
    ) -> None:
        """Merge one tensor, after as many surveys as its method asks for, and write it from byte `position` on."""
        method = task.treatment.method
        assert method is not None  # noqa: S101  (the caller looked)
        has_base = readers.base is not None
        setting = TensorSetting(task.name, task.size, task.treatment.weights, self._seed, task.shape, has_base)
        merge = _TensorMerge(task, readers, method, setting, facts)
        # Facts first, in passes over the whole tensor; every pass reads it again.
        for number in range(method.surveys):
            if method.knows_enough(merge.facts):
                break
            merge = replace(merge, facts=self._survey_tensor(number, merge))
        itemsize = FLOAT_TYPES[task.dtype].itemsize
        for start, count in self._pieces(merge):
            with self._piece_buffers() as (buffers, users):
                stored = self._read_piece(readers, buffers, start, count, users)
                buffers.written = grown(buffers.written, count * itemsize)
                written = buffers.written[: count * itemsize]
                merging = self._computing.submit(self._merge_piece, merge, stored, start, written)
                # One thread writes, in the order of submission, so it waits for this piece before it takes the next.
                writing = self._writing.submit(
                    self._put_after, merging, out, digest, position + start * itemsize, written
                )
                users += [merging, writing]
                self._pending.append(writing)

    def merged_bytes(self, task: TensorTask, readers: TensorReaders) -> ByteArray:
        """Return the bytes of a merged tensor, which is not written to a file."""
        out = BytesIO()
        self._merge_tensor(task, readers, {}, out, RunningDigest(self._hashing), 0)
        self._wait_for_pending()
        return np.frombuffer(out.getbuffer(), dtype=np.uint8)

    def _survey_tensor(self, number: int, merge: _TensorMerge) -> Facts:
        """Return the facts after one more pass over a tensor."""
        total: Any = None
        surveys: deque[Future[list[Any]]] = deque()

        def add(statistics: list[Any]) -> None:
            """Add the statistics of a piece's blocks: one by one, in the order of blocks, whatever the pieces are."""
            nonlocal total
            for statistic in statistics:
                total = statistic if total is None else total + statistic

        is_sample = merge.method.samples_first and number == 0
        for start, count in [(0, 0)] if is_sample else self._pieces(merge):
            with self._piece_buffers() as (buffers, users):
                if is_sample:
                    stored = self._read_sample(merge.readers, buffers, merge.task.size, users)
                else:
                    stored = self._read_piece(merge.readers, buffers, start, count, users)
                survey = self._computing.submit(self._survey_piece, number, merge, stored, start)
                users.append(survey)
                surveys.append(survey)
            while len(surveys) > N_PIECE_BUFFERS:  # results wait in memory, histograms of 512 kB among them
                add(surveys.popleft().result())
        for survey in surveys:
            add(survey.result())
        return merge.facts if total is None else merge.method.conclude(number, total, merge.setting, merge.facts)

    def _blocks(
        self, merge: _TensorMerge, stored: Sequence[ByteArray], start: int, *, is_survey: bool = False
    ) -> Iterator[tuple[int, TensorBlock]]:
        """Yield the blocks of a piece, decoded, each with its first entry in the piece."""
        readers = merge.readers
        # Differences of numbers of 32 bits are rounded to 32 bits once, whether they are taken there or in 64.
        is_single = merge.method.surveys_in_single and fits_single(readers) if is_survey else merge.is_single
        dtype = np.dtype(np.float64 if needs_float64(merge.task, readers) and not is_single else np.float32)
        float_types = [FLOAT_TYPES[reader.dtype] for reader in readers.all]
        count = len(stored[0]) // float_types[0].itemsize
        block_length = merge.block_length
        scratch = self._scratch_blocks(len(float_types), dtype, block_length)
        n_models = len(readers.models)
        for first in range(0, count, block_length):
            length = min(block_length, count - first)
            decoded = []
            for array, float_type, data, reader in zip(scratch, float_types, stored, readers.all, strict=True):
                values, part = (
                    array[:length],
                    slice(first * float_type.itemsize, (first + length) * float_type.itemsize),
                )
                # A survey for ranks need not look, since all that it reads is merged afterwards.
                is_seen_later = merge.method.shows or (is_survey and merge.method.surveys_in_single)
                if not (is_seen_later or float_type.all_finite(data[part])):
                    raise InputError(non_finite_problem(merge.task.name, reader.name))
                float_type.decode(data[part], values)
                decoded.append(values)
            has_base = readers.base is not None
            yield (
                first,
                TensorBlock(
                    (start + first) // block_length,
                    decoded[:n_models],
                    decoded[n_models] if has_base else None,
                    decoded[n_models + has_base :],
                    start + first,
                ),
            )

    def _scratch_blocks(self, count: int, dtype: np.dtype[Any], length: int) -> list[Floats]:
        """Return this thread's own arrays, of a block each."""
        by_dtype: dict[str, list[Floats]] = self._thread_local.__dict__.setdefault("scratch", {})
        scratch = by_dtype.setdefault(dtype.str, [])
        if scratch and len(scratch[0]) < length:
            scratch.clear()
        while len(scratch) < count:
            scratch.append(np.empty(max(length, BLOCK_ENTRIES), dtype=dtype))
        return scratch[:count]

    def _survey_piece(self, number: int, merge: _TensorMerge, stored: list[ByteArray], start: int) -> list[Any]:
        """Return the statistics of a piece's blocks."""
        if is_constant(merge.readers, stored):
            return []
        with np.errstate(all="ignore"):
            return [
                merge.method.survey(number, block, merge.setting, merge.facts)
                for _, block in self._blocks(merge, stored, start, is_survey=True)
            ]

    def _merge_piece(self, merge: _TensorMerge, stored: list[ByteArray], start: int, written: ByteArray) -> None:
        """Merge a piece and encode it into `written`."""
        task, readers, float_type = merge.task, merge.readers, FLOAT_TYPES[merge.task.dtype]
        if is_constant(readers, stored) and convert(
            stored[0], FLOAT_TYPES[readers.models[0].dtype], float_type, written
        ):
            self._constants.append(task)
            return
        with np.errstate(all="ignore"):
            n_blocks = -(-task.size // merge.block_length)
            for first, block in self._blocks(merge, stored, start):
                looked = looked_at(block, n_blocks)
                before = changes_of(block, looked) if looked.stop else []
                values = self._merged_block(merge, block, stored, first)
                if before:
                    self._grams[task.name, block.number] = gram_of(before, values[looked]), len(before[0]) / task.size
                largest = max(float(values.max()), -float(values.min()))
                if not isfinite(largest):
                    raise InputError(self._non_finite_problems(task, readers, stored))
                out = written[first * float_type.itemsize : (first + len(values)) * float_type.itemsize]
                float_type.encode(values, out)
                may_overflow = not float_type.saturates and largest > _OVERFLOW_CHECK_FROM
                if may_overflow and not all_stored_finite(float_type, out):
                    text = f"merged values reach {largest:.3g}, beyond {float_type.name}"
                    raise InputError(task.name, text, "choose another dtype", "E-NUMBER")

    def _merged_block(self, merge: _TensorMerge, block: TensorBlock, stored: Sequence[ByteArray], first: int) -> Floats:
        """Return the merged entries of a block (n,); `first` is its first entry in the piece `stored`.

        Those that rounding in 32 bits makes uncertain are computed in 64, and come moved off ties that are none.
        """
        if not merge.is_single:
            return merge.method.merge(block, merge.setting, merge.facts)
        n = len(block.models[0])
        values, uncertain = merge.method.merge_single(block, merge.setting, merge.facts)
        uncertain |= near_ties(values, SINGLE_ERROR * (len(block.models) + 4))
        if not all_finite(values):
            uncertain |= ~np.isfinite(values)
        again = np.flatnonzero(uncertain)
        if not len(again):
            return values
        decoded = []
        for reader, data in zip(merge.readers.all, stored, strict=True):
            float_type = FLOAT_TYPES[reader.dtype]
            entries = data.view(f"u{float_type.itemsize}")[first : first + n][again]
            decoded.append(np.empty(len(again)))
            float_type.decode(entries.view(np.uint8), decoded[-1])
        n_models = len(block.models)
        doubtful = TensorBlock(block.number, decoded[:n_models], decoded[n_models], (), block.start)
        values[again] = off_ties(merge.method.merge(doubtful, merge.setting, merge.facts))
        return values

    def _non_finite_problems(
        self, task: TensorTask, readers: TensorReaders, stored: Sequence[ByteArray]
    ) -> list[Problem]:
        """Return which models have values that are not finite; where none has, that the merge itself overflowed."""
        problems = []
        for reader, data in zip(readers.all, stored, strict=True):
            float_type = FLOAT_TYPES[reader.dtype]
            values = np.empty(len(data) // float_type.itemsize, dtype=np.float64)
            float_type.decode(data, values)
            if not all_finite(values):
                problems.append(non_finite_problem(task.name, reader.name))
        return problems or [
            Problem(
                task.name, "the merge is beyond all numbers", "look at the method's options and weights", "E-NUMBER"
            )
        ]

    def _copy_tensor(
        self, task: TensorTask, readers: TensorReaders, out: BinaryIO, digest: RunningDigest, position: int
    ) -> None:
        """Copy one tensor as it is stored."""
        source = readers.models[task.treatment.source]
        for start in range(0, task.nbytes, _COPY_BYTES):
            count = min(_COPY_BYTES, task.nbytes - start)
            with self._piece_buffers() as (buffers, users):
                buffers.written = grown(buffers.written, count)
                data = buffers.written[:count]
                if (hashing := source.fill(data, start)) is not None:
                    users.append(hashing)
                writing = self._writing.submit(self._put, out, digest, position + start, data)
                users.append(writing)
                self._pending.append(writing)

    def _put_after(
        self, merging: Future[None], out: BinaryIO, digest: RunningDigest, position: int, data: ByteArray
    ) -> None:
        merging.result()
        self._put(out, digest, position, data)

    def _put(self, out: BinaryIO, digest: RunningDigest, position: int, data: ByteArray | bytes) -> None:
        """Write bytes from a position of the file on, and take them into its digest."""
        out.seek(position)
        view = data.data if isinstance(data, np.ndarray) else memoryview(data)
        while len(view):
            view = view[out.write(view) :]
        if (hashing := digest.feed(position, data)) is not None:
            hashing.result()
