"""Workers are found in a real API server, and what is known outlives every trouble with it."""

import asyncio
import contextlib
import json
from functools import partial

import pytest

from legato_gateway.discovery.kubernetes import KubernetesDiscovery, Limits, Unreachable, connect
from legato_gateway.timers import Backoff

LIMIT = 90.0  # seconds; only a hang reaches it
QUICK = Limits(connect=0.5, answer=1.0, watch=1, slack=0.5, backoff_first=0.01, backoff_most=0.1)
PATIENT = Limits(watch=60)  # no watch ends by itself while a test lasts
SCRIPTED = Limits(LIMIT, LIMIT, 60, backoff_first=0.01, backoff_most=0.1)  # whoever gives up takes two answers


class Watched:
    """The last workers that a discovery reported, and the number of its reports."""

    def __init__(self, config, limits):
        self.discovery = KubernetesDiscovery(partial(connect, str(config)), "demo", "s-workers", limits)
        self.last = None
        self.times = 0

    async def follow(self):
        async for workers in self.discovery.watch():
            self.last = {worker.worker: worker.address for worker in workers}
            self.times += 1

    async def until(self, **expected):
        """Returns once exactly these pods (their names with `_` for `-`) and addresses were reported."""
        desired = {name.replace("_", "-"): f"{address}:8082" for name, address in expected.items()}
        while self.last != desired:  # noqa: ASYNC110 – a thread finds out
            await asyncio.sleep(0.01)

    async def until_problem(self, text):
        """Returns once a problem has this text, or without text once there is none."""
        while text not in self.discovery.problem or bool(text) != bool(self.discovery.problem):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def watching(config, limits=QUICK):
    watched = Watched(config, limits)
    async with asyncio.timeout(LIMIT):
        task = asyncio.create_task(watched.follow())
        try:
            yield watched
            assert not task.done(), task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_pods_that_only_carry_the_service_s_labels_are_no_workers(cluster, kubeconfig):
    """They would be sent its token. WorkerPools report their pods; one that was a worker stays one."""
    cluster.pool("s-decode", "d-0")
    cluster.put("a", ("stranger", "10.1.0.9"), ("d-0", "10.1.0.1"), ("p-0", "10.1.0.2"))
    async with watching(kubeconfig(), PATIENT) as watched:
        await watched.until(d_0="10.1.0.1")
        cluster.pool("s-prefill", "p-0")
        await watched.until(d_0="10.1.0.1", p_0="10.1.0.2")
        cluster.pool("s-decode")
        cluster.put("b", ("d-1", "10.1.0.3"))
        cluster.pool("s-decode", "d-1")
        await watched.until(d_0="10.1.0.1", p_0="10.1.0.2", d_1="10.1.0.3")
        cluster.put("a", ("stranger", "10.1.0.9"))
        await watched.until(d_1="10.1.0.3")


async def test_what_is_known_outlives_the_api_server(cluster, kubeconfig):
    cluster.put("a", ("d-0", "10.1.0.1"))
    async with watching(kubeconfig()) as watched:
        await watched.until(d_0="10.1.0.1")
        cluster.server.kill()
        try:
            await watched.until_problem("refused")
            assert watched.last == {"d-0": "10.1.0.1:8082"}
        finally:
            await asyncio.to_thread(cluster.server.start)
        cluster.put("a", ("d-0", "10.1.0.1"), ("d-1", "10.1.0.2"))
        await watched.until(d_0="10.1.0.1", d_1="10.1.0.2")
        await watched.until_problem("")
        assert watched.times == 2  # never that there are none


async def test_a_connection_that_dies_unheard_is_noticed(cluster, kubeconfig, tcp_relay):
    cluster.put("a", ("d-0", "10.1.0.1"))
    port = int(cluster.server.url.rpartition(":")[2])
    async with (
        tcp_relay("127.0.0.1", port).running() as way,
        watching(kubeconfig(f"https://127.0.0.1:{way.port}")) as watched,
    ):
        await watched.until(d_0="10.1.0.1")
        await watched.until_problem("")
        way.block()
        cluster.put("a", ("d-0", "10.1.0.2"))
        await watched.until_problem("timed out")
        assert watched.last == {"d-0": "10.1.0.1:8082"}
        way.unblock()
        await watched.until(d_0="10.1.0.2")
        await watched.until_problem("")


