"""What an API server answers in bad times, to the operator as it runs: it goes on by itself and loses nothing."""

import contextlib
import urllib.parse

import api_proxy
from tcp_relay import TcpRelay

from legato_operator.cluster import Ref
from legato_operator.kubernetes.handlers import WATCHED

STATUS = "/status"


@contextlib.asynccontextmanager
async def _through_gate(space):
    """A namespace whose operator comes through a proxy."""
    async with space() as s, api_proxy.ApiProxy(s.api).running() as way, s.operator(url=way.url):
        yield s, way


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


async def test_throttled_operator_gets_there(space, build):
    """Reads, writes, watches and the Lease alike."""
    async with _through_gate(space) as (s, way):
        some = way.answer = Some(429, 12, lambda request: True, Retry_After="0")
        await s.make(build())
        await s.wait(s.ready)
        assert not some.left


async def test_conflicts_of_status_and_apply_are_tried_again(space, build):
    async with _through_gate(space) as (s, way):
        some = way.answer = Some(409, 6, lambda r: r.method == "PATCH" and r.path.endswith(STATUS))
        await s.make(build())
        await s.wait(s.ready)
        assert not some.left
        some = way.answer = Some(409, 6, lambda r: r.method == "PATCH" and s.name in r.path)
        await s.make(build(engine={"chunkTokens": 256}))
        await s.wait(s.is_settled)
        assert not some.left


async def test_errors_of_the_server_are_tried_again(space, build):
    async with _through_gate(space) as (s, way):
        await s.make(build())
        await s.wait(s.ready)
        some = way.answer = Some(500, 20, lambda r: s.name in r.path)
        await s.make(build(engine={"chunkTokens": 256}))
        await s.wait(s.is_settled)
        assert not some.left


async def test_object_that_the_server_fails_on_is_told_and_keeps_nothing_else_from_being_made(space, build):
    """As where a webhook for Services does not answer, or their addresses have run out: the server answers 500."""
    async with _through_gate(space) as (s, way):
        some = way.answer = Some(500, 10_000, lambda r: r.method != "GET" and "/services" in r.path)
        await s.make(build())
        await s.wait(lambda: s.condition("Progressing"), ("False", "APIRefused"))
        await s.wait(lambda: s.exists("Deployment", "demo-gateway"))
        some.left = 0
        await s.wait(s.is_settled)


async def test_watches_that_are_too_old_begin_anew_and_what_they_missed_is_mended(space, build):
    """All watches end; each that follows is told 410 first. Meanwhile something is deleted and something edited."""
    async with _through_gate(space) as (s, way):
        await s.make(build())
        await s.wait(s.is_settled)
        told = set()

        def answer(request):
            if not api_proxy.is_watch(request) or request.path in told:
                return None
            told.add(request.path)
            return api_proxy.expired()

        way.answer = answer
        way.end_watches()
        await s.cluster.delete(Ref("Deployment", s.name, "demo-gateway"))
        await s.make(build(engine={"chunkTokens": 256}))
        await s.wait(lambda: s.exists("Deployment", "demo-gateway"))
        await s.wait(s.is_settled)
        await s.wait(lambda: len(told), len(WATCHED))


async def test_leader_that_is_cut_off_stops_and_the_one_that_followed_keeps_the_lease(s, build):
    there = urllib.parse.urlsplit(s.api.url)
    tcp_relay = TcpRelay(there.hostname, there.port)
    async with tcp_relay.running(), s.operator("one", url=f"https://127.0.0.1:{tcp_relay.port}") as one:
        await s.make(build())
        await s.wait(s.ready)
        async with s.operator("two") as two:
            tcp_relay.block()
            await s.wait(lambda: two.metric("leader"), 1)
            assert await one.metric("leader") == 0, "it stopped before another could start"
            await s.make(build(engine={"chunkTokens": 256}))
            await s.wait(s.is_current)
            tcp_relay.unblock()
            before = await one.metric("watch_events_total")
            await s.wait(lambda: _more_events(one, before))
            await s.wait(s.is_settled)
            assert await one.metric("leader") == 0
            assert await two.metric("leader") == 1


async def _more_events(operator, before):
    return await operator.metric("watch_events_total") > before
