"""Pods as processes: probed, restarted with back-off, drained, and gone with their cluster."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from legato_operator.api import parsing
from legato_operator.local.backoff import CrashBackoff
from legato_operator.local.logs import Logs
from legato_operator.manifests import placement, secret
from legato_operator.manifests.pods import worker

PROGRAM = (sys.executable, "-SE", str(Path(__file__).parents[1] / "fake_legato.py"))


@pytest.fixture
async def f(fakes):
    async with fakes(reconciled=False) as opened:
        yield opened


def _pod(item, program, grace=30, name="w"):
    service = parsing.read_service(item)
    template = worker.template(service, "decode", placement.local(program))
    template["spec"]["terminationGracePeriodSeconds"] = grace
    return worker.pod(service, name, template)


async def _start(f, item, program=PROGRAM, grace=30, name="w"):
    await f.cluster.store.apply(secret.manifest(parsing.read_service(item), secret.ServiceToken("secret")), "test")
    await f.cluster.store.apply(_pod(item, program, grace, name), "test")


async def _status(f):
    (pod,) = (await f.pods()).values()
    return pod.get("status", {})


async def _gone(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


async def test_readiness_tells_what_the_process_says(f, build):
    f.steer("w", "loading", "loading weights 40 %")
    await _start(f, build())

    async def told():
        return any(c["message"] == "loading weights 40 %" for c in (await _status(f)).get("conditions", ()))

    await f.wait(told)
    assert not await f.ready()
    (f.folder / "w.loading").unlink()
    await f.wait(f.ready)


async def test_a_process_that_misses_its_liveness_probes_is_killed_and_restarted(f, build):
    await _start(f, build())
    await f.wait(f.ready)
    (pid,) = f.starts("w")
    assert os.getpgid(pid) == pid, "a signal from the terminal is for its parent"
    os.kill(pid, signal.SIGSTOP)
    await f.wait(lambda: len(f.starts("w")) >= 2)
    assert await _gone(pid)
    await f.wait(f.ready)
    assert any("liveness" in line for line in f.lines)
    assert (await _status(f))["containerStatuses"][0]["restartCount"] >= 1


async def test_process_that_ignores_sigterm_is_killed_after_its_grace(f, build):
    f.steer("w", "stubborn")
    await _start(f, build(), grace=0)
    await f.wait(f.ready)
    await f.delete("Pod", "w")
    await f.wait(lambda: f.has_none("Pod"))
    assert await _gone(f.starts("w")[0])
    assert any("grace period" in line for line in f.lines)


async def test_leaving_pod_is_there_until_its_process_ended_and_is_neither_killed_nor_restarted(f, build):
    """It may have closed its ports to finish its streams; only the grace period ends it."""
    f.steer("w", "stubborn")
    await _start(f, build(), grace=30)
    await f.wait(f.ready)
    await f.delete("Pod", "w")
    assert "deletionTimestamp" in (await f.pods())["w"]["metadata"]
    f.steer("w", "sick")
    await f.wait(lambda: (f.folder / "w.sick").read_text().count("asked") > 2 * f.misses)
    (pid,) = f.starts("w")
    assert not await _gone(pid)
    os.kill(pid, signal.SIGKILL)
    await f.wait(lambda: f.has_none("Pod"))
    assert f.starts("w") == [pid]


async def test_program_that_cannot_be_started_is_told(f, build):
    await _start(f, build(), ("/no/such/program",))

    async def told():
        ended = (await _status(f)).get("containerStatuses", [{}])[0].get("lastState", {})
        return "No such file" in ended.get("terminated", {}).get("message", "")

    await f.wait(told)
    await f.delete("Pod", "w")
    await f.wait(lambda: f.has_none("Pod"))


def test_backoff_doubles_and_starts_over_after_a_healthy_run():
    backoff = CrashBackoff(first=1, longest=5, reset_after=10)
    assert [backoff.delay(0) for _ in range(4)] == [1, 2, 4, 5]
    assert backoff.delay(9.9) == 5
    assert backoff.delay(10) == 1
    assert backoff.delay(0) == 2


@pytest.mark.parametrize(
    ("hidden", "output", "lines", "last"),
    [
        ((), b"one\n\ntwo\r50 %\r\xff\nrest", ["one", "two", "50 %", "\N{REPLACEMENT CHARACTER}", "rest"], "rest"),
        (("INFO ",), b"INFO a\nWARNING INFO b\nINFO c\n", ["WARNING INFO b"], "INFO c"),
    ],
)
async def test_log_lines_carry_the_name_of_their_pod_unless_they_are_hidden(hidden, output, lines, last):
    printed, stream = [], asyncio.StreamReader()
    stream.feed_data(output)
    stream.feed_eof()
    assert await Logs(printed.append, hidden=hidden).follow("pod", stream) == last
    assert printed == [f"pod | {line}\n" for line in lines]


async def test_a_pod_that_asks_for_gpus_sees_those_with_the_fewest_pods(fakes, build):
    """The GPU of a deleted pod is free again. Other pods see all GPUs of the machine."""
    asking, both = (build(decode={"resources": {"limits": {"nvidia.com/gpu": count}}}) for count in (1, 2))
    async with fakes(reconciled=False, gpus=("4", "7")) as f:
        for name, item in {"a": asking, "b": asking, "c": asking, "other": build()}.items():
            await _start(f, item, name=name)
        await f.wait(lambda: _all_ready(f, 4))
        assert [f.gpus(name) for name in ("a", "b", "c", "other")] == ["4", "7", "4", "4,7"]
        for name in ("a", "c"):
            await f.delete("Pod", name)
        await f.wait(lambda: _all_ready(f, 2))
        await _start(f, asking, name="d")
        await f.wait(lambda: _all_ready(f, 3))
        assert f.gpus("d") == "4"
        await _start(f, both, name="ranks")
        await f.wait(lambda: _all_ready(f, 4))
        assert f.gpus("ranks") == "4,7"


async def _all_ready(f, count):
    return len(await f.pods()) == len(await f.ready()) == count
