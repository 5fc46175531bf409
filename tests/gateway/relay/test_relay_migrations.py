"""What a client reads when its sequence moves from a draining worker to another one: the undisturbed text."""

import pytest

from legato_gateway.testing.fake_engine import Refusal
from legato_protocol.stream import Decode, Failed, Generate, Handoff, Prefill, TokenItem, Tokens


async def test_a_draining_worker_hands_its_sequence_on(lab):
    async with lab.running(lab.pools(1, 2)) as gateway:
        reader = gateway.submit(max_tokens=400)
        reader.take(await anext(reader.generation))
        source = lab.worker(gateway, reader.generation.route.decode)
        await source.drain()
        await reader.read()
        assert reader.text == lab.text_of(7, 400)
        target = lab.worker(gateway, reader.generation.route.decode)
        assert target is not source
        assert reader.generation.route.workers == ["p0", source.name, target.name]
        assert len(source.got(Handoff)) == 1
        assert target.got(Generate) == []
        assert not source.engine.jobs
        assert gateway.count("migrations_total", reason="draining") == 1
        assert len(lab.worker(gateway, "p0").got(Prefill)) == 1


async def test_a_recalled_worker_keeps_its_sequence_and_takes_new_ones(lab):
    async with lab.running(lab.unified(2)) as gateway:
        for worker in gateway.workers:
            worker.hold("decoding", after=4)
        staying = gateway.submit(max_tokens=40, seed=7)
        await gateway.until(lambda: any(worker.engine.at("decoding") for worker in gateway.workers))
        source = next(worker for worker in gateway.workers if worker.engine.jobs)
        for worker in gateway.workers:
            await worker.drain()
        await gateway.until(lambda: all(worker.leaving for worker in gateway.fleet))
        new = gateway.submit(max_tokens=40, seed=8)
        await source.serve_again()
        await source.wait(lambda: len(source.got(Generate)) == 2)
        for worker in gateway.workers:
            worker.release()
        await staying.read()
        await new.read()
        assert (staying.text, new.text) == (lab.text_of(7, 40), lab.text_of(8, 40))
        assert {reader.generation.route.decode for reader in (staying, new)} == {source.name}
        assert source.got(Handoff) == []


async def test_a_move_accepts_both_attempts_in_any_order(lab):
    async with lab.running(lab.unified(2)) as gateway:
        for worker in gateway.workers:
            worker.hold("decoding", after=4)
            worker.hold("receiving")
        reader = gateway.submit(max_tokens=8, seed=7)
        await gateway.until(lambda: any(worker.engine.at("decoding") for worker in gateway.workers))
        source = next(worker for worker in gateway.workers if worker.engine.jobs)
        target = next(worker for worker in gateway.workers if worker is not source)
        await source.drain()
        await target.wait(lambda: target.got(Decode))
        ids = [source.engine._tokens(7, 0, index) for index in range(8)]
        old, new = source.got(Generate)[0], target.got(Decode)[0]
        assert new.attempt == old.attempt + 1
        await source.say(Tokens((TokenItem(old.id, old.attempt, 0, 4, (ids[4],)),)))
        await gateway.until(lambda: reader.generation.completion_tokens == 5)
        await target.say(Tokens((TokenItem(new.id, new.attempt, 0, 4, (ids[4], ids[5])),)))
        await gateway.until(lambda: reader.generation.route.decode == target.name)
        late = gateway.count("late_items_total")
        await source.say(Tokens((TokenItem(old.id, old.attempt, 0, 5, (99, 99)),)))
        await gateway.until(lambda: gateway.count("late_items_total") > late)
        await target.say(Tokens((TokenItem(new.id, new.attempt, 0, 6, (ids[6], ids[7]), finish="length"),)))
        await reader.read()
        assert reader.text == lab.text_of(7, 8)


