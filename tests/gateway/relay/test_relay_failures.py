"""What a client reads when workers die, hang, drain or talk nonsense: the undisturbed text."""

import asyncio
import random

import pytest

from legato_gateway.errors import Overloaded, SuspectedPoison, WorkerFailed
from legato_gateway.testing.fake_engine import Refusal
from legato_protocol.stream import Cancel, Decode, Failed, Generate, TokenItem, Tokens

STAGES = [("p0", "queued"), ("p0", "prefilling"), ("p0", "pushing"), ("d0", "receiving"), ("d0", "decoding")]


async def _disturb(lab, gateway, name, stage, disturb):
    """Holds a request at a stage of a worker, disturbs, and reads it to the end."""
    worker = lab.worker(gateway, name)
    worker.hold(stage, after=5)
    if name == "d0":
        lab.worker(gateway, "d1").engine.draining = True  # so that the router takes d0
        await lab.worker(gateway, "d1").drain()
        await gateway.until(lambda: gateway.fleet.worker("d1").draining)
    reader = gateway.submit(max_tokens=60)
    await worker.wait_at(stage)
    lab.worker(gateway, "d1").engine.draining = False
    await lab.worker(gateway, "d1").say(lab.worker(gateway, "d1")._load())
    await gateway.until(lambda: not gateway.fleet.worker("d1").draining)
    await disturb(worker)
    await reader.read()
    assert reader.text == lab.text_of(7, 60)
    assert reader.generation.usage.completion_tokens == 60
    return reader


@pytest.mark.parametrize(("name", "stage"), STAGES)
async def test_a_worker_killed_at_any_stage_fails_no_stream(lab, name, stage):
    async with lab.running(lab.pools(2, 2)) as gateway:

        async def kill(worker):
            await worker.kill()
            await worker.start()

        if name == "p0":
            await lab.worker(gateway, "p1").drain()
            await gateway.until(lambda: gateway.fleet.worker("p1").draining)
        reader = await _disturb(lab, gateway, name, stage, kill)
        assert reader.generation.route.attempt >= 2


@pytest.mark.parametrize(("name", "stage"), STAGES)
async def test_a_broken_connection_at_any_stage_fails_no_stream(lab, name, stage):
    async with lab.running(lab.pools(1, 2)) as gateway:

        async def disconnect(worker):
            worker.release()
            worker.disconnect()

        await _disturb(lab, gateway, name, stage, disconnect)


@pytest.mark.parametrize(("name", "stage"), STAGES)
async def test_a_worker_that_hangs_is_left_and_its_late_frames_are_dropped(lab, name, stage):
    async with lab.running(lab.pools(2, 2), hang=0.3) as gateway:
        if name == "p0":
            await lab.worker(gateway, "p1").drain()
            await gateway.until(lambda: gateway.fleet.worker("p1").draining)

        async def hang(worker):
            worker.hang()
            worker.release()
            if name == "p0":
                lab.worker(gateway, "p1").engine.draining = False

        reader = await _disturb(lab, gateway, name, stage, hang)
        assert reader.generation.route.attempt >= 2
        worker = lab.worker(gateway, name)
        worker.wake()
        await gateway.until(lambda: gateway.fleet.worker(name).ready)
        await worker.wait(lambda: not worker.engine.jobs)


async def test_a_lost_core_is_left_at_once_and_used_again_when_it_is_back(lab):
    async with lab.running(lab.unified(1)) as gateway:
        worker = gateway.workers[0]
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
        assert len(resumed.sequence.token_ids) == 4 * 105
        assert resumed.attempt == 2


async def test_choices_go_on_alone_after_a_failure(lab):
    async with lab.running(lab.unified(2)) as gateway:
        for worker in gateway.workers:
            worker.hold("decoding", after=5)
        reader = gateway.submit(choices=3, max_tokens=40)
        await gateway.until(lambda: any(worker.engine.at("decoding") for worker in gateway.workers))
        first = next(worker for worker in gateway.workers if worker.engine.jobs)
        other = next(worker for worker in gateway.workers if worker is not first)
        other.release()
        await first.kill()
        await reader.read()
        assert reader.texts == {choice: lab.text_of(7, 40, choice) for choice in range(3)}
        assert sorted(frame.sequence.choices for frame in other.got(Generate)) == [(0,), (1,), (2,)]


