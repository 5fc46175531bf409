"""Spans of files read by threads: into the host's memory, and by lanes to other memory."""

import threading
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from legato_engine.errors import CorruptModel
from legato_engine.weights.fingerprint import FileSpan
from legato_engine.weights.reading import span_reader
from legato_engine.weights.reading.lanes import CudaLane, Lane
from legato_engine.weights.reading.span_reader import SpanReader

PIECE = 64  # bytes
SIZES = (1, 15, 32, 33, 64, 999)  # numbers of 16 bits: less than a piece, whole pieces, and parts of them


class HostLane:
    """Implements `Lane` for memory of the host, through a buffer."""

    used: set[int]

    def __init__(self, place: torch.device) -> None:
        assert place.type == "cpu"
        self._buffer, self._busy, self.begun = bytearray(PIECE), threading.Lock(), 0

    def begin(self) -> None:
        self.begun += 1

    def write(self, fill: Any, dtype: torch.dtype, out: torch.Tensor) -> None:
        assert self.begun, "later work would come first"
        assert self._busy.acquire(blocking=False), "two threads use one buffer"
        size = out.numel() * dtype.itemsize
        try:
            fill(memoryview(self._buffer)[:size])
            out.copy_(torch.frombuffer(self._buffer, dtype=torch.uint8)[:size].view(dtype))
        finally:
            self._busy.release()

    def finish(self) -> None:
        assert self._busy.acquire(blocking=False), "some thread still writes"
        self._busy.release()
        self.begun -= 1


@pytest.fixture(params=[1, 3], ids=["one thread", "threads"])
def reader(request, monkeypatch):
    monkeypatch.setattr(span_reader, "PIECE", PIECE)
    monkeypatch.setattr(span_reader, "_LEAST", PIECE // 4)
    reader = SpanReader(HostLane, request.param)
    yield reader
    reader.close()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["direct", "lanes"])
@pytest.mark.parametrize("inference", [True, False])
def test_every_number_is_read_whatever_the_size(tmp_path, reader, dtype, inference):
    with torch.inference_mode(inference):
        for size in SIZES:
            numbers, path = torch.randn(size).to(torch.bfloat16), tmp_path / f"{size}"
            path.write_bytes(b"header" + numbers.view(torch.uint8).numpy().tobytes() + b"tail")
            out = torch.empty(size, dtype=dtype)
            reader.read(path, FileSpan(6, 2 * size), torch.bfloat16, out)
            assert torch.equal(out, numbers.to(dtype))
            reader.close()


def test_a_file_that_ends_too_early_is_named_and_leaves_no_lane_in_use(tmp_path, reader):
    path = tmp_path / "short"
    path.write_bytes(bytes(300))
    for dtype in (torch.uint8, torch.float32):
        with pytest.raises(CorruptModel, match=r"short: truncated while it was read: it ends before byte \d+"):
            reader.read(path, FileSpan(0, 999), torch.uint8, torch.empty(999, dtype=dtype))
    path.write_bytes(bytes(range(100)) * 10)
    out = torch.empty(999)
    reader.read(path, FileSpan(1, 999), torch.uint8, out)
    assert out.tolist() == list(bytes(range(100)) * 10)[1:]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_gpu_gets_the_numbers_of_the_file(tmp_path, dtype):
    numbers = torch.randn(5000, 4099).to(torch.bfloat16)
    save_file({"a": numbers}, tmp_path / "a")
    start = 8 + int.from_bytes((tmp_path / "a").read_bytes()[:8], "little")
    reader, out = SpanReader(CudaLane), torch.empty(5000, 4099, dtype=dtype, device="cuda")
    for _ in range(3):
        out.fill_(7)
        reader.read(tmp_path / "a", FileSpan(start, numbers.nbytes), torch.bfloat16, out)
        assert torch.equal(out.cpu(), numbers.to(dtype))
    reader.close()


def test_the_lanes_are_alike():
    assert {name for name in vars(Lane) if name[0] != "_"} <= set(vars(CudaLane)) & set(vars(HostLane))
