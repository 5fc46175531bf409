"""Reads tensors from spans of files, in pieces, by several threads.

Page faults of mapped files take more time than reads, and one thread reads slower than a GPU receives.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from io import FileIO
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import torch

from legato_engine.errors import CorruptModel
from legato_engine.weights.cut import Span
from legato_engine.weights.fingerprint import FileSpan
from legato_engine.weights.reading.lanes import PIECE, CudaLane, Lane

MOST_THREADS = 8
_LEAST = 1 << 20  # bytes of a piece: of a small tensor, each thread reads a part


class RowSpans(NamedTuple):
    """Parts of rows: `rows` times `width` bytes, which begin `step` bytes apart."""

    start: int
    width: int
    step: int
    rows: int

    @property
    def size(self) -> int:
        return self.width * self.rows


def rows_of(tensor: FileSpan, count: int, rows: Span, columns: Span) -> RowSpans:
    """Some of a tensor's `count` rows, and of these some bytes."""
    step = tensor.size // count
    return RowSpans(tensor.start + rows[0] * step + columns[0], columns[1] - columns[0], step, rows[1] - rows[0])


class SpanReader:
    """Owns threads and buffers until `close`; it may be used again afterwards.

    `make_lane` makes the ways to a device."""

    def __init__(self, make_lane: Callable[[torch.device], Lane] = CudaLane, threads: int | None = None) -> None:
        self._make_lane = make_lane
        self._threads = threads or min(MOST_THREADS, len(os.sched_getaffinity(0)))
        self._pool: ThreadPoolExecutor | None = None
        self._lanes: dict[torch.device, list[Lane]] = {}

    def read(self, path: Path, span: FileSpan | RowSpans, dtype: torch.dtype, out: torch.Tensor) -> None:
        """Reads numbers of this type into `out`, which is contiguous. Raises CorruptModel."""
        flat = out.view(-1)
        assert span.size == flat.numel() * dtype.itemsize
        with path.open("rb", buffering=0) as file:
            if out.device.type == "cpu" and out.dtype == dtype:
                raw = flat.view(torch.uint8).numpy().data
                self._each(span.size, lambda at, end: _fill(file, raw[at:end], span, at))
            else:
                self._by_lanes(file, span, dtype, flat)

    def close(self) -> None:
        """Frees everything."""
        if self._pool is not None:
            self._pool.shutdown()
        self._pool, self._lanes = None, {}

    def _by_lanes(self, file: FileIO, span: FileSpan | RowSpans, dtype: torch.dtype, flat: torch.Tensor) -> None:
        lanes = self._lanes.get(flat.device)
        if lanes is None:
            lanes = self._lanes[flat.device] = [self._make_lane(flat.device) for _ in range(self._threads)]
        free, inference = SimpleQueue[Lane](), torch.is_inference_mode_enabled()
        for lane in lanes:
            lane.begin()
            free.put(lane)

        def write(at: int, end: int) -> None:
            lane, piece = free.get(), flat[at // dtype.itemsize : end // dtype.itemsize]
            try:
                with torch.inference_mode(inference):
                    lane.write(lambda buffer: _fill(file, buffer, span, at), dtype, piece)
            finally:
                free.put(lane)

        try:
            self._each(span.size, write)
        finally:
            for lane in lanes:
                lane.finish()

    def _each(self, size: int, work: Callable[[int, int], None]) -> None:
        """Calls `work` with the bounds of each piece. Raises an error of it when all pieces have ended."""
        step = min(PIECE, max(_LEAST, -(-size // self._threads // _LEAST) * _LEAST))
        pieces = [(at, min(at + step, size)) for at in range(0, size, step)]
        if len(pieces) == 1 or self._threads == 1:
            for bounds in pieces:
                work(*bounds)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "weights")
        done = wait([self._pool.submit(work, *bounds) for bounds in pieces]).done
        for each in done:
            each.result()


def _fill(file: FileIO, buffer: memoryview, span: FileSpan | RowSpans, at: int) -> None:
    """Reads from byte `at` of a span on. Raises CorruptModel."""
    if isinstance(span, FileSpan) or span.width == span.step:
        _fill_from(file, buffer, span.start + at)
        return
    while buffer:
        row, within = divmod(at, span.width)
        part = buffer[: span.width - within]
        _fill_from(file, part, span.start + row * span.step + within)
        buffer, at = buffer[len(part) :], at + len(part)


def _fill_from(file: FileIO, buffer: memoryview, at: int) -> None:
    """Raises CorruptModel."""
    while buffer:
        try:
            count = os.preadv(file.fileno(), [buffer], at)
        except OSError as error:
            raise CorruptModel(f"{file.name}: cannot be read at byte {at}: {error.strerror}") from None
        if not count:
            raise CorruptModel(f"{file.name}: truncated while it was read: it ends before byte {at + len(buffer)}")
        buffer, at = buffer[count:], at + count
