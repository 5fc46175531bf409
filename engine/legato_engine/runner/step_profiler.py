"""Records steps with torch's profiler, and opens ranges for NVIDIA's tools."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from legato_engine.errors import ProfileFailed
from legato_engine.ranges import Ranges
from legato_protocol import names
from legato_protocol.settings.flags import SettingsError


def open_ranges(nvtx: bool) -> Ranges:
    """Ranges that only profiles record, or also NVIDIA's tools (NVTX). Raises SettingsError for a torch without it."""
    if nvtx and torch.version.cuda is None:
        raise SettingsError(f"{names.ENV_NVTX}: torch {torch.__version__} was built without CUDA, so it has no NVTX")
    return Ranges(_nvtx_range if nvtx else None)


class TorchProfiler:
    """Implements `StepProfiler` for the steps of a runner with these ranges."""

    def __init__(self, ranges: Ranges, gpu: bool) -> None:
        self.ranges = ranges
        self._activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]
        self._recording: Any = None

    def start(self) -> None:
        with _mapped():
            every_thread = _ExperimentalConfig(profile_all_threads=True)  # hand-offs are in the loop's
            self._recording = profile(activities=self._activities, experimental_config=every_thread)
            self._recording.start()
        self.ranges.record(record_function)

    def stop(self) -> None:
        self.ranges.record(None)
        with _mapped():
            self._recording.stop()

    def write(self, path: Path) -> None:
        recording, self._recording = self._recording, None
        with _mapped():
            recording.export_chrome_trace(str(path))


@contextmanager
def _nvtx_range(name: str) -> Iterator[None]:
    torch.cuda.nvtx.range_push(name)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]


@contextmanager
def _mapped() -> Iterator[None]:
    """Raises ProfileFailed."""
    try:
        yield
    except (RuntimeError, OSError, AssertionError, ValueError) as error:
        raise ProfileFailed(f"torch's profiler failed: {str(error) or type(error).__name__}") from error
