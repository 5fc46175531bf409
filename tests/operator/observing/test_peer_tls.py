"""Processes whose control port has TLS: how the operator knows them, and that it shows its token to no other."""

import base64

import pytest
from aiohttp import web
from answering_server import asking

from legato_operator.api import parsing
from legato_operator.errors import Forbidden, ObjectNotFound, Unavailable
from legato_operator.manifests import placement
from legato_operator.manifests.pods import worker
from legato_operator.observing import observe, peer_tls, pod_facts
from legato_operator.observing.gateway_api import HttpGateways
from legato_operator.observing.observed import PeerTLS, Pod, WorkerState
from legato_operator.observing.worker_api import HttpWorkers
from legato_protocol.security.tls_files import server_context

NAME = "demo-workers.default.svc"
STATE = {"draining": False, "stopping": False, "running": 1, "waiting": 2, "idle": False, "transport": "tcp"}


async def test_a_worker_is_asked_over_tls_and_none_that_cannot_prove_who_it_is(files, others):
    asked = []

    async def answer(request):
        asked.append((request.method, request.scheme))
        return web.json_response(STATE)

    authority, tokens = files.authority.read_text(), ("t",)
    context = server_context(files.certificate, files.key)
    async with asking(HttpWorkers, answer, context) as (workers, address):
        own = PeerTLS(authority, NAME)
        assert await workers.state(address, tokens, own) == WorkerState(3, False, "tcp")
        await workers.drain(address, tokens, own)
        assert await workers.recall(address, tokens, own)
        assert asked == [("GET", "https"), ("POST", "https"), ("DELETE", "https")]
        strange, nothing = PeerTLS(others.authority.read_text(), NAME), PeerTLS("nothing", NAME)
        for wrong in (strange, PeerTLS(authority, "x-workers.default.svc"), nothing, None):
            assert await workers.state(address, tokens, wrong) is None
            await workers.drain(address, tokens, wrong)
            assert not await workers.recall(address, tokens, wrong)
    async with asking(HttpGateways, answer, context) as (gateways, address):
        for wrong in (strange, nothing):
            assert await gateways.report(address, tokens, wrong) is None
    assert len(asked) == 3, "nobody was shown a token"


class Secrets:
    """A cluster with these; an error is raised."""

    def __init__(self, found):
        self.found, self.asked = found, []

    async def get(self, ref):
        assert (ref.kind, ref.namespace) == ("Secret", "default")
        self.asked.append(ref.name)
        given = self.found.get(ref.name, ObjectNotFound(ref.name))
        if isinstance(given, Exception):
            raise given
        return {"data": given}


def _pod(name, secret=""):
    return Pod(name, name, "decode", "1", "", True, False, address="10.0.0.1:8084", tls_secret=secret)


async def test_each_pod_is_known_by_the_authority_of_its_own_secret_and_asked_by_no_other(build):
    """Pods of before a change of the Secret's name still show what is in the other one."""
    shown = []

    class Workers:
        async def state(self, address, tokens, tls=None):
            shown.append(tls)

    encoded = {"ca.crt": base64.b64encode(b"authority").decode()}
    cluster = Secrets({"a": encoded, "empty": {}, "bad": {"ca.crt": "?"}, "mine": Forbidden("403")})
    service = parsing.read_service(build())
    pods = [
        _pod("p", "a"),
        _pod("q", "a"),
        _pod("plain"),
        *(_pod(name, name) for name in ("empty", "bad", "mine", "no")),
    ]
    known = await peer_tls.attach(cluster, service, pods)
    own = PeerTLS("authority", "demo-workers.default.svc")
    assert [pod.tls for pod in known] == [own, own, *[None] * 5]
    assert [pod.address for pod in known] == ["10.0.0.1:8084"] * 3 + [""] * 4, "nobody is to speak to these"
    assert sorted(cluster.asked) == ["a", "bad", "empty", "mine", "no"], "each is read once"
    for pod in known:
        await observe._ask_worker(pod, Workers(), ("t",))
    assert shown == [own, own, None]
    with pytest.raises(Unavailable):
        await peer_tls.attach(Secrets({"a": Unavailable("503")}), service, pods)


@pytest.mark.parametrize(
    ("tls", "address", "secret"),
    [
        (None, "10.0.0.1:8082", ""),
        ({"secret": "x"}, "10.0.0.1:8084", "x"),
        ({"secret": "y", "mode": "Strict"}, "10.0.0.1:8084", "y"),
    ],
)
def test_a_pod_tells_where_its_control_port_is_and_whose_certificate_it_shows(build, tls, address, secret):
    service = parsing.read_service(build(**({"internalTLS": tls} if tls else {})))
    made = worker.pod(
        service, "w", worker.template(service, "decode", placement.kubernetes(placement.Containers("e", "g")))
    )
    times = {"creationTimestamp": "2026-01-01T00:00:00Z", "uid": "u"}
    stored = made | {"metadata": made["metadata"] | times, "status": {"podIP": "10.0.0.1"}}
    pod = pod_facts.read(stored, 0.0)
    assert (pod.address, pod.tls_secret) == (address, secret)
