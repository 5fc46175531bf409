"""Connecting to workers, and what happens when they are not what was expected."""

import asyncio
import contextlib
from unittest.mock import AsyncMock, Mock

import msgspec
import pytest
from msgspec.structs import replace
from websockets.asyncio.server import serve

from legato_gateway.discovery.addresses import BadWorkersFile, FileDiscovery, WorkerAddress, parse_workers
from legato_gateway.timers import Backoff
from legato_gateway.workers.links import opener
from legato_gateway.workers.silence import StreamLimits
from legato_protocol.security.followed_tokens import ServiceTokens
from legato_protocol.wire import kv_events, stream
from legato_protocol.wire.stream import Greeting


@contextlib.asynccontextmanager
async def played(lab, frames):
    """A gateway in front of a worker that sends `frames(path)` on a connection, and the number of a metric of it."""

    async def talk(connection):
        await connection.recv()
        for frame in frames(connection.request.path):
            await connection.send(frame if isinstance(frame, bytes | str) else stream.encode(frame))
        await connection.wait_closed()

    async with serve(talk, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with lab.following([("u0", f"127.0.0.1:{port}")]) as gateway:
            yield gateway, lambda name: gateway.count(f"{name}_total", worker="u0")


@pytest.mark.parametrize(
    ("name", "token", "problem"),
    [("u0", "wrong", "refuses this gateway's token"), ("other", "secret", "worker 'other' answers")],
)
async def test_a_wrong_worker_or_token_is_named_and_not_used(lab, name, token, problem):
    worker = lab.unified(1)[0]
    worker.name, worker.token = name, token
    async with lab.following([("u0", worker)]) as gateway:
        await gateway.until(lambda: gateway.fleet.worker("u0").problem != "")
        assert problem in gateway.fleet.worker("u0").problem
        assert not gateway.fleet.worker("u0").ready
        assert problem in gateway.state.unready()


async def test_a_worker_that_knows_an_older_token_is_shown_that_one_and_refusals_are_counted(lab, tmp_path):
    """While a Secret spreads, a gateway may know the next token before a worker does."""
    (tmp_path / "token").write_text("newer")
    (tmp_path / "previous").write_text(lab.token)
    limits = StreamLimits(backoff_first=0.001, backoff_most=0.01)
    async with lab.following([("u0", lab.unified(1)[0])]) as gateway:
        tokens = ServiceTokens(folder=tmp_path)
        at, workers = gateway.workers[0].address, gateway.relay.workers
        stream = opener("g2", tokens, limits)(WorkerAddress("u0", at), workers)
        stream.start(lambda fault: None, lambda stream: None)
        await gateway.until(lambda: stream.connected)
        text = gateway.metrics.render(gateway.demand.report())[0].decode()
        assert 'refused_tokens_total{by="worker"}' in text
        assert 'refused_tokens_total{by="worker"} 0.0' not in text
        (tmp_path / "previous").unlink()
        (tmp_path / "token").write_text("newest")
        tokens.reload()
        assert stream.connected, "nobody is asked again for a token"
        assert await gateway.submit().read()
        await stream.close()


@pytest.mark.parametrize("answer", [b"\xc1", b"", "text", Greeting("me")])
async def test_bad_frames_close_the_connection_and_are_counted(lab, answer):
    async with played(lab, lambda _: [answer]) as (gateway, count):
        await gateway.until(lambda: count("bad_frames") > 0)
        assert not gateway.fleet.worker("u0").ready


@pytest.mark.parametrize("kind", ["/stream", "/events"])
async def test_a_frame_of_a_kind_that_only_a_later_version_knows_is_skipped_and_counted(lab, kind):
    """The worker is of the next version, and declares that it understands this one."""
    hello = replace(lab.unified(1)[0]._hello(), version=stream.VERSION + 1, oldest=stream.VERSION)
    later = [msgspec.msgpack.encode(["later", 1, "x"])]
    stored = kv_events.Snapshot(hello.epoch, 0, 0, True, bytes(16))
    frames = {"/stream": [hello], "/events": [stored]}
    frames[kind] = frames[kind] + later if kind == "/stream" else later + frames[kind]
    async with played(lab, frames.get) as (gateway, count):
        await gateway.until(lambda: count("unknown_frames") == 1 and gateway.fleet.worker("u0").ready)
        assert count("bad_frames") == 0


@pytest.mark.parametrize(("version", "oldest"), [(stream.VERSION + 1, 0), (stream.OLDEST - 1, 0), (9, 8)])
async def test_a_worker_of_no_version_in_common_is_named_and_not_used(lab, version, oldest):
    hello = replace(lab.unified(1)[0]._hello(), version=version, oldest=oldest)
    async with played(lab, lambda _: [hello]) as (gateway, _):
        await gateway.until(lambda: "speaks version" in gateway.fleet.worker("u0").problem)
        assert not gateway.fleet.worker("u0").ready


class Connection:
    """One end of a stream whose other end sends what a test puts into `frames`."""

    def __init__(self):
        self.frames = asyncio.Queue()
        self.transport = Mock()
        self.send = AsyncMock()
        self.recv = self.frames.get

    def __aiter__(self):
        return self

    async def __anext__(self):
        return await self.recv()


@contextlib.asynccontextmanager
async def quiet_stream(worker):
    """A stream that has received Hello: its connection, a function that sends another frame, and one that returns the
    calls of its listener."""
    connection, listener = Connection(), Mock()
    limits = StreamLimits(15.0)
    stream_ = opener("g", ServiceTokens(), limits)(WorkerAddress("u0", ""), listener)

    def send(frame):
        connection.frames.put_nowait(stream.encode(frame))

    def heard():
        return [call[0] for call in listener.method_calls if call[0] in ("silent", "hung", "spoke")]

    send(worker._hello())
    running = asyncio.create_task(stream_._run_stream(connection, Backoff(0.05, 2.0)))
    try:
        yield connection, send, heard
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(
    ("step", "passes"),
    [
        (None, {4.9: [], 1.2: ["silent"], 8.8: ["silent"], 1.3: ["silent", "hung"], 5.0: ["silent", "hung"]}),
        (20.0, {74.0: ["silent"], 2.0: ["silent", "hung"]}),  # is waited for longer: 15 s and three steps
    ],
)
@pytest.mark.virtual_time
async def test_silence_is_reported_twice_and_a_connection_without_an_end_is_given_up(lab, step, passes):
    worker = lab.unified(1)[0]
    async with quiet_stream(worker) as (connection, send, heard):
        if step:
            send(replace(worker._load(), step_expected=step))
        for seconds, expected in passes.items():
            assert not connection.transport.abort.called
            await asyncio.sleep(seconds)
            assert heard() == expected, seconds
        assert connection.transport.abort.called is (step is None)


@pytest.mark.virtual_time
async def test_a_core_for_which_its_server_speaks_is_given_nothing_new_and_is_not_given_up(lab):
    worker = lab.unified(1)[0]
    async with quiet_stream(worker) as (_, send, heard):
        for _ in range(60):
            await asyncio.sleep(1.0)
            send(replace(worker._load(), core_silence=2.0))
        assert heard() == ["silent"]
        send(worker._load())
        await asyncio.sleep(0.1)
        assert heard() == ["silent", "spoke"]


@pytest.mark.parametrize("stop", [1.1, 5.0, 20.0, 3600.0])
@pytest.mark.virtual_time
async def test_a_gateway_that_was_stopped_itself_hears_its_workers_before_it_judges_them(lab, stop):
    """All timers are due when it wakes up, and nothing that came meanwhile was read."""
    worker = lab.unified(1)[0]
    async with quiet_stream(worker) as (_, send, heard):
        await asyncio.sleep(0.5)
        loop, clock = asyncio.get_running_loop(), asyncio.get_running_loop().time
        loop.time = lambda: clock() + stop
        await asyncio.sleep(0.5)
        send(worker._load())
        await asyncio.sleep(4.0)
        assert heard() == []
        await asyncio.sleep(16.0)
        assert heard() == ["silent", "hung"]  # a silence of its own is still noticed


async def test_a_gap_in_kv_events_asks_for_a_snapshot(lab):
    async with lab.running(lab.unified(1)) as gateway:
        worker = gateway.workers[0]
        await gateway.submit().read()
        await gateway.until(lambda: gateway.index.blocks_at("u0") == 6)
        worker._events += 3  # events that never arrive
        await gateway.submit(prompt=tuple(range(200, 240))).read()
        await gateway.until(lambda: gateway.index.blocks_at("u0") == len(worker._stored) == 8)
        gateway.index.check_integrity()


async def test_a_worker_that_is_not_listed_any_more_finishes_and_is_left(lab):
    """It gets nothing new, and nothing stays connected to what listens at its address later. Listed again, it has one
    stream and one event connection."""

    def connecting():
        return sum(task.get_coro().__name__ in ("_keep_stream", "_keep_events") for task in asyncio.all_tasks())

    def ready(name):
        worker = gateway.fleet.worker(name)
        return worker is not None and worker.ready

    u0, u1 = lab.unified(2)
    async with u0, u1, lab.following(listing := lab.listing(u0)) as gateway:
        await gateway.until(lambda: ready("u0"))
        assert gateway.state.state()["discovery"]["problem"] == "scripted"
        u0.hold("decoding", after=3)
        reader = gateway.submit()
        await u0.wait_at("decoding")
        listing.list(u1)
        await gateway.until(lambda: ready("u1"))
        assert gateway.fleet.worker("u0").draining
        assert (await gateway.submit(seed=8).read()).generation.route.decode == "u1"
        u0.release()
        assert (await reader.read()).text == lab.text_of(7, 20)
        for _ in range(2):
            await u0.kill()
            await gateway.until(lambda: gateway.fleet.worker("u0") is None and connecting() == 2)
            gateway.links.check_integrity()
            await u0.start()
            listing.list(u0, u1)
            await gateway.until(lambda: ready("u0"))
            await u0.wait(lambda: len(u0._readers) == 1)
            assert connecting() == 4
            listing.list(u1)
            await gateway.until(lambda: gateway.fleet.worker("u0").draining)


async def test_a_workers_file_that_is_missing_or_broken_changes_nothing(tmp_path):
    path = tmp_path / "workers.json"
    discovery = FileDiscovery(path, 0.001)
    watching = discovery.watch()
    first = asyncio.ensure_future(anext(watching))
    while not discovery.problem:  # noqa: ASYNC110 – the file is polled
        await asyncio.sleep(0.001)
    assert "No such file" in discovery.problem
    path.write_text('[{"worker": "a", "address": "127.0.0.1:1"}]')
    assert [worker.worker for worker in await first] == ["a"]
    second = asyncio.ensure_future(anext(watching))
    path.write_text("[{")
    while "No such file" in discovery.problem or not discovery.problem:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    path.write_text("[]")
    assert await second == ()
    assert discovery.problem == ""
    await watching.aclose()


@pytest.mark.parametrize(
    "content",
    [
        b"{}",
        b'[{"worker": "a"}]',
        b'[{"worker": "a", "address": "b"}]',
        b'[{"worker": "a", "address": "b:0"}]',
        b'[{"worker": "a", "address": "b:1"}, {"worker": "a", "address": "c:1"}]',
        b'[{"worker": "a", "address": "b:1", "port": 1}]',
    ],
)
def test_bad_workers_files_are_refused(content):
    with pytest.raises(BadWorkersFile):
        parse_workers(content)
