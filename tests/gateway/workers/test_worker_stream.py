"""Connecting to workers, and what happens when they are not what was expected."""

import asyncio
import contextlib
import json
import random

import msgspec
import pytest
from msgspec.structs import replace
from websockets.asyncio.server import serve

from legato_gateway.discovery import BadWorkersFile, FileDiscovery, WorkerAddress, parse_workers
from legato_gateway.routing.kv_index import PIECE
from legato_gateway.workers.connecting import Backoff
from legato_gateway.workers.silence import SilenceLimits
from legato_gateway.workers.worker_stream import StreamLimits, WorkerStream
from legato_protocol import kv_events, stream
from legato_protocol.followed_tokens import ServiceTokens
from legato_protocol.stream import Greeting


@contextlib.asynccontextmanager
async def played(lab, talk):
    """A gateway in front of a worker whose connections a test plays."""
    async with serve(talk, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with lab.following([("u0", f"127.0.0.1:{port}")]) as gateway:
            yield gateway


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
        stream = WorkerStream(
            "u0", gateway.workers[0].address, gateway.relay.workers, gateway="g2", tokens=tokens, limits=limits
        )
        stream.start(lambda fault: None, lambda stream: None)
        await gateway.until(lambda: stream.connected)
        text = gateway.metrics.render(gateway.demand.report())[0].decode()
        assert 'refused_tokens_total{by="worker"}' in text
        assert 'refused_tokens_total{by="worker"} 0.0' not in text
        (tmp_path / "previous").unlink()
        (tmp_path / "token").write_text("newest")
        tokens.look()
        assert stream.connected, "nobody is asked again for a token"
        assert await gateway.submit().read()
        await stream.close()


@pytest.mark.parametrize("answer", [b"\xc1", b"", "text", stream.encode(Greeting("me"))])
async def test_bad_frames_close_the_connection_and_are_counted(lab, answer):
    async def talk(connection):
        await connection.recv()
        await connection.send(answer)
        await connection.wait_closed()

    async with played(lab, talk) as gateway:
        await gateway.until(lambda: gateway.count("bad_frames_total", worker="u0") > 0)
        assert not gateway.fleet.worker("u0").ready


@pytest.mark.parametrize("kind", ["/stream", "/events"])
async def test_a_frame_of_a_kind_that_only_a_later_version_knows_is_skipped_and_counted(lab, kind):
    """The worker is of the next version, and says that it understands this one."""
    later = msgspec.msgpack.encode(["later", 1, "x"])
    worker = lab.unified(1)[0]
    hello = replace(worker._hello(), version=stream.VERSION + 1, oldest=stream.VERSION)
    stored = kv_events.Snapshot(hello.epoch, 0, 0, True, bytes(16))

    async def talk(connection):
        await connection.recv()
        frames = [stream.encode(hello)] if connection.request.path == "/stream" else []
        frames += [later] if connection.request.path == kind else []
        frames += [stream.encode(stored)] if connection.request.path == "/events" else []
        for frame in frames:
            await connection.send(frame)
        await connection.wait_closed()

    async with played(lab, talk) as gateway:
        await gateway.until(lambda: gateway.count("unknown_frames_total", worker="u0") == 1)
        await gateway.until(lambda: gateway.fleet.worker("u0").ready)
        assert gateway.count("bad_frames_total", worker="u0") == 0


@pytest.mark.parametrize("page", [100_000, 1000])
async def test_a_large_snapshot_is_taken_in_a_few_blocks_a_turn_of_the_loop(lab, page):
    """Whatever the size of its pages: a token that comes meanwhile has its turn."""
    hello = lab.unified(1)[0]._hello()
    pages = range(0, 100_000, page)
    frames = [
        kv_events.Snapshot(
            hello.epoch, 0, number, start == pages[-1], b"".join(i.to_bytes(16) for i in range(start, start + page))
        )
        for number, start in enumerate(pages)
    ]

    async def talk(connection):
        await connection.recv()
        for frame in [hello] if connection.request.path == "/stream" else frames:
            await connection.send(stream.encode(frame))
        await connection.wait_closed()

    async with played(lab, talk) as gateway:
        most = 0
        while gateway.index.held("u0") < 100_000:
            before = gateway.index.blocks
            await asyncio.sleep(0)
            most = max(most, gateway.index.blocks - before)
    assert 0 < most <= PIECE


@pytest.mark.parametrize(("version", "oldest"), [(stream.VERSION + 1, 0), (stream.OLDEST - 1, 0), (9, 8)])
async def test_a_worker_of_no_version_in_common_is_named_and_not_used(lab, version, oldest):
    async def talk(connection):
        await connection.recv()
        await connection.send(stream.encode(replace(hello, version=version, oldest=oldest)))
        await connection.wait_closed()

    hello = lab.unified(1)[0]._hello()
    async with played(lab, talk) as gateway:
        await gateway.until(lambda: "speaks version" in gateway.fleet.worker("u0").problem)
        assert not gateway.fleet.worker("u0").ready


class Heard:
    """A listener that notes what it is told of silence."""

    def __init__(self):
        self.told = []

    def silent(self, worker):
        self.told.append("silent")

    def hung(self, worker):
        self.told.append("hung")

    def spoke(self, worker):
        self.told.append("spoke")

    def __getattr__(self, name):
        return lambda *_: False


class Connection:
    """One end of a stream whose other end says what a test puts into `frames`."""

    def __init__(self):
        self.frames = asyncio.Queue()
        self.aborted = False
        self.transport = self

    async def send(self, data):
        pass

    async def recv(self):
        return await self.frames.get()

    def abort(self):
        self.aborted = True

    def __aiter__(self):
        return self

    __anext__ = recv


@contextlib.asynccontextmanager
async def quiet_stream(worker, hang):
    """A stream that has heard Hello, its connection, and what its listener was told."""
    connection, listener = Connection(), Heard()
    limits = StreamLimits(SilenceLimits(hang))
    stream_ = WorkerStream("u0", "", listener, gateway="g", tokens=ServiceTokens(), limits=limits)
    connection.frames.put_nowait(stream.encode(worker._hello()))
    running = asyncio.create_task(stream_._run_stream(connection, Backoff(0.05, 2.0, random.Random(1))))
    try:
        yield connection, listener.told
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
async def test_silence_is_told_twice_and_a_connection_without_an_end_is_given_up(lab, step, passes):
    worker = lab.unified(1)[0]
    async with quiet_stream(worker, hang=15.0) as (connection, told):
        if step:
            connection.frames.put_nowait(stream.encode(replace(worker._load(), step_expected=step)))
        for seconds, expected in passes.items():
            assert not connection.aborted
            await asyncio.sleep(seconds)
            assert told == expected, seconds
        assert connection.aborted is (step is None)


@pytest.mark.virtual_time
async def test_a_core_for_which_its_server_speaks_is_given_nothing_new_and_is_not_given_up(lab):
    worker = lab.unified(1)[0]
    async with quiet_stream(worker, hang=15.0) as (connection, told):
        repeated = stream.encode(replace(worker._load(), core_silence=2.0))
        for _ in range(60):
            await asyncio.sleep(1.0)
            connection.frames.put_nowait(repeated)
        assert told == ["silent"]
        connection.frames.put_nowait(stream.encode(worker._load()))
        await asyncio.sleep(0.1)
        assert told == ["silent", "spoke"]


@pytest.mark.parametrize("stop", [1.1, 5.0, 20.0, 3600.0])
@pytest.mark.virtual_time
async def test_a_gateway_that_was_stopped_itself_hears_its_workers_before_it_judges_them(lab, stop):
    """All timers are due when it wakes up, and nothing that came meanwhile was read."""
    worker = lab.unified(1)[0]
    async with quiet_stream(worker, hang=15.0) as (connection, told):
        load = stream.encode(worker._load())
        await asyncio.sleep(0.5)
        loop, clock = asyncio.get_running_loop(), asyncio.get_running_loop().time
        loop.time = lambda: clock() + stop
        await asyncio.sleep(0.5)
        connection.frames.put_nowait(load)
        await asyncio.sleep(4.0)
        assert told == []
        await asyncio.sleep(16.0)
        assert told == ["silent", "hung"]  # a silence of its own is still noticed


async def test_a_fault_while_it_watches_for_silence_is_told(lab):
    class Listener:
        def silent(self, worker):
            raise KeyError("a fault")

        def __getattr__(self, name):
            return lambda *_: False

    fault = asyncio.get_running_loop().create_future()
    limits = StreamLimits(SilenceLimits(0.1))
    async with asyncio.timeout(20), lab.unified(1)[0] as worker:
        worker.hang()
        tokens = ServiceTokens(lab.token)
        stream = WorkerStream("u0", worker.address, Listener(), gateway="g", tokens=tokens, limits=limits)
        stream.start(fault.set_exception, lambda _: None)
        with pytest.raises(KeyError):
            await fault
        await stream.close()


async def test_a_gap_in_kv_events_asks_for_a_snapshot(lab):
    async with lab.running(lab.unified(1)) as gateway:
        worker = gateway.workers[0]
        await gateway.submit().read()
        await gateway.until(lambda: gateway.index.held("u0") == 6)
        worker._events += 3  # events that never arrive
        await gateway.submit(prompt=tuple(range(200, 240))).read()
        await gateway.until(lambda: gateway.index.held("u0") == len(worker._stored) == 8)
        gateway.index.check_integrity()


async def test_a_worker_that_is_listed_no_more_finishes_and_gets_nothing_new(lab, tmp_path):
    path = tmp_path / "workers.json"
    workers = lab.unified(2)

    def list_workers(*chosen):
        draft = tmp_path / "draft"
        draft.write_text(json.dumps([{"worker": worker.name, "address": worker.address} for worker in chosen]))
        draft.replace(path)

    async with workers[0], workers[1]:
        list_workers(workers[0])
        async with lab.following(FileDiscovery(path, 0.01)) as gateway:
            gateway.workers.extend(workers)
            await gateway.until(lambda: gateway.fleet.worker("u0") and gateway.fleet.worker("u0").ready)
            workers[0].hold("decoding", after=3)
            reader = gateway.submit()
            await workers[0].wait_at("decoding")
            list_workers(workers[1])
            await gateway.until(lambda: gateway.fleet.worker("u1") and gateway.fleet.worker("u1").ready)
            assert gateway.fleet.worker("u0").draining
            second = await gateway.submit(seed=8).read()
            assert second.generation.route.decode == "u1"
            workers[0].release()
            assert (await reader.read()).text == lab.text_of(7, 20)
            await workers[0].kill()
            await gateway.until(lambda: gateway.fleet.worker("u0") is None)
            await workers[0].start()


async def test_nothing_stays_connected_to_a_worker_that_was_retired(lab):
    """Also not to what listens at its address later; listed again, it has one stream and one event connection."""

    class Listing:
        def __init__(self):
            self.lists = asyncio.Queue()

        async def watch(self):
            while True:
                yield await self.lists.get()

    def connecting():
        return sum(task.get_coro().__name__ in ("_keep_stream", "_keep_events") for task in asyncio.all_tasks())

    listing, worker = Listing(), lab.unified(1)[0]
    async with worker:
        found = (WorkerAddress("u0", worker.address),)
        listing.lists.put_nowait(found)
        async with lab.following(listing) as gateway:
            for _ in range(2):
                await gateway.wait_ready()
                await worker.wait(lambda: len(worker._readers) == 1)
                assert connecting() == 2
                listing.lists.put_nowait(())
                await gateway.until(lambda: gateway.fleet.worker("u0").draining)
                await worker.kill()
                await gateway.until(lambda: gateway.fleet.worker("u0") is None)
                await gateway.until(lambda: connecting() == 0)
                gateway.links.check_integrity()
                await worker.start()
                listing.lists.put_nowait(found)
                await gateway.until(lambda: gateway.fleet.worker("u0") is not None)


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