async def test_a_part_that_nobody_will_take_ends_its_siblings_too(lab):
    """Choice 2 has output, 0 and 1 have none; with nobody to prefill, the first of these ends the request."""
    options = {"when_prefill_unavailable": "Fail", "local_prefill_below_tokens": 0}
    async with lab.running(lab.pools(1, 2), **options) as gateway:
        for worker in gateway.workers[1:]:
            worker.hold("decoding")
        reader = gateway.submit(choices=3)
        await gateway.until(lambda: any(worker.engine.at("decoding") for worker in gateway.workers[1:]))
        (sub,) = gateway.relay.sub_requests(reader.generation)
        decoder = lab.worker(gateway, sub.place.decode)
        await decoder.say(Tokens((TokenItem(sub.id, sub.attempt, 2, 0, (1,)),)))
        await gateway.until(lambda: reader.generation.completion_tokens == 1)
        await gateway.workers[0].kill()
        await gateway.until(lambda: not gateway.fleet.worker("p0").ready)
        await decoder.kill()
        with pytest.raises(Overloaded):
            await reader.read()
        gateway.relay.check_integrity()
        assert gateway.relay.waiting == 0


async def test_two_deaths_make_a_request_suspect(lab):
    async with lab.running(lab.unified(3)) as gateway:
        for worker in gateway.workers:
            worker.hold("decoding", after=2)
        reader = gateway.submit(max_tokens=40)
        for _ in range(2):
            await gateway.until(lambda: any(worker.engine.at("decoding") for worker in gateway.workers))
            await next(worker for worker in gateway.workers if worker.engine.jobs).kill()
        with pytest.raises(SuspectedPoison):
            await reader.read()
        assert reader.text == lab.text_of(7, 2)
        assert sum(len(worker.got(Generate)) for worker in gateway.workers) == 2


@pytest.mark.parametrize(("stage", "poison"), [("queued", False), ("prefilling", True)])
async def test_only_a_request_that_was_computed_is_suspect(lab, stage, poison):
    """Requests that wait in the queue of a worker which dies, twice, are not what killed it."""
    async with lab.running(lab.unified(3)) as gateway:
        for worker in gateway.workers:
            worker.hold(stage)
        reader = gateway.submit(max_tokens=40)
        for _ in range(2):
            await gateway.until(lambda: any(worker.engine.at(stage) for worker in gateway.workers))
            (sub,) = gateway.relay.sub_requests(reader.generation)
            await gateway.until(lambda sub=sub: bool(sub.begun) is poison)
            await next(worker for worker in gateway.workers if worker.engine.jobs).kill()
        for worker in gateway.workers:
            worker.release()
        if poison:
            with pytest.raises(SuspectedPoison):
                await reader.read()
        else:
            assert (await reader.read()).text == lab.text_of(7, 40)


async def test_a_broken_connection_is_no_death_once_the_worker_is_back(lab):
    async with lab.running(lab.unified(2)) as gateway:
        for worker in gateway.workers:
            worker.hold("decoding", after=2)
        reader = gateway.submit(max_tokens=40)
        left = []
        for known in (2, 4, 6, 8):
            await gateway.until(lambda known=known: reader.generation.completion_tokens == known)
            (sub,) = gateway.relay.sub_requests(reader.generation)
            assert sub.started, "else it is no death"
            left.append(sub.place.decode)
            for worker in gateway.workers:
                worker.hold("decoding", after=known + 2)
            lab.worker(gateway, left[-1]).disconnect()
            await gateway.until(lambda sub=sub: sub.attempt == len(left) + 1)
            await gateway.wait_ready()
        assert left[0] != left[1], "one process that goes away twice is one death at most"
        for worker in gateway.workers:
            worker.release()
        assert (await reader.read()).text == lab.text_of(7, 40)


async def test_repeats_are_dropped_and_a_jump_starts_a_new_attempt(lab):
    async with lab.running(lab.unified(1)) as gateway:
        worker = gateway.workers[0]
        worker.hold("decoding", after=5)
        reader = gateway.submit(max_tokens=30)
        await worker.wait_at("decoding")
        frame = worker.got(Generate)[0]
        await worker.say(Tokens((TokenItem(frame.id, 1, 0, 3, (1, 1)),)))
        await worker.say(Tokens((TokenItem(frame.id, 0, 0, 5, (1,)),)))
        await worker.say(Tokens((TokenItem(frame.id, 1, 0, 9, (1,)),)))
        await worker.wait(lambda: len(worker.got(Generate)) == 2)
        assert [cancel.attempt for cancel in worker.got(Cancel)] == [1]
        await worker.say(Tokens((TokenItem(frame.id, 1, 0, 5, (1, 1, 1)),)))
        worker.release()
        assert (await reader.read()).text == lab.text_of(7, 30)
        assert gateway.count("late_items_total") == 2


