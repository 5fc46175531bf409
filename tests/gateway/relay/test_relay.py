"""The relay end to end over real sockets, undisturbed."""

import asyncio

import pytest

from legato_gateway.errors import DeadlineExceeded, SlowClient
from legato_protocol.stream import Cancel, Decode, Generate, Pause, Prefill


async def test_handed_over_request_gives_the_undisturbed_text(lab):
    async with lab.running(lab.pools(1, 1)) as gateway:
        reader = await gateway.submit().read()
        assert reader.text == lab.text_of(7, 20)
        assert reader.finishes == {0: "length"}
        route = reader.generation.route
        assert (route.prefill, route.decode, route.attempt) == ("p0", "d0", 1)
        await gateway.until(lambda: route.handoffs)
        assert route.handoffs[0]["source"] == "p0"
        assert reader.generation.usage.completion_tokens == 20
        p0, d0 = gateway.workers
        assert len(p0.got(Prefill)) == len(d0.got(Decode)) == 1
        assert p0.got(Prefill)[0].room == d0.got(Decode)[0].room


async def test_state_tells_how_far_a_request_is(lab):
    async with lab.running(lab.pools(1, 1)) as gateway:
        p0, d0 = gateway.workers

        def shown():
            (request,) = gateway.state.state()["requests"]
            return request["stage"], request["output_tokens"]

        p0.hold("queued")
        reader = gateway.submit()
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


async def test_choices_of_a_request_are_one_sub_request(lab):
    async with lab.running(lab.unified(1)) as gateway:
        reader = await gateway.submit(choices=3).read()
        assert reader.texts == {choice: lab.text_of(7, 20, choice) for choice in range(3)}
        assert len(gateway.workers[0].got(Generate)) == 1


async def test_stop_string_ends_the_request_and_the_work(lab):
    async with lab.running(lab.unified(1)) as gateway:
        whole = lab.text_of(7, 2000)
        stop = whole[11:16]
        reader = await gateway.submit(max_tokens=2000, stop=(stop,)).read()
        assert reader.text == whole[: whole.index(stop)]
        assert reader.finishes == {0: "stop"}
        worker = gateway.workers[0]
        await worker.wait(lambda: not worker.engine.jobs and worker.got(Cancel))


async def test_a_stop_string_ends_the_work_for_its_choice_alone(lab):
    async with lab.running(lab.unified(1)) as gateway:
        whole = lab.text_of(7, 300, choice=1)
        stop = whole[11:23]
        texts = [lab.text_of(7, 300, choice) for choice in (0, 2)]
        assert not any(stop in text for text in texts)
        worker = gateway.workers[0]
        reader = gateway.submit(max_tokens=300, choices=3, stop=(stop,))
        reading = asyncio.create_task(reader.read())
        await worker.wait(lambda: [set(job.made) for job in worker.engine.jobs.values()] == [{0, 2}])
        assert reader.finishes == {1: "stop"}
        await reading
        assert [reader.texts[choice] for choice in (0, 2)] == texts
        assert reader.texts[1] == whole[: whole.index(stop)]
        assert [frame.choices for frame in worker.got(Cancel)] == [(1,)]


async def test_the_token_that_stops_a_sequence_is_counted_and_not_shown(lab):
    async with lab.running(lab.unified(1)) as gateway:
        ids = gateway.workers[0].engine._tokens
        stop = next(ids(7, 0, i) for i in range(5, 20) if ids(7, 0, i) not in [ids(7, 0, j) for j in range(i)])
        position = next(i for i in range(20) if ids(7, 0, i) == stop)
        reader = await gateway.submit(stop_token_ids=(stop,)).read()
        assert reader.text == lab.text_of(7, position)
        assert reader.finishes == {0: "stop"}
        assert reader.generation.usage.completion_tokens == position + 1


async def test_logprobs_come_with_their_tokens(lab):
    async with lab.running(lab.unified(1)) as gateway:
        reader = await gateway.submit(logprobs=2, max_tokens=3).read()
        tokens = [token for delta in reader.deltas for token in delta.tokens]
        assert [token.text for token in tokens] == [lab.text_of(7, 3)[i : i + 2] for i in (0, 2, 4)]
        assert all(len(token.logprobs.top) == 2 for token in tokens)


