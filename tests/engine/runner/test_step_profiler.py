"""Ranges of steps: off, for NVIDIA's tools, and in a trace of torch's profiler."""

import gzip
import json
import threading
from types import SimpleNamespace

import pytest
import torch

from legato_engine.errors import ProfileFailed
from legato_engine.ranges import HANDOFF, STEP, Ranges
from legato_engine.runner import step_profiler
from legato_engine.runner.step_profiler import TorchProfiler, open_ranges
from legato_protocol.settings.flags import SettingsError


def test_nvtx_ranges_are_opened_and_closed_only_if_asked_for(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", calls.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: calls.append("end"))
    with open_ranges(nvtx=False).part(STEP):
        pass
    assert calls == []
    with pytest.raises(ValueError, match="x"), open_ranges(nvtx=True).part(STEP):
        raise ValueError("x")
    assert calls == ["step", "end"]
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(SettingsError, match=r"LEGATO_NVTX: torch .* was built without CUDA"):
        open_ranges(nvtx=True)


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        ([(1, 0), (4, 3)], "decode"),
        ([(9, 0)], "prefill chunk"),
        ([(9, 0), (1, 0)], "prefill chunk, decode"),
    ],
)
def test_layers_are_named_by_the_rows_of_the_step(rows, name):
    opened = []
    ranges = Ranges(lambda name: opened.append(name) or threading.Lock())
    with ranges.forward([SimpleNamespace(tokens=[0] * length, drafts=drafts) for length, drafts in rows]):
        assert opened == [name]


def test_a_trace_has_the_ranges_of_all_threads_between_start_and_stop(tmp_path):
    ranges = Ranges()
    profiler, path = TorchProfiler(ranges, gpu=False), tmp_path / "trace.json.gz"

    def hand_off():
        with ranges.part(HANDOFF):
            pass

    def recorded():
        with ranges.part(STEP):
            torch.ones(2) @ torch.ones(2)
        thread = threading.Thread(target=hand_off)
        thread.start()
        thread.join()

    recorded()
    for _ in range(2):  # a second profile is one of its own
        profiler.start()
        recorded()
        profiler.stop()
        recorded()
        profiler.write(path)
        events = [event.get("name") for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]]
        assert (events.count(STEP), events.count(HANDOFF), "aten::dot" in events) == (1, 1, True)
    profiler.start()
    profiler.stop()
    with pytest.raises(ProfileFailed):
        profiler.write(tmp_path / "missing" / "trace.json.gz")


def test_a_check_of_the_profiler_that_fails_is_reported(monkeypatch):
    """Nobody would learn of another error: the request would wait for ever, and all later ones be refused."""

    def fail(**_options):
        raise AssertionError

    monkeypatch.setattr(step_profiler, "profile", fail)
    with pytest.raises(ProfileFailed, match="torch's profiler failed: AssertionError"):
        TorchProfiler(Ranges(), gpu=False).start()
