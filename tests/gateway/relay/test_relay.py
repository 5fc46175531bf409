"""The relay over real sockets: what it decides in virtual time reaches workers, and theirs reaches clients."""

import asyncio
import random

import pytest
from budget import times

from legato_gateway.errors import DeadlineExceeded
from legato_protocol.stream import Cancel, Decode, Generate, Handoff, Pause, Prefill


def _busy(gateway):
    """The worker that has the only request."""
    return next(worker for worker in gateway.workers if worker.engine.jobs)


async def test_handed_over_request_gives_the_undisturbed_text_and_its_stages_are_shown(lab):
    async with lab.running(lab.pools(1, 1)) as gateway:
        p0, d0 = gateway.workers

        def shown():
            (request,) = gateway.state.state()["requests"]
            return request["stage"], request["output_tokens"]

        p0.hold("queued")
        reader = gateway.submit(logprobs=2)
        await p0.wait_at("queued")
        assert shown() == ("queued", 0)
        p0.release()
        p0.hold("prefilling")
        await p0.wait_at("prefilling")
        await gateway.until(lambda: shown() == ("prefilling", 0))
        d0.hold("decoding", after=5)
        p0.release()
        await d0.wait_at("decoding")
        await gateway.until(lambda: shown() == ("decoding", 5))
        d0.release()
        await reader.read()
        assert shown() == ("ended", 20)
        assert (reader.text, reader.finishes) == (lab.text_of(7, 20), {0: "length"})
        tokens = [token for delta in reader.deltas for token in delta.tokens]
        assert "".join(token.text for token in tokens) == reader.text
        assert all(len(token.logprobs.top) == 2 for token in tokens)
        route = reader.generation.route
        assert (route.prefill, route.decode, route.attempt) == ("p0", "d0", 1)
        await gateway.until(lambda: route.handoffs)
        assert route.handoffs[0]["source"] == "p0"
        assert reader.generation.usage.completion_tokens == 20
        assert [prefill.room for prefill in p0.got(Prefill)] == [decode.room for decode in d0.got(Decode)]
        state = gateway.state.state()
        assert {worker["worker"]: worker["role"] for worker in state["workers"]} == {"p0": "prefill", "d0": "decode"}
        assert state["requests"][-1]["finish"] == "length"
        assert gateway.state.unready() is None


async def test_leaving_stops_the_work(lab):
    async with lab.running(lab.pools(1, 1)) as gateway:
        reader = gateway.submit(max_tokens=100_000)
        reader.take(await anext(reader.generation))
        await reader.generation.cancel()
        for worker in gateway.workers:
            await worker.wait(lambda worker=worker: not worker.engine.jobs)
        assert gateway.relay.active == 0
        gateway.admission.check_integrity()


async def test_a_slow_client_pauses_its_sequence_and_loses_nothing(lab):
    async with lab.running(lab.unified(1), buffer_tokens=8) as gateway:
        (worker,) = gateway.workers
        reader = gateway.submit(max_tokens=100)
        await worker.wait(lambda: worker.got(Pause))
        job = next(iter(worker.engine.jobs.values()))
        assert job.paused
        assert job.made[0] < 100
        await reader.read()
        assert reader.text == lab.text_of(7, 100)
        assert any(not frame.on for frame in worker.got(Pause))


async def test_kv_events_reach_the_index_and_the_route(lab):
    async with lab.running(lab.pools(1, 1)) as gateway:
        await gateway.submit().read()
        await gateway.until(lambda: gateway.index.held("d0") == 6)
        reader = await gateway.submit().read()
        assert reader.generation.route.prefill == "local"
        assert reader.generation.route.cached_tokens == {"d0": 96}


async def test_an_admitted_request_says_so_before_its_first_token(lab):
    async with lab.running(lab.unified(1)) as gateway:
        (worker,) = gateway.workers
        worker.hold("queued")
        generation = gateway.submit().generation
        assert await generation.wait_admitted()
        assert generation.completion_tokens == 0
        worker.release()


async def test_a_request_that_ends_in_the_queue_was_never_admitted(lab):
    async with lab.following([]) as gateway:
        reader = gateway.submit(deadline=0.2)
        waiting = asyncio.create_task(reader.generation.wait_admitted())
        with pytest.raises(DeadlineExceeded):
            await reader.read()
        assert not await waiting


# ── workers that die, hang or drain ─────────────────────────────────────────────────────────────────────────────────

STAGES = [("p0", "queued"), ("p0", "prefilling"), ("p0", "pushing"), ("d0", "receiving"), ("d0", "decoding")]


@pytest.mark.parametrize(
    ("name", "stage", "happens"),
    [*((*at, "dies") for at in STAGES), *((*at, how) for at in (STAGES[1], STAGES[4]) for how in ("breaks", "hangs"))],
)
async def test_what_happens_to_a_worker_at_any_stage_fails_no_stream(lab, name, stage, happens):
    """Its peer of the same pool has no part in it before: it drains until the request is at that stage."""
    async with lab.running(lab.pools(2, 2), hang=0.3) as gateway:
        worker, peer = lab.worker(gateway, name), lab.worker(gateway, f"{name[0]}1")
        worker.hold(stage, after=5)
        await peer.drain()
        await gateway.until(lambda: gateway.fleet.worker(peer.name).draining)
        reader = gateway.submit(max_tokens=60)
        await worker.wait_at(stage)
        peer.engine.draining = False
        await peer.say(peer._load())
        await gateway.until(lambda: not gateway.fleet.worker(peer.name).draining)
        if happens == "dies":
            await worker.kill()
            await worker.start()
        else:
            worker.hang() if happens == "hangs" else worker.disconnect()
            worker.release()
        await reader.read()
        assert reader.text == lab.text_of(7, 60)
        assert reader.generation.usage.completion_tokens == 60
        assert reader.generation.route.attempt >= 2 or happens == "breaks"
        if happens == "hangs":
            worker.wake()
            await gateway.until(lambda: gateway.fleet.worker(name).ready)
            await worker.wait(lambda: not worker.engine.jobs)


