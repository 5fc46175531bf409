"""A real worker: two processes with a tiny model, real signals. Two started workers serve most tests of this file."""

import asyncio
import gzip
import json
import os
import signal
from itertools import count
from pathlib import Path

import pytest
import tiny_llama
from msgspec.structs import replace
from worker_process import PATIENCE, alive, children, collect, generate, greet, hand_over, hear, peer_of, start, until

from legato_protocol.wire import stream
from legato_protocol.wire.load import Load
from legato_protocol.wire.packed_tokens import pack_tokens
from legato_protocol.wire.stream import Failed, KVSource, Pause, Tokens


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny_llama.write(folder, vocab_size=5000, max_position_embeddings=512)
    return folder


@pytest.fixture(scope="module")
def workers(tmp_path_factory, model):
    """The second one has two ranks, which both have the model's one KV head."""
    flags, ranks = ("--transport", "TCP", "--dtype", "Float32"), {"w0": (), "d0": ("--tensor", "2")}
    made = [
        start(tmp_path_factory.mktemp(name), "--name", name, *flags, *own, model=str(model))
        for name, own in ranks.items()
    ]
    for process in made:
        until(lambda process=process: process.ready)
    yield made
    for process in made:
        process.popen.kill()
        process.popen.wait()


@pytest.fixture
def worker(workers):
    return workers[0]


def test_the_server_process_is_lean(worker):
    pages = int(Path(f"/proc/{worker.popen.pid}/statm").read_text().split()[1])
    assert pages * os.sysconf("SC_PAGE_SIZE") <= 120 << 20
    assert "libtorch" not in Path(f"/proc/{worker.popen.pid}/maps").read_text()


def test_a_core_is_out_of_reach_of_ctrl_c_but_in_the_session_of_its_server(worker):
    """Priorities hold within a session: one for each core would make those of prefill workers useless."""
    assert os.getpgid(worker.core()) == worker.core()
    assert os.getsid(worker.core()) == os.getsid(worker.popen.pid)


async def test_a_trace_of_the_next_steps_has_their_parts(worker):
    async with worker.dial("/stream") as gateway:
        await greet(gateway)
        recording = asyncio.create_task(asyncio.to_thread(worker.post, "/profile", b'{"steps": 5, "timeout": 60}'))
        for number in count():  # whenever the recording starts, there are steps
            await gateway.send(stream.encode(generate(f"traced {number}", 60)))
            await collect(gateway, f"traced {number}", 60)
            if recording.done():
                break
        status, trace = await recording
        assert status == 200, trace
        events = [event.get("name") for event in json.loads(gzip.decompress(trace))["traceEvents"]]
        assert (events.count("step"), "decode" in events, "sampling" in events) == (5, True, True)


async def test_a_sequence_goes_from_one_process_to_another(workers):
    """Over UCX, with the KV of the model: its tokens are those of one worker."""
    alone, travelled = await hand_over(*workers)
    assert travelled == alone


async def test_cached_blocks_are_fetched_by_another_process(workers):
    """Over UCX, with the KV of the model: the answer is the one of the worker that computed the prompt."""
    source, borrower = workers
    async with source.dial("/stream") as s, borrower.dial("/stream") as b:
        peer = peer_of(await greet(s))
        await greet(b)
        asked = generate("chat", 40)
        sequence = replace(asked.sequence, token_ids=pack_tokens(range(7, 207)), prompt_len=200)
        await s.send(stream.encode(replace(asked, sequence=sequence)))
        known = await collect(s, "chat", 40)
        before = borrower.state()["totals"]
        await b.send(stream.encode(replace(asked, sequence=sequence, fetch=KVSource(peer, 5, 12, PATIENCE))))
        assert await collect(b, "chat", 40) == known
        until(lambda: borrower.state()["totals"]["prompt_tokens"] - before["prompt_tokens"] == 200 - 12 * 16)
    totals = borrower.state()["totals"]
    assert (totals["kv_fetches"], totals["kv_fetched_blocks"], totals["failed_kv_fetches"]) == (1, 12, {})


def test_a_core_ends_with_its_ranks_and_starts_again(workers):
    worker = workers[1]
    core = worker.core()
    (rank,) = children(core)
    os.kill(rank, signal.SIGKILL)
    until(lambda: worker.ready and children(worker.popen.pid) not in ([], [core]))  # at first, it knows of no loss
    assert "rank 1 ended with status -9" in worker.log.read_text()


async def test_sigterm_lets_it_finish_and_exit_with_0(worker):
    core = worker.core()
    async with worker.dial("/stream") as gateway:
        await greet(gateway)
        for frame in (generate("long", 480), Pause("long", 1, True)):  # paused long before its end
            await gateway.send(stream.encode(frame))
        while not (await hear(gateway, Load)).paused:
            pass
        worker.popen.send_signal(signal.SIGTERM)
        while not (await hear(gateway, Load)).draining:
            pass
        await gateway.send(stream.encode(generate("late")))
        refused = await hear(gateway, Failed)
        assert (refused.id, refused.code, refused.retry) == ("late", "draining", True)
        await gateway.send(stream.encode(Pause("long", 1, False)))
        while not any(item.id == "long" and item.finish for item in (await hear(gateway, Tokens)).items):
            pass
    assert worker.popen.wait(PATIENCE) == 0
    assert not alive(core)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--model", "/no/such/model"], "/no/such/model"),
        (["--runner", "paced"], "--profile: required with --runner paced"),
    ],
)
def test_settings_and_models_that_cannot_work_end_the_start_with_2(tmp_path, model, flags, said):
    """By the server; reasons of a core are in core/test_main and server/test_core_faults."""
    process = start(tmp_path, *flags, model=str(model))
    assert process.popen.wait(PATIENCE) == 2
    assert said in process.log.read_text()
