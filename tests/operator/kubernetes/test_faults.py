"""Faults around the operator, and an API server in bad times: it goes on by itself and loses nothing."""

import asyncio

import api_proxy
import control_plane
import pytest

from legato_operator.kubernetes.handlers import WATCHED


@pytest.fixture
async def way(s):
    """A proxy between the API server and the operator of `s`."""
    async with api_proxy.ApiProxy(s.api).running() as opened, s.operator(url=opened.url):
        yield opened


class Some:
    """Answers some of the calls that `chosen` names with `code`, and counts them."""

    def __init__(self, code, count, chosen, **headers):
        self.left = count
        self._code = code
        self._chosen = chosen
        self._headers = headers

    def __call__(self, request):
        if not self.left or not self._chosen(request):
            return None
        self.left -= 1
        return api_proxy.refusal(self._code, **self._headers)


async def test_refused_calls_are_tried_again(s, way, build):
    """Throttled reads, writes, watches and the Lease alike; conflicts of status and apply; errors of the server."""
    for chunk, some in enumerate(
        (
            Some(429, 12, lambda request: True, Retry_After="0"),
            Some(409, 6, lambda r: r.method == "PATCH" and r.path.endswith("/status")),
            Some(409, 6, lambda r: r.method == "PATCH" and s.name in r.path),
            Some(500, 20, lambda r: s.name in r.path),
        )
    ):
        way.answer = some
        await s.serve(build(engine={"chunkTokens": 64 << chunk}))
        assert not some.left


@pytest.mark.parametrize("code", [403, 500])
async def test_object_that_the_server_refuses_is_reported_and_keeps_nothing_else_from_being_made(s, way, build, code):
    """As with a quota, or where a webhook for Services does not answer, or their addresses have run out."""
    some = way.answer = Some(code, 10_000, lambda r: r.method != "GET" and "/services" in r.path)
    await s.make(build())
    await s.wait(lambda: s.condition("Progressing"), ("False", "APIRefused"))
    await s.wait(lambda: s.exists("Deployment", "demo-gateway"))
    some.left = 0
    await s.wait(s.is_settled)


async def test_watches_that_are_too_old_begin_anew_and_what_they_missed_is_mended(s, way, build):
    """All watches end; each that follows is answered by 410 first. Meanwhile one object is deleted, one edited."""
    await s.serve(build())
    expired = set()

    def answer(request):
        if not api_proxy.is_watch(request) or request.path in expired:
            return None
        expired.add(request.path)
        return api_proxy.expired()

    way.answer = answer
    way.end_watches()
    await s.cluster.delete(s.ref("demo-gateway", "Deployment"))
    await s.make(build(engine={"chunkTokens": 256}))
    await s.wait(lambda: s.exists("Deployment", "demo-gateway"))
    await s.wait(s.is_settled)
    await s.wait(lambda: len(expired), len(WATCHED))


async def test_killed_api_server_is_survived(own, space, build):
    async with space(own) as s, s.operator() as one:
        await s.serve(build())
        await asyncio.to_thread(own.kill)
        await s.wait(lambda: one.metric("leader"), 0)
        await asyncio.to_thread(own.start)
        await s.cluster.delete(s.ref("demo-decode-0", "Pod"))
        await s.make(build(engine={"chunkTokens": 256}))
        await s.wait(s.is_current)
        await s.wait(s.ready)
        assert not one.task.done()
        assert (await one.get("/healthz")).status_code == 200


async def test_crds_that_are_deleted_and_installed_again_are_watched_again(own, space, build):
    """A service goes with them, and `/readyz` fails while they are not watched."""
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

    async def ready():
        return (await one.get("/readyz")).status_code

    async def definitions_left():
        return [item["metadata"]["name"] for item in (await s.call("GET", definitions))[1]["items"]]

    async with space(own) as s, s.operator() as one:
        await s.serve(build())
        for name in await definitions_left():
            await s.call("DELETE", f"{definitions}/{name}")
        await s.wait(ready, 503)
        await s.wait(definitions_left, [])
        await asyncio.to_thread(own.install, control_plane.CRDS)
        await s.serve(build())
        await s.wait(ready, 200)