async def test_choices_of_a_draining_worker_are_handed_on_one_by_one(lab):
    async with lab.running(lab.pools(1, 3)) as gateway:
        reader = gateway.submit(max_tokens=400, choices=3)
        reader.take(await anext(reader.generation))
        source = lab.worker(gateway, reader.generation.route.decode)
        await source.drain()
        await reader.read()
        assert reader.texts == {choice: lab.text_of(7, 400, choice) for choice in range(3)}
        others = [lab.worker(gateway, f"d{i}") for i in range(3) if f"d{i}" != source.name]
        moved = [frame.sequence.choices for worker in others for frame in worker.got(Decode)]
        assert sorted(moved) == [(0,), (1,), (2,)]
        assert all(worker.got(Decode) for worker in others)
        assert not any(worker.got(Generate) for worker in others)
        assert not source.engine.jobs
        assert gateway.count("migrations_total", reason="draining") == 3


async def test_frames_on_their_way_when_choices_part_are_still_understood(lab):
    async with lab.running(lab.unified(2)) as gateway:
        for worker in gateway.workers:
            worker.hold("decoding", after=4)
            worker.hold("receiving")
        reader = gateway.submit(max_tokens=8, choices=2)
        await gateway.until(lambda: any(worker.engine.at("decoding") for worker in gateway.workers))
        source = next(worker for worker in gateway.workers if worker.engine.jobs)
        target = next(worker for worker in gateway.workers if worker is not source)
        await source.drain()
        await target.wait(lambda: len(target.got(Decode)) == 2)
        (old,) = source.got(Generate)
        gateway.relay.check_integrity()
        fifth = source.engine._tokens(7, 1, 4)
        await source.say(Tokens((TokenItem(old.id, old.attempt, 1, 4, (fifth,)),)))
        await gateway.until(lambda: reader.generation.completion_tokens == 9)
        await source.say(Failed(old.id, old.attempt, "internal", "scripted", "decode", True))
        await target.wait(lambda: len(target.got(Generate)) == 2)
        assert [len(frame.sequence.token_ids) // 4 for frame in target.got(Generate)] == [104, 105]
        assert gateway.count("late_items_total") == 0
        await source.say(Tokens((TokenItem(old.id, old.attempt, 1, 5, (99,)),)))
        await gateway.until(lambda: gateway.count("late_items_total") == 1)
        for worker in gateway.workers:
            worker.release()
        await reader.read()
        assert reader.texts == {choice: lab.text_of(7, 8, choice) for choice in range(2)}
        assert not source.engine.jobs


async def test_a_failed_move_goes_on_where_it_was(lab):
    async with lab.running(lab.unified(2), max_migrations=3) as gateway:
        for worker in gateway.workers:
            worker.hold("decoding", after=4)  # there is a sequence to move until the last attempt
        reader = gateway.submit(max_tokens=30)
        reader.take(await anext(reader.generation))
        source = lab.worker(gateway, reader.generation.route.decode)
        target = next(worker for worker in gateway.workers if worker is not source)
        target.engine.refusals.extend([Refusal("transfer", retry=True)] * 10)
        await source.drain()
        await target.wait(lambda: len(target.got(Decode)) == 3)
        source.release()
        await reader.read()
        assert reader.text == lab.text_of(7, 30)
        assert reader.generation.route.decode == source.name


@pytest.mark.parametrize("choices", [1, 3])
@pytest.mark.parametrize("dies", ["source", "target"])
async def test_a_death_during_a_move_loses_nothing(lab, dies, choices):
    async with lab.running(lab.unified(3)) as gateway:
        for worker in gateway.workers:
            worker.hold("receiving")
            worker.hold("decoding", after=6)
        reader = gateway.submit(max_tokens=50, choices=choices)
        await gateway.until(lambda: any(worker.engine.at("decoding") for worker in gateway.workers))
        source = next(worker for worker in gateway.workers if worker.engine.jobs)
        await source.drain()
        await gateway.until(lambda: any(worker.engine.at("receiving") for worker in gateway.workers))
        target = next(worker for worker in gateway.workers if worker.engine.at("receiving"))
        for worker in gateway.workers:
            worker.release()
        await (source if dies == "source" else target).kill()
        await reader.read()
        assert reader.texts == {choice: lab.text_of(7, 50, choice) for choice in range(choices)}
