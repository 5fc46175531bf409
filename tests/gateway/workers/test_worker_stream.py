"""Connecting to workers, and what happens when they are not what was expected."""

import asyncio
import json

import pytest
from websockets.asyncio.server import serve

from legato_gateway.discovery import BadWorkersFile, FileDiscovery, WorkerAddress, parse_workers
from legato_gateway.workers.worker_stream import StreamLimits, WorkerStream
from legato_protocol import stream
from legato_protocol.stream import Greeting


def test_greets_first_and_connects_again_with_the_new_epoch(lab):
    async def test():
        async with lab.running(lab.unified(1)) as gateway:
            worker, known = gateway.workers[0], gateway.fleet.worker("u0")
            before = known.epoch
            await worker.kill()
            await gateway.until(lambda: known.connection == "connecting")
            await worker.start()
            await gateway.until(lambda: known.ready and known.epoch != before)
            reader = await gateway.submit().read()
            assert reader.text == lab.text_of(7, 20)

    lab.run(test)


@pytest.mark.parametrize(
    ("name", "token", "problem"),
    [("u0", "wrong", "refuses this gateway's token"), ("other", "secret", "worker 'other' answers")],
)
def test_a_wrong_worker_or_token_is_named_and_not_used(lab, name, token, problem):
    async def test():
        worker = lab.unified(1)[0]
        worker.name, worker._token = name, token
        async with lab.following([("u0", worker)]) as gateway:
            await gateway.until(lambda: gateway.fleet.worker("u0").problem != "")
            assert problem in gateway.fleet.worker("u0").problem
            assert not gateway.fleet.worker("u0").ready
            assert problem in gateway.state.unready()

    lab.run(test)


@pytest.mark.parametrize("answer", [b"\xc1", b"", "text", stream.encode(Greeting("me"))])
def test_bad_frames_close_the_connection_and_are_counted(lab, answer):
    async def test():
        async def talk(connection):
            await connection.recv()
            await connection.send(answer)
            await connection.wait_closed()

        async with serve(talk, "127.0.0.1", 0) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            async with lab.following([("u0", f"127.0.0.1:{port}")]) as gateway:
                await gateway.until(lambda: gateway.count("bad_frames_total", worker="u0") > 0)
                assert not gateway.fleet.worker("u0").ready

    lab.run(test)


def test_silence_and_the_first_word_after_it_are_noticed(lab):
    async def test():
        async with lab.running(lab.unified(1), silence=0.2) as gateway:
            worker, known = gateway.workers[0], gateway.fleet.worker("u0")
            worker.hang()
            await gateway.until(lambda: known.connection == "silent")
            worker.wake()
            await gateway.until(lambda: known.ready)

    lab.run(test)


def test_a_worker_that_stays_silent_is_connected_anew(lab):
    async def test():
        async with lab.running(lab.unified(1), silence=0.1) as gateway:
            worker = gateway.workers[0]
            worker.hang()
            first = worker._gateways[0]
            await first.wait_closed()
            worker.wake()
            await gateway.until(lambda: gateway.fleet.worker("u0").ready)

    lab.run(test)


def test_a_fault_while_it_watches_for_silence_is_told(lab):
    class Listener:
        def silent(self, worker):
            raise KeyError("a fault")

        def __getattr__(self, name):
            return lambda *_: False

    async def test():
        fault = asyncio.get_running_loop().create_future()
        limits = StreamLimits(silence=0.05)
        async with asyncio.timeout(20), lab.unified(1)[0] as worker:
            worker.hang()
            stream = WorkerStream("u0", worker.address, Listener(), gateway="g", token=lab.token, limits=limits)
            stream.start(fault.set_exception, lambda _: None)
            with pytest.raises(KeyError):
                await fault
            await stream.close()

    lab.run(test)


def test_a_gap_in_kv_events_asks_for_a_snapshot(lab):
    async def test():
        async with lab.running(lab.unified(1)) as gateway:
            worker = gateway.workers[0]
            await gateway.submit().read()
            await gateway.until(lambda: gateway.index.held("u0") == 6)
            worker._events += 3  # events that never arrive
            await gateway.submit(prompt=tuple(range(200, 240))).read()
            await gateway.until(lambda: gateway.index.held("u0") == len(worker._stored) == 8)
            gateway.index.check_integrity()

    lab.run(test)


def test_a_worker_that_is_listed_no_more_finishes_and_gets_nothing_new(lab, tmp_path):
    async def test():
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

    lab.run(test)


def test_nothing_stays_connected_to_a_worker_that_was_retired(lab):
    """Also not to what listens at its address later; listed again, it has one stream and one event connection."""

    class Listing:
        def __init__(self):
            self.lists = asyncio.Queue()

        async def watch(self):
            while True:
                yield await self.lists.get()

    def connecting():
        return sum(task.get_coro().__name__ in ("_keep_stream", "_keep_events") for task in asyncio.all_tasks())

    async def test():
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

    lab.run(test)


def test_a_workers_file_that_is_missing_or_broken_changes_nothing(tmp_path):
    path = tmp_path / "workers.json"
    discovery = FileDiscovery(path, 0.001)

    async def test():
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

    asyncio.run(asyncio.wait_for(test(), 20))


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
