"""What is recorded is what the operator would decide from, with the sizes as its limits leave them."""

import asyncio
import dataclasses

import pytest
from known_signals import NO_TRAFFIC
from recordings import RoundReader, ScriptedGateways

from legato_cli.recording import signal_round
from legato_operator.api import parsing
from legato_operator.autoscaler.signals import Signals
from legato_operator.cluster import Ref, ref_of
from legato_operator.local.store import Store
from legato_operator.manifests import common, pool, secret
from legato_protocol import names
from legato_protocol.demand import DemandReport, LengthBucket

REF = Ref(names.INFERENCE_SERVICE, "default", "chat")


def _told(requests, **fields):
    arrivals = (LengthBucket(64, requests, 100 * requests),) if requests else ()
    known = {"uptime": 1e6, "outputs": (), "output_squares": 0.0, "head_wait": {}, "waiting": (), "workers": ()}
    held = dict.fromkeys(("held_requests", "held_tokens", "held_prompt_tokens"), 0)
    return DemandReport(**{"gateway": "g", "arrivals": arrivals, "refused": {}, **known, **held, **fields})


class _Clock:
    def __init__(self):
        self.at = 1_800_000_000.0

    def now(self):
        return self.at

    def timestamp(self):
        return "2027-01-15T08:00:00Z"


class _World:
    """A service with a gateway and a prefill worker in a store, made 10 s after now."""

    def __init__(self, **scaling):
        self.clock, self.gateways = _Clock(), ScriptedGateways(_told(0))
        self.store = Store(lambda: "2027-01-15T08:00:10.000000Z")
        self.item = {
            "apiVersion": names.API_VERSION,
            "kind": names.INFERENCE_SERVICE,
            "metadata": {"name": "chat", "namespace": "default"},
            "spec": {"model": {"source": {"builtin": "smollm2-135m-instruct"}}, "scaling": scaling},
        }
        self.reader = RoundReader(self.store, REF, self.gateways, self.clock)

    async def make(self):
        await self.store.apply(self.item, "test")
        service = parsing.service_from_object(await self.store.get(REF))
        await self.store.apply(secret.manifest(service, secret.ServiceToken("the token")), "test")
        for role, count in (("prefill", 6), ("decode", 1)):
            made = pool.scale(service, role, count)
            made["metadata"]["labels"] = {names.LABEL_SERVICE: "chat"}
            await self.store.apply({**made, "spec": {"role": role, "replicas": count}}, "test")
        await self._pod("gateway-0", "gateway", names.APP_GATEWAY)
        await self._pod("prefill-0", "prefill", names.APP_WORKER)

    async def _pod(self, name, role, app):
        labels = {names.LABEL_SERVICE: "chat", names.LABEL_ROLE: role, names.LABEL_APP: app}
        labels[names.LABEL_POD_REVISION] = "r"
        item = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "labels": labels},
            "spec": {"containers": [{"name": role}]},
        }
        condition = {"type": "Ready", "status": "True", "lastTransitionTime": "2027-01-15T08:00:15Z"}
        await self.store.apply(common.owned(item, await self.store.get(REF)), "test")
        await self.store.patch_status(
            ref_of(item), {"podIP": "127.0.0.1", "ports": {"control": 4321}, "conditions": [condition]}
        )

    def read(self, *steps, **scaling):
        """A reading after each of so many seconds."""

        async def run():
            await self.make()
            found = []
            for seconds, report in steps:
                self.clock.at += seconds
                self.gateways.report_given = report
                found.append(await self.reader.read(self.addresses))
            return found

        return asyncio.run(run())

    addresses = None


def test_rates_are_known_from_the_second_reading_on():
    first, second = _World().read((0, _told(100)), (2, _told(160)))
    assert first.signals.traffic is None
    assert second.signals.traffic.arrivals[0].requests == 60
    assert (second.namespace, second.service, second.mode) == ("default", "chat", "Managed")
    assert [worker.name for worker in second.signals.workers] == ["prefill-0"]


def test_after_a_gap_traffic_is_not_known_rather_than_old():
    *_, last = _World().read((0, _told(100)), (2, _told(160)), (31, _told(200)))
    assert last.signals.traffic is None


def test_sizes_are_told_as_they_are_and_as_limits_leave_them():
    (found,) = _World(prefill={"max": 3}).read((0, _told(0)))
    assert found.desired == {"prefill": 6, "decode": 1}
    assert found.targets == {"prefill": 3, "decode": 1}


def test_clocks_that_differ_make_no_round_that_cannot_be_read():
    (found,) = _World().read((0, _told(0)))
    assert found.signals.workers[0].age == 0
    assert signal_round.decode(signal_round.encode(found)) == found


def test_a_gateway_that_is_not_reached_is_silent_and_not_idle():
    world = _World()
    world.addresses = {"gateway-1": "127.0.0.1:9"}
    assert world.read((0, _told(0)), (2, _told(0)))[1].signals.traffic is None
    assert not world.gateways.asked
    world = _World()
    world.addresses = {"gateway-0": "127.0.0.1:9"}
    assert world.read((0, _told(0)), (2, _told(0)))[1].signals.traffic is not None
    assert world.gateways.asked == ["127.0.0.1:9"] * 2


def test_what_is_less_than_nothing_by_rounding_is_nothing():
    class Rounded:
        async def signals(self, observed):
            return Signals((), dataclasses.replace(NO_TRAFFIC, head_wait={"prefill": -1e-17}))

        def forget(self, uid):
            return

    world = _World()
    world.reader._source = Rounded()
    (found,) = world.read((0, _told(0)))
    assert signal_round.decode(signal_round.encode(found)).signals.traffic.head_wait == {"prefill": 0.0}


@pytest.mark.parametrize("told", [None, {"pools": {"prefill": {"reason": "Arrivals"}}, "records": []}])
def test_the_reason_of_the_last_decision_is_kept(told):
    world = _World()

    async def run():
        await world.make()
        await world.store.patch_status(REF, {"scaling": told})
        return await world.reader.read()

    assert asyncio.run(run()).reasons == ({"prefill": "Arrivals"} if told else {})
