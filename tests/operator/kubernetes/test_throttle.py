"""An API server that asks to be left alone is left alone for as long as it says, by every call."""

import asyncio

import pytest
from aiohttp import web
from answering_server import serving
from kubernetes.client import Configuration

from legato_operator.errors import Throttled
from legato_operator.kubernetes.client import connection
from legato_operator.kubernetes.client.api import TRIES, KubernetesCluster
from legato_operator.kubernetes.client.throttle import LONGEST, UNNAMED, Throttle, retry_after


class Sleeps:
    """Time that passes when the test says so."""

    def __init__(self):
        self.asked = []
        self.over = asyncio.Event()

    async def __call__(self, seconds):
        self.asked.append(seconds)
        await self.over.wait()


class Server:
    """An API server that refuses a call by each of `pauses`, and then has empty lists."""

    def __init__(self):
        self.asked = []
        self.pauses = []

    async def __call__(self, request):
        self.asked.append(request.path)
        if self.pauses:
            return web.Response(status=429, headers={"Retry-After": self.pauses.pop()})
        return web.json_response({"items": [], "metadata": {"resourceVersion": "1"}})


@pytest.fixture
def sleeps():
    return Sleeps()


@pytest.fixture
def server():
    return Server()


@pytest.fixture
async def cluster(server, sleeps):
    async with serving(server) as address:
        client = connection.client(Configuration(host=f"http://{address}"))
        opened = KubernetesCluster(client, throttle=Throttle(sleeps))
        yield opened
        opened.close()


async def test_call_is_repeated_after_the_pause_that_the_server_names_and_others_wait_too(server, cluster, sleeps):
    server.pauses = ["7"]
    first = asyncio.create_task(cluster.list("Secret", "default"))
    while not sleeps.asked:  # noqa: ASYNC110 - the test's own list
        await asyncio.sleep(0.001)
    second = asyncio.create_task(cluster.list("Pod", "default"))
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert sleeps.asked == [7.0]
    assert len(server.asked) == 1, "nobody else asks meanwhile"
    sleeps.over.set()
    await asyncio.gather(first, second)
    assert sorted(server.asked) == [f"/api/v1/namespaces/default/{kind}" for kind in ("pods", "secrets", "secrets")]


async def test_server_that_stays_busy_is_an_error(server, cluster, sleeps):
    sleeps.over.set()
    server.pauses = ["2"] * TRIES
    with pytest.raises(Throttled):
        await cluster.list("Pod", "default")
    assert sleeps.asked == [2.0] * TRIES


@pytest.mark.parametrize(
    ("named", "seconds"),
    [("3", 3.0), ("86400", LONGEST), ("-1", 0.0), ("Sat, 21 Nov 2026 00:00:00 GMT", UNNAMED), (None, UNNAMED)],
)
def test_pause_is_the_one_that_the_answer_names_within_reason(named, seconds):
    assert retry_after({"Retry-After": named} if named else {}) == seconds