async def test_a_worker_that_refused_is_avoided_if_another_exists(lab):
    async with lab.running(lab.unified(2)) as gateway:
        for worker in gateway.workers:
            worker.engine.refusals.append(Refusal("internal", retry=True))
        await gateway.submit().read()
        assert [len(worker.got(Generate)) for worker in gateway.workers] in ([1, 2], [2, 1])


async def test_failures_of_one_request_say_little_about_a_worker(lab):
    async with lab.running(lab.unified(1)) as gateway:
        worker = gateway.workers[0]
        for broken in (False, False, True):
            worker.engine.refusals.extend(Refusal("internal", retry=True) for _ in range(3))
            await gateway.submit().read()
            assert gateway.fleet.snapshot().workers[0].broken is broken


async def test_the_last_worker_is_used_however_often_it_failed(lab):
    async with lab.running(lab.unified(1)) as gateway:
        worker = gateway.workers[0]
        for _ in range(3):
            worker.engine.refusals.append(Refusal("internal", retry=True))
            await gateway.submit().read()
        assert gateway.fleet.snapshot().workers[0].broken
        reader = gateway.submit()
        assert gateway.admission.held == gateway.relay.waiting == 0
        assert (await reader.read()).text == lab.text_of(7, 20)


async def test_a_permanent_failure_names_its_part(lab):
    async with lab.running(lab.unified(1)) as gateway:
        gateway.workers[0].engine.refusals.append(Refusal("internal", retry=False, part="transfer"))
        with pytest.raises(WorkerFailed) as caught:
            await gateway.submit().read()
        assert caught.value.part == "transfer"


@pytest.mark.parametrize("policy", ["Retry", "Recompute", "Fail"])
async def test_transfer_failures_follow_the_policy(lab, policy):
    async with lab.running(lab.pools(1, 1), on_transfer_failure=policy) as gateway:
        d0 = lab.worker(gateway, "d0")
        d0.engine.refusals.append(Refusal("transfer", retry=True, part="transfer"))
        reader = gateway.submit()
        if policy == "Fail":
            with pytest.raises(WorkerFailed) as caught:
                await reader.read()
            assert caught.value.part == "transfer"
            return
        assert (await reader.read()).text == lab.text_of(7, 20)
        assert len(d0.got(Generate)) == (policy == "Recompute")
        assert len(d0.got(Decode)) == (1 if policy == "Recompute" else 2)


async def test_many_streams_survive_a_killed_worker(lab):
    async with lab.running(lab.pools(1, 3)) as gateway:
        readers = [gateway.submit(seed=seed, max_tokens=100) for seed in range(40)]
        tasks = [asyncio.create_task(reader.read()) for reader in readers]
        await gateway.until(lambda: gateway.count("output_tokens_total") > 400)
        await lab.worker(gateway, "d1").kill()
        await asyncio.gather(*tasks)
        assert [reader.text for reader in readers] == [lab.text_of(seed, 100) for seed in range(40)]
        gateway.admission.check_integrity()


async def test_frames_of_unknown_requests_are_ignored(lab):
    async with lab.running(lab.unified(1)) as gateway:
        worker = gateway.workers[0]
        await worker.say(Failed("nobody", 1, "internal", "?", "decode", True))
        await worker.say(Tokens((TokenItem("nobody", 1, 0, 0, (1,)),)))
        assert (await gateway.submit().read()).text == lab.text_of(7, 20)


@pytest.mark.parametrize("seed", range(3))
async def test_random_disturbances_change_no_text(lab, seed):
    """Broken connections, lost cores, hanging and draining workers, one after the other, under many streams."""

    async def disturb(gateway, worker, how):
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

    workers = lab.pools(2, 3, heartbeat=0.02)
    async with lab.running(workers, hang=0.3, poison_deaths=1000, buffer_tokens=16) as gateway:
        chance = random.Random(seed)
        readers = [gateway.submit(seed=n, max_tokens=300, choices=1 + n % 2) for n in range(16)]
        tasks = [asyncio.create_task(reader.read()) for reader in readers]
        for _ in range(12):
            seen = gateway.count("output_tokens_total")
            await gateway.until(
                lambda seen=seen: gateway.count("output_tokens_total") > seen + 50 or all(task.done() for task in tasks)
            )
            await disturb(gateway, chance.choice(workers), chance.choice(("disconnect", "core", "hang", "drain")))
            gateway.relay.check_integrity()
        await asyncio.gather(*tasks)
        for n, reader in enumerate(readers):
            assert reader.texts == {choice: lab.text_of(n, 300, choice) for choice in range(1 + n % 2)}
        for worker in workers:
            await worker.wait(lambda worker=worker: not worker.engine.jobs)
