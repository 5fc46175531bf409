"""The core's start: an error that another try would meet again ends the process with 2, once the server was told."""

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import tiny_llama

from legato_engine.backends.cuda.device import Interpreted
from legato_engine.core import __main__ as process
from legato_engine.core.frames import Loading, NotStarting, Start
from legato_engine.core.reporting.heartbeat import Pulse
from legato_engine.runner import backends, loading
from legato_engine.settings import WorkerSettings

SETTINGS = WorkerSettings("unified", "u0", "m", kv_cache_memory=4 << 20, device="cuda", transport="None")


@pytest.fixture
def start(tmp_path):
    """The exit code of a core that starts with these settings and a model of that config, and its last frame."""

    def started(settings=SETTINGS, **config):
        tiny_llama.write(tmp_path, **config)
        sent = []
        code = process._serve(SimpleNamespace(send=sent.append), Start(settings, str(tmp_path), "e"), Pulse())
        assert all(isinstance(frame, Loading) for frame in sent[:-1])
        return code, sent[-1]

    return started


@pytest.mark.parametrize(
    ("changes", "config", "reason"),
    [
        ({}, {"head_dim": 20}, "a head size of 20 is not supported; interpreter computes head sizes that"),
        ({"dtype": "BFloat16"}, {}, "dtype bfloat16 is not computed by interpreter; supported: auto, float16, float32"),
        ({"kv_cache_memory": 1}, {}, "kvCacheMemory of 1 bytes"),
    ],
)
def test_a_model_that_a_gpu_does_not_compute_ends_the_process_with_2(start, monkeypatch, changes, config, reason):
    monkeypatch.setattr(backends, "gpu", lambda _name: Interpreted())
    code, last = start(replace(SETTINGS, **changes), **config)
    assert (code, type(last)) == (2, NotStarting)
    assert last.reason.startswith(reason)


def test_an_error_that_may_pass_is_not_the_end(start, monkeypatch):
    monkeypatch.setattr(loading, "load", Mock(side_effect=OSError("busy")))
    with pytest.raises(OSError, match="busy"):
        start()
