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


@pytest.fixture
def sleeps():
    return Sleeps()


@pytest.fixture
async def way(api_server):
    async with api_proxy.ApiProxy(api_server).running() as opened:
        yield opened


@pytest.fixture
def cluster(api_server, way, sleeps):
    opened = KubernetesCluster(connection.client(api_server.configuration(way.url)), throttle=Throttle(sleeps))
    yield opened
    opened.close()


async def test_call_is_repeated_after_the_pause_that_the_server_names_and_others_wait_too(way, cluster, sleeps):
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


async def test_server_that_stays_busy_is_an_error(way, cluster, sleeps):
    sleeps.over.set()
    way.answer = lambda request: api_proxy.refusal(429, Retry_After="2")
    with pytest.raises(Throttled):
        await cluster.get(HERE)
    assert sleeps.asked == [2.0] * TRIES


@pytest.mark.parametrize(
    ("named", "seconds"),
    [("3", 3.0), ("86400", LONGEST), ("-1", 0.0), ("Sat, 21 Nov 2026 00:00:00 GMT", UNNAMED), (None, UNNAMED)],
)
def test_pause_is_the_one_that_the_answer_names_within_reason(named, seconds):
    assert retry_after({"Retry-After": named} if named else {}) == seconds