async def test_rights_and_tokens_may_come_later_and_change(cluster, kubeconfig):
    cluster.put("a", ("d-0", "10.1.0.1"))
    async with watching(kubeconfig(token="outdated")) as watched:
        await watched.until_problem("401: ")
        token = cluster.account("gateway")
        kubeconfig(token=token)
        await watched.until_problem("403: endpointslices.discovery.k8s.io is forbidden")
        assert token not in watched.discovery.problem
        cluster.allow("gateway")
        await watched.until(d_0="10.1.0.1")
        await watched.until_problem("")


class FakeApi:
    """An API that answers by script where the real one cannot be brought to: `(status, body)` for each request.

    It has no WorkerPools.
    """

    def __init__(self, *answers):
        self._answers = list(answers)
        self.asked = []

    async def _serve(self, reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                path = head.split()[1]
                if "/workerpools/" in path:
                    writer.write(b"HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n")
                    continue
                self.asked.append(path)
                status, body = self._answers.pop(0) if self._answers else (None, b"")
                if status is None:
                    await asyncio.sleep(LIMIT)
                kind = b"Transfer-Encoding: chunked" if status == 200 else f"Content-Length: {len(body)}".encode()
                writer.write(b"HTTP/1.1 %d X\r\n%s\r\n\r\n" % (status, kind))
                writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if status == 200 else body)

    @contextlib.asynccontextmanager
    async def running(self, kubeconfig):
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            async with watching(kubeconfig(f"http://127.0.0.1:{port}", "t"), SCRIPTED) as watched:
                yield watched
        finally:
            server.close()


def listing(version, **pods):
    endpoints = [{"addresses": [at], "targetRef": {"kind": "Pod", "name": name}} for name, at in pods.items()]
    item = {
        "metadata": {"name": "a", "resourceVersion": version},
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "control", "port": 8082}],
    }
    return 200, json.dumps({"metadata": {"resourceVersion": version}, "items": [item]}).encode()


def version(path):
    """The version from which a watch was asked for; empty for a list."""
    return path.partition("resourceVersion=")[2].partition("&")[0]


STATUS = {"kind": "Status", "code": 410, "message": "too old resource version"}
GONE = (410, json.dumps(STATUS).encode())


@pytest.mark.parametrize("gone", [GONE, (200, json.dumps({"type": "ERROR", "object": STATUS}).encode() + b"\n")])
async def test_a_watch_that_is_too_old_is_followed_by_a_list(gone, kubeconfig):
    api = FakeApi(listing("5", d="10.1.0.1"), (200, b""), gone, listing("9", d="10.1.0.2"))
    async with api.running(kubeconfig) as watched:
        await watched.until(d="10.1.0.2")
        assert [version(path) for path in api.asked[:4]] == ["", "5", "5", ""]
        assert watched.times == 2


@pytest.mark.parametrize(
    ("trouble", "problem"),
    [
        ((503, b"no healthy upstream"), "503: no healthy upstream"),
        ((429, b'{"message": "slow down"}'), "429: slow down"),
        ((200, b"<html>sign in</html>"), "not a Listing"),
    ],
)
async def test_an_answer_that_makes_no_sense_changes_nothing(trouble, problem, kubeconfig):
    api = FakeApi(listing("5", d="10.1.0.1"), GONE, trouble)
    async with api.running(kubeconfig) as watched:
        await watched.until_problem(problem)
        assert watched.last == {"d": "10.1.0.1:8082"}


async def test_watches_that_end_are_followed_by_others_from_where_they_ended(kubeconfig):
    _, listed = listing("7", d="10.1.0.2")
    changed = json.dumps({"type": "MODIFIED", "object": json.loads(listed)["items"][0]}).encode() + b"\n"
    api = FakeApi(listing("5", d="10.1.0.1"), (200, b""), (200, changed), (200, b""))
    async with api.running(kubeconfig) as watched:
        await watched.until(d="10.1.0.2")
        while len(api.asked) < 5:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert [version(path) for path in api.asked[:5]] == ["", "5", "5", "7", "7"]
        assert watched.times == 2
        assert watched.discovery.problem == ""


def test_a_server_that_is_away_is_asked_ever_less_often():
    pauses = Backoff(1.0, 5.0, lambda: 0.5)
    assert [pauses.next() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    pauses.reset()
    assert pauses.next() == 1.0


def test_a_cluster_that_cannot_be_known_is_refused(tmp_path):
    (tmp_path / "bad").write_text("{a: [")
    for name in ("missing", "bad"):
        with pytest.raises(Unreachable, match="cannot be read"):
            connect(str(tmp_path / name))