async def test_a_lost_core_is_left_at_once_and_used_again_when_it_is_back(lab):
    async with lab.running(lab.unified(1)) as gateway:
        (worker,) = gateway.workers
        worker.hold("decoding", after=5)
        reader = gateway.submit(max_tokens=60)
        await worker.wait_at("decoding")
        await worker.lose_core()
        await gateway.until(lambda: gateway.relay.waiting == 1)
        assert gateway.fleet.worker("u0").connection == "lost"
        await worker.restart_core()
        await reader.read()
        assert reader.text == lab.text_of(7, 60)
        resumed = worker.got(Generate)[-1]
        assert (len(resumed.sequence.token_ids), resumed.attempt) == (4 * 105, 2)


async def test_many_streams_survive_a_killed_worker(lab):
    async with lab.running(lab.pools(1, 3)) as gateway:
        readers = [gateway.submit(seed=seed, max_tokens=100) for seed in range(40)]
        tasks = [asyncio.create_task(reader.read()) for reader in readers]
        await gateway.until(lambda: gateway.count("output_tokens_total") > 400)
        await lab.worker(gateway, "d1").kill()
        await asyncio.gather(*tasks)
        assert [reader.text for reader in readers] == [lab.text_of(seed, 100) for seed in range(40)]
        gateway.admission.check_integrity()


async def test_a_draining_worker_hands_its_choices_on_one_by_one(lab):
    async with lab.running(lab.pools(1, 3)) as gateway:
        reader = gateway.submit(max_tokens=400, choices=3)
        reader.take(await anext(reader.generation))
        source = lab.worker(gateway, reader.generation.route.decode)
        await source.drain()
        await reader.read()
        assert reader.texts == {choice: lab.text_of(7, 400, choice) for choice in range(3)}
        assert len(source.got(Handoff)) == gateway.count("migrations_total", reason="draining") == 3
        others = [worker for worker in gateway.workers[1:] if worker is not source]
        assert sorted(f.sequence.choices for other in others for f in other.got(Decode)) == [(0,), (1,), (2,)]
        assert not any(worker.got(Generate) or worker.got(Cancel) for worker in others)
        assert not source.engine.jobs
        assert len(lab.worker(gateway, "p0").got(Prefill)) == 1
        assert set(reader.generation.route.workers) == {worker.name for worker in gateway.workers}


@pytest.mark.parametrize("dies", ["source", "target"])
async def test_a_death_during_a_move_loses_nothing(lab, dies):
    async with lab.running(lab.unified(3)) as gateway:
        for worker in gateway.workers:
            worker.hold("receiving")
            worker.hold("decoding", after=6)
        reader = gateway.submit(max_tokens=50, choices=3)
        await gateway.until(lambda: any(worker.engine.at("decoding") for worker in gateway.workers))
        source = _busy(gateway)
        await source.drain()
        await gateway.until(lambda: any(worker.engine.at("receiving") for worker in gateway.workers))
        target = next(worker for worker in gateway.workers if worker.engine.at("receiving"))
        for worker in gateway.workers:
            worker.release()
        await (source if dies == "source" else target).kill()
        await reader.read()
        assert reader.texts == {choice: lab.text_of(7, 50, choice) for choice in range(3)}


async def _disturb(gateway, worker, how):
    known = gateway.fleet.worker(worker.name)
    if how == "disconnect":
        worker.disconnect()
    elif how == "core":
        await worker.lose_core()
        await worker.restart_core()
    elif how == "drain":
        await worker.drain()
        await gateway.until(lambda: known.draining)
        worker.engine.draining = False
    else:
        worker.hang()
        await gateway.until(lambda: known.connection != "connected")
        worker.wake()
    await gateway.until(lambda: known.ready)


@pytest.mark.parametrize("seed", range(times(1)))
async def test_random_disturbances_change_no_text(lab, seed):
    """Broken connections, lost cores, hanging and draining workers, one after the other, under many streams."""
    workers = lab.pools(2, 3, heartbeat=0.02)
    async with lab.running(workers, hang=0.3, poison_deaths=1000, buffer_tokens=16) as gateway:
        chance = random.Random(seed)
        readers = [gateway.submit(seed=n, max_tokens=300, choices=1 + n % 2) for n in range(16)]
        tasks = [asyncio.create_task(reader.read()) for reader in readers]
        for _ in range(12):
            enough = gateway.count("output_tokens_total") + 50
            await gateway.until(
                lambda enough=enough: (
                    gateway.count("output_tokens_total") > enough or all(task.done() for task in tasks)
                )
            )
            await _disturb(gateway, chance.choice(workers), chance.choice(("disconnect", "core", "hang", "drain")))
            gateway.relay.check_integrity()
        await asyncio.gather(*tasks)
        for n, reader in enumerate(readers):
            assert reader.texts == {choice: lab.text_of(n, 300, choice) for choice in range(1 + n % 2)}
        for worker in workers:
            await worker.wait(lambda worker=worker: not worker.engine.jobs)
