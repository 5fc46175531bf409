"""What is recorded is what the operator would decide from, with the sizes as its limits leave them."""

import dataclasses

import pytest
from known_signals import NO_TRAFFIC
from local_services import DEMO, ScriptedGateways, manifest, store_pod

from legato_cli.recording import signal_round
from legato_cli.recording.reader import RoundReader
from legato_operator.api import parsing
from legato_operator.autoscaler.signals import Signals
from legato_operator.local.store import Store
from legato_operator.manifests import common, pool, secret
from legato_protocol import names
from legato_protocol.demand import DemandReport, LengthBucket

pytestmark = pytest.mark.anyio


def _report(requests):
    arrivals = (LengthBucket(64, requests, 100 * requests),) if requests else ()
    known = {"uptime": 1e6, "outputs": (), "output_squares": 0.0, "head_wait": {}, "waiting": (), "workers": ()}
    held = dict.fromkeys(("held_requests", "held_tokens", "held_prompt_tokens"), 0)
    return DemandReport(gateway="g", arrivals=arrivals, refused={}, **known, **held)


class _World:
    """A service with a gateway and a prefill worker in a store, made 10 s after now. It is the reader's clock, too."""

    def __init__(self, **scaling):
        self.at, self.gateways = 1_800_000_000.0, ScriptedGateways(_report(0))
        self.store = Store(lambda: "2027-01-15T08:00:10.000000Z")
        self.item = manifest(scaling=scaling)
        self.reader = RoundReader(self.store, DEMO, self.gateways, self)
        self.addresses = None

    def now(self):
        return self.at

    def timestamp(self):
        return "2027-01-15T08:00:00Z"

    async def make(self):
        await self.store.apply(self.item, "test")
        service = parsing.service_from_object(await self.store.get(DEMO))
        await self.store.apply(secret.manifest(service, secret.ServiceToken("the token")), "test")
        for role, count in (("prefill", 6), ("decode", 1)):
            made = pool.scale(service, role, count)
            made["metadata"]["labels"] = {names.LABEL_SERVICE: DEMO.name}
            await self.store.apply({**made, "spec": {"role": role, "replicas": count}}, "test")
        await store_pod(self.store, DEMO, "gateway-0", common.GATEWAY, names.APP_GATEWAY)
        await store_pod(self.store, DEMO, "prefill-0", "prefill", names.APP_WORKER)

    async def read(self, *steps):
        """A reading after each number of seconds, by gateways that report this."""
        await self.make()
        rounds = []
        for seconds, report in steps:
            self.at += seconds
            self.gateways.report_given = report
            rounds.append(await self.reader.read(self.addresses))
        return rounds


async def test_rates_are_known_from_the_second_reading_on():
    first, second = await _World().read((0, _report(100)), (2, _report(160)))
    assert first.signals.traffic is None
    assert second.signals.traffic.arrivals[0].requests == 60
    assert (second.namespace, second.service, second.mode) == ("default", "demo", "Managed")
    assert [worker.name for worker in second.signals.workers] == ["prefill-0"]


async def test_after_a_gap_traffic_is_not_known_rather_than_old():
    *_, last = await _World().read((0, _report(100)), (2, _report(160)), (31, _report(200)))
    assert last.signals.traffic is None


async def test_sizes_are_recorded_as_they_are_and_as_limits_leave_them():
    (found,) = await _World(prefill={"max": 3}).read((0, _report(0)))
    assert found.desired == {"prefill": 6, "decode": 1}
    assert found.targets == {"prefill": 3, "decode": 1}


async def test_clocks_that_differ_make_no_round_that_cannot_be_read():
    (found,) = await _World().read((0, _report(0)))
    assert found.signals.workers[0].age == 0
    assert signal_round.decode(signal_round.encode(found)) == found


@pytest.mark.parametrize(("reached", "asked"), [("gateway-1", []), ("gateway-0", ["127.0.0.1:9"] * 2)])
async def test_a_gateway_that_is_not_reached_is_silent_and_not_idle(reached, asked):
    world = _World()
    world.addresses = {reached: "127.0.0.1:9"}
    last = (await world.read((0, _report(0)), (2, _report(0))))[1]
    assert (last.signals.traffic is not None) == bool(asked)
    assert world.gateways.asked == asked


async def test_what_is_less_than_nothing_by_rounding_is_nothing():
    class Rounded:
        async def signals(self, observed):
            return Signals((), dataclasses.replace(NO_TRAFFIC, head_wait={"prefill": -1e-17}))

        def forget(self, uid):
            return

    world = _World()
    world.reader._source = Rounded()
    (found,) = await world.read((0, _report(0)))
    assert signal_round.decode(signal_round.encode(found)).signals.traffic.head_wait == {"prefill": 0.0}


@pytest.mark.parametrize("scaling", [None, {"pools": {"prefill": {"reason": "Arrivals"}}, "records": []}])
async def test_the_reason_of_the_last_decision_is_kept(scaling):
    world = _World()
    await world.make()
    await world.store.patch_status(DEMO, {"scaling": scaling})
    assert (await world.reader.read()).reasons == ({"prefill": "Arrivals"} if scaling else {})
