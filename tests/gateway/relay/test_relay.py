"""The relay over real sockets: what it decides in virtual time reaches workers, and their frames reach clients."""

from legato_protocol.wire.stream import Decode, Pause, Prefill


async def test_handed_over_request_gives_the_undisturbed_text_and_its_stages_are_shown(lab):
    async with lab.running(lab.pools(1, 1)) as gateway:
        p0, d0 = gateway.workers
        reader = gateway.submit(logprobs=2)

        def show():
            (request,) = gateway.state.state()["requests"]
            return request["stage"], request["output_tokens"]

        for worker, stage, tokens in ((p0, "queued", 0), (p0, "prefilling", 0), (d0, "decoding", 5)):
            worker.hold(stage, after=tokens)
            await worker.wait_at(stage)
            await gateway.until(lambda stage=stage, tokens=tokens: show() == (stage, tokens))
            worker.release()
        await reader.read()
        assert show() == ("ended", 20)
        assert (reader.text, reader.finishes) == (lab.text_of(7, 20), {0: "length"})
        tokens = [token for delta in reader.deltas for token in delta.tokens]
        assert "".join(token.text for token in tokens) == reader.text
        assert all(len(token.logprobs.top) == 2 for token in tokens)
        route = reader.generation.route
        assert (route.prefill, route.decode, route.attempt) == ("p0", "d0", 1)
        await gateway.until(lambda: route.handoffs)
        assert route.handoffs[0]["source"] == "p0"
        assert [prefill.room for prefill in p0.got(Prefill)] == [decode.room for decode in d0.got(Decode)]
        state = gateway.state.state()
        assert {worker["worker"]: worker["role"] for worker in state["workers"]} == {"p0": "prefill", "d0": "decode"}
        assert state["requests"][-1]["finish"] == "length"
        assert gateway.state.unready() is None


async def test_a_slow_client_pauses_its_sequence_and_its_leaving_stops_the_work(lab):
    async with lab.running(lab.unified(1), buffer_tokens=8) as gateway:
        (worker,) = gateway.workers
        slow, leaves = gateway.submit(max_tokens=100), gateway.submit(max_tokens=100_000)
        await worker.wait(lambda: len(worker.got(Pause)) == 2)
        assert all(job.paused and job.made[0] < 100 for job in worker.engine.jobs.values())
        await slow.read()
        assert slow.text == lab.text_of(7, 100)
        assert any(not frame.on for frame in worker.got(Pause))
        await leaves.generation.cancel()
        await worker.wait(lambda: not worker.engine.jobs)
        assert gateway.relay.active == 0
        gateway.admission.check_integrity()
