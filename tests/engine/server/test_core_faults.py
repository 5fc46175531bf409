"""A core that dies, falls silent, is stuck or cannot start: gateways hear of it, and it is replaced."""

import asyncio

import pytest

from legato_engine.core.frames import Beat, IterationReport, NotStarting
from legato_engine.errors import StartFailed
from legato_protocol.wire import stream
from legato_protocol.wire.kv_events import Snapshot
from legato_protocol.wire.load import Load
from legato_protocol.wire.stream import Greeting, Hello, Lost


async def test_a_core_that_dies_is_reported_at_once_and_replaced(bench):
    first = await bench.core()
    async with bench.dial("/stream") as gateway, bench.dial("/events") as listener:
        await bench.greet(gateway)
        await listener.send(stream.encode(Greeting("g0")))
        assert isinstance(await bench.event(listener), Snapshot)
        await first.say(IterationReport(status=bench.status()))
        first.die()
        lost = await bench.heard(gateway, Lost)
        assert (lost.epoch, lost.silent) == (first.epoch, False)
        second = await bench.core()
        again = await bench.heard(gateway, Hello)
        assert again.epoch == second.epoch != first.epoch
        fresh = await bench.event(listener)
        assert isinstance(fresh, Snapshot)
        assert (fresh.epoch, fresh.number) == (second.epoch, 0)
        await second.say(IterationReport(status=bench.status()))
        await bench.reported()
        text = await bench.metrics()
        assert "legato_worker_core_restarts_total 1.0" in text
        assert "legato_worker_steps_total 6.0" in text


async def _until_lost(bench, gateway):
    """The frames that the gateway heard, of which the last reports that the core is lost."""
    heard = [await bench.heard(gateway)]
    while not isinstance(heard[-1], Lost):
        heard.append(await bench.heard(gateway))
    return heard


async def test_gateways_hear_from_the_server_while_a_core_is_silent_or_computes(bench):
    """Whatever the core does: a beat tells how far its step is, and without one the server knows that it waits."""
    async with bench.served() as (core, gateway):
        await core.say(IterationReport((), (stream.encode(bench.status().load),), status=bench.status()))
        assert (await bench.heard(gateway)).core_silence == 0
        await bench.stay_silent(0.2 * bench.silence)
        await core.say(Beat(iteration=4, busy=3.0, expected=2.5))
        repeats = [await bench.heard(gateway)]
        while not repeats[-1].step_age:
            repeats.append(await bench.heard(gateway))
        assert (repeats[-1].step_age, repeats[-1].step_expected) == (3.0, 2.5)
        assert all(repeat.core_silence >= 1 for repeat in repeats)
        assert repeats[-1].free_blocks == bench.status().load.free_blocks


async def test_a_silent_core_is_replaced_and_one_that_beats_is_not(bench):
    async with bench.served() as (core, gateway):
        for _ in range(4):  # for longer than the silence that is allowed
            await bench.stay_silent(0.75 * bench.silence)
            await core.say(Beat())
        await bench.skip(0)
        assert bench.worker.hub.core is not None
        await bench.stay_silent(1.1 * bench.silence)
        lost = await bench.heard(gateway)
        assert isinstance(lost, Lost), "without a Load before, there was nothing to repeat"
        assert lost.silent
        await bench.core()


@pytest.mark.parametrize("stop", [0.9, 1.0, 1.1, 9.0])
async def test_a_server_that_was_stopped_itself_does_not_take_its_core_for_silent(bench, stop):
    """Its clock has gone on when it wakes up: for less than the silence allowed, as long, a little longer, and long."""
    async with bench.served() as (core, gateway):
        await bench.skip(stop * bench.silence)  # timers that are due come before the core
        await core.say(Beat())
        await core.say(IterationReport(status=bench.status()))
        await bench.until(lambda: bench.worker.hub.core is None or bench.worker.hub.core.status)
        assert bench.worker.hub.core is not None
        await bench.stay_silent(1.1 * bench.silence)
        *repeats, _ = await _until_lost(bench, gateway)  # a silence of its own is still noticed
        assert all(isinstance(frame, Load) for frame in repeats)


@pytest.mark.parametrize("settings", [{"step_limit": 45.0}])
async def test_a_core_that_starts_may_be_silent_for_as_long_as_a_step_takes(bench):
    """It loads libraries, during which none of its threads gets the interpreter lock."""
    first = await bench.next_core()
    begin = await first.hear()
    await bench.stay_silent(44.0)
    await bench.serves(first, begin)
    first.die()
    await (await bench.next_core()).hear()
    await bench.stay_silent(46.0)
    await bench.next_core()


@pytest.mark.parametrize("settings", [{"start_limit": 3.0, "step_limit": 1.0}])
async def test_a_start_that_comes_no_further_is_replaced_although_its_heart_beats(bench):
    stuck = await bench.next_core()
    await stuck.hear()
    await stuck.say(Beat(iteration=0, busy=2.9))
    await stuck.say(Beat(iteration=0, busy=3.1))
    await bench.core()
    assert any("stuck in its start" in line for line in bench.logged)


@pytest.mark.parametrize("settings", [{"step_limit": 3.0}])
@pytest.mark.parametrize(("expected", "limit"), [(None, 3.0), (10.0, 33.0)])
async def test_a_core_that_is_stuck_in_a_step_is_replaced_although_its_heart_beats(bench, expected, limit):
    """One whose steps are expected to take long is waited for longer."""
    more = {} if expected is None else {"expected": expected}
    async with bench.served() as (core, gateway):
        await core.say(Beat(iteration=4, busy=limit - 0.1, **more))
        await core.say(IterationReport(status=bench.status()))
        await bench.until(lambda: bench.worker.hub.core is None or bench.worker.hub.core.status)
        assert bench.worker.hub.core is not None
        await core.say(Beat(iteration=5, busy=limit + 0.1, **more))
        lost = (await _until_lost(bench, gateway))[-1]
        assert ("stuck in iteration 5" in lost.reason, lost.silent) == (True, False)
        await bench.core()


async def test_gateways_hear_of_a_silent_core_while_its_end_is_still_awaited(bench):
    """A core that is stopped reads nothing: what waits for it must not delay the news."""
    async with bench.served() as (core, gateway):

        async def ask():  # for more than the socket pair takes, and maybe than a gateway can be rid of
            for n in range(4):
                await gateway.send(stream.encode(bench.generate(f"r{n}", tuple(range(1, 99)) * 500)))

        asking = asyncio.create_task(ask())
        await bench.until(lambda: core.holds_the_server_up)
        await bench.stay_silent(1.1 * bench.silence)
        await bench.heard(gateway, Lost)
        await asking
        await bench.core()


async def test_a_start_that_can_never_succeed_ends_the_worker(bench):
    core = await bench.next_core()
    await core.hear()
    await core.say(NotStarting("KV memory is too small"))
    with pytest.raises(ConnectionError):
        await core.hear()
    with pytest.raises(StartFailed, match="too small"):
        await asyncio.wait_for(bench.running, bench.patience)
    assert bench.cores.empty()
