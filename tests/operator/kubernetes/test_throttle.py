"""An API server that asks to be left alone is left alone for as long as it says, by every call."""

import asyncio

import api_proxy
import pytest

from legato_operator.cluster import Ref
from legato_operator.errors import Throttled
from legato_operator.kubernetes import connection
from legato_operator.kubernetes.api import TRIES, KubernetesCluster
from legato_operator.kubernetes.throttle import LONGEST, UNNAMED, Throttle, retry_after

HERE = Ref("ConfigMap", "default", "kube-root-ca.crt")


class Sleeps:
    """Time that passes when the test says so."""

    def __init__(self):
        self.asked = []
        self.over = asyncio.Event()

    async def __call__(self, seconds):
        self.asked.append(seconds)
        await self.over.wait()


def _run(api_server, check):
    async def run():
        sleeps = Sleeps()
        async with asyncio.timeout(60), api_proxy.ApiProxy(api_server).running() as way:
            client = connection.client(api_server.configuration(way.url))
            cluster = KubernetesCluster(client, throttle=Throttle(sleeps))
            try:
                await check(way, cluster, sleeps)
            finally:
                cluster.close()

    asyncio.run(run())


def test_call_is_repeated_after_the_pause_that_the_server_names_and_others_wait_too(api_server):
    async def check(way, cluster, sleeps):
        refusals, asked = [api_proxy.refusal(429, Retry_After="7")], []

        def answer(request):
            asked.append(request.path)
            return refusals.pop() if refusals else None

        way.answer = answer
        first = asyncio.create_task(cluster.list("Secret", "default"))
        while not sleeps.asked:  # noqa: ASYNC110 - the test's own list
            await asyncio.sleep(0.001)
        second = asyncio.create_task(cluster.list("Pod", "default"))
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert sleeps.asked == [7.0]
        assert len(asked) == 1, "nobody else asks meanwhile"
        sleeps.over.set()
        await asyncio.gather(first, second)
        assert sorted(asked) == [f"/api/v1/namespaces/default/{kind}" for kind in ("pods", "secrets", "secrets")]

    _run(api_server, check)


def test_server_that_stays_busy_is_told_of(api_server):
    async def check(way, cluster, sleeps):
        sleeps.over.set()
        way.answer = lambda request: api_proxy.refusal(429, Retry_After="2")
        with pytest.raises(Throttled):
            await cluster.get(HERE)
        assert sleeps.asked == [2.0] * TRIES

    _run(api_server, check)


@pytest.mark.parametrize(
    ("named", "seconds"), [("3", 3.0), ("86400", LONGEST), ("-1", 0.0), ("Sat, 21 Nov 2026 00:00:00 GMT", UNNAMED)]
)
def test_pause_is_what_the_answer_names_within_reason(named, seconds):
    assert retry_after({"Retry-After": named}) == seconds


def test_pause_that_is_not_named_is_the_usual_one():
    assert retry_after({}) == UNNAMED