async def test_leaving_stops_the_work(lab):
    async with lab.running(lab.pools(1, 1)) as gateway:
        reader = gateway.submit(max_tokens=100_000)
        reader.take(await anext(reader.generation))
        await reader.generation.cancel()
        for worker in gateway.workers:
            await worker.wait(lambda worker=worker: not worker.engine.jobs)
        assert gateway.relay.active == 0
        gateway.admission.check_integrity()


@pytest.mark.parametrize(("stage", "part"), [("prefilling", "prefill"), ("decoding", "decode")])
async def test_deadline_ends_in_an_error_that_names_the_part(lab, stage, part):
    async with lab.running(lab.pools(1, 1)) as gateway:
        worker = gateway.workers[0 if stage == "prefilling" else 1]
        worker.hold(stage, after=2)
        reader = gateway.submit(deadline=0.3)
        with pytest.raises(DeadlineExceeded) as caught:
            await reader.read()
        assert caught.value.part == part
        assert reader.text == ("" if part == "prefill" else lab.text_of(7, 2))
        await worker.wait(lambda: not worker.engine.jobs)


async def test_deadline_in_the_queue_names_the_gateway(lab):
    async with lab.running(lab.pools(1, 0)) as gateway:
        with pytest.raises(DeadlineExceeded) as caught:
            await gateway.submit(deadline=0.1).read()
        assert caught.value.part == "gateway"


async def test_a_slow_client_pauses_its_sequence_and_loses_nothing(lab):
    async with lab.running(lab.unified(1), buffer_tokens=8) as gateway:
        worker = gateway.workers[0]
        reader = gateway.submit(max_tokens=100)
        await worker.wait(lambda: worker.got(Pause))
        job = next(iter(worker.engine.jobs.values()))
        assert job.paused
        assert job.made[0] < 100
        await reader.read()
        assert reader.text == lab.text_of(7, 100)
        assert any(not frame.on for frame in worker.got(Pause))


async def test_a_slow_client_is_disconnected_where_the_policy_says_so(lab):
    async with lab.running(lab.unified(1), buffer_tokens=8, slow_client="Disconnect") as gateway:
        reader = gateway.submit(max_tokens=100_000)
        worker = gateway.workers[0]
        await worker.wait(lambda: worker.got(Cancel))
        with pytest.raises(SlowClient):
            await reader.read()
        assert reader.text == lab.text_of(7, len(reader.text) // 2)
        assert len(reader.text) >= 16


async def test_requests_of_one_moment_spread_over_workers(lab):
    async with lab.running(lab.unified(2, heartbeat=5)) as gateway:
        readers = [gateway.submit(seed=seed) for seed in range(8)]
        await asyncio.gather(*(reader.read() for reader in readers))
        assert [len(worker.got(Generate)) for worker in gateway.workers] == [4, 4]


async def test_state_shows_workers_and_requests(lab):
    async with lab.running(lab.pools(1, 1)) as gateway:
        await gateway.submit().read()
        state = gateway.state.state()
        assert {worker["worker"]: worker["role"] for worker in state["workers"]} == {
            "p0": "prefill",
            "d0": "decode",
        }
        assert state["requests"][-1]["finish"] == "length"
        assert gateway.state.unready() is None


async def test_kv_events_reach_the_index_and_the_route(lab):
    async with lab.running(lab.pools(1, 1)) as gateway:
        await gateway.submit().read()
        await gateway.until(lambda: gateway.index.held("d0") == 6)
        reader = await gateway.submit().read()
        assert reader.generation.route.prefill == "local"
        assert reader.generation.route.cached_tokens == {"d0": 96}


async def test_a_long_prompt_is_hashed_in_pieces_and_served(lab):
    async with lab.running(lab.unified(1)) as gateway:
        reader = gateway.submit(prompt=tuple(range(100_000)))
        assert not gateway.workers[0].got(Generate)
        assert not reader.generation.route.decode
        assert (await reader.read()).text == lab.text_of(7, 20)
