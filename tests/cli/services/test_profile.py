"""`legato profile`: one worker's trace in a new file, or the reason why nothing was recorded."""

import asyncio
import contextlib

import pytest
from aiohttp import web
from answering_server import serving

from legato_cli.errors import CannotRun, ServiceUnavailable
from legato_cli.services import profile
from legato_cli.ui.target import ControlTarget, UITarget, choose_worker
from legato_protocol.wire.step_trace import StepTraceRequest

ASKED = StepTraceRequest(5, 2.0)


class OneWorker:
    """Implements `WorkerSource`."""

    def __init__(self, address):
        self._worker = ControlTarget("d0", address)

    async def find_worker(self, name):
        return choose_worker(UITarget((), "secret", {}, (self._worker,)), name), "secret"


async def _record(answer, file=None, name=None):
    async with serving(answer) as address:
        return await profile.record(contextlib.nullcontext(OneWorker(address)), name, ASKED, file)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def test_the_trace_is_written_to_a_new_file(folder):
    asked = []

    async def answer(request):
        asked.append((request.method, request.path, request.headers["authorization"], await request.json()))
        return web.Response(body=b"trace")

    path = await _record(answer)
    assert (str(path), (folder / path).read_bytes()) == ("d0.trace.json.gz", b"trace")
    assert asked == [("POST", "/profile", "Bearer secret", {"steps": 5, "timeout": 2.0})]
    with pytest.raises(CannotRun, match=r"d0.trace.json.gz exists \(choose another file with --file\)"):
        await _record(answer)
    assert len(asked) == 1
    assert (await _record(answer, folder / "other", "d0")).read_bytes() == b"trace"
    with pytest.raises(CannotRun, match="cannot write missing/x: No such file"):
        await _record(answer, profile.Path("missing/x"))
    assert len(asked) == 2, "nothing is recorded that could not be kept"


async def test_a_workers_reason_is_passed_on(folder):
    async def busy(_request):
        return web.json_response({"error": "another profile is being recorded"}, status=409)

    async def older(_request):
        return web.Response(status=404)

    for answer, reason in [
        (busy, "d0: another profile is being"),
        (older, r"d0: status 404 \(is the worker of the same"),
    ]:
        with pytest.raises(ServiceUnavailable, match=reason):
            await _record(answer)
        assert not [*folder.iterdir()]
    gone = contextlib.nullcontext(OneWorker("127.0.0.1:1"))
    with pytest.raises(ServiceUnavailable, match="worker d0 does not answer"):
        await profile.record(gone, None, ASKED, None)


async def test_a_worker_that_is_silent_for_too_long_is_reported(monkeypatch):
    monkeypatch.setattr(profile, "ANSWER_TIME", 0.01 - ASKED.timeout)
    over = asyncio.Event()

    async def silent(_request):
        await over.wait()
        return web.Response()

    async with serving(silent) as address:
        with pytest.raises(ServiceUnavailable, match="worker d0 does not answer: TimeoutError"):
            await profile.record(contextlib.nullcontext(OneWorker(address)), None, ASKED, None)
        over.set()


@pytest.mark.parametrize(
    ("ready", "name", "reason"),
    [
        ((), None, "no worker of this service is ready"),
        (("d0", "p0"), None, r"several workers are ready: d0, p0 \(name one\)"),
        (("d0", "p0"), "x", r"no ready worker has the name x \(ready: d0, p0\)"),
    ],
)
def test_a_worker_that_is_not_named_clearly_is_asked_for(ready, name, reason):
    target = UITarget((), "", {}, tuple(ControlTarget(each, "") for each in ready))
    with pytest.raises(ServiceUnavailable, match=reason):
        choose_worker(target, name)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--steps", "0"), "--steps: not a valid number: 0 (1 to 1000)"),
        (("--steps", "1e9"), "--steps: not a valid number: 1e9 (1 to 1000)"),
        (("--timeout", "11m"), "--timeout: not a valid duration: 11m (1ms to 10m)"),
    ],
)
def test_bad_values_are_refused_before_anything_is_asked(legato, arguments, reason):
    code, _, err = legato("profile", *arguments)
    assert (code, reason in err) == (2, True), err
    assert legato("profile").code == 1  # nothing is running
